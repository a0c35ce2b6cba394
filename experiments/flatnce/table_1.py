"""FlatNCE (Chen et al. 2021), Table 1: bias and stability of estimates of mutual information, measured.

    python -m experiments.flatnce.table_1 run       # a minute
    python -m experiments.flatnce.table_1 render

The paper's table is of words: Donsker-Varadhan large bias, poor stability; Nguyen-Wainwright-Jordan and
Fenchel-Legendre low, okay; InfoNCE large, excellent; FlatNCE low, excellent. Here they are numbers: the mean and the
standard deviation over 200 batches of each estimate of the mutual information of 20-dimensional correlated
Gaussians, the exact log density ratio as critic, a batch of K + 1 pairs, so K negatives.

With the exact critic Fenchel-Legendre at its best u, minus the critic of the positive pair, is
Nguyen-Wainwright-Jordan's estimate query for query, so its row is computed and must agree. FlatNCE's value is
``log K - mean(c)``, which is above the truth in expectation. Corollary 3.4 prints it as a lower bound; its proof
(appendix B.5) adds that it is one up to a term that has no gradient, "not technically a lower bound".

The two claims on Nguyen-Wainwright-Jordan's and Fenchel-Legendre's words were added on 2026-11-26, when a reader
missed them; the numbers were there, so that they have no prediction. With the exact critic the two are one estimate;
0.02 nats are allowed for the chance in the mean of 200 batches.

The five claims that read ``log K - mean(c)`` are counted as our readings since 2026-11-26: Table 1's words are printed,
and the paper disclaims the number.
"""

import json
import sys

from experiments import harness
from experiments.harness import Claim

INFORMATION = (2.0, 4.0, 6.0, 8.0, 10.0)  # nats
NEGATIVES = (16, 64, 256)
BATCHES = 200
SEEDS = (1, 2, 3, 4, 5)  # of the batches; the page shows the first
NAMES = {
    "dv": "Donsker-Varadhan",
    "nwj": "Nguyen-Wainwright-Jordan",
    "fl": "Fenchel-Legendre",
    "info_nce": "InfoNCE",
    "flat_nce": "FlatNCE",
}
WORDS = {
    "dv": ("Large", "Poor"),
    "nwj": ("Low", "Okay"),
    "fl": ("Low", "Okay"),
    "info_nce": ("Large", "Excellent"),
    "flat_nce": ("Low", "Excellent"),
}


def estimates(positive, negative, count) -> dict:
    """Compute each estimate of a batch, by query."""
    from contrastive_jax import losses

    c = negative - positive
    return {
        "dv": losses.donsker_varadhan_estimate(positive, negative, count),
        "nwj": losses.nwj(positive + 1.0, negative + 1.0, count),  # its best critic is one above
        "fl": -losses.fenchel_legendre(c, count, -positive),
        "info_nce": losses.info_nce_estimate(c, count),
        "flat_nce": losses.flat_nce_estimate(c, count),
    }


def measure() -> dict:
    """Measure estimate -> a row for each information and K: bias and spread over batches, in nats."""
    import numpy as np

    from experiments.eqco.table_9 import by_exact_critic

    rows = []
    for negatives in NEGATIVES:
        for information in INFORMATION:
            draws = [by_exact_critic(estimates, information, negatives, BATCHES, seed) for seed in SEEDS]
            for name in draws[0]:
                values = np.asarray([draw[name] for draw in draws], np.float64)
                rows.append({
                    "estimate": name,
                    "information": information,
                    "negatives": negatives,
                    "bias": round(float(values[0].mean()) - information, 4),
                    "spread": round(float(values[0].std(ddof=1)), 4),
                    "spreads": [round(float(s), 4) for s in values.std(axis=1, ddof=1)],
                })  # fmt: skip
    return {"rows": rows}


def of(found: dict, name: str, what: str) -> list:
    """Return bias, spread or spreads of an estimate, a number each information and K."""
    return [row[what] for row in found["rows"] if row["estimate"] == name]


def page(found: dict) -> list[str]:
    """Write bias ± spread at every information and K, and the paper's words."""
    lines = []
    for information in INFORMATION:
        cells = {
            (row["estimate"], row["negatives"]): f"{row['bias']:+.2f} ± {row['spread']:.2f}"
            for row in found["rows"]
            if row["information"] == information
        }
        lines += [
            f"Mutual information {information:g} nats: bias ± standard deviation of a batch's estimate",
            "",
        ]
        lines += harness.markdown(
            ["estimate", *(f"K = {k}" for k in NEGATIVES), "the paper: bias", "stability"],
            [(title, *(cells[name, k] for k in NEGATIVES), *WORDS[name]) for name, title in NAMES.items()],
        )
        lines += [""]
    return lines


def differences(first: list[float], second: list[float]) -> list[float]:
    """Return ``|first| - |second|``, number by number."""
    return [abs(a) - abs(b) for a, b in zip(first, second, strict=True)]


def steadier(found: dict) -> list[list[float]]:
    """Return by how much FlatNCE's spread is below Donsker-Varadhan's at each information and K, a draw each."""
    pairs = zip(of(found, "dv", "spreads"), of(found, "flat_nce", "spreads"), strict=True)
    return [differences(dv, flat_nce) for dv, flat_nce in pairs]


def between(found: dict) -> list[list[float]]:
    """Return by how much the two's spread is below Donsker-Varadhan's and above InfoNCE's, a sample a setting."""
    pairs = [pair for name in ("nwj", "fl") for pair in (("dv", name), (name, "info_nce"))]
    return [
        differences(more, less)
        for above, below in pairs
        for more, less in zip(of(found, above, "spreads"), of(found, below, "spreads"), strict=True)
    ]


def precision(dtype: str, label: str) -> float:
    """Read the worst relative error of a gradient, as figure_precision measured it; 2 where it is not finite."""
    file = harness.ROOT / "experiments" / "flatnce" / "results" / "precision.json"
    worst = json.loads(file.read_text())["cells"][f"{dtype}: {label}"]["worst_in_range"]
    return 2.0 if worst is None else worst


def drowning(form: str):
    """Return the evidence: the error of a form of InfoNCE less FlatNCE's less a tenth of the gradient, a number each
    type."""
    types = ("float32", "bfloat16", "float16")
    return lambda found: [precision(dtype, form) - precision(dtype, "FlatNCE ours") - 0.1 for dtype in types]


def draw(found: dict):
    """Draw bias over K, a panel an estimate, a line each information."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2.8), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(NAMES), sharey=True), NAMES.items(), strict=True):
        for information in INFORMATION:
            rows = [r for r in found["rows"] if (r["estimate"], r["information"]) == (name, information)]
            axes.errorbar(
                [r["negatives"] for r in rows],
                [r["bias"] for r in rows],
                [r["spread"] for r in rows],
                label=f"{information:g} nats",
                marker="o",
                markersize=3,
                capsize=2,
            )
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(title=title, xscale="log", xlabel="K")
        axes.set_yscale("symlog", linthresh=1.0)
    figure.axes[0].set_ylabel("bias, nats")
    figure.axes[0].legend(frameon=False, fontsize=7)
    return figure


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed={
        "everything but the estimators": "the paper measures nothing here; Gaussians as in EqCo's Table 9, exact"
        " critic",
        "form": "Table 1's FlatNCE row is not eq. 6, and its FL row has the opposite sign: the text's are taken",
    },
    claims=(
        Claim(
            "FlatNCE bounds the mutual information from below (Corollary 3.4)",
            "bias of log K - mean(c), nats, a number each information and K",
            lambda found: of(found, "flat_nce", "bias"),
            expects="below",
            by="formula",
            ours=True,
        ),
        Claim(
            "InfoNCE bounds the mutual information from below",
            "bias, nats, a number each information and K",
            lambda found: of(found, "info_nce", "bias"),
            expects="below",
            by="formula",
        ),
        Claim(
            "Nguyen-Wainwright-Jordan's and Fenchel-Legendre's bias is low, the other two's large (Table 1)",
            "absolute bias, InfoNCE's and Donsker-Varadhan's each - that of each of the two, plus 0.02, nats, a number"
            " each information and K",
            lambda found: [
                gap + 0.02
                for large in ("info_nce", "dv")
                for low in ("nwj", "fl")
                for gap in differences(of(found, large, "bias"), of(found, low, "bias"))
            ],
            by="formula",
        ),
        Claim(
            "Their stability is okay: between Donsker-Varadhan's, poor, and InfoNCE's, excellent (Table 1)",
            "standard deviation over batches, Donsker-Varadhan - each of the two, and these - InfoNCE, nats, at each"
            " information and K, a number each draw of the batches",
            between,
            by="each",
        ),
        Claim(
            "FlatNCE has less bias than InfoNCE (Table 1)",
            "absolute bias, InfoNCE - FlatNCE, nats, a number each information and K",
            lambda found: differences(of(found, "info_nce", "bias"), of(found, "flat_nce", "bias")),
            by="formula",
            ours=True,
        ),
        Claim(
            "Donsker-Varadhan's bias is larger than FlatNCE's (Table 1: large, low)",
            "absolute bias, Donsker-Varadhan - FlatNCE, nats, a number each information and K",
            lambda found: differences(of(found, "dv", "bias"), of(found, "flat_nce", "bias")),
            by="formula",
            ours=True,
        ),
        Claim(
            "FlatNCE is as stable as InfoNCE (Table 1)",
            "standard deviation over batches, FlatNCE - InfoNCE, nats, a number each information and K",
            lambda found: differences(of(found, "flat_nce", "spread"), of(found, "info_nce", "spread")),
            expects="within",
            margin=0.1,
            by="formula",
            ours=True,
        ),
        Claim(
            "FlatNCE is more stable than Donsker-Varadhan (Table 1)",
            "standard deviation over batches, Donsker-Varadhan - FlatNCE, nats, at each information and K, a number"
            " each draw of the batches",
            steadier,
            by="each",
            ours=True,
        ),
        Claim(
            "InfoNCE's gradient drowns in low precision, as a cross-entropy of logits of that precision",
            "largest relative error of the scores' gradient, cross-entropy of the logits - FlatNCE - 0.1, in float32,"
            " bfloat16 and float16 (figure_precision)",
            drowning("InfoNCE cross-entropy"),
            by="formula",
        ),
        Claim(
            "InfoNCE's gradient drowns also where it is computed stably from scores of low precision",
            "largest relative error of the scores' gradient, this library's InfoNCE - FlatNCE - 0.1, in float32,"
            " bfloat16 and float16: float16's is 1, the others' below 0.01 (figure_precision)",
            drowning("InfoNCE ours"),
            by="formula",
            ours=True,
        ),
    ),
    draw=draw,
    measure=measure,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
