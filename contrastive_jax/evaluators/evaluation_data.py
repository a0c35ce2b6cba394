"""Data of an evaluation: an encoder, or raw pixels, with labelled training and test images."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from contrastive_jax import augment, data, models, native, sharding
from contrastive_jax.evaluators import features
from contrastive_jax.evaluators.features import Rows
from contrastive_jax.kinds import Ge
from contrastive_jax.lookup import call, hashable
from contrastive_jax.types import PyTree

PIXELS = "pixels"
Seed = Annotated[int, Ge(-1)]  # -1: the run's own


class EvalSpec(NamedTuple):
    """Facts of an evaluation that are known before encoding, for early checks of the options."""

    layers: tuple[str, ...]  # layers of the encoder
    labels: np.ndarray | None  # [n] or [n, C], labels of the labelled training images; None if not read yet
    images: int | None = None  # number of training images, labelled or not
    several: bool = False  # whether an image may have several labels

    def check_count(self, name: str, value: int) -> None:
        """Refuse an option that needs more labelled training images than there can be."""
        there = len(self.labels) if self.labels is not None else self.images
        if there is not None and value > there:
            labelled = "labelled " if self.labels is not None else ""
            raise ValueError(
                f"{name} is {value}; it must be at most {there}, the number of {labelled}training images."
            )

    def check_layer(self, layer: str) -> None:
        """Refuse a layer that the encoder does not have."""
        if layer not in self.layers:
            raise ValueError(f"layer is {layer!r}; it must be one of {', '.join(self.layers)}.")


def check_seed(seed: int) -> None:
    """Refuse the seed -1, which a run replaces by its own seed before it builds the evaluators."""
    if seed < 0:
        raise ValueError(f"seed is {seed}; without a run it must be at least 0.")


def left_out(why: str) -> dict:
    """Return the result of an evaluator that does not apply to a subject."""
    return {"left_out": why}


class LabelledSubset(NamedTuple):
    """Labelled images of a split: the given ``rows`` of ``split`` (None: all)."""

    split: Any  # data.Split, or a streamed split
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.split) if self.rows is None else len(self.rows)

    def chosen(self, rows: np.ndarray) -> "LabelledSubset":
        """Return the subset at these positions of this subset."""
        return LabelledSubset(self.split, rows if self.rows is None else self.rows[rows])

    def images(self) -> Any:
        """Return a split of just these images."""
        return self.split if self.rows is None else self.split[self.rows]


def known_labels(split: Any) -> np.ndarray | None:
    """Return the labels of a split, [n] or [n, C]; None if they are in records not yet read."""
    return split.label if isinstance(split, data.Split) else getattr(split.records, "label", None)


def known_groups(part: LabelledSubset) -> np.ndarray | None:
    """Return the near-duplicate groups of a part's images, [n]; None if they are in records not yet read."""
    split = part.split
    groups = split.group if isinstance(split, data.Split) else getattr(split.records, "group", None)
    return groups if groups is None or part.rows is None else groups[part.rows]


def several(split: Any) -> bool:
    """Return whether an image may have several labels."""
    return split.label.ndim == 2 if isinstance(split, data.Split) else bool(split.records.label_shape)


def labelled(split: Any) -> LabelledSubset:
    """Select the images of a split that have a label."""
    return LabelledSubset(split, split.labelled_rows)


class Pretrained(NamedTuple):
    """Network, its weights, and the preprocessing of its images."""

    network: models.Network
    params: PyTree
    stats: PyTree
    augment: Mapping[str, Any]  # the config section of its pretraining


SMALL_BATCH = 256  # images; smaller batches are slower


class EvaluationData:
    """One row of the table; its features are computed once and shared by the evaluators.

    Attributes:
        name: name of the row.
        encoder: network to evaluate; None for raw pixels.
        train, test: labelled images.
        test_labels: labels of the test images; None until they have been encoded.
    """

    def __init__(
        self,
        name: str,
        encoder: Pretrained | None,
        train: LabelledSubset,
        test: LabelledSubset,
        *,
        layers: tuple[str, ...],
        batch_size: int,
    ):
        self.name, self.encoder, self.train, self.test = name, encoder, train, test
        # One batch size, so that both parts share a program; the smaller part, unless tiny, is one batch.
        self._layers, self._batch_size = layers, min(batch_size, max(SMALL_BATCH, min(len(train), len(test))))
        self.test_labels: np.ndarray | None = None
        self._found: dict[Any, Any] = {}

    @property
    def pretrained(self) -> Pretrained:
        """The encoder, for evaluators that need one."""
        if self.encoder is None:
            raise ValueError(f"{self.name} has no encoder")
        return self.encoder

    def layer(self, layer: str) -> str:
        """Return ``layer``, or the pixels for a row without an encoder."""
        return layer if self.encoder else PIXELS

    def arrays(self, layer: str, crop: float | None = None) -> tuple[Rows, np.ndarray, Rows, np.ndarray]:
        """Return features and labels of the training images, then features and labels of the test images.

        ``crop``: side of the centre crop as a share of the largest centred square (``eval_crop`` of the
        presets); None: as in pretraining. Pixels are of the whole image.
        """
        (train, labels), (test, test_labels) = self.encoded(self.train, crop), self.encoded(self.test, crop)
        layer = self.layer(layer)
        return train[layer], labels, test[layer], test_labels

    def encoded(self, part: LabelledSubset, crop: float | None = None) -> tuple[dict[str, Rows], np.ndarray]:
        """Return the features of a part by layer, for all layers that evaluators read, and the labels."""
        key = ("train" if part is self.train else "test", crop if self.encoder else None)
        if key not in self._found:
            self._found[key] = self._encode(part, crop) if self.encoder else self._pixels(part)
        if part is self.test:
            self.test_labels = self._found[key][1]
        return self._found[key]

    def _encode(self, part: LabelledSubset, crop: float | None) -> tuple[dict[str, Rows], np.ndarray]:
        bound = Partial(self.pretrained.network.encode, self.pretrained.params, self.pretrained.stats)
        return encode_part(bound, part, self.view(crop), self._batch_size, self._layers)

    def _pixels(self, part: LabelledSubset) -> tuple[dict[str, Rows], np.ndarray]:
        images = part.images()
        return {
            PIXELS: features.spread(features.raw_pixels(images.pictures(np.arange(len(images)))))
        }, images.label

    def some(self, count: int, seed: int) -> np.ndarray:
        """Return sorted positions of ``count`` random test images; of all if ``count`` is 0 or too large."""
        if not 0 < count < len(self.test):
            return np.arange(len(self.test))
        return np.sort(np.random.default_rng(seed).permutation(len(self.test))[:count])

    @property
    def unaugmented(self) -> str:
        """Return why there are no augmented views: raw pixels, or equal views; "" if there are."""
        if self.encoder is None:
            return "raw pixels have no augmented views"
        preset = self.pretrained.augment.get("preset")
        return f"the views of augment.preset={preset} are equal" if preset in ("none", "unchanged") else ""

    def two_views(self, layer: str, number: np.ndarray, seed: int) -> np.ndarray:
        """Return features [n, 2, F] of two views of some test images, augmented as in pretraining.

        ``number``: positions among the test images; ``seed``: seed of the augmentation.
        """
        key = ("views", number.tobytes(), seed)
        if key not in self._found:
            chosen = self.test.chosen(number)
            rows = np.arange(len(chosen)) if chosen.rows is None else np.asarray(chosen.rows)
            bound = Partial(self.pretrained.network.encode, self.pretrained.params, self.pretrained.stats)
            self._found[key] = _encode_views(
                bound, chosen.split, rows, seed, _training_views(hashable(self.pretrained.augment), self._bank),
                self._batch_size, self._layers,
            )  # fmt: skip
        return self._found[key][layer]

    @property
    def _bank(self) -> Any:
        """Return the split that views of arrays may draw values from; None for views of images."""
        return None if "size" in self.pretrained.augment else self.train.split

    def view(self, crop: float | None = None) -> Any:
        """Return the evaluation view; equal options give the same object, so that programs are shared."""
        return eval_view(hashable(self.pretrained.augment), crop)

    def tuned(self, encode: Partial, crop: float | None, layer: str) -> tuple[Rows, np.ndarray]:
        """Return features and labels of the test images by ``encode``, an encoder that was trained further."""
        rows, labels = encode_part(encode, self.test, self.view(crop), self._batch_size, (layer,))
        self.test_labels = labels
        return rows[layer], labels


def encode_part(
    encode, part: LabelledSubset, view, batch_size: int, layers
) -> tuple[dict[str, Rows], np.ndarray]:
    """Compute the features of all images of a part, by layer, and return them with the labels."""
    batch_size = features.batch_rows(min(batch_size, len(part)))
    batches = part.split.batches(batch_size, view, part.rows)
    return features.encode_rows(
        encode, batches, part.split.finish(view), count=len(part), batch_size=batch_size, layers=layers
    )


def _encode_views(encode, split, rows, seed: int, views, batch_size: int, layers) -> dict[str, np.ndarray]:
    """Compute features [n, 2, F] of two augmented views of some rows' images, by layer, in host memory."""
    batch_size = features.batch_rows(min(batch_size, len(rows)))
    parts = []
    for start in range(0, len(rows), batch_size):
        some = rows[start : start + batch_size]
        filled = np.resize(some, batch_size)  # one shape, one program
        images = features.on_devices(split.drawn(views, filled, seed=seed, epoch=0)["image"])
        of_batch = _views_of_batch(
            encode, images, features.on_devices(filled), seed, finish=split.finish(views), layers=layers
        )
        parts.append({name: values[: len(some)] for name, values in jax.device_get(of_batch).items()})
    return {name: np.concatenate([batch[name] for batch in parts]) for name in layers}


@native.jit(static_argnames=("finish", "layers"))
def _views_of_batch(encode, images, rows, seed, *, finish, layers):
    keys = augment.example_keys(jnp.asarray(seed, jnp.uint32), jnp.zeros_like(rows), rows)
    views = jax.vmap(finish)(keys, images)  # [b, W, s, s, c]
    one_by_one = [encode(views[:, w]) for w in range(2)]
    flat = {name: [y[name].reshape(len(rows), -1) for y in one_by_one] for name in layers}
    return {
        name: sharding.replicate(
            jnp.stack([y.astype(jnp.promote_types(y.dtype, "float32")) for y in ys], axis=1)
        )
        for name, ys in flat.items()
    }


@functools.lru_cache(8)
def _training_views(options: tuple, train: Any) -> Any:
    """Return the views of pretraining, at least two of them."""
    examples, section = None if train is None else train.image, dict(options)
    if section.get("views", 2) < 2:
        section = augment.with_views(section, 2)
    return call(augment.make_views, "augment", section, examples)


@functools.cache
def eval_view(options: tuple, crop: float | None = None) -> Any:
    """Return the evaluation view of an ``augment`` section, with the centre crop ``crop`` (None: its own)."""
    view = call(augment.make_eval, "augment", dict(options))
    return view if crop is None else view.cropped(crop)


def training_view(encoder: Pretrained, crop_min: float, flip: float) -> Any:
    """Return a view by crop and flip (:func:`augment.make_crops`), otherwise as in pretraining."""
    return _crops(hashable(encoder.augment), crop_min, flip)


@functools.cache
def _crops(options: tuple, crop_min: float, flip: float) -> Any:
    return call(augment.make_crops, "augment", dict(options), crop_min, flip)
