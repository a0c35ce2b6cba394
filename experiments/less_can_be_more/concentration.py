"""What Figures 2 and 3 share: a measure of how concentrated classes are, over the number of negatives."""

from experiments import harness
from experiments.harness import Claim
from experiments.less_can_be_more import common, figure_1

ACCURACY = {"linear top-1, %": "trained.linear.top1 %"}
SEEDS = figure_1.TABLE.seeds
# Figure 1's runs at small scales, chosen by accuracy: the first heading of both figures, 10 labels a class on MNIST.
SWEEP = {scale: figure_1.TABLE.sweep[scale] for scale in harness.SMALL}
RUNS = {
    "paper": common.published(dict.fromkeys(common.METHODS, figure_1.COUNTS), common.MEASURED),
    "gpu": common.runs("gpu"),
    **{scale: common.runs(scale) for scale in harness.SMALL},
    "cpu": common.runs("cpu"),
    "smoke": common.runs("smoke"),
}
ASSUMED = common.ASSUMED | {
    "layer": "the pooled features, L2-normalised, Euclidean distances, test images; not printed",
    "what is shown": "the mean over classes; Figure 2 draws the distribution and its median",
    "hyper-parameters": "not swept here: those of Figure 4; at small scales Figure 1's runs, of the best of its sweep",
}


def claims(heading: str, measure: str, change: str, expects: str) -> tuple[Claim, ...]:
    """Return the paper's two of a measure under a heading, which fewer negatives make ``change``: "smaller" or
    "higher"."""
    return (
        Claim(
            f"ReLIC's {measure} is {change} with fewer negatives",
            "ReLIC, 1 negative - standard",
            common.difference("ReLIC", "1", "standard", heading),
            expects=expects,
        ),
        Claim(
            f"SimCLR's {measure} does not follow its accuracy",
            "correlation over numbers of negatives with linear top-1, a seed each",
            lambda results: common.correlation(results, "SimCLR"),
            expects="within",
            margin=0.5,
            by="fisher",
        ),
    )


draw = common.over_negatives(heading=1)  # the measure
