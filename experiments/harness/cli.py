"""The verbs of a table's command, and what a plan costs."""

import argparse
import contextlib
import functools
import importlib.util
import json
import math
import pathlib
import re
import signal
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contrastive_jax.data import noise
from experiments.harness.jobs import Job, choose, choosing, collect, distinct, jobs, without_choice
from experiments.harness.pages import render
from experiments.harness.results import Results, measure
from experiments.harness.running import AT_ONCE, run
from experiments.harness.table import ROOT, SCALES, SMALL, Cell, Table, all_tables, config_of, table_of

DEVICES = {  # as jax names them
    "a100": "NVIDIA A100-SXM4-80GB", "h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200", "v4": "TPU v4",
    "v5e": "TPU v5 lite",
}  # fmt: skip
# Of the peak, predicted for a ResNet-50 on H100s: experiments/performance/results/pod_model.md.
UTILISATION = 0.08
ON_GPU = ("paper", "gpu")  # scales


def main(name: str = "__main__") -> int:
    """Run a table's own command: the file ends in ``if __name__ == "__main__": sys.exit(harness.main())``."""
    table = table_of(
        ".".join(pathlib.Path(sys.modules[name].__file__).resolve().relative_to(ROOT).with_suffix("").parts)
    )
    return command_line(sys.argv[1:], [table], table.about)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, int(value) if value.isdecimal() else value


def parser(about: str | None) -> argparse.ArgumentParser:
    """Make the parser of a table's command, and of the one over all tables."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("verb", choices=["plan", "run", "collect", "render", "diff"])
    made.add_argument("--scale", choices=SCALES, default="cpu", help="default cpu, on digits")
    made.add_argument(
        "--cells",
        type=_pattern,
        default="",
        help="regular expression; cells whose 'row | column' it finds, and no measurement",
    )
    made.add_argument(
        "--workers",
        type=_count,
        help="run: jobs at a time; default 1, at small and small_mnist one an accelerator, or one a core, on a cluster"
        " as many as it starts",
    )
    made.add_argument(
        "--replicas", type=_count,
        help="run: runs as one program, where they differ in seed and numbers; default 32 on an accelerator (on a"
        " cluster at the scales paper and gpu), else 1",
    )  # fmt: skip
    made.add_argument(
        "--seeds",
        type=_count,
        metavar="N",
        help="run: only the first N of each cell's seeds; the others when run again",
    )
    made.add_argument("--cluster", choices=["here", "slurm"], default="here")
    made.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE",
        help="run: a submitit parameter, slurm_partition=gpu; each job has a GPU (scales paper and gpu) and"
        " timeout_min=1440 unless it is set otherwise",
    )  # fmt: skip
    made.add_argument("--device", choices=DEVICES, default="a100", help="plan: a device")
    made.add_argument("--utilisation", type=float, default=UTILISATION, help="plan: share of its peak")
    made.add_argument("--price", type=float, default=0.0, help="plan: of a device-hour")
    return made


@contextlib.contextmanager
def _ends_quietly() -> Iterator[None]:
    """End the process without a traceback if its output is cut off here, as by ``| head``."""
    if not hasattr(signal, "SIGPIPE"):
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
        sys.stdout.flush()
    finally:
        signal.signal(signal.SIGPIPE, before)


def command_line(argv: list[str], tables: list[Table], about: str | None) -> int:
    """Run a verb over some tables; return the exit status."""
    options = parser(about).parse_args(argv)
    if options.verb == "render":
        pages = [render(table) for table in tables]
        with _ends_quietly():
            print(*pages, sep="\n")
        return 0
    with _ends_quietly() if options.verb in ("plan", "diff") else contextlib.nullcontext():
        return _over_cells(options, tables, about)


NO_RUNS = "{}: no runs; `run` measures in this process"  # of a table with a measure


def _over_cells(options: argparse.Namespace, tables: list[Table], about: str | None) -> int:
    """Run a verb over the chosen cells of some tables; return the exit status."""

    def chosen(table: Table) -> list[Cell]:
        return [c for c in table.runs.get(options.scale, {}) if options.cells.search(" | ".join(c))]

    trained = [table for table in tables if not table.is_measured]
    if (trained or options.cells.pattern) and not any(map(chosen, trained)):
        scales = [scale for scale in SCALES if any(table.runs.get(scale) for table in trained)]
        if trained and not scales:
            needs = "; ".join(dict.fromkeys(text for table in trained for text in table.needs.values()))
            parser(about).error(f"the table has no runs here; it needs {needs or 'another machine'}.")
        found = f"--cells={options.cells.pattern} finds no cell" if options.cells.pattern else "no cell"
        parser(about).error(
            f"{found} at --scale={options.scale}; there are cells at {', '.join(scales) or 'none'}"
        )

    def todo():
        given = [(table, cells) for table in tables if (cells := chosen(table))]
        found = [job for table, cells in given for job in jobs(table, options.scale, cells)]
        return [job for one in found if not (job := one._replace(most=options.seeds)).done()]

    if options.verb == "run":
        settings, slurm = dict(options.set), options.cluster == "slurm"
        if slurm and not importlib.util.find_spec("submitit"):
            parser(about).error("--cluster=slurm needs submitit: pip install submitit")
        if slurm and options.scale in ON_GPU:
            asked = any("gpu" in name or "gres" in name for name in settings)
            settings = settings if asked else {"gpus_per_node": 1} | settings
            options.replicas = options.replicas or AT_ONCE
        for table in (one for one in tables if one.is_measured):
            if not options.cells.pattern:
                print(measure(table))
        workers = options.workers or (None if options.scale in SMALL or slurm else 1)
        try:
            failures = run(todo, workers, options.cluster, settings, options.replicas)
        finally:  # what has finished is kept, also of a command that is stopped
            for table in tables if options.scale != "smoke" else []:
                collect(table, options.scale)
        for table in tables:
            failures += without_choice(table, options.scale)
        for failure in failures:
            print(failure, file=sys.stderr)
        return bool(failures)
    if options.verb == "plan":
        for table in (one for one in tables if one.is_measured):
            print(NO_RUNS.format(table.path))
        if trained:
            cells = {table.name: chosen(table) for table in trained}
            plan(trained, cells, options.scale, options.device, options.utilisation, options.price)
        return 0
    for table in tables:
        if table.is_measured:
            print(NO_RUNS.format(table.path))
        elif options.verb == "collect":
            print(f"{table.path}: {collect(table, options.scale, chosen(table))} runs are kept")
        else:
            for leaf, values in differing(table, options.scale, chosen(table)).items():
                print(leaf, *(f"  {' | '.join(cell)}: {value!r}" for cell, value in values.items()), sep="\n")
    return 0


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
            for cell, entry in Results(table, one).cells.items():
                seen = images_seen(config_of(table.runs[one][cell]))
                found += [seed["seconds"] / seen for seed in entry["seeds"].values() if "seconds" in seed]
        if found:
            return statistics.median(found)
    return math.nan


def plan(
    tables: Sequence[Table],
    cells: Mapping[str, Sequence[Cell]],
    scale: str,
    device: str,
    utilisation: float,
    price: float,
) -> None:
    """Print what would run of some cells, a list by the table's name, each run once; and its device-hours."""
    seconds = {
        table.name: [
            seed["seconds"]
            for run in Results(table, scale).cells.values()
            for seed in run["seeds"].values()
            if "seconds" in seed  # not of a run that was paused
        ]
        for table in tables
    }
    todo = distinct(
        [
            job
            for table in tables
            if (some := cells[table.name])
            for job in [*jobs(table, scale, some), *undecided(table, scale, some)]
        ]
    )
    total = 0.0
    others = [other for other in SCALES if other != scale and any(other in table.runs for table in tables)]
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
    number = f"{len(todo)} cell{'s' * (len(todo) != 1)}"
    print(f"{number}, {total:.1f} {'core' if scale in SMALL else 'device'}-hours{dollars} ({basis})")


def undecided(table: Table, scale: str, cells: Sequence[Cell]) -> list[Job]:
    """Return the final runs of the cells whose sweep has yet to choose, as if it chose its first point."""
    sweeps = {cell: choosing(table, scale, cell) for cell in cells}
    return [
        Job(table.name, scale, cell, swept[0].point)
        for cell, swept in sweeps.items()
        if swept and choose(table, scale, cell) is None
    ]


def differing(table: Table, scale: str, cells: Sequence[Cell]) -> dict[str, dict[Cell, Any]]:
    """Return leaf -> cell -> value, for the config leaves in which the cells differ."""
    from contrastive_jax import config as configs

    found = {cell: configs.leaves(config_of(table.runs[scale][cell])) for cell in cells}
    names = dict.fromkeys(name for leaves in found.values() for name in leaves)
    values = {name: {cell: leaves.get(name) for cell, leaves in found.items()} for name in names}
    return {name: of for name, of in values.items() if len({json.dumps(v) for v in of.values()}) > 1}
