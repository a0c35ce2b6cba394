"""Memory checks and out-of-memory errors: memory needed, memory available, and options that need less."""

import contextlib
import math
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from contrastive_jax import data
from contrastive_jax.data import stream
from contrastive_jax.training import compilation
from contrastive_jax.training.recorder import IN_FLIGHT
from contrastive_jax.training.run import Run

EXHAUSTED = "RESOURCE_EXHAUSTED"  # the runtime's status, on every platform
LESS = (
    "take a smaller train.batch_size, more train.microbatches, train.remat=True or optimizer.shard_state=True"
)


class OutOfMemory(ValueError):
    """Error for a step that does not fit; the message lists options that need less."""


def limit(mesh: Mesh) -> int | None:
    """Return the memory limit in bytes, the smallest of this process's devices; None: unknown (CPU)."""
    statistics = [device.memory_stats() or {} for device in mesh.local_devices]
    return min((s["bytes_limit"] for s in statistics if "bytes_limit" in s), default=None)


def check(run: Run, compiled: jax.stages.Compiled, together: int = 1) -> None:
    """Refuse a step (of ``together`` runs) that needs more memory than its devices have.

    Raises:
      OutOfMemory: the step does not fit.
    """
    available, needed = limit(run.mesh), compilation.cost(compiled).memory + waiting(run)
    if available is not None and needed > available:
        raise OutOfMemory(
            _sentence(run, f"needs {gib(needed)} on each device, which has {gib(available)}", together)
        )


def waiting(run: Run) -> int:
    """Return the bytes per device of streamed batches beside the step's: prefetched or of pending steps."""
    train = run.source.train
    if not isinstance(train, data.Streamed):
        return 0
    batch_size = run.settings.train.batch_size
    _, fed = data.feed_shapes(train, view=run.recipe.views, batch_size=batch_size, mesh=run.mesh)
    batch = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(fed))
    return (IN_FLIGHT + stream.AHEAD) * batch // run.mesh.size


@contextlib.contextmanager
def translate_errors(
    run: Run, compiled: jax.stages.Compiled | None = None, together: int = 1
) -> Iterator[None]:
    """Translate the runtime's out-of-memory error, when the step is compiled or run.

    Raises:
      OutOfMemory: instead of the runtime's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        why = "asks for more than is free"
        if compiled is not None:
            why = f"needs {gib(compilation.cost(compiled).memory)} on each device, more than is free"
        raise OutOfMemory(_sentence(run, why, together)) from error


def _sentence(run: Run, why: str, together: int) -> str:
    what = f"train.batch_size={run.settings.train.batch_size}"
    if together > 1:
        return f"{what} of {together} replicas does not fit: the step {why}; take fewer replicas at a time."
    return f"{what} does not fit: the step {why}; {LESS}."


def gib(size: int) -> str:
    """Return a number of bytes as text, in GiB or MiB."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.3g} MiB"
