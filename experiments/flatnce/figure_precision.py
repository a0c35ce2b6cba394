"""Where the usual forms of a contrastive loss lose its gradient: FlatNCE's numerical argument, measured.

    python experiments/flatnce/figure_precision.py [--out experiments/flatnce/results]

Scores of one positive and 14 negatives are given in float32, bfloat16 or float16; the gap is the
positive's score minus the negatives' mean. A cell is the largest error, over 16 draws, of the gradient with
respect to the scores, relative to its exact norm (NumPy's long double, from the same rounded scores). Ours
computes in float32 and returns the gradient in the type of the scores, as any JAX function does: in half
precision its error is that last rounding. The line is where the exact gradient of that loss leaves
float32's range (norm below 1e-30): right of it nothing in float32 can be right.
"""

import argparse
import datetime
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import losses, native
from contrastive_jax.contrast.similarity import negative_statistics
from contrastive_jax.types import Pool

TEMPERATURES = np.geomspace(0.01, 1.0, 17).astype(np.float32)
GAPS = np.linspace(0.2, 2.0, 19)
NEGATIVES, DRAWS = 14, 16
DTYPES = ("float32", "bfloat16", "float16")
SMALLEST = 1e-30  # norm of an exact gradient below which float32 ends
FACTOR = 10.0  # of Dual temperature


def draw_scores(seed: int = 0) -> np.ndarray:
    """Draw cosines [gaps, draws, 1 + K], the positive first."""
    rng = np.random.default_rng(seed)
    spread = rng.uniform(-0.1, 0.1, size=(len(GAPS), DRAWS, 1 + NEGATIVES))
    score = spread + np.where(np.arange(1 + NEGATIVES) == 0, 0.5, -0.5) * GAPS[:, None, None]
    return np.clip(score, -1, 1)


def ours(name: str, engine: str = "dense", **options):
    """Return a loss of the library on scores [Q, 1 + K]: the engine sees them as queries of an identity's rows."""
    loss = getattr(losses, name)
    declared = losses.declaration(loss).multiples
    multiples = declared(**options) if declared else (1.0,)

    def of_scores(score, tau):
        candidates = score.shape[1] - 1
        pool = Pool(jnp.eye(candidates, dtype=score.dtype), jnp.ones(candidates, jnp.int32))
        scale, group = jnp.asarray(multiples, tau.dtype) / tau, jnp.zeros(len(score), jnp.int32)
        found = negative_statistics(score[:, 1:], group, pool, scale, score[:, 0], engine=engine)
        return loss(*found.logsumexp, **options)

    return of_scores


def cross_entropy(score, tau):
    """Compute InfoNCE as most code has it: the cross-entropy of the logits, in the type of the scores."""
    return -jax.nn.log_softmax(score / tau.astype(score.dtype), axis=1)[:, 0]


def exp_over_sum(score, tau):
    """Compute InfoNCE as a quotient of exponentials."""
    e = jnp.exp(score / tau.astype(score.dtype))
    return -jnp.log(e[:, 0] / jnp.sum(e, axis=1))


def macl_published(score, tau):
    """Compute MACL with its weight 1 / (1 - P)."""
    log_p = jax.nn.log_softmax(score / tau.astype(score.dtype), axis=1)[:, 0]
    return -log_p * jax.lax.stop_gradient(1 / (1 - jnp.exp(log_p)))


def dual_published(score, tau):
    """Compute dual temperature with its weight (1 - p(tau_beta)) / (1 - p(tau))."""
    tau = tau.astype(score.dtype)
    p = [jnp.exp(jax.nn.log_softmax(score / t, axis=1)[:, 0]) for t in (tau, tau * FACTOR)]
    return -jnp.log(p[0]) * jax.lax.stop_gradient((1 - p[1]) / (1 - p[0]))


# Label -> (loss of scores [Q, 1 + K] and tau, the gradient's exact weight on dc).
LOSSES = {
    "InfoNCE\ncross-entropy": (cross_entropy, "sigmoid(c)"),
    "InfoNCE\nexp / sum": (exp_over_sum, "sigmoid(c)"),
    "InfoNCE\nours": (ours("info_nce"), "sigmoid(c)"),
    "FlatNCE\nours": (ours("flat_nce"), "1"),
    "DCL\nours": (ours("dcl"), "1"),
    "MACL\nas published": (macl_published, "1"),
    "MACL\nours": (ours("macl"), "1"),
    "Dual\nas published": (dual_published, "sigmoid(c_beta)"),
    "Dual\nours": (ours("dual_temperature", factor=FACTOR), "sigmoid(c_beta)"),
}


def exact_gradient(score: np.ndarray, tau: np.ndarray, weight: str) -> np.ndarray:
    """Compute ``weight * [-1, softmax of the negatives] / tau`` in long double: [temperatures, Q, 1 + K]."""
    score, tau = score.astype(np.longdouble), tau.astype(np.longdouble)[:, None, None]

    def contrast(tau):
        above = (score[:, 1:] - score[:, :1]) / tau
        peak = above.max(axis=-1, keepdims=True)
        e = np.exp(above - peak)
        total = e.sum(axis=-1, keepdims=True)
        return peak + np.log(total), e / total

    c, p = contrast(tau)
    sigmoid = {"1": lambda: 1, "sigmoid(c)": lambda: 1 / (1 + np.exp(-c))}.get(
        weight, lambda: 1 / (1 + np.exp(-contrast(tau * FACTOR)[0]))
    )()
    return sigmoid * np.concatenate([-np.ones_like(c), p], axis=-1) / tau


def gradients(loss, score: jax.Array, tau: np.ndarray) -> jax.Array:
    """Compute the gradient of every query with respect to its scores: [temperatures, Q, 1 + K], in the type of the
    scores."""
    of_sum = jax.grad(lambda score, tau: jnp.sum(loss(score, tau).astype(jnp.float32)))
    return jax.vmap(of_sum, (None, 0))(score, tau)


def measure(dtype: str, names=tuple(LOSSES), seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Measure the gradient's relative error (inf: not finite) and exact norm of each loss, [taus, gaps, draws]."""
    score = jnp.asarray(draw_scores(seed).reshape(-1, 1 + NEGATIVES), dtype)
    run = native.jit(lambda score: {name: gradients(LOSSES[name][0], score, TEMPERATURES) for name in names})
    found, given = jax.device_get(run(score)), np.asarray(score.astype(jnp.float32))
    results = {}
    for name in names:
        exact = exact_gradient(given, TEMPERATURES, LOSSES[name][1])
        norm = np.linalg.norm(exact.astype(np.longdouble).reshape(*exact.shape[:2], -1), axis=-1)
        difference = found[name].astype(np.longdouble) - exact
        error = np.sqrt(np.sum(difference**2, axis=-1)) / norm
        error = np.where(np.isfinite(found[name].astype(np.float32)).all(axis=-1), error, np.inf)
        shape = (len(TEMPERATURES), len(GAPS), DRAWS)
        results[name] = error.astype(float).reshape(shape), norm.astype(float).reshape(shape)
    return results


def draw(results: dict, path: pathlib.Path) -> None:
    """Draw a panel a loss and type; colour is the decimal logarithm of the error, black is not finite."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(DTYPES),
        len(LOSSES),
        figsize=(1.75 * len(LOSSES), 5.8),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    colours = plt.get_cmap("viridis").copy()
    colours.set_bad("black")
    for row, dtype in zip(axes, DTYPES, strict=True):
        for axis, name in zip(row, LOSSES, strict=True):
            error, norm = (np.max(results[dtype][name][0], axis=-1), np.min(results[dtype][name][1], axis=-1))
            shown = np.ma.masked_invalid(np.log10(np.maximum(error, 1e-9)))
            mesh = axis.pcolormesh(GAPS, TEMPERATURES, shown, cmap=colours, vmin=-8, vmax=0, rasterized=True)
            if norm.min() < SMALLEST:
                axis.contour(GAPS, TEMPERATURES, np.log10(norm), [np.log10(SMALLEST)], colors="white")
            axis.set_yscale("log")
            if dtype == DTYPES[0]:
                axis.set_title(name, fontsize=9)
            if dtype == DTYPES[-1]:
                axis.set_xlabel("gap")
        row[0].set_ylabel(f"{dtype}\ntemperature")
    bar = figure.colorbar(mesh, ax=axes, label="relative error of the gradient", ticks=range(-8, 1, 2))
    bar.ax.set_yticklabels([f"1e{tick}" for tick in range(-8, 1, 2)])
    for suffix in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=110)
    plt.close(figure)


def main() -> None:
    """Measure, draw, and print the worst cell of every panel where the exact gradient is in range."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    results = {dtype: measure(dtype) for dtype in DTYPES}
    cells = {}
    for dtype in DTYPES:
        for name, (error, norm) in results[dtype].items():
            inside = error[norm > SMALLEST]
            worst = float(inside.max())
            label = name.replace("\n", " ")
            cells[f"{dtype}: {label}"] = {
                "worst_in_range": worst if np.isfinite(worst) else None,
                "not_finite": int(np.isinf(error).sum()),
                "out_of_range": int((norm <= SMALLEST).sum()),
                "error": [[float(f"{e:.3g}") if np.isfinite(e) else None for e in r] for r in error.max(-1)],
            }
            print(
                f"{dtype:9s} {label:22s} worst {worst:8.1e}   not finite"
                f" {np.isinf(error).sum():4d} of {error.size}"
            )
    report = {
        "what": "relative error of the gradient with respect to given scores, against long double",
        "temperature": [float(t) for t in TEMPERATURES],
        "gap": [round(float(g), 3) for g in GAPS],
        "negatives": NEGATIVES,
        "draws": DRAWS,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "cells": cells,
    }
    (out / "precision.json").write_text(json.dumps(report, indent=None, separators=(",", ":")) + "\n")
    draw(results, out / "precision")


if __name__ == "__main__":
    main()
