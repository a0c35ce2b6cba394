"""EqCo (Zhu et al. 2020), Table 3: SiMo by the momentum of its target, 100 epochs.

    python -m experiments.eqco.table_3 run       # --scale=paper; skips what is done
    python -m experiments.eqco.table_3 render

The body is lost; appendix B.1 has 64.4 for the momentum of 0.999 and says that without momentum it is inferior.
"""

import sys

from experiments import harness
from experiments.eqco import common

MOMENTA = (0.0, 0.9, 0.99, 0.999, 0.9999)
METRIC = common.METRIC
RUNS = {
    "paper": {
        ("SiMo", str(m)): common.simo(overrides=f"{common.lasting(100)} --config.target.decay={m}")
        for m in MOMENTA
    },
}
REPORTED = {"linear top-1, %": dict.fromkeys(RUNS["paper"]) | {("SiMo", "0.999"): 64.4}}
ASSUMED = common.SIMO | {
    "momenta": "0 and 0.999 stand in the text, the others are ours",
    "alpha": "256, K = 16",
}
CLAIMS = (
    harness.Claim(
        "SiMo needs the momentum encoder",
        "linear top-1, SiMo, momentum 0 - 0.999, points",
        lambda results: results.differences(("SiMo", "0.0"), ("SiMo", "0.999")),
        expects="below",
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
