"""What a table would cost, and where its cells differ."""

import json
import math
import statistics
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from experiments.harness.jobs import Job, jobs
from experiments.harness.results import Results
from experiments.harness.table import Cell, config_of

EXAMPLES = {
    "digits": 1437, "mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "stl10": 105_000,
    "imagenet2012": 1_281_167, "imagenet_resized/64x64": 1_281_167,
}  # fmt: skip


PEAK_TFLOPS = {"a100": 312.0, "h100": 989.0, "h200": 989.0, "v4": 275.0, "v5e": 197.0}  # bfloat16, published


def training_flops(config: Mapping[str, Any]) -> float:
    """FLOPs of an example's two views, forward and backward (three times forward), from the traced network."""
    import jax
    import numpy as np

    from contrastive_jax.encoder import network_of

    channels = 1 if config["data"]["name"] in ("digits", "mnist") else 3
    shape = (config["augment"]["size"], config["augment"]["size"], channels)
    network = network_of(config)
    params, stats = jax.eval_shape(lambda: network.init(0, shape))
    views = jax.ShapeDtypeStruct((8, 2, *shape), np.float32)
    lowered = jax.jit(lambda p, s, v: network.apply(p, s, v, train=True)[0].projection).lower(
        params, stats, views
    )
    return 3.0 * lowered.cost_analysis()["flops"] / 8


def cost(job: Job, device: str, utilisation: float) -> float:
    """Device-hours of a job by its FLOPs, at a share of the device's published peak."""
    from contrastive_jax import config as configs

    config = config_of(job.arguments())
    examples = EXAMPLES.get(config["data"]["name"])
    if examples is None:
        return math.nan
    batch = config["train"]["batch_size"]
    steps = configs.steps_of("train.duration", config["train"]["duration"], examples, batch)
    flops = training_flops(config) * steps * batch * len(job.seeds())
    return flops / (PEAK_TFLOPS[device] * 1e12 * utilisation) / 3600


def plan(table: ModuleType, scale: str, device: str, utilisation: float, price: float) -> None:
    """Prints what would run, and its device-hours."""
    todo = jobs(table, scale)
    results = Results(table, scale)
    seconds = [s["seconds"] for entry in results.cells.values() for s in entry["seeds"].values()]
    total = 0.0
    for job in todo:
        left = [seed for seed in job.seeds() if job.result(seed) is None]
        if seconds:
            hours = statistics.median(seconds) * len(left) / 3600
        else:
            hours = cost(job, device, utilisation) * len(left) / len(job.seeds())
        total += hours
        print(
            f"{job.name}: {len(left)} of {len(job.seeds())} runs left, {hours:.2f} hours: {job.arguments()}"
        )
    basis = (
        "the median of the finished runs"
        if seconds
        else f"FLOPs at {utilisation:.0%} of the published bfloat16 peak of one {device}"
    )
    dollars = f", {total * price:,.0f} at {price:g} an hour" if price else ""
    print(f"{len(todo)} cells, {total:.1f} device-hours{dollars} ({basis})")


def differing(table: ModuleType, scale: str) -> dict[str, dict[Cell, Any]]:
    """Leaf -> cell -> value, for the config leaves in which the cells differ."""
    from contrastive_jax import config as configs

    found = {cell: configs.leaves(config_of(text)) for cell, text in table.RUNS.get(scale, {}).items()}
    names = dict.fromkeys(name for leaves in found.values() for name in leaves)
    values = {name: {cell: leaves.get(name) for cell, leaves in found.items()} for name in names}
    return {name: of for name, of in values.items() if len({json.dumps(v) for v in of.values()}) > 1}
