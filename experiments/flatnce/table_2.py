"""FlatNCE (Chen et al. 2021), Table 2: linear top-1 on ImageNet over 100 epochs, SimCLR and FlatCLR.

    python -m experiments.flatnce.table_2 run --scale=paper     # skips what is done
    python -m experiments.flatnce.table_2 render

One run a method, whose encoder is judged every 10 epochs; the last column is its end. The paper calls its numbers
a lower bound (footnote 8): Table S3 trains the classifier longer.
"""

import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results

EPOCHS = tuple(range(10, 101, 10))
COLUMN = "linear top-1, %"
LOOK = " --config.evaluate.every='10 epochs' --config.evaluate.look=\"('linear',)\""

CURVES = ("eval/linear_top1",)
d = harness.doubtful  # the decimal point is lost in the scan
REPORTED = {
    COLUMN: harness.grid(figure_2.METHODS, EPOCHS, [
        (38.57, 43.71, 47.03, d(49.45), d(49.93), 52.18, 53.31, 53.47, 53.98, 54.62),
        (39.7, d(45.30), 47.74, 49.72, d(50.39), d(53.30), d(54.48), 54.43, 56.25, 56.74),
    ]),
}  # fmt: skip


def end(results: Results) -> list[float]:
    """Return FlatCLR - SimCLR after 100 epochs, a seed each."""
    return results.differences(("FlatCLR", "100"), ("SimCLR", "100"))


def draw(results: Results):
    """Draw accuracy over epochs beside the paper's."""
    figure, axes = harness.panel()
    for index, name in enumerate(figure_2.METHODS):
        printed = [REPORTED[COLUMN][name, str(epoch)] for epoch in EPOCHS]
        axes.plot(EPOCHS, printed, "o:", color=f"C{index}", label=f"{name}, the paper's")
        for epochs, values in results.curve(name, "100", CURVES[0]).values():
            axes.plot(epochs, [100 * value for value in values], color=f"C{index}", label=name)
    axes.set(xlabel="epoch", ylabel=COLUMN)
    axes.legend(frameon=False)
    return figure


TABLE = harness.Table(
    __name__,
    __doc__,
    runs={
        "paper": {
            (name, "100"): f"configs/flatclr_imagenet.py:method={method}{LOOK}"
            for name, method in figure_2.METHODS.items()
        },
        "smoke": figure_2.TABLE.runs["smoke"],
    },
    metric={COLUMN: "trained.linear.top1 %"},
    curves=CURVES,
    reported=REPORTED,
    assumed={
        "optimizer, schedule, augmentation, head": "as the docstring of configs/flatclr_imagenet.py says",
        "columns": "one run of 100 epochs, judged on the way; the paper does not say that it is one",
        "classifier": "Adam at 0.001, batch 512, until its loss falls by less than 0.1 % in 5 epochs",
    },
    claims=(
        Claim(
            "FlatCLR is better on ImageNet at batch 512",
            "linear top-1, FlatCLR - SimCLR, points",
            end,
            needs="two runs of ImageNet, about 40 GPU-hours each; on small sets the claim is Figure 2's",
        ),
    ),
    draw=draw,
)


if __name__ == "__main__":
    sys.exit(harness.main())
