"""Comparison -> scalars, inside the step: what a run says about itself while it trains.

A surrogate loss says nothing (FlatNCE is always 1), so these read the comparison, whatever the loss.
"""

import jax
import jax.numpy as jnp

from contrastive_jax.contrast.objective import Comparison
from contrastive_jax.sharding import REPLICATED, gather, on_mesh
from contrastive_jax.types import Array, Outputs


def effective_sample_size(comparison: Comparison, with_positive: bool = False) -> Array:
    """ESS of the softmax weights, as a share of their number, the mean over queries (FlatNCE, eq. 10).

    1 / (K sum_j w_j^2), in [1 / K, 1], over the negatives, or over the negatives and the positive
    (K + 1 of them), which is what InfoNCE weighs. Queries without negatives are left out.
    """
    # A margin shifts every negative's logit: once in the sum of weights, twice in that of their squares.
    once = comparison.contrast(1.0, margin=False) + comparison.margin
    twice = comparison.contrast(2.0, margin=False) + 2.0 * comparison.margin
    count = jnp.maximum(comparison.count, 1)
    if with_positive:  # the positive's own logit, relative to itself, is 0
        once, twice, count = jnp.logaddexp(once, 0.0), jnp.logaddexp(twice, 0.0), count + 1
    valid = comparison.count > 0
    share = jnp.exp(2.0 * once - twice) / count
    return jnp.sum(jnp.where(valid, share, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def effective_rank(z: Array) -> Array:
    """How many directions rows [B, W, D] vary in: (tr C)^2 / tr(C^2), C their covariance, in [1, D].

    The participation ratio of the spectrum; it needs no eigenvalues. 0 where nothing varies.
    """
    z = z - jnp.mean(z, axis=(0, 1))
    where = REPLICATED if on_mesh() else None
    c = jnp.einsum("bwd,bwe->de", z, z, precision=jax.lax.Precision.HIGHEST, out_sharding=where)
    trace = jnp.trace(c)
    c = c / jnp.maximum(trace, 1e-12)
    return jnp.where(trace > 1e-12, 1.0 / jnp.maximum(jnp.sum(c * c), 1e-12), 0.0)


def rounds_to_zero(dtype: jnp.dtype | str) -> float:
    """The largest weight W = 1 - p that is 0 where p, a number just below 1, is rounded to ``dtype``."""
    return float(jnp.finfo(dtype).epsneg) / 2


def of_comparison(comparison: Comparison, dtype: jnp.dtype | str = "float32") -> dict[str, Array]:
    """Scalars of the contrast between positives and negatives.

    Metrics:
      info_nce: InfoNCE at the step's tau, without a margin, whatever the loss.
      mi_estimate: what that says of the mutual information of the views, log(K + 1) - info_nce, in nats.
      contrast_accuracy: share of queries whose positive beats every negative.
      tau: the temperature.
      ess: effective sample size of the negatives' weights, as a share of their number, see
        :func:`effective_sample_size`.
      ess_with_positive: the same of the negatives and the positive, which is what InfoNCE weighs.
      w_p05, w_p50, w_p95: percentile (5, 50, 95) over queries of W = sigmoid(c), InfoNCE's weight on a query's
        gradient.
      saturated: share of queries whose W, with the margin, is not told from 0 in the dtype of the network.
      alignment: mean score of the positives.
      negatives: mean number of negatives of a query.
    """
    valid = comparison.count > 0
    valid_share = jnp.maximum(jnp.mean(valid.astype(comparison.positive.dtype)), 1e-12)
    c = comparison.contrast(margin=False)
    weights = gather(jax.nn.sigmoid(c)).reshape(-1)  # one number a query
    low, median, high = jnp.percentile(weights, jnp.asarray([5.0, 50.0, 95.0]))
    beats = comparison.positive > comparison.negatives.hardest
    return {
        "info_nce": jnp.mean(jnp.where(valid, jax.nn.softplus(c), 0.0)) / valid_share,
        "mi_estimate": jnp.mean(jnp.where(valid, jnp.log1p(comparison.count) - jax.nn.softplus(c), 0.0))
        / valid_share,
        "contrast_accuracy": jnp.mean(jnp.where(valid, beats, False)) / valid_share,
        "tau": comparison.temperature,
        "ess": effective_sample_size(comparison),
        "ess_with_positive": effective_sample_size(comparison, with_positive=True),
        "w_p05": low,
        "w_p50": median,
        "w_p95": high,
        "saturated": jnp.mean(valid & (jax.nn.sigmoid(comparison.contrast()) <= rounds_to_zero(dtype)))
        / valid_share,
        "alignment": jnp.mean(comparison.positive),
        "negatives": jnp.mean(comparison.count.astype(comparison.positive.dtype)),
    }


def of_outputs(outputs: Outputs, label: Array) -> dict[str, Array]:
    """Scalars of the network's outputs.

    Metrics:
      embedding_std: standard deviation of the normalised projections over the batch, the mean over dimensions,
        times sqrt(D): 1 for a uniform sphere, 0 when all embeddings are the same (collapse).
      effective_rank: how many directions the normalised projections vary in, see :func:`effective_rank`.
      probe_accuracy: top-1 of the online probe on the augmented views, where an image has one label.
    """
    z = outputs.projection
    z = z * jax.lax.rsqrt(jnp.maximum(jnp.sum(z * z, axis=-1, keepdims=True), 1e-12))
    found = {
        "embedding_std": jnp.mean(jnp.std(z, axis=(0, 1))) * z.shape[-1] ** 0.5,
        "effective_rank": effective_rank(z),
    }
    if outputs.logits.shape[-1] and label.ndim == 1:
        right = jnp.argmax(outputs.logits, axis=-1) == label[:, None]
        labelled = jnp.maximum(jnp.sum(label >= 0) * right.shape[1], 1)
        found["probe_accuracy"] = jnp.sum(right & (label >= 0)[:, None]) / labelled
    return found
