"""``--mode=describe``: config, network, data, cost and speed of a run, without training it."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import data, distributed, sharding
from contrastive_jax.config import Settings
from contrastive_jax.data import stream
from contrastive_jax.lookup import Section
from contrastive_jax.training import alarms, compilation, cost
from contrastive_jax.training.program import single
from contrastive_jax.training.replicas import program_of
from contrastive_jax.training.run import Run, prepare, source_of
from contrastive_jax.types import TrainState
from contrastive_jax.workdir import replicas

SECONDS = 3.0
PATIENCE = 5.0  # seconds; a step that is expected to take longer is not measured
SAFE = 0.7  # share of a device's memory that an expected step may take, as memory falls slower than by 1/microbatches


@dataclasses.dataclass
class Parameter:
    """Row of the parameter table."""

    name: str
    shape: tuple[int, ...]
    size: int


def describe(
    config: str | Settings | Mapping[str, Any] | Sequence[Settings | Mapping[str, Any]],
    workdir: str,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Print the config, network, mesh and number of steps, the cost and speed of the compiled step, and a summary.

    The summary has the time of a step and of the run, the memory, and what fits. Synthetic images of the same shape,
    classes and number replace a missing data set; the output names it.

    Args:
      config: settings, the same as plain dictionaries, or the name of a config. For a list
        (replicas), the output describes the first, the differences between them, and the step that trains all.
      workdir: neither read nor written.
      quiet: print the summary alone.

    Returns:
      Cost of the network and the compiled step per device, and speed in images per second, summed over the
      runs.
    """
    asked = configs.resolve(config) if isinstance(config, str) else config
    given = list(asked) if isinstance(asked, Sequence) else [asked]
    run, sentences = prepared(given[0])
    program = single(run) if len(given) == 1 else program_of(given, source=run.source)
    run, count, unfit = program.runs[0], len(program.runs), ""
    if count > 1:
        differing = enumerate(program.differences)
        sentences += [f"replica {number}: {replicas.words([one])}" for number, one in differing]
    conclude = print if distributed.first() else lambda line: None
    log = conclude if not quiet else lambda line: None
    if slow := cost.warn_long(run, run.total_steps, count):
        sentences.append(slow)
    for line in outline(run, sentences):
        log(line)
    with jax.set_mesh(program.mesh), contextlib.closing(program.open_feed(0, log)) as feed:
        state = program.initial_state([None] * count)
        with cost.translate_errors(run, together=count):
            step, seconds = compilation.compiled_step(program, feed, state)
        expected, speed = cost.expected_seconds(run, count), {}
        try:
            cost.check_memory(run, step, count)
            with cost.translate_errors(run, step, count):
                if expected is None or expected < PATIENCE:
                    speed = race(run, feed, step, state, count)
        except cost.OutOfMemory as error:
            unfit = str(error)
    images = run.settings.train.batch_size * count / program.mesh.size
    needed = cost.model_flops(run) * images / 1e9
    log(f"network, forward and backward, per device\n  gflops_per_step = {needed:,.2f}")
    kind, dtype = run.mesh.devices.flat[0].device_kind, run.settings.dtype
    if cost.peak(kind, dtype) is None:
        log(f"  no published peak of {kind} in {dtype} is known: utilisation is not logged")
    facts = {"compile_seconds": seconds} | costs(step)
    log(f"compiled step{f' of {count} replicas' if count > 1 else ''}, per device")
    for name, value in facts.items():
        log(f"  {name} = {value:,.2f}")
    if speed:
        log("speed, images per second")
    for name, value in speed.items():
        log(f"  {name} = {value:,.1f}")
    if "data" in speed and speed["data"] < speed["step"]:
        log(
            "  the device waits for the data: use more cores or data.workers, smaller files, or a larger"
            " network"
        )
    smaller = microbatches_that_fit(run, step, log) if unfit and count == 1 else None
    conclude("summary")
    conclude(f"  {time_taken(run, speed, expected, count)}")
    conclude(f"  {memory_taken(run, step, unfit)}")
    if smaller:
        conclude(f"  {smaller}")
    facts["gflops_per_step"] = needed
    return facts | {f"images_per_second/{name}": value for name, value in speed.items()}


def time_taken(run: Run, speed: Mapping[str, float], expected: float | None, together: int) -> str:
    """Return the time of a step and of all steps, measured or expected."""
    devices = run.mesh.devices.reshape(-1)
    where = f"a step on {devices.size} x {devices[0].device_kind}"
    if speed:
        seconds = together * run.settings.train.batch_size / min(speed.values())
        taken, how = cost.rough_time(seconds), "measured; evaluation comes on top"
    elif expected is not None:
        seconds, how = expected, "not measured, an estimate from the network's FLOPs"
        taken = f"about {cost.rough_time(seconds)}"
    else:
        return "time: not measured"
    return (
        f"time: {taken} {where}, {cost.rough_time(seconds * run.total_steps)} for"
        f" {run.total_steps:,} step{'s' * (run.total_steps != 1)} ({how})"
    )


def memory_taken(run: Run, step: jax.stages.Compiled, unfit: str) -> str:
    """Return the memory of a step per device beside the device's; ``unfit``: why it does not fit, or ""."""
    if unfit:
        return f"memory: {unfit}"
    limit, needed = cost.memory_limit(run.mesh), cost.count(step).memory + cost.feed_memory(run)
    has = "" if limit is None else f" of {cost.gib(limit)}"
    return f"memory: {cost.gib(needed)}{has} on each device; train.batch_size={run.settings.train.batch_size} fits"


def microbatches_that_fit(run: Run, step: jax.stages.Compiled, log: Callable[[str], None]) -> str | None:
    """Compile the step with more micro-batches, at most twice, until it fits; return the result, or None."""
    limit, counted, train = cost.memory_limit(run.mesh), cost.count(step), run.settings.train
    if limit is None or counted.memory + cost.feed_memory(run) <= limit:
        return None  # it did not fit when it ran: others use the device, and how much is unknown
    room = limit - counted.arguments - counted.results - cost.feed_memory(run)
    promising = [
        number
        for number in range(train.microbatches + 1, train.batch_size // run.mesh.size + 1)
        if train.batch_size % (number * run.mesh.size) == 0
        and counted.temporary * train.microbatches / number < SAFE * room
    ]
    for number in promising[:2]:
        settings = run.settings.replaced(train={**run.settings.values["train"], "microbatches": number})
        log(f"compiling with train.microbatches={number} ...")
        try:
            smaller = prepare(settings, list(run.mesh.devices.flat), source=run.source)
            with cost.translate_errors(smaller):
                again = compilation.compiled_from_shapes(smaller)
            cost.check_memory(smaller, again)
        except cost.OutOfMemory:
            continue
        except ValueError:  # another option excludes this number
            return None
        size = cost.gib(cost.count(again).memory + cost.feed_memory(smaller))
        return f"fits: train.microbatches={number}, {size} of {cost.gib(limit)} on each device"
    return None


def prepared(config: Settings | Mapping[str, Any]) -> tuple[Run, list[str]]:
    """Prepare a run, with synthetic images for missing data sets; return it with a message for each such set.

    Raises:
      ValueError: an invalid option; the message names it, its value and the allowed values.
      FileNotFoundError: a missing data set whose shape, classes or size is unknown.
    """
    missing = []

    def load(section: Section) -> data.Source:
        try:
            return section()
        except FileNotFoundError as error:
            source = data.stand_in(section.name, **section.options)
            if source is None:
                raise
            missing.append(f"{error}; described with {source.name} instead")
            return source

    return prepare(config, source=source_of(config, load)), missing


def outline(run: Run, missing: Sequence[str] = ()) -> Iterator[str]:
    """Describe config, network, data, mesh and steps, line by line; ``missing``: notes on missing data sets."""
    from clu import parameter_overview  # unlike the rest of clu, this needs no TensorFlow

    yield "config"
    for name, value in configs.leaves(run.settings).items():
        yield f"  {name} = {value!r}"
    rows, totals = run.recipe.network.describe(run.recipe.view)
    yield "network"
    table = parameter_overview.make_table(
        [Parameter(f"{module}/{path}", *rest) for module, path, *rest in rows]
    )
    for line in table.splitlines():
        yield f"  {line}"
    for module, count in totals.items():
        yield f"  {module}: {count:,} parameters"
    train = run.source.train
    size = "x".join(map(str, train.shape)) if None not in train.shape else "of different sizes"
    kind = "images" if train.example.is_image else f"{train.example.dtype} examples"
    second = f", pairs with {run.source.of_pair(1).train.example}" if run.source.paired else ""
    yield f"data\n  {run.source.name}: {len(train):,} {kind} {size}{second}, {len(run.source.classes)} classes"
    views, sizes = run.recipe.views, ["x".join(map(str, view.shape)) for view, *_ in run.recipe.encoded]
    counts = (
        (1, 1) if run.source.paired else (views.count, views.local.count) if views.local else (views.count,)
    )
    together = " and ".join(f"{count} of {size}" for count, size in zip(counts, sizes, strict=True))
    pairs = run.recipe.directions
    yield f"  views of an example: {together}; {pairs} pair{'s' * (pairs != 1)} of a query and a key"
    devices = run.mesh.devices.reshape(-1)
    for sentence in (*missing, *alarms.notes(run.settings, devices[0].platform, train.example)):
        yield f"  {sentence}"
    yield f"mesh\n  {run.mesh.size} x {devices[0].device_kind}, axis {sharding.AXIS!r}"
    for name, kept in (("temperature", run.recipe.temperature), ("normalizer", run.recipe.normalizer)):
        state = [x for x in jax.tree.leaves(jax.eval_shape(kept.init)) if x.shape[:1] == (len(train),)]
        if size := sum(x.size * x.dtype.itemsize for x in state):
            yield f"{name}\n  {size // len(train)} bytes for each image, {cost.gib(size)} on each device"
    yield (
        f"steps\n  {run.total_steps:,} in all, {run.steps_per_epoch:.2f} per epoch, batch"
        f" {run.settings.train.batch_size}"
    )


def costs(step: jax.stages.Compiled) -> dict[str, float]:
    """Return memory traffic, memory (MiB) and collectives of a compiled step, per device."""
    counted = cost.count(step)
    facts = {"gib_read_and_written": counted.traffic / 2**30}
    for name, size in (
        ("argument", counted.arguments),
        ("output", counted.results),
        ("temp", counted.temporary),
        ("memory", counted.memory),
    ):
        facts[f"{name}_mib"] = size / 2**20
    for kind in cost.KINDS:
        if sizes := [size for operation, size in counted.collectives if operation == kind]:
            facts |= {f"{kind}_count": len(sizes), f"{kind}_mib": sum(sizes) / 2**20}
    return facts


def race(
    run: Run,
    feed: data.Resident | data.Stream,
    step: jax.stages.Compiled,
    state: TrainState,
    together: int = 1,
) -> dict:
    """Measure images per second of the compiled step on one batch and, for streamed data, of the data pipeline.

    Each measurement takes about ``SECONDS``. The step trains ``together`` runs; its state is discarded."""
    batch_size, first = together * run.settings.train.batch_size, feed.feed(0)
    state, _ = jax.block_until_ready(step(state, first))
    began, steps, spent = time.perf_counter(), 0, 0.0
    while not steps or distributed.agreed(spent < SECONDS):  # processes must agree
        state, _ = jax.block_until_ready(step(state, first))
        steps, spent = steps + 1, time.perf_counter() - began
    speed = {"step": steps * batch_size / spent}
    if isinstance(feed, data.Stream):
        ready = min(run.total_steps, 2 + stream.AHEAD)  # made while the step was compiled and ran
        for number in range(1, ready):
            feed.feed(number)
        began, steps = time.perf_counter(), 0
        while ready + steps < run.total_steps and distributed.agreed(time.perf_counter() - began < SECONDS):
            jax.block_until_ready(feed.feed(ready + steps))
            steps += 1
        if steps:
            speed["data"] = steps * batch_size / (time.perf_counter() - began)
    return speed
