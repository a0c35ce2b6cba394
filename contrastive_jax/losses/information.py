"""Estimates of mutual information, in nats, from scores as log density ratios (already divided by tau).

    estimate                   in expectation a lower bound of the mutual information?
    -------------------------  ----------------------------------------------------------------------------
    nwj, tuba                  yes, for scores and baseline independent of the batch (high variance)
    interpolated               yes, likewise
    jensen_shannon             yes: NWJ's value, for a critic trained by the Jensen-Shannon divergence
    info_nce_estimate          yes, and never above log(K + 1)
    fenchel_legendre           yes, minus its mean, for any u independent of the negatives
    eqco_estimate              only for alpha <= K: at a true value of 10, alpha 65,536 and K 64 give 10.4
    donsker_varadhan_estimate  no: the logarithm of a finite mean is biased upwards
    flat_nce_estimate          no: log K - mean(c), the same bias per query (FlatNCE's corollary 3.4 fails)
    smile                      no: clipping trades the variance for a bias of either sign

``donsker_varadhan`` and ``fenchel_legendre`` are training losses, negative estimates; ``sogclr`` and ``robust``
are such losses times the temperature.

Estimates that need only each row's logsumexp take (positive, negative, count), [N] each: the joint score of a
query, the logsumexp of its marginal scores and their number, from ``row_statistics`` or a tiled engine; or they
take the contrast c = negative - positive. The others take scores [N, M] with the joint pairs on the diagonal.
Values are scalars; those from contrasts are per query.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from contrastive_jax.kinds import NonNegative, Positive
from contrastive_jax.losses.contrastive import (
    at_least_float32,
    eqco,
    info_nce,
    positive_option,
    value_with_gradient_of,
)
from contrastive_jax.losses.declaration import CANCELS, HAS_ONE, MISREADS, loss
from contrastive_jax.types import Array


def row_statistics(scores: Array) -> tuple[Array, Array, Array]:
    """Compute each row's diagonal entry, and logsumexp and number of the others: [N, M], M >= N -> [N]."""
    rows, columns = scores.shape
    if columns < max(rows, 2):
        raise ValueError(
            f"scores are {rows} x {columns}; each row needs its joint pair on the diagonal and at least"
            " one other pair."
        )
    scores = at_least_float32(scores)
    off_diagonal = jnp.where(jnp.eye(rows, columns, dtype=bool), -jnp.inf, scores)
    return jnp.diagonal(scores), logsumexp(off_diagonal, axis=1), jnp.full(rows, columns - 1)


def log_marginal_mean(negative: Array, count: Array) -> Array:
    """Compute the log of the mean over all marginal pairs, from each row's logsumexp and count."""
    return logsumexp(negative) - jnp.log(jnp.sum(count.astype(negative.dtype)))


def donsker_varadhan_estimate(positive: Array, negative: Array, count: Array) -> Array:
    """Return ``mean(joint) - log mean exp(marginal)``; not a bound on a mini-batch.

    Source: MINE (Belghazi et al., 2018).
    """
    return jnp.mean(positive) - log_marginal_mean(negative, count)


def tuba(positive: Array, negative: Array, count: Array, log_baseline: Array | float) -> Array:
    """Return ``1 + mean(joint - b) - mean exp(marginal - b)`` with a baseline b, [N] or scalar: a lower bound.

    Source: Poole et al. (2019), I_TUBA.
    """
    return (
        1.0 + jnp.mean(positive - log_baseline) - jnp.exp(log_marginal_mean(negative - log_baseline, count))
    )


def nwj(positive: Array, negative: Array, count: Array) -> Array:
    """Return ``mean(joint) - mean exp(marginal - 1)``, TUBA with baseline 1: a lower bound.

    Source: Nguyen, Wainwright & Jordan (2010); Poole et al. (2019), I_NWJ.
    """
    return tuba(positive, negative, count, 1.0)


@loss(no_margin=MISREADS, vanishing=True, maximised=True)
def info_nce_estimate(c: Array, count: Array) -> Array:
    """``log(K + 1) - softplus(c)`` per query, to maximise: its mean is a lower bound.

    Source: van den Oord et al. (2018); Poole et al. (2019), I_NCE.
    """
    c = at_least_float32(c)
    return jnp.log1p(count.astype(c.dtype)) - info_nce(c)


@loss(no_margin=CANCELS, maximised=True)
def flat_nce_estimate(c: Array, count: Array) -> Array:
    """``log K - c`` per query, to maximise: the estimate of FlatNCE and DCL; not a bound."""
    c = at_least_float32(c)
    return jnp.log(count.astype(c.dtype)) - c


@loss(no_margin=HAS_ONE, vanishing=True, maximised=True)
def eqco_estimate(c: Array, count: Array, *, alpha: Positive) -> Array:
    """``log(1 + alpha) - L_eqco`` per query, to maximise: its mean is a lower bound for alpha <= K only.

    Source: EqCo (Zhu et al., 2020), eq. 4 and 6.

    Args:
      alpha: number of negatives of the estimate.
    """
    positive_option("eqco_estimate.alpha", alpha)
    return math.log1p(alpha) - eqco(c, count, alpha=alpha)


@loss(no_margin=MISREADS)
def fenchel_legendre(c: Array, count: Array, u: Array) -> Array:
    """``u + exp(c - log K - u) - 1`` per query, to minimise in the scores and in u.

    Minus its mean is the estimate. It is tight at ``u = c - log K``, where the value is ``-flat_nce_estimate``
    and the gradient FlatNCE's; with the positive among the candidates (``softplus(c)`` for c, K + 1 for K) the
    gradient is InfoNCE's. ``u = s - s+ / tau`` with a function s of the query gives minus TUBA with baseline s.
    e^c is part of the definition, so the value can overflow.
    Source: FlatNCE (Chen et al., 2021), lemma 3.3 and eq. 26 (its "+1" should be "-1"); FLO (Guo et al.,
    2021).
    """
    c, some = at_least_float32(c), count > 0
    ratio = c - jnp.log(jnp.maximum(count, 1).astype(c.dtype)) - u
    return u + jnp.where(some, jnp.exp(jnp.where(some, ratio, 0.0)), 1.0) - 1.0


@loss(no_margin=MISREADS)
def sogclr(c: Array, count: Array, u: Array, temperature: Array) -> Array:
    """``tau (u + exp(c - log K - u) - 1)`` per query: :func:`fenchel_legendre` times the query's temperature.

    With u from a moving average over more negatives than one batch contains (``normalizer``), the gradient
    estimates that of the global contrastive loss tau log mean_j e^((s_j - s+) / tau). If each query has its own
    tau (iSogCLR), tau is also its weight. Released code has another value with this gradient; SogCLR's has twice
    the gradient, and FastCLIP-v2's lacks the weight (:func:`fenchel_legendre`).
    Source: SogCLR (Yuan et al., 2022); iSogCLR (Qiu et al., 2023); FastCLIP (Wei et al., 2024).
    """
    return temperature * fenchel_legendre(c, count, u)


@loss(no_margin=CANCELS)
def robust(c: Array, count: Array, temperature: Array, *, rho: NonNegative = 0.5) -> Array:
    """``tau (c - log K + rho)`` per query: the robust contrastive loss, DCL times tau plus a constant.

    Its minimum over tau is the largest mean of s - s+ over weights p of the negatives with KL(p || uniform) <=
    rho. Its derivative in tau is rho - KL, which the temperature rules ``kl`` and ``isogclr`` use for descent.
    Source: Not all semantics are created equal (iSogCLR, Qiu et al., 2023), over the batch's negatives.

    Args:
      rho: KL divergence from uniform weights that is allowed, in nats; the value alone depends on it.
    """
    c = at_least_float32(c)
    return temperature * (c - jnp.log(jnp.maximum(count, 1).astype(c.dtype)) + rho)


@loss(no_margin=MISREADS, vanishing=True)
def donsker_varadhan(c: Array, count: Array, positive: Array, temperature: Array) -> Array:
    """``log mean_ij e^(s_ij / tau) - s_i+ / tau`` per query, to minimise; minus its mean is the estimate.

    One mean over the negatives of all queries of a direction (axis 0); one mean per query would be DCL minus
    log K. The log of a batch's mean and its gradient are biased. MINE's moving average is not implemented; use
    a learnt u of :func:`fenchel_legendre` instead (FlatNCE, appendix D).
    Source: MINE (Belghazi et al., 2018); FlatNCE (Chen et al., 2021), table 1.
    """
    c = at_least_float32(c)
    joint = at_least_float32(positive) / temperature
    count = jnp.broadcast_to(count, c.shape)
    least = jnp.finfo(c.dtype).min  # not -inf: its logsumexp has no gradient if no query has negatives
    marginal = jnp.where(count > 0, c + joint, least)
    number = jnp.maximum(jnp.sum(count.astype(c.dtype), axis=0), 1.0)  # up to 2 N^2, beyond int32
    return logsumexp(marginal, axis=0) - jnp.log(number) - joint


def jensen_shannon_surrogate(scores: Array) -> Array:
    """Return ``-mean softplus(-joint) - mean softplus(marginal)``, the f-GAN Jensen-Shannon objective."""
    rows, columns = scores.shape
    marginal = jnp.where(jnp.eye(rows, columns, dtype=bool), 0.0, jax.nn.softplus(scores))
    return -jnp.mean(jax.nn.softplus(-jnp.diagonal(scores))) - jnp.sum(marginal) / (rows * (columns - 1))


def jensen_shannon(scores: Array) -> Array:
    """Return NWJ's value with the gradient of the Jensen-Shannon divergence: scores [N, M] -> scalar.

    Source: Poole et al. (2019), I_JS.
    """
    scores = at_least_float32(scores)
    return value_with_gradient_of(nwj(*row_statistics(scores)), jensen_shannon_surrogate(scores))


def smile(scores: Array, *, clip: float = 5.0) -> Array:
    """Estimate by Donsker-Varadhan with clipped scores, with the gradient of Jensen-Shannon: [N, M] -> scalar.

    Scores are clipped to [-clip, clip]; ``clip`` can be inf. Source: SMILE (Song & Ermon, 2020) and the
    authors' code.

    Args:
      clip: largest absolute value of a score.
    """
    if not clip > 0:
        raise ValueError(f"smile.clip is {clip}; it must be positive.")
    scores = at_least_float32(scores)
    _, negative, count = row_statistics(jnp.clip(scores, -clip, clip))
    value = donsker_varadhan_estimate(jnp.diagonal(scores), negative, count)
    return value_with_gradient_of(value, jensen_shannon_surrogate(scores))


def leave_one_out(scores: Array) -> Array:
    """Compute each entry's logsumexp over the rest of its row, [N, M] -> [N, M], without cancellation."""
    top = jnp.arange(scores.shape[1]) == jnp.argmax(scores, axis=1)[:, None]
    largest = jnp.sum(jnp.where(top, scores, 0.0), axis=1, keepdims=True)  # exactly one entry, also with ties
    without_top = logsumexp(jnp.where(top, -jnp.inf, scores), axis=1, keepdims=True)
    # If the largest entry stays, the sum relative to it is 1 plus the sum of the others.
    left = jnp.exp(without_top - largest) - jnp.exp(jnp.where(top, -jnp.inf, scores) - largest)
    return jnp.where(top, without_top, largest + jnp.log1p(left))


def interpolated(scores: Array, log_baseline: Array, *, alpha_logit: float) -> Array:
    """Return the bound between InfoNCE (alpha_logit = +inf) and TUBA (-inf): scores [N, N], log_baseline [N].

    The baseline is alpha times the mean over the row's other entries plus (1 - alpha) exp(log_baseline), with
    alpha = sigmoid(alpha_logit). Source: Poole et al. (2019), I_alpha, and the authors' notebook.

    Args:
      alpha_logit: logit of the share of InfoNCE's baseline.
    """
    rows, columns = scores.shape
    if rows != columns or rows < 2:
        raise ValueError(
            f"scores are {rows} x {columns}; interpolated needs a square matrix of at least 2 rows."
        )
    scores = at_least_float32(scores)
    mean = leave_one_out(scores) - math.log(rows - 1)
    baseline = jnp.logaddexp(
        mean + jax.nn.log_sigmoid(alpha_logit), log_baseline[:, None] + jax.nn.log_sigmoid(-alpha_logit)
    )
    positive, negative, count = row_statistics(scores)
    marginal = jnp.exp(log_marginal_mean(negative - jnp.diagonal(baseline), count))
    # An entry's baseline excludes that entry, so the joint score is paired with the N - 1 baselines of others.
    joint = jnp.where(jnp.eye(rows, dtype=bool), 0.0, positive[:, None] - baseline)
    return 1.0 + jnp.sum(joint) / (rows * (rows - 1)) - marginal
