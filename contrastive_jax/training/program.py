"""Program of the devices: the step of one run or of replicas, with its state and its feed.

A single run is a list of one: data on the host (records, evaluations, results) has one item per run. The arrays
of a single run have no replica axis, so that its compiled step depends on its recipe alone.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from contrastive_jax.training.packing import packed
from contrastive_jax.training.run import Run, feed_of, initial_state
from contrastive_jax.training.step import make_train_step
from contrastive_jax.types import PyTree, TrainState

Weights = tuple[PyTree, PyTree]  # params, stats


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
        count, kind = self.mesh.size, self.mesh.devices.flat[0].platform
        return (
            f"{f'{len(self.runs)} replicas of ' if len(self.runs) > 1 else ''}batches of"
            f" {run.settings.train.batch_size:,} {what}, encoder {depth}, on"
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
