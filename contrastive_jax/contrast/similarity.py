"""What the negatives of every query amount to: one primitive, two engines, one result.

Almost every loss of the family is a function of ``logsumexp_j(score_ij / tau)`` over the negatives j.
:func:`dense_statistics` is the definition, to be read; :func:`tiled_statistics` streams tiles of
queries and candidates with a running maximum and a backward pass written by hand, so that memory is
O((Q + M) * D) and no [Q, M] array ever exists. :func:`selected_statistics` is for random subsets.

Scores are true products of the embeddings (``precision=HIGHEST``: the defaults are TF32 on GPUs and
bfloat16 on TPUs, which costs 1 % of a logit at tau = 0.1). The largest score is subtracted *before*
the scale multiplies, so that what weighs most in a softmax is exact at any temperature.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax import sharding
from contrastive_jax.types import Array, Negatives, Pool

ENGINES = ("auto", "dense", "tiled")
SAME_GROUP = ("exclude", "keep")
DENSE_UP_TO = 1024 * 1024  # entries of the score matrix; measured in experiments/performance
TILE = (1024, 512)  # queries, candidates: the shape hardly matters from 512 up


def normalize(x: Array, eps: float = 1e-12) -> Array:
    """Unit vectors along the last axis, ``x * rsqrt(max(sum x^2, eps))``: finite gradient at x = 0.

    Half precision comes back as float32: eps is below its range.
    """
    x = x.astype(_compute_dtype(x))
    return x * lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), eps))


def negative_statistics(
    query: Array,
    query_group: Array,
    pool: Pool,
    scale: Array,
    reference: Array | None = None,
    *,
    engine: str = "auto",
    same_group: str = "exclude",
) -> Negatives:
    """Count, logsumexp at every scale, softmax mean and hardest score of each query's negatives.

    Args:
      query: [Q, D]. On a mesh its rows are sharded, and so are those of the result.
      query_group: [Q] int. A candidate of the query's own group is not its negative.
      pool: M candidates, replicated on every device.
      scale: [S] or scalar, positive: inverse temperatures. Carries a gradient.
      reference: [Q], taken off a query's scores in ``logsumexp`` (not in ``mean`` and ``hardest``), before
        the scale multiplies: with the positive's score there, ``logsumexp`` is the contrast c to the last
        bits of the scores, however small the temperature. Carries a gradient. None is 0.
      engine: "dense" forms the [Q, M] score matrix; "tiled" never does, and has reverse-mode gradients
        only (no ``jvp``); "auto" is dense up to about a million scores.
      same_group: "exclude", or "keep" for MoCo's queue as published, where every candidate counts.

    Returns:
      :class:`Negatives`, float32 (float64 where an input is). ``mean`` and ``hardest`` carry no gradient.
      A query without negatives has count 0, logsumexp and hardest -inf, mean 0 and gradient 0.

    Raises:
      ValueError: an unknown engine or same_group, or shapes that do not fit.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r} is unknown: choose one of {', '.join(ENGINES)}.")
    if engine == "auto":
        engine = "dense" if query.shape[0] * pool.key.shape[0] <= DENSE_UP_TO else "tiled"
    statistics = dense_statistics if engine == "dense" else tiled_statistics
    return statistics(query, query_group, pool, scale, reference, same_group=same_group)


def dense_statistics(
    query: Array,
    query_group: Array,
    pool: Pool,
    scale: Array,
    reference: Array | None = None,
    *,
    same_group: str = "exclude",
) -> Negatives:
    """The definition of :func:`negative_statistics`, on the [Q, M] score matrix."""
    query, query_group, pool, scale, reference = _arguments(
        query, query_group, pool, scale, reference, same_group
    )
    score = jnp.matmul(query, pool.key.T, precision=lax.Precision.HIGHEST)  # [Q, M]
    return _statistics(score, permitted_candidates(query_group, pool.group, same_group), scale, reference)


def selected_statistics(
    query: Array, pool: Pool, index: Array, permitted: Array, scale: Array, reference: Array | None = None
) -> Negatives:
    """The statistics of K chosen candidates a query, in O(Q * K * D): random subsets of the negatives.

    Args:
      query: [Q, D], on a mesh sharded by rows.
      pool: M candidates, replicated; the groups are not looked at.
      index: [Q, K] int, candidates of each query (:func:`contrastive_jax.contrast.negatives.random_subset`).
      permitted: [Q, K] bool, which of them count.
      scale: [S] or scalar, positive.
      reference: [Q] or None, as in :func:`negative_statistics`.

    Returns:
      :class:`Negatives` as from :func:`negative_statistics`.
    """
    if index.ndim != 2 or index.shape != permitted.shape or index.shape[0] != query.shape[0]:
        raise ValueError(
            f"index {index.shape} and permitted {permitted.shape} must both be [Q, K], Q={query.shape[0]}."
        )
    query, key, scale, reference = _floating(query, pool.key, scale, reference)
    key = key.at[index].get(out_sharding=sharding.rows_sharding())  # [Q, K, D]
    score = jnp.einsum("qd,qkd->qk", query, key, precision=lax.Precision.HIGHEST)
    return _statistics(score, permitted, scale, reference)


def _statistics(score: Array, permitted: Array, scale: Array, reference: Array) -> Negatives:
    """Statistics of each row of ``score`` [Q, M] over its ``permitted`` entries."""
    count = jnp.sum(permitted, axis=-1, dtype=jnp.int32)
    hardest = lax.stop_gradient(jnp.max(jnp.where(permitted, score, -jnp.inf), axis=-1))
    peak = jnp.where(hardest > -jnp.inf, hardest, 0)
    reference = jnp.where(hardest > -jnp.inf, reference, 0)  # no gradient where there are no negatives

    def at(scale):  # a loop over the scales: never [S, Q, M]
        logit = jnp.where(permitted, scale * (score - peak[:, None]), -jnp.inf)
        weight = jnp.where(permitted, jnp.exp(logit), 0)
        mean = jnp.sum(weight * score, axis=-1) / jnp.maximum(jnp.sum(weight, axis=-1), 1)
        logsumexp = _relative(scale, peak, reference, jax.nn.logsumexp(logit, axis=-1))
        return logsumexp, lax.stop_gradient(mean)

    logsumexp, mean = zip(*(at(scale[s]) for s in range(scale.shape[0])), strict=True)
    return Negatives(count, jnp.stack(logsumexp), jnp.stack(mean), hardest)


def tiled_statistics(
    query: Array,
    query_group: Array,
    pool: Pool,
    scale: Array,
    reference: Array | None = None,
    *,
    same_group: str = "exclude",
    tile: tuple[int, int] = TILE,
) -> Negatives:
    """:func:`negative_statistics` by tiles of (queries, candidates): memory O((Q + M) * D).

    On a mesh every device streams the whole pool past its own queries: one ``shard_map``, because a scan
    over sharded rows has no global form. The candidates' gradient is one all-reduce.
    """
    if min(tile) < 1:
        raise ValueError(f"tile={tile} must be two positive numbers: queries and candidates.")
    query, query_group, pool, scale, reference = _arguments(
        query, query_group, pool, scale, reference, same_group
    )

    def local(query, query_group, reference, key, group, scale):
        return _tiled((*tile, same_group), query, query_group, reference, key, group, scale)

    arguments = (query, query_group, reference, pool.key, pool.group, scale)
    if not sharding.on_mesh():
        return Negatives(*local(*arguments))

    def on_device(query, query_group, reference, *replicated):
        varying = (lax.pcast(x, sharding.AXIS, to="varying") for x in replicated)  # transposed: all-reduce
        return local(query, query_group, reference, *varying)

    rows, whole, wide = sharding.ROWS, sharding.REPLICATED, jax.P(None, sharding.AXIS)
    mapped = jax.shard_map(
        on_device, in_specs=(rows, rows, rows, whole, whole, whole), out_specs=(rows, wide, wide, rows)
    )
    return Negatives(*mapped(*arguments))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiled(options, query, query_group, reference, key, group, scale):
    """The fields of Negatives, blind to meshes. ``options``: query tile, candidate tile, same_group."""
    return _tiled_forward(options, query, query_group, reference, key, group, scale)[0]


def _tiled_forward(options, query, query_group, reference, key, group, scale):
    rows, columns, same_group = options
    candidates = _tiles(columns, key, group, jnp.ones(group.shape, bool))

    def of_queries(tile):
        query, query_group = tile
        none = jnp.zeros_like(query[:, 0])
        nothing = jnp.zeros_like(scale[:, None] * none)  # [S, q]
        start = (jnp.zeros_like(query_group, jnp.int32), none - jnp.inf, nothing, nothing)

        def add(carry, candidates):
            count, hardest, total, first = carry
            score, permitted = _score_tile(query, query_group, *candidates, same_group)
            score = jnp.where(permitted, score, -jnp.inf)
            highest = jnp.maximum(hardest, jnp.max(score, axis=-1))
            peak = jnp.where(highest == -jnp.inf, 0, highest)  # -inf - -inf would be NaN
            shrink = jnp.exp(scale[:, None] * (hardest - peak))
            score = score - peak[:, None]
            raw = jnp.where(permitted, score, 0)
            weight = [jnp.exp(scale[s] * score) for s in range(scale.shape[0])]
            # first moment about the peak, which moves
            moved = first + jnp.where(total > 0, hardest - peak, 0) * total
            total = shrink * total + jnp.stack([jnp.sum(w, axis=-1) for w in weight])
            first = shrink * moved + jnp.stack([jnp.sum(w * raw, axis=-1) for w in weight])
            return (count + jnp.sum(permitted, axis=-1, dtype=jnp.int32), highest, total, first), None

        return lax.scan(add, start, candidates)[0]

    tiles = lax.map(of_queries, _tiles(rows, query, query_group))
    count, hardest, total, first = (_rows(x, query.shape[0]) for x in tiles)
    peak = jnp.where(count > 0, hardest, 0)
    logsumexp = _relative(scale[:, None], peak, reference, jnp.log(total))
    mean = jnp.where(count > 0, peak + first / jnp.where(count > 0, total, 1), 0)
    residuals = (query, query_group, reference, key, group, scale, peak, total, mean)
    return (count, logsumexp, mean, hardest), residuals


def _tiled_backward(options, residuals, cotangents):
    """d logsumexp_s = sum_j p_sj (scale_s d(score_j - reference) + (score_j - reference) dscale_s), by tiles."""
    rows, columns, same_group = options
    query, query_group, reference, key, group, scale, peak, total, mean = residuals
    slope = cotangents[1]  # [S, Q]; mean and hardest carry no gradient, count is an integer
    some = total > 0
    factor = jnp.where(some, scale[:, None] * slope / jnp.where(some, total, 1), 0)
    candidates = _tiles(columns, key, group, jnp.ones(group.shape, bool))
    queries = _tiles(rows, query, query_group, peak, factor.T)

    def of_queries(key_gradient, tile):
        query, query_group, peak, factor = tile

        def add(query_gradient, candidates):
            score, permitted = _score_tile(query, query_group, *candidates, same_group)
            score = score - peak[:, None]
            terms = (factor[:, s, None] * jnp.exp(scale[s] * score) for s in range(scale.shape[0]))
            slope = jnp.where(permitted, sum(terms), 0)  # d/dscore [q, c]
            return (
                query_gradient + jnp.matmul(slope, candidates[0], precision=lax.Precision.HIGHEST),
                jnp.matmul(slope.T, query, precision=lax.Precision.HIGHEST),
            )

        query_gradient, added = lax.scan(add, jnp.zeros_like(query), candidates)
        return key_gradient + added, query_gradient

    key_gradient, query_gradient = lax.scan(of_queries, jnp.zeros_like(candidates[0]), queries)
    slope = jnp.where(some, slope, 0)
    scale_gradient = jnp.sum(slope * (mean - reference), axis=-1)
    return (
        query_gradient.reshape(-1, query.shape[1])[: query.shape[0]],
        None,
        -jnp.sum(scale[:, None] * slope, axis=0),
        key_gradient.reshape(-1, key.shape[1])[: key.shape[0]],
        None,
        scale_gradient,
    )


_tiled.defvjp(_tiled_forward, _tiled_backward)


@jax.custom_jvp
def _relative(scale, peak, reference, logsumexp):
    """``scale * (peak - reference) + logsumexp``, rounded once: InfoNCE's gradient is e^c where c is large
    and negative, so that an absolute error of c is a relative error of the gradient.

    The product is taken in halves, whose leading one is exact; the subtraction's error is Knuth's.
    """
    above = peak - reference
    moved = above - peak
    lost = (peak - (above - moved)) - (reference + moved)
    (scale_high, scale_low), (high, low) = _halves(scale), _halves(above)
    small = scale_high * low + scale_low * high + scale_low * low + scale * lost
    return scale_high * high + (small + logsumexp)


@_relative.defjvp
def _relative_jvp(primals, tangents):
    scale, peak, reference, _ = primals
    dscale, dpeak, dreference, dlogsumexp = tangents
    return _relative(*primals), scale * (dpeak - dreference) + dscale * (peak - reference) + dlogsumexp


def _halves(x):
    """x as a sum of two numbers of half its digits, so that products of the first kind are exact."""
    kind = jnp.finfo(x.dtype)
    high = lax.reduce_precision(x, kind.nexp, (kind.nmant - 1) // 2)
    return high, x - high


def _score_tile(query, query_group, key, group, valid, same_group):
    """Scores [q, c] of one tile and which of them count; padding is marked by its own mask, not by an id."""
    score = jnp.matmul(query, key.T, precision=lax.Precision.HIGHEST)
    return score, permitted_candidates(query_group, group, same_group) & valid[None, :]


def permitted_candidates(query_group: Array, group: Array, same_group: str) -> Array:
    """[Q, M] bool: which candidates are a query's negatives."""
    different = query_group[:, None] != group[None, :]
    return different if same_group == "exclude" else jnp.ones_like(different)


def _tiles(size: int, *arrays: Array) -> tuple[Array, ...]:
    """Each [N, ...] as [tiles, at most ``size``, ...], equal tiles, zero-padded."""
    length = arrays[0].shape[0]
    number = math.ceil(length / size)
    size = math.ceil(length / number)
    pad = number * size - length
    return tuple(
        jnp.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1)).reshape(number, size, *x.shape[1:]) for x in arrays
    )


def _rows(tiles: Array, length: int) -> Array:
    """[tiles, size] or [tiles, S, size] to [length] or [S, length], without the padding."""
    return jnp.moveaxis(tiles, 0, -2).reshape(*tiles.shape[1:-1], -1)[..., :length]


def _compute_dtype(*arrays: Array) -> jnp.dtype:
    """float64 where one of the arrays is, else float32."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def _floating(query: Array, key: Array, scale: Array, reference: Array | None) -> tuple[Array, ...]:
    """In one floating type, the queries laid out by rows, the scales as [S], a reference for every query."""
    if query.ndim != 2 or key.ndim != 2 or query.shape[1] != key.shape[1] or not (query.size and key.size):
        raise ValueError(
            f"query {query.shape} and pool.key {key.shape} must be [Q, D] and [M, D], not empty."
        )
    if jnp.ndim(scale) > 1 or not jnp.size(scale):
        raise ValueError(f"scale has shape {jnp.shape(scale)}: it must be a scalar or [S].")
    dtype = _compute_dtype(query, key)
    scale = jnp.atleast_1d(jnp.asarray(scale, dtype))
    query = sharding.spread(query.astype(dtype))
    if reference is not None and reference.shape != query.shape[:1]:
        raise ValueError(f"reference has shape {reference.shape}: it must be {query.shape[:1]}.")
    reference = jnp.zeros_like(query[:, 0]) if reference is None else sharding.spread(reference.astype(dtype))
    return query, key.astype(dtype), scale, reference


def _arguments(query, query_group, pool, scale, reference, same_group):
    """The arguments of an engine, checked and in one floating type."""
    if same_group not in SAME_GROUP:
        raise ValueError(f"same_group={same_group!r} is unknown: choose one of {', '.join(SAME_GROUP)}.")
    groups, expected = (query_group.shape, pool.group.shape), (query.shape[:1], pool.key.shape[:1])
    if groups != expected:
        raise ValueError(f"query_group and pool.group have shapes {groups}: they must be {expected}.")
    query, key, scale, reference = _floating(query, pool.key, scale, reference)
    return query, sharding.spread(query_group), Pool(key, pool.group), scale, reference
