"""Intriguing Properties (Chen, Luo and Li 2021), Figure 4: regions of local features on two images of COCO.

    python -m experiments.intriguing.figure_3 SimCLR=WORKDIR Supervised=WORKDIR --size=448

The figure is a picture. ``figure_3.py`` draws region maps like it of any encoder's mid-layer features on the test
images of any config, and measures them where the true regions are known (MultiDigits).
"""

import sys

from experiments import harness
from experiments.harness import Claim

METRIC: dict = {}
RUNS: dict = {}
NEEDS = {"the pictures": "COCO's images, and ResNet-50 trained on ImageNet by SimCLR and with labels"}
CLAIMS = (
    Claim("Mid-layer clusters follow parts", "purity of regions against MultiDigits' masks: `figure_3.py`"),
)


if __name__ == "__main__":
    sys.exit(harness.main())
