"""Intriguing Properties (Chen, Luo and Li 2021), Figure 4: regions of local features on two images of COCO.

    python -m experiments.intriguing.figure_3 SimCLR=WORKDIR Supervised=WORKDIR --size=448

The figure is a picture. ``figure_3.py`` draws region maps like it of any encoder's mid-layer features on the test
images of any config, and measures them where the true regions are known (MultiDigits).
"""

import json
import statistics
import sys

from experiments import harness
from experiments.harness import Claim

FILE = harness.ROOT / "experiments" / "intriguing" / "results" / "figure_3" / "regions.json"


def read() -> dict | None:
    """Read what ``figure_3.py`` has measured."""
    return json.loads(FILE.read_text()) if FILE.exists() else None


def page(found: dict) -> list[str]:
    """Say where the numbers and the pictures are."""
    return [f"Measured on {found['data']}, {found['images']} images: [purity and region maps](figure_3.md)."]


def gained(found: dict) -> list[float]:
    """Return the purity of SimCLR's regions less an untrained network's or raw pixels', whichever is larger, points.

    The mean over block groups and k, which are chosen points. The sample would be seeds and starts of k-means.
    """
    purity = {(c["encoder"], c["group"], c["clusters"]): 100 * c["purity"] for c in found["cells"]}
    gains = [
        value - max(purity["untrained", *which], purity["raw pixels", *which])
        for (name, *which), value in purity.items()
        if name == "SimCLR"
    ]
    return [statistics.mean(gains)]


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed={"parts": "digits of MultiDigits, whose masks are known"},
    needs={
        "a verdict": "several seeds of the encoders and of k-means: `figure_3.py` has measured one of each",
        "the pictures": "COCO's images, and ResNet-50 trained on ImageNet by SimCLR and with labels",
    },
    claims=(
        Claim(
            "Mid-layer clusters follow parts",
            "purity of regions against MultiDigits' masks, SimCLR - the better of untrained and raw pixels, mean over"
            " block groups and k, points",
            gained,
        ),
    ),
    read=read,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
