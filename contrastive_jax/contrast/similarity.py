"""Statistics of each query's negatives, computed by a dense or a tiled engine with the same result.

Almost every contrastive loss is a function of ``logsumexp_j(score_ij / tau)`` over the negatives j.
:mod:`contrastive_jax.contrast.dense` is the definition on the [Q, M] score matrix, and
:mod:`contrastive_jax.contrast.tiled` computes the same without it. :func:`selected_statistics` is for random subsets.

Scores are products of the embeddings in full precision (``precision=HIGHEST``; the defaults, TF32 on GPUs and
bfloat16 on TPUs, cost 1 % of a logit at tau = 0.1).
"""

import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax import sharding
from contrastive_jax.contrast.dense import (
    FURTHER,
    CandidateMarks,
    QueryMarks,
    Rule,
    dense,
    read,
    reference_of,
    statistics,
)
from contrastive_jax.contrast.scores import Transformed, same
from contrastive_jax.contrast.tiled import by_ring, by_tiles
from contrastive_jax.losses import geometry
from contrastive_jax.types import Array, Negatives, Pool, Positives, QueryGuide

ENGINES = ("auto", "dense", "tiled")
RING = "ring"  # tiled, with candidates that stay sharded; the caller must not gather them
SAME_GROUP = ("exclude", "keep")
DENSE_UP_TO = 1024 * 1024  # entries of the score matrix; measured in experiments/performance
PICKED_UP_TO = 64 * 1024 * 1024  # scores from which candidates are picked at once
TILE = (1024, 512)  # queries, candidates; above 512 the shape has little effect on speed


def normalize(x: Array) -> Array:
    """Normalise vectors to length 1 along the last axis; see :func:`contrastive_jax.losses.geometry.unit`.

    A zero row stays 0 with gradient 0. Half precision becomes float32.
    """
    return geometry.unit(jnp.asarray(x))


def negative_statistics(
    query: Array,
    query_group: Array,
    pool: Pool,
    scale: Array,
    reference: Array | None = None,
    *,
    engine: str = "auto",
    same_group: str = "exclude",
    transformed: Transformed | None = None,
    guide: QueryGuide | None = None,
) -> Negatives:
    """Compute count, logsumexp, softmax mean and hardest score of each query's negatives, at each scale.

    Args:
      query: [Q, D]. On a mesh its rows are sharded, and so is the result.
      query_group: [Q] int. A candidate of the query's own group is not its negative.
      pool: M candidates, replicated on every device.
      scale: [S] or scalar, positive: inverse temperatures. Carries a gradient.
      reference: [Q], subtracted from a query's scores in ``logsumexp`` (not in ``mean`` and ``hardest``),
        before the multiplication by the scale: with the positive's score as reference, ``logsumexp`` is the
        contrast c, exact to the last bits of the scores at any temperature. Carries a gradient. None is 0.
      engine: "dense" forms the [Q, M] score matrix; "tiled" never does, and has reverse-mode gradients
        only (no ``jvp``); "auto" is dense up to about a million scores.
      same_group: "exclude", or "keep" for MoCo's queue as published, in which every candidate is a negative.
      transformed: a transform of the scores, applied per tile; the reference is a transformed score.
      guide: masks candidates that a guide scores above a query's limit; needs ``pool.guide``.

    Returns:
      :class:`Negatives`, float32 (float64 if an input is). ``mean`` and ``hardest`` carry no gradient.
      A query without negatives has count 0, logsumexp and hardest -inf, mean 0 and gradient 0.

    Raises:
      ValueError: an unknown engine or same_group, or shapes that do not match.
    """
    if engine == RING or transformed is not None or guide is not None:
        _known(same_group)
        arguments = _arguments(query, query_group, None, pool, scale, reference, transformed, guide)
        fields, *weights = _by_rules(engine, TILE, _rules(same_group, transformed), arguments)
        return _negatives(fields, arguments[-1], transformed, *weights)
    of_engine = dense_statistics if chosen_engine(engine, query, pool.key) == "dense" else tiled_statistics
    return of_engine(query, query_group, pool, scale, reference, same_group=same_group)


def chosen_engine(engine: str, query: Array, key: Array) -> str:
    """Return "dense" or "tiled"; "auto" is dense up to about a million scores."""
    if engine not in (*ENGINES, RING):
        raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}.")
    if engine != "auto":
        return engine
    return "dense" if query.shape[0] * key.shape[0] <= DENSE_UP_TO else "tiled"


def dense_statistics(
    query: Array,
    query_group: Array,
    pool: Pool,
    scale: Array,
    reference: Array | None = None,
    *,
    same_group: str = "exclude",
) -> Negatives:
    """Compute :func:`negative_statistics` directly on the [Q, M] score matrix."""
    _known(same_group)
    arguments = _arguments(query, query_group, None, pool, scale, reference)
    return Negatives(*dense(_rules(same_group), *arguments)[0])


def several_statistics(
    query: Array,
    query_group: Array,
    query_row: Array,
    pool: Pool,
    scale: Array,
    reference: Array,
    *,
    engine: str = "auto",
    same_group: str = "exclude",
    tile: tuple[int, int] = TILE,
    transformed: Transformed | None = None,
    guide: QueryGuide | None = None,
) -> tuple[Negatives, Positives]:
    """Compute the statistics of negatives and of further positives in one pass over the scores.

    A further positive of a query is a candidate of its group from another example (``pool.row`` differs from
    ``query_row``), so it is neither the query nor the positive whose score is the ``reference``.

    Args:
      query: [Q, D], on a mesh sharded by rows.
      query_group: [Q] int.
      query_row: [Q] int, the example of each query.
      pool: M candidates, replicated, with their ``row``.
      scale: [S] or scalar, positive. Carries a gradient.
      reference: [Q], the score of the query's own positive. Carries a gradient.
      engine: as in :func:`negative_statistics`.
      same_group: as in :func:`negative_statistics`, for the negatives.
      tile: number of queries and candidates per tile of the tiled engine.
      transformed: as in :func:`negative_statistics`.
      guide: as in :func:`negative_statistics`, for the negatives.

    Returns:
      Negatives and Positives, both relative to the reference, in O((Q + M) * D) memory if tiled.
    """
    _known(same_group)
    arguments = _arguments(query, query_group, query_row, pool, scale, reference, transformed, guide)
    rules = (*_rules(same_group, transformed), _further(transformed))
    fields, *weights, positives = _by_rules(engine, tile, rules, arguments)
    return _negatives(fields, arguments[-1], transformed, *weights), _positives(positives)


def further_positives(
    query: Array,
    query_group: Array,
    query_row: Array,
    pool: Pool,
    scale: Array,
    reference: Array,
    *,
    engine: str = "auto",
    transformed: Transformed | None = None,
) -> Positives:
    """Compute the statistics of further positives only; arguments as in :func:`several_statistics`."""
    arguments = _arguments(query, query_group, query_row, pool, scale, reference, transformed)
    return _positives(_by_rules(engine, TILE, (_further(transformed),), arguments)[0])


def _rules(same_group: str, transformed: Transformed | None = None) -> tuple[Rule, ...]:
    """Return the rules of the negatives' passes: one over scores and, with weights, one over the weights."""
    if transformed is None:
        return (Rule(same_group),)
    change, log_weight = transformed.negative or same, transformed.log_weight
    if log_weight is None:
        return (Rule(same_group, change),)

    def weighted(*scalars):
        return change(*scalars) + log_weight(*scalars)

    def weight(*scalars):
        return jnp.where(change(*scalars) == -jnp.inf, -jnp.inf, log_weight(*scalars))

    return Rule(same_group, weighted), Rule(same_group, weight, weights=True)


def _further(transformed: Transformed | None) -> Rule:
    return Rule(FURTHER, None if transformed is None else transformed.further)


def _negatives(
    fields, scale: Array, transformed: Transformed | None, weights: tuple[Array, ...] | None = None
) -> Negatives:
    """Return the negatives' statistics; with ``weights``, the result of their pass, divided by their mean."""
    negatives = Negatives(*fields)
    if transformed is None or weights is None:
        return negatives
    count, logsumexp, *_ = weights
    number = jnp.maximum(count, 1).astype(scale.dtype)
    log_mean = jnp.where(count > 0, logsumexp[transformed.unit] - jnp.log(number), 0)
    shift = lax.stop_gradient(transformed.logit.astype(scale.dtype) * log_mean)  # as a score
    return Negatives(
        count=negatives.count,
        logsumexp=negatives.logsumexp - lax.stop_gradient(scale)[:, None] * shift,
        mean=negatives.mean - jnp.where(count > 0, shift, 0),
        hardest=negatives.hardest - shift,
    )


def _positives(fields) -> Positives:
    count, logsumexp, _, _, total = fields
    return Positives(count, logsumexp, total)


def _by_rules(engine, tile, rules, arguments):
    """Compute the statistics of each rule with the given engine."""
    query, _, _, _, _, key, *_ = arguments
    if engine == RING:
        return by_ring((*tile, rules), *arguments)
    if chosen_engine(engine, query, key) == "dense":
        return dense(rules, *arguments)
    return by_tiles((*tile, rules), *arguments)


def selected_statistics(
    query: Array,
    pool: Pool,
    index: Array,
    permitted: Array,
    scale: Array,
    reference: Array | None = None,
    *,
    transformed: Transformed | None = None,
) -> Negatives:
    """Compute the statistics of K chosen candidates per query: random subsets of the negatives.

    Args:
      query: [Q, D], on a mesh sharded by rows.
      pool: M candidates, replicated; the groups are not used.
      index: [Q, K] int, candidates of each query (:func:`contrastive_jax.contrast.negatives.random_subset`).
      permitted: [Q, K] bool, mask of those that count; they are distinct within a query.
      scale: [S] or scalar, positive.
      reference: [Q] or None, as in :func:`negative_statistics`.
      transformed: as in :func:`negative_statistics`.

    Returns:
      :class:`Negatives` as from :func:`negative_statistics`.
    """
    if index.ndim != 2 or index.shape != permitted.shape or index.shape[0] != query.shape[0]:
        raise ValueError(
            f"index has shape {index.shape} and permitted {permitted.shape}; both must be [Q, K] with"
            f" Q={query.shape[0]}."
        )
    query, key, scale, reference, positive, tau = _floating(query, pool.key, scale, reference, transformed)
    score = selected_scores(query, key, index, permitted)
    fields, *weights = (
        statistics(*read(rule, score, permitted, positive, tau), scale, reference_of(rule, reference))
        for rule in _rules("exclude", transformed)
    )
    return _negatives(fields, scale, transformed, *weights)


def selected_scores(query: Array, key: Array, index: Array, permitted: Array) -> Array:
    """Compute the scores [Q, K] of K chosen candidates per query, 0 where not permitted.

    They are picked from all M scores, in O(Q * M * D) time and in parts of at most ``PICKED_UP_TO`` scores.
    Picking candidates instead would have a scatter to shared rows as its gradient
    (:func:`contrastive_jax.sharding.pick`).
    """

    def of(query, index, key):
        return sharding.pick(jnp.matmul(query, key.T, precision=lax.Precision.HIGHEST), index)

    def in_parts(query, index, key):
        rows = max(1, PICKED_UP_TO // key.shape[0])
        if query.shape[0] <= rows:
            return of(query, index, key)
        return lax.map(jax.checkpoint(lambda part: of(*part, key)), (query, index), batch_size=rows)

    return sharding.each_device(in_parts, (query, jnp.where(permitted, index, key.shape[0])), (key,))


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
    """Compute :func:`negative_statistics` by tiles of (queries, candidates), in O((Q + M) * D) memory.

    On a mesh each device streams the whole pool for its own queries, in one ``shard_map``, because a scan over
    sharded rows has no global form. The candidates' gradient is one all-reduce.
    """
    _known(same_group)
    arguments = _arguments(query, query_group, None, pool, scale, reference)
    return Negatives(*by_tiles((*tile, _rules(same_group)), *arguments)[0])


def _compute_dtype(*arrays: Array) -> jnp.dtype:
    """Return float64 if one of the arrays is float64, else float32."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def _floating(
    query: Array, key: Array, scale: Array, reference: Array | None, transformed: Transformed | None = None
) -> tuple[Array, Array, Array, Array, Array | None, Array | None]:
    """Convert arguments to one floating type and to the layout of the engines.

    Queries are sharded by rows, scales are [S], and the reference is [Q]; with a transform, so are the positive
    and the temperature.
    """
    if query.ndim != 2 or key.ndim != 2 or query.shape[1] != key.shape[1] or not (query.size and key.size):
        raise ValueError(
            f"query has shape {query.shape} and pool.key {key.shape}; they must be [Q, D] and [M, D],"
            " not empty."
        )
    if jnp.ndim(scale) > 1 or not jnp.size(scale):
        raise ValueError(f"scale has shape {jnp.shape(scale)}; it must be a scalar or [S].")
    dtype = _compute_dtype(query, key)
    scale = jnp.atleast_1d(jnp.asarray(scale, dtype))
    query = sharding.shard_batch(query.astype(dtype))
    if reference is not None and reference.shape != query.shape[:1]:
        raise ValueError(f"reference has shape {reference.shape}; it must be {query.shape[:1]}.")
    reference = (
        jnp.zeros_like(query[:, 0]) if reference is None else sharding.shard_batch(reference.astype(dtype))
    )
    if transformed is None:
        return query, key.astype(dtype), scale, reference, None, None
    positive = sharding.shard_batch(transformed.positive.astype(dtype))
    tau = jnp.broadcast_to(jnp.asarray(transformed.temperature, dtype), query.shape[:1])
    return query, key.astype(dtype), scale, reference, positive, sharding.shard_batch(tau)


def _arguments(query, query_group, query_row, pool, scale, reference, transformed=None, guide=None):
    """Check an engine's arguments and convert them by :func:`_floating`: queries first, then candidates."""
    groups, expected = (query_group.shape, pool.group.shape), (query.shape[:1], pool.key.shape[:1])
    if groups != expected:
        raise ValueError(f"query_group and pool.group have shapes {groups}; they must be {expected}.")
    query, key, scale, reference, positive, tau = _floating(query, pool.key, scale, reference, transformed)
    asks = QueryMarks(*jax.tree.map(sharding.shard_batch, (query_group, query_row, guide)))
    row = None if query_row is None else pool.row
    shown = CandidateMarks(pool.group, row, None if guide is None else pool.guide)
    return query, asks, reference, positive, tau, key, shown, scale


def _known(same_group: str) -> None:
    """Raise ValueError if ``same_group`` is unknown."""
    if same_group not in SAME_GROUP:
        raise ValueError(f"same_group is {same_group!r}; it must be one of {', '.join(SAME_GROUP)}.")
