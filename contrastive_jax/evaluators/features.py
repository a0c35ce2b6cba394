"""Features of a data set, distributed over the devices, and the scores of the evaluators."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.tree_util import Partial

from contrastive_jax import native, sharding
from contrastive_jax.evaluators import progress
from contrastive_jax.losses import geometry

TILES = PartitionSpec(None, sharding.AXIS)
HELD = 2**26  # larger features are not held in float64 on the host: 512 MB
BLOCK = 2**19  # numbers of a block of rows: 4 MB in float64, which stay in a CPU's cache
FEWEST = 256  # rows of a block, however wide: products with fewer are slow


class NotFinite(ValueError):
    """Error for features that are not finite, as of a diverged encoder."""


@functools.partial(jax.tree_util.register_dataclass, data_fields=("tiles",), meta_fields=("count",))
@dataclasses.dataclass(frozen=True)
class Rows:
    """Features ``[n, F]`` in tiles of B rows, with the rows of each tile sharded over the devices.

    Row i is ``tiles[i // B, i % B]``. The network returns batches in this layout, so encoding a data set moves
    no features between devices, and each device holds only its share.
    """

    tiles: jax.Array  # [T, B, F]; rows from n on are 0
    count: int  # n

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, F)."""
        return self.count, self.tiles.shape[2]

    def __len__(self) -> int:
        return self.count

    def numpy(self) -> np.ndarray:
        """Return the features in host memory; on several hosts they are fetched tile by tile."""
        if self.tiles.is_fully_addressable:
            tiles = np.asarray(self.tiles)
        else:
            tiles = np.stack([np.asarray(_one_tile(self.tiles, t)) for t in range(self.tiles.shape[0])])
        return tiles.reshape(-1, tiles.shape[2])[: self.count]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return :meth:`numpy`, for ``np.asarray`` and functions that take arrays; always a copy.

        Raises:
            ValueError: ``copy=False``.
        """
        if copy is False:
            raise ValueError(
                "features are on the devices, so copy=False is not possible: numpy.asarray copies them to"
                " the host."
            )
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)


@native.jit
def _one_tile(tiles, number):
    return sharding.replicate(jax.lax.dynamic_index_in_dim(tiles, number, keepdims=False))


def spread(features: np.ndarray | Rows, tile: int = 1024) -> Rows:
    """Distribute host features ``[n, F]`` over the devices as :class:`Rows`; Rows are returned unchanged."""
    if isinstance(features, Rows):
        return features
    features = in_native_order(features)
    tile = _rounded(min(tile, len(features)))
    batches = (features[first : first + tile] for first in range(0, len(features), tile))
    return gathered(({"": on_devices(_padded(batch, tile))} for batch in batches), len(features), tile)[""]


def in_native_order(array: np.ndarray) -> np.ndarray:
    """Return an array in the machine's byte order: jax refuses any other, and compiled programs may misread it."""
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def gathered(batches: Iterable[dict[str, jax.Array]], count: int, tile: int) -> dict[str, Rows]:
    """Collect batches ``{name: [tile, F]}``, sharded by rows, into ``{name: Rows}``, written in place."""
    buffers = {}
    for number, batch in enumerate(batches):
        for name, rows in batch.items():
            if number == 0:
                buffers[name] = _empty(-(-count // tile), rows.shape, rows.dtype)
            buffers[name] = _write(buffers[name], rows, number)
    return {name: Rows(buffer, count) for name, buffer in buffers.items()}


def _empty(tiles, shape, dtype):
    where = sharding.named(jax.sharding.get_mesh(), TILES) if sharding.on_mesh() else None
    return jnp.zeros((tiles, *shape), dtype, device=where)


@native.jit(donate_argnums=0)
def _write(buffer, rows, number):
    return jax.lax.dynamic_update_index_in_dim(buffer, rows, number, 0)


def encode_rows(
    encode: Callable[[jax.Array], dict[str, jax.Array]],
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    prepare: Callable[[jax.Array], jax.Array],
    *,
    count: int,
    batch_size: int,
    layers: tuple[str, ...],
) -> tuple[dict[str, Rows], np.ndarray]:
    """Compute features of batches of images, kept on the devices, and return them with the labels.

    Args:
        encode: as in :func:`encode_all`.
        batches: images ``[b, h, w, c]`` uint8 and labels, b = ``batch_size`` except for the last batch.
        prepare: the evaluation transform of one image.
        count: total number of images.
        batch_size: a multiple of the number of devices, see :func:`batch_rows`.
        layers: layers to keep.

    Returns:
        ``{layer: Rows}`` and labels ``[n]``, or ``[n, C]`` for a multi-label set.

    Raises:
        ValueError: no batches, or a layer that the encoder does not have.
    """
    encode, labels = encode if isinstance(encode, Partial) else Partial(encode), []

    def encoded() -> Iterator[dict[str, jax.Array]]:
        for images, label in batches:
            labels.append(np.asarray(label))
            padded = on_devices(_padded(np.asarray(images), batch_size))
            yield _encode_batch(encode, padded, len(label), prepare=prepare, layers=layers)
            progress.report("images encoded", min(count, len(labels) * batch_size), count)

    rows = gathered(encoded(), count, batch_size)
    if not labels:
        raise ValueError("batches is empty; it must yield at least one batch of images and labels.")
    return rows, np.concatenate(labels)


def batch_rows(batch_size: int) -> int:
    """Round ``batch_size`` up to a multiple of the number of devices."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1.")
    return _rounded(batch_size)


def _rounded(size: int) -> int:
    return -(-size // sharding.devices()) * sharding.devices()


def encode_all(
    encode: Callable[[jax.Array], dict[str, jax.Array]],
    images: np.ndarray,
    prepare: Callable[[jax.Array], jax.Array],
    batch_size: int,
) -> dict[str, np.ndarray]:
    """Compute features of images by layer, in the order of ``images``; input and output are in host memory.

    All batches have the same shape (the last one is padded, and the padding is dropped), so that one program is
    compiled. On a mesh the rows of a batch are sharded over the devices, and ``batch_size`` is rounded up to a
    multiple of their number.

    Args:
        encode: function from images ``[B, size, size, c]`` float32 to layers ``{name: [B, ...]}``. To evaluate
            changing parameters without recompilation pass ``jax.tree_util.Partial(function, params, stats)``,
            whose bound arrays are arguments of the program and not constants.
        images: ``[n, h, w, c]`` uint8.
        prepare: the evaluation transform of one image, ``[h, w, c]`` uint8 -> ``[size, size, c]`` float32.
        batch_size: number of images per forward pass.

    Returns:
        ``{name: [n, F]}`` float32; layers with more axes are flattened.

    Raises:
        ValueError: no images, or a batch size below 1.
    """
    if len(images) == 0:
        raise ValueError("images is empty; it must contain at least one image.")
    batch_size = batch_rows(batch_size)
    encode = encode if isinstance(encode, Partial) else Partial(encode)

    batches, pending = [], None
    for start in range(0, len(images), batch_size):
        batch = np.asarray(images[start : start + batch_size])
        rows = on_devices(_padded(batch, batch_size))
        running = _encode_batch(encode, rows, len(batch), prepare=prepare, layers=None)
        if pending is not None:  # fetched while the next batch runs, so the device is never idle
            batches.append(jax.device_get(pending))
        pending = _replicated(running)
    batches.append(jax.device_get(pending))
    return {name: np.concatenate([batch[name] for batch in batches])[: len(images)] for name in batches[0]}


@native.jit(static_argnames=("prepare", "layers"))
def _encode_batch(encode, images, count, *, prepare, layers):
    """Compute layers ``{name: [B, F]}`` float32, sharded by rows; rows from ``count`` on are 0."""
    encoded = encode(jax.vmap(prepare)(images))
    for layer in layers or ():
        if layer not in encoded:
            raise ValueError(f"layer is {layer!r}; it must be one of {', '.join(encoded)}.")
    flat = {name: encoded[name].reshape(encoded[name].shape[0], -1) for name in layers or encoded}
    real = sharding.shard_batch(jnp.arange(images.shape[0]) < count)[:, None]
    return {
        name: jnp.where(real, y.astype(jnp.promote_types(y.dtype, jnp.float32)), 0)
        for name, y in flat.items()
    }


@native.jit
def _replicated(layers):
    return jax.tree.map(sharding.replicate, layers)  # every process can read replicated arrays


def _padded(batch: np.ndarray, size: int) -> np.ndarray:
    return np.pad(batch, [(0, size - len(batch))] + [(0, 0)] * (batch.ndim - 1))


def on_devices(batch: np.ndarray) -> jax.Array:
    """Return the host's batch with its rows sharded over the mesh, for any number of processes."""
    if not sharding.on_mesh():
        return jnp.asarray(batch)
    rows = sharding.named(jax.sharding.get_mesh(), sharding.ROWS)
    return jax.make_array_from_callback(batch.shape, rows, lambda index: batch[index])


def raw_pixels(images: np.ndarray) -> np.ndarray:
    """Return the baseline without an encoder: ``[n, ...]`` -> ``[n, F]`` float32; uint8 is scaled to [0, 1]."""
    flat = np.asarray(images).reshape(len(images), -1)
    return flat.astype(np.float32) / np.float32(255) if flat.dtype == np.uint8 else flat.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Standardized:
    """Standardised features ``[n, F]``, float64, computed at each access, so that no copy of them is held.

    ``x[rows]``, for a slice or positions, is an array.
    """

    source: np.ndarray  # [N, F]
    mean: np.ndarray  # [F]
    scale: np.ndarray  # [F]
    rows: np.ndarray | None = None  # [n] positions in source; None: all of them

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, F)."""
        return len(self.source if self.rows is None else self.rows), self.source.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        values = np.array(self.source[rows if self.rows is None else self.rows[rows]], np.float64)
        values -= self.mean
        values /= self.scale
        return values

    def held(self) -> "np.ndarray | Standardized":
        """Return an array if it has at most ``HELD`` numbers, else these features."""
        return self[:] if math.prod(self.shape) <= HELD else self


def standardized(
    train_features: np.ndarray | Rows, test_features: np.ndarray | Rows
) -> tuple[np.ndarray | Standardized, np.ndarray | Standardized]:
    """Standardize the features of both parts by mean and deviation of the training part, in float64.

    Parts of more than ``HELD`` numbers are converted block by block at each access, others once.
    """
    from sklearn.preprocessing import StandardScaler

    train, test = host(train_features), host(test_features)
    scaler = StandardScaler()
    for block in blocks(train):
        scaler.partial_fit(block.astype(np.float64))
    first, second = (Standardized(part, scaler.mean_, scaler.scale_).held() for part in (train, test))
    return first, second


def chosen(features: np.ndarray | Standardized, rows: np.ndarray) -> np.ndarray | Standardized:
    """Return the rows at these positions, held as those of :func:`standardized` are."""
    if not isinstance(features, Standardized):
        return features[rows]
    positions = rows if features.rows is None else features.rows[rows]
    return dataclasses.replace(features, rows=positions).held()


def blocks(features: np.ndarray | Standardized, columns: int = 1) -> Iterator[np.ndarray]:
    """Yield the rows in order, in blocks of b rows: ``BLOCK`` numbers, or fewer if ``[b, columns]`` has as many."""
    size = max(FEWEST, BLOCK // max(features.shape[1], columns))
    for first in range(0, len(features), size):
        yield features[first : first + size]


def standardized_rows(train: Rows, test: Rows) -> tuple[Rows, Rows]:
    """Standardize on the devices, in single precision or better, since squares in half precision overflow."""
    train, test = (Rows(_single(part.tiles), part.count) for part in (train, test))
    power = _power(train)
    train, test = (Rows(part.tiles * power, part.count) for part in (train, test))
    mean, deviation = _moments(train, power)
    first, second = (Rows(_scaled(part, mean, deviation), part.count) for part in (train, test))
    return first, second


def _single(tiles: jax.Array) -> jax.Array:
    return tiles.astype(jnp.promote_types(tiles.dtype, jnp.float32))


def _real(rows: Rows) -> jax.Array:
    """Return a mask [T, B, 1] of the n rows, without the padding."""
    tiles, size, _ = rows.tiles.shape
    number = jnp.arange(tiles * size).reshape(tiles, size)
    return (jax.reshard(number, TILES) if sharding.on_mesh() else number)[..., None] < rows.count


@native.jit
def _power(rows):
    """Return powers of two [F] that scale each feature to about 1, so that squares stay in range."""
    largest = jnp.max(jnp.abs(rows.tiles), axis=(0, 1))
    return geometry.power_of_two(largest)


@native.jit
def _moments(rows, power):
    mean = jnp.sum(rows.tiles, axis=(0, 1)) / rows.count
    # The mean of many rows is rounded; its error would add its square to the variance.
    difference = jnp.where(_real(rows), rows.tiles - mean, 0)
    error = jnp.sum(difference, axis=(0, 1)) / rows.count
    mean, variance = mean + error, jnp.sum(difference**2, axis=(0, 1)) / rows.count - error**2
    # A feature that varies by rounding errors only is constant; it is centred and keeps its scale.
    constant = variance <= (8 * jnp.finfo(mean.dtype).eps * mean) ** 2
    return mean, jnp.where(constant, power, jnp.sqrt(jnp.maximum(variance, 0)))


@native.jit
def _scaled(rows, mean, deviation):
    return jnp.where(_real(rows), (rows.tiles - mean) / deviation, 0)


def host(features: np.ndarray | Rows) -> np.ndarray:
    """Return ``[n, F]`` in host memory."""
    return features.numpy() if isinstance(features, Rows) else np.asarray(features)


def whole_numbers(labels: np.ndarray) -> np.ndarray:
    """Return labels as integers: False is 0 and True is 1."""
    labels = np.asarray(labels)
    return labels.astype(np.int32) if labels.dtype == bool else labels


def check(
    train_features: np.ndarray | Rows,
    train_labels: np.ndarray,
    test_features: np.ndarray | Rows,
    test_labels: np.ndarray,
) -> None:
    """Check the features and labels of an evaluation.

    Labels are ``[n]`` integers from 0, or ``[n, C]`` of 0 and 1 for several labels per image.

    Raises:
        ValueError: shapes that do not match, a set without rows, labels that are not integers, a missing
            (negative) label, or (:class:`NotFinite`) features that are not finite.
    """
    for name, features, labels in (
        ("train", train_features, train_labels),
        ("test", test_features, test_labels),
    ):
        shape = features.shape if isinstance(features, Rows) else np.shape(features)
        if len(shape) != 2 or np.ndim(labels) not in (1, 2) or len(labels) != shape[0] or not len(labels):
            raise ValueError(
                f"{name}_features has shape {shape} and {name}_labels has {np.shape(labels)}; they must"
                " be [n, F] and [n] (or [n, C]), n at least 1."
            )
        if np.asarray(labels).dtype.kind not in "biu":
            raise ValueError(f"{name}_labels are {np.asarray(labels).dtype}; they must be whole numbers.")
        if np.min(labels) < 0:
            raise ValueError(
                f"{name}_labels contains {int(np.min(labels))}; every image needs a label, 0 or more."
            )
        if isinstance(features, Rows):
            finite = _finite(features.tiles)
        else:
            finite = all(np.isfinite(block).all() for block in blocks(np.asarray(features)))
        if not finite:
            raise NotFinite(f"{name}_features contains values that are not finite: the encoder has diverged.")
    if train_features.shape[1] != test_features.shape[1]:
        raise ValueError(
            f"train_features have width {np.shape(train_features)[1]} and test_features"
            f" {np.shape(test_features)[1]}; they must be from the same layer."
        )
    if (
        np.ndim(train_labels) != np.ndim(test_labels)
        or np.shape(train_labels)[1:] != np.shape(test_labels)[1:]
    ):
        raise ValueError(
            f"train_labels are {np.shape(train_labels)} and test_labels {np.shape(test_labels)}; both"
            " must be [n] or both [n, C], with one C."
        )


@native.jit
def _finite(tiles):
    return jnp.isfinite(tiles).all()


def scores(outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Score outputs ``[m, C]``, which are larger for likelier classes.

    Returns :func:`accuracy` of the class with the largest output and, with more than 5 classes, ``top5``; for
    labels ``[m, C]``, :func:`average_precision`. Ties go to the smaller class number; a class with the smallest
    output of a row, such as no vote of kNN, is not among its top 5 unless it is the first."""
    if np.ndim(labels) == 2:
        return average_precision(outputs, labels)
    result = accuracy(np.argmax(outputs, axis=1), labels)
    if outputs.shape[1] > 5:
        first = np.argsort(-outputs, axis=1, kind="stable")[:, :5]
        named = np.take_along_axis(outputs, first, axis=1) > outputs.min(axis=1, keepdims=True)
        named[:, 0] = True  # the predicted class, where all are equal too
        result["top5"] = float(np.mean(((first == np.asarray(labels)[:, None]) & named).any(axis=1)))
    return result


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute top-1 and mean per-class accuracy over the classes in ``labels``, both in [0, 1]."""
    correct = np.asarray(predicted) == np.asarray(labels)
    per_class = [correct[labels == label].mean() for label in np.unique(labels)]
    return {"top1": float(correct.mean()), "mean_per_class": float(np.mean(per_class))}


def average_precision(outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute average precision, averaged over the classes; each class ranks all images by its output.

    ``map_11_point`` is VOC 2007's (Everingham et al., 2010, section 4.2): the mean over recalls 0, 0.1, ..., 1
    of the best precision at that recall or above. ``mean_average_precision`` is the mean precision at each
    positive (as in scikit-learn). Images with equal outputs share a rank. Classes without positives are left
    out.

    Args:
        outputs: ``[m, C]``, larger for likelier classes.
        labels: ``[m, C]`` of 0 and 1.

    Raises:
        ValueError: no class has a positive image.
    """
    from sklearn.metrics import precision_recall_curve

    eleven, plain = [], []
    for output, label in zip(np.asarray(outputs).T, np.asarray(labels).T, strict=True):
        if not label.any():
            continue
        precision, recall, _ = precision_recall_curve(label, output)  # recall decreases to a final 0
        plain.append(-np.sum(np.diff(recall) * precision[:-1]))
        # Tolerance: a recall of 3/10 must count for the point 0.3 despite rounding.
        points = [precision[:-1][recall[:-1] >= point - 1e-12] for point in np.linspace(0, 1, 11)]
        eleven.append(np.mean([reached.max() for reached in points]))
    if not plain:
        raise ValueError("test_labels contains no positive; a ranking needs at least one.")
    return {"map_11_point": float(np.mean(eleven)), "mean_average_precision": float(np.mean(plain))}
