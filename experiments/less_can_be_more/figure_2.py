"""Less can be more (Mitrovic et al. 2020), Figure 2: intra-class distance over the number of negatives.

    python -m experiments.less_can_be_more.figure_2 run       # --scale=paper|gpu|cpu; skips what is done
    python -m experiments.less_can_be_more.figure_2 render

The paper claims that classes are more concentrated with fewer negatives in ReLIC, not in SimCLR, so that concentration
may explain ReLIC's accuracies alone. Values are not printed.
"""

import sys

from experiments import harness
from experiments.harness import Claim, Results
from experiments.less_can_be_more import common, figure_1
from experiments.less_can_be_more.common import difference

METRIC = {
    "intra-class distance, mean over classes": "trained.geometry.intra_class_distance",
    "linear top-1, %": "trained.linear.top1 %",
}
SEEDS = figure_1.SEEDS
RUNS = {
    "paper": common.published(dict.fromkeys(common.METHODS, figure_1.COUNTS), common.MEASURED),
    "gpu": common.runs("gpu"),
    "cpu": common.runs("cpu"),
    "smoke": common.runs("smoke"),
}
REPORTED = {next(iter(METRIC)): dict.fromkeys(RUNS["paper"])}
ASSUMED = common.ASSUMED | {
    "layer": "the pooled features, L2-normalised, Euclidean distances, test images; not printed",
    "hyper-parameters": "not swept here: those of Figure 4",
}

CLAIMS = (
    Claim(
        "ReLIC's intra-class distance is smaller with fewer negatives",
        "ReLIC, 1 negative - standard",
        difference("ReLIC", "1", "standard"),
        expects="below",
    ),
    Claim(
        "SimCLR's intra-class distance does not follow its accuracy",
        "correlation over numbers of negatives with linear top-1, a seed each",
        lambda results: common.correlation(results, "SimCLR"),
        expects="within",
        margin=0.5,
    ),
)


def draw(results: Results):
    """The measure over the number of negatives."""
    return common.over_negatives(results)


if __name__ == "__main__":
    sys.exit(harness.main())
