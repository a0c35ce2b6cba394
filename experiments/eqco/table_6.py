"""EqCo (Zhu et al. 2020), Table 6: MoCo v2 by the number of negatives, K.

    python -m experiments.eqco.table_6 run       # --scale=paper; skips what is done
    python -m experiments.eqco.table_6 render

The body is lost; 67.5 stands in the text on Table 2, perhaps quoted from MoCo v2. The same runs as in Figure 2.
"""

import sys

from experiments import harness
from experiments.eqco import common, figure_2

METRIC = common.METRIC
RUNS = {"paper": {cell: text for cell, text in figure_2.RUNS["paper"].items() if cell[0] == "MoCo v2"}}
REPORTED = {"linear top-1, %": dict.fromkeys(RUNS["paper"]) | {("MoCo v2", "65536"): harness.doubtful(67.5)}}
ASSUMED = common.MOCO_V2 | {"K": "lost in the text at hand"}


def draw(results: harness.Results):
    """Draw accuracy over K."""
    return harness.lines(results, "negatives of a query, K", log=True)


if __name__ == "__main__":
    sys.exit(harness.main())
