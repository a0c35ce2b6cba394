"""Statistics of each query's negatives by tiles of queries and candidates, without any [Q, M] array.

A pass has a running maximum and a backward pass of its own, in O((Q + M) * D) memory. On a mesh each device streams
the whole pool for its own queries, in one ``shard_map``, because a scan over sharded rows has no global form; in a
ring the candidates stay sharded as well.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax import sharding
from contrastive_jax.contrast import ring
from contrastive_jax.contrast.dense import FURTHER, permitted_by, read, reference_of, relative
from contrastive_jax.contrast.scores import same, values_and_slopes
from contrastive_jax.types import Array


def by_tiles(options, query, asks, reference, positive, tau, key, shown, scale):
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


def by_ring(options, query, asks, reference, positive, tau, key, shown, scale):
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

    ``arguments`` are those of :func:`contrast.dense.dense`.
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
                permitted = permitted_by(rule, asks, shown) & valid
                score, permitted = read(rule, scores, permitted, positive, tau)
                added = _add(state[:4], score, permitted, scale)
                if rule.who != FURTHER:
                    return added
                return (*added, state[4] + jnp.sum(jnp.where(permitted, score - reference[:, None], 0), -1))

            return tuple(map(by, rules, carry)), None

        start = tuple((*start, none) if rule.who == FURTHER else start for rule in rules)
        return lax.scan(add, start, candidates)[0]

    subtracted = _if_further(rules, reference)
    by_rule = lax.map(of_queries, tiles(rows, query, asks, subtracted, positive, tau))
    by_rule = [tuple(_rows(x, query.shape[0]) for x in of_rule) for of_rule in by_rule]
    results, residuals = [], []
    for rule, (count, hardest, total, first, *rest) in zip(rules, by_rule, strict=True):
        peak = jnp.where(count > 0, hardest, 0)
        logsumexp = relative(scale[:, None], peak, reference_of(rule, reference), jnp.log(total))
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
    real = jnp.ones(query.shape[:1], bool)  # False in the padding, where a transform may be NaN
    queries = tiles(rows, query, asks, weights, positive, tau, real)

    def of_queries(key_gradient, tile):
        query, asks, weights, positive, tau, real = tile

        def add(carry, candidates):
            query_gradient, of_transform = carry
            key, shown, valid = candidates
            scores = jnp.matmul(query, key.T, precision=lax.Precision.HIGHEST)

            def by(rule, weights):
                permitted = permitted_by(rule, asks, shown) & valid & real[:, None]
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


def _read_with_slopes(rule, score, permitted, positive, tau):
    """Return :func:`read` and its derivatives in score, positive and tau, or None without a transform."""
    if positive is None:
        return score, permitted, None
    transform = rule.transform or same
    score, slopes = values_and_slopes(transform, permitted, score, positive, tau)
    permitted = score != -jnp.inf  # NaN stays
    return jnp.where(permitted, score, 0), permitted, slopes


_tiled.defvjp(_tiled_forward, _tiled_backward)


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
