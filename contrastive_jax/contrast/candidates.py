"""Candidates for negatives: other examples of the batch (both views or one), or a queue.

A source of candidates is an ``(init, apply)`` pair. ``apply(state, keys, positive_keys, group, rng)``
returns one pool per view that is a positive, and the next state. ``keys`` [B, W, D] are all keys of the step,
``positive_keys`` [B, P, D] the views among them that are positives: for two views both, the second view first,
or with directions=one_way the second alone. Embeddings are gathered across devices only in this module.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.contrast.similarity import normalize
from contrastive_jax.kinds import Count, checked
from contrastive_jax.sharding import replicate
from contrastive_jax.types import Array, Pool, PyTree

NO_GROUP = jnp.iinfo(jnp.int32).min  # not -1, which a data set may have as a group


class Candidates(NamedTuple):
    """Source of candidates: ``init(rng, width) -> state``, ``apply(...) -> (pools, state)``; see the module."""

    init: Callable[[Array, int], PyTree]
    apply: Callable[..., tuple[list[Pool], PyTree]]
    same_group: str  # "exclude" or "keep" candidates of the query's own group
    most: Callable[[int], int]  # W -> number of candidates per query when all groups differ
    # A query's pool: its positive's, in the order of positive_keys, its own view's ("query"), or its pair's ("pair").
    by: str = "positive"


def _pool(keys: Array, group: Array) -> Pool:
    """Return a batch's keys [B, W, D] as M = B W candidates."""
    keys, group = replicate(keys), replicate(group)
    return Pool(key=keys.reshape(-1, keys.shape[-1]), group=jnp.repeat(group, keys.shape[1]))


def both_views(batch_size: int, directions: int) -> Candidates:
    """All views of all other examples: 2 (B - 1) negatives (SimCLR, Chen et al. 2020), of W views W (B - 1).

    A target network with directions=one_way has no keys of the first view: (W - 1) (B - 1) negatives.
    """

    def apply(state, keys, positive_keys, group, rng):
        return [_pool(keys, group)] * positive_keys.shape[1], state

    return Candidates(lambda rng, width: (), apply, "exclude", lambda views: views * (batch_size - 1))


def other_view(batch_size: int, directions: int) -> Candidates:
    """All other examples in the positive's view: B - 1 negatives (MACL, Dual temperature)."""

    def apply(state, keys, positive_keys, group, rng):
        keys, group = replicate(positive_keys), replicate(group)
        return [Pool(key=keys[:, v], group=group) for v in range(keys.shape[1])], state

    return Candidates(lambda rng, width: (), apply, "exclude", lambda views: batch_size - 1)


def own_view(batch_size: int, directions: int) -> Candidates:
    """All other examples in the query's own view: B - 1 negatives (DHEL, Koromilas et al. 2024).

    With the loss ``dcl`` it is DHEL. The authors' code with ``include_augs=True``, its default, is another loss: it
    has one positive for both views' sums of negatives; the sum of DCL over both views has two.
    Needs keys of the queries' views, so a target network with directions=one_way is refused, and so are local
    views.
    """

    def apply(state, keys, positive_keys, group, rng):
        keys, group = replicate(keys), replicate(group)
        return [Pool(key=keys[:, v], group=group) for v in range(positive_keys.shape[1])], state

    return Candidates(lambda rng, width: (), apply, "exclude", lambda views: batch_size - 1, by="query")


@checked("candidates")
def queue(
    batch_size: int, directions: int, *, size: Count, same_group: Literal["exclude", "keep"] = "exclude"
) -> Candidates:
    """The last ``size`` keys of earlier steps, first in, first out (MoCo, He et al. 2020).

    A step's keys enter after its queries are compared with the queue. The initial keys are random
    unit vectors without a group. A queue shorter than a step's keys holds a random subset of the
    last step's keys: EqCo's few negatives (Zhu et al. 2020, section 2.3).

    Args:
      batch_size: number of examples per step.
      directions: number of views of each example that enter, those that are positives.
      size: queue length K; a multiple of the number of new keys per step, or smaller.
      same_group: exclude: earlier views of the query's own example or group are no negatives; keep: they are,
        as published.
    """
    entering = batch_size * directions
    if size > entering and size % entering:
        raise ValueError(
            f"candidates.size is {size}; it must be a multiple of the {entering} keys per step"
            f" ({batch_size} examples, {directions} direction{'s' * (directions > 1)}), or less than"
            f" {entering}."
        )

    def init(rng, width):
        key = normalize(jax.random.normal(rng, (size, width)))
        return {"key": key, "group": jnp.full((size,), NO_GROUP, jnp.int32), "next": jnp.zeros((), jnp.int32)}

    def apply(state, keys, positive_keys, group, rng):
        pool = Pool(key=jax.lax.stop_gradient(state["key"]), group=state["group"])
        new = jax.lax.stop_gradient(_pool(positive_keys, group))
        if size < entering:
            chosen = jax.random.permutation(rng, entering)[:size]
            new = Pool(key=new.key[chosen], group=new.group[chosen])
        slot = state["next"]
        state = {
            "key": jax.lax.dynamic_update_slice(
                state["key"], new.key.astype(state["key"].dtype), (slot, jnp.zeros_like(slot))
            ),
            "group": jax.lax.dynamic_update_slice(state["group"], new.group, (slot,)),
            "next": (slot + new.group.shape[0]) % size,
        }
        return [pool] * positive_keys.shape[1], state

    return Candidates(init, apply, same_group, lambda views: size)
