"""Losses on the distribution of embeddings: alignment of views, uniformity, distance to a prior."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.lax import Precision, stop_gradient
from jax.scipy.special import logsumexp

from contrastive_jax import sharding
from contrastive_jax.kinds import Positive
from contrastive_jax.losses import geometry
from contrastive_jax.losses.contrastive import at_least_float32, positive_option
from contrastive_jax.types import Array

PRIORS = ("normal", "hypercube", "hypersphere")


def unit(array: Array) -> Array:
    """Normalize rows [..., D] to length 1 (:func:`geometry.unit`); a zero row stays 0, with gradient 0."""
    return geometry.unit(jnp.asarray(array))


def embedding(array: Array, normalize: bool) -> Array:
    """Return the array in at least float32, on the unit sphere if ``normalize``."""
    return unit(array) if normalize else at_least_float32(array)


def alignment(
    projection: Array,
    *,
    normalize: bool = True,
    power: Positive = 2.0,
    mean_over_width: bool = False,
    scale: float = 1.0,
) -> Array:
    """Distance between the two views to a power, ``||x - y||^power``: [B, 2, D] -> [B].

    ``mean_over_width`` divides by D. The notebook of the generalized contrastive loss uses power 2, the mean
    over N D and scale 1/2 (the paper: times 1000 for normalised embeddings).
    Source: Wang & Isola (2020), alignment; Intriguing Properties (Chen et al., 2021), table 1.

    Args:
      normalize: whether embeddings are normalized to length 1 first.
      power: exponent of the distance.
      mean_over_width: whether to divide by the width D.
      scale: factor of the loss.
    """
    if projection.shape[1] != 2:
        raise ValueError(f"projection has {projection.shape[1]} views; alignment needs 2.")
    positive_option("alignment.power", power)
    views = embedding(projection, normalize)
    squared = jnp.sum((views[:, 0] - views[:, 1]) ** 2, axis=-1)
    apart = squared > 0  # a root has no gradient at 0
    distance = jnp.where(apart, jnp.where(apart, squared, 1.0) ** (power / 2), 0.0) if power != 2 else squared
    return scale * distance / (projection.shape[-1] if mean_over_width else 1)


def logsumexp_distribution(
    projection: Array,
    population: Array,
    temperature: Array,
    *,
    normalize: bool = True,
    subtract_log_width: bool = True,
    scale: float = 1.0,
) -> Array:
    """The distribution term of the generalized contrastive loss, ``logsumexp_k(s_ik / tau)``: -> [B, W].

    The queries are all views, with directions=one_way too. The sum includes the whole population [M, W, D], also
    the query and its positive, and log D is subtracted (the width, not the number of rows), both as in the authors'
    notebook. It holds [B W, M W] scores; ``decoupled_nt_xent(self_pair=True)`` computes the same term from
    contrasts, without them.
    Source: Intriguing Properties (Chen et al., 2021), table 1, and its notebook.

    Args:
      normalize: whether embeddings are normalized to length 1 first.
      subtract_log_width: whether log D is subtracted.
      scale: factor of the loss.
    """
    if jnp.ndim(temperature):
        raise ValueError(
            f"temperature has the shape {list(jnp.shape(temperature))}; logsumexp_distribution needs one temperature"
            " for the batch: set temperature=fixed, or another rule without a value per example."
        )
    width = projection.shape[-1]
    query, key = embedding(projection, normalize), embedding(population, normalize).reshape(-1, width)
    score = jnp.einsum("bwd,md->bwm", query, key, precision=Precision.HIGHEST)
    return scale * (
        logsumexp(score / temperature, axis=-1) - (math.log(width) if subtract_log_width else 0.0)
    )


def uniformity(population: Array, *, t: Positive = 2.0, normalize: bool = True) -> Array:
    """Uniformity, ``log mean exp(-t ||x - y||^2)`` over the distinct pairs of each view: [B, W, D] -> [W].

    Source: Wang & Isola (2020), uniformity.

    Args:
      t: scale of the Gaussian kernel.
      normalize: whether embeddings are normalized to length 1 first.
    """
    positive_option("uniformity.t", t)
    rows = population.shape[0]
    if rows < 2:
        raise ValueError(f"population has {rows} examples; uniformity needs at least 2.")
    view = jnp.swapaxes(embedding(population, normalize), 0, 1)
    product = jnp.einsum("wid,wjd->wij", view, view, precision=Precision.HIGHEST)
    norm = jnp.sum(view**2, axis=-1)
    squared = norm[:, :, None] + norm[:, None, :] - 2.0 * product
    sums = geometry.kernel_sums(squared, ~jnp.eye(rows, dtype=bool), t)
    return geometry.uniformity(sums, rows * (rows - 1))


def orthogonal_directions(key: Array, d: int, dtype=jnp.float32) -> Array:
    """Draw a random orthogonal matrix [d, d], uniform (Haar); its columns are directions."""
    rotation, triangle = jnp.linalg.qr(jax.random.normal(key, (d, d), dtype))
    return rotation * jnp.where(jnp.diagonal(triangle) < 0, -1.0, 1.0).astype(
        dtype
    )  # makes QR unique, hence Haar


def prior_samples(key: Array, prior: str, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
    """Draw from a prior: "normal" N(0, 1), "hypercube" uniform in [-1, 1], "hypersphere" uniform directions."""
    if prior not in PRIORS:
        raise ValueError(f"prior is {prior!r}; it must be one of {', '.join(PRIORS)}.")
    if prior == "hypercube":
        return jax.random.uniform(key, shape, dtype, minval=-1.0, maxval=1.0)
    sample = jax.random.normal(key, shape, dtype)
    return unit(sample) if prior == "hypersphere" else sample


def sliced_wasserstein_distance(sample: Array, prior_sample: Array, directions: Array) -> Array:
    """Return the squared Wasserstein distance of two samples along each direction, as a mean over samples.

    ``sample`` and ``prior_sample`` [N, D], ``directions`` [D, P] (unit columns) -> [P].
    Source: Intriguing Properties (Chen et al., 2021), and its notebook, whose sort is wrong for ties.

    Raises:
      ValueError: samples of different shapes.
    """
    if sample.shape != prior_sample.shape:
        raise ValueError(
            f"sample is {sample.shape} and prior_sample is {prior_sample.shape}; they must have one"
            " shape, [N, D]."
        )

    def project_and_sort(points):
        along = jnp.matmul(points, directions, precision=Precision.HIGHEST)
        # Not jnp.sort, whose gradient fails on a mesh in jax 0.10.
        return sharding.pick(along.T, jnp.argsort(stop_gradient(along).T, axis=-1)).T

    return jnp.mean((project_and_sort(sample) - project_and_sort(prior_sample)) ** 2, axis=0)


def sliced_wasserstein(
    population: Array,
    key: Array,
    *,
    prior: Literal["normal", "hypercube", "hypersphere"] = "hypersphere",
    scale: float = 1.0,
) -> Array:
    """Sliced Wasserstein distance of all embeddings [B, W, D] to as many prior samples, per direction: [D].

    Directions and prior samples are drawn from ``key``. Embeddings are normalised if and only if the prior is
    the hypersphere. The mean over directions is the notebook's value; the paper's text has the sum. The
    population is on every device, so there is no communication.
    Source: Intriguing Properties (Chen et al., 2021), table 1.

    Args:
      prior: prior distribution: normal, hypercube or hypersphere.
      scale: factor of the loss.
    """
    directions_key, prior_key = jax.random.split(key)
    width = population.shape[-1]
    sample = embedding(population, prior == "hypersphere").reshape(-1, width)
    prior_sample = prior_samples(prior_key, prior, sample.shape, sample.dtype)
    directions = orthogonal_directions(directions_key, width, sample.dtype)
    return scale * sliced_wasserstein_distance(sample, prior_sample, directions)
