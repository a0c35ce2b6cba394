"""MACL (Huang et al. 2022), Figure 3: the weight W of a query's gradient over the temperature.

    python -m experiments.macl.figure_3 run
    python -m experiments.macl.figure_3 render

W of eq. 11, InfoNCE's factor of a query's gradient, for a positive similarity of 1 and K negative ones of -1: it is
small where tau is small, and tends to K / (1 + K) (eq. 13) and with K to 1 (eq. 12). Drawn from the loss: W is the
derivative of InfoNCE in the contrast c = log K + (s- - s+) / tau.
"""

import itertools
import math
import sys

from experiments import harness
from experiments.harness import Claim

POSITIVE, NEGATIVE = 1.0, -1.0
COUNTS = (1, 16, 256, 4096, 65536)
TAUS = tuple(round(0.1 * i, 1) for i in range(1, 31))


def measure() -> dict:
    """Compute W by automatic differentiation of the library's InfoNCE: K -> [tau]."""
    import jax
    import jax.numpy as jnp

    from contrastive_jax.losses import info_nce

    tau = jnp.asarray(TAUS)
    weight = jax.vmap(jax.grad(info_nce))
    return {
        "tau": list(TAUS),
        "W": {str(k): weight(math.log(k) + (NEGATIVE - POSITIVE) / tau).tolist() for k in COUNTS},
    }


def page(found: dict) -> list[str]:
    """Write a few columns of the curves, and their limit."""
    taus = (0.1, 0.2, 0.5, 1.0, 3.0)
    shown = [found["tau"].index(tau) for tau in taus]
    return harness.markdown(
        ["K", *(f"tau {tau:g}" for tau in taus), "K / (1 + K)"],
        [
            (k, *(f"{weights[i]:.2g}" for i in shown), f"{int(k) / (1 + int(k)):.5g}")
            for k, weights in found["W"].items()
        ],
    )


def smallest_step(values) -> float:
    """Return the smallest difference of a value to the one before."""
    return min(after - before for before, after in itertools.pairwise(values))


def draw(found: dict):
    """Draw W over tau, a line each K."""
    figure, axes = harness.panel()
    for k, weights in found["W"].items():
        axes.plot(found["tau"], weights, label=f"K = {k}")
    axes.set(xlabel="temperature", ylabel="W")
    axes.legend(frameon=False)
    return figure


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed={"K": "not legible outside of the figure: powers of 16", "tau": "0.1 to 3"},
    claims=(
        Claim(
            "W grows with the temperature (similarities 1 and -1)",
            "smallest step of W over the temperatures, a number each K",
            lambda found: [smallest_step(weights) for weights in found["W"].values()],
            by="formula",
        ),
        Claim(
            "W grows with the number of negatives (similarities 1 and -1)",
            "smallest step of W to 16 times the negatives, a number each temperature",
            lambda found: [
                min(b - a for a, b in zip(w, w[1:], strict=False))
                for w in zip(*found["W"].values(), strict=True)
            ],
            by="formula",
        ),
    ),
    draw=draw,
    measure=measure,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
