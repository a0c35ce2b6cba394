"""Moving averages u of each query's normalizer: the mean of exponentiated scores over more negatives than a batch has.

A rule keeps log u for each example, or for each of its views, of which the batch's own value is

    now = log mean_j e^(s_j / tau - s+ / tau + o)      (j over the negatives; o is s+ / tau, or 0)

Before the loss this value enters the average. Losses read ``log u - o``, with log u held constant, and so do the
temperatures that move by query. :func:`contrastive_jax.losses.fenchel_legendre` is least at ``now - o``; with
r = e^(now - log u) its gradient is r d logsumexp_j(s_j / tau) - ds+ / tau where o is s+ / tau (minus TUBA), and r dc
where o is 0. At its first visit an example has no average, and takes the batch's own value. Of weight gamma in the
average, a value is at most 1 / gamma times that average: r does not overflow.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.kinds import PositiveFraction, checked
from contrastive_jax.types import Array, PyTree

UNMET = -1e30  # log u before an example's first visit; -inf would be refused by a checkpoint


class Normalizer(NamedTuple):
    """A rule for u; see the module.

    ``init() -> state`` of one example; ``update(state, now, some) -> (log u, state)``, with the states of a batch,
    leaves [B, 1] (``per`` example) or [B, V] (``per`` query), the queries' values ``now`` [B, V] in this batch, and
    which queries have negatives, ``some`` [B, V]; log u is [B, V].
    """

    init: Callable[[], PyTree]
    update: Callable[[PyTree, Array, Array], tuple[Array, PyTree]]
    with_positive: bool  # o is s+ / tau: scores are taken as they are; else 0: relative to the positive's
    per: Literal["none", "example", "query"]


def none() -> Normalizer:
    """No average: u is the second critic's, if there is one."""
    return Normalizer(lambda: (), lambda state, now, some: (now, state), False, "none")


@checked("normalizer")
def sogclr(*, gamma: PositiveFraction = 0.9) -> Normalizer:
    """One u for each example, of ``mean_j e^(s_j / tau)``, the mean over its views (SogCLR, Yuan et al. 2022).

    A view's query is weighed by the average that its own value enters; the mean over the views is kept (LibAUC's code,
    which after its first epoch starts a new example from 0, not from its own value).

    Args:
      gamma: weight of the batch's value in the average; 1 is the batch's alone.
    """

    def update(state, now, some):
        log_u = _averaged(state["log_u"], now, gamma)
        number = jnp.maximum(jnp.sum(some, axis=1, keepdims=True), 1).astype(now.dtype)
        least = jnp.where(some, log_u, -jnp.inf)
        mean = jax.nn.logsumexp(least, axis=1, keepdims=True) - jnp.log(number)
        return log_u, {"log_u": mean}

    return Normalizer(_nothing, update, True, "example")


@checked("normalizer")
def fast_clip(*, gamma: PositiveFraction = 0.9) -> Normalizer:
    """One u for each view of an example, of ``mean_j e^((s_j - s+) / tau)`` (FastCLIP, Wei et al. 2024).

    Args:
      gamma: weight of the batch's value in the average; 1 is the batch's alone.
    """

    def update(state, now, some):
        log_u = _averaged(state["log_u"], now, gamma)
        return log_u, {"log_u": log_u}

    return Normalizer(_nothing, update, False, "query")


def _nothing() -> PyTree:
    return {"log_u": jnp.asarray(UNMET)}


def _averaged(log_u: Array, now: Array, gamma: float) -> Array:
    """Return log((1 - gamma) u + gamma e^now); ``now`` where there is no u."""
    stays = math.log1p(-gamma) if gamma < 1 else -math.inf
    return jnp.where(log_u <= UNMET, now, jnp.logaddexp(log_u + stays, now + math.log(gamma)))
