"""Devices: one mesh with one explicit axis, and the two moves that the program makes on it.

The program is written on the global batch. Rows of the batch lie on the axis ``data``; parameters
are replicated. Outside a mesh (a plain ``jax.jit``, a notebook) both moves are the identity. Replicas of a run lie on
a mesh of their own, whose axis the program does not see.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive_jax.types import PyTree

AXIS = "data"
ROWS = PartitionSpec(AXIS)
REPLICATED = PartitionSpec()
REPLICA = "replica"
REPLICAS = PartitionSpec(REPLICA)


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a one-axis mesh over ``devices`` (default: all of them) with explicit sharding types."""
    devices = list(devices or jax.devices())
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Explicit,), devices=devices)


def make_replica_mesh(count: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a mesh on which ``count`` replicas lie: over as many of ``devices`` (default: all) as share them equally."""
    devices = list(devices or jax.devices())
    size = max(n for n in range(1, len(devices) + 1) if count % n == 0)
    return jax.make_mesh((size,), (REPLICA,), axis_types=(AxisType.Auto,), devices=devices[:size])


def on_mesh() -> bool:
    """Return whether an explicit ``data`` axis is in context."""
    mesh = jax.sharding.get_abstract_mesh()
    return (AXIS, AxisType.Explicit) in zip(mesh.axis_names, mesh.axis_types, strict=True)


def devices() -> int:
    """Return how many devices share rows: those of the mesh in context, or one."""
    return jax.sharding.get_abstract_mesh().shape[AXIS] if on_mesh() else 1


def replicate(array: jax.Array) -> jax.Array:
    """Put every row on every device: the all-gather of the program, the identity outside a mesh."""
    return jax.reshard(array, REPLICATED) if on_mesh() else array


def shard_batch(array: jax.Array) -> jax.Array:
    """Lay rows over the devices: the inverse of :func:`replicate`, the identity outside a mesh."""
    return jax.reshard(array, ROWS) if on_mesh() else array


def in_parts(tree: PyTree, parts: int) -> PyTree:
    """Split rows, arrays [B, ...] to [parts, B / parts, ...]: row i goes to part i mod parts, on its own device."""

    def split(array: jax.Array) -> jax.Array:
        return jnp.moveaxis(array.reshape(array.shape[0] // parts, parts, *array.shape[1:]), 1, 0)

    return jax.tree.map(split, tree)


def joined(tree: PyTree) -> PyTree:
    """Put rows in their places again: the inverse of :func:`in_parts`."""

    def join(array: jax.Array) -> jax.Array:
        array = jnp.moveaxis(array, 0, 1)
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])

    return jax.tree.map(join, tree)


def shard_first_axis(array: jax.Array) -> jax.Array:
    """Put a share of the array on each device, along the first axis that they divide; whole where none is."""
    if not on_mesh():
        return array
    axis = next((i for i, n in enumerate(array.shape) if n and n % devices() == 0), None)
    return array if axis is None else jax.reshard(array, PartitionSpec(*[None] * axis, AXIS))


def psum_over_data(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Sum a function of rows whose result is a sum over them: each device sums its own, then all are summed."""

    def on_each(*rows):
        return jax.lax.psum(function(*rows), AXIS)

    def call(*rows):
        if not on_mesh() or jax.typeof(rows[0]).sharding.spec[0] is None:
            return function(*rows)
        return jax.shard_map(on_each, in_specs=ROWS, out_specs=REPLICATED, check_vma=False)(*rows)

    return call


def each_device(function: Callable, rows: tuple[jax.Array, ...], whole: tuple[jax.Array, ...] = ()):
    """Apply ``function(*rows, *whole)``, whose results have a row for each of ``rows``, to each device's own rows."""
    if not on_mesh() or jax.typeof(rows[0]).sharding.spec[0] is None:
        return function(*rows, *whole)
    specs = (ROWS,) * len(rows) + (REPLICATED,) * len(whole)
    return jax.shard_map(function, in_specs=specs, out_specs=ROWS, check_vma=False)(*rows, *whole)


def pick(array: jax.Array, index: jax.Array) -> jax.Array:
    """Look up entries of the last axis: ``[..., M]`` and index ``[..., K]`` to ``[..., K]``; each device its own rows.

    An index may not occur twice in a line, so that the gradient is in no order of additions: of a look-up it is a
    scatter, which a GPU adds in the order in which its threads end, or, where the step is to be deterministic, one by
    one. An index of M or more is none, and its entry 0.
    """
    axes = tuple(range(array.ndim - 1))
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(array.ndim - 1,),
        start_index_map=(array.ndim - 1,),
        operand_batching_dims=axes,
        start_indices_batching_dims=axes,
    )

    def on_each(array, index):
        return jax.lax.gather(
            array, index[..., None], numbers, (1,) * array.ndim,
            unique_indices=True, mode=jax.lax.GatherScatterMode.FILL_OR_DROP, fill_value=0,
        )  # fmt: skip

    return each_device(on_each, (array, index))


def automatic(function: Callable, results: Any) -> Callable:
    """Return a function whose body knows of no mesh: the compiler shares its work over the devices.

    Args:
      function: of arrays on the mesh.
      results: the partition specs of what it returns, or of its parts.
    """
    return lambda *arrays: (
        jax.sharding.auto_axes(function, axes=AXIS, out_sharding=results)(*arrays)
        if on_mesh()
        else function(*arrays)
    )


def rows_of(array: jax.Array) -> PartitionSpec:
    """Return how the rows of an array on the mesh lie."""
    return ROWS if on_mesh() and jax.typeof(array).sharding.spec[0] == AXIS else REPLICATED


def rows_sharding() -> PartitionSpec | None:
    """Return ``out_sharding`` for an operation whose result has one row an example."""
    return ROWS if on_mesh() else None


def named(mesh: Mesh, spec: PartitionSpec) -> NamedSharding:
    """Return a concrete sharding for ``jax.device_put``."""
    return NamedSharding(mesh, spec)
