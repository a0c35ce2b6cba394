"""Intriguing Properties (Chen, Luo and Li 2021), Table 1: instances of the generalized contrastive loss.

    python -m experiments.intriguing.table_1 run
    python -m experiments.intriguing.table_1 render

The formulas are lost in the text at hand; the rows' priors are printed. Each row is a method of this library. Section 2
says that the first, with lambda = tau, is NT-Xent up to a constant scale (eq. 3): measured here, on random scores.
"""

import sys

from experiments import harness
from experiments.harness import Claim
from experiments.intriguing.table_a1 import LOSSES

PRIORS = {  # the printed rows -> (distribution term, name of the loss in Table A.1)
    "Uniform hypersphere": ("logsumexp", "Decoupled NT-Xent"),
    "Uniform hypersphere, by SWD": ("sliced Wasserstein distance", "SWD (uniform hypersphere)"),
    "Uniform hypercube": ("sliced Wasserstein distance", "SWD (uniform hypercube)"),
    "Normal distribution": ("sliced Wasserstein distance", "SWD (normal)"),
}
TAUS = (0.05, 0.2, 1.0)


def measure() -> dict:
    """Measure tau -> the largest difference of a score's gradient: the library's loss and tau x NT-Xent, written
    out."""
    import jax
    import numpy as np

    from contrastive_jax.losses import decoupled_nt_xent

    def nt_xent(positive, negative, tau):
        scores = jax.numpy.append(negative, positive)
        return -tau * jax.nn.log_softmax(scores / tau)[-1]

    def generalized(positive, negative, tau):
        c = jax.nn.logsumexp(negative / tau) - positive / tau
        return decoupled_nt_xent(c, positive, tau, lambda_weight=tau)

    with jax.enable_x64(True):
        scores = np.random.default_rng(0).uniform(-1.0, 1.0, (1000, 65))
        found = {}
        for tau in TAUS:
            gradients = [
                jax.vmap(jax.grad(loss, (0, 1)), (0, 0, None))(scores[:, 0], scores[:, 1:], tau)
                for loss in (nt_xent, generalized)
            ]
            differences = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), *gradients)
            found[str(tau)] = float(max(differences))
        return found


def page(found: dict) -> list[str]:
    """Write the rows, and the identity."""
    rows = [
        (prior, term, f"`configs/intriguing_cifar10.py:loss={LOSSES[name]}`")
        for prior, (term, name) in PRIORS.items()
    ]
    return [
        *harness.markdown(["prior distribution", "distribution term", "config"], rows),
        "",
        "Largest difference of a gradient from tau times NT-Xent's at lambda = tau; 1,000 queries, 64 negatives:",
        "",
        *harness.markdown(["tau", "difference"], [(tau, f"{value:.1e}") for tau, value in found.items()]),
    ]


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed={"formulas": "the authors' notebook, where the scan has none"},
    claims=(
        Claim(
            "NT-Xent is the generalized loss with a logsumexp term and lambda = tau",
            "largest difference of a gradient, over tau",
            lambda found: list(found.values()),
            expects="within",
            margin=1e-9,
            by="formula",
        ),
    ),
    measure=measure,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
