"""FlatNCE (Chen et al. 2021), Table S2: transfer of ImageNet's encoders, linear and fine-tuned.

    python experiments/flatnce/table_transfer.py run --checkpoint=WORKDIR --name=flatclr
    python -m experiments.flatnce.table_s2 render

The linear half repeats Table 3 without Caltech-101. Each cell is an evaluation of one encoder: its own driver,
``table_transfer.py``, whose page (``transfer.md``) has ours.
"""

import sys

from experiments import harness
from experiments.flatnce import table_3, table_transfer
from experiments.harness import Claim

TABLE = harness.Table(
    __name__,
    __doc__,
    runs={"paper": {}},
    metric={"linear, %": "trained.linear.top1 %", "fine-tuned, %": "trained.fine-tuned.top1 %"},
    reported={
        f"{kind}, %": {
            cell: value for cell, value in table_transfer.reported(kind).items() if cell[1] != "caltech101"
        }
        for kind in table_transfer.KINDS
    },
    assumed=table_3.TABLE.assumed
    | {"fine-tuning": "the rate is illegible (5=°): 5e-5, constant (protocol finetune_flatnce)"},
    needs=table_3.TABLE.needs,
    claims=(
        Claim(
            "FlatCLR's encoder transfers better, too, where all of it is trained on",
            "fine-tuned on five other sets, FlatCLR - SimCLR, points",
            needs="the encoders of Table 2, trained on ImageNet, and full-size images to transfer to",
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
