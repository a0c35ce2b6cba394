"""What has to be met before numbers judge a claim; a gate that fails says why in a few words.

At the scale ``paper`` the setting is the claim's own, so that only what is missing is asked for there. A table whose
rates are printed in its paper names the scales that have them, ``published_rates``.
"""

import functools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.harness.jobs import RATE, choose, choosing
from experiments.harness.judging import Estimate, student
from experiments.harness.records import pick
from experiments.harness.results import Results
from experiments.harness.table import ALL_LABELS, ROOT, SCALES, SMALL, TEN_LABELS, Cell, Gate

ROOM = 3.0  # points that accuracy must be able to move by
REGIME = 0.5  # median W = sigmoid(c) of InfoNCE; above it InfoNCE's gradient is dc but for a scalar, as its rivals' is
NO_ROOM = (
    "small_mnist"  # where all labels leave none, so that 10 labels a class judge, whatever all of them decide
)


def levels(scale: str, few: bool = False) -> dict[str, float]:
    """Return linear top-1 of supervised training, and of the best that trains nothing; percent; {} where none was
    measured.

    ``few``: of a classifier of 10 labels a class.
    """
    if scale in (*SMALL, "gpu"):
        from experiments.family import controls

        found = Results(controls.TABLE, scale)
        return controls.levels(found.by_few_labels() if few else found)
    return _on_digits() if scale == "cpu" else {}


@functools.cache
def _on_digits() -> dict[str, float]:
    folder = ROOT / "experiments" / "digits" / "results"

    def of(method: str, row: str = "trained", column: str = "linear") -> float:
        seeds = json.loads((folder / "methods" / f"{method}.json").read_text())["seeds"].values()
        return 100 * statistics.mean(seed[row][column] for seed in seeds)

    pixels = json.loads((folder / "flatclr.json").read_text())["0"]["evaluations"]["raw pixels"]
    best = max(100 * pixels[column]["top1"] for column in ("linear", "knn"))
    return {"supervised": of("supervised"), "baseline": max(best, of("simclr", "untrained"))}


def room(results: Results, few: bool = False) -> dict[str, float]:
    """Return percentages that bound what the best judged cell can show, and ``room``, the points to the nearer bound.

    ``supervised`` above it, ``baseline`` (what trains nothing) below it; {} where there are no controls.
    """
    known = levels(results.scale, few or results.few)
    compared = [results.cells[cell] for cell in results.judged or results.cells]
    if results.scale == "gpu" and not all(_as_controls(entry.get("config", {})) for entry in compared):
        return {}
    path = TEN_LABELS if few else ALL_LABELS
    reached = [
        mean for cell in results.judged or results.cells if (mean := results.mean(*cell, path)) == mean
    ]
    if not (known and reached):
        return {}
    best = max(reached)
    return known | {"best": best, "room": min(known["supervised"] - best, best - known["baseline"])}


def _as_controls(config: Mapping[str, Any]) -> bool:
    """Return whether a run at ``gpu`` has the images and the encoder of the controls there."""
    asked = {
        "data.name": "cifar10", "compose.name": "none", "augment.size": 32,
        "encoder.depth": 18, "encoder.width": 1.0, "encoder.stem": "cifar",
    }  # fmt: skip
    return all(config.get(name) == value for name, value in asked.items())


def headroom(results: Results, half: float, few: bool = False, always: bool = False) -> str:
    """Ask that accuracy has room: supervised training stands :data:`ROOM` points above the best judged cell, that above
    what trains nothing.

    Nothing is asked where an effect is decided: a ceiling makes an effect smaller, and forges none. ``few``: the claim
    itself is on 10 labels a class. ``always``: it says that something is no worse by so many points, which a ceiling
    does forge.
    """
    by_few = few or results.few
    if results.scale == "paper" or results.decided and not always and (by_few or results.scale != NO_ROOM):
        return ""
    if not (known := room(results, few)):
        return f"headroom: no supervised and no untrained encoder was measured at scale {results.scale}"
    if known["room"] >= ROOM:
        return ""
    said = ", ".join(f"{name} {known[name]:.1f}" for name in ("supervised", "best", "baseline"))
    return f"headroom: {known['room']:.1f} points ({said}), {ROOM:g} are asked for"


few_headroom = functools.partial(headroom, few=True)
room_to_differ = functools.partial(headroom, always=True)
few_room_to_differ = functools.partial(headroom, few=True, always=True)


def regime(row: str, *columns: str) -> Gate:
    """Return the gate that InfoNCE's cell has solved many of its queries in every column that is judged (default: all
    of the row); for claims on a query's weight, which are empty elsewhere.

    Median W over the last half of training where its curve is kept, else at the end. It fails where W is above
    :data:`REGIME` by the 95 % interval over seeds, so that no verdict hangs on a third decimal.
    """

    def gate(results: Results, half: float) -> str:
        if results.scale == "paper":
            return ""
        cells = [cell for cell in results.cells if cell[0] == row and (not columns or cell[1] in columns)]
        found = {cell[1]: median_w(results, cell) for cell in cells}
        outside = [
            f"{w.mean:.2f}{f' ± {w.half():.2f}' if w.freedom else ''} at {column}"
            for column, w in found.items()
            if w.mean - (w.half() if w.freedom else 0.0) >= REGIME
        ]
        if not found:
            return f"regime: {row} has not run"
        return f"regime: InfoNCE's median W is above {REGIME}: {', '.join(outside)}" if outside else ""

    return gate


def median_w(results: Results, cell: Cell) -> Estimate:
    """Estimate the median W of a cell over the last half of training, or at its end; the seeds are the sample."""
    curves = results.curve(*cell, "w_p50").values()
    if not curves:
        return student(list(results.values(*cell, "metrics.w_p50").values()))
    return student([
        statistics.mean(v for e, v in zip(epochs, values, strict=True) if 2 * e > epochs[-1])
        for epochs, values in curves
    ])  # fmt: skip


def tuned(results: Results, half: float, ending: str = "") -> str:
    """Ask that the rates of the judged cells were chosen, inside what was tried, or are the paper's; ``ending``: of
    rows that end so.

    Where 10 labels a class judge and all labels chose, another rate must not be better by more than the claim's
    interval can show.
    """
    if results.scale in results.table.published_rates:
        return ""
    edges, untuned = [], []
    judged = results.judged or results.cells
    cells = [cell for cell in results.cells if cell in judged and cell[0].endswith(ending)]
    for cell in cells:
        tried = sorted(
            {dict(job.point).get(RATE) for job in choosing(results.table, results.scale, cell)} - {None}
        )
        chosen = dict(choose(results.table, results.scale, cell) or ()).get(RATE)
        if len(tried) < 3:
            untuned.append(", ".join(cell))
        elif chosen in (tried[0], tried[-1]):
            edges.append(", ".join(cell))
    if untuned:
        return f"edge: the learning rate was not chosen for {len(untuned)} of {len(cells)} cells"
    if edges:
        return f"edge: the learning rate is at the edge of the sweep in {'; '.join(edges)}"
    lost = [
        f"{', '.join(cell)} ({chosen:.1f} against {best:.1f})"
        for cell in cells
        for chosen, best in _by_ten_labels(results, cell)
        if best - chosen > half
    ]
    if lost:
        return f"edge: all labels chose the rates, and by 10 a class another is better in {'; '.join(lost)}"
    return ""


def _by_ten_labels(results: Results, cell: Cell) -> list[tuple[float, float]]:
    """Return what the chosen rate and the best one reach by 10 labels on the images that choose; [] if all judge."""
    if not results.few:
        return []
    scores = {}
    for job in choosing(results.table, results.scale, cell):
        found = [job.result(seed) for seed in job.seeds()]
        known = [r for r in found if r and "few_labels" in r.get("evaluations", {}).get("trained", {})]
        if known and len(known) == len(found):
            scores[job.point] = statistics.mean(pick(result, TEN_LABELS) for result in known)
    chosen = choose(results.table, results.scale, cell)
    return [(scores[chosen], max(scores.values()))] if chosen in scores else []


def one_rate(results: Results, half: float) -> str:
    """Ask that the judged cells were trained at one learning rate: their numbers are of the loss, not of the weights.

    For what a loss does to a gradient, which at other weights is another.
    """
    cells = [results.cells[cell] for cell in results.judged or results.cells]
    found = sorted({entry["config"][RATE] for entry in cells if RATE in entry.get("config", {})})
    return f"rates: the cells were trained at {', '.join(f'{rate:g}' for rate in found)}" if found[1:] else ""


def tuned_in(ending: str) -> Gate:
    """Return :func:`tuned`, of the rows whose names end so."""
    return functools.partial(tuned, ending=ending)


def ran(*cells: Cell) -> Gate:
    """Return the gate of cells without which a comparison is not of like with like."""

    def gate(results: Results, half: float) -> str:
        left = [", ".join(cell) for cell in cells if cell not in results.cells]
        return f"missing: {'; '.join(left)}" if left else ""

    return gate


def lacking(why: str, scales: Sequence[str] = (*SCALES[1:], "measured")) -> Gate:
    """Return the gate of something that no run or measurement at some scales can mend."""

    def gate(read: Any, half: float) -> str:
        return why if getattr(read, "scale", "measured") in scales else ""

    return gate


def of_runs(gate: Gate, results: Callable[[], Results]) -> Gate:
    """Apply a gate to the runs that a table without runs of its own has measured."""
    return lambda read, half: gate(results(), half)
