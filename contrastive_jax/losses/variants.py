"""Further losses: IFM, RINCE, alpha-CL, label smoothing, the mean contrast without a softmax, and VRNS's term."""

import math
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from contrastive_jax.kinds import Ge, Gt, Le, Lt, NonNegative, PositiveFraction
from contrastive_jax.losses.contrastive import (
    FLAT,
    at_least_float32,
    check_option,
    plus,
    value_with_gradient_of,
)
from contrastive_jax.losses.declaration import CANCELS, loss
from contrastive_jax.types import Array


@loss(vanishing=True)
def ifm(c: Array, temperature: Array, surplus: Array | None = None, *, epsilon: NonNegative = 0.1) -> Array:
    """Implicit feature modification, ``(softplus(c) + softplus(c + 2 epsilon / tau)) / 2``.

    It is the mean of InfoNCE and of InfoNCE with the positive's score lowered and the negatives' scores raised
    by ``epsilon``; the latter is EqCo with ``alpha = K e^(2 epsilon / tau)``. 0 is InfoNCE.
    Source: Can contrastive learning avoid shortcut solutions? (Robinson et al., 2021).

    Args:
      epsilon: shift of every score.
    """
    check_option("ifm.epsilon", epsilon, lambda x: 0 <= x < math.inf, "at least 0 and finite")
    c = at_least_float32(c)
    moved = c + 2.0 * epsilon / temperature
    return plus(0.5 * (jax.nn.softplus(c) + jax.nn.softplus(moved)), surplus)


def rince(
    c: Array,
    positive: Array,
    temperature: Array,
    *,
    q: Annotated[float, Ge(0), Le(1)] = 0.5,
    lam: PositiveFraction = 0.025,
) -> Array:
    """Robust InfoNCE, ``e^(q s+ / tau) ((lam (1 + e^c))^q - 1) / q``.

    It is the authors' ``-pos^q / q + (lam (pos + neg))^q / q`` of exponentiated scores. The limit q = 0 is
    InfoNCE plus log lam; q = 1 is robust to false positives. The larger power is factored out, so the result
    overflows only if the loss does.
    Source: Robust contrastive learning against noisy views (Chuang et al., 2022).

    Args:
      q: from 0 (InfoNCE) to 1 (robust).
      lam: weight of the negatives and the positive relative to the positive alone.
    """
    check_option("rince.q", q, lambda x: 0 <= x <= 1, "in [0, 1]")
    check_option("rince.lam", lam, lambda x: 0 < x <= 1, "above 0 and at most 1")
    c = at_least_float32(c)
    x = at_least_float32(positive) / temperature
    log_ratio = math.log(lam) + jax.nn.softplus(c)  # log of lam (pos + neg) / pos
    if q == 0:
        return log_ratio
    above = log_ratio > 0
    # The larger of the two powers is factored out; 1 - e^-|q log_ratio| remains.
    high, low = jnp.where(above, log_ratio, 0.0), jnp.where(above, 0.0, log_ratio)
    larger = jnp.exp(q * (x + high)) * -jnp.expm1(-q * high)
    smaller = jnp.exp(q * x) * jnp.expm1(q * low)
    value = stop_gradient(jnp.where(above, larger, smaller) / q)
    # By hand, to avoid overflow: d/dc is e^(q (x + log_ratio)) sigmoid(c), d/dx is q times value.
    of_c = jnp.exp(q * (x + log_ratio) + jax.nn.log_sigmoid(c))
    return value_with_gradient_of(value, c, of_c) + q * value * (x - stop_gradient(x))


@loss(no_margin=CANCELS)
def alpha_cl(c: Array, mean: Array, positive: Array, temperature: Array) -> Array:
    """alpha-CL, exponent 1: ``sum_j sg(w_j) (s_j - s+) / tau`` with ``w_j ~ e^(s_j / tau)``; DCL's gradient.

    ``mean`` is the softmax-weighted mean of the negatives' scores. tau times this is the authors' loss; their
    weights ``e^(-(1 - s_j) / tau)`` are the same.
    Source: Understanding deep contrastive learning via coordinate-wise optimization (Tian, 2022).
    """
    value = (mean - at_least_float32(positive)) / temperature
    return value_with_gradient_of(value, at_least_float32(c))


@loss(multiples=lambda *, smoothing=0.1: (1.0, FLAT), no_margin="is not defined for")
def label_smoothing(
    c: Array,
    c_flat: Array,
    mean: Array,
    count: Array,
    positive: Array,
    temperature: Array,
    *,
    smoothing: Annotated[float, Ge(0), Le(1)] = 0.1,
) -> Array:
    """InfoNCE with smoothed labels: a share ``smoothing`` of the label is spread over all K + 1 candidates.

    ``softplus(c) - smoothing K / (K + 1) mean_j((s_j - s+) / tau)``, as in common libraries. ``c_flat`` is the
    contrast at a multiple of 1 / tau so small that all weights are equal; ``mean`` is the negatives' mean score
    there.
    Source: Rethinking the Inception architecture (Szegedy et al., 2016), section 7.

    Args:
      smoothing: share of the label that is spread over all candidates; 0: InfoNCE.
    """
    check_option("label_smoothing.smoothing", smoothing, lambda x: 0 <= x <= 1, "in [0, 1]")
    c, c_flat = at_least_float32(c), at_least_float32(c_flat)
    number = count.astype(c.dtype)
    above = value_with_gradient_of((mean - at_least_float32(positive)) / temperature, c_flat / FLAT)
    return jax.nn.softplus(c) - smoothing * number / (number + 1.0) * above


@loss(multiples=lambda *, gamma=1.0: (FLAT,), no_margin=CANCELS)
def mean_contrast(
    c_flat: Array, mean: Array, positive: Array, temperature: Array, *, gamma: NonNegative = 1.0
) -> Array:
    """Weighted mean score of the negatives minus the positive's, ``gamma mean_j t(s_j) - t+(s+)``, no softmax.

    With a transform of the scores it gives contrastive losses that are means over pairs: ``spectral`` (HaoChen
    et al., 2021) and, with ``gaussian_kernel``, KCL. Value and gradient do not depend on tau. ``c_flat`` is the
    contrast at a multiple of 1 / tau so small that all weights are equal; ``mean`` is the negatives' mean score
    there.
    Source: HaoChen et al. (2021); Bridging mini-batch and asymptotic analysis (Koromilas et al., 2024).

    Args:
      gamma: weight of the negatives' mean.
    """
    check_option("mean_contrast.gamma", gamma, lambda x: 0 <= x < math.inf, "at least 0 and finite")
    c_flat, positive = at_least_float32(c_flat), at_least_float32(positive)
    above = stop_gradient(mean - positive)
    # The second term cancels the gradient of tau c_flat / FLAT in tau.
    held = stop_gradient(temperature)
    moved = temperature * (c_flat - stop_gradient(c_flat)) / FLAT + above * temperature / held
    return gamma * moved + (gamma - 1.0) * positive


def vrns(cross: Array, temperature: Array, *, target: Annotated[float, Gt(-1), Lt(1)] = 0.0) -> Array:
    """VRNS's term, to be added to a loss: ``mean_j (s_j - target)^2`` over the negatives, 0 without any.

    It is the variance of a query's negative scores plus the squared distance of their mean from ``target``. It
    reads the row of scores, [B, V, 1 + M] over tau with the positive first; ``mean_contrast`` of the same squares
    needs no rows (docs/who_is_who.md). No gradient in tau.
    Source: On the similarities of embeddings in contrastive learning (Lee et al., 2025), with a weight of 30, the
    target -1 / (n - 1) of n training examples, and negatives of the other view.

    Args:
      target: score to which negatives are drawn.
    """
    check_option("vrns.target", target, lambda x: -1 < x < 1, "above -1 and below 1")
    logit = at_least_float32(cross)[..., 1:]
    permitted = logit != -jnp.inf
    # Not held: where tau has a gradient, that of the logits cancels it.
    score = jnp.expand_dims(temperature, -1) * jnp.where(permitted, logit, 0.0)
    number = jnp.maximum(jnp.sum(permitted, axis=-1), 1).astype(score.dtype)
    return jnp.sum(jnp.where(permitted, (score - target) ** 2, 0.0), axis=-1) / number
