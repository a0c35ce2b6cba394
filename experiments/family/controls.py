"""Controls: what supervised training reaches, and an untrained encoder.

    python -m experiments.family.controls run --scale=small          # CIFAR-10 at 16 x 16 pixels; skips what is done
    python -m experiments.family.controls run --scale=small_mnist    # MNIST at 14 x 14 pixels
    python -m experiments.family.controls run --scale=gpu            # CIFAR-10 at 32 x 32, ResNet-18
    python -m experiments.family.controls render

Claims about accuracy are judged where there is room for a difference: supervised training well above the best of what
is compared, and that well above an untrained encoder and raw pixels (`pixels`). The controls train 20 epochs, most
tables 5. On digits (scale `cpu`) there are 2 points.
"""

import math
import sys

from experiments import harness
from experiments.family import pixels
from experiments.harness import Results

LINEAR, KNN = "linear top-1, %", "kNN top-1, %"
METHODS = {"SimCLR": "simclr", "supervised": "supervised"}
COLUMN, ON_GPU = "batch 64", "batch 512"
METRIC = {
    LINEAR: "trained.linear.top1 %",
    KNN: "trained.knn.top1 %",
    "untrained, linear top-1, %": "untrained.linear.top1 %",
    "untrained, kNN top-1, %": "untrained.knn.top1 %",
}
UNTRAINED_FEW = "untrained, 10 labels a class, %"
ALSO = {
    scale: of | {UNTRAINED_FEW: "untrained.few_labels.top1 %"} for scale, of in harness.FEW_LABELS.items()
} | {"gpu": {f"raw pixels, {heading}": path for heading, path in list(pixels.TABLE.metric.items())[:2]}}
BRIEF = " --config.checkpoint.keep_last=1 --config.log.tensorboard=False"
OWN = f""" --config.evaluate.rows="('trained','untrained')" --config.train.batch_size=64{BRIEF}"""
RUNS = {
    scale: {
        (name, COLUMN): f"configs/simclr_mnist.py:method={method},scale={scale}{OWN}"
        for name, method in METHODS.items()
        if scale != "smoke" or name == "SimCLR"
    }
    for scale in (*harness.SMALL, "smoke")
}
LONG = (
    "configs/simclr_cifar10.py:scale=gpu --config.train.duration='20 epochs' --config.dtype=bfloat16"
    f" --config.evaluators.linear.augment=False{BRIEF}"
)
SUPERVISED = " --config.loss=cross_entropy --config.probe.weight=0.0 --config.probe.gradient=True"
RUNS["gpu"] = {("SimCLR", ON_GPU): LONG, ("supervised", ON_GPU): LONG + SUPERVISED}


def levels(results: Results) -> dict[str, float]:
    """Return what the gate `headroom` reads, percent; {} before both cells and raw pixels have run."""
    on_gpu = results.scale == "gpu"
    column = ON_GPU if on_gpu else COLUMN
    supervised = results.mean("supervised", column)
    headings = [UNTRAINED_FEW] if results.few else list(METRIC)[2:]
    headings += list(ALSO["gpu"]) if on_gpu else []
    baselines = [results.mean("SimCLR", column, heading) for heading in headings]
    if not on_gpu:
        raw = Results(harness.table_of("family.pixels"), results.scale)
        baselines += [
            raw.mean(pixels.ROW, pixels.COLUMN, h)
            for h in pixels.TABLE.metric
            if (h == harness.FEW) == results.few
        ]
    found = {"supervised": supervised, "baseline": max(baselines)}
    return {} if any(map(math.isnan, [supervised, *baselines])) else found


TABLE = harness.Table(
    __name__,
    __doc__,
    runs=RUNS,
    metric=METRIC,
    also=ALSO,
    seeds=harness.SEEDS | dict.fromkeys(harness.SMALL, (0, 1, 2)) | {"gpu": (0,)},
    assumed={
        "everything": "no table of a paper; the SimCLR cell is the config of all tables at this scale, batch 64, tau"
        " 0.1",
        "gpu": "20 epochs of configs/simclr_cifar10.py, batch 512, classifiers on clean features",
    },
)


if __name__ == "__main__":
    sys.exit(harness.main())
