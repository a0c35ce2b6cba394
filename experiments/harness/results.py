"""The kept numbers of a table, and what several papers' claims measure of them."""

import copy
import json
import math
import pathlib
import statistics
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from experiments.harness import records
from experiments.harness.jobs import Job, choose, chosen_by, sweep_points
from experiments.harness.records import pick
from experiments.harness.table import ALL_LABELS, MEASURES, ROOT, TEN_LABELS, Cell, Table


class Results:
    """The kept numbers of a table at a scale.

    Attributes:
      cells: (row, column) -> its run's record, of the seeds of this table; cells without a finished seed are left out.
      few: whether 10 labels a class are in the place of all of them (:meth:`by_few_labels`).
      asked: the cells whose numbers were asked for, where it is watched (:meth:`watched`).
      paths: the paths at which they were read, where it is watched.
      judged: the cells that a claim reads, for its gates; () for all.
      decided: whether their numbers decide on an effect, for gates that ask only otherwise.
      measure: the path in the place of every accuracy of :data:`~.table.MEASURES` (:meth:`by`); "" for none.
      more: points that are added to each of these, which changes no difference of two.
    """

    few = False
    asked: Collection[Cell] = frozenset()
    paths: Collection[str] = frozenset()
    judged: Collection[Cell] = ()
    decided = False
    measure = ""
    more = 0.0

    def __init__(self, table: Table, scale: str):
        self.table, self.scale = table, scale
        self.cells = {
            cell: record for cell in table.runs.get(scale, {}) if (record := _record(table, scale, cell))
        }

    def __bool__(self):
        return bool(self.cells)

    def values(self, row: Any, column: Any, heading: str | None = None) -> dict[str, float]:
        """Return seed -> number of a cell, under a heading (default: the first) or a path; empty if not run."""
        heading = next(iter(self.table.metric)) if heading is None else heading
        path = self.table.metric_at(self.scale).get(heading, heading)
        if path is None or self.few and path.startswith("trained.knn"):
            return {}
        path = TEN_LABELS if self.few and path == ALL_LABELS else path
        path = self.measure if self.measure and path in MEASURES.values() else path
        if isinstance(self.paths, set):
            self.paths.add(path)
        more = self.more if path in MEASURES.values() else 0.0
        return {
            seed: pick(result, path) + more for seed, result in self._seeds((str(row), str(column))).items()
        }

    def mean(self, row: Any, column: Any, heading: str | None = None) -> float:
        """Return the mean over the seeds; nan if not run."""
        values = self.values(row, column, heading).values()
        return statistics.mean(values) if values else math.nan

    def differences(self, one: Cell, other: Cell, heading: str | None = None) -> list[float]:
        """Return ``one - other``, seed by seed: the same first weights, order and augmentation."""
        first, second = self.values(*one, heading), self.values(*other, heading)
        return [first[seed] - second[seed] for seed in first if seed in second]

    def by_few_labels(self) -> "Results":
        """Return the same with a linear classifier of 10 labels a class in the place of all of them, and without kNN.

        Empty where a run was not judged so.
        """
        other = copy.copy(self)
        other.few = True
        known = all(
            "few_labels" in result.get("evaluations", {}).get("trained", {})
            for entry in self.cells.values()
            for result in entry["seeds"].values()
        )
        other.cells = self.cells if known else {}
        return other

    def by(self, measure: str, more: float = 0.0) -> "Results":
        """Return the same with one of :data:`~.table.MEASURES` in the place of each of them, ``more`` points added."""
        other = copy.copy(self)
        other.few, other.measure, other.more = False, MEASURES[measure], more
        return other

    def watched(self) -> "Results":
        """Return the same, which remembers of which cells numbers are asked for, and at which paths."""
        kept = copy.copy(self)
        kept.asked, kept.paths = set(), set()
        return kept

    def of_claim(self, cells: Collection[Cell], decided: bool = False) -> "Results":
        """Return the same, for the gates of a claim that reads these cells; ``decided``: its effect is."""
        kept = copy.copy(self)
        kept.judged, kept.decided = cells, decided
        return kept

    def paired(self, cells: Collection[Cell]) -> "Results":
        """Return these cells with the seeds alone that each of them has, in one order; the others as they are.

        Without a seed in common these cells are left out.
        """
        kept = copy.copy(self)
        common = sorted(set.intersection(*(set(self.cells[cell]["seeds"]) for cell in cells)))
        kept.cells = {
            cell: entry if cell not in cells else entry | {"seeds": {s: entry["seeds"][s] for s in common}}
            for cell, entry in self.cells.items()
            if common or cell not in cells
        }
        return kept

    def of_one_seed(self) -> "Results":
        """Return the same with one seed a cell, under one name, for what is asked of cells that have no seed in
        common."""
        kept = copy.copy(self)
        kept.cells = {
            cell: entry | {"seeds": {"any": next(iter(entry["seeds"].values()))}}
            for cell, entry in self.cells.items()
        }
        return kept

    def completed(self) -> "Results":
        """Return the same with all cells of the scale; of those that have not run with another's numbers."""
        kept = copy.copy(self)
        some = next(iter(self.cells.values()))
        kept.cells = {cell: self.cells.get(cell, some) for cell in self.table.runs.get(self.scale, {})}
        return kept

    def swept(self, row: Any, column: Any) -> list[list[float]]:
        """Return what every point of a cell's declared sweep reached on the images that choose, by what chooses.

        A list a point, of a number a seed that chooses; 0 for one that diverged; [] before all have run.
        """
        name, path = self.table.name, chosen_by(self.table, self.scale)
        cell = (str(row), str(column))
        points = sweep_points(self.table, self.scale, cell[0])
        jobs = [Job(name, self.scale, cell, point, chosen=False) for point in points]
        found = [[job.result(seed) for seed in job.seeds()] for job in jobs]
        if any(None in of_point for of_point in found):
            return []
        return [[0.0 if "diverged" in r else pick(r, path) for r in of_point] for of_point in found]

    def curve(self, row: Any, column: Any, name: str) -> dict[str, tuple[list, list]]:
        """Return seed -> (epochs, values) of one of ``curves``."""
        return {
            seed: tuple(result["curves"][name])
            for seed, result in self._seeds((str(row), str(column))).items()
            if name in result.get("curves", {})
        }

    def _seeds(self, cell: Cell) -> Mapping[str, Any]:
        if cell not in self.cells:
            return {}
        if isinstance(self.asked, set):
            self.asked.add(cell)
        return self.cells[cell]["seeds"]


def _record(table: Table, scale: str, cell: Cell) -> dict[str, Any] | None:
    """Return the record of the run that a cell's sweep chose, if it has one; with the command that the table gives for
    it."""
    if (point := choose(table, scale, cell)) is None:
        return None
    job = Job(table.name, scale, cell, point)
    record = records.read(job.key)
    known = record.get("seeds", {})
    wanted = [seed for seed in map(str, table.seeds_at(scale)) if seed in known]
    seeds = {seed: known[seed] for seed in wanted if not job.failure(known[seed])}
    return record | {"arguments": job.arguments(), "seeds": seeds} if seeds else None


def above_all(
    results: Results, cell: Cell, others: Iterable[Cell], heading: str | None = None
) -> list[list[float]]:
    """Return a cell less each of the others, one number a seed each: for "... is the best", judged by ``each``.

    Empty lists of others that have not run: the claim is not tested then.
    """
    return [results.differences(cell, other, heading) for other in others if other != cell]


def of_extremes(results: Results, row: str, heading: str | None = None, *, least: int = 0) -> list[float]:
    """Return a row's number at its smallest column, of those from ``least`` on, less that at its largest.

    Columns are numbers, those that the scale has, run or not.
    """
    planned = results.table.runs.get(results.scale, {})
    columns = sorted(int(column) for name, column in planned if name == row and int(column) >= least)
    if len(columns) < 2:
        return []
    return results.differences((row, str(columns[0])), (row, str(columns[-1])), heading)


def file_of(table: Table) -> pathlib.Path:
    """Return where its numbers are kept."""
    path = ROOT / table.path
    return path.parent / "results" / path.name / "measured.json"


def measured(table: Table) -> dict[str, Any] | None:
    """Return what ``measure()`` returned when it was run, or ``read()`` finds; None before."""
    if table.read:
        return table.read()
    file = file_of(table)
    return json.loads(file.read_text())["found"] if file.exists() else None


def measure(table: Table) -> str:
    """Measure what is not yet measured, and keep it; return a sentence about that."""
    from contrastive_jax import workdir as workdirs

    if table.read:
        return f"{table.path}: reads what another file has measured"
    file = file_of(table)
    if file.exists():
        return f"{table.path}: done ({file} can be deleted to measure again)"
    result = {"found": table.measure()} | workdirs.environment()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")
    return f"{table.path}: measured"
