"""Images that are made of stored ones as they are needed: on the device inside the step, on the host for evaluation.

A composition is a rule without arrays, so that programs are shared by all splits that it makes. What it reads
lies beside it (:class:`Made`): a row of each table for every example, and a bank that examples choose from.
The same lines run under NumPy and under JAX, on whole batches whose rows may lie on several devices.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import ModuleType

import numpy as np

from contrastive_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Plain:
    """The stored images themselves."""

    @property
    def constant(self) -> int:
        """Return how many of the last channels are the same all over an image, for augmentation to leave alone."""
        return 0

    def shape(self, stored: tuple) -> tuple:
        """Return (h, w, c) of an image that is made of a stored one of some shape."""
        return stored

    def __call__(self, xp: ModuleType, image: Array, tables: tuple, bank: tuple, pick: Callable) -> Array:
        """Return what is made of a batch of stored images, uint8.

        Args:
            xp: numpy or jax.numpy.
            image: [B, ..., h, w, c] uint8.
            tables: arrays [B, ...], the examples' rows.
            bank: arrays [m, ...].
            pick: ``pick(array, index)`` takes rows [B, ...] of an array of the bank.
        """
        return image


@dataclasses.dataclass(frozen=True)
class Bits(Plain):
    """Binary channels behind the image's own, 0 or 255 all over: the example's integer, lowest bit first."""

    bits: int

    @property
    def constant(self) -> int:
        """All bits."""
        return self.bits

    def shape(self, stored: tuple) -> tuple:
        """Return the shape with as many channels more."""
        return (*stored[:2], stored[2] + self.bits)

    def __call__(self, xp, image, tables, bank, pick):
        """Add to the image the bits of ``tables[0]`` [B] int32."""
        bits = (tables[0][:, None] >> xp.arange(self.bits, dtype=xp.int32)) & 1
        bits = (255 * bits).astype(xp.uint8).reshape(len(image), *[1] * (image.ndim - 2), self.bits)
        return xp.concatenate([image, xp.broadcast_to(bits, (*image.shape[:-1], self.bits))], axis=-1)


@dataclasses.dataclass(frozen=True)
class Noise(Plain):
    """An image of the bank whose bits are turned over, in each channel the same of all pixels.

    Tables: which [B] of the bank [m, h, w, c] it is, and the bits [B, c] uint8.
    """

    channels: int

    def shape(self, stored: tuple) -> tuple:
        """Return the shape with channels of its own alone."""
        return (*stored[:2], self.channels)

    def __call__(self, xp, image, tables, bank, pick):
        """Return the noise."""
        which, turned = tables
        return pick(bank[0], which) ^ turned[:, None, None, :]


@dataclasses.dataclass(frozen=True)
class Then(Plain):
    """A composition of what another one makes: first the tables and arrays of the one, then those of the other."""

    first: Plain
    tables: int  # how many of the first
    bank: int
    second: Plain

    @property
    def constant(self) -> int:
        """Return those of the second, which come last."""
        return self.second.constant

    def shape(self, stored: tuple) -> tuple:
        """Return the shape by both."""
        return self.second.shape(self.first.shape(stored))

    def __call__(self, xp, image, tables, bank, pick):
        """Apply both, one after the other."""
        image = self.first(xp, image, tables[: self.tables], bank[: self.bank], pick)
        return self.second(xp, image, tables[self.tables :], bank[self.bank :], pick)


def _maximum(xp, one, other):
    return xp.maximum(one, other)


def _add(xp, one, other):
    return xp.minimum(one + other, 255)


OVERLAPS = {"maximum": _maximum, "add": _add}  # of float images in 0..255


@dataclasses.dataclass(frozen=True)
class Canvas(Plain):
    """Digits on a black square.

    Tables: which [B, k] of its bank each digit is, and place [B, k, 2], its top and left pixel.
    """

    side: int
    channels: int
    banks: tuple[
        int, ...
    ]  # the number in the bank of the array [m, s, s, c] that each of the k digits is from
    overlap: str  # one of OVERLAPS

    def shape(self, stored: tuple) -> tuple:
        """Return the shape of the square."""
        return self.side, self.side, self.channels

    def __call__(self, xp, image, tables, bank, pick):
        """Lay the digits, each over those before it."""
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
    """A digit at nine fixed places of an image: its top left corner lies at PLACES of the height and of the width.

    Tables: which [B] of the bank [m, s, s, c or 1] it is.
    """

    overlap: str  # one of OVERLAPS

    def __call__(self, xp, image, tables, bank, pick):
        """Put the digit on the image [B, h, w, c]."""
        tile = pick(bank[0], tables[0])
        rows, columns = (placed(side, tile.shape[1]) for side in image.shape[1:3])
        rows, columns = (xp.asarray(np.broadcast_to(r, (1, *r.shape))) for r in (rows, columns))
        laid = _laid(xp, rows, tile, columns)
        return OVERLAPS[self.overlap](xp, image.astype(xp.float32), laid).astype(xp.uint8)


PLACES = (0.15, 0.45, 0.75)  # of a side: the authors' notebook


def starts(side: int) -> list[int]:
    """Return the first pixels of the three places along a side."""
    return [int(share * side) for share in PLACES]


def placed(side: int, size: int) -> np.ndarray:
    """Return [side, size]: 1 where a pixel of a side shows a pixel of the digit."""
    matrix = np.zeros((side, size), np.float32)
    for start in starts(side):
        matrix[start + np.arange(size), np.arange(size)] = 1
    return matrix


def _rows(xp, start, side, size):
    """Return [B, side, size]: the same for one place an example, that begins at ``start`` [B]."""
    pixel = xp.arange(side, dtype=xp.int32)[None, :, None] - start[:, None, None]
    return (pixel == xp.arange(size, dtype=xp.int32)).astype(xp.float32)


def _laid(xp, rows, tile, columns):
    """Lay tiles [B, s, s, c] where matrices [B or 1, h, s] and [B or 1, w, s] of 0 and 1 put them: [B, h, w, c].

    Each sum has one summand, so it is exact, in bfloat16 as well.
    """
    tile = xp.moveaxis(tile.astype(xp.float32), -1, 1)
    down = xp.matmul(rows[:, None], tile)
    return xp.moveaxis(xp.matmul(down, xp.swapaxes(columns, 1, 2)[:, None]), 1, -1)


@dataclasses.dataclass(frozen=True)
class Made:
    """A composition with what it reads.

    Attributes:
        composition: the rule.
        tables: arrays [n, ...], a row an example.
        bank: arrays that rows of the tables point into.
        facts: numbers that a run logs beside its metrics.
    """

    composition: Plain = Plain()
    tables: tuple[np.ndarray, ...] = ()
    bank: tuple[np.ndarray, ...] = ()
    facts: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __getitem__(self, rows) -> "Made":
        """Return that of the examples that an index array, mask or slice selects."""
        return dataclasses.replace(self, tables=tuple(table[rows] for table in self.tables))

    def then(self, other: "Made") -> "Made":
        """Return what ``other`` makes of the images that this one makes, of the same examples."""
        if self.composition == Plain():
            return other
        rule = Then(self.composition, len(self.tables), len(self.bank), other.composition)
        return Made(rule, self.tables + other.tables, self.bank + other.bank, {**self.facts, **other.facts})

    def images(self, image: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Compose the stored images [b, ..., h, w, c] uint8 of some rows on the host."""
        tables = tuple(table[rows] for table in self.tables)
        return np.asarray(self.composition(np, image, tables, self.bank, lambda array, index: array[index]))
