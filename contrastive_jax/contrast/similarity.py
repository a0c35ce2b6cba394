"""Statistics of each query's negatives, computed by a dense or a tiled engine with the same result.

Almost every contrastive loss is a function of ``logsumexp_j(score_ij / tau)`` over the negatives j.
:func:`dense_statistics` is the reference implementation. :func:`tiled_statistics` streams tiles of queries and
candidates with a running maximum and a custom backward pass, in O((Q + M) * D) memory without any [Q, M] array.
:func:`selected_statistics` is for random subsets.

Scores are products of the embeddings in full precision (``precision=HIGHEST``; the defaults, TF32 on GPUs and
bfloat16 on TPUs, cost 1 % of a logit at tau = 0.1). The largest score is subtracted *before* the multiplication
by the scale, so that the largest terms of a softmax are exact at any temperature.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax import sharding
from contrastive_jax.contrast import ring
from contrastive_jax.contrast.scores import ScoreMap, Transformed, transform_scores, values_and_slopes
from contrastive_jax.losses import geometry
from contrastive_jax.types import Array, Negatives, Pool, Positives, QueryGuide

ENGINES = ("auto", "dense", "tiled")
RING = "ring"  # tiled, with candidates that stay sharded; the caller must not gather them
SAME_GROUP = ("exclude", "keep")
FURTHER = "further positives"  # a third rule: candidates of the query's group from other examples
DENSE_UP_TO = 1024 * 1024  # entries of the score matrix; measured in experiments/performance
PICKED_UP_TO = 64 * 1024 * 1024  # scores from which candidates are picked at once
TILE = (1024, 512)  # queries, candidates; above 512 the shape has little effect on speed


class Rule(NamedTuple):
    """Which candidates a pass counts ("exclude", "keep" or FURTHER), and the transform of their scores."""

    who: str
    transform: ScoreMap | None = None
    weights: bool = False  # a sum of weights: without reference and gradient


class QueryMarks(NamedTuple):
    """Group, row and guide of queries, which decide with a candidate's whether it counts; no gradient."""

    group: Array  # [Q] int
    row: Array | None  # [Q] int, read by FURTHER
    guide: QueryGuide | None  # read by the negatives' rules


class CandidateMarks(NamedTuple):
    """Group, row and guide of candidates; see :class:`QueryMarks`."""

    group: Array  # [M] int
    row: Array | None  # [M] int
    guide: Array | None  # [M, G]


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
    statistics = dense_statistics if chosen_engine(engine, query, pool.key) == "dense" else tiled_statistics
    return statistics(query, query_group, pool, scale, reference, same_group=same_group)


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
    return Negatives(*_dense(_rules(same_group), *arguments)[0])


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
    change, log_weight = transformed.negative or _same, transformed.log_weight
    if log_weight is None:
        return (Rule(same_group, change),)

    def weighted(*scalars):
        return change(*scalars) + log_weight(*scalars)

    def weight(*scalars):
        return jnp.where(change(*scalars) == -jnp.inf, -jnp.inf, log_weight(*scalars))

    return Rule(same_group, weighted), Rule(same_group, weight, weights=True)


def _same(score, positive, temperature):
    return score


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
        return _by_ring((*tile, rules), *arguments)
    if chosen_engine(engine, query, key) == "dense":
        return _dense(rules, *arguments)
    return _tiled_on_devices((*tile, rules), *arguments)


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
        _statistics(*_read(rule, score, permitted, positive, tau), scale, _reference(rule, reference))
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


def _dense(rules, query, asks, reference, positive, tau, key, shown, scale):
    """Compute the statistics of each rule on the [Q, M] score matrix."""
    scores = jnp.matmul(query, key.T, precision=lax.Precision.HIGHEST)  # [Q, M]

    def by(rule):
        permitted = _permitted(rule, asks, shown)
        score, permitted = _read(rule, scores, permitted, positive, tau)
        statistics = _statistics(score, permitted, scale, _reference(rule, reference))
        if rule.who != FURTHER:
            return statistics
        return (*statistics, jnp.sum(jnp.where(permitted, score - reference[:, None], 0), axis=-1))

    return tuple(by(rule) for rule in rules)


def _read(rule: Rule, score, permitted, positive, tau) -> tuple[Array, Array]:
    """Return scores [q, c] transformed by the rule (0 where not permitted), and the mask of permitted ones."""
    if rule.transform is None:
        return score, permitted
    score = transform_scores(rule.transform, permitted, score, positive, tau)
    permitted = score != -jnp.inf  # NaN stays
    return jnp.where(permitted, score, 0), permitted


def _statistics(score: Array, permitted: Array, scale: Array, reference: Array) -> tuple[Array, ...]:
    """Compute the fields of Negatives for each row of ``score`` [Q, M], over its ``permitted`` entries."""
    count = jnp.sum(permitted, axis=-1, dtype=jnp.int32)
    hardest = lax.stop_gradient(jnp.max(jnp.where(permitted, score, -jnp.inf), axis=-1))
    peak = jnp.where(hardest > -jnp.inf, hardest, 0)
    reference = jnp.where(hardest > -jnp.inf, reference, 0)  # no gradient where there are no negatives

    def at(scale):  # one scale at a time: no [S, Q, M] array
        logit = jnp.where(permitted, scale * (score - peak[:, None]), -jnp.inf)
        weight = jnp.where(permitted, jnp.exp(logit), 0)
        mean = jnp.sum(weight * score, axis=-1) / jnp.maximum(jnp.sum(weight, axis=-1), 1)
        logsumexp = _relative(scale, peak, reference, jax.nn.logsumexp(logit, axis=-1))
        return logsumexp, lax.stop_gradient(mean)

    logsumexp, mean = zip(*(at(scale[s]) for s in range(scale.shape[0])), strict=True)
    return count, jnp.stack(logsumexp), jnp.stack(mean), hardest


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
    return Negatives(*_tiled_on_devices((*tile, _rules(same_group)), *arguments)[0])


def _tiled_on_devices(options, query, asks, reference, positive, tau, key, shown, scale):
    """Run :func:`_tiled`; on a mesh each device computes its own queries."""
    if min(options[:2]) < 1:
        raise ValueError(
            f"tile is {options[:2]}; it must be two positive numbers, of queries and of candidates."
        )
    wide = jax.P(None, sharding.AXIS)
    fields = (sharding.ROWS, wide, wide, sharding.ROWS)
    return on_devices(
        functools.partial(_tiled, options),
        (query, asks, reference, positive, tau),
        (key, shown, scale),
        tuple(fields + (sharding.ROWS,) * (rule.who == FURTHER) for rule in options[2]),
    )


def _by_ring(options, query, asks, reference, positive, tau, key, shown, scale):
    """Run :func:`_tiled` on candidates that stay sharded by rows."""
    rules = options[2]

    def of_chunk(rows, chunk):
        ((query, reference, positive, tau), asks, scale), ((key,), shown) = rows, chunk
        return _tiled(options, query, asks, reference, positive, tau, key, shown, scale)

    def merge(one, other):
        def by(rule, one, other):
            total = jnp.logaddexp(one[1], other[1])
            mean = _part_of(total, one[1]) * one[2] + _part_of(total, other[1]) * other[2]
            hardest = jnp.maximum(one[3], other[3])
            added = (one[4] + other[4],) if rule.who == FURTHER else ()
            return (one[0] + other[0], total, mean, hardest, *added)

        return tuple(map(by, rules, one, other))

    def share(cotangents, merged, part):
        return tuple(
            (c[0], c[1] * _part_of(f[1], p[1]), *c[2:])
            for c, f, p in zip(cotangents, merged, part, strict=True)
        )

    wide = jax.P(None, sharding.AXIS)
    fields = (sharding.ROWS, wide, wide, sharding.ROWS)
    specs = tuple(fields + (sharding.ROWS,) * (rule.who == FURTHER) for rule in rules)
    rows, chunk = ((query, reference, positive, tau), asks), ((key,), shown)
    return ring.around(of_chunk, merge, share, rows, chunk, scale, specs)


def _part_of(total, logsumexp):
    """Return the share of a part in a sum, both given as logarithms; 0 for an empty part."""
    some = logsumexp > -jnp.inf
    return jnp.where(some, jnp.exp(jnp.where(some, logsumexp - jnp.where(some, total, 0), 0)), 0)


def on_devices(function, rows, whole, out_specs):
    """Call ``function(*rows, *whole)``; on a mesh each device has its share of ``rows`` and all of ``whole``.

    ``out_specs`` is the sharding of the results. None stays None. Gradients of ``whole`` are all-reduced.
    """
    if not sharding.on_mesh():
        if jax.sharding.get_abstract_mesh().manual_axes:  # inside a user's shard_map
            rows, whole = _varying_alike((rows, whole))
        return function(*rows, *whole)

    def on_device(rows, whole):
        vary = lambda x: lax.pcast(x, sharding.AXIS, to="varying")  # noqa: E731  transposed: all-reduce
        return function(*rows, *jax.tree.map(vary, whole))

    in_specs = (sharding.ROWS, sharding.REPLICATED)
    return jax.shard_map(on_device, in_specs=in_specs, out_specs=out_specs)(rows, whole)


def _varying_alike(arrays):
    """Make all arrays vary over the mesh axes over which any of them varies.

    JAX then sums the cotangents of shared arrays over devices, which the custom backward pass does not.
    """
    zero = sum(jnp.zeros_like(x.reshape(-1)[0], jnp.float32) for x in jax.tree.leaves(arrays))
    return jax.tree.map(lambda x: x + zero.astype(x.dtype), arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiled(options, *arguments):
    """Compute the statistics of each rule on one device; ``options``: query tile, candidate tile, rules.

    ``arguments`` are those of :func:`_dense`.
    """
    return _tiled_forward(options, *arguments)[0]


def _tiled_forward(options, query, asks, reference, positive, tau, key, shown, scale):
    rows, columns, rules = options
    candidates = tiles(columns, key, shown, jnp.ones(shown.group.shape, bool))

    def of_queries(tile):
        query, asks, reference, positive, tau = tile
        none = jnp.zeros_like(query[:, 0])
        nothing = jnp.zeros_like(scale[:, None] * none)  # [S, q]
        start = (jnp.zeros_like(asks.group, jnp.int32), none - jnp.inf, nothing, nothing)

        def add(carry, candidates):
            key, shown, valid = candidates
            scores = jnp.matmul(query, key.T, precision=lax.Precision.HIGHEST)

            def by(rule, state):
                permitted = _permitted(rule, asks, shown) & valid
                score, permitted = _read(rule, scores, permitted, positive, tau)
                added = _add(state[:4], score, permitted, scale)
                if rule.who != FURTHER:
                    return added
                return (*added, state[4] + jnp.sum(jnp.where(permitted, score - reference[:, None], 0), -1))

            return tuple(map(by, rules, carry)), None

        start = tuple((*start, none) if rule.who == FURTHER else start for rule in rules)
        return lax.scan(add, start, candidates)[0]

    read = _if_further(rules, reference)
    by_rule = lax.map(of_queries, tiles(rows, query, asks, read, positive, tau))
    by_rule = [tuple(_rows(x, query.shape[0]) for x in of_rule) for of_rule in by_rule]
    results, residuals = [], []
    for rule, (count, hardest, total, first, *rest) in zip(rules, by_rule, strict=True):
        peak = jnp.where(count > 0, hardest, 0)
        logsumexp = _relative(scale[:, None], peak, _reference(rule, reference), jnp.log(total))
        mean = jnp.where(count > 0, peak + first / jnp.where(count > 0, total, 1), 0)
        results.append((count, logsumexp, mean, hardest, *rest))
        residuals.append((count, peak, total, mean))
    arguments = (query, asks, reference, positive, tau, key, shown, scale)
    return tuple(results), (arguments, residuals)


def _if_further(rules, reference):
    """Return the reference if a rule is FURTHER, whose sum alone needs it in the pass over tiles; else None."""
    return reference if any(rule.who == FURTHER for rule in rules) else None


def _add(state, score, permitted, scale):
    """Add a tile to the running (count, largest score, sum of weights, sum of weighted scores)."""
    count, hardest, total, first = state
    score = jnp.where(permitted, score, -jnp.inf)
    highest = jnp.maximum(hardest, jnp.max(score, axis=-1))
    peak = jnp.where(highest == -jnp.inf, 0, highest)  # -inf - -inf would be NaN
    # Scales are never multiplied by -inf, whose derivative would be NaN.
    met, move = hardest > -jnp.inf, jnp.where(hardest > -jnp.inf, hardest - peak, 0)
    shrink = jnp.where(met, jnp.exp(scale[:, None] * move), 0)
    raw = jnp.where(permitted, score - peak[:, None], 0)
    weight = [jnp.where(permitted, jnp.exp(scale[s] * raw), 0) for s in range(scale.shape[0])]
    # first moment about the peak, which changes
    moved = first + jnp.where(total > 0, move, 0) * total
    total = shrink * total + jnp.stack([jnp.sum(w, axis=-1) for w in weight])
    first = shrink * moved + jnp.stack([jnp.sum(w * raw, axis=-1) for w in weight])
    return count + jnp.sum(permitted, axis=-1, dtype=jnp.int32), highest, total, first


def _tiled_backward(options, residuals, cotangents):
    """Compute the backward pass by tiles.

    d logsumexp_s = sum_j p_sj (scale_s d(score_j - reference) + (score_j - reference) dscale_s); the sum over
    further positives has the slope 1 in each score_p - reference. Slopes of transformed scores are passed on to
    the score, the positive and tau.
    """
    rows, columns, rules = options
    (query, asks, reference, positive, tau, key, shown, scale), residuals = residuals
    reference_gradient, scale_gradient, weights = 0.0, 0.0, []
    passes = zip(rules, residuals, cotangents, strict=True)
    rules = tuple(rule for rule in rules if not rule.weights)
    for (count, peak, total, mean), cotangent in [x[1:] for x in passes if not x[0].weights]:
        slope = cotangent[1]  # [S, Q]; mean and hardest carry no gradient, count is an integer
        some = total > 0
        factor = jnp.where(some, scale[:, None] * slope / jnp.where(some, total, 1), 0)
        slope = jnp.where(some, slope, 0)
        scale_gradient += jnp.sum(slope * (mean - reference), axis=-1)
        reference_gradient -= jnp.sum(scale[:, None] * slope, axis=0)
        of_sum = cotangent[4] if len(cotangent) > 4 else None
        if of_sum is not None:
            reference_gradient -= count * of_sum
        weights.append((peak, factor.T, of_sum))
    candidates = tiles(columns, key, shown, jnp.ones(shown.group.shape, bool))
    queries = tiles(rows, query, asks, weights, positive, tau)

    def of_queries(key_gradient, tile):
        query, asks, weights, positive, tau = tile

        def add(carry, candidates):
            query_gradient, of_transform = carry
            key, shown, valid = candidates
            scores = jnp.matmul(query, key.T, precision=lax.Precision.HIGHEST)

            def by(rule, weights):
                permitted = _permitted(rule, asks, shown) & valid
                score, permitted, slopes = _read_with_slopes(rule, scores, permitted, positive, tau)
                peak, factor, of_sum = weights
                above = score - peak[:, None]
                terms = [factor[:, s, None] * jnp.exp(scale[s] * above) for s in range(scale.shape[0])]
                terms += [] if of_sum is None else [of_sum[:, None]]
                slope = jnp.where(permitted, sum(terms), 0)
                return [slope] if slopes is None else [slope * x for x in slopes]

            of_score, *others = zip(*map(by, rules, weights), strict=True)
            slope = sum(of_score)  # d/dscore [q, c]
            sums = [jnp.sum(sum(x), axis=-1) for x in others]
            return (
                (
                    query_gradient + jnp.matmul(slope, key, precision=lax.Precision.HIGHEST),
                    tuple(map(jnp.add, of_transform, sums)),
                ),
                jnp.matmul(slope.T, query, precision=lax.Precision.HIGHEST),
            )

        nothing = jnp.zeros_like(query[:, 0])
        of_transform = () if positive is None else (nothing, nothing)
        start = (jnp.zeros_like(query), of_transform)
        (query_gradient, of_transform), added = lax.scan(add, start, candidates)
        return key_gradient + added, (query_gradient, of_transform)

    key_gradient, (query_gradient, of_transform) = lax.scan(
        of_queries, jnp.zeros_like(candidates[0]), queries
    )
    of_transform = [x.reshape(-1)[: query.shape[0]] for x in of_transform] or (None, None)
    return (
        query_gradient.reshape(-1, query.shape[1])[: query.shape[0]],
        None,
        reference_gradient,
        *of_transform,
        key_gradient.reshape(-1, key.shape[1])[: key.shape[0]],
        None,
        scale_gradient,
    )


def _reference(rule: Rule, reference: Array) -> Array:
    return jnp.zeros_like(reference) if rule.weights else reference


def _read_with_slopes(rule, score, permitted, positive, tau):
    """Return :func:`_read` and its derivatives in score, positive and tau, or None without a transform."""
    if positive is None:
        return score, permitted, None
    transform = rule.transform or _same
    score, slopes = values_and_slopes(transform, permitted, score, positive, tau)
    permitted = score != -jnp.inf  # NaN stays
    return jnp.where(permitted, score, 0), permitted, slopes


_tiled.defvjp(_tiled_forward, _tiled_backward)


@jax.custom_jvp
def _relative(scale, peak, reference, logsumexp):
    """Return ``scale * (peak - reference) + logsumexp``, rounded once.

    For large negative c InfoNCE's gradient is e^c, so an absolute error of c is a relative error of the
    gradient. The product is computed in halves, of which the leading one is exact; the rounding error of the
    subtraction is recovered by Knuth's two-sum.
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
    """Split x into a sum of two numbers with half its digits, so that products of leading halves are exact."""
    kind = jnp.finfo(x.dtype)
    high = lax.reduce_precision(x, kind.nexp, (kind.nmant - 1) // 2)
    return high, x - high


def permitted_candidates(
    query_group: Array,
    group: Array,
    same_group: str,
    guide: QueryGuide | None = None,
    candidate_guide: Array | None = None,
) -> Array:
    """Return the mask [Q, M] of each query's negatives among the candidates."""
    different = query_group[:, None] != group[None, :]
    permitted = different if same_group == "exclude" else jnp.ones_like(different)
    if guide is None or candidate_guide is None:
        return permitted
    scores = jnp.matmul(guide.embedding, candidate_guide.T, precision=lax.Precision.HIGHEST)
    return permitted & ~(scores > guide.limit[:, None])  # NaN masks nothing


def _permitted(rule: Rule, asks: QueryMarks, shown: CandidateMarks) -> Array:
    """Return the mask [Q, M] of candidates that the rule counts."""
    if rule.who != FURTHER:
        return permitted_candidates(asks.group, shown.group, rule.who, asks.guide, shown.guide)
    assert asks.row is not None and shown.row is not None
    return (asks.group[:, None] == shown.group[None, :]) & (asks.row[:, None] != shown.row[None, :])


def tiles(size: int, *trees):
    """Split each [N, ...] array of the trees into equal zero-padded tiles [tiles, at most ``size``, ...]."""
    length = jax.tree.leaves(trees)[0].shape[0]
    number = math.ceil(length / size)
    size = math.ceil(length / number)
    pad = number * size - length

    def cut(x):
        return jnp.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1)).reshape(number, size, *x.shape[1:])

    return jax.tree.map(cut, trees)


def _rows(tiles: Array, length: int) -> Array:
    """Join tiles [tiles, size] or [tiles, S, size] to [length] or [S, length], without the padding."""
    return jnp.moveaxis(tiles, 0, -2).reshape(*tiles.shape[1:-1], -1)[..., :length]


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
