"""Weighted k-nearest-neighbour classification of frozen features (Wu et al., 2018, section 3.4).

Features are L2-normalised and compared by cosine. The k nearest images of the bank vote for their
classes with weights exp(cosine / T), or with equal weights (T = 0). Two common protocols are k = 200 with
T = 0.1 (MoCo's CIFAR demo; T = 0.07 in Wu et al.) and k = 10 without weights. Their results are not
comparable.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from contrastive_jax import native, sharding
from contrastive_jax.evaluators import features
from contrastive_jax.evaluators.features import TILES, Rows, check
from contrastive_jax.losses.geometry import directions
from contrastive_jax.native.compiler import platform_here

BLOCK = 16  # matrix products have multiples of this many rows


def evaluate(
    train_features: np.ndarray | Rows,
    train_labels: np.ndarray,
    test_features: np.ndarray | Rows,
    test_labels: np.ndarray,
    *,
    k: int = 10,
    temperature: float = 0.0,
    standardize: bool = False,
    layer: str = "pooled",
    bank: str = "all clean training images",
    query_chunk: int = 1024,
    bank_chunk: int = 1024,
) -> dict:
    """Evaluate the k-nearest-neighbour vote by :func:`features.scores` of each class's share.

    Args:
        train_features: the bank, ``[n, F]``.
        train_labels: ``[n]`` integers from 0, or ``[n, C]`` of 0 and 1: a neighbour votes for all its classes.
        test_features: ``[m, F]``.
        test_labels: ``[m]``, or ``[m, C]``.
        k: number of neighbours that vote.
        temperature: T of the weights exp(cosine / T); 0: all neighbours have equal weight.
        standardize: whether features are first standardized with the bank's mean and deviation. Not part of
            the published protocol; can change the result by points.
        layer: name of the features, for the protocol.
        bank: description of the bank's images, for the protocol.
        query_chunk: number of test rows that are compared at once.
        bank_chunk: number of bank rows that are compared at once, for a bank on the host (otherwise its tiles);
            with ``query_chunk`` it bounds the memory.

    Returns:
        ``{"top1", "mean_per_class", "protocol", "settings"}``; multi-label sets have the two mean average
        precisions instead of the first two.

    Raises:
        ValueError: an option out of range, or arrays that :func:`features.check` refuses.
    """
    check(train_features, train_labels, test_features, test_labels)
    if standardize:
        both = features.spread(train_features, bank_chunk), features.spread(test_features)
        train_features, test_features = features.standardized_rows(*both)
    share = votes(
        train_features,
        train_labels,
        test_features,
        k=k,
        temperature=temperature,
        query_chunk=query_chunk,
        bank_chunk=bank_chunk,
    )
    weights = f"weights exp(cosine/{temperature:g})" if temperature else "unweighted"
    cosine = "standardised on the bank, cosine" if standardize else "cosine"
    return {
        **features.scores(share, test_labels),
        "protocol": f"kNN, k={k}, {cosine}, {weights}, layer {layer}, bank = {bank}",
        "settings": {
            "k": k,
            "temperature": temperature,
            "standardize": standardize,
            "layer": layer,
            "bank": len(train_labels),
            "test": len(test_labels),
        },
    }


def votes(
    train_features: np.ndarray | Rows,
    train_labels: np.ndarray,
    test_features: np.ndarray | Rows,
    *,
    k: int = 10,
    temperature: float = 0.0,
    query_chunk: int = 1024,
    bank_chunk: int = 1024,
) -> np.ndarray:
    """Compute each class's share of the k nearest neighbours' vote: ``[m, C]``; rows of single-label sets sum to 1.

    The share is the softmax of cosine / T over the k neighbours, summed by class: the weights exp(cosine / T)
    of Wu et al., normalised, so they do not overflow at any T. Among equal cosines, the earlier image of the
    bank is nearer. Among equal shares, ``argmax`` takes the smaller class number, as in scikit-learn. Equal
    rows of the bank have equal cosines for any chunks, order of test rows and number of devices; the order of
    different rows whose cosines differ only by rounding (1e-7) may depend on these.

    Similarities are computed in full float32 (float64 for float64 features in x64 mode). On a mesh the bank is
    sharded: each device compares all queries with its own rows and sends only its k nearest. On a CPU without a
    mesh, arrays are compared chunk by chunk where they are: the memory beyond them does not depend on n.

    Raises:
        ValueError: ``k``, ``temperature`` or a chunk out of range.
    """
    if not 1 <= k <= len(train_labels):
        raise ValueError(f"k is {k}; it must be from 1 to {len(train_labels)}, the size of the bank.")
    if not (np.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature is {temperature}; it must be 0 (unweighted), or positive and finite.")
    for name, value in (("query_chunk", query_chunk), ("bank_chunk", bank_chunk)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1.")
    labels = features.whole_numbers(train_labels)
    classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1

    shares = []
    for cosine, row in _neighbours(train_features, test_features, k, query_chunk, bank_chunk):
        weight = _weights(cosine, temperature)
        if labels.ndim == 2:
            shares.append(np.einsum("qk,qkc->qc", weight, labels[row].astype(weight.dtype)))
        else:
            shares.append(_ballots(weight, labels[row], classes))
    return np.concatenate(shares)[: len(test_features)]


def _neighbours(bank, test, k, query_chunk, bank_chunk) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield cosines and bank rows [q, k] of the nearest neighbours, nearest first, for each chunk of queries.

    The last chunk is filled up with queries of zeros.
    """
    on_host = not (isinstance(bank, Rows) or isinstance(test, Rows) or sharding.on_mesh())
    if not (on_host and platform_here() == "cpu"):
        bank, test = features.spread(bank, bank_chunk), features.spread(test, query_chunk)
        for number in range(test.tiles.shape[0]):
            yield jax.device_get(_nearest(test.tiles, number, bank.tiles, k=k, count=bank.count))
        return
    # On a CPU, features on the device would be a second copy in the same memory.
    bank, test = features.in_native_order(bank), features.in_native_order(test)
    for queries in _chunks(test, query_chunk):
        queries, nearest = _unit_queries(queries, k=k, count=len(bank))
        for number, rows in enumerate(_chunks(bank, bank_chunk)):
            nearest = _nearer(nearest, queries, rows, number, count=len(bank))
            jax.block_until_ready(nearest)  # otherwise copies of many chunks wait in memory
        yield jax.device_get(nearest)


def _chunks(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield rows by chunks of equal size, the last one filled up with zeros."""
    size = min(size, len(array))
    for first in range(0, len(array), size):
        rows = array[first : first + size]
        yield rows if len(rows) == size else np.pad(rows, ((0, size - len(rows)), (0, 0)))


def _weights(cosine: np.ndarray, temperature: float) -> np.ndarray:
    """Return each neighbour's share of the vote, [q, k]."""
    if not temperature:
        return np.full_like(cosine, 1 / cosine.shape[1])
    weight = np.exp((cosine - cosine.max(axis=1, keepdims=True)) / cosine.dtype.type(temperature))
    return weight / weight.sum(axis=1, keepdims=True)


def _ballots(weight: np.ndarray, names: np.ndarray, classes: int) -> np.ndarray:
    """Sum weights [q, k] by the neighbours' classes [q, k]: [q, classes]."""
    share = np.zeros((len(weight), classes), weight.dtype)
    np.add.at(share, (np.arange(len(weight))[:, None], names), weight)
    return share


@native.jit(static_argnames=("k", "count"))
def _nearest(tests, number, keys, *, k, count):
    """Find cosines and bank rows of the k nearest neighbours of a tile's queries: [q, k], nearest first."""
    queries = directions(sharding.replicate(jax.lax.dynamic_index_in_dim(tests, number, keepdims=False)))
    size = keys.shape[1]
    if not sharding.on_mesh():
        return _local_nearest(queries, keys, 0, size, k, count)

    def local(queries, keys):
        own = jax.lax.axis_index(sharding.AXIS) * keys.shape[1]
        nearest = _local_nearest(queries, keys, own, size, k, count)
        return tuple(y[None] for y in nearest)

    spec = P(sharding.AXIS)
    nearest = jax.shard_map(local, in_specs=(P(), TILES), out_specs=(spec, spec))(queries, keys)
    cosine, row = (sharding.replicate(y).transpose(1, 0, 2).reshape(queries.shape[0], -1) for y in nearest)
    # Among equal cosines, take the earlier row of the whole bank.
    cosine, row = jax.lax.sort((-cosine, row), num_keys=2)
    return -cosine[:, :k], row[:, :k]


@native.jit(static_argnames=("k", "count"))
def _unit_queries(queries, *, k, count):
    """Return the directions of the queries, and cosines and rows before the first merge."""
    queries = directions(queries)
    return queries, _no_neighbours(queries, queries, k, count)


@native.jit(static_argnames=("count",))
def _nearer(nearest, queries, rows, number, *, count):
    """Merge chunk ``number`` of the bank into the neighbours of unit queries."""
    return _merge(nearest, queries, rows, number * rows.shape[0], count)


def _local_nearest(queries, keys, first, size, k, count):
    """Find the k nearest of this device's rows; row b of tile t is row ``t * size + first + b`` of the bank."""

    def merge(nearest, tile):
        rows, number = tile
        return _merge(nearest, queries, rows, number * size + first, count), None

    numbers = jnp.arange(keys.shape[0], dtype=jnp.int32)
    return jax.lax.scan(merge, _no_neighbours(keys, queries, k, count), (keys, numbers))[0]


def _no_neighbours(like, queries, k, count):
    """Return cosines and rows before the first merge; they vary over devices as ``like`` does."""
    shape = (queries.shape[0], k)
    return (
        jnp.full_like(like, -jnp.inf, queries.dtype, shape=shape),
        jnp.full_like(like, count, jnp.int32, shape=shape),
    )


def _merge(nearest, queries, rows, first, count):
    """Merge rows of the bank into the nearest; row b is row ``first + b`` of the bank."""
    k = nearest[0].shape[1]
    row = first + jnp.arange(rows.shape[0], dtype=jnp.int32)
    cosine = _cosines(queries, directions(rows))
    cosine = jnp.where(row < count, cosine, -jnp.inf)
    # Kept rows come first: among equal cosines top_k takes the first, the earlier image.
    cosine = jnp.concatenate([nearest[0], cosine], axis=1)
    row = jnp.concatenate([nearest[1], jnp.broadcast_to(row, cosine[:, k:].shape)], axis=1)
    cosine, position = jax.lax.top_k(cosine, k)
    return cosine, jnp.take_along_axis(row, position, axis=1)


def _cosines(queries, rows):
    """Return the products [q, m] of unit rows, with equal bits for equal rows at any place in a tile.

    Rows are padded to whole blocks: single or leftover rows may be summed in another order.
    """
    few, number = queries.shape[0], rows.shape[0]
    queries, rows = (jnp.pad(x, ((0, -len(x) % BLOCK), (0, 0))) for x in (queries, rows))
    return jnp.einsum("qf,mf->qm", queries, rows, precision=jax.lax.Precision.HIGHEST)[:few, :number]
