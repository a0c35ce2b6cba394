"""Targets, the source of the keys: the online network or its moving average.

A target is an ``(init, apply)`` pair. ``shared`` is whether keys are the online network's outputs
(every view is then encoded once).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from contrastive_jax.kinds import Fraction, checked
from contrastive_jax.types import Array, Outputs, PyTree


class Target(NamedTuple):
    """Source of keys: ``init(params, stats) -> state``, ``apply(state, online, params, views, step, rng)``."""

    init: Callable[[PyTree, PyTree], PyTree]
    apply: Callable[..., tuple[Array, PyTree]]  # -> keys [B, W, D], not normalised, and state
    shared: bool


def online(network_apply: Callable, total_steps: int, norm_groups: int) -> Target:
    """Keys are the online network's projections and carry gradients (SimCLR)."""

    def apply(state, online: Outputs, params, views, step, rng):
        return online.projection, state

    return Target(lambda params, stats: (), apply, shared=True)


@checked("target")
def ema(
    network_apply: Callable,
    total_steps: int,
    norm_groups: int,
    *,
    decay: Fraction = 0.99,
    schedule: Literal["constant", "cosine"] = "constant",
    shuffle: bool = False,
) -> Target:
    """Keys come from an exponential moving average of the parameters and carry no gradient.

    The average includes the queries' current weights before keys are computed (MoCo, He et al.
    2020). Its batch-norm statistics come from its own forward passes and are never averaged.

    Args:
      network_apply: ``Network.apply``.
      total_steps: number of training steps, for ``schedule="cosine"``.
      decay: m in [0, 1]; 0.999 in MoCo, 0.99 to 0.996 at the start of BYOL.
      schedule: ``constant``, or ``cosine``: 1 - (1 - m) (cos(pi t / T) + 1) / 2 (BYOL, Grill et al. 2020).
      norm_groups: number of batch-norm groups, for ``shuffle``.
      shuffle: MoCo's shuffling BN: keys are normalised in groups drawn at random at each step, so
        that a query and its positive share no statistics. Only group ids are drawn; images stay in place.
    """
    if shuffle and norm_groups < 2:
        raise ValueError("target.shuffle is True; it needs norm.scope=groups with norm.groups of at least 2.")

    def decay_at(step: Array) -> Array:
        progress = jnp.minimum(step / total_steps, 1.0)
        rising = 1.0 - (1.0 - decay) * (jnp.cos(jnp.pi * progress) + 1.0) / 2.0
        return rising if schedule == "cosine" else jnp.asarray(decay)

    def init(params, stats):
        # Copies, since a donated state must not hold one buffer twice.
        return {"params": jax.tree.map(jnp.copy, params), "stats": jax.tree.map(jnp.copy, stats)}

    def apply(state, online, params, views, step, rng):
        rows = views.shape[0]
        groups = jax.random.permutation(rng, rows) // (rows // norm_groups) if shuffle else None
        params = jax.lax.stop_gradient(params)
        slow = optax.incremental_update(params, state["params"], 1.0 - decay_at(step))
        slow = jax.tree.map(lambda new, old: new.astype(old.dtype), slow, state["params"])
        outputs, stats = network_apply(slow, state["stats"], views, train=True, groups=groups)
        return jax.lax.stop_gradient(outputs.projection), {"params": slow, "stats": stats}

    return Target(init, apply, shared=False)
