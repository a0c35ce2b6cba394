"""FlatNCE (Chen et al. 2021), Table S3: Table 2's encoders, the linear classifier trained longer at a larger batch.

python -m experiments.flatnce.table_s3 run --scale=paper     # skips what is done
python -m experiments.flatnce.table_s3 render
"""

import json
import sys

from experiments import harness
from experiments.flatnce import figure_2, table_2
from experiments.harness import Claim

EVALUATORS = {"linear": {"name": "flatnce_linear_long"}, "knn": {"name": "knn"}}

d = harness.doubtful  # the decimal point is lost in the scan
REPORTED = {
    table_2.COLUMN: harness.grid(figure_2.METHODS, table_2.EPOCHS, [
        (d(40.93), 46.22, 48.64, 50.14, 52.14, 53.62, d(55.20), 56.36, 56.99, 57.13),
        (d(42.40), 47.69, 49.96, 52.27, 54.11, d(55.48), d(56.98), 58.21, 58.80, 59.74),
    ]),
    "linear top-5, %": harness.grid(figure_2.METHODS, table_2.EPOCHS, [
        (65.34, d(70.92), 73.63, d(75.38), d(76.90), 78.24, 79.59, 80.58, 80.85, 81.00),
        (67.17, 72.61, 74.59, 76.77, 78.29, 79.67, 81.06, 82.19, 82.71, 83.18),
    ]),
}  # fmt: skip

TABLE = harness.Table(
    __name__,
    __doc__,
    runs={
        "paper": {
            cell: f"{text} --config.evaluators='{json.dumps(EVALUATORS)}'"
            for cell, text in table_2.TABLE.runs["paper"].items()
        },
        "smoke": figure_2.TABLE.runs["smoke"],
    },
    metric=table_2.TABLE.metric | {"linear top-5, %": "trained.linear.top5 %"},
    curves=table_2.TABLE.curves,
    reported=REPORTED,
    assumed=table_2.TABLE.assumed
    | {
        "classifier": "how much longer and larger is not printed: batch 4,096, until 0.01 % in 10 epochs, at most"
        " 2,000",
    },
    needs={"top-5 before the last epoch": "looks that log it: they log top-1"},
    claims=(
        Claim(
            "FlatCLR is better also by a classifier trained longer",
            "linear top-1, ImageNet, 100 epochs, FlatCLR - SimCLR, points",
            lambda results: results.differences(("FlatCLR", "100"), ("SimCLR", "100")),
            needs="the encoders of Table 2, trained on ImageNet; small scales fit the classifier to convergence as it"
            " is",
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
