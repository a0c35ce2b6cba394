"""Less can be more (Mitrovic et al. 2020), Figure 2: intra-class distance over the number of negatives.

    python -m experiments.less_can_be_more.figure_2 run       # --scale=paper|gpu|cpu; skips what is done
    python -m experiments.less_can_be_more.figure_2 render

The paper claims that classes are more concentrated with fewer negatives in ReLIC, not in SimCLR, so that concentration
may explain ReLIC's accuracies alone. Values are not printed.
"""

import sys

from experiments import harness
from experiments.less_can_be_more import concentration

METRIC = {
    "intra-class distance, mean over classes": "trained.geometry.intra_class_distance",
} | concentration.ACCURACY
SEEDS, RUNS, ASSUMED = concentration.SEEDS, concentration.RUNS, concentration.ASSUMED
REPORTED = {next(iter(METRIC)): dict.fromkeys(RUNS["paper"])}
CLAIMS = concentration.claims("intra-class distance", "smaller", expects="below")
draw = concentration.draw


if __name__ == "__main__":
    sys.exit(harness.main())
