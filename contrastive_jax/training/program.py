"""Program of the devices: the step of one run or of replicas, with its state, its feed and its packed metrics.

A single run is a list of one: data on the host (records, evaluations, results) has one item per run. The arrays
of a single run have no replica axis, so that its compiled step depends on its recipe alone.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from contrastive_jax.training.run import Run, feed_of, initial_state
from contrastive_jax.training.step import make_train_step
from contrastive_jax.types import Array, PyTree, TrainState

Weights = tuple[PyTree, PyTree]  # params, stats
IN_FLIGHT = 4  # steps that the device may be behind the host, each with its batch


class Program(NamedTuple):
    """Runs that train as one program, and the functions that train them."""

    runs: tuple[Run, ...]  # each with the mesh of its evaluation
    differences: list[dict[str, Any]]  # for each run, the leaves in which runs differ; {} for a single run
    mesh: Mesh  # mesh of the step
    open_feed: Callable[
        [int, Callable[[str], None]], Any
    ]  # (images replaced so far, report) -> a feed, which the caller must close
    step: Callable[[Any], Callable]  # feed -> (state, feed.feed(step)) -> (state, packed metrics)
    initial_state: Callable[[Sequence[Weights | None]], TrainState]  # each run's weights; None: its seed's
    weights: Callable[[TrainState], Iterator[Weights]]  # weights of each run, on its own mesh

    def describe(self) -> str:
        """Return a one-line description of the step."""
        run = self.runs[0]
        encoder, size = run.settings.encoder, run.settings.augment.options.get("size")
        depth = f"{encoder.name}-{encoder.options['depth']}" if "depth" in encoder.options else encoder.name
        what = f"images of {size} x {size} pixels" if size else f"examples {run.source.train.example}"
        second = f" and {run.settings.second_encoder.name}" if run.source.paired else ""
        count, kind = self.mesh.size, self.mesh.devices.flat[0].platform
        return (
            f"{f'{len(self.runs)} replicas of ' if len(self.runs) > 1 else ''}batches of"
            f" {run.settings.train.batch_size:,} {what}, encoder {depth}{second}, on"
            f" {count} {kind} device{'s' if count > 1 else ''}"
        )


def single(run: Run) -> Program:
    """Return the program of one run."""
    return Program(
        runs=(run,),
        differences=[{}],
        mesh=run.mesh,
        open_feed=functools.partial(feed_of, run),
        step=lambda feed: packed(make_train_step(run.recipe, feed.take)),
        initial_state=lambda weights: initial_state(run, *weights),
        weights=lambda state: iter([(state.params, state.stats)]),
    )


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
