"""Five papers, one family: what every loss makes of the contrast c, and how far each identity holds.

    python experiments/flatnce/figure_identities.py [--out experiments/flatnce/results]

Left: the weight that a query's gradient has, dL/dc, by automatic differentiation in float32; dots are the exact
weight in float64. Right: identities between whole losses, on the embeddings of two views through
``contrastive_jax.contrastive_loss``: the largest difference of the gradients with respect to the embeddings,
relative to the gradient's norm, over 8 draws. Both in float32; fails where one exceeds 1e-5.
"""

import argparse
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import contrastive_jax
from contrastive_jax import losses

GRID = np.linspace(-120, 120, 961)
COUNT, ALPHA, GAMMA, FACTOR = 16, 256, 2.0, 10.0  # negatives; of EqCo; of Hölder-FlatNCE; of Dual temperature
TEMPERATURES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LIMIT = 1e-5


def sigmoid(x):
    """Compute the logistic function in NumPy's float64, without overflow."""
    return np.exp(-np.logaddexp(0, -x))


# Loss of c in our code, and its exact weight.
WEIGHTS = {
    "InfoNCE, FlatNCE+": (losses.info_nce, sigmoid),
    "FlatNCE, DCL, MACL": (losses.flat_nce, np.ones_like),
    f"Hölder-FlatNCE({GAMMA:g})": (
        lambda c: losses.hoelder_flat_nce(c, gamma=GAMMA),
        lambda c: np.ones_like(c) / GAMMA,
    ),
    f"EqCo({ALPHA}), K={COUNT}": (
        lambda c: losses.eqco(c, jnp.asarray(COUNT), alpha=ALPHA),
        lambda c: sigmoid(c + np.log(ALPHA / COUNT)),
    ),
    f"Dual temperature, c_beta = c/{FACTOR:g}": (
        lambda c: losses.dual_temperature(c, c / FACTOR, factor=FACTOR),
        lambda c: sigmoid(c / FACTOR),
    ),
}
ALIKE = {"InfoNCE, FlatNCE+": (losses.flat_nce_plus,), "FlatNCE, DCL, MACL": (losses.dcl, losses.macl)}


def published(form):
    """Return a loss as its paper prints it, of two views: ``form`` of the scores of positives and negatives."""

    def loss(a, b, tau):
        z = jnp.concatenate([a, b])
        z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
        scores = z @ z.T / tau
        itself = jnp.eye(len(z), dtype=bool)
        partner = jnp.roll(itself, len(a), axis=1)
        positive = jnp.sum(scores, axis=1, where=partner)
        return jnp.mean(form(positive, jnp.where(itself | partner, -jnp.inf, scores)))

    return loss


def flat_nce_printed(positive, negative):
    """Compute FlatNCE, eq. 6: the sum of exp(s_j - s+) over itself, detached."""
    ratio = jnp.sum(jnp.exp(negative - positive[:, None]), axis=1)
    return ratio / jax.lax.stop_gradient(ratio)


def macl_printed(positive, negative):
    """Compute MACL, eq. 14: -log P of the positive over 1 - P, detached."""
    minus_log_p = jnp.logaddexp(0.0, jax.nn.logsumexp(negative, axis=1) - positive)
    return minus_log_p / jax.lax.stop_gradient(-jnp.expm1(-minus_log_p))


# First loss, second loss, factor: the second's gradient is the factor times the first's (None: temperature).
IDENTITIES = {
    "FlatNCE as published = DCL": ({"loss": "dcl"}, published(flat_nce_printed), 1.0),
    "MACL as published = DCL": ({"loss": "dcl"}, published(macl_printed), 1.0),
    "FlatNCE = DCL": ({"loss": "dcl"}, {"loss": "flat_nce"}, 1.0),
    "MACL = DCL": ({"loss": "dcl"}, {"loss": "macl"}, 1.0),
    "FlatNCE+ = InfoNCE": ({"loss": "info_nce"}, {"loss": "flat_nce_plus"}, 1.0),
    "Hölder-FlatNCE(1) = FlatNCE": ({"loss": "flat_nce"}, {"loss": "hoelder_flat_nce", "gamma": 1.0}, 1.0),
    "EqCo(K) = InfoNCE": ({"loss": "info_nce"}, {"loss": "eqco", "alpha": 30.0}, 1.0),
    "EqCo(1e30) = DCL": ({"loss": "dcl"}, {"loss": "eqco", "alpha": 1e30}, 1.0),
    "Dual(m=1) = InfoNCE": ({"loss": "info_nce"}, {"loss": "dual_temperature", "factor": 1.0}, 1.0),
    "decoupled(tau) = tau InfoNCE": ({"loss": "info_nce"}, {"loss": "decoupled_nt_xent"}, None),
}


def weights() -> dict:
    """Compute, for every loss, its weight on the grid by automatic differentiation, and the exact one."""
    c = jnp.asarray(GRID, jnp.float32)
    found = {}
    for name, (loss, exact) in WEIGHTS.items():
        same = [loss, *ALIKE.get(name, ())]
        ours = [np.asarray(jax.vmap(jax.grad(each))(c), np.float64) for each in same]
        exact = exact(np.asarray(c, np.float64))
        tiny = np.finfo(np.float32).tiny  # below it float32 has no full precision: nothing to compare
        error = max(float(np.max(np.abs(o - exact)[exact > tiny] / exact[exact > tiny])) for o in ours)
        found[name] = {"weight": ours[0], "exact": exact, "largest_relative_error": error}
    return found


def identities(draws: int = 8, examples: int = 16, width: int = 32) -> dict:
    """Compute, for every identity and temperature, the largest relative difference of the two gradients."""
    random = np.random.default_rng(0)
    first = random.normal(size=(draws, examples, width)).astype(np.float32)
    closeness = random.uniform(
        0.1, 2.0, size=(draws, 1, 1)
    )  # from nearly equal views to nearly unrelated ones
    second = (first + closeness * random.normal(size=first.shape)).astype(np.float32)

    def gradient(options, tau):
        def loss(a, b):
            if callable(options):
                return options(a, b, tau)
            return jnp.mean(contrastive_jax.contrastive_loss(a, b, temperature=tau, **options))

        a, b = jax.vmap(jax.grad(loss, (0, 1)))(first, second)
        return np.concatenate([a, b], axis=1).astype(np.float64)

    found = {}
    for name, (one, two, factor) in IDENTITIES.items():
        differences = []
        for tau in TEMPERATURES:
            expected = gradient(one, tau) * (tau if factor is None else factor)
            norm = np.linalg.norm(expected, axis=(1, 2))
            differences.append(
                float(np.max(np.linalg.norm(gradient(two, tau) - expected, axis=(1, 2)) / norm))
            )
        found[name] = differences
    return found


def draw(weight: dict, identity: dict, path: pathlib.Path) -> None:
    """Draw weights on the left, differences on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    near = np.abs(GRID) <= 12
    for name, row in weight.items():
        (line,) = left.plot(GRID[near], row["weight"][near], label=name)
        left.plot(GRID[near][::8], row["exact"][near][::8], ".", color=line.get_color())
    left.set(xlabel="c, the contrast of a query", ylabel="dL/dc", title="the weight of a query")
    left.legend(fontsize=8)
    for name, differences in identity.items():
        right.loglog(TEMPERATURES, np.maximum(differences, 1e-9), marker="o", markersize=3, label=name)
    right.axhline(LIMIT, color="black", linestyle=":", linewidth=1)
    right.set(
        xlabel="temperature", ylabel="relative difference", title="identities, gradients of the embeddings"
    )
    right.legend(fontsize=7)
    for suffix in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=110)
    plt.close(figure)


def main() -> None:
    """Measure, draw, print; fail where an identity does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    weight, identity = weights(), identities()
    worst = {name: row["largest_relative_error"] for name, row in weight.items()}
    worst |= {name: max(differences) for name, differences in identity.items()}
    for name, error in worst.items():
        print(f"{name:36s} {error:.1e}")
    report = {
        "what": "largest relative error of dL/dc on [-120, 120]; relative differences of gradients by temperature",
        "temperature": TEMPERATURES,
        "dtype": "float32",
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "weights": {name: row["largest_relative_error"] for name, row in weight.items()},
        "identities": identity,
    }
    (out / "identities.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(weight, identity, out / "identities")
    if max(worst.values()) > LIMIT:
        raise SystemExit(f"an identity is off by more than {LIMIT:g}")


if __name__ == "__main__":
    main()
