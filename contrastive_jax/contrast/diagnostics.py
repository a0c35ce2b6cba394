"""Training metrics computed inside the step.

They are functions of the comparison, independent of the loss: the value of a surrogate loss contains no
information (FlatNCE is always 1).
"""

import functools
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from contrastive_jax.contrast.comparison import Comparison
from contrastive_jax.contrast.similarity import negative_statistics, normalize
from contrastive_jax.kinds import CountOrZero, checked
from contrastive_jax.losses import geometry
from contrastive_jax.losses.supervised import mean_of_labelled
from contrastive_jax.sharding import REPLICATED, on_mesh, replicate
from contrastive_jax.types import Array, Outputs, Pool

HIGHEST = jax.lax.Precision.HIGHEST
LEAST = 1e-12  # smallest nonzero trace of a Gram matrix in float32


@checked("diagnostics")
def diagnostics(
    dtype: str, apart: bool = False, *, quantiles: CountOrZero = 0, rankme: bool = False
) -> Callable[[Comparison, Outputs, Array], dict[str, Array]]:
    """Return ``(comparison, outputs, label) -> metrics``, the training metrics of each step.

    Args:
      dtype: compute type of the network.
      apart: whether the two views are those of two encoders; ``embedding_std`` and ``effective_rank`` are then the
        smaller of theirs.
      quantiles: number of equal-probability bins in the histogram of contrasts that each log point has; 0: no
        histogram.
      rankme: log RankMe of the batch's projections; needs the eigenvalues of a [D, D] matrix at every step.

    Raises:
      ValueError: an option out of range.
    """

    def diagnose(comparison: Comparison, outputs: Outputs, label: Array) -> dict[str, Array]:
        metrics = of_comparison(comparison, dtype) | of_outputs(outputs, label, apart)
        if quantiles:
            c, share = comparison.contrast(margin=False), jnp.linspace(0.0, 1.0, quantiles + 1)
            metrics["c_quantiles"], _ = _quantiles(c, comparison.count > 0, share)
        if rankme:
            metrics["rankme"] = spectral_entropy_rank(outputs.projection)
        return metrics

    return diagnose


def _quantiles(values: Array, valid: Array, share: Array) -> tuple[Array, Array]:
    """Return quantiles at levels ``share`` of the valid values [B, V] and of their sigmoid; 0 if empty."""
    values, valid = replicate(values).reshape(-1), replicate(valid).reshape(-1)
    ordered = jnp.sort(jnp.where(valid, values, jnp.inf))
    last = jnp.maximum(jnp.sum(valid) - 1, 0)
    place = share.astype(values.dtype) * last
    below = jnp.floor(place).astype(jnp.int32)
    low, high = ordered[below], ordered[jnp.minimum(below + 1, last)]
    part = place - below

    def between(low, high):
        return jnp.where(jnp.any(valid), low * (1 - part) + high * part, 0.0)

    return between(low, high), between(jax.nn.sigmoid(low), jax.nn.sigmoid(high))


def effective_sample_size(comparison: Comparison, with_positive: bool = False) -> Array:
    """Compute the mean ESS of queries' softmax weights, as a share of the number of weights (FlatNCE, eq. 10).

    1 / (K sum_j w_j^2), in [1 / K, 1], over the K negatives, or over the K + 1 candidates of InfoNCE including
    the positive. Queries without negatives are left out.
    """
    # A margin shifts every negative's logit: once in the sum of weights, twice in the sum of squares.
    once = comparison.contrast(1.0, margin=False) + comparison.margin
    twice = comparison.contrast(2.0, margin=False) + 2.0 * comparison.margin
    count = jnp.maximum(comparison.count, 1)
    if with_positive:  # the positive's own logit, relative to itself, is 0
        once, twice, count = jnp.logaddexp(once, 0.0), jnp.logaddexp(twice, 0.0), count + 1
    valid = comparison.count > 0
    share = jnp.exp(2.0 * once - twice) / count
    return jnp.sum(jnp.where(valid, share, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def kl_from_uniform(comparison: Comparison) -> Array:
    """Compute the mean KL(p || uniform), in nats, of the softmax weights p of queries' negatives.

    ``log K - H(p)``, in [0, log K], over queries that have negatives. e^-KL is the effective number of
    negatives as a share of K, by Shannon entropy; the ESS is the same by the sum of squares. The margin does
    not change p.
    """
    return jnp.sum(query_kl_from_uniform(comparison)) / jnp.maximum(jnp.sum(comparison.count > 0), 1)


def query_kl_from_uniform(comparison: Comparison) -> Array:
    """Compute :func:`kl_from_uniform` of each query, [B, V]; 0 without negatives."""
    place, some = comparison.multiples.index(1.0), comparison.count > 0
    negatives = comparison.negatives
    above = jnp.where(some, negatives.mean[place] - comparison.positive, 0.0) / comparison.temperature
    entropy = jnp.where(some, negatives.logsumexp[place], 0.0) - above
    divergence = jnp.log(jnp.maximum(comparison.count, 1).astype(entropy.dtype)) - entropy
    return jnp.where(some, jnp.maximum(divergence, 0.0), 0.0)


def query_effective_sample_size(c: Array, valid: Array) -> Array:
    """Compute the ESS of the n valid queries' weights W = sigmoid(c), (sum W)^2 / (n sum W^2).

    1 if InfoNCE's gradient weights all queries equally, 1 / n if one query has all the weight. Computed from
    the weights' logarithms, so it is correct even if each W rounds to 0.
    """
    share = jax.nn.softmax(jax.nn.log_sigmoid(c), axis=None, where=valid)
    return jnp.where(jnp.any(valid), 1.0 / (jnp.sum(valid) * jnp.sum(share**2)), 0.0)


def effective_rank(z: Array) -> Array:
    """Return the effective rank of rows [B, W, D], in [1, D], by :func:`geometry.participation_ratio`.

    0 without variance. RankMe (:func:`spectral_entropy_rank`) uses the entropy of the singular values instead
    of the squares of the eigenvalues, and does not centre the rows: weak directions count more, and a common
    offset counts as a direction.
    """
    return geometry.participation_ratio(_gram(z - jnp.mean(z, axis=(0, 1))), LEAST)


def spectral_entropy_rank(z: Array) -> Array:
    """Compute RankMe of rows [B, W, D] (Garrido et al., 2023, equation 1), in [1, min(B W, D)].

    exp of the entropy of the singular values divided by their sum. Rows are neither centred nor normalised.
    Singular values below a thousandth of the largest are not resolved in float32; they contribute little.
    """
    gram = _gram(geometry.in_range(z, axis=None)[0])
    trace = jnp.trace(gram)
    values = jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(gram / jnp.maximum(trace, LEAST)), 0.0))
    return jnp.where(trace > LEAST, geometry.spectral_entropy_rank(values), 0.0)


def _gram(z: Array) -> Array:
    """Return Z^T Z, [D, D]."""
    where = REPLICATED if on_mesh() else None
    return jnp.einsum("bwd,bwe->de", z, z, precision=HIGHEST, out_sharding=where)


def contrast_entropy(comparison: Comparison) -> Array:
    """Compute the entropy [B, V], in nats, of the softmax over positive and negatives, without margin.

    log(1 + K) if all scores are equal, 0 if one candidate has all the weight. SimCLR's ``contrast_entropy`` is
    the same over the positive and the negatives of the other view only.
    """
    c = comparison.contrast(margin=False)
    mean = comparison.negatives.mean[comparison.multiples.index(1.0)]
    logit = jnp.where(comparison.count > 0, (mean - comparison.positive) / comparison.temperature, 0.0)
    return jax.nn.softplus(c) - jax.nn.sigmoid(c) * logit  # log of the sum, less the mean logit


def uniformity(z: Array, t: float = 2.0) -> Array:
    """Return :func:`geometry.uniformity` over the distinct pairs of rows [B, D] of length 1.

    Uses the engines of the comparison, which form no [B, B] array for large batches.
    """
    number = jnp.arange(z.shape[0])
    statistics = negative_statistics(z, number, Pool(replicate(z), number), jnp.asarray(2.0 * t, z.dtype))
    sums = statistics.logsumexp[0] - 2.0 * t  # ||x - y||^2 = 2 - 2 x.y
    return geometry.uniformity(sums, z.shape[0] * (z.shape[0] - 1))


def rounds_to_zero(dtype: jnp.dtype | str) -> float:
    """Return the largest weight W = 1 - p that becomes 0 because p rounds to 1 in ``dtype``."""
    return float(jnp.finfo(dtype).epsneg) / 2


def _mean(comparison: Comparison, values: Array) -> Array:
    """Return the mean of values [B, V] over the queries that have negatives; 0 if there are no such queries."""
    valid = comparison.count > 0
    share = jnp.maximum(jnp.mean(valid.astype(comparison.positive.dtype)), 1e-12)
    return jnp.mean(jnp.where(valid, values, jnp.zeros_like(values))) / share


def info_nce(comparison: Comparison) -> Array:
    """Compute the mean InfoNCE, in nats and without margin, over queries that have negatives."""
    return _mean(comparison, jax.nn.softplus(comparison.contrast(margin=False)))


def mi_estimate(comparison: Comparison) -> Array:
    """Compute InfoNCE's estimate of mutual information in nats: log(1 + K) minus InfoNCE."""
    c = comparison.contrast(margin=False)
    return _mean(comparison, jnp.log1p(comparison.count) - jax.nn.softplus(c))


def contrast_accuracy(comparison: Comparison) -> Array:
    """Compute the share of queries whose positive has a higher score than all negatives."""
    return _mean(comparison, comparison.positive > comparison.negatives.hardest)


def query_ess(comparison: Comparison) -> Array:
    """Compute :func:`query_effective_sample_size` of the contrasts without the margin."""
    return query_effective_sample_size(comparison.contrast(margin=False), comparison.count > 0)


def saturated(comparison: Comparison, dtype: jnp.dtype | str) -> Array:
    """Compute the share of queries whose weight W, margin included, is at most :func:`rounds_to_zero`."""
    return _mean(comparison, jax.nn.sigmoid(comparison.contrast()) <= rounds_to_zero(dtype))


# Metrics that temperature rules may read by name (``Temperature.reads``): (comparison, compute type) -> scalar.
OUTCOMES: dict[str, Callable[[Comparison, jnp.dtype | str], Array]] = {
    "ess": lambda comparison, dtype: effective_sample_size(comparison),
    "kl_uniform": lambda comparison, dtype: kl_from_uniform(comparison),
    "ess_with_positive": lambda comparison, dtype: effective_sample_size(comparison, with_positive=True),
    "query_ess": lambda comparison, dtype: query_ess(comparison),
    "contrast_entropy": lambda comparison, dtype: _mean(comparison, contrast_entropy(comparison)),
    "saturated": saturated,
    "alignment": lambda comparison, dtype: jnp.mean(comparison.raw_positive),
    "info_nce": lambda comparison, dtype: info_nce(comparison),
    "mi_estimate": lambda comparison, dtype: mi_estimate(comparison),
    "contrast_accuracy": lambda comparison, dtype: contrast_accuracy(comparison),
}


def of_comparison(comparison: Comparison, dtype: jnp.dtype | str = "float32") -> dict[str, Array]:
    """Compute metrics of the contrast between positives and negatives, over queries that have negatives."""
    c, share = comparison.contrast(margin=False), jnp.asarray([0.05, 0.5, 0.95])
    of_c, of_w = _quantiles(c, comparison.count > 0, share)
    return {name: outcome(comparison, dtype) for name, outcome in OUTCOMES.items()} | {
        "tau": jnp.mean(comparison.temperature),
        **{f"c_p{p}": value for p, value in zip(("05", "50", "95"), of_c, strict=True)},
        **{f"w_p{p}": value for p, value in zip(("05", "50", "95"), of_w, strict=True)},
        "negatives": jnp.mean(comparison.count.astype(comparison.positive.dtype)),
        **({} if comparison.bias is None else {"bias": comparison.bias}),
    }


def of_outputs(outputs: Outputs, label: Array, apart: bool = False) -> dict[str, Array]:
    """Compute metrics of the network's outputs; ``apart``: the views are those of two encoders.

    Two encoders that map all to one point each, but not to the same point, would together seem to vary.
    """
    z = normalize(outputs.projection)
    encoders = [z[:, :1], z[:, 1:]] if apart else [z]
    metrics = {
        "embedding_std": _least(jnp.mean(jnp.std(z, axis=(0, 1))) * z.shape[-1] ** 0.5 for z in encoders),
        "effective_rank": _least(map(effective_rank, encoders)),
        "uniformity": uniformity(z[:, 0]),
        "embedding_largest": jnp.max(jnp.abs(outputs.projection.astype(z.dtype))),
    }
    if outputs.logits.shape[-1] and label.ndim == 1:
        right = jnp.argmax(outputs.logits, axis=-1) == label[:, None]  # no class is negative
        metrics["probe_accuracy"] = mean_of_labelled(right, label)
    return metrics


def _least(values: Iterable[Array]) -> Array:
    return functools.reduce(jnp.minimum, values)


def of_query_gradients(gradient: Array) -> dict[str, Array]:
    """Compute metrics of the gradient [B, V, D] of the loss with respect to the query embeddings.

    The embeddings are those that are compared (normalised for cosine scores), and the keys are held fixed. The
    loss is a mean over B V queries, so a query's own gradient is B V times its entry.
    """
    norm = gradient.shape[0] * gradient.shape[1] * jnp.sqrt(jnp.sum(gradient**2, axis=-1))
    return {"query_gradient_norm": jnp.mean(norm), "query_gradient_norm_std": jnp.std(norm)}
