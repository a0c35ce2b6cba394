"""Losses that are functions of the contrast c = logsumexp_neg(s / tau) - s+ / tau.

Each combines a stable value with the gradient of a surrogate. Nothing divides by sigmoid(c) or forms e^c, so
values and gradients are correct for any finite c. ``relative`` and ``scaled`` weight a query with a mean over
the whole batch. A query without negatives has c = -inf: InfoNCE, EqCo and Dual are then 0, the FlatNCE family
and MACL 1, all without a gradient; DCL has no such limit and is -inf. A train step and ``contrastive_loss`` pass 0
for such a query and set its loss to 0.

For a query with several positives P, c is the contrast with all of them, logsumexp_neg(s / tau) -
logsumexp_pos(s / tau), and ``surplus`` is the loss's second term: log |P|, or
logsumexp_pos(s / tau) - mean_pos(s) / tau. A loss with ``surplus`` supports both definitions of several
positives, another function of c alone the first; a loss with ``positive``, one score, and no surplus supports
neither.

:func:`~contrastive_jax.losses.declaration.loss` declares what a signature does not show.
"""

import math
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from contrastive_jax.kinds import Decay, Ge, Le, NonNegative, Positive
from contrastive_jax.losses.declaration import CANCELS, HAS_ONE, MISREADS, loss
from contrastive_jax.types import Array

Order = Annotated[float, Ge(-1e6), Le(1e6)]
FLAT = 2.0**-60  # a multiple of 1 / tau at which every softmax weight rounds to 1 / K


def at_least_float32(array: Array) -> Array:
    """Return the array in float32, or in float64 if it is float64."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def check_option(name: str, value: float, holds: Callable[[float], bool], words: str) -> None:
    """Raise ValueError unless an option is a concrete number for which ``holds`` is true."""
    no_number = (
        TypeError,
        ValueError,
        jax.errors.ConcretizationTypeError,
    )  # another type, an array, a traced value
    try:
        good = bool(holds(value))
    except no_number:
        good = False
    if good and isinstance(value, int) and abs(value) >= 2**127:
        good, words = False, f"{words}, and below 1.7e38"
    if not good:
        constant = ", and a constant under jit" if isinstance(value, jax.core.Tracer) else ""
        raise ValueError(f"{name} is {value}; it must be {words}{constant}.")


def positive_option(name: str, value: float) -> None:
    """Raise ValueError unless an option is a positive, finite number."""
    check_option(name, value, lambda x: 0 < x < math.inf, "positive and finite")


def _probability(name: str, value: float) -> None:
    check_option(name, value, lambda x: 0 <= x < 1, "in [0, 1)")


def value_with_gradient_of(value: Array, surrogate: Array, weight: Array | float = 1.0) -> Array:
    """Return ``value``, with the gradient of ``weight * surrogate`` (weight held constant).

    If the surrogate is -inf (a query without negatives), the gradient is 0.
    """
    surrogate = jnp.where(surrogate == -jnp.inf, 0.0, surrogate)  # -inf - -inf would be NaN
    return stop_gradient(value) + stop_gradient(weight) * (surrogate - stop_gradient(surrogate))


def softplus_over_sigmoid(c: Array) -> Array:
    """Return softplus(c) / sigmoid(c) for any c: 1 at -inf, c + 1 + o(1) at +inf."""
    decay = jnp.exp(-jnp.abs(c))
    log1p = jnp.log1p(decay)
    representable = decay > jnp.finfo(c.dtype).tiny
    ratio = jnp.where(representable, log1p / jnp.where(representable, decay, 1.0), 1.0)
    return (1.0 + decay) * jnp.where(c > 0, c + log1p, ratio)


def plus(value: Array, surplus: Array | None) -> Array:
    """Add the term for several positives; None for one positive per query."""
    return value if surplus is None else value + surplus


@loss(vanishing=True)
def info_nce(c: Array, surplus: Array | None = None) -> Array:
    """InfoNCE, NT-Xent, MoCo: ``softplus(c)``, the cross-entropy of the positive among all candidates.

    The mean over queries is half the value that SimCLR's released code minimises, which sums both directions.
    With several positives it is the supervised contrastive loss.
    Source: SimCLR (Chen et al., 2020), eq. 1; SupCon (Khosla et al., 2020), eq. 2 and 3.
    """
    return plus(jax.nn.softplus(at_least_float32(c)), surplus)


@loss(no_margin=CANCELS)
def dcl(c: Array, surplus: Array | None = None) -> Array:
    """Decoupled contrastive loss: ``c``, InfoNCE without the positive (or positives) in the denominator.

    Source: Decoupled contrastive learning (Yeh et al., 2022).
    """
    return plus(at_least_float32(c), surplus)


@loss(no_margin=CANCELS, constant=True)
def flat_nce(c: Array, surplus: Array | None = None) -> Array:
    """FlatNCE, ``exp(c - sg(c))``: the value is always 1, the gradient is that of ``c``.

    Monitor ``info_nce(c)`` instead. Source: FlatNCE (Chen et al., 2021), eq. 6.
    """
    c = at_least_float32(c)
    return value_with_gradient_of(jnp.ones_like(c), plus(c, surplus))


@loss(constant=True, vanishing=True)
def flat_nce_plus(c: Array, surplus: Array | None = None) -> Array:
    """FlatNCE with the positive kept, ``(1 + e^c) / sg(1 + e^c)``: value 1, InfoNCE's gradient.

    Source: FlatNCE (Chen et al., 2021), eq. 7 and Proposition 3.1.
    """
    c = at_least_float32(c)
    return value_with_gradient_of(jnp.ones_like(c), plus(jax.nn.softplus(c), surplus))


def _order(*, gamma: float = 1.0) -> tuple[float]:
    """Return the multiple of 1 / tau of c_gamma: gamma, or for 0 one at which all weights round to 1."""
    ends = "in [-1e6, 1e6], where the ends approximate the minimum and the maximum, up to tau / 100,000"
    check_option("hoelder_flat_nce.gamma", gamma, lambda x: -1e6 <= x <= 1e6, ends)
    return (gamma or FLAT,)


@loss(multiples=_order, no_margin=CANCELS, constant=True)
def hoelder_flat_nce(c_gamma: Array, surplus: Array | None = None, *, gamma: Order = 1.0) -> Array:
    """Hölder-FlatNCE: the contrasts' power mean of order gamma, divided by itself without gradient; always 1.

    ``c_gamma`` is the contrast at temperature tau / gamma; the gradient is ``dc_gamma / gamma``. (Proposition
    3.7 lacks the factor 1 / gamma of its proof.) Orders below 0 weight the lowest-scoring negatives most; 0,
    the geometric mean, weights all equally. The maximum (+inf, only the hardest negative) and the minimum
    (-inf) are limits, reached if scores differ by many tau / gamma.
    Source: FlatNCE (Chen et al., 2021), definitions 3.5 and 3.6.

    Args:
      gamma: order of the power mean, from -1e6 to 1e6; 1 is FlatNCE, 0 the geometric mean.
    """
    c_gamma, (order,) = at_least_float32(c_gamma), _order(gamma=gamma)
    return value_with_gradient_of(jnp.ones_like(c_gamma), plus(c_gamma, surplus), 1.0 / order)


@loss(no_margin=HAS_ONE, vanishing=True)
def eqco(c: Array, count: Array, surplus: Array | None = None, *, alpha: Positive) -> Array:
    """EqCo: InfoNCE as if there were ``alpha`` negatives, ``softplus(c + log(alpha / K))``.

    ``count`` holds each query's number of negatives K_i. It equals InfoNCE with the margin tau log(alpha / K)
    on the positive. Source: EqCo (Zhu et al., 2020), eq. 1 and 5.

    Args:
      alpha: effective number of negatives.
    """
    positive_option("eqco.alpha", alpha)
    c = at_least_float32(c)
    return plus(jax.nn.softplus(c + jnp.log(alpha / jnp.maximum(count, 1).astype(c.dtype))), surplus)


@loss(vanishing=True)
def relative(c: Array, count: Array) -> Array:
    """InfoNCE's attention at unit scale: value softplus(c), gradient ``W / mean(W) dc`` with W = sigmoid(c).

    InfoNCE's gradient W dc is this times mean(W), one number per step: the mean over all queries of the batch
    with negatives. The weights are 1 on average; if all c are equal, this is FlatNCE. :func:`scaled` is the
    other factor. ``count`` holds each query's number of negatives K_i.
    """
    c = at_least_float32(c)
    some = jnp.broadcast_to(count > 0, c.shape)
    share = jax.nn.softmax(jax.nn.log_sigmoid(c), axis=None, where=some)  # valid even if every W rounds to 0
    return value_with_gradient_of(jax.nn.softplus(c), c, jnp.sum(some) * share)


def scaled(c: Array, count: Array) -> Array:
    """InfoNCE's scale with uniform attention: value softplus(c), gradient ``mean(W) dc`` with W = sigmoid(c).

    It is FlatNCE's gradient times one number per step, the mean over all queries of the batch with negatives;
    :func:`relative` is the other factor of InfoNCE's. ``count`` holds each query's number of negatives K_i.
    """
    c = at_least_float32(c)
    some = jnp.broadcast_to(count > 0, c.shape)
    mean = jnp.sum(jnp.where(some, jax.nn.sigmoid(c), 0.0)) / jnp.maximum(jnp.sum(some), 1)
    return value_with_gradient_of(jax.nn.softplus(c), c, mean)


@loss(no_margin=CANCELS)
def macl(c: Array) -> Array:
    """MACL's reweighted InfoNCE, ``sg(1 / sigmoid(c)) softplus(c)``: the gradient is that of ``c``.

    The alignment-adaptive temperature is a separate option. Source: MACL (Huang et al., 2022), eq. 14.
    """
    c = at_least_float32(c)
    return value_with_gradient_of(softplus_over_sigmoid(c), c)


@loss(no_margin=CANCELS, cosine_only=True)
def macl_w(c: Array, positive: Array) -> Array:
    """MACL's ablation: ``macl`` weighted by ``sg(2 - s+)``, ``positive`` the raw cosine s+.

    Table 4 calls it MACL-c. Source: MACL (Huang et al., 2022), eq. 15.
    """
    c, weight = at_least_float32(c), 2.0 - at_least_float32(positive)
    return value_with_gradient_of(weight * softplus_over_sigmoid(c), c, weight)


@loss(no_margin=CANCELS)
def dclw(
    c: Array, positive: Array, temperature: Array, *, sigma: Positive = 0.5, detach: bool = True
) -> Array:
    """DCL with von Mises-Fisher weights of the positive, ``-w s+ / tau + logsumexp_neg(s / tau)``.

    ``w = 2 - B softmax(s+ / sigma)`` over the batch, axis 0, one softmax per direction. ``detach`` keeps the
    weights constant; published implementations differ in it.
    Source: Decoupled contrastive learning (Yeh et al., 2022).

    Args:
      sigma: temperature of the weights.
      detach: whether weights are constants in the gradient.
    """
    positive_option("dclw.sigma", sigma)
    c, positive = at_least_float32(c), at_least_float32(positive)
    weight = 2.0 - positive.shape[0] * jax.nn.softmax(positive / sigma, axis=0)
    weight = stop_gradient(weight) if detach else weight
    return c + (1.0 - weight) * positive / temperature


@loss(multiples=lambda *, factor=10.0: (1.0, 1.0 / factor))
def dual_temperature(c: Array, c_beta: Array, *, factor: Positive = 10.0) -> Array:
    """Dual temperature, ``sg(sigmoid(c_beta) / sigmoid(c)) softplus(c)``: the gradient is sigmoid(c_beta) dc.

    ``c_beta`` is the contrast at temperature tau * factor, which determines the query weights.
    Source: Dual temperature helps contrastive learning without many negative samples (Zhang et al., 2022).

    Args:
      factor: ratio tau_beta / tau of the temperatures of the query weights and of the loss.
    """
    positive_option("dual_temperature.factor", factor)
    c = at_least_float32(c)
    weight = jax.nn.sigmoid(at_least_float32(c_beta))
    return value_with_gradient_of(weight * softplus_over_sigmoid(c), c, weight)


@loss(cosine_only=lambda *, lambda_weight=None, self_pair=False: self_pair, vanishing=True)
def decoupled_nt_xent(
    c: Array,
    positive: Array,
    temperature: Array,
    surplus: Array | None = None,
    *,
    lambda_weight: Positive | None = None,
    self_pair: bool = False,
) -> Array:
    """Decoupled NT-Xent, ``lambda logsumexp_all(s / tau) - s+``, over the positive and the negatives.

    ``lambda_weight`` None is lambda = tau: tau times InfoNCE. ``self_pair`` adds the query itself to the sum,
    as in the authors' notebook, with score 1, so it needs cosine scores. The gradient in tau is a difference of
    terms as large as c, with a rounding error of 2e-7 of that size.
    Source: Intriguing Properties of Contrastive Losses (Chen et al., 2021), eq. 4.

    Args:
      lambda_weight: lambda, weight of the distribution term; None: the temperature.
      self_pair: whether the sum includes the query itself.
    """
    if lambda_weight is not None:
        positive_option("decoupled_nt_xent.lambda_weight", lambda_weight)
    c, positive = at_least_float32(c), at_least_float32(positive)
    weight = temperature if lambda_weight is None else lambda_weight
    above_positive = jax.nn.softplus(c)  # logsumexp_all - s+ / tau
    if self_pair:
        # Not logaddexp: with large logits, rounding keeps its two shares from summing to 1.
        own = (1.0 - positive) / temperature
        above_positive = own + jax.nn.softplus(above_positive - own)
    value = weight * above_positive
    if lambda_weight is not None:  # at lambda = tau the term and its gradient are 0
        value = value + (weight / temperature - 1.0) * positive
    return plus(value, None if surplus is None else temperature * surplus)


@loss(no_margin=MISREADS, cosine_only=lambda *, tau_plus=0.1: tau_plus > 0, vanishing=True)
def debiased(c: Array, count: Array, positive: Array, temperature: Array, *, tau_plus: Decay = 0.1) -> Array:
    """Debiased InfoNCE, ``log(1 + g)``: corrects for negatives of the positive's class.

    With K negatives, ``g = max((e^c - tau_plus K) / (1 - tau_plus), K e^(-(1 + s+) / tau))``: a share
    ``tau_plus`` of the negatives is expected to score like the positive, and the sum over negatives is bounded
    below by its value at the least cosine, -1 (so scores must be cosines). e^c is not formed; at the bound, the
    gradient is the bound's. ``tau_plus`` 0 is InfoNCE.
    Source: Debiased contrastive learning (Chuang et al., 2020), its estimator with one positive.

    Args:
      tau_plus: probability that a negative has the positive's class.
    """
    _probability("debiased.tau_plus", tau_plus)
    return _debiased(at_least_float32(c), count, positive, temperature, tau_plus)


def _debiased(c: Array, count: Array, positive: Array, temperature: Array, tau_plus: float) -> Array:
    if tau_plus == 0:
        return jax.nn.softplus(c)
    number = jnp.maximum(count, 1).astype(c.dtype)
    bound = jnp.log(number) - (1.0 + at_least_float32(positive)) / temperature  # the least log g
    expected = jnp.log(tau_plus * number)
    least = jnp.logaddexp(expected, jnp.log1p(-tau_plus) + bound)  # the c at which g is the bound
    c = jnp.maximum(c, least)
    # log(1 + g) = log(e^c + rest) - log(1 - tau_plus); rest may be negative, but e^c + rest is positive
    rest = 1.0 - tau_plus - tau_plus * number
    added = jnp.where(
        rest > 0,
        jnp.logaddexp(c, jnp.log(jnp.where(rest > 0, rest, 1.0))),
        c + jnp.log1p(jnp.where(rest > 0, 0.0, rest) * jnp.exp(-jnp.where(rest > 0, 0.0, c))),
    )
    return jnp.where(c > least, added - jnp.log1p(-tau_plus), jax.nn.softplus(bound))


@loss(
    multiples=lambda *, beta=1.0, tau_plus=0.0: (1.0 + beta, beta),
    no_margin=CANCELS,
    cosine_only=lambda *, beta=1.0, tau_plus=0.0: tau_plus > 0,
    vanishing=True,
)
def hard_nce(
    c_hard: Array,
    c_beta: Array,
    count: Array,
    positive: Array,
    temperature: Array,
    *,
    beta: Positive = 1.0,
    tau_plus: Decay = 0.0,
) -> Array:
    """InfoNCE with hard negatives up-weighted, ``softplus(log K + c_hard - c_beta)``.

    Weights of the negatives are proportional to e^(beta s / tau), sum to K and carry gradients, as in the
    authors' code: K sum_j e^((1 + beta) s_j / tau) / sum_j e^(beta s_j / tau) replaces the sum over negatives.
    ``c_hard`` and ``c_beta`` are contrasts at (1 + beta) / tau and beta / tau, so a margin cancels.
    ``tau_plus`` is as in :func:`debiased`. The limit beta = 0 is InfoNCE.
    Source: Contrastive learning with hard negative samples (Robinson et al., 2021).

    Args:
      beta: concentration of the negatives' weights, in units of 1 / tau.
      tau_plus: probability that a negative has the positive's class.
    """
    positive_option("hard_nce.beta", beta)
    _probability("hard_nce.tau_plus", tau_plus)
    c_hard, c_beta = at_least_float32(c_hard), at_least_float32(c_beta)
    c = c_hard - c_beta + jnp.log(jnp.maximum(count, 1).astype(c_hard.dtype))
    return _debiased(c, count, positive, temperature, tau_plus)


@loss(multiples=lambda *, alpha=1.0: (1.0 + alpha,), vanishing=True)
def hardness_weighted(
    c_alpha: Array, positive: Array, temperature: Array, *, alpha: NonNegative = 1.0
) -> Array:
    """InfoNCE with ``alpha sg(s / tau)`` added to every negative's logit: hard negatives weigh more.

    ``softplus(logsumexp_j(s_j / tau + alpha sg(s_j / tau)) - s+ / tau)``. With ``c_alpha``, the contrast at
    (1 + alpha) / tau, the argument is ``c_alpha + alpha s+ / tau`` and its gradient ``dc_alpha / (1 + alpha)``,
    also in the temperature. For weights e^(a s), s the cosine, set alpha = a tau.
    Source: LLaVE, hardness-weighted contrastive learning (Lan et al., 2025).

    Args:
      alpha: weight of hardness, in units of 1 / tau; 0: InfoNCE.
    """
    check_option("hardness_weighted.alpha", alpha, lambda x: 0 <= x < math.inf, "at least 0 and finite")
    c_alpha = at_least_float32(c_alpha)
    value = c_alpha + alpha * at_least_float32(positive) / temperature
    return jax.nn.softplus(value_with_gradient_of(value, c_alpha / (1.0 + alpha)))
