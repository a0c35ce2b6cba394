"""Cells as runs: what is left to do, a sweep's choice, and the finished ones gathered."""

import hashlib
import itertools
import json
import pathlib
import re
import shlex
import statistics
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from contrastive_jax import config as configs
from experiments.harness.results import curves, numbers, pick, results_file
from experiments.harness.table import ROOT, VALIDATION, Cell, config_of, seeds_of, table_of


class Job(NamedTuple):
    """One cell, with the overrides of a sweep's point: the unit that is run, on one worker, seed after seed."""

    table: str
    scale: str
    cell: Cell
    point: tuple[tuple[str, Any], ...] = ()
    chosen: bool = True  # False: judged on the validation part, to choose

    @property
    def name(self) -> str:
        """For people."""
        point = [f"{leaf.rpartition('.')[2]}={value}" for leaf, value in self.point]
        label = " | ".join([*self.cell, *point, *([] if self.chosen else ["choosing"])])
        return f"{self.table.removeprefix('experiments.')} {label}"

    def folder(self, seed: int) -> pathlib.Path:
        """The run's workdir. It is named by the arguments, so a run that two tables ask for is one run."""
        arguments = self.arguments()
        stem = pathlib.Path(arguments.split(maxsplit=1)[0].partition(":")[0]).stem
        name = f"{stem}-{hashlib.sha256(arguments.encode()).hexdigest()[:12]}"
        return ROOT / "runs" / "experiments" / name / f"seed{seed}"

    def arguments(self) -> str:
        """Of the command."""
        own = table_of(self.table).RUNS[self.scale][self.cell]
        overrides = [f"--config.{leaf}={shlex.quote(str(value))}" for leaf, value in self.point]
        if not self.chosen:
            overrides.append(f"--config.data.validation={VALIDATION}")
        return " ".join([own, *overrides])

    def done(self) -> bool:
        """Every seed has finished here."""
        return all(self.result(seed) is not None for seed in self.seeds())

    def seeds(self) -> tuple[int, ...]:
        """A sweep chooses by its first seed."""
        seeds = seeds_of(table_of(self.table), self.scale)
        return seeds if self.chosen else seeds[:1]

    def result(self, seed: int) -> dict[str, Any] | None:
        """What the finished run says of itself; None before that.

        None also where the same arguments meant another config when it was trained: training there again says so.
        """
        file = self.folder(seed) / "result.json"
        found = json.loads(file.read_text()) if file.exists() else {"evaluations": {}}
        if not found["evaluations"]:
            return None
        saved = json.loads(file.with_name("config.json").read_text())
        changed = configs.forbidden_changes(saved, config_of(self.arguments()) | {"seed": seed})
        return None if changed.keys() & configs.leaves(saved).keys() else found


def sweep_points(table: ModuleType, scale: str, row: str) -> list[tuple[tuple[str, Any], ...]]:
    """The points of the table's (or of this row's own) sweep at a scale; one empty point where there is none."""
    sweep = getattr(table, "SWEEP", {}).get(scale, {})
    sweep = sweep.get(row, sweep)
    return [tuple(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def choose(table: ModuleType, scale: str, cell: Cell) -> tuple[tuple[str, Any], ...] | None:
    """The best point of the cell's sweep on the validation part; None before all its points have run."""
    points = sweep_points(table, scale, cell[0])
    if points == [()]:
        return ()
    path = next(iter(table.METRIC.values()))
    scores = []
    for point in points:
        job = Job(table.__name__, scale, cell, point, chosen=False)
        results = [job.result(seed) for seed in job.seeds()]
        if None in results:
            return None
        scores.append(statistics.mean(pick(result, path) for result in results))
    return points[max(range(len(points)), key=scores.__getitem__)]


def kept_cells(table: ModuleType, scale: str) -> dict[Cell, dict[str, Any]]:
    """The cells of the results file whose arguments are still those of RUNS (and a sweep's choice)."""
    file, runs = results_file(table, scale), table.RUNS.get(scale, {})
    found = json.loads(file.read_text())["cells"] if file.exists() else {}
    cells = {tuple(key.split(" | ")): entry for key, entry in found.items()}
    same = re.compile(r"( --config\.\S+)*")  # what a sweep adds
    return {
        cell: entry
        for cell, entry in cells.items()
        if cell in runs
        and entry["arguments"].startswith(runs[cell])
        and same.fullmatch(entry["arguments"].removeprefix(runs[cell]))
    }


def jobs(table: ModuleType, scale: str, cells: Sequence[Cell] | None = None) -> list[Job]:
    """What is left to run: the points to choose among, and the chosen ones of the cells that have chosen.

    Cells that are complete in the committed results are done, wherever they were run.
    """
    found, kept = [], kept_cells(table, scale)
    for cell in cells or table.RUNS.get(scale, {}):
        if len(kept.get(cell, {"seeds": ()})["seeds"]) == len(seeds_of(table, scale)):
            continue
        point = choose(table, scale, cell)
        if point is None:
            points = sweep_points(table, scale, cell[0])
            found += [Job(table.__name__, scale, cell, p, chosen=False) for p in points]
        else:
            found.append(Job(table.__name__, scale, cell, point))
    return found


def collect(table: ModuleType, scale: str) -> dict[str, Any]:
    """Gathers the finished runs of a scale into the table's results file; returns what it holds.

    A cell that is in the file and was run elsewhere stays, as long as its arguments are the same.
    """
    file = results_file(table, scale)
    found = json.loads(file.read_text()) if file.exists() else {"cells": {}}
    cells = {" | ".join(cell): entry for cell, entry in kept_cells(table, scale).items()}
    for cell in table.RUNS.get(scale, {}):
        key = " | ".join(cell)
        if (point := choose(table, scale, cell)) is None:
            continue
        job = Job(table.__name__, scale, cell, point)
        done = {seed: job.result(seed) for seed in job.seeds()}
        for seed, result in done.items():
            if result is None:
                continue
            entry = cells.setdefault(key, {"arguments": job.arguments(), "seeds": {}})
            entry["seeds"][str(seed)] = {
                "evaluations": numbers(result["evaluations"]),
                "metrics": numbers(result["metrics"]),
                "seconds": round(result["seconds"], 1),
            }
            if table.CURVES:
                entry["seeds"][str(seed)]["curves"] = curves(job.folder(seed) / "metrics.jsonl", table.CURVES)
            found["device"], found["versions"] = result["device"], result["versions"]
            found["git_commit"] = result["git_commit"]
            found["protocols"] = {
                column: score["protocol"]
                for column, score in result["evaluations"].get("trained", {}).items()
                if "protocol" in score
            }
    if cells:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found | {"cells": cells}, indent=1)
        file.write_text(
            re.sub(r"\[[^][{}]*\]", lambda m: " ".join(m[0].split()), text) + "\n"
        )  # a list a line
    return found | {"cells": cells}
