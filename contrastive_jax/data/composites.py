"""Images composed from stored ones on demand: on the device inside the step, on the host for evaluation.

A composition is a rule without arrays, so that all splits of one rule share compiled programs. :class:`Made`
holds its arrays: tables with one row per example, and a bank that examples choose from. The same code runs in
NumPy and in JAX, on whole batches whose rows may be on several devices.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from contrastive_jax.types import AnyArray


@dataclasses.dataclass(frozen=True)
class Plain:
    """Identity: the stored images themselves."""

    @property
    def constant(self) -> int:
        """Number of last channels that are constant over an image, which augmentation does not change."""
        return 0

    def shape(self, stored: tuple) -> tuple:
        """Return the shape (h, w, c) of a composed image, given the shape of a stored one."""
        return stored

    def __call__(
        self, xp: ModuleType, image: AnyArray, tables: tuple, bank: tuple, pick: Callable
    ) -> AnyArray:
        """Compose a batch of images, uint8.

        Args:
            xp: numpy or jax.numpy.
            image: stored images [B, ..., h, w, c] uint8.
            tables: the examples' rows of the tables, arrays [B, ...].
            bank: arrays [m, ...].
            pick: function; ``pick(array, index)`` returns rows [B, ...] of an array of the bank.
        """
        return image


@dataclasses.dataclass(frozen=True)
class Bits(Plain):
    """Binary channels after the image's own, constant 0 or 255: the bits of an integer, lowest bit first."""

    bits: int

    @property
    def constant(self) -> int:
        """Number of bits."""
        return self.bits

    def shape(self, stored: tuple) -> tuple:
        """Return the shape with the binary channels."""
        return (*stored[:2], stored[2] + self.bits)

    def __call__(self, xp, image, tables, bank, pick):
        """Append the bits of ``tables[0]`` [B] int32 to the image as channels."""
        bits = (tables[0][:, None] >> xp.arange(self.bits, dtype=xp.int32)) & 1
        bits = (255 * bits).astype(xp.uint8).reshape(len(image), *[1] * (image.ndim - 2), self.bits)
        return xp.concatenate([image, xp.broadcast_to(bits, (*image.shape[:-1], self.bits))], axis=-1)


@dataclasses.dataclass(frozen=True)
class Noise(Plain):
    """An image of the bank with flipped bits, the same ones in all pixels of a channel.

    Tables: index [B] into the bank [m, h, w, c], and the flipped bits [B, c] uint8.
    """

    channels: int

    def shape(self, stored: tuple) -> tuple:
        """Return the shape with ``channels`` channels."""
        return (*stored[:2], self.channels)

    def __call__(self, xp, image, tables, bank, pick):
        """Return the noise."""
        which, turned = tables
        return pick(bank[0], which) ^ turned[:, None, None, :]


@dataclasses.dataclass(frozen=True)
class Paired(Plain):
    """The two arrays of a pair: the stored example, and its row of the one table."""

    def __call__(self, xp, image, tables, bank, pick):
        """Return a tuple of both arrays, [B, ...] each."""
        return image, tables[0]


@dataclasses.dataclass(frozen=True)
class Then(Plain):
    """Two compositions in sequence; tables and arrays of the first precede those of the second."""

    first: Plain
    tables: int  # number of the first's tables
    bank: int  # number of the first's arrays in the bank
    second: Plain

    @property
    def constant(self) -> int:
        """Number of constant channels of the second, which are the last."""
        return self.second.constant

    def shape(self, stored: tuple) -> tuple:
        """Return the shape after both compositions."""
        return self.second.shape(self.first.shape(stored))

    def __call__(self, xp, image, tables, bank, pick):
        """Apply both, one after the other."""
        image = self.first(xp, image, tables[: self.tables], bank[: self.bank], pick)
        return self.second(xp, image, tables[self.tables :], bank[self.bank :], pick)


def _maximum(xp, one, other):
    return xp.maximum(one, other)


def _add(xp, one, other):
    return xp.minimum(one + other, 255)


OVERLAPS = {"maximum": _maximum, "add": _add}  # for float images in 0..255


@dataclasses.dataclass(frozen=True)
class Canvas(Plain):
    """Digits on a black square.

    Tables: index [B, k] of each digit into its bank, and its place [B, k, 2], the top and left pixel.
    """

    side: int
    channels: int
    banks: tuple[int, ...]  # for each of the k digits, the number of its array [m, s, s, c] in the bank
    overlap: str  # one of OVERLAPS

    def shape(self, stored: tuple) -> tuple:
        """Return the shape of the square."""
        return self.side, self.side, self.channels

    def __call__(self, xp, image, tables, bank, pick):
        """Place the digits one after the other, combined by ``overlap``."""
        which, place = tables
        canvas = None
        for digit, number in enumerate(self.banks):
            tile = pick(bank[number], which[:, digit])
            top, left = (_rows(xp, place[:, digit, axis], self.side, tile.shape[1]) for axis in (0, 1))
            laid = _laid(xp, top, tile, left)
            canvas = laid if canvas is None else OVERLAPS[self.overlap](xp, canvas, laid)
        return canvas.astype(xp.uint8)


@dataclasses.dataclass(frozen=True)
class NinePlaces(Plain):
    """A digit at nine fixed places of an image, with its top left corner at PLACES of the height and the width.

    Tables: index [B] into the bank [m, s, s, c or 1].
    """

    overlap: str  # one of OVERLAPS

    def __call__(self, xp, image, tables, bank, pick):
        """Put the digit on the image [B, h, w, c]."""
        tile = pick(bank[0], tables[0])
        rows, columns = (placed(side, tile.shape[1]) for side in image.shape[1:3])
        rows, columns = (xp.asarray(np.broadcast_to(r, (1, *r.shape))) for r in (rows, columns))
        laid = _laid(xp, rows, tile, columns)
        return OVERLAPS[self.overlap](xp, image.astype(xp.float32), laid).astype(xp.uint8)


PLACES = (0.15, 0.45, 0.75)  # shares of a side, from the authors' notebook


def starts(side: int) -> list[int]:
    """Return the first pixels of the three places along a side."""
    return [int(share * side) for share in PLACES]


def placed(side: int, size: int) -> np.ndarray:
    """Return [side, size] with 1 for a pixel of a side and the pixel of the digit that it shows."""
    matrix = np.zeros((side, size), np.float32)
    for start in starts(side):
        matrix[start + np.arange(size), np.arange(size)] = 1
    return matrix


def _rows(xp, start, side, size):
    """Return [B, side, size] like :func:`placed`, for one place per example that begins at ``start`` [B]."""
    pixel = xp.arange(side, dtype=xp.int32)[None, :, None] - start[:, None, None]
    return (pixel == xp.arange(size, dtype=xp.int32)).astype(xp.float32)


def _laid(xp, rows, tile, columns):
    """Place tiles [B, s, s, c] by 0-1 matrices [B or 1, h, s] and [B or 1, w, s]; return [B, h, w, c].

    Each sum has at most one term other than 0, so it is exact, also in bfloat16.
    """
    tile = xp.moveaxis(tile.astype(xp.float32), -1, 1)
    down = xp.matmul(rows[:, None], tile)
    return xp.moveaxis(xp.matmul(down, xp.swapaxes(columns, 1, 2)[:, None]), 1, -1)


@dataclasses.dataclass(frozen=True)
class Made:
    """A composition with its arrays.

    Attributes:
        composition: the rule.
        tables: arrays [n, ...] with one row per example.
        bank: arrays that the tables' rows index.
        facts: numbers that a run logs with its metrics.
    """

    composition: Plain = Plain()
    tables: tuple[np.ndarray, ...] = ()
    bank: tuple[np.ndarray, ...] = ()
    facts: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __getitem__(self, rows) -> "Made":
        """Return the same composition for the examples that an index array, mask or slice selects."""
        return dataclasses.replace(self, tables=tuple(table[rows] for table in self.tables))

    def then(self, other: "Made") -> "Made":
        """Return the composition that applies ``other`` to the images of this one, for the same examples."""
        if self.composition == Plain():
            return other
        rule = Then(self.composition, len(self.tables), len(self.bank), other.composition)
        return Made(rule, self.tables + other.tables, self.bank + other.bank, {**self.facts, **other.facts})

    def images(self, image: np.ndarray, rows: np.ndarray) -> Any:
        """Compose images on the host, from the stored ones [b, ..., h, w, c] uint8 of some rows."""
        tables = tuple(table[rows] for table in self.tables)
        made = self.composition(np, image, tables, self.bank, lambda array, index: array[index])
        return tuple(map(np.asarray, made)) if isinstance(made, tuple) else np.asarray(made)
