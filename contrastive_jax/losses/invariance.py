"""Losses that predict one view from the other: BYOL's regression, ReLIC's divergence."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.lax import Precision, stop_gradient

from contrastive_jax.losses.contrastive import at_least_float32, dcl, info_nce
from contrastive_jax.losses.distribution import embedding, unit
from contrastive_jax.sharding import rows_sharding
from contrastive_jax.types import Array

NOT_PERMITTED = -1e30  # finite, so that 0 times a masked logarithm is 0


def byol(prediction: Array, target: Array) -> Array:
    """BYOL's regression, ``2 - 2 cos`` of a view's prediction and another view's target, for all pairs of views.

    ``prediction`` [B, Q, D] and ``target`` [B, W, D] with Q >= W >= 2; view v of both is the same view. Two views
    give [B, 2], more of them [B, V] for the pairs (0, 1), (0, 2), ..., (1, 0), ... The target carries no gradient.
    Source: BYOL (Grill et al., 2020), eq. 2.
    """
    predicted, views = prediction.shape[1], target.shape[1]
    if not predicted >= views >= 2:
        raise ValueError(
            f"prediction has {predicted} views and target {views}; byol needs at least 2 of both, and no fewer"
            " predictions than targets."
        )
    if predicted == 2:
        return 2.0 - 2.0 * jnp.sum(unit(prediction) * stop_gradient(unit(target))[:, ::-1], axis=-1)
    query, key = unit(prediction), stop_gradient(unit(target))
    cosine = jnp.einsum("bqd,bwd->bqw", query, key, precision=Precision.HIGHEST)
    pairs = [cosine[:, q, w] for q in range(predicted) for w in range(views) if q != w]
    return 2.0 - 2.0 * jnp.stack(pairs, axis=1)


def relic_kl(
    cross: Array,
    same: Array,
    *,
    positive: Literal["included", "excluded"] = "included",
    stop_gradient_same: bool = False,
) -> Array:
    """ReLIC's invariance penalty ``KL(p^vw || p^ww)`` from rows of scores over tau: [..., 1 + K] -> [...].

    ``cross`` compares view v of the query with view w of the candidates, ``same`` view w with view w. Equation
    3 corresponds to ``candidates=other_view``; with both_views each row also holds view v of the other
    examples. Column 0 is the query's own example (so ``same[..., 0]`` is its similarity to itself); -inf marks
    candidates that are not permitted. The paper leaves open whether the positive is among the M candidates
    (``positive`` "included" or "excluded") and whether p^ww is a target (``stop_gradient_same``).
    Source: Less Can Be More in Contrastive Learning (Mitrovic et al., 2020), eq. 3.

    Args:
      positive: whether both distributions contain the positive: included or excluded.
      stop_gradient_same: whether the distribution of one view against itself is a constant target.
    """
    if positive not in ("included", "excluded"):
        raise ValueError(f'relic_kl.positive is {positive!r}; it must be "included" or "excluded".')
    first = 0 if positive == "included" else 1
    cross, same = at_least_float32(cross)[..., first:], at_least_float32(same)[..., first:]
    same = stop_gradient(same) if stop_gradient_same else same
    permitted = (cross > -jnp.inf) & (same > -jnp.inf)
    log_p = jax.nn.log_softmax(jnp.where(permitted, cross, NOT_PERMITTED), axis=-1)
    log_q = jax.nn.log_softmax(jnp.where(permitted, same, NOT_PERMITTED), axis=-1)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def relic(
    projection: Array,
    population: Array,
    temperature: Array,
    negative: Array | None = None,
    *,
    alpha: float = 1.0,
    positive: Literal["included", "excluded"] = "included",
    same_view: bool = False,
    stop_gradient_same: bool = False,
    score: str = "cosine",
) -> Array:
    """Return ReLIC: the sum over pairs of views (v, w) of cross-entropy and ``alpha`` KL(p^vw || p^ww): [B].

    ``projection`` and ``population`` are the same rows [B, 2, D], the latter on every device. ``negative``
    [B, K] holds each example's negatives as row numbers of the population, its own never among them; a number
    outside gives NaN. None: all others. Options cover the paper's ambiguities: ``same_view`` adds
    the pairs v = w (their KL is 0, their positive the query itself), ``positive`` and ``stop_gradient_same`` are
    those of :func:`relic_kl`. It holds [B, 2, 2, 1 + K] scores.
    Source: Less Can Be More in Contrastive Learning (Mitrovic et al., 2020), eq. 3.

    Args:
      alpha: weight of the divergence.
      positive: whether both distributions and the cross-entropy contain the positive: included, or excluded
        (the cross-entropy is then DCL).
      same_view: whether pairs of a view with itself are included.
      stop_gradient_same: as in relic_kl.
      score: cosine or dot.
    """
    if score not in ("cosine", "dot"):
        raise ValueError(f'relic.score is {score!r}; it must be "cosine" or "dot".')
    if negative is None and population.shape[0] < 2:
        raise ValueError(f"population has {population.shape[0]} examples; relic needs at least 2.")
    query, key = embedding(projection, score == "cosine"), embedding(population, score == "cosine")
    own = jnp.einsum("bvd,bwd->bvw", query, query, precision=Precision.HIGHEST)
    if negative is None:
        other = jnp.einsum("bvd,mwd->bvwm", query, key, precision=Precision.HIGHEST)
        itself = jnp.arange(query.shape[0], out_sharding=rows_sharding())[:, None] == jnp.arange(key.shape[0])
        other = jnp.where(itself[:, None, None], -jnp.inf, other)
    else:
        place = negative.astype(jnp.int32)
        place = jnp.where(place < 0, key.shape[0], place)  # JAX counts negative places from the end
        candidate = key.at[place].get(mode="fill", fill_value=jnp.nan, out_sharding=rows_sharding())
        other = jnp.einsum("bvd,bkwd->bvwk", query, candidate, precision=Precision.HIGHEST)
    c = jax.nn.logsumexp((other - own[..., None]) / temperature, axis=-1)
    nce = info_nce(c) if positive == "included" else dcl(c)
    row = jnp.concatenate([own[..., None], other], axis=-1) / temperature
    same = jnp.stack([row[:, 0, 0], row[:, 1, 1]], axis=1)
    cross = jnp.stack([row[:, 1, 0], row[:, 0, 1]], axis=1)  # entry w: the other view with view w
    divergence = relic_kl(cross, same, positive=positive, stop_gradient_same=stop_gradient_same)
    compared = jnp.sum(nce, axis=(1, 2)) if same_view else nce[:, 0, 1] + nce[:, 1, 0]
    return compared + alpha * jnp.sum(divergence, axis=1)
