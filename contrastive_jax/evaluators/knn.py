"""Weighted k-nearest-neighbour classification of frozen features (Wu et al., 2018, section 3.4).

Features are L2-normalised and compared by cosine. The k nearest images of the bank vote for their
classes, each with the weight exp(cosine / T), or with equal weight (T = 0). Two protocols of the field:
k = 200 with T = 0.1 (MoCo's CIFAR demo; T = 0.07 in Wu et al.), and k = 10 without weights. Their values
are not interchangeable.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from contrastive_jax import sharding
from contrastive_jax.evaluators.features import accuracy, check, standardized


def evaluate(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    k: int = 10,
    temperature: float = 0.0,
    standardize: bool = False,
    layer: str = "pooled",
    query_chunk: int = 1024,
    bank_chunk: int = 8192,
) -> dict:
    """Top-1 and mean per-class accuracy of the k-nearest-neighbour vote, in [0, 1].

    Args:
        train_features: the bank, ``[n, F]``.
        train_labels: ``[n]`` integers from 0.
        test_features: ``[m, F]``.
        test_labels: ``[m]``.
        k: neighbours that vote.
        temperature: T of the weights exp(cosine / T); 0 gives every neighbour one vote.
        standardize: first bring every feature to the bank's zero mean and unit deviation. Not part of the
            published protocol, and it can change the result by points.
        layer: name of the features, for the protocol.
        query_chunk: test rows compared at once.
        bank_chunk: bank rows compared at once; with ``query_chunk`` it bounds the memory.

    Returns:
        ``{"top1", "mean_per_class", "protocol", "settings"}``.

    Raises:
        ValueError: an option out of its range, or arrays that :func:`features.check` refuses.
    """
    check(train_features, train_labels, test_features, test_labels)
    if standardize:
        train_features, test_features = standardized(train_features, test_features)
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
        **accuracy(np.argmax(share, axis=1), test_labels),
        "protocol": f"kNN, k={k}, {cosine}, {weights}, layer {layer}, bank = all clean training images",
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
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    *,
    k: int = 10,
    temperature: float = 0.0,
    query_chunk: int = 1024,
    bank_chunk: int = 8192,
) -> np.ndarray:
    """Each class's share of the vote of the k nearest neighbours: ``[m, C]``, rows sum to 1.

    The share is the softmax of cosine / T over the k neighbours, summed by class: the weights exp(cosine / T)
    of Wu et al., normalised, and so without overflow at any T. Equal cosines: the earlier image of the bank
    is nearer. Equal shares: ``argmax`` takes the smaller class number, as scikit-learn does.

    Similarities are true float32 (float64 for float64 features in x64 mode). On a mesh the queries are
    divided over the devices, and the bank lies on each.

    Raises:
        ValueError: ``k``, ``temperature`` or a chunk out of its range.
    """
    if not 1 <= k <= len(train_labels):
        raise ValueError(f"k={k} must be from 1 to the size of the bank, {len(train_labels)}.")
    if not (np.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature={temperature} must be 0 (unweighted) or positive and finite.")
    for name, value in (("query_chunk", query_chunk), ("bank_chunk", bank_chunk)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")
    devices = jax.sharding.get_abstract_mesh().size if sharding.on_mesh() else 1
    rows = min(query_chunk, len(test_features))
    rows = -(-rows // devices) * devices
    tile = min(bank_chunk, len(train_labels))

    bank = _padded(train_features, -len(train_labels) % tile)
    bank = jnp.asarray(bank.reshape(-1, tile, bank.shape[1]))
    labels = np.pad(np.asarray(train_labels, np.int32), (0, -len(train_labels) % tile), constant_values=-1)
    labels = jnp.asarray(labels.reshape(-1, tile))
    options = dict(k=k, weighted=temperature > 0, classes=int(np.max(train_labels)) + 1)

    shares = []
    for start in range(0, len(test_features), rows):
        queries = np.asarray(test_features[start : start + rows])
        queries = sharding.spread(jnp.asarray(_padded(queries, rows - len(queries))))
        shares.append(np.asarray(_vote(queries, bank, labels, temperature, **options)))
    return np.concatenate(shares)[: len(test_features)]


@jax.jit(static_argnames=("k", "weighted", "classes"))
def _vote(queries, bank, labels, temperature, *, k, weighted, classes):
    vote = functools.partial(_vote_local, k=k, weighted=weighted, classes=classes)
    if sharding.on_mesh():  # top_k of rows that lie on several devices would first gather the similarities
        rows = sharding.ROWS
        vote = jax.shard_map(vote, in_specs=(rows, P(), P(), P()), out_specs=rows)
        return sharding.gather(vote(queries, bank, labels, temperature))
    return vote(queries, bank, labels, temperature)


def _vote_local(queries, bank, labels, temperature, *, k, weighted, classes):
    """queries [q, F], bank [tiles, tile, F], labels [tiles, tile] (-1: padding) -> [q, classes]."""
    queries, bank = _normalised(queries), _normalised(bank)

    def merge(nearest, tile):
        keys, key_labels = tile
        cosine = jnp.einsum("qf,mf->qm", queries, keys, precision=jax.lax.Precision.HIGHEST)
        cosine = jnp.where(key_labels >= 0, cosine, -jnp.inf)
        # What is kept comes first: of equal cosines top_k takes the first, the earlier image.
        cosine = jnp.concatenate([nearest[0], cosine], axis=1)
        names = jnp.concatenate([nearest[1], jnp.broadcast_to(key_labels, cosine[:, k:].shape)], axis=1)
        cosine, position = jax.lax.top_k(cosine, k)
        return (cosine, jnp.take_along_axis(names, position, axis=1)), None

    shape = (queries.shape[0], k)
    nobody = (
        jnp.full_like(queries, -jnp.inf, shape=shape),
        jnp.full_like(queries, -1, jnp.int32, shape=shape),
    )
    (cosine, names), _ = jax.lax.scan(merge, nobody, (bank, labels))
    weight = jax.nn.softmax(cosine / temperature, axis=1) if weighted else jnp.ones_like(cosine)
    ballots = jax.vmap(functools.partial(jax.ops.segment_sum, num_segments=classes))(weight, names)
    return ballots if weighted else ballots / k


def _normalised(features):
    features = features.astype(jnp.promote_types(features.dtype, jnp.float32))
    norm = jnp.linalg.norm(features, axis=-1, keepdims=True)
    return features / jnp.maximum(norm, jnp.finfo(features.dtype).tiny)


def _padded(features, rows):
    return np.pad(np.asarray(features), [(0, rows), (0, 0)])
