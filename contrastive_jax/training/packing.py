"""Metrics of a step packed into one array, for a single transfer to the host."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.types import Array, PyTree, TrainState


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["layout"])
@dataclasses.dataclass(frozen=True)
class Packed:
    """Metrics of a step as one array on the device."""

    values: Array  # [M], or [N, M] for N runs
    layout: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes

    def unpacked(self) -> list[dict[str, np.ndarray]]:
        """Return the metrics of each run by name, on the host."""
        sizes = [math.prod(shape) for _, shape in self.layout]
        ends, rows = np.cumsum(sizes), np.asarray(self.values).reshape(-1, sum(sizes))
        return [
            {
                name: part.reshape(shape)
                for (name, shape), part in zip(self.layout, np.split(row, ends[:-1]), strict=True)
            }
            for row in rows
        ]


def packed(train_step: Callable) -> Callable:
    """Return the step with its metrics as :class:`Packed`; their values are bitwise unchanged."""

    def step(state: TrainState, feed: PyTree) -> tuple[TrainState, Packed]:
        state, metrics = train_step(state, feed)
        values = jax.lax.optimization_barrier([jnp.asarray(value) for value in metrics.values()])
        dtype = jnp.result_type(jnp.float32, *values)
        layout = tuple((name, value.shape) for name, value in zip(metrics, values, strict=True))
        return state, Packed(jnp.concatenate([value.astype(dtype).reshape(-1) for value in values]), layout)

    return step
