"""``--mode=describe``: what a run would be; trains nothing."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import data, distributed, sharding
from contrastive_jax.data import stream
from contrastive_jax.run import Run, feed_of, initial_state, prepare
from contrastive_jax.program import compiled_step
from contrastive_jax.types import TrainState

SECONDS = 3.0


def describe(config: Mapping[str, Any], workdir: str, *, quiet: bool = False) -> dict[str, Any]:
    """Prints the config, the network, the mesh, the steps and what the compiled step costs; trains nothing."""
    run = prepare(config)
    print("config")
    for name, value in configs.leaves(run.config).items():
        print(f"  {name} = {value!r}")
    rows, totals = run.recipe.network.describe(run.recipe.view_shape)
    print("network")
    for room, path, size, count in rows:
        print(f"  {room}/{path:<40} {'x'.join(map(str, size)):>20} {count:>12,}")
    for room, count in totals.items():
        print(f"  {room}: {count:,} parameters")
    train = run.source.train
    size = "x".join(map(str, train.shape)) if None not in train.shape else "of different sizes"
    print(f"data\n  {run.source.name}: {len(train):,} images {size}, {len(run.source.classes)} classes")
    devices = run.mesh.devices.reshape(-1)
    print(f"mesh\n  {run.mesh.size} x {devices[0].device_kind}, axis {sharding.AXIS!r}")
    print(
        f"steps\n  {run.total_steps:,} in all, {run.steps_per_epoch:.2f} an epoch,"
        f" batch {config['train']['batch_size']}"
    )
    with jax.set_mesh(run.mesh), contextlib.closing(feed_of(run)) as feed:
        state = initial_state(run)
        step, seconds = compiled_step(run, feed, state)
        speed = race(run, feed, step, state)
    memory, cost = step.memory_analysis(), step.cost_analysis() or {}
    facts = {"compile_seconds": seconds, "gflops_per_step": cost.get("flops", float("nan")) / 1e9}
    for name in ("argument", "output", "temp"):
        facts[f"{name}_mib"] = getattr(memory, f"{name}_size_in_bytes") / 2**20
    print("compiled step, per device")
    for name, value in facts.items():
        print(f"  {name} = {value:,.2f}")
    print("speed, images a second")
    for name, value in speed.items():
        print(f"  {name} = {value:,.1f}")
    if "data" in speed and speed["data"] < speed["step"]:
        print(
            "  the device waits for the data: more cores or data.workers, smaller files, or a larger network"
        )
    return facts | {f"images_per_second/{name}": value for name, value in speed.items()}


def race(run: Run, feed: data.Resident | data.Stream, step: jax.stages.Compiled, state: TrainState) -> dict:
    """Images a second of the compiled step on one batch again and again and, where data is streamed, of the
    data path alone, each looked at for about ``SECONDS``; the step's state is thrown away."""
    batch_size, first = run.config["train"]["batch_size"], feed.feed(0)
    state, _ = jax.block_until_ready(step(state, first))
    began, steps = time.perf_counter(), 0
    while distributed.agreed((spent := time.perf_counter() - began) < SECONDS):  # a step is everybody's
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
