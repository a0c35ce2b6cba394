"""Uniformity and effective ranks, each defined once: for the loss, the diagnostics of a step and the evaluators.

Arrays are JAX's or NumPy's, and each is computed with by its own library, in its own precision: a step has batches on
devices in float32, an evaluation a whole set in float64. How the sums over pairs are made is the caller's affair.
"""

import jax

from contrastive_jax.types import Array


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
