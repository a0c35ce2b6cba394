"""FlatNCE (Chen et al. 2021), Table S4: fine-tuning Table 2's encoders on 1 % and 10 % of ImageNet's labels.

    python -m experiments.flatnce.table_s4 run --scale=paper     # skips what is done
    python -m experiments.flatnce.table_s4 render

The paper's supervised row stands beside ours: the same network from its first weights, the row "untrained" of SimCLR's
run (of FlatCLR's it is that network again).
"""

import functools
import json
import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results

FRACTIONS = {"1 %": 0.01, "10 %": 0.1}
EVALUATORS = {
    f"share_{fraction:g}".replace(".", "_"): {"name": "finetune_flatnce", "fraction": fraction}
    for fraction in FRACTIONS.values()
}

d = harness.doubtful


def gap(heading: str, results: Results) -> list[float]:
    """Return FlatCLR less SimCLR, a seed each."""
    return results.differences(("FlatCLR", "ImageNet"), ("SimCLR", "ImageNet"), heading)


TABLE = harness.Table(
    __name__,
    __doc__,
    runs={
        "paper": {
            (
                name,
                "ImageNet",
            ): f"configs/flatclr_imagenet.py:method={method} --config.evaluators='{json.dumps(EVALUATORS)}'"
            " --config.evaluate.rows=\"('trained', 'untrained')\""
            for name, method in figure_2.METHODS.items()
        },
    },
    metric={
        f"{of}{share} of the labels, top-{k}, %": f"{row}.{column}.top{k} %"
        for of, row in (("", "trained"), ("supervised, ", "untrained"))
        for share, column in zip(FRACTIONS, EVALUATORS, strict=True)
        for k in (1, 5)
    },
    reported={
        "1 % of the labels, top-1, %": {("SimCLR", "ImageNet"): d(33.44), ("FlatCLR", "ImageNet"): 36.35},
        "1 % of the labels, top-5, %": {("SimCLR", "ImageNet"): d(61.29), ("FlatCLR", "ImageNet"): 64.59},
        # SimCLR's 54.62 is also Table 2's last cell.
        "10 % of the labels, top-1, %": {("SimCLR", "ImageNet"): d(54.62), ("FlatCLR", "ImageNet"): 56.51},
        # Scanned as 179.89.
        "10 % of the labels, top-5, %": {("SimCLR", "ImageNet"): d(79.89), ("FlatCLR", "ImageNet"): 81.32},
        "supervised, 1 % of the labels, top-1, %": {("SimCLR", "ImageNet"): d(5.25)},
        "supervised, 1 % of the labels, top-5, %": {("SimCLR", "ImageNet"): d(14.40)},
        "supervised, 10 % of the labels, top-1, %": {("SimCLR", "ImageNet"): d(41.98)},
        "supervised, 10 % of the labels, top-5, %": {("SimCLR", "ImageNet"): 67.05},
    },
    assumed={
        "pretraining": "as the docstring of configs/flatclr_imagenet.py says",
        "fine-tuning": "appendix E.3's of transfer, 100 epochs; the rate is illegible (5=°): 5e-5, constant",
        "supervised baseline": "the same fine-tuning from first weights: crop, flip and 100 epochs are printed, no"
        " more",
    },
    claims=tuple(
        Claim(
            f"FlatCLR is better fine-tuned on {share} of ImageNet's labels",
            f"top-1, {share} of the labels, FlatCLR - SimCLR, points",
            functools.partial(gap, f"{share} of the labels, top-1, %"),
            needs="the encoders of Table 2, trained on ImageNet, of whose labels these are shares",
        )
        for share in FRACTIONS
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
