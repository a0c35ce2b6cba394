"""EqCo (Zhu et al. 2020), Theorem 2: the expected norm of a query's gradient has a bound without K (eq. 7).

    python -m experiments.eqco.theorem_2 run
    python -m experiments.eqco.theorem_2 render

With the margin the expectation over K negatives of |dL/dq| is at most 2 / tau (1 - s0 / (s0 + alpha E[s])), where s is
exp(q.k / tau) and keys have length 1 (proof: appendix A.1). Here negatives are drawn from two keys, so that the
expectation is an exact sum over how many of the K are the first: no chance is in these numbers.

The bound does not contain K; the norm below it may still change with K, which is Figure 4's question.
"""

import functools
import sys

from experiments import harness
from experiments.harness import Claim

KS = (1, 4, 16, 64, 256, 1024)
TAUS, ALPHAS = (0.05, 0.2, 1.0), (16.0, 256.0, 65536.0)
QUERIES, WIDTH = 300, 8


def measure() -> dict:
    """Measure K -> the mean and the largest of expected norm over bound, over queries, temperatures and alphas."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from scipy import stats

    from contrastive_jax.losses import eqco

    def loss(query, positive, keys, drawn, tau, alpha):  # ``drawn`` [2]: how often each key is a negative
        present = jnp.where(drawn > 0, jnp.log(jnp.maximum(drawn, 1)), -jnp.inf)
        c = jax.nn.logsumexp((keys @ query - query @ positive) / tau + present)
        return eqco(c, drawn.sum(), alpha=alpha)

    @functools.partial(jax.jit, static_argnums=5)
    def gradients(query, positive, keys, drawn, tau, alpha):
        one = functools.partial(jax.grad(loss), tau=tau, alpha=alpha)
        over_drawn = jax.vmap(one, (None, None, None, 0))
        return jax.vmap(over_drawn, (0, 0, 0, None))(query, positive, keys, drawn)

    rng = np.random.default_rng(0)
    query, positive, first, second = rng.normal(size=(4, QUERIES, WIDTH))
    positive, first = (near + rng.normal(size=(QUERIES, 1)) * 2 * query for near in (positive, first))
    query, positive, first, second = (
        x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, positive, first, second)
    )
    keys, share = np.stack([first, second], 1), rng.uniform(0.02, 0.98, QUERIES)
    found = {}
    with jax.enable_x64(True):
        for k in KS:
            firsts = np.arange(k + 1.0)
            chance = stats.binom.pmf(firsts, k, share[:, None])  # [queries, K + 1]
            ratios = []
            for tau in TAUS:
                own = np.exp(np.sum(query * positive, -1) / tau)
                others = np.exp(np.einsum("qkd,qd->qk", keys, query) / tau)
                mean = share * others[:, 0] + (1 - share) * others[:, 1]
                for alpha in ALPHAS:
                    drawn = jnp.stack([firsts, k - firsts], 1)
                    norms = jnp.linalg.norm(gradients(query, positive, keys, drawn, tau, alpha), axis=-1)
                    bound = 2 / tau * (1 - own / (own + alpha * mean))
                    ratios.append(np.sum(chance * np.asarray(norms), -1) / bound)
            found[str(k)] = {"mean": float(np.mean(ratios)), "largest": float(np.max(ratios))}
    return found


def page(found: dict) -> list[str]:
    """Write how near the expected norm comes to its bound, by K."""
    return [
        f"The expected norm over its bound, {QUERIES} queries at each tau of {TAUS} and alpha of {ALPHAS}:",
        "",
        *harness.markdown(
            ["K", "mean", "largest"],
            [(k, f"{at['mean']:.4f}", f"{at['largest']:.4f}") for k, at in found.items()],
        ),
    ]


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed={
        "queries, keys, tau, alpha, K": "random directions of 8 dimensions, near and far; the theorem is of all"
    },
    claims=(
        Claim(
            "The expected norm of the gradient has a bound without K (Theorem 2)",
            "largest expected norm over the bound, less 1, at each K",
            lambda found: [at["largest"] - 1 for at in found.values()],
            expects="below",
            by="formula",
        ),
    ),
    measure=measure,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
