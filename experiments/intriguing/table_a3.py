"""Intriguing Properties (Chen, Luo and Li 2021), Table A.3: five losses on ImageNet, a head of 3 layers.

    python -m experiments.intriguing.table_a3 run       # --scale=paper|gpu; skips what is done
    python -m experiments.intriguing.table_a3 render

The discrepancies of Table A.2 disappear with a head of 3 layers. Both at digits: Table A.1's page.
"""

import sys

from experiments import harness
from experiments.intriguing.table_a1 import LOSSES, printed, published

BATCHES = (512, 1024, 2048)

METRIC = {"linear top-1, %": "trained.linear.top1 %"}
RUNS = {
    "paper": published("intriguing_imagenet", BATCHES, layers=3),
    "gpu": {
        (f"{name}, batch 512", "20"): f"configs/intriguing_imagenet.py:loss={loss},layers=3,scale=gpu"
        for name, loss in LOSSES.items()
    },
}
REPORTED = {
    "linear top-1, %": printed(
        BATCHES,
        """66.6 68.4 70.0 71.0  66.8 68.9 70.1 70.9  66.8 69.1 70.4 71.3
        66.8 68.4 69.6 70.6  66.6 68.9 69.9 70.8  66.6 69.0 70.1 70.8
        66.5 68.4 69.8 70.8  66.6 68.8 70.1 71.1  66.7 69.1 70.2 71.1
        66.1 68.3 69.7 70.7  66.3 68.5 70.0 71.3  65.8 68.2 70.1 71.1
        66.5 68.3 69.5 70.5  66.6 68.6 69.8 70.8  66.5 68.7 70.2 70.9""",
    )
}
ASSUMED = {
    "learning rate, tau": "LARS 0.075 x sqrt(batch), tau 0.2: the authors, google-research/simclr issue 166",
    "decoupled NT-Xent": "tau 0.2, lambda 0.1; in no source at hand",
    "SWD": "lambda 1, the default of the authors' notebook",
    "other settings": "SimCLR's: weight decay 1e-6, 10 epochs of warm-up, cosine, colour strength 1, blur",
}


if __name__ == "__main__":
    sys.exit(harness.main())
