"""Intriguing Properties (Chen, Luo and Li 2021), Figure 1: five losses over epochs, CIFAR-10 and ImageNet.

    python -m experiments.intriguing.figure_1 run       # --scale=paper; skips what is done
    python -m experiments.intriguing.figure_1 render

Tables A.1 to A.3 are "numerical results of Figure 1": these are their runs at the batch sizes that appendix A.1 names,
128 for CIFAR-10 and 1,024 for ImageNet.
"""

import sys

from experiments import harness
from experiments.intriguing import table_a1, table_a2, table_a3

PANELS = {
    "CIFAR-10, 2 layers": (table_a1.TABLE, 128),
    "ImageNet, 2 layers": (table_a2.TABLE, 1024),
    "ImageNet, 3 layers": (table_a3.TABLE, 1024),
}


def panels(cells_of):
    """Return the cells of the three tables at one batch size each."""
    return {
        (f"{panel}: {name}", epochs): cells_of(table)[f"{name}, batch {batch}", epochs]
        for panel, (table, batch) in PANELS.items()
        for name in table_a1.LOSSES
        for epochs in map(str, table_a1.EPOCHS)
    }


TABLE = harness.Table(
    __name__,
    __doc__,
    runs={"paper": panels(lambda table: table.runs["paper"])},
    metric={"linear top-1, %": "trained.linear.top1 %"},
    reported={"linear top-1, %": panels(lambda table: table.reported["linear top-1, %"])},
    assumed=table_a1.TABLE.assumed,
    draw=harness.lines("epochs", log=True),
)


if __name__ == "__main__":
    sys.exit(harness.main())
