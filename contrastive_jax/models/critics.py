"""Second critics, networks u of the Fenchel-Legendre bound.

A function takes the dtype of the computation and returns None, or a Flax linen module whose
``__call__(query, key, score)`` takes the compared embeddings [B, V, D] of queries and positives and the
positives' scores over tau, [B, V], and returns u, [B, V]. Its parameters must be named kernel (initially
random), scale (initially 1) or bias (initially 0); initializers of the module are ignored. B and V are 1 while
shapes are determined.

The bound holds for any u. The best u is the logarithm of a query's mean e^((s_j - s+) / tau) over negatives, so
u minimises the same loss as the encoder. ``optimizer.alternate=("critic",)`` updates them alternately.
Source: FlatNCE (Chen et al., 2021), appendix D, which does not print the networks; FLO (Guo et al., 2021).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from contrastive_jax.kinds import Count, checked
from contrastive_jax.models.heads import Head
from contrastive_jax.models.norm import Norm, norm

Array = jax.Array
UNREAD: Norm = norm()  # required by Head, unused without batch norm


class Pair(nn.Module):
    """Critic u(x, y), a perceptron on both embeddings."""

    perceptron: Head

    def __call__(self, query: Array, key: Array, score: Array) -> Array:
        """Return u [B, V] of embeddings [B, V, D] and scores [B, V]."""
        return self.perceptron(jnp.concatenate([query, key], axis=-1))[-1][..., 0]


class Baseline(nn.Module):
    """Critic u(x, y) = s(x) - g(x, y), s a perceptron on the query and g the score over tau."""

    perceptron: Head

    def __call__(self, query: Array, key: Array, score: Array) -> Array:
        """Return u [B, V] of embeddings [B, V, D] and scores [B, V]."""
        return self.perceptron(query)[-1][..., 0] - score


def none(dtype) -> None:
    """Return no second critic."""
    return None


@checked("critic")
def pair(dtype, *, hidden: Count = 256) -> Pair:
    """Return a free u(x, y), trained jointly with the score (FlatNCE, appendix D; FLO).

    Args:
      dtype: floating-point type of the computation.
      hidden: width of the critic's hidden layer.
    """
    return Pair(_perceptron(dtype, hidden))


@checked("critic")
def baseline(dtype, *, hidden: Count = 256) -> Baseline:
    """Return u(x, y) = s(x) - g(x, y), the form of the best u: TUBA's bound with baseline s.

    The paper has g + s(x), with the opposite sign of u, and found it unstable.

    Args:
      dtype: floating-point type of the computation.
      hidden: width of the critic's hidden layer.
    """
    return Baseline(_perceptron(dtype, hidden))


def _perceptron(dtype, hidden: int) -> Head:
    return Head((hidden, 1), "none", UNREAD, dtype)
