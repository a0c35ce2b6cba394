"""Transforms of the scores and their application; examples: :mod:`contrastive_jax.contrast.transform`."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from contrastive_jax.types import Array

ScoreMap = Callable[[Array, Array, Array], Array]  # scalars (score, positive, temperature) -> score


class Transform(NamedTuple):
    """A transform of scores by functions of scalars; None leaves scores unchanged.

    ``negative``: (score, score of the positive, tau) -> score of a negative; -inf removes it from the negatives
    and from their number. ``positive``: (score, tau) -> score of a positive. ``log_weight``: (score, score of
    the positive, tau) -> log w_j of a negative, constant in the gradient; the weights are divided by their mean
    over a query's negatives; at a multiple m of 1 / tau, such as those of ``hard_nce``, the weights are (w_j / mean)^m.

    Returned scores are later divided by tau. Each function receives one entry at a time, so means over scores
    are not possible, and must close over constants only, not over traced arrays.
    """

    negative: ScoreMap | None = None
    positive: Callable[[Array, Array], Array] | None = None
    log_weight: ScoreMap | None = None
    cosine_only: bool = False  # requires cosine scores
    cancels_temperature: bool = False  # score / tau does not depend on tau


def same(score: Array, positive: Array, temperature: Array) -> Array:
    """Return the score: the transform of negatives that changes nothing."""
    return score


class Transformed(NamedTuple):
    """A transform in the form that engines apply; see :mod:`contrastive_jax.contrast.transform`.

    ``logsumexp``, ``mean`` and ``hardest`` are then statistics of transformed scores, and the reference is a
    transformed score. Candidates with the transformed score -inf are not counted as negatives.
    """

    positive: Array  # [Q] score of the query's positive before the transform
    temperature: Array  # [] or [Q] tau
    logit: Array  # [] the score whose logit is 1: tau, or 1 if the engine's scores are logits
    negative: ScoreMap | None = None
    further: ScoreMap | None = None  # for further positives
    log_weight: ScoreMap | None = (
        None  # log weight of a negative, as a score; weights have mean 1 over a query's negatives
    )
    unit: int = 0  # index of the scale at which the score ``logit`` is a logit of 1


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def transform_scores(
    transform: ScoreMap, permitted: Array, score: Array, positive: Array, tau: Array
) -> Array:
    """Apply a transform to scores [q, c], with ``positive`` and ``tau`` [q]; -inf where not permitted.

    The derivative is 0 where the result is -inf. An entry that is not permitted has no effect, even if its
    transform is NaN.
    """
    return values_and_slopes(transform, permitted, score, positive, tau)[0]


def values_and_slopes(transform, permitted, score, positive, tau):
    """Return transformed scores [q, c] and their derivatives in score, positive and tau, each [q, c]."""

    def of_entry(*scalars):
        return jnp.asarray(transform(*scalars), score.dtype)

    every = jax.vmap(jax.vmap(jax.value_and_grad(of_entry, argnums=(0, 1, 2)), (0, None, None)))
    values, slopes = every(score, positive, tau)
    values = jnp.where(permitted, values, -jnp.inf)
    return values, [jnp.where(values == -jnp.inf, 0, slope) for slope in slopes]


@transform_scores.defjvp
def _transform_scores_jvp(transform, primals, tangents):
    values, (of_score, of_positive, of_tau) = values_and_slopes(transform, *primals)
    _, score, positive, tau = tangents
    return values, of_score * score + of_positive * positive[:, None] + of_tau * tau[:, None]


def of_positive(transform: Transform, score: Array, tau: Array) -> Array:
    """Return transformed scores [...] of positives."""
    if transform.positive is None:
        return score
    return jnp.vectorize(transform.positive)(score, tau).astype(score.dtype)


def mirrored(transform: Transform) -> Transform:
    """Return the transform of negated scores, ``-t(-s)``; masked scores stay masked.

    ``log_weight`` is unchanged: :meth:`terms.Term.no_transform` refuses weights at multiples of 0 or less.
    """
    negative, positive = transform.negative, transform.positive

    def negated(score, other, tau):
        value = negative(-score, -other, tau)
        return jnp.where(value == -jnp.inf, -jnp.inf, -value)

    return transform._replace(
        negative=None if negative is None else negated,
        positive=None if positive is None else lambda score, tau: -positive(-score, tau),
    )


def in_logits(transform: Transform) -> Transform:
    """Return the transform of logits x = score / tau to logits, ``t(tau x, tau x+, tau) / tau``."""
    negative, positive, log_weight = transform[:3]

    def of_logits(function, divide):
        def changed(*scalars):
            *logits, tau = scalars
            value = function(*(tau * x for x in logits), tau)
            return value / tau if divide else value

        return None if function is None else changed

    return transform._replace(
        negative=of_logits(negative, True),
        positive=of_logits(positive, True),
        log_weight=of_logits(log_weight, False),
    )


def transformed(
    transform: Transform, positive: Array, tau: Array, unit: int, logits: bool = False
) -> Transformed | None:
    """Return a transform in the form that engines apply, or None if it leaves scores unchanged.

    Args:
      transform: transform of scores, or of logits (:func:`in_logits`).
      positive: [Q] scores (or logits) of the positives before the transform.
      tau: [], or [Q] with logits.
      unit: index of the engine's scale that turns a transformed score into a logit.
      logits: whether the engine's scores are logits.
    """
    further, log_weight = transform.positive, transform.log_weight
    if transform[:3] == (None, None, None):
        return None

    def as_score(*scalars):
        held = stop_gradient(log_weight(*scalars))
        return held if logits else scalars[-1] * held

    return Transformed(
        positive=positive,
        temperature=tau,
        logit=jnp.ones(()) if logits else tau,
        negative=transform.negative,
        further=None if further is None else lambda score, _, tau: further(score, tau),
        log_weight=None if log_weight is None else as_score,
        unit=unit,
    )


def check_scalars(transform: Transform, words: str) -> Transform:
    """Return the transform after checking that its functions take and return floating scalars.

    Raises:
      ValueError: not a :class:`Transform`, or a wrong function; the message begins with ``words``.
    """
    if not isinstance(transform, Transform):
        raise ValueError(f"{words} a {type(transform).__name__}; it must be a contrast.transform.Transform.")
    scalar = jax.ShapeDtypeStruct((), "float32")
    for name, number in (("negative", 3), ("positive", 2), ("log_weight", 3)):
        function = getattr(transform, name)
        if function is None:
            continue
        try:
            shape = jax.eval_shape(lambda *x, f=function: jnp.asarray(f(*x)), *[scalar] * number)
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{words} one whose {name} cannot be called with {number} scalars: {error}"
            ) from error
        if shape.shape or not jnp.issubdtype(shape.dtype, jnp.floating):
            raise ValueError(
                f"{words} one whose {name} returns {shape.dtype}{list(shape.shape)}; it must return a floating scalar."
            )
    return transform
