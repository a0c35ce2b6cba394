"""Unit length, uniformity and effective rank, shared by losses, training metrics and evaluators.

JAX and NumPy arrays are computed by their own library in their own precision: training uses float32 batches on
devices, evaluation whole data sets in float64. Callers sum over pairs.
"""

import jax
import numpy as np

from contrastive_jax.types import AnyArray, Array


def unit(rows: Array) -> Array:
    """Normalize rows of any finite length to length 1 along the last axis; differentiable, for losses.

    A row whose largest entry is below the smallest normal number (1.2e-38 in float32; float16's 6e-8 is above
    it) is a zero row: it has no direction, so it stays 0, with gradient 0. All other rows have the exact
    gradient, of size 1 / length, within the range of the type.

    Args:
      rows: [..., D], floating; computed in float32 at least.
    """
    rows, zero = in_range(rows)
    library = _library(rows)
    squares = library.sum(rows * rows, axis=-1, keepdims=True)
    squares = library.where(zero, 1.0, squares)
    return rows * (jax.lax.rsqrt(squares) if isinstance(rows, jax.Array) else 1.0 / np.sqrt(squares))


def directions(rows: AnyArray) -> AnyArray:
    """Divide rows [..., D] by their length: :func:`unit` for evaluators, with other rounding, no gradient."""
    rows, zero = in_range(rows)
    library = _library(rows)
    length = library.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / library.where(zero, 1.0, length)


def in_range(rows: AnyArray, axis: int | None = -1) -> tuple[AnyArray, AnyArray]:
    """Return rows times a power of two, so that squares neither over- nor underflow, and a mask of zero rows.

    The power brings a row's largest entry to about 1 and is constant in the gradient, so it cancels in
    quotients of rows and in their gradients. Multiplication by it is exact: ordinary rows keep their bits.

    Args:
      rows: [..., D], floating; half precision becomes float32.
      axis: axis with one common power; None: one power for the whole array.
    """
    library = _library(rows)
    rows = rows.astype(library.promote_types(rows.dtype, np.float32))
    info = library.finfo(rows.dtype)
    constant = jax.lax.stop_gradient(rows) if isinstance(rows, jax.Array) else rows
    largest = library.max(library.abs(constant), axis=axis, keepdims=True)
    zero = largest < info.tiny  # False for a row with NaN
    return library.where(zero, 0.0, rows * power_of_two(largest)), zero


def power_of_two(largest: AnyArray) -> AnyArray:
    """Return the power of two that brings a value of at least 0 to about 1; for 0, the largest such power."""
    library = _library(largest)
    info = library.finfo(largest.dtype)
    # At most 2^126, whose inverse is a normal number; devices flush subnormal numbers to 0.
    inside = library.clip(largest, info.tiny, 0.25 / info.tiny)
    if isinstance(largest, jax.Array):
        return 1.0 / jax.lax.reduce_precision(inside, info.nexp, 0)
    return 1.0 / np.ldexp(np.ones_like(inside), np.frexp(inside)[1] - 1)


def kernel_sums(squared: AnyArray, counted: AnyArray, t: float) -> AnyArray:
    """Return each row's logarithm of the sum of ``exp(-t ||x - y||^2)`` over its counted pairs.

    Args:
      squared: ``||x - y||^2``, [..., n, m].
      counted: mask of the counted pairs, [n, m].
      t: the kernel's inverse squared width.

    Returns:
      [..., n]
    """
    return _logsumexp(_library(squared).where(counted, -t * squared, -float("inf")))


def uniformity(sums: AnyArray, pairs: int) -> AnyArray:
    """Return ``log mean exp(-t ||x - y||^2)`` over pairs from rows' :func:`kernel_sums`, [..., n] -> [...].

    Source: Wang & Isola (2020), uniformity.

    Args:
      sums: :func:`kernel_sums` of all rows.
      pairs: total number of summed pairs.
    """
    library = _library(sums)
    return _logsumexp(sums) - library.log(library.asarray(pairs, dtype=sums.dtype))


def participation_ratio(gram: AnyArray, least: float = 0.0) -> AnyArray:
    """Return (tr G)^2 / tr(G^2) of a Gram matrix of centred rows, an effective rank from 1 to its side.

    It is the participation ratio of the spectrum, computed without eigenvalues; 0 if the trace is at most
    ``least``.
    """
    library = _library(gram)
    trace = library.trace(gram)
    varies = trace > least
    share = gram / library.where(varies, trace, 1.0)
    return library.where(varies, 1.0 / library.where(varies, library.sum(share * share), 1.0), 0.0)


def spectral_entropy_rank(values: AnyArray, eps: float = 0.0) -> AnyArray:
    """Return exp of the entropy of singular values [r] divided by their sum; 0 if all are 0.

    Source: RankMe (Garrido et al., 2023), equation 1, which adds ``eps`` = 1e-7 to each share.
    """
    library = _library(values)
    total = library.sum(values)
    some = total > 0
    share = values / library.where(some, total, 1.0) + eps
    entropy = -library.sum(share * library.log(library.where(share > 0, share, 1.0)))
    return library.where(some, library.exp(entropy), 0.0)


def _library(array: AnyArray):
    return array.__array_namespace__()  # numpy or jax.numpy


def _logsumexp(array: AnyArray) -> AnyArray:
    if isinstance(array, jax.Array):
        return jax.nn.logsumexp(array, axis=-1)
    from scipy.special import logsumexp

    return logsumexp(array, axis=-1)
