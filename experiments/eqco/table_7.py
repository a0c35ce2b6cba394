"""EqCo (Zhu et al. 2020), Table 7: SiMo with wider networks.

    python -m experiments.eqco.table_7 run       # --scale=paper; skips what is done
    python -m experiments.eqco.table_7 render

The body is lost in the text at hand. Of width 1 the text on Table 2 has 68.1 and 68.5, if the table has that width.
"""

import sys

from experiments import harness
from experiments.eqco import common

METRIC = common.METRIC
RUNS = {
    "paper": {
        (f"width {width}", str(alpha)): common.simo(
            alpha=alpha, overrides=f" --config.encoder.width={width}.0"
        )
        for width in (1, 2, 4)
        for alpha in (256, 65536)
    },
}
REPORTED = {
    "linear top-1, %": dict.fromkeys(RUNS["paper"])
    | {("width 1", "256"): harness.doubtful(68.1), ("width 1", "65536"): harness.doubtful(68.5)}
}
ASSUMED = common.SIMO | {"widths, alpha": "lost in the text at hand: ours", "epochs": "200, as printed"}


if __name__ == "__main__":
    sys.exit(harness.main())
