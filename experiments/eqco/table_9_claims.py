"""EqCo (Zhu et al. 2020), Table 9: what its finished measurement says of the paper's claims.

    python -m experiments.eqco.table_9_claims render    # of the results that table_9.py has written

Mutual information of correlated Gaussians, estimated by InfoNCE and EqCo over the number of pairs K. The measurement
has a driver of its own, `experiments/eqco/table_9.py`, whose page has every cell and what was assumed.

The paper says that EqCo's estimate "remains steady". Its own numbers leave 0, 29, 15, 12 and 5 % of InfoNCE's change
with K, at 2 to 10 nats, rounded to 0.1 nats. So the sentence is judged by less than half, which they meet, and
independence (within a tenth) is our reading, which they do not.
"""

import json
import pathlib
import statistics
import sys

from experiments import harness
from experiments.eqco import common
from experiments.harness import Claim

RESULTS = pathlib.Path(__file__).parent / "results"


def read() -> dict | None:
    """Read objective -> mutual information -> K -> our estimates, a seed each; None before table_9.py has run."""
    found: dict = {"info_nce": {}, "eqco": {}}
    for file in sorted(RESULTS.glob("table_9_paper_*.json")):
        for cell in json.loads(file.read_text())["cells"]:
            rows = found[cell["objective"]].setdefault(f"{cell['information']:g}", {})
            rows[str(cell["pairs"])] = cell["ours"]
    return found if found["eqco"] else None


def page(found: dict) -> list[str]:
    """Write the change of each estimate over K."""
    rows = []
    for information in found["eqco"]:
        changes = []
        for objective in ("info_nce", "eqco"):
            change = over_k(found, objective, information)
            changes.append(f"{sum(change) / len(change):+.2f} ({len(change)})")
        rows.append((information, *changes, f"{statistics.mean(left(found, information)):.0%}"))
    return [
        "Estimate at K = 512 less that at K = 64, nats, mean (n). [Every cell](table_9.md).",
        "",
        *harness.markdown(["MI", "InfoNCE", "EqCo", "share that EqCo leaves"], rows),
        "",
        "InfoNCE's estimate grows with K, EqCo's falls.",
    ]


def over_k(found: dict, objective: str, information: str) -> list[float]:
    """Return the estimate at 512 pairs less that at 64, a seed each."""
    of = found[objective][information]
    return [large - small for large, small in zip(of["512"], of["64"], strict=True)]


def left(found: dict, information: str) -> list[float]:
    """Return the share of InfoNCE's change over K that EqCo leaves, a seed each; negative, as EqCo's has the other
    sign."""
    return common.remains(*(over_k(found, objective, information) for objective in ("eqco", "info_nce")))


TABLE = harness.Table(
    __name__,
    __doc__,
    claims=(
        Claim(
            "With EqCo the estimate of mutual information remains steady over K (Table 9)",
            "Gaussians of each of 2 to 10 nats, estimate at 512 pairs - at 64, the share of InfoNCE's that EqCo leaves",
            lambda found: [left(found, information) for information in found["eqco"]],
            expects="within",
            margin=common.LESS,
            by="each",
        ),
        Claim(
            "With EqCo the estimate of mutual information does not depend on K",
            "Gaussians of each of 2 to 10 nats, estimate at 512 pairs - at 64, the share of InfoNCE's that EqCo leaves",
            lambda found: [left(found, information) for information in found["eqco"]],
            expects="within",
            margin=common.REMAINS,
            by="each",
            ours=True,
        ),
        Claim(
            "InfoNCE's grows with K",
            "Gaussians of 10 nats, InfoNCE at 512 pairs - at 64, nats",
            lambda found: over_k(found, "info_nce", "10"),
        ),
    ),
    read=read,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
