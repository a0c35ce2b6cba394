"""EqCo (Zhu et al. 2020), Table 1: MoCo v2 over the number of queries a batch, N.

    python -m experiments.eqco.table_1 run       # --scale=paper; skips what is done
    python -m experiments.eqco.table_1 render

The learning rate follows N linearly, and K = 65,536 stays: section 2.2 says that it is the queries, not the keys, that
the rule is about. The table's body is lost in the text at hand.
"""

import sys

from experiments import harness
from experiments.eqco import common

QUERIES = (256, 512, 1024)
METRIC = common.METRIC
RUNS = {
    "paper": {
        (
            "MoCo v2",
            str(n),
        ): f"configs/moco_v2_imagenet.py --config.train.batch_size={n} --config.norm.groups={n // 32}"
        for n in QUERIES
    },
}
REPORTED = {"linear top-1, %": dict.fromkeys(RUNS["paper"])}
ASSUMED = common.MOCO_V2 | {
    "N": "lost in the text at hand, but for the default of 256",
    "batch norm": "groups of 32 at every N, as on more GPUs",
}
CLAIMS = (
    harness.Claim(
        "The learning rate follows the queries: with linear scaling in N accuracy does not depend on N",
        "linear top-1, MoCo v2, N = 1,024 - N = 256, points",
        lambda results: results.differences(("MoCo v2", "1024"), ("MoCo v2", "256")),
        expects="within",
        margin=1.0,
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
