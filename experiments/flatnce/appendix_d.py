"""FlatNCE (Chen et al. 2021), Appendix D: a Fenchel-Legendre bound with one negative sample as a training loss.

    python -m experiments.flatnce.appendix_d run --scale=small_mnist     # skips what is done
    python -m experiments.flatnce.appendix_d render

The paper trains primal and dual critics together on MNIST and "Cifar", with one negative a query, and reports the
result to be about 2 % below InfoNCE. Updates of the critics in turns, and a u that respects its optimality (u = s - g
with a critic s of the query), are said to explode. It prints no table of it.
"""

import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results, gates

SAME_TAU, TWICE = "InfoNCE, tau 1", "Fenchel-Legendre, in turns, 10 epochs"
IN_TURNS = """ --config.optimizer.alternate="('critic',)\""""
METHODS = {  # -> (method, overrides)
    "InfoNCE": ("simclr", ""),
    SAME_TAU: ("simclr", " --config.temperature.tau=1.0"),
    "Fenchel-Legendre, u of pairs": ("fenchel_legendre", ""),
    "Fenchel-Legendre, u of queries": ("fenchel_legendre_baseline", ""),
    "Fenchel-Legendre, in turns": ("fenchel_legendre", IN_TURNS),
    TWICE: ("fenchel_legendre", IN_TURNS),
}
COLUMN = "batch 64"


def destabilized(results: Results) -> list[list[float]]:
    """Return updates in turns, and u of queries, each less critics of pairs that are trained together."""
    others = ("Fenchel-Legendre, in turns", "Fenchel-Legendre, u of queries")
    return [
        results.differences((other, COLUMN), ("Fenchel-Legendre, u of pairs", COLUMN)) for other in others
    ]


OTHER_TAU = gates.lacking("the two are at other temperatures: its critic at 1, InfoNCE at 0.1", harness.SMALL)

TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions, written before any run: each at the rate that it chooses, the bound with a critic of pairs is 2 to 10
points below InfoNCE with 10 labels a class and 1 to 4 with all; most of it is the single negative. A surprise would be
less than half a point, or a critic of the query alone (its u is a baseline) that does better than one of pairs.
""",
    read_after="""
Read after these runs: the surprise is larger than any that was named. The bound is 5.5 points above InfoNCE. It has the
temperature 1, which its text leaves unsaid, and InfoNCE 0.1: at 1, at one rate for all, InfoNCE had reached 94.4 here
(`family.tau_by_batch`), above the bound's 92.9. So the two are compared once more at the temperature 1, each at its own
rate. Prediction, before that run: the bound is 1 to 2.5 points below InfoNCE with 10 labels a class. "Destabilizes" is
read as a lower accuracy than that of critics trained together; u of queries had run (it did not explode) when the row
of updates in turns was added. Prediction: within a point of together, and no training explodes.

Read after the control: at the temperature 1 of both the bound is 2.1 points below InfoNCE with a half-width of 0.9, as
predicted and as the paper has it. It was not judged at first, as InfoNCE leaves 2.9 points of room at that temperature
(95.1 of 98.0); since 2026-11-26 room is not asked of an effect that is decided, and it holds. What is not judged is the
bound at 1 less InfoNCE at 0.1: these are two temperatures.

Read after updates in turns: none exploded, but they cost 4.8 points (half-width 1.6); less than one was predicted. In
turns each part takes half of the steps of 5 epochs, so that the cost may be one of steps. Asked once more with 10
epochs, in which each part takes as many as together. Prediction, before that run: within 1.5 points of together.

Read after it: 1.0 points below together (half-width 1.2), so that most of the cost was one of steps; within 1.5 is not
decided.
""",
    runs={
        "small_mnist": {
            (name, COLUMN): f"configs/flatclr_cifar10.py:method={method},scale=small_mnist"
            f" --config.train.batch_size=64{overrides}{harness.screen(10 if name == TWICE else 5)}"
            for name, (method, overrides) in METHODS.items()
        }
    },
    metric=figure_2.TABLE.metric,
    also=figure_2.TABLE.also,
    sweep={"small_mnist": figure_2.TABLE.sweep["small_mnist"]},
    chooses=harness.BY_FEW_LABELS,
    assumed={
        "temperature of the bound": "1, the paper's text where nothing else is said; InfoNCE's is 0.1, and 1 in a"
        " control",
        "small_mnist": figure_2.TABLE.assumed["small, small_mnist"] + "; batch 64",
    },
    claims=(
        Claim(
            "Fenchel-Legendre with one sample as a training loss is below InfoNCE (by about 2 points, appendix D)",
            "linear top-1, Fenchel-Legendre with a critic of pairs - InfoNCE, points",
            lambda results: results.differences(
                ("Fenchel-Legendre, u of pairs", COLUMN), ("InfoNCE", COLUMN)
            ),
            expects="below",
            gates=(gates.headroom, gates.tuned, OTHER_TAU),
        ),
        Claim(
            "At the temperature 1 of both it is below InfoNCE",
            "linear top-1, Fenchel-Legendre with a critic of pairs - InfoNCE at tau 1, points",
            lambda results: results.differences(("Fenchel-Legendre, u of pairs", COLUMN), (SAME_TAU, COLUMN)),
            expects="below",
            gates=(gates.headroom, gates.tuned),
            ours=True,
        ),
        Claim(
            "Updates in turns, and a u that respects its optimality, destabilize training (appendix D)",
            "linear top-1, in turns and with u of queries each - together, points",
            destabilized,
            expects="below",
            by="each",
            gates=(gates.headroom, gates.tuned),
        ),
        Claim(
            "Where each part takes as many steps, updates in turns do as well",
            "linear top-1, in turns for 10 epochs - together for 5, points",
            lambda results: results.differences((TWICE, COLUMN), ("Fenchel-Legendre, u of pairs", COLUMN)),
            expects="within",
            margin=1.5,
            gates=(gates.headroom, gates.tuned),
            ours=True,
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
