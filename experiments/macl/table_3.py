"""MACL (Huang et al. 2022), Table 3: losses over the length of pretraining, CIFAR-100.

python -m experiments.macl.table_3 run --scale=paper     # skips what is done
python -m experiments.macl.table_3 render
"""

import sys

from experiments import harness
from experiments.harness import Claim
from experiments.macl import common

EPOCHS = (100, 200, 300, 500)

METRIC, ASSUMED = common.METRIC, common.ASSUMED | {"epochs": "each length is a run of its own"}
RUNS = {
    "paper": {
        (loss, str(epochs)): common.arguments(
            "paper", method, f" --config.train.duration='{epochs} epochs'", "cifar100"
        )
        for loss, method in common.LOSSES.items()
        for epochs in EPOCHS
    },
    "smoke": common.smoke(),
}
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
CLAIMS = (
    Claim(
        "MACL is the best on CIFAR-100 at each length of training",
        "linear top-1, CIFAR-100, MACL-a - each of InfoNCE, DCL and Dual at each length, points",
        lambda results: [
            seeds
            for epochs in map(str, EPOCHS)
            for row in ("InfoNCE", "DCL", "Dual")
            if (seeds := results.differences(("MACL-a", epochs), (row, epochs)))
        ],
        by="each",
    ),
    Claim(
        "Its lead over InfoNCE shrinks with the length (2.7 to 0.6 points)",
        "linear top-1, CIFAR-100, MACL-a - InfoNCE, 100 epochs - 500 epochs, points",
        lambda results: [
            short - long
            for short, long in zip(
                *(results.differences(("MACL-a", e), ("InfoNCE", e)) for e in ("100", "500")), strict=True
            )
        ],
    ),
)

if __name__ == "__main__":
    sys.exit(harness.main())
