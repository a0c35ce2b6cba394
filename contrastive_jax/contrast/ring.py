"""Ring exchange: every device keeps its queries and receives the candidates of one other device at a time.

A gather puts all candidates on every device. Here each device's candidates, and their gradient, pass round a
ring of devices, so a device's memory does not grow with the number of devices.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax import sharding
from contrastive_jax.types import PyTree


def around(
    function: Callable[..., PyTree],
    merge: Callable[[PyTree, PyTree], PyTree],
    share: Callable[[PyTree, PyTree, PyTree], PyTree],
    rows: tuple[PyTree, PyTree],
    chunk: tuple[PyTree, PyTree],
    whole: PyTree,
    out_specs: PyTree,
) -> PyTree:
    """Merge ``function((*rows, whole), chunk)`` over the chunks of all devices, one chunk without a mesh.

    Args:
      function: ``((floats, integers, whole), (floats, integers)) -> results``, for one chunk of candidates.
      merge: ``(results, results) -> results``, those of the union of two sets of candidates.
      share: ``(cotangents, merged, part) -> cotangents`` of one chunk's results ``part``.
      rows: floating and integer arrays with one row per query.
      chunk: floating and integer arrays with one row per candidate.
      whole: floating arrays, replicated on all devices.
      out_specs: partition specs of the results.
    """
    if not sharding.on_mesh():
        return function((*rows, whole), chunk)

    def on_device(rows, chunk, whole):
        whole = jax.tree.map(lambda x: lax.pcast(x, sharding.AXIS, to="varying"), whole)
        return _ring(function, merge, share, rows, chunk, whole)

    specs = (sharding.ROWS, sharding.ROWS, sharding.REPLICATED)
    rows, chunk = (jax.tree.map(sharding.shard_batch, x) for x in (rows, chunk))
    return jax.shard_map(on_device, in_specs=specs, out_specs=out_specs)(rows, chunk, whole)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _ring(function, merge, share, rows, chunk, whole):
    def turn(carry, _):
        chunk, merged = carry
        chunk = _on(chunk)
        return (chunk, merge(merged, function((*rows, whole), chunk))), None

    start = (chunk, function((*rows, whole), chunk))
    return lax.scan(turn, start, length=lax.axis_size(sharding.AXIS) - 1)[0][1]


def _forward(function, merge, share, rows, chunk, whole):
    result = _ring(function, merge, share, rows, chunk, whole)
    return result, (rows, chunk, whole, result)


def _backward(function, merge, share, residuals, cotangents):
    """Send each chunk round the ring again with its gradient; the last turn returns both to their device."""
    (rows, numbers), (chunk, ids), whole, result = residuals

    def turn(carry, _):
        (chunk, ids), gradient, others = carry
        part, pull = jax.vjp(lambda r, c, w: function((r, numbers, w), (c, ids)), rows, chunk, whole)
        of_rows, of_chunk, of_whole = pull(share(cotangents, result, part))
        add = functools.partial(jax.tree.map, jnp.add)
        moved = _on(((chunk, ids), add(gradient, of_chunk)))
        return (*moved, add(others, (of_rows, of_whole))), None

    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    start = ((chunk, ids), zeros(chunk), zeros((rows, whole)))
    _, gradient, (of_rows, of_whole) = lax.scan(turn, start, length=lax.axis_size(sharding.AXIS))[0]
    none = functools.partial(jax.tree.map, lambda x: None)
    return (of_rows, none(numbers)), (gradient, none(ids)), of_whole


_ring.defvjp(_forward, _backward)


def _on(arrays):
    """Pass the arrays on to the next device."""
    devices = lax.axis_size(sharding.AXIS)
    order = [(i, (i + 1) % devices) for i in range(devices)]
    return jax.tree.map(lambda x: lax.ppermute(x, sharding.AXIS, order), arrays)
