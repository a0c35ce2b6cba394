"""Micro-batches: the network runs on parts of a batch, the loss on the whole batch, to save memory.

Gradient accumulation would restrict the negatives to one part. Here every part first passes through the
network, the loss is computed on all embeddings, and the backward pass runs each part again. The gradient is
that of the full batch with the parts as batch-norm groups.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from contrastive_jax import sharding
from contrastive_jax.types import Array, Outputs, PyTree


def in_parts(apply: Callable, parts: int) -> Callable:
    """Return ``Network.apply`` for a training step that holds the activations of one part at a time.

    Example i is in part ``i mod parts``, so that no example leaves its device. Each part has its own batch-norm
    statistics; the new running statistics are the mean of the parts' updates (for whole numbers, such as a
    count of steps, the last part's update).

    Args:
      apply: ``(params, stats, views [B, W, h, w, c], *, train) -> (Outputs, stats)``.
      parts: n, a divisor of B; B / n a multiple of the number of devices.
    """

    def apply_parts(
        params: PyTree, stats: PyTree, views: Array, *, train: bool, groups: Array | None = None
    ) -> tuple[Outputs, PyTree]:
        if groups is not None:
            raise ValueError(
                "group ids cannot be passed with micro-batches, which are norm groups themselves."
            )

        @jax.checkpoint  # the backward pass keeps only a part's images
        def part(views):
            return apply(params, stats, views, train=train)

        _, (outputs, new) = jax.lax.scan(
            lambda _, views: ((), part(views)), (), sharding.in_parts(views, parts)
        )
        return sharding.joined(outputs), jax.tree.map(_of_all, new) if train else stats

    return apply_parts


def _of_all(statistics: Array) -> Array:
    """Return the mean over parts ``[n, ...]``; for whole numbers (a count of steps) the last part's value."""
    return statistics.mean(0) if jnp.issubdtype(statistics.dtype, jnp.inexact) else statistics[-1]
