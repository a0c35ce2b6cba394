"""EqCo (Zhu et al. 2020), Table 4: SiMo with shuffled and with synchronised batch norm, 100 epochs.

    python -m experiments.eqco.table_4 run       # --scale=paper; skips what is done
    python -m experiments.eqco.table_4 render

The body is lost; appendix B.2 says that SiMo struggles with shuffled batch norm.
"""

import sys

from experiments import harness
from experiments.eqco import common

SHUFFLED = " --config.norm.scope=groups --config.norm.groups=8 --config.target.shuffle=True"
METRIC = common.METRIC
RUNS = {
    "paper": {
        ("SiMo", "Sync BN"): common.simo(overrides=common.lasting(100)),
        ("SiMo", "Shuffling BN"): common.simo(overrides=common.lasting(100) + SHUFFLED),
    },
}
REPORTED = {"linear top-1, %": dict.fromkeys(RUNS["paper"])}
ASSUMED = common.SIMO | {"shuffled batch norm": "8 groups of 32, MoCo's 8 GPUs", "alpha": "256, K = 16"}
CLAIMS = (
    harness.Claim(
        "SiMo needs batch norm over the whole batch",
        "linear top-1, SiMo, shuffled - synchronised batch norm, points",
        lambda results: results.differences(("SiMo", "Shuffling BN"), ("SiMo", "Sync BN")),
        expects="below",
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
