"""Less can be more (Mitrovic et al. 2020), Figure 3: silhouette over the number of negatives.

    python -m experiments.less_can_be_more.figure_3 run       # --scale=paper|gpu|cpu; skips what is done
    python -m experiments.less_can_be_more.figure_3 render

The paper claims that classes are more concentrated with fewer negatives in ReLIC, not in SimCLR, so that concentration
may explain ReLIC's accuracies alone. Values are not printed.
"""

import sys

from experiments import harness
from experiments.less_can_be_more import concentration

METRIC = {"silhouette": "trained.geometry.silhouette"} | concentration.ACCURACY
SEEDS, RUNS, ASSUMED = concentration.SEEDS, concentration.RUNS, concentration.ASSUMED
REPORTED = {next(iter(METRIC)): dict.fromkeys(RUNS["paper"])}
CLAIMS = concentration.claims("silhouette", "higher", expects="above")
draw = concentration.draw


if __name__ == "__main__":
    sys.exit(harness.main())
