"""Losses that are sums over pairs of rows: NT-Xent with any number of positives, SINCERE and the sigmoid loss.

A loss of a query's logsumexp needs one pass over the candidates. A sum of a function of each pair needs another
one: :func:`pair_sums`, with the two engines of :mod:`contrastive_jax.contrast.similarity`, the [Q, M] matrix,
or tiles of it with a hand-written backward pass.
"""

import functools
import numbers

import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax import sharding
from contrastive_jax.contrast import ring
from contrastive_jax.contrast.arguments import check_arrays, check_scalar, ids_of, one_of, positive_or_nan
from contrastive_jax.contrast.comparison import cosine, dot
from contrastive_jax.contrast.similarity import (
    ENGINES,
    RING,
    TILE,
    chosen_engine,
    negative_statistics,
    normalize,
)
from contrastive_jax.contrast.tiled import on_devices, tiles
from contrastive_jax.types import Array, Pool

SIDES = ("positives", "both")
SCORES = {"cosine": cosine, "dot": dot}


def ntxent(
    embeddings: Array, labels: Array, temperature: float | Array = 0.07, *, engine: str = "auto"
) -> Array:
    """Return the NT-Xent loss of a batch in which rows with the same label are positives of each other.

    It is the mean, over all ordered pairs (i, p) of different rows with the same label, of

        -log( exp(s_ip / tau) / (exp(s_ip / tau) + sum_j exp(s_ij / tau)) ),    j over rows of other labels,

    with s the cosine. Signature, values and gradients (of the temperature too) match ``optax.losses.ntxent``.
    Unlike there, they are finite for any scores at temperatures from 1e-37, and no [N, N, D] array is formed:
    each term is softplus(c), c = logsumexp_j((s_ij - s_ip) / tau), and scores are subtracted before the
    division by tau. A batch without a pair returns 0 (in optax NaN). float16 and bfloat16 are computed in
    float32, the type of the result.

    Works in ``jax.jit``, under ``grad`` (reverse mode) and ``vmap``, and on a mesh of
    :func:`contrastive_jax.sharding.make_mesh`, where the result is that of one device.
    Source: SimCLR (Chen et al., 2020), eq. 1; several positives as in optax and pytorch-metric-learning.

    Args:
      embeddings: [N, D], not normalised.
      labels: [N] int, one id per group of positives; a group may have any number of rows.
      temperature: tau > 0, a number or a scalar array; carries a gradient.
      engine: ``dense`` holds the [N, N] scores, ``tiled`` never does, ``auto`` chooses by their number.

    Returns:
      A scalar, float32 (float64 for float64 embeddings).

    Raises:
      ValueError: the message lists the argument, its value and the allowed values.

    Examples:
      Two views of three examples, concatenated:

      >>> import jax, jax.numpy as jnp
      >>> from contrastive_jax import ntxent
      >>> views = jnp.array([[1.0, 0.2], [-0.3, 1.0], [-1.0, -0.8], [0.9, -0.1], [0.2, 1.1], [-0.6, -1.0]])
      >>> labels = jnp.array([0, 1, 2, 0, 1, 2])
      >>> print(f"{ntxent(views, labels, temperature=0.5):.3f}")
      0.296
      >>> jax.grad(ntxent)(views, labels).shape
      (6, 2)
    """
    total, pairs = _of_pairs("ntxent", embeddings, labels, temperature, engine)
    number = jnp.sum(pairs.astype(total.dtype))  # the sum of up to N^2 pairs overflows int32
    return jnp.sum(total) / jnp.maximum(number, 1.0)


def sincere(
    embeddings: Array, labels: Array, temperature: float | Array = 0.07, *, engine: str = "auto"
) -> Array:
    """Return SINCERE, a supervised contrastive loss whose positives do not repel each other.

    It is the mean over rows i with positives, of the mean over their positives p, of

        -log( exp(s_ip / tau) / (exp(s_ip / tau) + sum_j exp(s_ij / tau)) ),    j over rows of other labels:

    It equals :func:`ntxent`, which averages over pairs, if all labels have equally many rows; here all rows
    have the same weight. Arguments, precision and errors are those of :func:`ntxent`. A batch without a pair
    returns 0.
    Source: SINCERE (Feeney and Hughes, 2023, arXiv 2309.14277).

    Args:
      embeddings: [N, D], not normalised.
      labels: [N] int, one id per group of positives.
      temperature: tau > 0, a number or a scalar array; carries a gradient.
      engine: ``dense`` holds the [N, N] scores, ``tiled`` never does, ``auto`` chooses by their number.

    Returns:
      A scalar, float32 (float64 for float64 embeddings).

    Raises:
      ValueError: the message lists the argument, its value and the allowed values.

    Examples:
      >>> import jax.numpy as jnp
      >>> from contrastive_jax import sincere
      >>> rows = jnp.array([[1.0, 0.2], [-0.3, 1.0], [-1.0, -0.8], [0.9, -0.1], [0.2, 1.1]])
      >>> print(f"{sincere(rows, jnp.array([0, 1, 1, 0, 0]), temperature=0.5):.3f}")
      1.161
    """
    total, pairs = _of_pairs("sincere", embeddings, labels, temperature, engine)
    some = pairs > 0
    mean = total / jnp.maximum(pairs, 1).astype(total.dtype)
    return jnp.sum(jnp.where(some, mean, 0.0)) / jnp.maximum(jnp.sum(some), 1).astype(total.dtype)


def _of_pairs(function: str, embeddings, labels, temperature, engine: str) -> tuple[Array, Array]:
    """Return each row's sum of softplus(c) over its positives, 0 without negatives, and their number, [N]."""
    check_arrays(function, embeddings=embeddings)
    if labels is None:
        raise ValueError(f"{function}.labels is None; it must be integer ids [N].")
    (labels,) = ids_of(function, labels=labels)
    _check_rows(function, "embeddings", embeddings, labels, "labels", engine)
    tau = _temperature(f"{function}.temperature", temperature).astype(
        jnp.promote_types(embeddings.dtype, jnp.float32)
    )
    row = jnp.arange(labels.shape[0], dtype=jnp.int32)
    query = normalize(sharding.shard_batch(embeddings))
    everyone, everyones = sharding.replicate(query), sharding.replicate(labels)
    pool, own = Pool(everyone, everyones, row), sharding.shard_batch(labels)
    # Scores are relative to the score of one positive, so that only differences are divided by tau.
    partner = everyone.at[_partner(everyones)].get()
    reference = lax.stop_gradient(jnp.sum(query * sharding.shard_batch(partner), axis=-1))
    scale = 1.0 / tau
    negatives = negative_statistics(query, own, pool, scale, reference, engine=engine)
    some = negatives.count > 0  # without negatives a pair contributes 0
    level = -jnp.where(some, negatives.logsumexp[0], 0.0)
    total, pairs = pair_sums(
        query, own, sharding.shard_batch(row), pool, scale, level, reference, engine=engine
    )
    return jnp.where(some, total, 0.0), pairs


def sigmoid_loss(
    a: Array,
    b: Array,
    temperature: float | Array = 0.1,
    bias: float | Array | None = None,
    *,
    relative_bias: float | Array | None = None,
    positives: Array | None = None,
    score: str = "cosine",
    engine: str = "auto",
) -> Array:
    """Return SigLIP's sigmoid loss of every row of ``a`` against all rows of ``b``: [N].

        loss_i = sum_j softplus(-z_ij (s_ij / tau + bias)),    z_ij = 1 for positives, -1 for all others,

    a binary classification of each pair. Row i of ``b`` is the positive of row i of ``a``; with ``positives`` all
    rows with its id are. The mean over rows is the published loss. There is no softmax over rows, so the mean
    is unchanged if ``a`` and ``b`` are swapped. Works in the same transformations and meshes as
    :func:`contrastive_jax.contrastive_loss`.
    Source: Sigmoid loss for language image pre-training (Zhai et al., 2023), algorithm 1.

    Args:
      a: [N, D] embeddings of one encoder, not normalised.
      b: [N, D] embeddings of the same examples from the other encoder.
      temperature: tau > 0, a number or a scalar array; carries a gradient. SigLIP starts at 0.1 and learns the
        logarithm of 1 / tau.
      bias: added to every logit; carries a gradient. SigLIP starts at -10, as nearly all pairs are negatives;
        None: -10, or 0 with a ``relative_bias``.
      relative_bias: subtracted from every score before the division by tau, ``(s_ij - relative_bias) / tau``:
        the score that separates positives from negatives at any tau; carries a gradient. The same loss as a
        bias of -relative_bias / tau, with other gradient steps (Bangachev et al., 2025, arXiv 2509.18552).
        Excludes ``bias``.
      positives: [N] int, ids: rows of ``a`` and ``b`` with the same id are positives. None: all ids differ.
      score: ``cosine`` normalises the rows; ``dot`` does not.
      engine: ``dense`` holds the [N, N] scores, ``tiled`` never does, ``auto`` chooses by their number. On a mesh
        these hold all rows of ``b`` on every device; ``ring`` is tiled and passes each device's rows round the
        ring.

    Returns:
      [N] values, at least float32.

    Raises:
      ValueError: the message lists the argument, its value and the allowed values.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from contrastive_jax import sigmoid_loss
      >>> image = jnp.array([[1.0, 0.2], [-0.3, 1.0], [-1.0, -0.8]])
      >>> text = jnp.array([[0.9, -0.1], [0.2, 1.1], [-0.6, -1.0]])
      >>> print(" ".join(f"{value:.3f}" for value in sigmoid_loss(image, text, 0.1, -5.0)))
      0.248 0.020 0.013

      Learn the temperature and the bias with the encoders:

      >>> loss = lambda log_scale, bias: sigmoid_loss(image, text, jnp.exp(-log_scale), bias).mean()
      >>> slopes = jax.grad(loss, argnums=(0, 1))(jnp.log(10.0), -10.0)
    """
    check_arrays("sigmoid_loss", a=a, b=b)
    if a.ndim != 2 or a.shape != b.shape or not a.size:
        raise ValueError(f"sigmoid_loss: a {a.shape} and b {b.shape} must both be [N, D], not empty.")
    one_of("sigmoid_loss.score", score, SCORES)
    (given,) = ids_of("sigmoid_loss", positives=positives)
    ids = jnp.arange(a.shape[0], dtype=jnp.int32) if given is None else given
    _check_rows("sigmoid_loss", "a", a, ids, "positives", engine, (*ENGINES, RING))
    query, key = (SCORES[score](sharding.shard_batch(x)) for x in (a, b))
    dtype = jnp.promote_types(query.dtype, key.dtype)
    query, key = query.astype(dtype), key.astype(dtype)
    tau = _temperature("sigmoid_loss.temperature", temperature).astype(dtype)
    if bias is not None and relative_bias is not None:
        raise ValueError("sigmoid_loss.relative_bias and sigmoid_loss.bias are both given; pass one of them.")
    nothing = jnp.zeros_like(query[:, 0], dtype)
    reference = nothing
    if relative_bias is not None:
        bias = 0.0
        reference = nothing + jnp.asarray(check_scalar("sigmoid_loss.relative_bias", relative_bias), dtype)
    bias = check_scalar("sigmoid_loss.bias", -10.0 if bias is None else bias)
    gather = sharding.shard_batch if engine == RING else sharding.replicate
    pool = Pool(gather(key), gather(ids))
    level = nothing + jnp.asarray(bias).astype(dtype)
    sums = pair_sums(
        query, sharding.shard_batch(ids), None, pool, 1.0 / tau, level, reference, sides="both", engine=engine
    )
    return sums[0]


def pair_sums(
    query: Array,
    query_group: Array,
    query_row: Array | None,
    pool: Pool,
    scale: Array,
    level: Array,
    reference: Array,
    *,
    sides: str = "positives",
    engine: str = "auto",
    tile: tuple[int, int] = TILE,
) -> tuple[Array, Array]:
    """Sum the logistic loss of a query's pairs, with logits x = scale (s - reference) + level.

    A positive adds softplus(-x), a negative softplus(x). Positives are the candidates of the query's own group,
    negatives all others; candidates with the query's own row are skipped. All arguments but the ids carry
    gradients (reverse mode only if tiled).

    Args:
      query: [Q, D], on a mesh sharded by rows.
      query_group: [Q] int.
      query_row: [Q] int, compared with ``pool.row``; None: no candidate is the query itself.
      pool: M candidates, on a mesh replicated, or sharded by rows for the engine ``ring``.
      scale: scalar, 1 / tau.
      level: [Q], added to a query's logits.
      reference: [Q], subtracted from a query's scores before the multiplication by ``scale``.
      sides: ``positives`` sums over positives only, ``both`` over negatives too.
      engine: ``dense`` holds the [Q, M] scores, ``tiled`` never does, ``auto`` chooses by their number;
        ``ring`` is tiled and passes the candidates round the devices.
      tile: numbers of queries and candidates per tile.

    Returns:
      The sums [Q] and their numbers of pairs [Q], int32.
    """
    if sides not in SIDES:
        raise ValueError(f"pair_sums.sides is {sides!r}; allowed: {', '.join(SIDES)}.")
    row = None if query_row is None else pool.row
    rows, whole = (query, query_group, query_row, level, reference), (pool.key, pool.group, row, scale)
    if engine == RING:
        return _by_ring((*tile, sides), *rows, *whole)
    if chosen_engine(engine, query, pool.key) == "dense":
        return _sums(sides, *rows, *whole, jnp.ones(pool.group.shape, bool))
    return on_devices(functools.partial(_tiled, (*tile, sides)), rows, whole, (sharding.ROWS, sharding.ROWS))


def _by_ring(options, query, query_group, query_row, level, reference, key, group, row, scale):
    """Run :func:`_tiled` on candidates that are sharded by rows, without gathering them."""

    def of_chunk(rows, chunk):
        ((query, level, reference), (query_group, query_row), scale), ((key,), (group, row)) = rows, chunk
        return _tiled(options, query, query_group, query_row, level, reference, key, group, row, scale)

    rows, chunk = ((query, level, reference), (query_group, query_row)), ((key,), (group, row))
    add = functools.partial(jax.tree.map, jnp.add)
    own = lambda cotangents, found, part: cotangents  # noqa: E731
    return ring.around(of_chunk, add, own, rows, chunk, scale, (sharding.ROWS, sharding.ROWS))


def _logits(sides, query, query_group, query_row, level, reference, key, group, row, scale, valid):
    """Return a tile's scores minus the reference, logits x, and masks of positives and of counted pairs."""
    above = jnp.matmul(query, key.T, precision=lax.Precision.HIGHEST) - reference[:, None]
    alike, counted = _pairs(sides, query_group, query_row, group, row, valid)
    return above, scale * above + level[:, None], alike, counted


def _pairs(sides, query_group, query_row, group, row, valid):
    """Return the masks of positive pairs and of counted pairs, [q, c] bool each."""
    alike = query_group[:, None] == group[None, :]
    counted = jnp.broadcast_to(valid, alike.shape) if sides == "both" else alike & valid
    return alike, counted if row is None else counted & (query_row[:, None] != row[None, :])


def _sums(sides, *arguments):
    """Compute :func:`pair_sums` by its definition, on the [q, c] logits."""
    _, x, alike, counted = _logits(sides, *arguments)
    cost = jax.nn.softplus(jnp.where(alike, -x, x))
    return jnp.sum(jnp.where(counted, cost, 0), axis=-1), jnp.sum(counted, axis=-1, dtype=jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiled(options, query, query_group, query_row, level, reference, key, group, row, scale):
    """Compute :func:`pair_sums` by tiles on one device. ``options``: query tile, candidate tile, sides."""
    height, width, sides = options
    candidates = tiles(width, key, group, row, jnp.ones(group.shape, bool))

    def of_queries(tile):
        def add(carry, candidates):
            key, group, row, valid = candidates

            def more():
                sums = _sums(sides, *tile, key, group, row, scale, valid)
                return tuple(x + y for x, y in zip(carry, sums, strict=True))

            # With small groups in order nearly all tiles hold no positive and are skipped.
            return lax.cond(_any(sides, tile, group, row, valid), more, lambda: carry), None

        none = jnp.zeros_like(tile[0][:, 0])
        return lax.scan(add, (none, jnp.zeros_like(tile[1], jnp.int32)), candidates)[0]

    sums = lax.map(of_queries, tiles(height, query, query_group, query_row, level, reference))
    return tuple(x.reshape(-1)[: query.shape[0]] for x in sums)


def _any(sides, tile, group, row, valid):
    _, query_group, query_row, *_ = tile
    return jnp.any(_pairs(sides, query_group, query_row, group, row, valid)[1])


def _forward(options, *arguments):
    return _tiled(options, *arguments), arguments


def _backward(options, arguments, cotangents):
    """Compute gradients by tiles: dx is the cotangent times sigmoid(x), or -sigmoid(-x) for a positive."""
    height, width, sides = options
    query, query_group, query_row, level, reference, key, group, row, scale = arguments
    candidates = tiles(width, key, group, row, jnp.ones(group.shape, bool))
    queries = tiles(height, query, query_group, query_row, level, reference, cotangents[0])

    def of_queries(key_gradient, tile):
        *tile, cotangent = tile
        query = tile[0]

        def add(carry, candidates):
            key, group, row, valid = candidates

            def more():
                above, x, alike, counted = _logits(sides, *tile, key, group, row, scale, valid)
                slope = jnp.where(alike, -jax.nn.sigmoid(-x), jax.nn.sigmoid(x)) * cotangent[:, None]
                slope = jnp.where(counted, slope, 0)
                moved = scale * jnp.matmul(slope, key, precision=lax.Precision.HIGHEST)
                added = (moved, jnp.sum(slope, axis=-1), jnp.sum(slope * above, axis=-1))
                pull = scale * jnp.matmul(slope.T, query, precision=lax.Precision.HIGHEST)
                return tuple(x + y for x, y in zip(carry, added, strict=True)), pull

            counted = _any(sides, tile, group, row, valid)
            return lax.cond(counted, more, lambda: (carry, jnp.zeros_like(key)))

        none = jnp.zeros_like(query[:, 0])
        pulled, pull = lax.scan(add, (jnp.zeros_like(query), none, none), candidates)
        return key_gradient + pull, pulled

    key_gradient, pulled = lax.scan(of_queries, jnp.zeros_like(candidates[0]), queries)
    query_gradient, of_level, of_scale = (x.reshape(-1, *x.shape[2:])[: query.shape[0]] for x in pulled)
    key_gradient = key_gradient.reshape(-1, key.shape[1])[: key.shape[0]]
    return (
        *(query_gradient, None, None, of_level, -scale * of_level),
        *(key_gradient, None, None, jnp.sum(of_scale)),
    )


_tiled.defvjp(_forward, _backward)


def _partner(labels: Array) -> Array:
    """Return for every row [N] the index of another row with its label, or its own index without one."""
    order = jnp.argsort(labels, stable=True)
    ordered = labels[order]
    following = ordered == jnp.roll(ordered, -1)
    following = following.at[-1].set(False)
    before = jnp.roll(following, 1).at[0].set(False)
    place = jnp.arange(labels.shape[0], dtype=order.dtype)
    place = jnp.where(following, place + 1, jnp.where(before, place - 1, place))
    return jnp.zeros_like(order).at[order].set(order[place], unique_indices=True)


def _check_rows(
    function: str, argument: str, embeddings, ids, name: str, engine: str, engines: tuple[str, ...] = ENGINES
) -> None:
    """Raise ValueError unless embeddings [N, D], ids [N], the engine and the number of devices are valid."""
    check_arrays(function, **{argument: embeddings})
    if embeddings.ndim != 2 or not embeddings.size:
        raise ValueError(
            f"{function}.{argument} is {embeddings.dtype}{list(embeddings.shape)}; it must be floating, [N, D],"
            " not empty."
        )
    rows = embeddings.shape[0]
    if ids.shape != (rows,):
        raise ValueError(f"{function}.{name} is {ids.dtype}{list(ids.shape)}; it must be integers, [{rows}].")
    one_of(f"{function}.engine", engine, engines)
    if rows % (devices := sharding.devices()):
        raise ValueError(f"{function}: the rows N={rows} must be a multiple of the {devices} devices.")


def _temperature(argument: str, temperature: float | Array) -> Array:
    """Return a temperature as a scalar array; NaN for an array that is not positive.

    Raises:
      ValueError: not a scalar, or a number that is not positive.
    """
    temperature = check_scalar(argument, temperature)
    if isinstance(temperature, numbers.Real) and not temperature > 0:
        raise ValueError(f"{argument} is {temperature}; a temperature must be positive.")
    return positive_or_nan(jnp.asarray(temperature))
