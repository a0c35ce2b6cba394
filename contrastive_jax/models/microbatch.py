"""Large batches in small memory: the network in parts, the loss over all of them.

Accumulated gradients would shrink the negatives to a part's. Here every part passes through the network
first, the loss sees all embeddings, and the backward pass runs each part again: the gradient is that of the full
batch, whose batch norm had the parts for groups.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from contrastive_jax import sharding
from contrastive_jax.types import Array, Outputs, PyTree


def in_parts(apply: Callable, parts: int) -> Callable:
    """Return ``Network.apply`` for a training step, holding the activations of one part at a time.

    Example i is in part ``i mod parts``, so that no example leaves its device. Batch-norm statistics are a part's
    own; the new running statistics are the mean over parts of what each would have made of the old (of whole numbers,
    as a count of steps is, what the last part makes).

    Args:
      apply: ``(params, stats, views [B, W, h, w, c], *, train) -> (Outputs, stats)``.
      parts: n, a divisor of B; B / n a multiple of the number of devices.
    """

    def apply_parts(
        params: PyTree, stats: PyTree, views: Array, *, train: bool, groups: Array | None = None
    ) -> tuple[Outputs, PyTree]:
        if groups is not None:
            raise ValueError("micro-batches are norm groups themselves; others cannot be given.")

        @jax.checkpoint  # nothing of a part is kept for the backward pass but its images
        def part(views):
            return apply(params, stats, views, train=train)

        _, (outputs, new) = jax.lax.scan(
            lambda _, views: ((), part(views)), (), sharding.in_parts(views, parts)
        )
        return sharding.joined(outputs), jax.tree.map(_of_all, new) if train else stats

    return apply_parts


def _of_all(statistics: Array) -> Array:
    """Return the mean over parts ``[n, ...]``; of whole numbers (a count of steps) the last part's."""
    return statistics.mean(0) if jnp.issubdtype(statistics.dtype, jnp.inexact) else statistics[-1]
