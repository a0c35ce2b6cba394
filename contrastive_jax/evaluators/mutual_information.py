"""Mutual information of two paired sets of embeddings, in nats, from frozen scores.

:func:`pool_estimate` and :func:`critic_estimate` compute the InfoNCE estimate of every query with one large
pool of negatives, up to a whole data set, by tiles, without an [N, M] array. In expectation it is a lower
bound for any critic, at most log(K + 1) with K negatives; with the exact log density ratio as critic it
converges to the mutual information as K grows. :func:`batch_estimates` computes estimates from mini-batches;
some of them are no bounds.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from contrastive_jax import losses, native, sharding
from contrastive_jax.contrast.dense import permitted_candidates
from contrastive_jax.contrast.similarity import (
    ENGINES,
    negative_statistics,
    normalize,
)
from contrastive_jax.losses.contrastive import at_least_float32
from contrastive_jax.types import Array, Pool, narrow_ids

SCORES = ("cosine", "dot")


def pool_estimate(
    query: np.ndarray,
    key: np.ndarray,
    *,
    group: np.ndarray | None = None,
    negatives: np.ndarray | None = None,
    negatives_group: np.ndarray | None = None,
    score: str = "cosine",
    temperature: float = 0.1,
    engine: str = "tiled",
) -> dict:
    """Compute the InfoNCE estimate of the mutual information of ``query`` and ``key`` with a pool of negatives.

    On a mesh the queries are sharded over the devices; the result does not depend on their number.

    Args:
        query: ``[N, D]``.
        key: ``[N, D]``; row i is the positive of query i.
        group: ``[N]`` int, the example of each row; keys of a query's own group are not its negatives.
            Default: every row is a different example.
        negatives: ``[M, D]``, drawn independently of the queries. Default: the keys of all other examples.
        negatives_group: ``[M]`` int. Default: groups different from all queries'.
        score: "cosine" or "dot".
        temperature: temperature that scores are divided by; the critic is score / temperature.
        engine: "tiled", "dense" or "auto", see :func:`contrast.similarity.negative_statistics`.

    Returns:
        ``{"info_nce", "standard_error", "largest", "protocol", "settings"}``, in nats. The standard error is
        over queries at a fixed pool; ``largest`` is the mean of log(K + 1), an upper limit for any critic.

    Raises:
        ValueError: an option out of range, inconsistent shapes, or a query without negatives.
    """
    _check_scores(score, temperature)
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}.")
    group, negatives, negatives_group = _pool(query, key, group, negatives, negatives_group)
    rows = (sharding.shard_batch(jnp.asarray(_padded(a))) for a in (query, key, group))
    pool = Pool(jnp.asarray(negatives), jnp.asarray(negatives_group))
    c, count = _contrasts(*rows, pool, temperature, score=score, engine=engine)
    settings = {"score": score, "temperature": temperature}
    return _result(
        c[: len(query)], count[: len(query)], f"{score} / {temperature:g}", settings, len(negatives)
    )


def critic_estimate(
    critic: Callable[[Array, Array], Array],
    x: np.ndarray,
    y: np.ndarray,
    *,
    group: np.ndarray | None = None,
    negatives: np.ndarray | None = None,
    negatives_group: np.ndarray | None = None,
    tile: tuple[int, int] = (1024, 1024),
) -> dict:
    """Compute :func:`pool_estimate` for any critic, from samples instead of embeddings.

    Args:
        critic: function from ``[q, ...]`` and ``[m, ...]`` to scores ``[q, m]``, temperature included. Pass
            ``jax.tree_util.Partial(function, params)`` to evaluate other parameters without compiling again.
        x: ``[N, ...]``.
        y: ``[N, ...]``; row i is paired with row i of ``x``.
        group: as in :func:`pool_estimate`.
        negatives: ``[M, ...]``, independent draws of y. Default: the y of all other examples.
        negatives_group: as in :func:`pool_estimate`.
        tile: numbers of rows of x and of candidates per call of the critic.

    Returns:
        The result of :func:`pool_estimate`.

    Raises:
        ValueError: as in :func:`pool_estimate`.
    """
    if min(tile) < 1:
        raise ValueError(f"tile is {tile}; it must be two positive numbers, of rows of x and of candidates.")
    group, negatives, negatives_group = _pool(x, y, group, negatives, negatives_group)
    critic = critic if isinstance(critic, jax.tree_util.Partial) else jax.tree_util.Partial(critic)
    pool = _tiled_with_mask(tile[1], negatives, negatives_group)
    values = []
    rows = min(tile[0], len(x))
    for start in range(0, len(x), rows):
        part = [np.asarray(a[start : start + rows]) for a in (x, y, group)]
        missing = rows - len(part[0])
        part = [np.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), mode="edge") for a in part]
        values.append([np.asarray(a)[: rows - missing] for a in _critic_contrasts(critic, *part, *pool)])
    c, count = (np.concatenate(a) for a in zip(*values, strict=True))
    return _result(c, count, "given critic", {}, len(negatives))


def batch_estimates(
    query: np.ndarray,
    key: np.ndarray,
    *,
    batch_size: int,
    group: np.ndarray | None = None,
    alpha: float | None = None,
    score: str = "cosine",
    temperature: float = 0.1,
    seed: int = 0,
) -> dict:
    """Return each estimate's mean over shuffled mini-batches, without the remainder.

    ``flat_nce`` (log K - c) and ``donsker_varadhan`` are biased upwards and can exceed the mutual
    information, as can ``eqco`` for an ``alpha`` above the number of negatives.

    Args:
        query: ``[N, D]``.
        key: ``[N, D]``; row i is the positive of query i. A query's negatives are the other keys of its batch.
        batch_size: number of pairs in a batch.
        group: as in :func:`pool_estimate`.
        alpha: alpha of EqCo; None: no EqCo estimate.
        score: "cosine" or "dot".
        temperature: temperature that scores are divided by.
        seed: random seed of the shuffle.

    Returns:
        ``{"estimates": {name: {"mean", "standard_error", "lower_bound"}}, "protocol", "settings"}`` in nats;
        the standard error is over batches, None for one batch.

    Raises:
        ValueError: an option out of range, inconsistent shapes, or a query without negatives.
    """
    _check_scores(score, temperature)
    if not 2 <= batch_size <= len(query):
        raise ValueError(
            f"batch_size is {batch_size}; it must be from 2 to {len(query)}, the number of pairs."
        )
    if alpha is not None and not alpha > 0:
        raise ValueError(f"alpha is {alpha}; it must be positive, or None.")
    group, _, _ = _pool(query, key, group, None, None)
    batches = len(query) // batch_size
    order = np.random.default_rng(seed).permutation(len(query))[: batches * batch_size]
    query, key, group = (
        np.asarray(a)[order].reshape(batches, batch_size, *a.shape[1:]) for a in (query, key, group)
    )
    rows = [jnp.asarray(_padded(a, axis=1)) for a in (query, key, group)]
    pools = Pool(jnp.asarray(key), jnp.asarray(group))
    values, fewest = _of_batches(*rows, pools, temperature, score=score, alpha=alpha)
    if int(fewest) == 0:
        raise ValueError("a query has no negatives: the whole batch is in its group.")
    bounds = {"info_nce": True, "nwj": True, "flat_nce": False, "donsker_varadhan": False}
    if alpha is not None:
        bounds["eqco"] = alpha <= int(fewest)
    estimates = {}
    for name, bound in bounds.items():
        value = np.asarray(values[name], np.float64)
        error = float(value.std(ddof=1) / np.sqrt(batches)) if batches > 1 else None
        estimates[name] = {"mean": float(value.mean()), "standard_error": error, "lower_bound": bound}
    return {
        "estimates": estimates,
        "protocol": f"estimates of {batches} batches of {batch_size} pairs, {score} / {temperature:g}",
        "settings": {
            "score": score,
            "temperature": temperature,
            "batch_size": batch_size,
            "batches": batches,
            "alpha": alpha,
            "seed": seed,
        },
    }


def _check_scores(score, temperature):
    if score not in SCORES:
        raise ValueError(f"score is {score!r}; it must be one of {', '.join(SCORES)}.")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it must be positive.")


def _pool(query, key, group, negatives, negatives_group):
    """Check the groups, the pool and its groups, and fill in their defaults."""
    if len(query) == 0 or len(query) != len(key):
        raise ValueError(
            f"there are {len(query)} queries and {len(key)} keys; they must be equal in number, at least one."
        )
    if negatives is None and negatives_group is not None:
        raise ValueError("negatives_group is given without negatives; pass both.")
    group = np.arange(len(query)) if group is None else np.asarray(group)
    group = (
        np.unique(group, return_inverse=True)[1].reshape(group.shape) if negatives_group is None else group
    )
    if negatives is None:
        negatives, negatives_group = key, group
    elif negatives_group is None:
        negatives_group = np.full(len(negatives), group.min() - 1)
    group, negatives_group = narrow_ids(group, np.asarray(negatives_group))
    if group.shape != (len(query),) or negatives_group.shape != (len(negatives),):
        raise ValueError(
            f"group has shape {group.shape} and negatives_group {negatives_group.shape}; they must be"
            f" {(len(query),)} and {(len(negatives),)}."
        )
    if negatives.shape[1:] != key.shape[1:]:
        raise ValueError(
            f"negatives are {negatives.shape} and key is {key.shape}; they may differ in the first number"
            " only."
        )
    return group, negatives, negatives_group


def _padded(array, axis=0):
    """Repeat the last row up to a multiple of the devices; callers drop its results."""
    array = np.asarray(array)
    width = [
        (0, -length % sharding.devices() if number == axis else 0)
        for number, length in enumerate(array.shape)
    ]
    return np.pad(array, width, mode="edge")


def _embed(score, array):
    return normalize(array) if score == "cosine" else at_least_float32(array)


def _joint(query, key):
    """Return the score of every query with its own key."""
    return jnp.sum(query * key, axis=-1)


@native.jit(static_argnames=("score", "engine"))
def _contrasts(query, key, group, pool, temperature, *, score, engine):
    """Return the contrast c and number of negatives K of every query."""
    query, key, candidates = (_embed(score, a) for a in (query, key, pool.key))
    pool = Pool(candidates, pool.group)
    statistics = negative_statistics(query, group, pool, 1 / temperature, _joint(query, key), engine=engine)
    return sharding.replicate(statistics.logsumexp[0]), sharding.replicate(statistics.count)


@native.jit
def _critic_contrasts(critic, x, y, group, candidates, candidates_group, valid):
    """Return the contrast c and number of negatives K of every row of x for candidates [tiles, m, ...]."""
    positive = at_least_float32(jax.vmap(lambda x, y: critic(x[None], y[None])[0, 0])(x, y))

    def add(carry, tile):
        logsumexp, count = carry
        candidates, candidates_group, valid = tile
        permitted = permitted_candidates(group, candidates_group, "exclude") & valid[None, :]
        score = at_least_float32(critic(x, candidates)) - positive[:, None]
        contrast = jax.nn.logsumexp(jnp.where(permitted, score, -jnp.inf), axis=1)
        return (jnp.logaddexp(logsumexp, contrast), count + jnp.sum(permitted, axis=1)), None

    nothing = jnp.full_like(positive, -jnp.inf), jnp.zeros(group.shape, int)
    return lax.scan(add, nothing, (candidates, candidates_group, valid))[0]


@native.jit(static_argnames=("score", "alpha"))
def _of_batches(query, key, group, pools, temperature, *, score, alpha):
    """Return {estimate: [batches]} and the least number of negatives of a query.

    A batch holds one query for each key of its pool, then padding.
    """

    def of_batch(batch):
        query, key, group, pool = batch
        query, key, candidates = (_embed(score, a) for a in (query, key, pool.key))
        positive = _joint(query, key)
        pool = Pool(candidates, pool.group)
        statistics = negative_statistics(query, group, pool, 1 / temperature, positive)
        statistics = statistics.logsumexp[0], statistics.count, positive / temperature
        c, count, positive = (sharding.replicate(a)[: len(candidates)] for a in statistics)
        estimates = {
            "info_nce": losses.info_nce_estimate(c, count),
            "nwj": losses.nwj(positive, c + positive, count),
            "flat_nce": losses.flat_nce_estimate(c, count),
            "donsker_varadhan": losses.donsker_varadhan_estimate(positive, c + positive, count),
        }
        if alpha is not None:
            estimates["eqco"] = losses.eqco_estimate(c, count, alpha=alpha)
        return {name: jnp.mean(value) for name, value in estimates.items()}, jnp.min(count)

    values, fewest = lax.map(of_batch, (query, key, group, pools))
    return values, jnp.min(fewest)


def _tiled_with_mask(size, candidates, group):
    """Return candidates [tiles, m, ...], their groups, and a mask that is False for padding."""
    tiles = -(-len(group) // size)
    size = -(-len(group) // tiles)
    missing = tiles * size - len(group)
    arrays = (np.asarray(candidates), group, np.ones(len(group), bool))
    return [
        jnp.asarray(np.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1)).reshape(tiles, size, *a.shape[1:]))
        for a in arrays
    ]


def _result(c, count, critic, settings, pool):
    """Return the mean over queries with its error, protocol and settings."""
    count = np.asarray(count)
    if count.min() == 0:
        raise ValueError("a query has no negatives: the whole pool is in its group.")
    value = np.asarray(losses.info_nce_estimate(jnp.asarray(c), jnp.asarray(count)), np.float64)
    return {
        "info_nce": float(value.mean()),
        "standard_error": float(value.std(ddof=1) / np.sqrt(len(value))) if len(value) > 1 else None,
        "largest": float(np.log1p(count).mean()),
        "protocol": f"InfoNCE estimate of mutual information, {critic}, {len(value)} queries, pool of {pool}",
        "settings": settings | {"queries": len(value), "pool": pool},
    }
