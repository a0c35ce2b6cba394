"""Less can be more (Mitrovic et al. 2020), Figure 3: silhouette over the number of negatives.

    python -m experiments.less_can_be_more.figure_3 run       # --scale=paper|gpu|small|cpu; skips what is done
    python -m experiments.less_can_be_more.figure_3 render

The paper claims that classes are more concentrated with fewer negatives in ReLIC, not in SimCLR, so that concentration
may explain ReLIC's accuracies alone. Values are not printed.
"""

import sys

from experiments import harness
from experiments.less_can_be_more import concentration

SILHOUETTE = "silhouette"
RUNS = concentration.RUNS


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Prediction for scale small (Figure 1's runs), written before any run: silhouettes are below zero for every cell, ReLIC's
with 1 negative the lower by 0.01 or more, against the paper. A surprise would be a silhouette above zero, or SimCLR's
without correlation to its accuracy.
""",
    runs=RUNS,
    metric=concentration.ACCURACY | {SILHOUETTE: "trained.geometry.silhouette"},
    also=concentration.ALSO,
    seeds=concentration.SEEDS,
    sweep=concentration.SWEEP,
    reported={SILHOUETTE: dict.fromkeys(RUNS["paper"])},
    assumed=concentration.ASSUMED,
    claims=concentration.claims(SILHOUETTE, "silhouette", "higher", expects="above"),
    draw=concentration.draw,
)


if __name__ == "__main__":
    sys.exit(harness.main())
