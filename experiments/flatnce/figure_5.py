"""FlatNCE (Chen et al. 2021), Figure 5: the effective sample size over training, FlatCLR against SimCLR.

    python -m experiments.flatnce.figure_5 run       # the runs of figure_2; skips what is done
    python -m experiments.flatnce.figure_5 render

The paper's SimCLR falls from 0.06 to 0.05 and its FlatCLR climbs from 0.17 to 0.35: "drastically different profiles".
SimCLR's weights are counted over the negatives and the positive, FlatCLR's over the negatives alone.

The two ways of counting make the printed contrast larger than it is: at scale small_mnist both methods rise over the
negatives, and both fall with the positive. So the first claim asks, since those runs, that FlatCLR rises by more than
SimCLR where both are counted over the negatives.
"""

import statistics
import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results, gates

WEIGHED = {"SimCLR": "ess_with_positive", "FlatCLR": "ess"}
EARLY, LATE = (0.1, 0.35), (0.75, 1.0)  # shares of the training: after the warm-up, and at the end
BATCHES = {"paper": "256", "gpu": "256", **dict.fromkeys(harness.SMALL, "16"), "cpu": "64", "smoke": "32"}


def change(results: Results, row: str, counted: str) -> list[float]:
    """Return late less early ESS of a method, a seed each."""
    cell = next((cell for cell in results.cells if cell[0] == row), None)
    curves = results.curve(*cell, counted).values() if cell else ()
    return [_mean(curve, LATE) - _mean(curve, EARLY) for curve in curves]


def rise(results: Results) -> list[list[float]]:
    """Return FlatCLR's change over the negatives, and what it has more than SimCLR's."""
    flat, sim = (change(results, row, "ess") for row in ("FlatCLR", "SimCLR"))
    return [flat, [f - s for f, s in zip(flat, sim, strict=True)]] if flat and sim else []


def _mean(curve: tuple[list, list], part: tuple[float, float]) -> float:
    epochs, values = curve
    return statistics.mean(
        v for e, v in zip(epochs, values, strict=True) if part[0] < e / epochs[-1] <= part[1]
    )


def draw(results: Results):
    """Draw both curves, the mean over seeds."""
    figure, axes = harness.panel()
    for cell in results.cells:
        curves = list(results.curve(*cell, WEIGHED[cell[0]]).values())
        if curves:
            mean = [statistics.mean(at) for at in zip(*(values for _, values in curves), strict=True)]
            axes.plot(curves[0][0], mean, label=f"{cell[0]}, batch {cell[1]}")
    axes.set(xlabel="epoch", ylabel="ESS", yscale="log")
    axes.legend(frameon=False)
    return figure


TABLE = harness.Table(
    __name__,
    __doc__,
    runs={
        scale: {cell: text for cell, text in figure_2.TABLE.runs[scale].items() if cell[1] == batch}
        for scale, batch in BATCHES.items()
    },
    metric={figure_2.LINEAR: figure_2.TABLE.metric[figure_2.LINEAR]}
    | {  # a sweep chooses by the first
        "ESS at the end": "metrics.ess",
        "ESS at the end, with the positive": "metrics.ess_with_positive",
    },
    curves=figure_2.TABLE.curves,
    sweep=figure_2.TABLE.sweep,
    reported={
        "ESS at the end": {("SimCLR", "256"): None, ("FlatCLR", "256"): 0.35},
        "ESS at the end, with the positive": {("SimCLR", "256"): 0.05, ("FlatCLR", "256"): None},
    },
    assumed={
        "SimCLR's ESS": "with the positive, whose weight near 1 section 3 speaks of; Algorithm S1 counts negatives"
        " alone",
        "network": "ResNet-50; 'some of the learning dynamics' are ResNet-18's, which is not said",
        "batch": "256, the largest printed for CIFAR; 64 at cpu, where 256 is a sixth of the images",
        "early and late": "means over 10 to 35 % of the training (the warm-up is the first tenth) and its last quarter",
        "cpu": figure_2.TABLE.assumed["cpu"],
    },
    claims=(
        Claim(
            "FlatCLR's ESS rises during training, and by more than SimCLR's",
            "ESS of the negatives, late - early, FlatCLR's and FlatCLR's - SimCLR's",
            rise,
            by="each",
            gates=(gates.regime("SimCLR"),),
        ),
        Claim(
            "SimCLR's ESS falls during training",
            "ESS of negatives and positive, late - early",
            lambda results: change(results, "SimCLR", WEIGHED["SimCLR"]),
            expects="below",
            gates=(gates.regime("SimCLR"),),
        ),
    ),
    draw=draw,
)


if __name__ == "__main__":
    sys.exit(harness.main())
