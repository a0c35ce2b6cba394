"""Unit length, uniformity and effective ranks, each defined once: for losses, a step's diagnostics and evaluators.

Arrays are JAX's or NumPy's, and each is computed with by its own library, in its own precision: a step has batches on
devices in float32, an evaluation a whole set in float64. How the sums over pairs are made is the caller's affair.
"""

import jax
import numpy as np

from contrastive_jax.types import Array


def unit(rows: Array) -> Array:
    """Bring rows to length 1 along the last axis, whatever finite length they have: that of a loss, differentiable.

    A row whose largest entry is below the least normal number (1.2e-38 in float32, float16's 6e-8 is above) is a zero
    row: it stays 0, and its gradient is 0, as it points nowhere. Of all others the gradient is the true one, of size
    1 / length, as far as the type holds that.

    Args:
      rows: [..., D], floating; JAX's computes in float32 at least.
    """
    rows, zero = in_range(rows)
    library = _library(rows)
    squares = library.sum(rows * rows, axis=-1, keepdims=True)
    squares = library.where(zero, 1.0, squares)
    return rows * (jax.lax.rsqrt(squares) if isinstance(rows, jax.Array) else 1.0 / np.sqrt(squares))


def directions(rows: Array) -> Array:
    """Divide rows [..., D] by their length: :func:`unit`, rounded as evaluators have it, which take no gradient."""
    rows, zero = in_range(rows)
    library = _library(rows)
    length = library.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / library.where(zero, 1.0, length)


def in_range(rows: Array, axis: int | None = -1) -> tuple[Array, Array]:
    """Return rows times a power of two such that squares neither over- nor underflow, and which of them are zero rows.

    The power is 1 / that nearest to a row's largest entry, and constant: neither a quotient of rows nor its gradient
    knows of it. Multiplication by it is exact, so that ordinary rows keep their bits.

    Args:
      rows: [..., D], floating; half precision becomes float32.
      axis: over which they are scaled together; None: all.
    """
    library = _library(rows)
    rows = rows.astype(library.promote_types(rows.dtype, np.float32))
    info = library.finfo(rows.dtype)
    constant = jax.lax.stop_gradient(rows) if isinstance(rows, jax.Array) else rows
    largest = library.max(library.abs(constant), axis=axis, keepdims=True)
    zero = largest < info.tiny  # a row with NaN is none
    return library.where(zero, 0.0, rows * power_of_two(largest)), zero


def power_of_two(largest: Array) -> Array:
    """Return the power of two that brings what is at least 0 to about 1; where that is 0, the greatest."""
    library = _library(largest)
    info = library.finfo(largest.dtype)
    # At most 2^126, whose inverse is a normal number; devices flush those that are not.
    inside = library.clip(largest, info.tiny, 0.25 / info.tiny)
    if isinstance(largest, jax.Array):
        return 1.0 / jax.lax.reduce_precision(inside, info.nexp, 0)
    return 1.0 / np.ldexp(np.ones_like(inside), np.frexp(inside)[1] - 1)


def kernel_sums(squared: Array, counted: Array, t: float) -> Array:
    """Return each row's logarithm of the sum of ``exp(-t ||x - y||^2)`` over the pairs that count.

    Args:
      squared: ``||x - y||^2``, [..., n, m].
      counted: whether the pair counts, [n, m].
      t: the kernel's inverse squared width.

    Returns:
      [..., n]
    """
    return _logsumexp(_library(squared).where(counted, -t * squared, -float("inf")))


def uniformity(sums: Array, pairs: int) -> Array:
    """Return ``log mean exp(-t ||x - y||^2)`` over the pairs: of rows' :func:`kernel_sums` [..., n] -> [...].

    Source: Wang & Isola (2020), uniformity.

    Args:
      sums: of all rows.
      pairs: how many were summed, in all rows together.
    """
    library = _library(sums)
    return _logsumexp(sums) - library.log(library.asarray(pairs, dtype=sums.dtype))


def participation_ratio(gram: Array, least: float = 0.0) -> Array:
    """Return (tr G)^2 / tr(G^2) of a Gram matrix of centred rows: in how many directions they vary, from 1 to its side.

    The participation ratio of the spectrum, without eigenvalues. 0 where the trace is not above ``least``.
    """
    library = _library(gram)
    trace = library.trace(gram)
    varies = trace > least
    share = gram / library.where(varies, trace, 1.0)
    return library.where(varies, 1.0 / library.where(varies, library.sum(share * share), 1.0), 0.0)


def spectral_entropy_rank(values: Array, eps: float = 0.0) -> Array:
    """Return exp of the entropy of singular values [r] over their sum: 0 where all are 0.

    Source: RankMe (Garrido et al., 2023), equation 1, which adds ``eps`` = 1e-7 to each share.
    """
    library = _library(values)
    total = library.sum(values)
    some = total > 0
    share = values / library.where(some, total, 1.0) + eps
    entropy = -library.sum(share * library.log(library.where(share > 0, share, 1.0)))
    return library.where(some, library.exp(entropy), 0.0)


def _library(array: Array):
    return array.__array_namespace__()  # numpy or jax.numpy


def _logsumexp(array: Array) -> Array:
    if isinstance(array, jax.Array):
        return jax.nn.logsumexp(array, axis=-1)
    from scipy.special import logsumexp

    return logsumexp(array, axis=-1)
