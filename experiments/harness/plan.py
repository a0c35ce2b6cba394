"""What tables would cost, and where a table's cells differ."""

import functools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from contrastive_jax.data import noise
from experiments.harness.jobs import Job, choose, choosing, distinct, jobs
from experiments.harness.results import Results
from experiments.harness.table import SCALES, SMALL, Cell, all_tables, config_of, table_of

DEVICES = {  # as jax names them
    "a100": "NVIDIA A100-SXM4-80GB", "h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200", "v4": "TPU v4",
    "v5e": "TPU v5 lite",
}  # fmt: skip
UTILISATION = (
    0.08  # of the peak: what `experiments/performance/pod_model.py` predicts for a ResNet-50 on H100s
)


def images_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Count training examples of a config and their channels: of the set that ``data`` names, and what ``compose``
    makes."""
    section, compose = config["data"], config["compose"]
    if compose["name"] == "binary":  # nothing of the set's images
        return compose["examples"], compose["bits"]
    there = noise.count(section["name"], section.get("train_split", "train")) * (1 - section["validation"])
    examples, (_, _, channels) = compose.get("examples") or there, noise.facts(section["name"])[0]
    return round(examples), channels + (compose["bits"] if compose["name"] == "rand_bit" else 0)


def training_flops(config: Mapping[str, Any]) -> float:
    """Count the FLOPs of an example's two views, forward and backward (three times forward), from the traced
    network."""
    import jax
    import numpy as np

    from contrastive_jax.training.encoder import network_of

    shape = (config["augment"]["size"], config["augment"]["size"], images_of(config)[1])
    network = network_of(config)
    params, stats = jax.eval_shape(lambda: network.init(0, shape))
    views = jax.ShapeDtypeStruct((8, 2, *shape), np.float32)
    lowered = jax.jit(lambda p, s, v: network.apply(p, s, v, train=True)[0].projection).lower(
        params, stats, views
    )
    return 3.0 * lowered.cost_analysis()["flops"] / 8


def cost(job: Job, device: str, utilisation: float) -> float:
    """Estimate hours of a job's seed: at small scales by the images a second of kept runs, on a core; else
    device-hours.

    Those by the FLOPs of the training, at a share of the device's published peak for its dtype; judging not counted.
    """
    from contrastive_jax.training.cost import peak

    config = config_of(job.arguments())
    if job.scale in SMALL and math.isfinite(one := seconds_an_image(job.scale)):
        return one * images_seen(config) / 3600
    return (
        training_flops(config)
        * images_seen(config)
        / (peak(DEVICES[device], config["dtype"]) * utilisation)
        / 3600
    )


def images_seen(config: Mapping[str, Any]) -> int:
    """Count training images that a run sees."""
    from contrastive_jax import config as configs

    batch = config["train"]["batch_size"]
    return (
        configs.steps_of("train.duration", config["train"]["duration"], images_of(config)[0], batch) * batch
    )


@functools.cache
def seconds_an_image(scale: str) -> float:
    """Return the median seconds an image over all kept runs of a small scale (of the other one, where it has none),
    judging included."""
    for one in (scale, *SMALL):
        found = []
        for table in map(table_of, all_tables()):
            for cell, run in Results(table, one).cells.items():
                seen = images_seen(config_of(table.RUNS[one][cell]))
                found += [seed["seconds"] / seen for seed in run["seeds"].values()]
        if found:
            return statistics.median(found)
    return math.nan


def plan(
    tables: Sequence[ModuleType],
    cells: Mapping[str, Sequence[Cell]],
    scale: str,
    device: str,
    utilisation: float,
    price: float,
) -> None:
    """Print what would run of some cells, a list by the table's name, each run once; and its device-hours."""
    seconds = {
        table.__name__: [
            seed["seconds"] for run in Results(table, scale).cells.values() for seed in run["seeds"].values()
        ]
        for table in tables
    }
    todo = distinct(
        [
            job
            for table in tables
            if (some := cells[table.__name__])
            for job in [*jobs(table, scale, some), *undecided(table, scale, some)]
        ]
    )
    total = 0.0
    others = [other for other in SCALES if other != scale and any(other in table.RUNS for table in tables)]
    print(f"scale {scale}{'' if todo else ', no run is left'} (others: {', '.join(others) or 'none'})")
    for job in todo:
        left = [seed for seed in job.seeds() if job.result(seed) is None]
        known = seconds[job.table]
        one = statistics.median(known) / 3600 if known else cost(job, device, utilisation)
        total += one * len(left)
        print(f"{job.name}: {len(left)} of {len(job.seeds())} runs left, {one:.2f} hours each")
    basis = "the seconds an image of the kept runs of small scales, on a core" if scale in SMALL else ""
    basis = basis or (
        f"FLOPs of training at {utilisation:.0%} of one {device}'s published peak, which is assumed; judging not"
        " counted"
    )
    if any(seconds.values()):
        basis = f"the median of the table's finished runs; without these {basis}"
    dollars = f", {total * price:,.0f} at {price:g} an hour" if price else ""
    print(f"{len(todo)} cells, {total:.1f} {'core' if scale in SMALL else 'device'}-hours{dollars} ({basis})")


def undecided(table: ModuleType, scale: str, cells: Sequence[Cell]) -> list[Job]:
    """Return the final runs of the cells whose sweep has yet to choose, as if it chose its first point."""
    sweeps = {cell: choosing(table, scale, cell) for cell in cells}
    return [
        Job(table.__name__, scale, cell, swept[0].point)
        for cell, swept in sweeps.items()
        if swept and choose(table, scale, cell) is None
    ]


def differing(table: ModuleType, scale: str, cells: Sequence[Cell]) -> dict[str, dict[Cell, Any]]:
    """Return leaf -> cell -> value, for the config leaves in which the cells differ."""
    from contrastive_jax import config as configs

    found = {cell: configs.leaves(config_of(table.RUNS[scale][cell])) for cell in cells}
    names = dict.fromkeys(name for leaves in found.values() for name in leaves)
    values = {name: {cell: leaves.get(name) for cell, leaves in found.items()} for name in names}
    return {name: of for name, of in values.items() if len({json.dumps(v) for v in of.values()}) > 1}
