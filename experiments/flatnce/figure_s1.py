"""FlatNCE (Chen et al. 2021), Figure S1: accuracy against mini-batch mutual information, over finished runs.

    python -m experiments.flatnce.figure_s1 render    # of what figure_4 has measured

The paper sees no relation here, where the large pool of Figure 4 shows one.
"""

import sys

from experiments import harness
from experiments.flatnce import figure_4
from experiments.harness.measured import found as measured_of

ASSUMED = figure_4.ASSUMED


def read() -> dict | None:
    """Read Figure 4's rows; None before that is measured."""
    return measured_of(figure_4)


page = figure_4.page


def draw(found: dict):
    """Draw accuracy over the mini-batch estimate."""
    return figure_4.scatter(found, "mini_batch", "mutual information by the training's mini-batch, nats")


if __name__ == "__main__":
    sys.exit(harness.main())
