"""The collected numbers of a table."""

import fnmatch
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from experiments.harness.table import ROOT, Cell, where


def results_file(table: ModuleType, scale: str) -> pathlib.Path:
    """Where a table's numbers are kept."""
    path = ROOT / where(table)
    return path.parent / "results" / path.name / f"{scale}.json"


def pick(result: Mapping[str, Any], path: str) -> float:
    """The number at a path of :data:`METRIC`; of alternatives, ``linear@*|linear``, the first that one name meets.

    Raises:
      KeyError: there is no such number; names the path and what there is.
    """
    names, _, percent = path.partition(" ")
    value = result if names.startswith("metrics.") else result["evaluations"]
    for name in names.split("."):
        there = list(value) if isinstance(value, Mapping) else []
        met = next((m for option in name.split("|") if len(m := fnmatch.filter(there, option)) == 1), None)
        if met is None:
            raise KeyError(f"{path}: no {name!r} among {', '.join(there) or value}")
        value = value[met[0]]
    return 100.0 * value if percent == "%" else float(value)


def numbers(tree: Any) -> Any:
    """The scalars of an evaluation: what a table may read."""
    if isinstance(tree, Mapping):
        return {
            k: v
            for k, v in ((k, numbers(v)) for k, v in tree.items() if k != "settings")
            if v not in (None, {})
        }
    return tree if isinstance(tree, int | float) and not isinstance(tree, bool) else None


def curves(file: pathlib.Path, names: Sequence[str], points: int = 60) -> dict[str, list]:
    """Metrics over training, thinned: ``{"epoch": [...], name: [...]}``."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row for row in rows if all(name in row for name in names)]
    rows = rows[:: max(1, math.ceil(len(rows) / points))]
    return {name: [float(f"{row[name]:.6g}") for row in rows] for name in ("epoch", *names)}


class Results:
    """The collected numbers of a table at a scale."""

    def __init__(self, table: ModuleType, scale: str):
        file = results_file(table, scale)
        self.table, self.scale = table, scale
        self.found = json.loads(file.read_text()) if file.exists() else {"cells": {}}
        self.cells = {tuple(key.split(" | ")): entry for key, entry in self.found["cells"].items()}

    def __bool__(self):
        return bool(self.cells)

    def values(self, row: Any, column: Any, heading: str | None = None) -> dict[str, float]:
        """Seed -> number of a cell, under a heading of METRIC (default: the first) or a path; empty if not run."""
        heading = next(iter(self.table.METRIC)) if heading is None else heading
        path = self.table.METRIC.get(heading, heading)
        if path is None:
            return {}
        entry = self.cells.get((str(row), str(column)), {"seeds": {}})
        return {seed: pick(result, path) for seed, result in entry["seeds"].items()}

    def mean(self, row: Any, column: Any, heading: str | None = None) -> float:
        """Over the seeds; nan if not run."""
        values = self.values(row, column, heading).values()
        return statistics.mean(values) if values else math.nan

    def differences(self, one: Cell, other: Cell, heading: str | None = None) -> list[float]:
        """``one - other``, seed by seed: the same first weights, order and augmentation."""
        first, second = self.values(*one, heading), self.values(*other, heading)
        return [first[seed] - second[seed] for seed in first if seed in second]

    def curve(self, row: Any, column: Any, name: str) -> dict[str, tuple[list, list]]:
        """Seed -> (epochs, values) of one of CURVES."""
        entry = self.cells.get((str(row), str(column)), {"seeds": {}})
        return {
            seed: (result["curves"]["epoch"], result["curves"][name])
            for seed, result in entry["seeds"].items()
            if name in result.get("curves", {})
        }
