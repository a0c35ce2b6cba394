"""FlatNCE (Chen et al. 2021), section 4: the performance gap widens as the difference in ESS becomes larger.

    python -m experiments.flatnce.figure_5_gap run --scale=small_mnist     # skips what is done
    python -m experiments.flatnce.figure_5_gap render

Figure 5's text reads this from two trainings. Here it is asked over training: FlatCLR and SimCLR at batch 16, kNN and
10 labels a class at ten looks, the gap of accuracy beside the gap of ESS, the negatives' for both.
"""

import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results, gates

LOOK = """ --config.evaluate.every='0.5 epochs' --config.evaluate.look="('knn','few_labels')\""""


def widened(results: Results, curve: str, unit: float = 1.0) -> list[float]:
    """Return FlatCLR - SimCLR of a curve at the last look less at the first, a seed each."""
    flat, sim = (results.curve(row, "16", curve) for row in ("FlatCLR", "SimCLR"))
    gaps = [[a - b for a, b in zip(flat[s][1], sim[s][1], strict=False)] for s in flat if s in sim]
    return [unit * (gap[-1] - gap[0]) for gap in gaps if len(gap) > 1]


def together(results: Results) -> list[list[float]]:
    """Return the widening of ESS's gap, and of the accuracy's in points, a sample each."""
    found = [widened(results, "ess"), widened(results, "eval/few_labels_top1", 100.0)]
    return found if all(found) else []


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions, written before any run: the gap of ESS grows from the first look to the last with every seed (Figure 5);
the gap of accuracy by 10 labels a class grows too, by 0.5 to 3 points, and by kNN by less than half a point. Both grow
with the number of steps, so that a correlation over time would say nothing of a cause. A surprise would be a gap that
shrinks.
""",
    runs={
        "small_mnist": {
            (name, "16"): f"configs/flatclr_cifar10.py:method={method},scale=small_mnist"
            f" --config.train.batch_size=16 --config.schedule.learning_rate=0.00025{LOOK}"
            + harness.screen(few_labels=harness.OWN_DRAWS)
            for name, method in figure_2.METHODS.items()
        }
    },
    metric=figure_2.TABLE.metric,
    also=figure_2.TABLE.also,
    curves=("ess", "eval/knn_top1", "eval/few_labels_top1"),
    assumed={"rate": "0.00025 sqrt(batch) for both, AdamW, 5 epochs"},
    claims=(
        Claim(
            "The performance gap widens as the difference in ESS becomes larger (section 4)",
            "FlatCLR - SimCLR at the last look less at the first, of ESS, and of 10 labels a class in points",
            together,
            by="each",
            gates=(gates.regime("SimCLR", "16"),),
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
