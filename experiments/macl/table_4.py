"""MACL (Huang et al. 2022), Table 4: with and without an anchor-wise weight (MACL-w of eq. 15; the table says MACL-c).

python -m experiments.macl.table_4 run       # --scale=paper|small|small_mnist|cpu; skips what is done
python -m experiments.macl.table_4 render
"""

import sys

from experiments import harness
from experiments.harness import Claim, gates
from experiments.macl import common

ROWS = {"MACL-a": "macl", "MACL-c": "macl_w"}
# Eq. 10, the temperature without the reweighting, and neither: what each of the two brings.
ADAPTIVE = {"Adaptive temperature alone": "macl_without_reweighting", "InfoNCE": "simclr"}
SETS = {"CIFAR10": "cifar10", "CIFAR100": "cifar100", "STL10": "stl10"}


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions for small scales, written before any run. MNIST at batch 64, by 10 labels a class: MACL-c is within a point
of MACL-a; the adaptive temperature alone is 0.5 to 2 points above InfoNCE, as it ends near 0.18 where a higher constant
was better too (`family/yoked`); the reweighting adds 0.3 to 1.5, InfoNCE's weight being small there. CIFAR-10: all four
within a point, and the reweighting not judged, as W stays above a half. A surprise would be the temperature below
InfoNCE at a fixed tau0, or a reweighting that costs accuracy.

The small scales had batch 256, at which W ends above a half on MNIST (FlatNCE's Figure 2), so that the last claim could
not have been judged; they have 64 now, changed before any of these runs.

Changed after the runs that choose of MACL-a and MACL-c, before any that judges was read: both chose 0.002, the end of
what two steps beyond the sweep reach, so that four are allowed.
""",
    read_after="""
Read after the runs on MNIST: the adaptive temperature alone is 3.1 points above InfoNCE at tau 0.1 with a half-width of
0.6, more than the 0.5 to 2 that were predicted, at a rate of 0.002 where InfoNCE chose 0.00025; it holds. The
reweighting adds 0.3 with one of 0.4, undecided; MACL-c is no better than MACL-a by a point. That the temperature
follows the alignment is not shown by this: a constant of 0.3 had been better than all of MACL's (`family/yoked`).
""",
    runs={
        "paper": {
            (row, name): common.arguments("paper", method, dataset=dataset)
            for row, method in ROWS.items()
            for name, dataset in SETS.items()
        }
        | {(row, "CIFAR10"): common.arguments("paper", method) for row, method in ADAPTIVE.items()},
        **{
            scale: {
                (row, "batch 64"): common.arguments(scale, method, " --config.train.batch_size=64")
                for row, method in (ROWS | ADAPTIVE).items()
            }
            for scale in harness.SMALL
        },
        "cpu": {
            (row, "digits"): common.arguments("cpu", method, " --config.train.batch_size=256")
            for row, method in ROWS.items()
        },
        "smoke": common.smoke(),
    },
    metric=common.METRIC,
    also=common.ALSO,
    curves=common.CURVES,
    seeds=harness.SEEDS | dict.fromkeys(harness.SMALL, tuple(range(8))),
    sweep=common.SWEEP,
    chooses=common.CHOOSES,
    further=common.FURTHER,
    published_rates=common.PUBLISHED_RATES,
    reported={
        common.LINEAR: harness.grid(ROWS, SETS, [(87.37, 60.81, 82.68), (86.34, 59.64, 81.71)]),
        common.KNN: harness.grid(ROWS, SETS, [(85.52, 55.70, 80.13), (84.90, 54.87, 80.53)]),
        common.S: harness.grid(ROWS, SETS, [(0.319, 0.291, 0.320), (0.312, 0.285, 0.313)]),
    },
    assumed=common.ASSUMED,
    claims=(
        Claim(
            "The anchor-wise weight of MACL-w does not help",
            "linear top-1, MACL-c - MACL-a, less one point",
            lambda results: [points - 1 for points in common.difference("MACL-c", "MACL-a")(results)],
            expects="below",
            gates=(gates.room_to_differ, gates.tuned),
        ),
        Claim(
            "The adaptive temperature alone, without reweighting, improves InfoNCE (eq. 10)",
            "linear top-1, eq. 10 - InfoNCE at the fixed tau0, points",
            common.difference("Adaptive temperature alone", "InfoNCE"),
            gates=(gates.headroom, gates.tuned),
        ),
        Claim(
            "The reweighting improves it further (eq. 14)",
            "linear top-1, MACL-a - eq. 10, points",
            common.difference("MACL-a", "Adaptive temperature alone"),
            gates=(gates.headroom, gates.regime("InfoNCE"), gates.tuned),
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
