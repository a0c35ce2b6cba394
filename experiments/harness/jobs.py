"""Cells as runs: what is left to do, a sweep's choice, and the finished ones gathered."""

import itertools
import json
import math
import pathlib
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness import records
from experiments.harness.table import (
    ROOT,
    SMALL,
    VALIDATION,
    Cell,
    Table,
    all_tables,
    config_of,
    stem_of,
    table_of,
)

CHOOSING = 100  # the first seed of the runs that choose
RATE = "schedule.learning_rate"  # what a sweep goes beyond its edge in
# Curves that every record keeps where they were logged: gates read them, and one run serves all tables.
ALWAYS = ("w_p50", "ess", "ess_with_positive", "info_nce", "query_ess", "query_gradient_norm")

MEASURED = ("evaluations", "metrics", "diverged")  # what a seed's numbers are

Point = tuple[tuple[str, Any], ...]  # (leaf, value) of a sweep


class Job(NamedTuple):
    """One cell, with the overrides of a sweep's point: the unit that is run, on one worker, seed after seed."""

    table: str
    scale: str
    cell: Cell
    point: Point = ()
    chosen: bool = True  # False: judged on the validation part, to choose
    most: int | None = None  # seeds, where fewer than the table's are run for now

    @property
    def name(self) -> str:
        """The name for people."""
        point = [f"{leaf.rpartition('.')[2]}={value}" for leaf, value in self.point]
        label = " | ".join([*self.cell, *point, *([] if self.chosen else ["choosing"])])
        return f"{self.table.removeprefix('experiments.')} {label}"

    @property
    def key(self) -> str:
        """The run's key: jobs of one key are one run, whatever table asks for it."""
        return records.key_of(self.arguments())

    def folder(self, seed: int) -> pathlib.Path:
        """Return the run's workdir."""
        return folder_of(self.key, seed)

    def arguments(self) -> str:
        """Return the arguments of the command."""
        own = table_of(self.table).runs[self.scale][self.cell]
        overrides = [f"--config.{leaf}={shlex.quote(str(value))}" for leaf, value in self.point]
        if not self.chosen:
            overrides.append(f"--config.data.validation={VALIDATION}")
        return " ".join([own, *overrides])

    def done(self) -> bool:
        """Return whether every seed has finished, here or wherever the committed results were made."""
        return all(self.result(seed) is not None for seed in self.seeds())

    def seeds(self) -> tuple[int, ...]:
        """Return the seeds: a sweep chooses by a seed of its own, or several, which judge nothing."""
        table = table_of(self.table)
        if self.chosen:
            return table.seeds_at(self.scale)[: self.most]
        return tuple(range(CHOOSING, CHOOSING + table.choosing_seeds.get(self.scale, 1)))

    def result(self, seed: int) -> dict[str, Any] | None:
        """Return what is kept of the finished run, or it says of itself here; None before that."""
        kept = records.read(self.key).get("seeds", {}).get(str(seed))
        return kept if kept and not self.failure(kept) else self.here(seed)

    def here(self, seed: int) -> dict[str, Any] | None:
        """Return what the run that finished in :meth:`folder` says of itself.

        None before that, and where a column that the table reads failed: the run is judged again. Of one that
        diverged, to choose by: ``{"diverged": why}``.
        """
        if not self.chosen and self._diverged(seed).exists():
            return json.loads(self._diverged(seed).read_text())
        file = self.folder(seed) / "result.json"
        found = json.loads(file.read_text()) if file.exists() else {"evaluations": {}}
        return found if found["evaluations"] and not self.failure(found) else None

    def failure(self, result: dict[str, Any]) -> str:
        """Say what failed of a finished run that the table reads; empty: nothing."""
        paths = (
            () if "diverged" in result else filter(None, table_of(self.table).metric_at(self.scale).values())
        )
        return next((f"{path}: {why}" for path in paths if (why := records.failure(result, path))), "")

    def diverged(self, seed: int, why: str) -> None:
        """Take note that a run to choose by has no number: it is the worst."""
        self._diverged(seed).write_text(json.dumps({"diverged": why}) + "\n")

    def _diverged(self, seed: int) -> pathlib.Path:
        return self.folder(seed) / "diverged.json"


def folder_of(key: str, seed: int) -> pathlib.Path:
    """Return the workdir of a run of a key."""
    return ROOT / "runs" / "experiments" / key / f"seed{seed}"


def sweep_points(table: Table, scale: str, row: str) -> list[Point]:
    """Return the points of the table's (or of this row's own) sweep at a scale; one empty point where there is none."""
    sweep = table.sweep.get(scale, {})
    if any(isinstance(of_row, Mapping) for of_row in sweep.values()):
        sweep = sweep.get(row, {})
    return [tuple(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def choosing(table: Table, scale: str, cell: Cell) -> list[Job]:
    """Return the jobs that a cell's sweep chooses by; none without a sweep.

    At small scales a sweep whose best rate is its least or its largest is extended beyond it, at most twice (or
    ``table.further`` times), so that the best rate lies inside the range that was tried.
    """
    points = sweep_points(table, scale, cell[0])
    found = [Job(table.name, scale, cell, p, chosen=False) for p in points if p]
    for _ in range(table.further if scale in SMALL and found else 0):
        if any(job.result(seed) is None for job in found for seed in job.seeds()):
            break
        best = max(found, key=lambda job: score_of(table, job))  # of equal ones the first
        if (point := _beyond(best, found)) is None:
            break
        found.append(best._replace(point=point))
    return found


def _beyond(best: Job, tried: Sequence[Job]) -> Point | None:
    """Return the point next to the best one, where the best has the least or the largest rate tried; else None."""
    others = {leaf: value for leaf, value in best.point if leaf != RATE}
    like = [dict(job.point) for job in tried if {k: v for k, v in job.point if k != RATE} == others]
    rates, rate = sorted(point[RATE] for point in like if RATE in point), dict(best.point).get(RATE)
    if len(rates) < 3 or rate not in (rates[0], rates[-1]):
        return None
    further = rate * (rate / rates[1 if rate == rates[0] else -2])
    return tuple((leaf, further if leaf == RATE else value) for leaf, value in best.point)


def choose(table: Table, scale: str, cell: Cell) -> Point | None:
    """Return the best point of the cell's sweep on the validation part.

    None before all its points have run, or if every one of them diverged.
    """
    best, best_score = (), -math.inf
    jobs = choosing(table, scale, cell)
    for job in jobs:
        if any(job.result(seed) is None for seed in job.seeds()):
            return None
        if (score := score_of(table, job)) > best_score:
            best, best_score = job.point, score
    return None if jobs and best == () else best


def score_of(table: Table, job: Job) -> float:
    """Return what chooses of a point that has run: the mean over its seeds; the worst where one diverged."""
    found = [job.result(seed) for seed in job.seeds()]
    if any("diverged" in result for result in found):
        return -math.inf
    score = statistics.mean(records.pick(result, chosen_by(table, job.scale)) for result in found)
    return score if math.isfinite(score) else -math.inf


def chosen_by(table: Table, scale: str) -> str:
    """Return the path that a sweep chooses by: ``chooses`` of the scale, else the first of ``metric``."""
    return table.chooses.get(scale, next(iter(table.metric.values())))


def jobs(table: Table, scale: str, cells: Sequence[Cell] | None = None) -> list[Job]:
    """Return what is left to run: the points to choose among, and the chosen ones of the cells that have chosen."""
    found = []
    for cell in cells or table.runs.get(scale, {}):
        point = choose(table, scale, cell)
        found += choosing(table, scale, cell) if point is None else [Job(table.name, scale, cell, point)]
    return [job for job in found if not job.done()]


def without_choice(table: Table, scale: str) -> list[str]:
    """Return a sentence for every cell that cannot choose: all points of its sweep diverged."""
    return [
        f"{Job(table.name, scale, cell).name}: every point of its sweep diverged; widen it."
        for cell in table.runs.get(scale, {})
        if choose(table, scale, cell) is None and all(job.done() for job in choosing(table, scale, cell))
    ]


def distinct(found: Sequence[Job]) -> list[Job]:
    """Return one job a run, that of the most seeds: tables that ask for the same run do not run it twice at a time."""
    best: dict[str, Job] = {}
    for job in found:
        if job.key not in best or len(job.seeds()) > len(best[job.key].seeds()):
            best[job.key] = job
    return list(best.values())


def collect(table: Table, scale: str, cells: Sequence[Cell] | None = None) -> int:
    """Keep what has finished here of the runs of cells (default: all); return the number of runs that are now kept."""
    kept = 0
    for cell in table.runs.get(scale, {}) if cells is None else cells:
        point = choose(table, scale, cell)
        last = [] if point is None else [Job(table.name, scale, cell, point)]
        for job in [*choosing(table, scale, cell), *last]:
            keep(job)
            kept += bool(records.read(job.key))
    return kept


def keep(job: Job) -> None:
    """Put what a job's run says of itself here into its record, but for seeds of which that has other numbers."""
    record = records.read(job.key) or {
        "arguments": job.arguments(),
        "config": records.material(config_of(job.arguments())),
        "seeds": {},
    }
    done = {seed: result for seed in job.seeds() if (result := job.here(seed)) is not None}
    for seed, result in done.items():
        before, now = record["seeds"].get(str(seed)), _kept(job, seed, result)
        if before and not _agree(*({of: kept.get(of) for of in MEASURED} for kept in (before, now))):
            print(
                f"{job.name}, seed {seed}: the record has other numbers than {job.folder(seed)}, and stays; to take"
                f" these, remove the seed from {records.folder() / job.key}.json."
            )
            continue
        about = {name: result[name] for name in records.PROVENANCE if name in result}
        if set(record["seeds"]) <= {str(seed)}:
            record |= about
        now |= {name: value for name, value in about.items() if record.get(name) != value}
        record["seeds"][str(seed)] = now
        for column, score in result.get("evaluations", {}).get("trained", {}).items():
            if "protocol" in score:
                record.setdefault("protocols", {})[column] = score["protocol"]
    if done:
        records.write(job.key, record)


def _agree(before: Any, now: Any) -> bool:
    """Return whether the numbers that both have are the same; what failed before has none."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return before is None or now is None or before == now
    return "failed" in before or all(_agree(before[name], now[name]) for name in before if name in now)


def _kept(job: Job, seed: int, result: dict[str, Any]) -> dict[str, Any]:
    """Return what tables read of a seed's result."""
    if "diverged" in result:
        return result
    kept = {
        "evaluations": records.numbers(result["evaluations"]),
        "metrics": records.numbers(result["metrics"]),
        "seconds": round(result["seconds"], 1),
    }
    drawn = records.curves(job.folder(seed) / "metrics.jsonl", _drawn(job)) if job.chosen else {}
    return kept | ({"curves": drawn} if drawn else {})


def _drawn(job: Job) -> set[str]:
    """Return the curves to keep: ``ALWAYS``, and the ``curves`` of all tables that read this run."""
    names = {*ALWAYS, *table_of(job.table).curves}
    for other in map(table_of, all_tables()):
        cells = [(scale, cell, text) for scale, of in other.runs.items() for cell, text in of.items()]
        if other.curves and any(
            stem_of(text) == stem_of(job.arguments())
            and job._replace(table=other.name, scale=scale, cell=cell).key == job.key
            for scale, cell, text in cells
        ):
            names |= set(other.curves)
    return names


def stale() -> list[str]:
    """Return a sentence for every record that no table reads: its command means another run today, or is asked for no
    more."""
    asked: dict[str, dict[str, None]] = {}  # config file -> commands
    for table in map(table_of, all_tables()):
        for scale, cells in table.runs.items():
            for cell in cells:
                tried = choosing(table, scale, cell)
                points = dict.fromkeys([*sweep_points(table, scale, cell[0]), *(job.point for job in tried)])
                found = [Job(table.name, scale, cell, point) for point in points]
                for text in (job.arguments() for job in [*found, *tried]):
                    asked.setdefault(stem_of(text), {})[text] = None
    wrong = []
    for file in sorted(records.folder().glob("*.json")):
        record = records.read(file.stem)
        texts = asked.get(file.stem.rpartition("-")[0], {})
        own = [text for text in texts if text == record["arguments"]]  # first: resolving a config takes long
        if file.stem.rpartition("-")[2] != records.digest(record["config"]):
            wrong.append(f"{file.name}: its config is not that of its name")
        elif all(file.stem != records.key_of(text) for text in [*own, *texts]):
            wrong.append(f"{file.name}: {_why_stale(record)}")
    return wrong


def rekey() -> dict[str, str]:
    """Keep records under the keys that their commands have today: old key -> new one.

    Their leaves may only have become fewer: options that the function of their section does not take. No number is
    touched.

    Raises:
      ValueError: a record whose other leaves changed, or two records of one key; nothing was written.
    """
    moved: dict[str, str] = {}
    for file in sorted(records.folder().glob("*.json")):
        record = records.read(file.stem)
        was, now = record["config"], records.material(config_of(record["arguments"]))
        if was == now:
            continue
        if changed := [name for name, value in now.items() if name not in was or was[name] != value]:
            raise ValueError(f"{file.name}: {', '.join(changed)} changed; run it again.")
        moved[file.stem] = f"{file.stem.rpartition('-')[0]}-{records.digest(now)}"
    if len({*moved.values()}) < len(moved) or any(records.read(key) for key in moved.values()):
        raise ValueError("two records would have one key.")
    for old, new in moved.items():
        record = records.read(old)
        records.write(new, record | {"config": records.material(config_of(record["arguments"]))})
        (records.folder() / f"{old}.json").unlink()
    return moved


def _why_stale(record: dict[str, Any]) -> str:
    """Say how the command of a record has changed its meaning."""
    try:
        now = records.material(config_of(record["arguments"]))
    except ValueError as error:
        return f"its command is no more: {error}"
    was = record["config"]
    changes = [
        f"{name} was {was.get(name, 'not there')!r}, is {now.get(name, 'not there')!r}"
        for name in {**was, **now}
        if name not in was or name not in now or was[name] != now[name]
    ]
    return "; ".join(changes) or "no table asks for it"
