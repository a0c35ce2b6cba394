"""Transforms of the scores: the function of a score that a softmax reads in the score's place.

A transform is a few functions of scalars, applied entry by entry and tile by tile, so that each engine keeps its
memory and its one pass. The family's contrast is then

    c = logsumexp_j((t(s_j, s+, tau) + tau log w_j - t+(s+, tau)) / tau)      (j over the negatives)

with t for negatives, t+ for positives and weights w. Every multiple of 1 / tau, the margin and the diagnostics read the
transformed scores; alignment, and the temperatures that follow it, read the score of the positive as it was.
"""

from typing import Annotated

import jax.numpy as jnp
from jax import lax

from contrastive_jax.contrast.scores import Transform
from contrastive_jax.kinds import Gt, Lt, NonNegative, Positive, checked

LARGEST = 1.0 - 1e-6  # cosine beyond which 2 artanh(s) stays at 14.5: at 1 it is infinite


def none() -> Transform:
    """Scores as they are."""
    return Transform()


def temperature_free() -> Transform:
    """The logit ``log((1 + s) / (1 - s)) = 2 artanh(s)`` of a cosine, for positives and negatives, without temperature.

    Cosines beyond 1 - 1e-6 count as that: a logit of 14.5. Other multiples of 1 / tau (ESS) multiply the logit.
    Source: Temperature-free loss function for contrastive learning (Kim and Kim, 2025, arXiv 2501.17683).
    """

    def logit(score, tau):
        return tau * 2.0 * jnp.arctanh(jnp.clip(score, -LARGEST, LARGEST))

    return Transform(lambda score, positive, tau: logit(score, tau), logit, cosine_only=True)


@checked("transform")
def dystress(*, min_tau: Positive = 0.1, max_tau: Positive = 0.2) -> Transform:
    """A temperature for each pair, ``s / tau(s)`` with ``tau(s) = min + (max - min) (1 + cos(pi (1 + s))) / 2``.

    It is ``max_tau`` at a cosine of -1 or 1 and ``min_tau`` at 0, for positives and negatives, held constant in the
    gradient as in the authors' code; the run's temperature has no part in the logits. Equal limits are one temperature.
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

    return Transform(lambda score, positive, tau: divided(score, tau), divided, cosine_only=True)


@checked("transform")
def adnce(*, mu: Annotated[float, Gt(-10), Lt(10)] = 0.7, sigma: Positive = 1.0) -> Transform:
    """Gaussian weights of the negatives, ``w_j ~ exp(-(s_j - mu)^2 / (2 sigma^2))``, of mean 1 over a query's.

    Held constant in the gradient. A large sigma is InfoNCE.
    Source: Understanding contrastive learning via distributionally robust optimization (Wu et al., 2023), ADNCE.

    Args:
      mu: score of the negatives that weigh most.
      sigma: width of the weights, in scores.
    """
    return Transform(log_weight=lambda score, positive, tau: -0.5 * ((score - mu) / sigma) ** 2)


@checked("transform")
def hardness(*, alpha: NonNegative = 1.0) -> Transform:
    """``alpha sg(s)`` added to every negative's score: hard negatives weigh more, by ``e^(alpha s / tau)``.

    On InfoNCE it is the loss ``hardness_weighted``; this takes any loss.
    Source: LLaVE, hardness-weighted contrastive learning (Lan et al., 2025).

    Args:
      alpha: weight of the hardness, relative to 1 / tau; 0 changes nothing.
    """
    return Transform(lambda score, positive, tau: score + alpha * lax.stop_gradient(score))


@checked("transform")
def spectral(*, mu: Positive = 1.0) -> Transform:
    """``mu s^2`` of negatives and ``2 s`` of the positive: with the loss ``mean_contrast`` the spectral loss over mu.

    For embeddings of squared length mu; authors' code compares the two views of a batch with each other.
    Source: Provable guarantees for self-supervised deep learning with spectral contrastive loss (HaoChen et al., 2021).

    Args:
      mu: squared length of the embeddings that the cosine stands for.
    """
    return Transform(lambda score, positive, tau: mu * score**2, lambda score, tau: 2.0 * score)


@checked("transform")
def gaussian_kernel(*, t: Positive = 2.0) -> Transform:
    """``e^(-t ||x - y||^2) = e^(-2 t (1 - s))`` of cosines, for positives and negatives: KCL with ``mean_contrast``.

    Source: Bridging mini-batch and asymptotic analysis in contrastive learning (Koromilas et al., 2024).

    Args:
      t: inverse width of the kernel.
    """

    def kernel(score, tau):
        return jnp.exp(-2.0 * t * (1.0 - score))

    return Transform(lambda score, positive, tau: kernel(score, tau), kernel, cosine_only=True)


@checked("transform")
def margin_mask(*, margin: Annotated[float, Gt(-2), Lt(2)] = 0.1) -> Transform:
    """No negative that scores above ``s+ + margin``: it may show what the positive shows.

    Such a candidate is left out of the sums and of K_i; a query that loses all its negatives has the loss 0.
    Source: Qwen3 Embedding (Zhang et al., 2025, arXiv 2506.05176), with a margin of 0.1.

    Args:
      margin: by how much a negative's score may exceed the positive's.
    """
    return Transform(lambda score, positive, tau: jnp.where(score > positive + margin, -jnp.inf, score))
