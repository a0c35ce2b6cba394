"""Data sets in memory: splits of examples (images, or arrays of any shape), labels and groups."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from contrastive_jax.data.composites import Made, Paired
from contrastive_jax.types import Example, narrow_ids


def files_digest(paths: np.ndarray | None) -> str | None:
    """Return a digest of a split's file paths, in order; None if its images are not files."""
    if paths is None:
        return None
    return hashlib.sha256("\0".join(paths).encode("utf-8", "surrogateescape")).hexdigest()[:16]


Indices = Sequence[int] | np.ndarray  # row numbers [n]
STORED = (np.uint8, np.int32, np.float32)
VALUES = 1 << 24  # number of values checked at once


def numbers(array: np.ndarray, what: str) -> np.ndarray:
    """Return examples ``[n, ...]`` in their stored type: uint8 unchanged, other integers int32, floats float32.

    Args:
        array: the examples.
        what: name of the examples in error messages.

    Raises:
        ValueError: not numbers, no examples or empty ones, or a value that is not finite or does not fit the
            stored type, with its row.
    """
    kind = np.float32 if jnp.issubdtype(array.dtype, jnp.floating) else np.int32
    if kind is np.int32 and array.dtype.kind not in "iub":
        raise ValueError(f"{what} are {array.dtype}; they must be whole numbers or floats.")
    if array.ndim < 2 or not array.size:
        raise ValueError(f"{what} have shape {list(array.shape)}; they must be [n, ...], not empty.")
    if array.dtype == np.uint8:
        return array
    limit, step = np.iinfo(np.int32).max, max(1, VALUES // array[0].size)
    for first in range(0, len(array), step):
        some = np.asarray(array[first : first + step])
        with np.errstate(over="ignore"):
            fits = (
                np.isfinite(some.astype(np.float32))
                if kind is np.float32
                else (some >= -limit) & (some <= limit)
            )
        if not fits.all():
            place = np.unravel_index(np.argmin(fits), fits.shape)
            raise ValueError(
                f"{what} contain {some[place]} in row {first + place[0]}; values must be finite and fit"
                f" {kind.__name__}."
            )
    return array.astype(kind, copy=False)


_AS_STORED = Made()


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Split:
    """Examples of one split, in host memory. The position of an example is its id.

    Attributes:
        image: [n, ...] uint8, int32 or float32, as stored; images are [n, h, w, c] uint8. :meth:`pictures`
            returns the composed examples.
        label: [n] int32, -1 for no label (default: no labels); for a multi-label set [n, C] uint8, 1 for every
            class that an image shows.
        group: [n] int32; examples of one group (frames of a video, copies of an image) are never each
            other's negatives (default: each example is its own group).
        paths: [n] str, file paths relative to the folder of the set; None if the images are not files.
        made: composition of the stored images (default: identity); of pairs (:func:`pairs`) it holds the second
            arrays.
    """

    image: np.ndarray
    label: np.ndarray
    group: np.ndarray
    paths: np.ndarray | None
    made: Made

    def __init__(
        self,
        image: np.ndarray,
        label: np.ndarray | None = None,
        group: np.ndarray | None = None,
        paths: np.ndarray | None = None,
        made: Made = _AS_STORED,
    ):
        if image.dtype not in STORED or image.ndim < 2 or not len(image):
            raise ValueError(
                f"examples are {image.dtype} {list(image.shape)}; they must be [n, ...] of uint8, int32 or"
                " float32, n > 0."
            )
        n = len(image)
        label = np.full(n, -1, np.int32) if label is None else np.asarray(label)
        (group,) = narrow_ids(np.arange(n) if group is None else np.asarray(group))
        if label.dtype.kind not in "iub" and not np.all(label == np.floor(label)):
            raise ValueError(f"labels are {label.dtype}; they must be whole numbers")
        if label.ndim == 1 and not np.all((label >= -1) & (label < 2**31)):
            raise ValueError(
                "labels [n] must be whole numbers from -1 (none) to 2147483647: number your classes from 0"
            )
        if label.ndim == 2 and not (label.shape[1] and np.all((label == 0) | (label == 1))):
            raise ValueError("labels [n, C] must be 0 or 1, with at least one class")
        label = label.astype(np.uint8 if label.ndim == 2 else np.int32, copy=False)
        if label.ndim not in (1, 2) or len(label) != n:
            raise ValueError(f"labels have shape {list(label.shape)}; {n} examples need [{n}] or [{n}, C]")
        if group.shape != (n,):
            raise ValueError(f"group has shape {list(group.shape)}; {n} examples need [{n}]")
        vars(self).update(image=image, label=label, group=group, paths=paths, made=made)  # frozen from here

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, rows) -> "Split":
        """Return the rows that an index array, mask or slice selects; their ids start at 0 again."""
        paths = None if self.paths is None else self.paths[rows]
        return Split(self.image[rows], self.label[rows], self.group[rows], paths, self.made[rows])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an example: (h, w, c) for an image."""
        return self.made.composition.shape(self.image.shape[1:])

    @property
    def example(self) -> Example:
        """Shape and type of an example."""
        return Example(self.shape, str(self.image.dtype))

    @property
    def label_shape(self) -> tuple[int, ...]:
        """() or, for a multi-label set, (C,)."""
        return self.label.shape[1:]

    @property
    def labelled(self) -> bool:
        """Return whether any example has a label."""
        return self.label.ndim == 2 or bool((self.label >= 0).any())

    @property
    def labelled_rows(self) -> np.ndarray | None:
        """Rows of the examples that have a label; None: all."""
        if self.label.ndim == 2 or (self.label >= 0).all():
            return None
        return np.flatnonzero(self.label >= 0)

    @property
    def paired(self) -> bool:
        """Return whether an example is a pair of arrays; ``image`` and ``example`` are then the first one's."""
        return isinstance(self.made.composition, Paired)

    def of_pair(self, number: int) -> "Split":
        """Return the first (0) or second (1) arrays of pairs, as a split with the same labels and groups.

        0 of others is the split itself.
        """
        if not self.paired and number == 0:
            return self
        return Split((self.image, *self.made.tables)[number], self.label, self.group, self.paths)

    def pictures(self, rows: np.ndarray) -> Any:
        """Return the composed examples [b, ...] of some rows; of pairs a tuple of two arrays."""
        return self.made.images(self.image[rows], rows)

    def finish(self, view: Callable) -> Callable:
        """Return the part of ``view`` that the device applies to an image of :meth:`batches`: all of it.

        ``view`` comes from :func:`augment.make_views` or :func:`augment.make_eval`.
        """
        return view

    def batches(
        self, batch_size: int, view: Callable, rows: Indices | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield examples [b, ...] and labels [b] of ``rows`` (default: all), in that order, for evaluation.

        The last batch may be smaller. The device applies ``finish(view)`` to them: a resident split yields
        whole images, a streamed one (:class:`stream.Streamed`) yields images cropped and resized by ``view`` on
        the host.
        """
        order = np.arange(len(self)) if rows is None else np.asarray(rows)
        for first in range(0, len(order), batch_size):
            some = order[first : first + batch_size]
            yield self.pictures(some), self.label[some]

    def drawn(self, view: Callable, rows: np.ndarray, *, seed: int, epoch: int) -> dict[str, np.ndarray]:
        """Return image, label and group of some rows as a training step receives them.

        Images are whole examples [b, ...], for any view, seed and epoch; a streamed split returns cropped
        views.
        """
        return {"image": self.pictures(rows), "label": self.label[rows], "group": self.group[rows]}


def pairs(
    first: np.ndarray, second: np.ndarray, label: np.ndarray | None = None, group: np.ndarray | None = None
) -> Split:
    """Return a split of pairs: arrays ``[n, ...]`` each, with a row for each pair.

    Raises:
        ValueError: another number of second arrays.
    """
    if len(first) != len(second):
        raise ValueError(
            f"there are {len(first)} first arrays and {len(second)} second ones; pairs need as many."
        )
    return Split(first, label, group, made=Made(Paired(), (second,)))


def group_numbers(names: Sequence[str]) -> np.ndarray:
    """Return groups [n] int32, each the row of its first example; "" is a group of its own."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(name, i) if name else i for i, name in enumerate(names)], np.int32)


def stratified(
    label: np.ndarray, fraction: float, group: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """Return the mask [n] of a stratified test split, true for ``fraction`` of the examples of every class.

    Each example draws a raw 64-bit number (Philox with key (seed, 0), in the order of the examples). In each
    class (no label, -1, counts as a class) the round(fraction * class size) examples with the smallest numbers
    are test examples; a labelled class keeps at least one training example. Labels [n, C] are not stratified.

    With ``group`` [n], groups are drawn instead, each with the label of its first example, so that no
    near-duplicate of a training image is a test image. If this takes all examples of a labelled class, the
    group of its first example returns to training.
    """
    if label.ndim == 2:
        label = np.zeros(len(label), np.int32)
    if group is not None:
        _, first, member = np.unique(group, return_index=True, return_inverse=True)
        test = stratified(label[first], fraction, seed=seed)[member]
        for value in np.unique(label[label >= 0]):
            examples = np.flatnonzero(label == value)
            if test[examples].all():
                test &= member != member[examples[0]]
        return test
    draw = np.random.Philox(key=[seed, 0]).random_raw(len(label))
    test = np.zeros(len(label), bool)
    for value in np.unique(label):
        members = np.flatnonzero(label == value)
        count = min(int(fraction * len(members) + 0.5), len(members) - int(value >= 0))
        test[members[np.argsort(draw[members], kind="stable")[:count]]] = True
    return test
