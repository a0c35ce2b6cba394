"""MACL (Huang et al. 2022), Table 3: losses over the length of pretraining, CIFAR-100.

    python -m experiments.macl.table_3 run --scale=paper     # or small, small_mnist; skips what is done
    python -m experiments.macl.table_3 render

The paper's table has MACL ahead at every length, by less the longer the training is.
"""

import sys
from collections.abc import Iterable

from experiments import harness
from experiments.harness import Claim, Results, gates
from experiments.macl import common

EPOCHS = (100, 200, 300, 500)

SHORT, LONG = 5, 20  # epochs at small


def small(scale: str, epochs: int, rows: Iterable[str]) -> dict[tuple[str, str], str]:
    """Return the cells of a length at a small scale, batch 256."""
    own = f",scale={scale} --config.train.batch_size=256{common.screen(epochs)}"
    return {(row, str(epochs)): f"configs/macl_cifar10.py:method={common.LOSSES[row]}{own}" for row in rows}


REPORTED = {
    common.LINEAR: harness.grid(common.LOSSES, EPOCHS, [
        (55.04, 58.33, 60.58, 62.59),
        (57.68, 59.61, 61.16, 63.14),
        (57.46, 60.34, 61.18, 63.20),
        (57.73, 60.81, 62.05, 63.22),
        (57.84, 60.69, 62.07, 63.71),
    ]),
    common.KNN: harness.grid(common.LOSSES, EPOCHS, [
        (46.32, 50.74, 54.10, 56.27),
        (50.91, 54.68, 56.74, 59.17),
        (50.61, 55.20, 57.21, 59.19),
        (51.09, 55.70, 57.64, 59.67),
        (50.94, 55.99, 57.50, 59.87),
    ]),
    common.S: harness.grid(common.LOSSES, EPOCHS, [
        (0.208, 0.240, 0.253, 0.264),
        (0.255, 0.281, 0.293, 0.303),
        (0.254, 0.281, 0.292, 0.306),
        (0.265, 0.291, 0.304, 0.314),
        (0.263, 0.290, 0.301, 0.312),
    ]),
}  # fmt: skip
OTHERS = ("InfoNCE", "DCL", "Dual")


def leads(results: Results) -> list[list[float]]:
    """Return MACL-a less each other loss at each length, a sample each."""
    lengths = dict.fromkeys(column for row, column in results.cells if row == "MACL-a")
    found = (results.differences(("MACL-a", e), (row, e)) for e in lengths for row in OTHERS)
    return [seeds for seeds in found if seeds]


def shrinks(results: Results) -> list[float]:
    """Return the lead over InfoNCE at the shortest length less that at the longest, a seed each."""
    ends = [harness.of_extremes(results, row) for row in ("MACL-a", "InfoNCE")]
    return [a - b for a, b in zip(*ends, strict=True)] if all(ends) else []


GATES = (gates.headroom, gates.tuned)  # MACL differs by its temperature, at any W

TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions for small scales, written before any run. CIFAR-10: MACL-a is within a point of DCL and Dual at 5 epochs,
and its lead over InfoNCE, of less than 2 points, does not shrink at 20: it grows with the share of queries that InfoNCE
has solved, and W falls as training goes on. MNIST at 5 epochs: above InfoNCE by 0.5 to 2. A surprise would be a lead at
5 epochs that is gone at 20.

Changed before any number of MNIST was read: on CIFAR-10 at batch 256 InfoNCE's first six runs of 5 epochs have a median
W of 0.89 over their last half, so its gate fails whatever the others show. The rest of CIFAR-10 is not run, and 20
epochs are of MNIST. There we predict that the lead over InfoNCE shrinks from 5 to 20 epochs, by 0 to 1 points: 10
labels a class have little room left. A surprise would be a lead that grows by more than half a point.
""",
    read_after="""
Read after all runs of MNIST: by 10 labels a class MACL-a is 1.3 points above InfoNCE at 5 epochs (half-width 0.4), 1.5
above DCL (0.4) and 1.3 above Dual temperature (0.6). At 20 epochs it is 3.5 points above InfoNCE (0.2): the lead grows
by 2.2 (0.5), where we had predicted that it shrinks. All labels and kNN say the same in small: +0.3 and +0.2 at 5
epochs, +0.6 and +0.5 at 20. InfoNCE's median W is 0.54 at 5, just outside of what its gate asked for, so nothing was
judged at first. Since 2026-11-26 that gate is asked of claims on a query's weight alone, and MACL differs from DCL by
its temperature, at any W: "the best at each length" holds with 10 labels a class (DCL and Dual did not run at 20
epochs; by all labels and kNN it is undecided), "the lead shrinks" does not hold.

Looked into, as a surprise against the paper: the rates that were chosen lie inside of the sweep, both losses are met on
their authors' numbers (`tests/golden`), and the lead is there with every seed. MACL-a's temperature is the same at both
lengths, 0.18 and 0.19, so that it is not what changes. InfoNCE's median W falls from 0.54 to 0.22: it learns from ever
fewer queries, which was the reason in the first prediction, for CIFAR-10. Whether the weights make the lead or the
higher temperature, as at batch 64 (Table 4), was not asked at 20 epochs.
""",
    runs={
        "paper": {
            (loss, str(epochs)): common.arguments(
                "paper", method, f" --config.train.duration='{epochs} epochs'", "cifar100"
            )
            for loss, method in common.LOSSES.items()
            for epochs in EPOCHS
        },
        "small": small("small", SHORT, common.LOSSES) | small("small", LONG, ("InfoNCE", "MACL-a")),
        "small_mnist": small("small_mnist", SHORT, common.LOSSES)
        | small("small_mnist", LONG, ("InfoNCE", "MACL-a")),
        "smoke": common.smoke(),
    },
    metric=common.METRIC,
    also=common.ALSO,
    seeds=harness.SEEDS | dict.fromkeys(harness.SMALL, tuple(range(8))),  # Table 2's, whose runs 5 epochs are
    sweep=common.SWEEP,
    chooses=common.CHOOSES,
    reported=REPORTED,
    assumed=common.ASSUMED
    | {
        "epochs": "each length is a run of its own; at small scales 5 and 20, 20 of InfoNCE and MACL-a alone",
        "set at small": "CIFAR-10 (MNIST at small_mnist) at batch 256, not CIFAR-100",
    },
    claims=(
        Claim(
            "MACL is the best on CIFAR-100 at each length of training",
            "linear top-1, CIFAR-100 (small: CIFAR-10), MACL-a - each of InfoNCE, DCL and Dual at each length"
            " (small: at 20 epochs InfoNCE alone), points",
            leads,
            by="each",
            gates=GATES,
        ),
        Claim(
            "MACL's lead over InfoNCE shrinks with the length of training (Table 3: 2.7 to 0.6 points)",
            "linear top-1, CIFAR-100 (small: CIFAR-10), MACL-a - InfoNCE, the shortest length - the longest, points",
            shrinks,
            gates=GATES,
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
