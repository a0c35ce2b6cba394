"""State of rules per example of the data set: arrays indexed by example id.

A step reads the rows of its batch before the comparison and writes them after it. The arrays are replicated on
all devices. If a batch contains an example twice, at the border of two epochs, both rows read the state before
the step, and the state of the later row is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.contrast.comparison import Comparison
from contrastive_jax.contrast.diagnostics import OUTCOMES as OF_BATCH
from contrastive_jax.contrast.diagnostics import query_kl_from_uniform
from contrastive_jax.contrast.normalizer import Normalizer
from contrastive_jax.contrast.temperature import SLOPES, Temperature
from contrastive_jax.sharding import replicate, rows_sharding
from contrastive_jax.types import Array, PyTree


class KeptNormalizer(NamedTuple):
    """A normalizer with its state over a run."""

    init: Callable[[], PyTree]
    # (state, ids [B], comparison, u of a second critic or None) -> (u [B, V] for the losses, next state)
    apply: Callable[[PyTree, Array, Comparison, Array | None], tuple[Array | None, PyTree]]
    divergence: Callable[[Comparison, Array | None], Array]  # (comparison, u) -> KL(p || uniform) [B, V]


class KeptTemperature(NamedTuple):
    """A temperature rule with its state over a run."""

    init: Callable[[], PyTree]
    read: Callable[[PyTree, Array], PyTree]  # (state, ids [B]) -> the state for the rule's ``value``
    outcome: Callable[[Comparison, Array | None], Any]  # (comparison, u) -> the outcome for ``update``
    update: Callable[..., PyTree]  # (state, ids, step, outcome, slopes of the loss) -> state


# Outcomes [B, V] of queries with negatives, for rules per example or query (``Temperature.reads``).
READABLE: dict[str, Callable[[Comparison, Array | None, KeptNormalizer], Array]] = {
    "kl_uniform": lambda comparison, u, normalizer: normalizer.divergence(comparison, u),
    "contrast": lambda comparison, u, normalizer: comparison.contrast(margin=False),
    "positive": lambda comparison, u, normalizer: comparison.raw_positive,
}


def keep_temperature(
    rule: Temperature, normalizer: KeptNormalizer, examples: int, directions: int, dtype: str = "float32"
) -> KeptTemperature:
    """Return a temperature rule with its state: one for the batch, or one for each example or each view."""
    if rule.reads == SLOPES:
        return KeptTemperature(
            rule.init,
            lambda state, ids: state,
            lambda comparison, u: (),
            lambda state, ids, step, outcome, slopes: rule.update(state, step, slopes),
        )
    if rule.per == "batch":
        return KeptTemperature(
            rule.init,
            lambda state, ids: state,
            lambda comparison, u: OF_BATCH[rule.reads](comparison, dtype),
            lambda state, ids, step, outcome, slopes=None: rule.update(state, step, outcome),
        )

    def outcome(comparison, u):
        some = comparison.count > 0
        value = READABLE[rule.reads](comparison, u, normalizer)
        if rule.per == "query":
            return value, some
        number = jnp.sum(some, axis=1, keepdims=True)
        total = jnp.sum(jnp.where(some, value, 0.0), axis=1, keepdims=True)
        return total / jnp.maximum(number, 1).astype(value.dtype), number > 0

    def update(state, ids, step, outcome, slopes=None):
        value, some = outcome
        rows = read(state, ids)
        return write(state, ids, rows, rule.update(rows, step, value), some)

    return KeptTemperature(lambda: first(rule.init(), rule.per, examples, directions), read, outcome, update)


def keep_normalizer(rule: Normalizer, examples: int, directions: int) -> KeptNormalizer:
    """Return a normalizer with its state: none, or one for each example or each view."""
    if rule.per == "none":
        return KeptNormalizer(
            rule.init,
            lambda state, ids, comparison, u: (u, state),
            lambda comparison, u: query_kl_from_uniform(comparison),
        )

    def offset(comparison):
        logit = comparison.positive / comparison.temperature
        return logit if rule.with_positive else jnp.zeros_like(logit)

    def log_mean(comparison):
        c = comparison.contrast(margin=False)
        return c - jnp.log(jnp.maximum(comparison.count, 1).astype(c.dtype)) + offset(comparison)

    def apply(state, ids, comparison, u):
        rows, some = read(state, ids), comparison.count > 0
        log_u, new = jax.lax.stop_gradient(rule.update(rows, log_mean(comparison), some))
        some = some if rule.per == "query" else jnp.any(some, axis=1, keepdims=True)
        return log_u - offset(comparison), write(state, ids, rows, new, some)

    def divergence(comparison, u):
        """Return r E_p[x] - log u, r = e^(now - log u): minus d(tau log u) / dtau at a fixed old u."""
        some, place = comparison.count > 0, comparison.multiples.index(1.0)
        above = jnp.where(some, comparison.negatives.mean[place] - comparison.positive, 0.0)
        logit = above / comparison.temperature + offset(comparison)
        log_u = u + offset(comparison)
        return jnp.where(some, jnp.exp(log_mean(comparison) - log_u) * logit - log_u, 0.0)

    return KeptNormalizer(lambda: first(rule.init(), rule.per, examples, directions), apply, divergence)


def first(state: PyTree, per: str, examples: int, directions: int) -> PyTree:
    """Return one example's state repeated for all: leaves [examples, 1], or [examples, V] per query."""
    width = directions if per == "query" else 1
    return jax.tree.map(lambda x: jnp.full((examples, width), x), state)


def read(state: PyTree, ids: Array) -> PyTree:
    """Return the rows of the examples ``ids`` [B], sharded by rows."""
    return jax.tree.map(
        lambda x: x.at[ids].get(out_sharding=rows_sharding(), mode="promise_in_bounds"), state
    )


def write(state: PyTree, ids: Array, before: PyTree, after: PyTree, some: Array) -> PyTree:
    """Return the state with new rows of the examples ``ids`` [B]: ``after`` where ``some``, else ``before``."""
    ids = replicate(ids)
    order = jnp.argsort(ids)  # stable: equal ids stay in the order of their rows
    last = jnp.append(ids[order[1:]] != ids[order[:-1]], True)

    def put(whole, before, after):
        rows = replicate(jnp.where(some, after, before).astype(whole.dtype))
        # Each place is written once, because writes on a GPU have no order. Out-of-range places are dropped.
        place = jnp.where(last, ids[order], whole.shape[0] + jnp.arange(ids.shape[0], dtype=ids.dtype))
        return whole.at[place].set(rows[order], mode="drop", unique_indices=True)

    return jax.tree.map(put, state, before, after)
