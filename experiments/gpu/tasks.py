"""The tasks: lists of commands, each skipped once its result is there, stopped in good order when time is up."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness import records
from experiments.harness.packs import FOLDER
from experiments.harness.results import Results
from experiments.harness.table import ROOT, table_of

PERFORMANCE = "experiments/performance"
GRACE = 60.0  # seconds in which a command that is stopped saves


class Command(NamedTuple):
    """A command; it is done where its results file is there, or else, of a table, when it ends with status 0."""

    arguments: tuple[str, ...]  # of Python
    out: str = ""  # of the results file, which --out names; "": a table's, which keeps records
    table: str = ""  # and
    scale: str = ""  # where it is a table's


class Task(NamedTuple):
    """Work of one call."""

    what: str
    data: str  # name of the set whose packs it needs; "": none
    commands: tuple[Command, ...]
    smoke: tuple[Command, ...]  # the same on any machine, in a minute or two


def script(name: str, *arguments: str, out: str) -> Command:
    """Return the command of a benchmark."""
    return Command((f"{PERFORMANCE}/{name}.py", *arguments), out)


def table(name: str, scale: str, *arguments: str) -> Command:
    """Return the command of a table's runs."""
    name = f"experiments.{name}"
    return Command(("-m", name, "run", f"--scale={scale}", *arguments), table=name, scale=scale)


SIDE_BY_SIDE = ("--workers=2", "--replicas=1")  # one compiles or is judged while the other trains
WIDTHS = ("0.25", "1.0")
RACE = ("against_pytorch", "--batch=256", "--turns=8")
REHEARSED = "--tests=tests/losses/test_golden.py"
TINY = ("--width=0.125", "--batch=16", "--turns=1")
TASKS = {
    "correctness": Task(
        "every method on the GPU beside the CPU: float32, TF32, bfloat16; resume; golden tests",
        "",
        (Command(("-m", "experiments.gpu.correctness"), "correctness"),),
        (Command(("-m", "experiments.gpu.correctness", "--methods=flatclr_ess", REHEARSED), "correctness"),),
    ),
    "benchmarks": Task(
        "the step against PyTorch, against the bare network; a million rows; replicas against processes",
        "",
        (
            *(
                script(*RACE, f"--width={w}", f"--dtype={dtype}", out=f"against_pytorch_{dtype}_{w}")
                for dtype in ("float32", "bfloat16")
                for w in WIDTHS
            ),
            *(
                script("step_overhead", f"--width={w}", "--batch=256", out=f"step_overhead_{w}")
                for w in WIDTHS
            ),
            *(
                script("replicas", f"--width={w}", "--replicas=16", "--processes=4", out=f"replicas_{w}")
                for w in WIDTHS
            ),
            *(
                script("determinism", f"--config={config}", out=f"determinism_{config}")
                for config in ("simclr_cifar10", "flatclr_imagenet")
            ),
            script("many_rows", "--rows=1048576", out="many_rows"),
            *(
                script(*RACE, f"--width={w}", "--end-to-end", out=f"against_pytorch_end_to_end_{w}")
                for w in WIDTHS
            ),
        ),
        (
            script("step_overhead", *TINY, "--size=8", out="step_overhead_0.125"),
            script("replicas", *TINY, "--size=8", "--replicas=2", "--processes=1", out="replicas_0.125"),
            script("many_rows", "--rows=2048", out="many_rows"),
        ),
    ),
    "time_to_90": Task(
        "minutes of training to 90 % kNN on CIFAR-10, a mean over three seeds",
        "cifar10",
        tuple(
            script("time_to_90", f"--seeds={seed}", out=f"time_to_90_gpu_{seed}") for seed in (100, 101, 102)
        ),
        (script("time_to_90", "--scale=smoke", out="time_to_90_smoke"),),
    ),
    "sensitivity": Task(
        "does FlatNCE's gain survive a SimCLR with the same budget of tuning? MNIST at 14 pixels",
        "mnist",
        (table("family.sensitivity", "small_mnist"),),
        (table("family.sensitivity", "smoke"),),
    ),
    "full_size": Task(
        "SimCLR on CIFAR-10 by two recipes, of which one has published numbers, and three changes of ours",
        "cifar10",
        (
            table("family.full_size", "gpu", *SIDE_BY_SIDE, "--seeds=1"),
            table("family.full_size", "gpu", *SIDE_BY_SIDE),
        ),
        (table("family.full_size", "smoke"),),
    ),
    "macl": Task(
        "InfoNCE, DCL and MACL on CIFAR-10 at batch 256, as published but 50 epochs long; controls",
        "cifar10",
        (
            table("macl.table_2", "gpu", "--cells=^(InfoNCE|DCL) . batch 256$", *SIDE_BY_SIDE),
            table("macl.table_2", "gpu", "--cells=^MACL-a . batch 256$", *SIDE_BY_SIDE),
            table("family.controls", "gpu", *SIDE_BY_SIDE),
        ),
        (table("macl.table_2", "smoke"),),
    ),
    "full_resolution": Task(
        "cells of Intriguing Properties and EqCo that need CIFAR-10 at 32 pixels",
        "cifar10",
        (
            table("intriguing.table_2", "gpu"),
            table("eqco.figure_2", "gpu"),
            table("less_can_be_more.figure_1", "gpu"),
        ),
        (table("eqco.figure_2", "smoke"),),
    ),
    "imagenet": Task(
        "images a second of ResNet-50 on synthetic images of 224 pixels: made on the device, and JPEGs through workers",
        "",
        tuple(
            Command(
                ("-m", "experiments.gpu.throughput", f"--stream={stream}", "--batch=256"),
                f"imagenet_{stream}",
            )
            for stream in ("off", "on")
        ),
        (
            Command(
                ("-m", "experiments.gpu.throughput", "--stream=off", "--batch=8", "--tiny"), "imagenet_off"
            ),
        ),
    ),
}


def results(folder: pathlib.Path, commands: Sequence[Command]) -> dict[str, Any]:
    """Return what a task has found so far: the results files of its benchmarks, and how many runs of its tables are
    kept."""
    found: dict[str, Any] = {}
    for command in commands:
        place = folder / "results" / f"{command.out}.json"
        if command.out and place.exists():
            found[command.out] = json.loads(place.read_text())
        elif command.table:
            name = command.table.removeprefix("experiments.")
            found[f"{name}, {command.scale}"] = numbers(command.table, command.scale)
    return found


def numbers(name: str, scale: str) -> dict[str, dict[str, float]]:
    """Return the means of a table's finished cells, by heading."""
    read = Results(table_of(name), scale)
    return {
        " | ".join(cell): {
            heading: read.mean(*cell, heading) for heading, path in read.table.metric.items() if path
        }
        for cell in read.cells
    }


def run(
    name: str, *, smoke: bool, folder: pathlib.Path, out: pathlib.Path, packs: pathlib.Path, minutes: float
) -> dict[str, Any]:
    """Run what is left of a task until its minutes are over; what the call has to say, for one line of JSON."""
    task, end = TASKS[name], time.monotonic() + 60 * minutes
    found: dict[str, Any] = {"task": name, "done": True, "problems": []}
    if task.data and not smoke and not list(packs.glob(f"{task.data}-*.zip")):
        return found | {"done": False, "problems": [f"it needs --data: the packs of {task.data}"]}
    there_before(folder)
    commands = task.smoke if smoke else task.commands
    for command in commands:
        place = folder / "results" / f"{command.out}.json"
        if command.out and place.exists():
            continue
        if (left := end - time.monotonic()) < 1:
            found["done"] = False
            break
        place.parent.mkdir(parents=True, exist_ok=True)
        code = call([*command.arguments, *([f"--out={place}"] if command.out else [])], folder, packs, left)
        if code is None:
            found["done"] = False
        elif code:
            found["problems"].append(f"{' '.join(command.arguments)}: exit status {code}")
    kept = keep(folder, out)
    return found | {"results": results(folder, commands), "kept": kept}


def call(arguments: Sequence[str], folder: pathlib.Path, packs: pathlib.Path, seconds: float) -> int | None:
    """Run Python; its exit status, or None where it was stopped because its time was up."""
    environment = os.environ | {FOLDER: str(packs), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
    before = environment.get("PYTHONPATH", "")  # the package may not be installed there
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *before.split(os.pathsep)] if before else [str(ROOT)]
    )
    with (folder / "log.txt").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None


def sums() -> dict[str, int]:
    """Return the checksum of each of the harness's records."""
    return {path.name: zlib.crc32(path.read_bytes()) for path in sorted(records.folder().glob("*.json"))}


def there_before(folder: pathlib.Path) -> dict[str, int]:
    """Return what :func:`sums` gave at the folder's first call."""
    place = folder / "records_before.json"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(sums()))
    return json.loads(place.read_text())


def members(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield what is worth keeping of all calls so far: results files, and the harness's records that they made or
    changed."""
    before = there_before(folder)
    for path in sorted((folder / "results").glob("*.json")):
        yield f"results/{path.name}", path
    for name, checksum in sums().items():
        if before.get(name) != checksum:
            yield f"records/{name}", records.folder() / name


def keep(folder: pathlib.Path, out: pathlib.Path) -> int:
    """Write what is worth keeping into ``out/records.zip``; the number of files."""
    found = dict(members(folder))
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out / "records.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, path in found.items():
            file.write(path, name)
    return len(found)


def collect(file: pathlib.Path) -> Mapping[str, int]:
    """Put what a call kept where it belongs in this tree; the numbers of files."""
    counts = {"results": 0, "records": 0}
    with zipfile.ZipFile(file) as kept:
        for name in kept.namelist():
            kind, _, base = name.partition("/")
            text, plain = kept.read(name), pathlib.PurePath(base).name
            device = json.loads(text).get("device", "gpu") if kind == "results" else ""
            suffix = "_".join(str(device).lower().split())
            place = (
                records.folder() / plain
                if kind == "records"
                else ROOT / PERFORMANCE / "results" / f"{pathlib.PurePath(plain).stem}_{suffix}.json"
            )
            place.write_bytes(text)
            counts[kind] += 1
    return counts
