"""EqCo (Zhu et al. 2020), Table 8: object detection on COCO val2017.

    python -m experiments.eqco.table_8 render

Printed with its columns' names; the body is lost in the text at hand.
"""

import sys

from experiments import harness

ROWS, COLUMNS = ("Random", "Supervised", "MoCo", "SiMo"), ("AP", "AP50", "AP75", "APs", "APm", "APl")


TABLE = harness.Table(
    __name__,
    __doc__,
    runs={"paper": {}},
    metric={"COCO, %": None},
    reported={"COCO, %": {(row, column): None for row in ROWS for column in COLUMNS}},
    needs={
        "all cells": "COCO 2017 (118,000 images), and a detector that this project does not have: Faster R-CNN with"
        " FPN, a"
        " head of 4 convolutions of 3 x 3 with batch norm, synchronised batch norm, 12 epochs, learning rate 0.2"
        " divided by"
        " 10 at epochs 7 and 11, short sides of 640 to 800. `--mode=export` writes the backbone for torchvision."
    },
    claims=(
        harness.Claim(
            "SiMo's features detect objects as well as MoCo's and supervised training's",
            "COCO val2017, AP after 12 epochs, SiMo - each, points",
            needs="COCO 2017 and a detector",
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
