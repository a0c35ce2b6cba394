"""Intriguing Properties (Chen, Luo and Li 2021), Table A.2: five losses on ImageNet, a head of 2 layers.

    python -m experiments.intriguing.table_a2 run       # --scale=paper|gpu; skips what is done
    python -m experiments.intriguing.table_a2 render

With 2 layers there are some discrepancies between the losses; Table A.3 has 3 layers, where they disappear.
"""

import sys

from experiments import harness
from experiments.intriguing.table_a1 import LOSSES, printed, published

BATCHES = (512, 1024, 2048)

METRIC = {"linear top-1, %": "trained.linear.top1 %"}
RUNS = {
    "paper": published("intriguing_imagenet", BATCHES, layers=2),
    "gpu": {
        (f"{name}, batch 512", "20"): f"configs/intriguing_imagenet.py:loss={loss},layers=2,scale=gpu"
        for name, loss in LOSSES.items()
    },
}
REPORTED = {
    "linear top-1, %": printed(
        BATCHES,
        """65.4 67.3 68.7 69.3  65.6 67.6 68.8 69.8  65.3 67.6 69.0 70.1
        65.8 67.6 68.9 69.5  66.0 67.9 69.0 70.1  65.8 67.9 69.3 70.2
        64.9 66.8 68.0 69.0  65.0 67.1 68.2 69.3  65.0 66.9 68.4 69.7
        64.3 66.4 67.8 68.7  64.2 66.5 67.9 68.9  63.9 66.6 67.9 69.0
        65.6 67.7 69.0 70.0  65.8 67.9 69.0 69.6  65.6 67.8 69.2 69.8""",
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
