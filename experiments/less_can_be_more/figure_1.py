"""Less can be more (Mitrovic et al. 2020), Figure 1: accuracy over the number of negatives.

    python -m experiments.less_can_be_more.figure_1 run --scale=small_mnist     # or paper, gpu, small, cpu
    python -m experiments.less_can_be_more.figure_1 render

The paper claims that on CIFAR-100 ReLIC is best with 1 negative and SimCLR with 2 (and worse with 1), and that on
64 x 64 ImageNet ReLIC with 100 negatives is 0.7 points above all of them and SimCLR with 75 on a par with all.
The curves' values are not printed. Learning rate, temperature and the weight of the invariance are chosen for each
number of negatives, on a validation part of the training images.
"""

import sys

from experiments import harness
from experiments.harness import Claim, Results, gates
from experiments.less_can_be_more import common
from experiments.less_can_be_more.common import best, difference

COUNTS = (1, 2, 5, 10, 50, 100, 500, 0)
IMAGENET = {"SimCLR": (10, 75, 0), "ReLIC": (1, 10, 100, 1000, 0)}
LINEAR = "linear top-1, %"
RUNS = {
    "paper": common.published(dict.fromkeys(common.METHODS, COUNTS))
    | {
        (f"{name}, ImageNet 64 x 64", common.column(k)): f"configs/few_negatives_imagenet64.py:method="
        f"{common.METHODS[name]},k={k}"
        for name, counts in IMAGENET.items()
        for k in counts
    },
    "gpu": common.runs("gpu"),
    **{scale: common.runs(scale) for scale in harness.SMALL},
    "cpu": common.runs("cpu"),
    "smoke": common.runs("smoke"),
}
_SIMCLR = {"schedule.learning_rate": (0.2, 0.5, 1.0, 1.5), "temperature.tau": (0.2, 1.0, 10.0)}
_RELIC = {
    "schedule.learning_rate": (0.5, 1.0, 1.5),
    "temperature.tau": (0.2, 1.0, 10.0, 50.0),
    "loss.relic_kl.weight": (0.2, 2.0, 20.0, 200.0, 1000.0),  # twice the paper's: see the config
}

GATES = (gates.headroom, gates.tuned)


def relic_gains_more(results: Results) -> list[float]:
    """Return what each method gains by the number that the paper has best for it, ReLIC's less SimCLR's."""
    gains = (difference("ReLIC", "1", "standard")(results), difference("SimCLR", "2", "standard")(results))
    return [relic - simclr for relic, simclr in zip(*gains, strict=True)] if all(gains) else []


IMAGENET_64 = "ImageNet at 64 x 64 pixels and a batch with hundreds of negatives"


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions for scale small, written before any run: SimCLR's accuracy rises with the number of negatives and flattens
from 10 on; 1 is 1 to 4 points below 2, and 2 is 1 to 3 below all, so that 2 is not the best. ReLIC with 1 is within 2
points of ReLIC with all, and above it, if at all, at weight 20. A surprise would be a method of which 1 or 2 negatives
are the best by a point.

For scale small_mnist, by 10 labels a class, written before any run there: SimCLR rises from 1 to 10 negatives by 1 to 4
points and from 10 to all by less than one; 2 is below all by 0.5 to 3. ReLIC with 1 is 0.5 to 4 points below ReLIC with
all. Most chosen temperatures are 0.2. A surprise would be 1 or 2 negatives ahead of all by half a point.
""",
    read_after="""
Read after the runs of scale small_mnist, with 10 labels a class: SimCLR rises by 3.7 ± 1.1 points from 1 to 10
negatives and by -0.1 ± 0.9 from 10 to all; 2 is 1.3 ± 1.1 below all. ReLIC with 1 is 3.8 ± 1.2 below ReLIC with all,
by kNN 1.7 ± 0.6. These means are as predicted, but the temperature is not: 1, not 0.2, was chosen for every number of
negatives. 1 and 2 are not ahead. ReLIC differs from SimCLR with as many negatives by -0.3 ± 0.8 (1) and -0.1 ± 0.8
(all). SimCLR's rates with 2 and 10 negatives are the largest of the sweep, four times its first largest one, so the
claims that read them have no verdict.
""",
    runs=RUNS,
    metric={LINEAR: "trained.linear.top1 %"},
    also=harness.FEW_LABELS,
    seeds={"paper": (0, 1, 2, 3, 4)},
    sweep={
        "paper": {
            name + where: {"SimCLR": _SIMCLR, "ReLIC": _RELIC}[name]
            for name in common.METHODS
            for where in ("", ", ImageNet 64 x 64")
        },
    }
    | {
        scale: {
            "SimCLR": {"schedule.learning_rate": rates, "temperature.tau": (0.2, 1.0)},
            "ReLIC": {"schedule.learning_rate": rates, "loss.relic_kl.weight": (2.0, 40.0)},
        }
        for scale, rates in harness.ADAMW_RATES.items()
    },
    chooses=harness.BY_FEW_LABELS,
    choosing_seeds={"small_mnist": 2},
    reported={"linear top-1, %": dict.fromkeys(RUNS["paper"])},
    assumed=common.ASSUMED
    | {
        "numbers of negatives": "1, 2, 75, 100 and all are printed, the others are ours",
        "ImageNet": "5 seeds at what the sweep chooses; the paper reports the best over its settings",
        "sweep": "the printed ranges' ends and points between; 20 % of the training images choose, by a seed of their"
        " own",
    },
    claims=(
        Claim(
            "ReLIC is best with 1 negative",
            "linear top-1, ReLIC, 1 negative - each other number, points",
            best("ReLIC", "1"),
            by="each",
            gates=GATES,
        ),
        Claim(
            "SimCLR is best with 2 negatives",
            "linear top-1, SimCLR, 2 negatives - each other number, points",
            best("SimCLR", "2"),
            by="each",
            gates=GATES,
        ),
        Claim(
            "SimCLR with 1 negative is worse than with 2",
            "linear top-1, SimCLR, 1 negative - 2 negatives, points",
            difference("SimCLR", "1", "2"),
            expects="below",
            gates=GATES,
        ),
        Claim(
            "ReLIC gains more by few negatives than SimCLR",
            "linear top-1, ReLIC, 1 negative - standard, less SimCLR's, 2 negatives - standard, points",
            relic_gains_more,
            gates=GATES,
        ),
        Claim(
            "ImageNet 64 x 64: ReLIC with 100 negatives is 0.7 points above all",
            "linear top-1, ReLIC, 100 negatives - standard, points",
            difference("ReLIC, ImageNet 64 x 64", "100", "standard"),
            gates=GATES,
            needs=IMAGENET_64,
        ),
        Claim(
            "ImageNet 64 x 64: SimCLR with 75 negatives equals all",
            "linear top-1, SimCLR, 75 negatives - standard, points",
            difference("SimCLR, ImageNet 64 x 64", "75", "standard"),
            expects="within",
            margin=0.5,
            gates=GATES,
            needs=IMAGENET_64,
        ),
    ),
    draw=common.over_negatives(),
)


if __name__ == "__main__":
    sys.exit(harness.main())
