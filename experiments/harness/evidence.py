"""What several papers' claims measure, of the collected numbers of a table: one number a seed."""

from collections.abc import Iterable

from experiments.harness.results import Results
from experiments.harness.table import Cell


def above_best(
    results: Results, cell: Cell, others: Iterable[Cell], heading: str | None = None
) -> list[float]:
    """A cell less the one of the others that is best in the mean, for "... is the best".

    The best is chosen on the numbers that judge, so that the cell is, if anything, judged too hard.
    """
    there = [other for other in others if other != cell and results.values(*other, heading)]
    best = max(there, key=lambda other: results.mean(*other, heading), default=None)
    return results.differences(cell, best, heading) if best else []


def of_extremes(results: Results, row: str, heading: str | None = None, *, above: float = 0.0) -> list[float]:
    """A row's number at its smallest column above a bound less that at its largest, columns being numbers."""
    columns = sorted(int(column) for name, column in results.cells if name == row and int(column) > above)
    if len(columns) < 2:
        return []
    return results.differences((row, str(columns[0])), (row, str(columns[-1])), heading)
