"""EqCo (Zhu et al. 2020), Figure 3: SiMo over the number of negatives K, with and without EqCo.

    python -m experiments.eqco.figure_3 run       # --scale=paper|small|small_mnist; skips what is done
    python -m experiments.eqco.figure_3 render

The paper claims that with EqCo accuracy almost keeps steady down to very small K, where it drops without. The curves'
values are lost; 68.1 at K = 16 stands in the text.
"""

import sys

from experiments import harness
from experiments.eqco import common
from experiments.harness import gates

COLUMNS = (1, 2, 4, 8, 16, 32, 64, 128, 255)
ROWS = {"SiMo without EqCo": 0, "SiMo": 256}  # -> alpha
RUNS = {
    "paper": {(row, str(k)): common.simo(k, alpha) for row, alpha in ROWS.items() for k in COLUMNS},
    **{
        scale: {
            (row, str(k)): common.simo(k, alpha, common.SCREEN, scale)
            for row, alpha in ROWS.items()
            for k in (2, 16, 127)
        }
        for scale in harness.SMALL
    },
}


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions for scale small, written before any run: each at its own rate, SiMo with EqCo at K = 2 is within 2 points of
K = 127, and at K = 16 within half a point; without EqCo it is 1 to 4 points below at K = 2. A surprise would be no drop
without EqCo: then the rate alone does what the margin does.

On MNIST (small_mnist, by 10 labels a class), which has room where Table 3 on CIFAR-10 has none; written before any run
of SiMo there: with EqCo K = 2 is within a point of K = 127, without it 1 to 5 points below, since the weight of a query
with two negatives falls below 0.1. A surprise would be a gain from few negatives without EqCo.
""",
    read_after="""
Read after these runs on MNIST, each at the rate that 10 labels chose: without EqCo K = 2 is 1.0 points below K = 127
with a half-width of 1.4, its W 0.03: the predicted sign, undecided. With EqCo it is 0.7 above with a half-width of 3.8,
as its seeds spread from 84 to 93: equality within a point cannot be judged, and no five seeds could.
""",
    runs=RUNS,
    metric=common.METRIC,
    also=common.ALSO,
    sweep=common.SWEEP,
    chooses=common.CHOOSES,
    reported={"linear top-1, %": dict.fromkeys(RUNS["paper"]) | {("SiMo", "16"): 68.1}},
    assumed=common.SIMO
    | {
        "K": "16 and 256 are printed; the batch offers 255 other keys",
        "small, small_mnist": common.SWEPT,
    },
    claims=(
        harness.Claim(
            "SiMo does not degrade at K of 16 and below",
            "linear top-1, SiMo with EqCo at the smallest K - at the largest, points",
            lambda results: harness.of_extremes(results, "SiMo"),
            expects="within",
            margin=1.0,
            gates=(gates.headroom, gates.tuned),
        ),
        harness.Claim(
            "SiMo without EqCo drops at very small K",
            "linear top-1, SiMo without EqCo at the smallest K - at the largest, points",
            lambda results: harness.of_extremes(results, "SiMo without EqCo"),
            expects="below",
            gates=(gates.headroom, gates.tuned),
        ),
    ),
    draw=harness.lines("negatives of a query, K", log=True),
)


if __name__ == "__main__":
    sys.exit(harness.main())
