"""Device mesh with one explicit axis, and sharding and replication of arrays on it.

The program is written for the global batch: rows are sharded over the axis ``data``, and parameters are
replicated. Outside a mesh (a plain ``jax.jit``, a notebook) both operations are the identity. Replicas of a run
use another mesh, with an automatic axis of which the program is unaware.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive_jax.types import PyTree

Tree = TypeVar("Tree")  # an array, or a pytree of arrays

AXIS = "data"
ROWS = PartitionSpec(AXIS)
REPLICATED = PartitionSpec()
REPLICA = "replica"
REPLICAS = PartitionSpec(REPLICA)


def check_random_numbers() -> None:
    """Refuse random numbers of another kind than threefry2x32, which alone work on explicitly sharded arrays."""
    if (kind := jax.config.jax_default_prng_impl) != "threefry2x32":  # type: ignore[attr-defined]
        raise ValueError(f"JAX_DEFAULT_PRNG_IMPL is {kind}; it must be threefry2x32, or unset.")


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a one-axis mesh over ``devices`` (default: all of them) with explicit sharding types."""
    devices = list(devices or jax.devices())
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Explicit,), devices=devices)


def make_replica_mesh(count: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a mesh for ``count`` replicas: over as many of ``devices`` (default: all) as divide ``count``."""
    devices = list(devices or jax.devices())
    size = max(n for n in range(1, len(devices) + 1) if count % n == 0)
    return jax.make_mesh((size,), (REPLICA,), axis_types=(AxisType.Auto,), devices=devices[:size])


def on_mesh() -> bool:
    """Return whether an explicit ``data`` axis is in context."""
    mesh = jax.sharding.get_abstract_mesh()
    return (AXIS, AxisType.Explicit) in zip(mesh.axis_names, mesh.axis_types, strict=True)


def devices() -> int:
    """Return the number of devices that share the rows: that of the mesh in context, or 1."""
    return jax.sharding.get_abstract_mesh().shape[AXIS] if on_mesh() else 1


def replicate(array: Tree) -> Tree:
    """Copy every row to every device (all-gather); the identity outside a mesh."""
    return jax.reshard(array, REPLICATED) if on_mesh() else array


def shard_batch(array: Tree) -> Tree:
    """Distribute rows over the devices, the inverse of :func:`replicate`; the identity outside a mesh."""
    return jax.reshard(array, ROWS) if on_mesh() else array


def in_parts(tree: PyTree, parts: int) -> PyTree:
    """Split arrays [B, ...] into [parts, B / parts, ...]: row i goes to part i mod parts, on its device."""

    def split(array: jax.Array) -> jax.Array:
        return jnp.moveaxis(array.reshape(array.shape[0] // parts, parts, *array.shape[1:]), 1, 0)

    return jax.tree.map(split, tree)


def joined(tree: PyTree) -> PyTree:
    """Join parts in the original order of rows, the inverse of :func:`in_parts`."""

    def join(array: jax.Array) -> jax.Array:
        array = jnp.moveaxis(array, 0, 1)
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])

    return jax.tree.map(join, tree)


def shard_first_axis(array: jax.Array) -> jax.Array:
    """Distribute an array along its first axis that the number of devices divides, if there is one."""
    if not on_mesh():
        return array
    axis = next((i for i, n in enumerate(array.shape) if n and n % devices() == 0), None)
    return array if axis is None else jax.reshard(array, PartitionSpec(*[None] * axis, AXIS))


def psum_over_data(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Distribute a function that sums over rows: each device sums its own rows, then the sums are added."""

    def on_each(*rows):
        return jax.lax.psum(function(*rows), AXIS)

    def call(*rows):
        if not on_mesh() or jax.typeof(rows[0]).sharding.spec[0] is None:
            return function(*rows)
        return jax.shard_map(on_each, in_specs=ROWS, out_specs=REPLICATED, check_vma=False)(*rows)

    return call


def each_device(function: Callable, rows: tuple[jax.Array, ...], whole: tuple[jax.Array, ...] = ()):
    """Apply ``function(*rows, *whole)``, whose results have one row per input row, to each device's rows."""
    if not on_mesh() or jax.typeof(rows[0]).sharding.spec[0] is None:
        return function(*rows, *whole)
    specs = (ROWS,) * len(rows) + (REPLICATED,) * len(whole)
    return jax.shard_map(function, in_specs=specs, out_specs=ROWS, check_vma=False)(*rows, *whole)


def pick(array: jax.Array, index: jax.Array) -> jax.Array:
    """Gather entries of the last axis, ``[..., M]`` at index ``[..., K]`` to ``[..., K]``, on each device.

    An index may not occur twice along the last axis. Otherwise the gradient, a scatter, would depend on the
    order of additions, which on a GPU is that of its threads, or one by one in a deterministic step. The entry
    for an index of M or more is 0.
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
    """Wrap a function that is unaware of the mesh: the compiler distributes its work over the devices.

    Args:
      function: function of arrays on the mesh.
      results: partition specs of its results, one for all or a tree.
    """
    return lambda *arrays: (
        jax.sharding.auto_axes(function, axes=AXIS, out_sharding=results)(*arrays)
        if on_mesh()
        else function(*arrays)
    )


def rows_of(array: jax.Array) -> PartitionSpec:
    """Return the partition spec of an array's rows: sharded, or replicated."""
    return ROWS if on_mesh() and jax.typeof(array).sharding.spec[0] == AXIS else REPLICATED


def rows_sharding() -> PartitionSpec | None:
    """Return ``out_sharding`` for an operation whose result has one row per example."""
    return ROWS if on_mesh() else None


def named(mesh: Mesh, spec: PartitionSpec) -> NamedSharding:
    """Return a concrete sharding for ``jax.device_put``."""
    return NamedSharding(mesh, spec)
