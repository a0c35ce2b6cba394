"""FlatNCE (Chen et al. 2021), Figure 3: training time by parallelism, with the learning rate that a batch allows.

    python -m experiments.flatnce.figure_3 render

The paper trains on up to four V100s; its values are only drawn.
"""

import sys

from experiments import harness

METRIC = {"speed-up": None}
RUNS = {"paper": {}}
REPORTED = {}
ASSUMED = {}
NEEDS = {
    "the figure": "one host with 1, 2 and 4 equal GPUs: `--config=configs/flatclr_cifar10.py` at batch 256 a device,"
    " images a second from each run's result.json",
}

if __name__ == "__main__":
    sys.exit(harness.main())
