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
        """How many of the last channels are the same all over an image, for augmentation to leave alone."""
        return 0

    def shape(self, stored: tuple) -> tuple:
        """(h, w, c) of an image that is made of a stored one of some shape."""
        return stored

    def __call__(self, xp: ModuleType, image: Array, tables: tuple, bank: tuple, pick: Callable) -> Array:
        """What is made of a batch of stored images, uint8.

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
        """With as many channels more."""
        return (*stored[:2], stored[2] + self.bits)

    def __call__(self, xp, image, tables, bank, pick):
        """The image with the bits of ``tables[0]`` [B] int32."""
        bits = (tables[0][:, None] >> xp.arange(self.bits, dtype=xp.int32)) & 1
        bits = (255 * bits).astype(xp.uint8).reshape(len(image), *[1] * (image.ndim - 2), self.bits)
        return xp.concatenate([image, xp.broadcast_to(bits, (*image.shape[:-1], self.bits))], axis=-1)


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
        """Of the examples that an index array, mask or slice selects."""
        return dataclasses.replace(self, tables=tuple(table[rows] for table in self.tables))

    def images(self, image: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """On the host: what is made of the stored images [b, ..., h, w, c] of some rows, uint8."""
        tables = tuple(table[rows] for table in self.tables)
        return np.asarray(self.composition(np, image, tables, self.bank, lambda array, index: array[index]))
