"""Second critic, u of the Fenchel-Legendre bound: a network of what is compared.

A function takes the dtype to compute in and returns None, or a Flax linen module whose ``__call__(query, key, score)``
takes embeddings [B, V, D] of queries and of their positives, as they are compared, and the positives' scores over tau,
[B, V]; it returns u, [B, V]. Its parameters are called kernel (first drawn), scale (first 1) or bias (first 0),
whatever initializers the module names. B and V are 1 where their shapes are asked for.

The bound holds for any u. The best is the logarithm of a query's mean e^((s_j - s+) / tau) over negatives, so u
minimises the same loss as the encoder. ``optimizer.alternate=("critic",)`` updates them in turns.
Source: FlatNCE (Chen et al., 2021), appendix D, which does not print the networks; FLO (Guo et al., 2021).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from contrastive_jax.kinds import Count, checked
from contrastive_jax.models.heads import Head
from contrastive_jax.models.norm import Norm, norm

Array = jax.Array
UNREAD: Norm = norm()  # by a head without batch norm


class Pair(nn.Module):
    """u(x, y), a perceptron on both embeddings."""

    perceptron: Head

    def __call__(self, query: Array, key: Array, score: Array) -> Array:
        """Return [B, V] of two [B, V, D] and a [B, V]."""
        return self.perceptron(jnp.concatenate([query, key], axis=-1))[-1][..., 0]


class Baseline(nn.Module):
    """u(x, y) = s(x) - g(x, y), s a perceptron on the query and g the score over tau."""

    perceptron: Head

    def __call__(self, query: Array, key: Array, score: Array) -> Array:
        """Return [B, V] of two [B, V, D] and a [B, V]."""
        return self.perceptron(query)[-1][..., 0] - score


def none(dtype) -> None:
    """Return no second critic."""
    return None


@checked("critic")
def pair(dtype, *, hidden: Count = 256) -> Pair:
    """Return a free u(x, y), trained jointly with the score (FlatNCE, appendix D; FLO).

    Args:
      dtype: that it computes in.
      hidden: width of its hidden layer.
    """
    return Pair(_perceptron(dtype, hidden))


@checked("critic")
def baseline(dtype, *, hidden: Count = 256) -> Baseline:
    """Return u(x, y) = s(x) - g(x, y), the form that the best u has: the bound is TUBA's with baseline s.

    The paper prints g + s(x), with its sign of u reversed, and found it unstable.

    Args:
      dtype: that it computes in.
      hidden: width of its hidden layer.
    """
    return Baseline(_perceptron(dtype, hidden))


def _perceptron(dtype, hidden: int) -> Head:
    return Head((hidden, 1), "none", UNREAD, dtype)
