"""Five papers, one family: what each loss does with the contrast c of a query, from InfoNCE to DCL.

    python -m experiments.flatnce.figure_family [--out experiments/flatnce/results]

c = logsumexp over negatives of (s - s+) / tau: left the query's positive is far ahead, right it is behind. Left panel:
the weight that a query has in the gradient, dL/dc. InfoNCE forgets queries that are solved; FlatNCE, DCL and MACL
weigh all alike; EqCo lies between, by how many negatives it stands for; Dual temperature takes the weight at ten times
the temperature, where the contrast is c / 10 (as it is with one negative). Right panel: the values, of which
FlatNCE's is always 1. All by the library's functions and automatic differentiation in float32;
``figure_identities`` measures them against float64.
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import losses

GRID = np.linspace(-10.0, 10.0, 401)
COUNT, FACTOR = 16, 10.0
RATIOS = (16, 256, 4096)  # alpha / K of EqCo


def eqco(ratio: float):
    """Return EqCo that stands for ``ratio`` times as many negatives as there are."""
    return lambda c: losses.eqco(c, jnp.asarray(COUNT), alpha=float(ratio * COUNT))


# Name -> (loss of c, where on the grid its name stands, its shift in points, colour).
CURVES = {
    "InfoNCE = FlatNCE+": (losses.info_nce, 1.0, (8, -8), "C0"),
    **{f"EqCo, α = {ratio:,} K": (eqco(ratio), -np.log(ratio), (5, 0), "C2") for ratio in RATIOS},
    "FlatNCE = DCL = MACL": (losses.flat_nce, -9.5, (0, 5), "C3"),
    "Dual temperature, 10 τ": (
        lambda c: losses.dual_temperature(c, c / FACTOR, factor=FACTOR),
        2.0,
        (0, -12),
        "C4",
    ),
}
VALUES = {
    "InfoNCE": losses.info_nce,
    "FlatNCE, FlatNCE+": losses.flat_nce,
    "DCL": losses.dcl,
    "MACL": losses.macl,
}


def weight(loss) -> np.ndarray:
    """Compute dL/dc on the grid."""
    return np.asarray(jax.vmap(jax.grad(loss))(jnp.asarray(GRID, jnp.float32)))


def draw():
    """Draw the two panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, (loss, place, shift, colour) in CURVES.items():
        found = weight(loss)
        left.plot(GRID, found, color=colour)
        at, along = (place, np.interp(place, GRID, found)), 63 if name.startswith("EqCo") else 0
        left.annotate(
            name, at, shift, textcoords="offset points", color=colour, fontsize=8, rotation=along,
            rotation_mode="anchor", va="top" if along else "baseline",
        )  # fmt: skip
    left.set(xlabel="contrast c of the query", ylabel="weight in the gradient, dL/dc", ylim=(-0.03, 1.12))
    for name, loss in VALUES.items():
        right.plot(GRID, np.asarray(jax.vmap(loss)(jnp.asarray(GRID, jnp.float32))), label=name)
    right.set(xlabel="contrast c of the query", ylabel="value of the loss", ylim=(-4, 8))
    right.legend(frameon=False, fontsize=8)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    """Draw ``family.svg`` and ``family.png``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    figure = draw()
    figure.savefig(out / "family.svg", metadata={"Date": None})
    figure.savefig(out / "family.png", dpi=110)


if __name__ == "__main__":
    main()
