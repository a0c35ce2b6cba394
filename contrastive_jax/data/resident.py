"""Small data sets in device memory, indexed inside the step, without work per step on the host.

A feed has two parts, the only interface between the training loop and the images: on the host, ``feed(step)``
returns the arrays that the step needs; inside the compiled step, ``take(arrays, step)`` returns the batch. Any
object with these two can feed the step.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from contrastive_jax import sharding
from contrastive_jax.data.composites import Plain
from contrastive_jax.data.order import rows
from contrastive_jax.data.split import Split
from contrastive_jax.types import Array, Batch, record


@record
class Arrays:
    """Arrays of a split and the order of S steps, on the device."""

    image: Array  # [n, h, w, c] uint8, on every device
    label: Array  # [n] int32 or [n, C] uint8, on every device
    group: Array  # [n] int32, on every device
    tables: tuple[Array, ...]  # [n, ...] each, on every device: tables of the composition
    bank: tuple[Array, ...]  # [m, ...] each, on every device: bank of the composition
    index: Array  # [S, B] int32, columns sharded on the axis data: image of each row of each step
    epoch: Array  # [S, B] int32, sharded likewise: epoch of each row


@dataclasses.dataclass(frozen=True)
class Take:
    """Pure function ``(arrays, step)`` -> batch of a step, sharded by row on a mesh, for a compiled step.

    Moves no data between devices. Objects with equal compositions are equal, so that they share compiled
    programs. ``step`` must be in the chunk that ``arrays`` was fed for.
    """

    composition: Plain = Plain()

    def __call__(self, arrays: Arrays, step: Array | int) -> Batch:
        """Return the batch."""
        row = step % arrays.index.shape[0]
        index, epoch = (
            jax.lax.dynamic_index_in_dim(a, row, keepdims=False) for a in (arrays.index, arrays.epoch)
        )
        image, label, group, *tables = (
            pick(a, index) for a in (arrays.image, arrays.label, arrays.group, *arrays.tables)
        )
        image = self.composition(jnp, image, tuple(tables), arrays.bank, pick)
        return Batch(image=image, label=label, id=index, group=group, epoch=epoch)


def pick(array: Array, index: Array) -> Array:
    """Look up rows of a replicated array for the examples on each device."""
    return array.at[index].get(out_sharding=sharding.rows_sharding(), mode="promise_in_bounds")


def _held(split: Split) -> tuple:
    """Return the arrays that every device holds."""
    return split.image, split.label, split.group, split.made.tables, split.made.bank


class Resident:
    """A split held on every device of ``mesh`` (None: the default device), in the order of :mod:`order`.

    ``batch_size`` is global. Each of several processes holds the whole split and computes the same order.
    """

    def __init__(self, split: Split, *, seed: int, batch_size: int, mesh: Mesh | None = None):
        devices = mesh.shape.get(sharding.AXIS, 1) if mesh else 1
        if batch_size < 1 or batch_size % devices:
            raise ValueError(
                f"batch_size is {batch_size}; it must be a positive multiple of the {devices} devices"
            )
        self.examples, self.batch_size, self.seed, self.mesh = len(split), batch_size, seed, mesh
        self.steps = -(-self.examples // batch_size)  # S, steps of a chunk, whose order is uploaded at once
        self.take, self._facts = Take(split.made.composition), dict(split.made.facts)
        self._split = jax.tree.map(lambda a: self._put(a, sharding.REPLICATED), _held(split))
        self._chunk = -1
        self._arrays: Any = None  # those of the chunk

    @staticmethod
    def shapes(split: Split, batch_size: int, mesh: Mesh) -> Arrays:
        """Return the shapes of the arrays of :meth:`feed`, to compile a program for other devices."""

        def shape(lengths, dtype, spec=sharding.REPLICATED):
            return jax.ShapeDtypeStruct(lengths, dtype, sharding=sharding.named(mesh, spec))

        held = jax.tree.map(lambda a: shape(a.shape, a.dtype), _held(split))
        order = shape(
            (-(-len(split) // batch_size), batch_size), np.int32, PartitionSpec(None, sharding.AXIS)
        )
        return Arrays(*held, index=order, epoch=order)  # type: ignore[misc]

    def metrics(self) -> dict[str, float]:
        """Return the facts of composed images, to be logged as metrics; {} for other images."""
        return self._facts

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def feed(self, step: int) -> Arrays:
        """Return the arrays of the chunk of ``step``; each chunk's order is uploaded once, in one shape."""
        chunk = int(step) // self.steps
        if chunk != self._chunk:
            self._chunk, self._arrays = chunk, Arrays(*self._split, *self._order(chunk))
        return self._arrays

    def _order(self, chunk: int) -> list[Array]:
        columns = PartitionSpec(None, sharding.AXIS)
        return [self._put(a, columns) for a in self._order_of(self.seed, chunk)]

    def _order_of(self, seed: int, chunk: int) -> list[np.ndarray]:
        """Return images and epochs of a chunk's rows, ``[S, B]`` each."""
        count = self.steps * self.batch_size
        order = rows(seed, self.examples, chunk * count, count)
        return [a.reshape(self.steps, self.batch_size) for a in order]

    def _put(self, array: np.ndarray, spec: PartitionSpec) -> Array:
        if self.mesh is None:
            return jnp.asarray(array)
        # Not device_put: with several processes it would compare the whole array between them.
        return jax.make_array_from_callback(array.shape, sharding.named(self.mesh, spec), lambda i: array[i])


class ResidentReplicas(Resident):
    """A split held once for N replicas, each with the order of its own seed.

    ``index`` and ``epoch`` of the arrays are ``[N, S, B]``, with the replicas on the axis ``sharding.REPLICA``.
    """

    def __init__(self, split: Split, *, seeds: Sequence[int], batch_size: int, mesh: Mesh):
        super().__init__(split, seed=seeds[0], batch_size=batch_size, mesh=mesh)
        self.seeds = seeds

    def _order(self, chunk: int) -> list[Array]:
        each = [self._order_of(seed, chunk) for seed in self.seeds]
        return [self._put(np.stack(parts), sharding.REPLICAS) for parts in zip(*each, strict=True)]
