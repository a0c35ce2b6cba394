"""Intriguing Properties (Chen, Luo and Li 2021), Figure B.2: random bits on ImageNet.

    python -m experiments.intriguing.figure_b2 run       # --scale=paper|gpu; skips what is done
    python -m experiments.intriguing.figure_b2 render

As Figure B.1. The curves' values are not printed.
"""

import sys

from experiments import harness
from experiments.harness import Claim
from experiments.intriguing.figure_b1 import cells

ROWS = {
    "NT-Xent": ("simclr", ""),
    "NT-Xent, batch 2048": ("simclr", " --config.train.batch_size=2048"),
    "NT-Xent, tau 0.05": ("simclr", " --config.temperature.tau=0.05"),
    "SWD (uniform hypersphere)": ("swd_hypersphere", ""),
    "MoCo v2": ("moco_v2", ""),
}
RUNS = {
    "paper": cells("randbit_imagenet", ROWS, (0, 2, 4, 6, 8, 10, 12, 15)),
    "gpu": cells("randbit_imagenet", {"NT-Xent": ("simclr", "")}, (0, 12), "gpu"),
}


TABLE = harness.Table(
    __name__,
    __doc__,
    runs=RUNS,
    metric={"linear top-1, %": "trained.linear.top1 %"},
    reported={"linear top-1, %": dict.fromkeys(RUNS["paper"])},
    assumed={
        "bits, batch sizes, tau, losses": "lost in the text at hand: ours",
        "network, batch, epochs": "ResNet-50, 1,024 and 100",
        "learning rate, tau": "LARS 0.075 x sqrt(batch), tau 0.2: the authors, google-research/simclr issue 166",
    },
    claims=(
        Claim(
            "Shared bits suppress the learning of ImageNet's classes too",
            "linear top-1, ImageNet, 12 bits - none, points",
            lambda results: results.differences(("NT-Xent", "12"), ("NT-Xent", "0")),
            expects="below",
            needs="ImageNet; on MNIST and CIFAR-10 the claim is Figures 7's and B.1's",
        ),
    ),
    draw=harness.lines("bits of the added channels"),
)


if __name__ == "__main__":
    sys.exit(harness.main())
