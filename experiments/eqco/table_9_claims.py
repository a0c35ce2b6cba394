"""EqCo (Zhu et al. 2020), Table 9: what its finished measurement says of the paper's claims.

    python -m experiments.eqco.table_9_claims render    # of the results that table_9.py has written

Mutual information of correlated Gaussians, estimated by InfoNCE and EqCo over the number of pairs K. The measurement
has a driver of its own, `experiments/eqco/table_9.py`, whose page has every cell and what was assumed.
"""

import json
import pathlib
import sys

from experiments import harness
from experiments.harness import Claim

RESULTS = pathlib.Path(__file__).parent / "results"


def read() -> dict | None:
    """Objective -> mutual information -> K -> our estimates, a seed each; None before table_9.py has run."""
    found: dict = {"info_nce": {}, "eqco": {}}
    for file in sorted(RESULTS.glob("table_9_paper_*.json")):
        for cell in json.loads(file.read_text())["cells"]:
            rows = found[cell["objective"]].setdefault(f"{cell['information']:g}", {})
            rows[str(cell["pairs"])] = cell["ours"]
    return found if found["eqco"] else None


def page(found: dict) -> list[str]:
    """The change of each estimate over K."""
    rows = []
    for information in found["eqco"]:
        changes = []
        for objective in ("info_nce", "eqco"):
            change = over_k(found, objective, information)
            changes.append(f"{sum(change) / len(change):+.2f} ({len(change)})")
        rows.append((information, *changes))
    return [
        "Estimate at K = 512 less that at K = 64, nats, mean (n). [Every cell](table_9.md).",
        "",
        *harness.markdown(["MI", "InfoNCE", "EqCo"], rows),
    ]


def over_k(found: dict, objective: str, information: str) -> list[float]:
    """The estimate at 512 pairs less that at 64, a seed each."""
    of = found[objective][information]
    return [large - small for large, small in zip(of["512"], of["64"], strict=True)]


def largest(found: dict) -> list[float]:
    """EqCo's change of the mutual information at which it is the largest, a seed each."""
    return max(
        (over_k(found, "eqco", information) for information in found["eqco"]), key=lambda c: abs(sum(c))
    )


CLAIMS = (
    Claim(
        "With EqCo the estimate of mutual information does not depend on K",
        "Gaussians of 2 to 10 nats, EqCo at 512 pairs - at 64 where that is the largest, nats",
        largest,
        expects="within",
        margin=0.3,  # the largest change in the paper's own table, 0.2 of numbers with one decimal
    ),
    Claim(
        "InfoNCE's grows with K",
        "Gaussians of 10 nats, InfoNCE at 512 pairs - at 64, nats",
        lambda found: over_k(found, "info_nce", "10"),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
