"""``--mode=describe``: config, network, data, cost and speed of a run, without training it."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
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
    """Print the config, network, mesh and number of steps, and the cost and speed of the compiled step.

    Synthetic images of the same shape, classes and number replace a missing data set; the output names it.

    Args:
      config: settings, the same as plain dictionaries, or the name of a config. For a list
        (replicas), the output describes the first, the differences between them, and the step that trains all.
      workdir: neither read nor written.
      quiet: has no effect; the first process always prints.

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
    log = print if distributed.first() else lambda line: None
    for line in outline(run, sentences):
        log(line)
    with jax.set_mesh(program.mesh), contextlib.closing(program.open_feed(0, log)) as feed:
        state = program.initial_state([None] * count)
        step, seconds = compilation.compiled_step(program, feed, state)
        try:
            cost.check_memory(run, step, count)
            with cost.translate_errors(run, step, count):
                speed = race(run, feed, step, state, count)
        except cost.OutOfMemory as error:
            speed, unfit = {}, str(error)
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
    log(f"speed\n  not measured: {unfit}" if unfit else "speed, images per second")
    for name, value in speed.items():
        log(f"  {name} = {value:,.1f}")
    if "data" in speed and speed["data"] < speed["step"]:
        log(
            "  the device waits for the data: use more cores or data.workers, smaller files, or a larger"
            " network"
        )
    facts["gflops_per_step"] = needed
    return facts | {f"images_per_second/{name}": value for name, value in speed.items()}


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
    for sentence in (*missing, *alarms.notes(run.settings, run.mesh.devices.flat[0].platform)):
        yield f"  {sentence}"
    devices = run.mesh.devices.reshape(-1)
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
    began, steps = time.perf_counter(), 0
    while distributed.agreed((spent := time.perf_counter() - began) < SECONDS):  # processes must agree
        state, _ = jax.block_until_ready(step(state, first))
        steps += 1
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
