"""FlatNCE (Chen et al. 2021), Figure S2: FlatCLR's learning at large batches, learning rate linear in the batch.

    python -m experiments.flatnce.figure_s2 run --scale=paper     # or gpu, small; skips what is done
    python -m experiments.flatnce.figure_s2 render

The paper sees the "moderate" batch of 256 learn fastest early, with ResNet-50; its values are only drawn.
"""

import statistics
import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results

BATCHES = {"paper": (256, 512, 1024, 2048), "gpu": (256, 1024), "small": (256, 1024)}
LOOK = " --config.evaluate.every='5 epochs' --config.evaluate.look=\"('knn',)\""
RATE = (
    " --config.schedule.scaling=linear --config.schedule.learning_rate=0.004"  # the scale's own at batch 256
)
OWN = {
    "paper": LOOK,
    "gpu": LOOK,
    "small": LOOK.replace("5 epochs", "1 epoch") + RATE + harness.screen(),
}

CURVES = ("eval/knn_top1",)
RUNS = {
    scale: {
        (
            "FlatCLR",
            str(batch),
        ): f"configs/flatclr_cifar10.py:scale={scale} --config.train.batch_size={batch}{OWN[scale]}"
        for batch in batches
    }
    for scale, batches in BATCHES.items()
} | {"smoke": figure_2.TABLE.runs["smoke"]}


def early(results: Results) -> list[list[float]]:
    """Return kNN at the first look of batch 256 less that of each larger batch, a seed each."""
    found = {
        int(column): [values[0] for _, values in results.curve(row, column, CURVES[0]).values()]
        for row, column in results.cells
    }
    larger = [values for batch, values in found.items() if batch > 256]
    if 256 not in found or not larger:
        return []
    return [[100 * (a - b) for a, b in zip(found[256], values, strict=False)] for values in larger]


def draw(results: Results):
    """Draw kNN over epochs, the mean over seeds."""
    figure, axes = harness.panel()
    for row, column in results.cells:
        curves = list(results.curve(row, column, CURVES[0]).values())
        mean = [100 * statistics.mean(at) for at in zip(*(values for _, values in curves), strict=False)]
        axes.plot(curves[0][0][: len(mean)], mean, label=f"batch {column}")
    axes.set(xlabel="epoch", ylabel="kNN top-1, %")
    axes.legend(frameon=False)
    return figure


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Prediction for scale small, written before any run: after one epoch batch 256 is 2 to 6 points above 1,024 in kNN, for
it has made four times the steps; AdamW at four times the rate does not make up for them. A surprise would be a tie.
""",
    read_after="""
It came out so, and says little: 195 steps against 49 at one number of images.
""",
    runs=RUNS,
    metric={"linear top-1, %": "trained.linear.top1 %", "kNN top-1, %": "trained.knn.top1 %"},
    curves=CURVES,
    reported={"linear top-1, %": dict.fromkeys(RUNS["paper"])},  # drawn
    assumed={
        "method, data": "FlatCLR on CIFAR-10; appendix E.2 names neither",
        "batch sizes": "256 is printed, the larger ones are ours; none is smaller, which 'moderate' may ask for",
        "accuracy on the way": "kNN, every 5 epochs (small: every epoch)",
    },
    claims=(
        Claim(
            "Batch 256 learns faster early than larger batches (appendix E.2)",
            "kNN top-1 at the first look, after 5 epochs (small: 1, 195 steps against 49), batch 256 - each of the"
            " larger, points",
            early,
            by="each",
        ),
    ),
    draw=draw,
)


if __name__ == "__main__":
    sys.exit(harness.main())
