"""The arrays that every evaluator reads, and the score that every evaluator returns."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from contrastive_jax import sharding


def encode_all(
    encode: Callable[[jax.Array], dict[str, jax.Array]],
    images: np.ndarray,
    prepare: Callable[[jax.Array], jax.Array],
    batch_size: int,
) -> dict[str, np.ndarray]:
    """Features of every image, layer by layer, in the order of ``images``.

    Every batch has the same shape (the last one is padded, the padding is dropped), so one program is
    compiled. On a mesh the rows of a batch lie over the devices and ``batch_size`` is rounded up to a
    multiple of their number.

    Args:
        encode: function of images ``[B, size, size, c]`` float32 to layers ``{name: [B, ...]}``. Pass
            ``jax.tree_util.Partial(function, params, stats)`` to evaluate changing parameters without
            compiling again: what a ``Partial`` binds is an argument of the program, not a constant.
        images: ``[n, h, w, c]`` uint8.
        prepare: the evaluation transform of one image, ``[h, w, c]`` uint8 -> ``[size, size, c]`` float32.
        batch_size: images that pass through the network at once.

    Returns:
        ``{name: [n, F]}`` float32; a layer of more axes is flattened.

    Raises:
        ValueError: without images, or with a batch size below 1.
    """
    if len(images) == 0:
        raise ValueError("images is empty: there is nothing to encode.")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1.")
    devices = jax.sharding.get_abstract_mesh().size if sharding.on_mesh() else 1
    batch_size = -(-batch_size // devices) * devices
    encode = encode if isinstance(encode, Partial) else Partial(encode)

    batches, pending = [], None
    for start in range(0, len(images), batch_size):
        batch = np.asarray(images[start : start + batch_size])
        missing = batch_size - len(batch)
        batch = np.pad(batch, [(0, missing)] + [(0, 0)] * (batch.ndim - 1), mode="edge")
        running = _encode_batch(encode, _rows(batch), prepare=prepare)
        if pending is not None:  # fetched only now: the device is never idle while the host copies
            batches.append(jax.device_get(pending))
        pending = running
    batches.append(jax.device_get(pending))
    return {name: np.concatenate([batch[name] for batch in batches])[: len(images)] for name in batches[0]}


@jax.jit(static_argnames="prepare")
def _encode_batch(encode, images, *, prepare):
    layers = encode(jax.vmap(prepare)(images))
    flat = {name: layer.reshape(layer.shape[0], -1).astype(jnp.float32) for name, layer in layers.items()}
    return jax.tree.map(sharding.gather, flat)  # every process can read what is replicated


def _rows(batch: np.ndarray) -> jax.Array:
    """The host's batch with its rows over the devices of the mesh, whatever the number of processes."""
    if not sharding.on_mesh():
        return jnp.asarray(batch)
    rows = sharding.named(jax.sharding.get_mesh(), sharding.ROWS)
    return jax.make_array_from_callback(batch.shape, rows, lambda index: batch[index])


def raw_pixels(images: np.ndarray) -> np.ndarray:
    """The baseline without an encoder: ``[n, h, w, c]`` uint8 -> ``[n, h*w*c]`` float32 in [0, 1]."""
    return np.asarray(images).reshape(len(images), -1).astype(np.float32) / np.float32(255)


def standardized(train_features: np.ndarray, test_features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both parts, float64, with the mean and deviation of the training part taken out of every feature."""
    from sklearn.preprocessing import StandardScaler

    train, test = np.asarray(train_features, np.float64), np.asarray(test_features, np.float64)
    scaler = StandardScaler().fit(train)  # a constant feature becomes 0
    return scaler.transform(train), scaler.transform(test)


def check(
    train_features: np.ndarray, train_labels: np.ndarray, test_features: np.ndarray, test_labels: np.ndarray
) -> None:
    """Refuse, in one sentence, features and labels that no evaluator can judge.

    Raises:
        ValueError: shapes that do not fit, a set without rows, a missing (negative) label, features that
            are not finite.
    """
    for name, features, labels in (
        ("train", train_features, train_labels),
        ("test", test_features, test_labels),
    ):
        if np.ndim(features) != 2 or np.shape(labels) != np.shape(features)[:1] or len(labels) == 0:
            raise ValueError(
                f"{name}_features has shape {np.shape(features)} and {name}_labels {np.shape(labels)}: "
                "they must be [n, F] and [n] with n at least 1."
            )
        if np.min(labels) < 0:
            raise ValueError(
                f"{name}_labels holds {int(np.min(labels))}: every image needs a label, 0 or more."
            )
        if not np.isfinite(features).all():
            raise ValueError(f"{name}_features holds values that are not finite: the encoder has diverged.")
    if np.shape(train_features)[1] != np.shape(test_features)[1]:
        raise ValueError(
            f"train_features are {np.shape(train_features)[1]} wide and test_features "
            f"{np.shape(test_features)[1]}: they must come from the same layer."
        )


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Top-1 and the mean over the classes of ``labels`` of each class's own top-1, both in [0, 1]."""
    correct = np.asarray(predicted) == np.asarray(labels)
    per_class = [correct[labels == label].mean() for label in np.unique(labels)]
    return {"top1": float(correct.mean()), "mean_per_class": float(np.mean(per_class))}
