"""Transforms of scores before the softmax.

A transform consists of functions of scalars, applied elementwise within tiles, so that engines need no further
memory or pass. The family's contrast is then

    c = logsumexp_j((t(s_j, s+, tau) + tau log w_j - t+(s+, tau)) / tau)      (j over the negatives)

with t for negatives, t+ for positives and weights w. Every multiple of 1 / tau, the margin and the diagnostics
use the transformed scores; alignment, and the temperatures that depend on it, use the positive's original
score.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax.contrast.scores import Transform
from contrastive_jax.kinds import Gt, Lt, NonNegative, Positive, checked
from contrastive_jax.types import Array

# f'(u) and u f'(u) - f(u), the conjugate at f'(u), as functions of log u, of convex f with f(1) = 0.
DIVERGENCES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "kl": (lambda x: 1.0 + x, jnp.exp),  # u log u
    "jensen_shannon": (  # u log u - (u + 1) log((u + 1) / 2)
        lambda x: math.log(2.0) - jax.nn.softplus(-x),
        lambda x: jax.nn.softplus(x) - math.log(2.0),
    ),
    "pearson": (lambda x: 2.0 * jnp.expm1(x), lambda x: jnp.expm1(2.0 * x)),  # (u - 1)^2
    "hellinger": (lambda x: -jnp.expm1(-0.5 * x), lambda x: jnp.expm1(0.5 * x)),  # (sqrt u - 1)^2
    "vincze_le_cam": (  # (u - 1)^2 / (u + 1)
        lambda x: 1.0 - 4.0 / (1.0 + jnp.exp(x)) ** 2,
        lambda x: (3.0 * jnp.exp(x) + 1.0) * jnp.expm1(x) / (1.0 + jnp.exp(x)) ** 2,
    ),
}
LARGEST = 1.0 - 1e-6  # cosines are clipped here, at 2 artanh(s) = 14.5; at 1 it is infinite


def none() -> Transform:
    """No transform."""
    return Transform()


def temperature_free() -> Transform:
    """The logit ``log((1 + s) / (1 - s)) = 2 artanh(s)`` of a cosine, for positives and negatives, without temperature.

    Cosines are clipped to 1 - 1e-6 in size, a logit of 14.5. Losses that read the temperature outside the contrast
    (``decoupled_nt_xent``, ``mean_contrast``, ``dclw``, ``ifm``, ``robust``, ``sogclr``) still depend on it.
    Other multiples of 1 / tau (ESS) multiply the logit.
    Source: Temperature-free loss function for contrastive learning (Kim and Kim, 2025, arXiv 2501.17683).
    """

    def logit(score, tau):
        return tau * 2.0 * jnp.arctanh(jnp.clip(score, -LARGEST, LARGEST))

    negative = lambda score, positive, tau: logit(score, tau)  # noqa: E731
    return Transform(negative, logit, cosine_only=True, cancels_temperature=True)


@checked("transform")
def dystress(*, min_tau: Positive = 0.1, max_tau: Positive = 0.2) -> Transform:
    """A temperature for each pair, ``s / tau(s)`` with ``tau(s) = min + (max - min) (1 + cos(pi (1 + s))) / 2``.

    It is ``max_tau`` at a cosine of -1 or 1 and ``min_tau`` at 0, for positives and negatives, and constant in
    the gradient as in the authors' code; the run's temperature cancels, as in ``temperature_free``.
    Equal limits are one constant temperature.
    Source: DySTreSS (Manna et al., 2023, arXiv 2308.01140).

    Args:
      min_tau: temperature of pairs whose cosine is 0.
      max_tau: temperature of pairs whose cosine is 1 or -1.
    """
    if min_tau > max_tau:
        raise ValueError(f"transform.min_tau is {min_tau}; it must be at most transform.max_tau={max_tau}.")

    def divided(score, tau):
        own = min_tau + (max_tau - min_tau) * (1.0 + jnp.cos(jnp.pi * (1.0 + score))) / 2.0
        return tau * score / lax.stop_gradient(own)

    negative = lambda score, positive, tau: divided(score, tau)  # noqa: E731
    return Transform(negative, divided, cosine_only=True, cancels_temperature=True)


@checked("transform")
def adnce(*, mu: Annotated[float, Gt(-10), Lt(10)] = 0.7, sigma: Positive = 1.0) -> Transform:
    """Gaussian weights of the negatives, ``w_j ~ exp(-(s_j - mu)^2 / (2 sigma^2))``, with mean 1 per query.

    Weights are constant in the gradient. A large sigma approaches InfoNCE.
    Source: Understanding contrastive learning via distributionally robust optimization (Wu et al., 2023), ADNCE.

    Args:
      mu: score with the largest weight.
      sigma: standard deviation of the weights, in units of the score.
    """
    return Transform(log_weight=lambda score, positive, tau: -0.5 * ((score - mu) / sigma) ** 2)


@checked("transform")
def hardness(*, alpha: NonNegative = 1.0) -> Transform:
    """``alpha sg(s)`` added to every negative's score, which weights the negative by ``e^(alpha s / tau)``.

    With InfoNCE it is the loss ``hardness_weighted``; it works with any loss.
    Source: LLaVE, hardness-weighted contrastive learning (Lan et al., 2025).

    Args:
      alpha: weight of hardness, in units of 1 / tau; 0: no change.
    """
    return Transform(lambda score, positive, tau: score + alpha * lax.stop_gradient(score))


@checked("transform")
def spectral(*, mu: Positive = 1.0) -> Transform:
    """``mu s^2`` for negatives, ``2 s`` for the positive; with ``mean_contrast`` the spectral loss over mu.

    For embeddings of squared length mu; the authors' code compares the two views of a batch with each other.
    Source: Provable guarantees for self-supervised deep learning with spectral contrastive loss (HaoChen et al., 2021).

    Args:
      mu: squared length of the embeddings in the published loss.
    """
    return Transform(lambda score, positive, tau: mu * score**2, lambda score, tau: 2.0 * score)


@checked("transform")
def gaussian_kernel(*, t: Positive = 2.0) -> Transform:
    """``e^(-t ||x - y||^2) = e^(-2 t (1 - s))`` for positives and negatives; with ``mean_contrast`` it is KCL.

    Source: Bridging mini-batch and asymptotic analysis in contrastive learning (Koromilas et al., 2024).

    Args:
      t: inverse squared width of the kernel.
    """

    def kernel(score, tau):
        return jnp.exp(-2.0 * t * (1.0 - score))

    return Transform(lambda score, positive, tau: kernel(score, tau), kernel, cosine_only=True)


@checked("transform")
def f_micl(
    *,
    divergence: Literal["kl", "jensen_shannon", "pearson", "hellinger", "vincze_le_cam"] = "jensen_shannon",
    t: Positive = 2.0,
) -> Transform:
    """``u f'(u) - f(u)`` for negatives, ``f'(u)`` for the positive, of the Gaussian ``u = e^(-2 t (1 - s))``.

    With ``mean_contrast``, whose ``gamma`` is the weight of the negatives, it is minus the bound of the
    f-divergence between pairs of positives and of others, at the critic f'(u). ``kl`` is NWJ's estimate,
    ``jensen_shannon`` SigLIP's loss up to constants. The published width and weight depend on the data set; the
    defaults are our own.
    Source: f-MICL: understanding and generalizing InfoNCE-based contrastive learning (Lu et al., 2023).

    Args:
      divergence: f, by name.
      t: inverse squared width of the Gaussian, 1 / (2 sigma^2).
    """
    slope, conjugate = DIVERGENCES[divergence]

    def log_kernel(score):
        return -2.0 * t * (1.0 - score)

    return Transform(
        lambda score, positive, tau: conjugate(log_kernel(score)),
        lambda score, tau: slope(log_kernel(score)),
        cosine_only=True,
    )


@checked("transform")
def margin_mask(*, margin: Annotated[float, Gt(-2), Lt(2)] = 0.1) -> Transform:
    """Negatives scored above ``s+ + margin`` are masked as probable false negatives.

    They are left out of the sums and of K_i; a query without any negatives left has loss 0.
    Source: Qwen3 Embedding (Zhang et al., 2025, arXiv 2506.05176), with a margin of 0.1.

    Args:
      margin: largest allowed difference between a negative's and the positive's score.
    """
    return Transform(lambda score, positive, tau: jnp.where(score > positive + margin, -jnp.inf, score))
