"""EqCo (Zhu et al. 2020), Remark 2: negatives that queries share, or that are each query's own.

    python -m experiments.eqco.remark_2 run --scale=small_mnist     # skips what is done
    python -m experiments.eqco.remark_2 render

"Negative samples for different queries could be either (fully or partially) shared or isolated [...] we empirically
find the differences in implementation do not result in much of the performance variation." SiMo's code draws one choice
of negatives for all queries of a step, SimCLR's cells draw for each query; both draw from one batch. Here both are run
with EqCo's margin, alpha 256, at 2 and 32 negatives.
"""

import sys

from experiments import harness
from experiments.eqco import common
from experiments.harness import Claim, Results, gates

SHARED, OWN = "shared by all queries", "each query's own"
KS = (2, 32)


def apart(k: int):
    """Return the evidence: shared less own negatives, a seed each."""
    return lambda results: results.differences((SHARED, str(k)), (OWN, str(k)))


def at_each(results: Results) -> list[list[float]]:
    """Return shared less own negatives at each number of them, a sample each."""
    found = [apart(k)(results) for k in KS]
    return found if all(found) else []


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions, written before any run: at 32 negatives the two differ by less than a point with 10 labels a class; at 2,
where all queries of a step push from the same two images, shared ones are 0.5 to 4 points worse. A surprise would be a
difference of more than a point at 32.
""",
    read_after="""
Undecided. The loss predicted at 2 negatives is hardly seen: shared ones are 0.3 ± 1.0 points worse with 10 labels a
class, though all queries of a step push from the same two images. At 32 shared ones are 0.9 ± 1.2 points better, so
that more than a point is not excluded. With all labels the two differ by 0.1 ± 0.4 and 0.2 ± 0.5 points.
""",
    runs={
        "small_mnist": {
            (name, str(k)): f"configs/eqco_simclr_imagenet.py:k={k},alpha=256,scale=small_mnist"
            f" --config.negatives.k={k}{flag} --config.train.batch_size=64{common.SCREEN}"
            for name, flag in {SHARED: " --config.negatives.shared=True", OWN: ""}.items()
            for k in KS
        }
    },
    metric={"linear top-1, %": "trained.linear.top1 %"},
    also=common.ALSO,
    sweep=common.SWEEP,
    chooses=common.CHOOSES,
    choosing_seeds={"small_mnist": 2},
    assumed={
        "isolated": "drawn for each query from one batch; a batch of K (N + 1) images, with none in common, is not run",
        "settings": common.SWEPT,
    },
    claims=(
        Claim(
            "Shared and isolated negatives do alike (Remark 2)",
            "10 labels a class, shared - each query's own, at 2 and at 32 negatives, points",
            at_each,
            expects="within",
            margin=1.0,
            by="each",
            gates=(gates.headroom, gates.tuned),
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
