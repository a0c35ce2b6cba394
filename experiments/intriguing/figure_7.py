"""Intriguing Properties (Chen, Luo and Li 2021), Figure 7: random bits behind MNIST's images against accuracy.

    python -m experiments.intriguing.figure_7 run       # --scale=paper|cpu; skips what is done
    python -m experiments.intriguing.figure_7 render

Every image has b channels of random bits that augmentation leaves alone, so both views share them. The paper claims
that a few bits ruin the representation (fewer than 15 completely, appendix B.1 says of CIFAR-10), whatever the loss,
the batch size, the queue or BYOL, and that a variational autoencoder suffers less. The curve's values are not printed.
"Destroy" is read as more than half of what is above chance.
"""

import sys

from experiments import harness
from experiments.harness import Claim, Results, gates

BITS = {"paper": (0, 2, 4, 6, 8, 10, 12, 15, 20), "cpu": (0, 2, 4, 6, 8, 12)}
OTHERS = {"BYOL": "byol", "MoCo v2": "moco_v2"}
SWD = {"SWD (uniform hypersphere)": "swd_hypersphere"}
BRIEF = " --config.train.duration='20 epochs'" + harness.BRIEF


def cells(config, methods, bits, scale="paper", own=""):
    """Return the cells: method down, bits across."""
    return {
        (name, str(b)): f"configs/{config}.py:bits={b},method={method},scale={scale}{own}"
        for name, method in methods.items()
        for b in bits
    }


CONTROLS = {"FlatNCE": "flatclr", "Supervised": "supervised"}


def small(scale):
    """Return the cells of RandBit on real images, with what shows that the bits, and not the training, are to blame."""
    config, own = "randbit_mnist", harness.screen()
    sharp = cells(
        config, {"NT-Xent, tau 0.05": "simclr"}, (0, 12), scale, " --config.temperature.tau=0.05" + own
    )
    return (
        cells(config, {"NT-Xent": "simclr"}, (0, 4, 8, 12), scale, own)
        | cells(config, OTHERS | CONTROLS, (0, 12), scale, own)
        | sharp
    )


RUNS = {
    "paper": cells("randbit_mnist", {"NT-Xent": "simclr"} | SWD | OTHERS, BITS["paper"]),
    **{scale: small(scale) for scale in harness.SMALL},
    "cpu": cells("randbit_mnist", {"NT-Xent": "simclr"}, BITS["cpu"], "cpu", BRIEF)
    | cells("randbit_mnist", OTHERS, (0, 12), "cpu", BRIEF),
    "smoke": cells("randbit_mnist", {"NT-Xent": "simclr"}, (4,), "smoke", harness.BRIEF),
}


def fall(results: Results, row: str) -> list[float]:
    """Return a method with the most bits below 15 less itself (where that has not run: NT-Xent) without, a seed
    each."""
    bits = [int(column) for name, column in results.cells if name == row and 0 < int(column) < 15]
    clean = row if (row, "0") in results.cells else "NT-Xent"
    return results.differences((row, str(max(bits))), (clean, "0")) if bits else []


def falls(results: Results) -> list[list[float]]:
    """Return the fall of each other method."""
    found = [fall(results, row) for row in OTHERS]
    return found if all(found) else []


def share_lost(results: Results) -> list[float]:
    """Return, of what NT-Xent is above chance without bits, the share that the most bits below 15 take, less a half."""
    clean = results.values("NT-Xent", "0").values()
    lost = fall(results, "NT-Xent")
    return [-f / (c - 10.0) - 0.5 for f, c in zip(lost, clean, strict=True)] if lost else []


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions for small scales, written before any run: 12 bits take NT-Xent to within 5 points of the untrained network,
on MNIST and on CIFAR-10, and MoCo v2 and BYOL with it; FlatNCE too at tau 0.1, as it has the same minimum; supervised
training loses less than 3 points, so that the bits do not blind the network. A surprise would be any self-supervised
row that keeps more than half of its accuracy above chance.
""",
    runs=RUNS,
    metric={"linear top-1, %": "trained.linear.top1 %", "kNN top-1, %": "trained.knn.top1 %"},
    seeds=harness.SEEDS | dict.fromkeys(harness.SMALL, (0, 1, 2)),  # effects of tens of points
    reported={"linear top-1, %": {("NT-Xent", column): None for _, column in RUNS["paper"]}},
    assumed={
        "range of bits, image size, batch": "lost in the text at hand: 0 to 20 bits, 28 x 28, 512",
        "network, tau": "ResNet-18, a 2-layer head with 64 outputs (appendix B.2's), tau 0.2",
        "augmentation": "crops of at least half of the area (the authors' notebook), no flips; MNIST has no colours",
        "epochs": "100",
        "learning rate": "LARS 0.2 x sqrt(batch), CIFAR-10's; the paper has the square root, and no rate for MNIST",
        "ResNet": "torchvision's; Tables A.1 to A.3 take SimCLR's",
        "BYOL": "'preliminary experiments' without a figure",
        "cpu": "digits with the crops of the configs for digits, batch 128, 20 epochs, AdamW",
    },
    needs={
        "controls with bits": "supervised training, and the untrained network: not run",
        "a variational autoencoder's curve": "its own training: `python -m experiments.intriguing.figure_7_vae`",
    },
    claims=(
        Claim(
            "Fewer than 15 shared bits lower the accuracy",
            "linear top-1, NT-Xent, most bits below 15 - no bits, points",
            lambda results: fall(results, "NT-Xent"),
            expects="below",
        ),
        Claim(
            "Fewer than 15 shared bits destroy the representation",
            "share of the accuracy above chance that the most bits below 15 take, less a half",
            share_lost,
        ),
        Claim(
            "Neither a queue nor BYOL avoids the suppression by shared bits",
            "linear top-1, BYOL and MoCo v2 each with the most bits - without (where that has not run: NT-Xent),"
            " points",
            falls,
            expects="below",
            by="each",
            gates=(gates.ran(*((row, "0") for row in OTHERS)),),
        ),
    ),
    draw=harness.lines("bits of the added channels"),
)


if __name__ == "__main__":
    sys.exit(harness.main())
