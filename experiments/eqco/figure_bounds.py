"""Which estimates of mutual information are bounds: each with the exact log density ratio as critic.

    python experiments/eqco/figure_bounds.py [--batches 1000] [--results experiments/eqco/results]

A lower bound of the mutual information cannot exceed it for any critic, so an estimate that does, here with
the exact ratio, is no bound. ``log K - mean(c)`` (what FlatNCE and DCL say: FlatNCE's corollary 3.4) and the
mini-batch Donsker-Varadhan estimate do, and so does EqCo's ``log(1 + alpha) - L`` for alpha > K. InfoNCE, and
EqCo with alpha <= K, never do. 20-dimensional correlated Gaussians; a batch of K + 1 pairs, so K negatives.
"""

import argparse
import json
import math
import pathlib

import jax
import numpy as np
from table_9 import by_exact_critic

from contrastive_jax import losses

INFORMATION = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0)  # at 64 negatives
NEGATIVES = (16, 32, 64, 128, 256, 512)  # at 10 nats

# The errata's numbers in nats, at (estimate, mutual information, K).
DERIVED = {("flat_nce", 4.0, 64): 4.7, ("flat_nce", 10.0, 64): 16.0, ("eqco_65536", 10.0, 64): 10.4}

LABELS = {
    "info_nce": "InfoNCE",
    "eqco_half": "EqCo, α = K/2",
    "eqco_512": "EqCo, α = 512",
    "eqco_65536": "EqCo, α = 65,536",
    "flat_nce": "log K − mean(c): FlatNCE, DCL",
    "donsker_varadhan": "Donsker–Varadhan, mini-batch",
}


def is_bound(name, negatives):
    """Return whether the estimate's expectation is a lower bound of the mutual information."""
    alpha = {"eqco_half": negatives / 2, "eqco_512": 512, "eqco_65536": 65536}
    return name == "info_nce" or alpha.get(name, math.inf) <= negatives


def estimates(positive, negative, count):
    """Compute each estimate of a batch, by query."""
    c = negative - positive
    return {
        "info_nce": losses.info_nce_estimate(c, count),
        "eqco_half": losses.eqco_estimate(c, count, alpha=(len(c) - 1) / 2),  # K is len(c) - 1
        "eqco_512": losses.eqco_estimate(c, count, alpha=512.0),
        "eqco_65536": losses.eqco_estimate(c, count, alpha=65536.0),
        "flat_nce": losses.flat_nce_estimate(c, count),
        "donsker_varadhan": losses.donsker_varadhan_estimate(positive, negative, count),
    }


def measure(information, negatives, batches):
    """Return one row for every estimate: its mean and standard error over the batches, and whether it is a bound."""
    values = jax.device_get(by_exact_critic(estimates, float(information), negatives, batches, 4))
    return [
        {
            "estimate": name,
            "information": information,
            "negatives": negatives,
            "mean": round(float(np.mean(value)), 4),
            "standard_error": round(float(np.std(value, ddof=1) / math.sqrt(batches)), 5),
            "lower_bound": is_bound(name, negatives),
        }
        for name, value in values.items()
    ]


def exceeds(row):
    """Return whether the mean lies above the true mutual information by more than 4 standard errors."""
    return row["mean"] > row["information"] + 4 * row["standard_error"]


def figure(rows, path):
    """Draw the estimate against truth at 64 negatives, and against K at 10 nats."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "eqco", "svg.fonttype": "none", "font.size": 9})
    drawing, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
    for name, label in LABELS.items():
        line = "-" if name in ("info_nce", "eqco_half") else "--"
        for axes, fixed, along in (
            (left, ("negatives", 64), "information"),
            (right, ("information", 10.0), "negatives"),
        ):
            points = sorted(
                (r[along], r["mean"]) for r in rows if r["estimate"] == name and r[fixed[0]] == fixed[1]
            )
            axes.plot(*zip(*points, strict=True), line, marker=".", label=label)
    left.plot([0, 12], [0, 12], color="black", linewidth=1, label="the truth")
    right.axhline(10.0, color="black", linewidth=1)
    left.fill_between([0, 12], [0, 12], 20, color="black", alpha=0.06, linewidth=0)
    right.axhspan(10, 20, color="black", alpha=0.06, linewidth=0)
    left.set(
        xlabel="mutual information (nats)", ylabel="estimate (nats)", title="K = 64 negatives", ylim=(0, 20)
    )
    right.set(xlabel="K negatives", title="10 nats", xscale="log", ylim=(0, 20))
    right.set_xticks(NEGATIVES, [str(k) for k in NEGATIVES])
    right.minorticks_off()
    left.set_xlim(0, 12)
    left.legend(fontsize=8, title="exact critic; shaded: above the truth", title_fontsize=8)
    drawing.savefig(path, metadata={"Date": None})
    plt.close(drawing)


def main(arguments=None):
    """Run the command: measure, save, draw, and say what exceeds the truth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    points = [(information, 64) for information in INFORMATION]
    points += [(10.0, negatives) for negatives in NEGATIVES if negatives != 64]
    rows = [row for point in points for row in measure(*point, options.batches)]
    options.results.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    report = f'{{"batches": {options.batches}, "rows": [\n{lines}\n]}}\n'
    (options.results / "figure_bounds.json").write_text(report)
    figure(rows, options.results / "figure_bounds.svg")
    for name, label in LABELS.items():
        above = [row for row in rows if row["estimate"] == name and exceeds(row)]
        print(f"{label}: above the truth at {len(above)} of {len(points)} points")
    for (name, information, negatives), derived in DERIVED.items():
        point = [row for row in rows if (row["information"], row["negatives"]) == (information, negatives)]
        row = next(row for row in point if row["estimate"] == name)
        measured = f"{row['mean']:.2f} ± {row['standard_error']:.2f} (derived: {derived})"
        print(f"MI {information:g}, K {negatives}, {LABELS[name]}: {measured}")


if __name__ == "__main__":
    main()
