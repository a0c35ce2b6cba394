"""Which contrastive numbers are bounds of mutual information, from what the papers' own tables measured.

    python -m experiments.family.bounds render

Nothing is run. With the exact log density ratio as critic a lower bound cannot exceed the truth in expectation:
FlatNCE's Table 1 was measured so, and EqCo's estimates over K. So this page puts the papers' words beside their
numbers, and says how much of InfoNCE's dependence on K EqCo removes (trained critics, EqCo's Table 9) and what it
cannot remove: with the exact critic its estimate still falls with K by Jensen's bias of a mean of K samples.
"""

import json
import math
import statistics
import sys
from collections.abc import Iterator

from experiments import harness
from experiments.eqco import table_9_claims
from experiments.flatnce import table_1
from experiments.harness import Claim
from experiments.harness.results import measured

EXACT = {"info_nce": "InfoNCE", "eqco_512": "EqCo, alpha 512", "eqco_65536": "EqCo, alpha 65,536"}
BOUNDS = {
    "dv": "no: the logarithm of a mini-batch's mean",
    "nwj": "in expectation",
    "fl": "in expectation",
    "info_nce": "in expectation, and never above log K",
    "flat_nce": "no",
}


def read() -> dict | None:
    """Read Table 1's rows, the share that EqCo leaves by nats, and the exact critic's estimates over K at 10 nats."""
    first, ninth = measured(table_1.TABLE), table_9_claims.read()
    exact = harness.ROOT / "experiments" / "eqco" / "results" / "figure_bounds.json"
    if first is None or ninth is None or not exact.exists():
        return None
    at_ten = [row for row in json.loads(exact.read_text())["rows"] if row["information"] == 10.0]
    return {
        "rows": first["rows"],
        "left": {information: table_9_claims.left(ninth, information) for information in ninth["eqco"]},
        "exact": {(row["estimate"], row["negatives"]): row["mean"] for row in at_ten},
        "errors": {(row["estimate"], row["negatives"]): row["standard_error"] for row in at_ten},
    }


def above(rows: list[dict]) -> int:
    """Count the settings whose mean over batches stands above the truth by four standard errors or more."""
    return sum(row["bias"] > 4 * row["spread"] / math.sqrt(table_1.BATCHES) for row in rows)


def estimates(found: dict) -> Iterator[tuple[str, ...]]:
    """Yield each estimate's name, label, the paper's words, settings above the truth, bias, standard deviation."""
    for name, label in table_1.NAMES.items():
        mine = [row for row in found["rows"] if row["estimate"] == name]
        bias, spread = ([row[key] for row in mine] for key in ("bias", "spread"))
        yield (
            name, label, " / ".join(table_1.WORDS[name]), f"{above(mine)} of {len(mine)}",
            f"{min(bias):+.2f} to {max(bias):+.2f}", f"{min(spread):.2f} to {max(spread):.2f}",
        )  # fmt: skip


def page(found: dict) -> list[str]:
    """Write a row an estimate."""
    rows = [(label, words, BOUNDS[name], *numbers) for name, label, words, *numbers in estimates(found)]
    left = [(nats, f"{1 - abs(statistics.mean(share)):.0%}") for nats, share in found["left"].items()]
    exact = [
        (label, *(f"{found['exact'][name, k]:.2f}" for k in (64, 512)), f"{change(found, name):+.2f}")
        for name, label in EXACT.items()
    ]
    return [
        "Gaussians of 2 to 10 nats, K = 16 to 256, the exact critic ([Table 1](../../flatnce/results/table_1.md)):",
        "",
        *harness.markdown(
            [
                "estimate",
                "the paper: bias / stability",
                "a lower bound",
                "above the truth by 4 s.e.",
                "bias, nats",
                "s.d., nats",
            ],
            rows,
        ),
        "",
        "A bound holds in expectation: single batches of each estimate exceed the truth. FlatNCE's excess is Jensen's",
        "inequality. Nguyen-Wainwright-Jordan's averages an exponential whose tails 200 batches hardly see: its",
        "standard errors are too small.",
        "",
        "InfoNCE's dependence on K that EqCo removes, trained critics",
        "([Table 9](../../eqco/results/table_9_claims.md)); what is left has the other sign:",
        "",
        *harness.markdown(["nats", "removed"], left),
        "",
        "The exact critic at 10 nats ([figure](../../eqco/results/figure_bounds.svg)):",
        "",
        *harness.markdown(["estimate", "K = 64", "K = 512", "change"], exact),
    ]


def change(found: dict, name: str) -> float:
    """Return the exact critic's estimate at 512 negatives less that at 64, nats."""
    return found["exact"][name, 512] - found["exact"][name, 64]


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed={"numbers": "of flatnce/table_1 and eqco/table_9_claims; this page only reads them"},
    claims=(
        Claim(
            "EqCo's estimate depends on K also with the exact critic: Jensen's bias",
            "EqCo at alpha 512, K = 512 less K = 64 at 10 nats, plus four standard errors",
            lambda found: [
                change(found, "eqco_512")
                + 4 * math.hypot(*(found["errors"]["eqco_512", k] for k in (64, 512)))
            ],
            expects="below",
            by="formula",
        ),
    ),
    read=read,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
