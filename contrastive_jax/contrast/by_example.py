"""State that a rule keeps for each example of the data: arrays whose row is the example's id.

A step reads the rows of its batch before it compares, and writes them after. The arrays are on every device. Where a
batch has an example twice, at the border of two epochs, both of its rows read the state before the step, and that of
the later row is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.contrast.comparison import Comparison
from contrastive_jax.contrast.diagnostics import OUTCOMES, query_kl_from_uniform
from contrastive_jax.contrast.normalizer import Normalizer
from contrastive_jax.contrast.temperature import Temperature
from contrastive_jax.sharding import replicate, rows_sharding
from contrastive_jax.types import Array, PyTree


class KeptNormalizer(NamedTuple):
    """A normalizer over a run."""

    init: Callable[[], PyTree]
    # (state, ids [B], comparison, u of a second critic) -> (u [B, V] that losses read, next state)
    apply: Callable[[PyTree, Array, Comparison, Array | None], tuple[Array | None, PyTree]]
    divergence: Callable[[Comparison, Array | None], Array]  # KL(p || uniform) [B, V], by that u


class KeptTemperature(NamedTuple):
    """A temperature rule over a run."""

    init: Callable[[], PyTree]
    read: Callable[[PyTree, Array], PyTree]  # (state, ids [B]) -> the state that the rule's value reads
    outcome: Callable[[Comparison, Array | None], Any]  # (comparison, u) -> what the rule reads
    update: Callable[[PyTree, Array, Array, Any], PyTree]  # (state, ids, step, outcome) -> state


# What a temperature rule of each query may read (``Temperature.reads``), [B, V]; of queries with negatives.
READABLE: dict[str, Callable[[Comparison, Array | None, KeptNormalizer], Array]] = {
    "kl_uniform": lambda comparison, u, normalizer: normalizer.divergence(comparison, u),
    "contrast": lambda comparison, u, normalizer: comparison.contrast(margin=False),
    "positive": lambda comparison, u, normalizer: comparison.raw_positive,
}


def keep_temperature(
    rule: Temperature, normalizer: KeptNormalizer, examples: int, directions: int, dtype: str = "float32"
) -> KeptTemperature:
    """Return a rule's state over a run: the rule's own, or one for each of so many examples or of their views."""
    if rule.per == "batch":
        return KeptTemperature(
            rule.init,
            lambda state, ids: state,
            lambda comparison, u: OUTCOMES[rule.reads](comparison, dtype),
            lambda state, ids, step, outcome: rule.update(state, step, outcome),
        )

    def outcome(comparison, u):
        some = comparison.count > 0
        value = READABLE[rule.reads](comparison, u, normalizer)
        if rule.per == "query":
            return value, some
        number = jnp.sum(some, axis=1, keepdims=True)
        total = jnp.sum(jnp.where(some, value, 0.0), axis=1, keepdims=True)
        return total / jnp.maximum(number, 1).astype(value.dtype), number > 0

    def update(state, ids, step, outcome):
        value, some = outcome
        rows = read(state, ids)
        return write(state, ids, rows, rule.update(rows, step, value), some)

    return KeptTemperature(lambda: first(rule.init(), rule.per, examples, directions), read, outcome, update)


def keep_normalizer(rule: Normalizer, examples: int, directions: int) -> KeptNormalizer:
    """Return a normalizer's state over a run: one for each of so many examples, or for each of their views."""
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
        """Return r E_p[x] - log u, r = e^(now - log u): minus the derivative of tau log u in tau, the old u held."""
        some, place = comparison.count > 0, comparison.multiples.index(1.0)
        above = jnp.where(some, comparison.negatives.mean[place] - comparison.positive, 0.0)
        logit = above / comparison.temperature + offset(comparison)
        log_u = u + offset(comparison)
        return jnp.where(some, jnp.exp(log_mean(comparison) - log_u) * logit - log_u, 0.0)

    return KeptNormalizer(lambda: first(rule.init(), rule.per, examples, directions), apply, divergence)


def first(state: PyTree, per: str, examples: int, directions: int) -> PyTree:
    """Return one example's state for all: leaves [examples, 1], or [examples, V] where ``per`` is query."""
    width = directions if per == "query" else 1
    return jax.tree.map(lambda x: jnp.full((examples, width), x), state)


def read(state: PyTree, ids: Array) -> PyTree:
    """Return the rows of the examples ``ids`` [B], laid out as these are."""
    return jax.tree.map(
        lambda x: x.at[ids].get(out_sharding=rows_sharding(), mode="promise_in_bounds"), state
    )


def write(state: PyTree, ids: Array, before: PyTree, after: PyTree, some: Array) -> PyTree:
    """Return the state with the rows ``after`` of examples ``ids`` [B] where ``some``, else with those ``before``."""
    ids = replicate(ids)
    order = jnp.argsort(ids)  # stable: equal ids stay in the order of their rows
    last = jnp.append(ids[order[1:]] != ids[order[:-1]], True)

    def put(whole, before, after):
        rows = replicate(jnp.where(some, after, before).astype(whole.dtype))
        # No place is written to twice: a GPU keeps no order of writes. Those beyond the last place are dropped.
        place = jnp.where(last, ids[order], whole.shape[0] + jnp.arange(ids.shape[0], dtype=ids.dtype))
        return whole.at[place].set(rows[order], mode="drop", unique_indices=True)

    return jax.tree.map(put, state, before, after)
