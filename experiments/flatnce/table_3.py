"""FlatNCE (Chen et al. 2021), Table 3: linear transfer of ImageNet's encoders.

    python experiments/flatnce/table_transfer.py run --checkpoint=WORKDIR --name=flatclr --kinds=linear
    python -m experiments.flatnce.table_3 render

Each cell is an evaluation of one encoder: its own driver, ``table_transfer.py``, whose page (``transfer.md``) has ours.
"""

import sys

from experiments import harness
from experiments.flatnce import table_transfer
from experiments.harness import Claim

METRIC = {"linear, %": "trained.linear.top1 %"}

TABLE = harness.Table(
    __name__,
    __doc__,
    runs={"paper": {}},
    metric=METRIC,
    reported={next(iter(METRIC)): table_transfer.reported("linear")},
    assumed={
        "metrics": "not named: top-1, the mean over classes for Flowers-102 and Caltech-101, 11-point mAP for VOC 2007"
        " (SimCLR, appendix B.8)",
        "classifier": "appendix E.3; its rate, batch and what convergence is are assumed (protocol flatnce_transfer)",
    },
    needs={
        "all cells": "the encoders of Table 2 (configs/flatclr_imagenet.py, about 40 GPU-hours each) and the six sets"
        " of TFDS, then table_transfer.py",
    },
    claims=(
        Claim(
            "FlatCLR's encoder transfers better than SimCLR's by a linear classifier",
            "linear classifier on six other sets, FlatCLR - SimCLR, points",
            needs="the encoders of Table 2, trained on ImageNet, and full-size images to transfer to",
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
