"""EqCo (Zhu et al. 2020), Table 2: SiMo beside other methods.

    python -m experiments.eqco.table_2 run       # --scale=paper|small|small_mnist; skips what is done
    python -m experiments.eqco.table_2 render

The body is lost; the numbers here stand in the text on it (section 3), MoCo v2's at 800 epochs as "surpassing the
baseline MoCo v2 by 1.0 %". The methods that the table only quotes are left out.
"""

import sys

from experiments import harness
from experiments.eqco import common
from experiments.harness import Claim, Results, gates

SHORT = {"paper": "200", "small": "5", "small_mnist": "5"}  # epochs

SIMO = "SiMo, K = 16, alpha = "


def short(results: Results) -> list[float]:
    """Return SiMo at alpha 256 less MoCo v2, at the shorter training, a seed each."""
    epochs = SHORT[results.scale]
    return results.differences((f"{SIMO}256", epochs), ("MoCo v2", epochs))


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Prediction for scale small (MoCo v2 with a queue of 4,096), written before any run: each at its own rate, SiMo is within
2 points of MoCo v2, rather above, as its keys are fresh. A surprise would be either ahead by more. The same on MNIST
(small_mnist, by 10 labels a class), written before any run there.
""",
    read_after="""
Read after MNIST's runs, at rates that 10 labels choose: SiMo is 1.5 points above, as predicted, and undecided: five
seeds see no less than 2.2 here.
""",
    runs={
        "paper": {
            ("MoCo v2", "200"): "configs/moco_v2_imagenet.py",
            ("MoCo v2", "800"): "configs/moco_v2_imagenet.py" + common.lasting(800),
            ("SiMo, K = 16, alpha = 256", "200"): common.simo(),
            ("SiMo, K = 16, alpha = 65,536", "200"): common.simo(alpha=65536),
            ("SiMo, K = 16, alpha = 65,536", "800"): common.simo(alpha=65536, overrides=common.lasting(800)),
        },
        **{
            scale: {
                (
                    "MoCo v2",
                    SHORT[scale],
                ): f"configs/moco_v2_imagenet.py:scale={scale} --config.norm.groups=4{common.SCREEN}",
                ("SiMo, K = 16, alpha = 256", SHORT[scale]): common.simo(
                    overrides=common.SCREEN, scale=scale
                ),
            }
            for scale in harness.SMALL
        },
    },
    metric=common.METRIC,
    also=common.ALSO,
    sweep=common.SWEEP,
    chooses=common.CHOOSES,
    reported={
        "linear top-1, %": {
            ("MoCo v2", "200"): 67.5,
            ("MoCo v2", "800"): harness.doubtful(71.1),
            ("SiMo, K = 16, alpha = 256", "200"): 68.1,
            ("SiMo, K = 16, alpha = 65,536", "200"): 68.5,
            ("SiMo, K = 16, alpha = 65,536", "800"): 72.1,
        }
    },
    assumed=common.MOCO_V2
    | common.SIMO
    | {
        "small, small_mnist": common.SWEPT + "; MoCo v2 with a queue of 4,096 keys and groups of 32",
        "800 epochs": "at alpha 65,536; the text does not repeat alpha there",
        "errata": "the text has alpha 65,536 ahead of 256 'by only 0.5 %', its own numbers by 0.4",
    },
    claims=(
        Claim(
            "SiMo with 16 negatives a query is better than MoCo v2 with a queue of 65,536",
            "linear top-1, 200 epochs (small: 5), SiMo at alpha 256 - MoCo v2, points",
            short,
            gates=(gates.headroom, gates.tuned),
        ),
        Claim(
            "SiMo stays better than MoCo v2 at 800 epochs",
            "linear top-1, ImageNet, 800 epochs, SiMo at alpha 65,536 - MoCo v2, points",
            lambda results: results.differences((f"{SIMO}65,536", "800"), ("MoCo v2", "800")),
            needs="hundreds of epochs: a screen of 5 says nothing of what comes after them",
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
