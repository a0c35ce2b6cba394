"""Moving averages u of each query's normalizer, the mean exponentiated score over its negatives.

The average covers more negatives than one batch contains. A rule keeps log u for each example, or for each of
its views. The value in a batch is

    now = log mean_j e^(s_j / tau - s+ / tau + o)      (j over the negatives; o is s+ / tau, or 0)

It enters the average before the loss is computed. Losses, and temperatures per example or query, read
``log u - o`` with log u held constant. :func:`contrastive_jax.losses.fenchel_legendre` has its minimum at ``now
- o``. With r = e^(now - log u), its gradient is r d logsumexp_j(s_j / tau) - ds+ / tau if o is s+ / tau (minus
TUBA), and r dc if o is 0. At an example's first visit the average is the value in the batch. A value has weight
gamma in its average, so r is at most 1 / gamma and does not overflow.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.kinds import PositiveFraction, checked
from contrastive_jax.types import Array, PyTree

UNMET = -1e30  # log u before an example's first visit; checkpoints refuse -inf


class Normalizer(NamedTuple):
    """A rule for u; see the module.

    ``init() -> state`` returns the state of one example. ``update(state, now, some) -> (log u, state)`` takes
    the states of a batch, with leaves [B, 1] (``per`` example) or [B, V] (``per`` query), the queries' values
    ``now`` [B, V] in this batch, and the mask ``some`` [B, V] of queries with negatives; log u is [B, V].
    """

    init: Callable[[], PyTree]
    update: Callable[[PyTree, Array, Array], tuple[Array, PyTree]]
    with_positive: bool  # o is s+ / tau (scores unchanged), else 0 (scores relative to the positive's)
    per: Literal["none", "example", "query"]


def none() -> Normalizer:
    """No average: u is the output of the second critic, if there is one."""
    return Normalizer(lambda: (), lambda state, now, some: (now, state), False, "none")


@checked("normalizer")
def sogclr(*, gamma: PositiveFraction = 0.9) -> Normalizer:
    """One u for each example, of ``mean_j e^(s_j / tau)``, the mean over its views (SogCLR, Yuan et al. 2022).

    Each view's query is weighted by the average that contains its own value; the mean over the views is kept.
    This is LibAUC's code, except that the code starts an example that is new after the first epoch from 0.

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

    gamma is constant; FastCLIP lowers it during the run, by a cosine.

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
    """Return log((1 - gamma) u + gamma e^now), or ``now`` at the first visit."""
    stays = math.log1p(-gamma) if gamma < 1 else -math.inf
    return jnp.where(log_u <= UNMET, now, jnp.logaddexp(log_u + stays, now + math.log(gamma)))
