"""FlatNCE (Chen et al. 2021), Figure S1: accuracy against mini-batch mutual information, over finished runs.

    python -m experiments.flatnce.figure_s1 render    # of what figure_4 has measured

The paper sees no relation here, where the large pool of Figure 4 shows one.
"""

import sys

from experiments import harness
from experiments.flatnce import figure_4
from experiments.harness.results import measured


def read() -> dict | None:
    """Read Figure 4's rows; None before that is measured."""
    return measured(figure_4.TABLE)


def draw(found: dict):
    """Draw accuracy over the mini-batch estimate."""
    return figure_4.scatter(found, "mini_batch", "mutual information by the training's mini-batch, nats")


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed=figure_4.TABLE.assumed,
    draw=draw,
    read=read,
    page=figure_4.page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
