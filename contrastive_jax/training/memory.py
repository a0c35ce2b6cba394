"""Running out of memory, answered in one sentence: the largest batch that fits, or the micro-batches that would."""

import contextlib
import copy
import math
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from contrastive_jax.training import compilation
from contrastive_jax.training.run import Run, prepare

EXHAUSTED = "RESOURCE_EXHAUSTED"  # the runtime's word, on every platform
SAFE = 0.9  # of what a step asked for in vain: fragments are not counted by the compiler


class OutOfMemory(ValueError):
    """The step does not fit; the message says what would."""


def limit(mesh: Mesh) -> int | None:
    """Bytes that a program may use on a device, the least over this process's; None where it is not known (CPU)."""
    statistics = [device.memory_stats() or {} for device in mesh.local_devices]
    return min((s["bytes_limit"] for s in statistics if "bytes_limit" in s), default=None)


def check(run: Run, compiled: jax.stages.Compiled) -> None:
    """Refuses a step that asks for more memory than its devices have.

    Raises:
      OutOfMemory: see :func:`sentence`.
    """
    there = limit(run.mesh)
    if there is not None and (cost := compilation.cost(compiled)).memory > there:
        raise OutOfMemory(sentence(run, cost, there))


@contextlib.contextmanager
def answered(run: Run, compiled: jax.stages.Compiled | None = None) -> Iterator[None]:
    """Around whatever may ask a device for more than it has: compiling the step (``compiled`` is None), running it.

    Raises:
      OutOfMemory: in place of the runtime's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        there = limit(run.mesh)
        try:
            cost = _of_smaller(run) if compiled is None else compilation.cost(compiled)
        except ValueError:  # an option that needs the whole batch
            message = "the step does not fit in a device's memory: take a smaller train.batch_size."
        except jax.errors.JaxRuntimeError:
            message = "the step does not fit in a device's memory, nor does an eighth of its batch."
        else:
            asked = int(SAFE * cost.memory)
            message = sentence(run, cost, there, room=asked if there is None else min(there, asked))
        raise OutOfMemory(message) from error


def _of_smaller(run: Run) -> compilation.Cost:
    """The cost of a step that did not compile, from that of an eighth of its batch.

    Raises:
      ValueError: an option does not go with so small a batch.
      jax.errors.JaxRuntimeError: that one does not compile either.
    """
    batch_size = run.config["train"]["batch_size"]
    multiple = run.mesh.size * max(1, run.config["train"]["microbatches"])
    few = max(batch_size // 8 // multiple, math.ceil(2 / multiple)) * multiple
    config = copy.deepcopy(run.config)
    config["train"]["batch_size"] = few
    smaller = prepare(config, list(run.mesh.devices.flat), source=run.source)
    cost = compilation.cost(compilation.compiled_from_shapes(smaller))
    return cost._replace(temporary=_temporary(smaller, cost, batch_size, parts=None))


def sentence(run: Run, cost: compilation.Cost, there: int | None, room: int | None = None) -> str:
    """What the step needs, what there is, and what would fit: by the compiled program's own count, scaled.

    Arguments (weights, optimizer state, images in memory), results and gradients stay as they are, the views
    scale with the batch, the rest (activations) with the batch and 1 / ``train.microbatches``.

    Args:
      run: whose batch does not fit.
      cost: of its step.
      there: bytes of a device; None where it is not known.
      room: bytes that an answer may ask for; ``there`` where None.
    """
    room = there if room is None else room
    assert room is not None
    train = run.config["train"]
    batch_size, parts, devices = train["batch_size"], max(1, train["microbatches"]), run.mesh.size
    fixed = cost.arguments + cost.results

    def fits(batch: int, parts: int) -> bool:
        return fixed + _temporary(run, cost, batch, parts) <= room

    multiple = devices * parts
    largest = max(
        (b for b in range(multiple, batch_size, multiple) if b > 1 and fits(b, parts)), default=None
    )
    in_parts = next(
        (n for n in range(parts + 1, batch_size // devices + 1)
         if batch_size % (n * devices) == 0 and fits(batch_size, n)), None
    )  # fmt: skip
    says = (
        f"train.batch_size={batch_size} does not fit: the step needs {_gib(cost.memory)} on each device,"
        + (
            " more than is free."
            if there is None or cost.memory <= there
            else f" and there are {_gib(there)}."
        )
    )
    if run.config["norm"].get("scope") == "groups":
        in_parts = None  # micro-batches are norm groups of their own
    if in_parts and largest:
        return f"{says} train.microbatches={in_parts} would, or a batch of {largest}, the largest that does."
    if largest:
        return f"{says} The largest batch that does is {largest}."
    if in_parts:
        return f"{says} train.microbatches={in_parts} would."
    return (
        f"{says} No batch does: {_gib(fixed)} are weights, optimizer state and data"
        " (optimizer.shard_state=True, data.stream=on)."
    )


def _temporary(run: Run, cost: compilation.Cost, batch_size: int, parts: int | None) -> int:
    """Temporary bytes of another batch in so many micro-batches (None: as many as the run has).

    ``cost`` is of the run's own.
    """
    before, devices = run.config["train"], run.mesh.size
    parts = parts or max(1, before["microbatches"])
    gradients = 4 * sum(run.recipe.network.describe(run.recipe.view_shape)[1].values())
    views = 4 * 2 * math.prod(run.recipe.view_shape) * before["batch_size"] // devices
    constant = min(gradients, cost.temporary)
    per_batch = min(views, cost.temporary - constant)
    activations = cost.temporary - constant - per_batch
    more, fewer = batch_size / before["batch_size"], max(1, before["microbatches"]) / parts
    return int(constant + per_batch * more + activations * more * fewer)


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.3g} MiB"
