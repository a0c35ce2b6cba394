"""FlatNCE (Chen et al. 2021), Table S1: what training contrastive learners cost others.

    python -m experiments.flatnce.table_s1 render

Quoted numbers of other papers' hardware; ``python -m experiments.harness plan --price=2`` says what this project's
tables would cost.
"""

import sys

from experiments import harness

TABLE = harness.Table(
    __name__,
    __doc__,
    runs={"paper": {}},
    metric={"as printed": None},
    reported={
        "as printed": harness.grid(
            ["MoCo", "SimCLR", "CLIP"],
            ["negatives", "devices", "train time, hours", "cost, $"],
            [(65536, 64, 144, 23000), (4096, 128, 15, 1720), (32768, 592, 432, 634000)],
        )
    },
    assumed={
        "devices": "V100 GPUs of MoCo and CLIP, cores of a TPU-v3 of SimCLR",
        "train time": "printed as 6 days, 15 hours and 18 days",
    },
    needs={"all cells": "the hardware; nothing is measured here"},
)


if __name__ == "__main__":
    sys.exit(harness.main())
