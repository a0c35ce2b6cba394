"""What several papers' claims measure, of the collected numbers of a table."""

from collections.abc import Iterable

from experiments.harness.results import Results
from experiments.harness.table import Cell


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
    planned = results.table.RUNS.get(results.scale, {})
    columns = sorted(int(column) for name, column in planned if name == row and int(column) >= least)
    if len(columns) < 2:
        return []
    return results.differences((row, str(columns[0])), (row, str(columns[-1])), heading)
