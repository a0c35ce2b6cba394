"""What every table and figure of the papers shares: plan, run, collect, render, diff.

A table is a module of ``experiments/<paper>/`` that declares ``TABLE = Table(__name__, __doc__, ...)`` and ends in ``if
__name__ == "__main__": sys.exit(harness.main())``. :class:`Table` documents the fields; a wrong one raises at import.

    python -m experiments.flatnce.figure_2 plan|run|collect|render|diff [--scale=cpu]
    python -m experiments.harness pages|csv|stale
    python -m experiments.harness compare REV1 [REV2]

Each run lives in a folder of its own below ``runs/experiments``, so that it may be killed, resumed and run elsewhere;
what it found is kept in ``experiments/results``. Both are named by its settled config: tables that ask for the same run
share it, in whatever words, and a default that has changed since makes it another run. ``pages`` writes anew all
that is made of records: tables' pages, the ledger, its counts on the front page, the short paper, and what ``csv``
writes: all runs as ``experiments/results.csv`` and a page that draws it. ``stale`` lists the
records that no table asks for any more, and why; ``compare`` prints the numbers that changed between two revisions.
The same seed gives every cell the same first weights, order and augmentation, so differences are paired.
"""

from experiments.harness import gates
from experiments.harness.cli import main
from experiments.harness.pages import bars, lines, markdown, panel, summary
from experiments.harness.results import Results, above_all, of_extremes
from experiments.harness.table import (
    ADAMW_RATES,
    BRIEF,
    BY_FEW_LABELS,
    FEW,
    FEW_LABELS,
    KNN_TOO,
    OWN_DRAWS,
    ROOT,
    SCALES,
    SEEDS,
    SMALL,
    Claim,
    Table,
    all_tables,
    brief,
    command,
    config_of,
    doubtful,
    grid,
    rates,
    screen,
    table_of,
)

__all__ = [
    "BRIEF", "BY_FEW_LABELS", "FEW", "FEW_LABELS", "KNN_TOO", "OWN_DRAWS", "ROOT", "SCALES", "SEEDS", "SMALL", "Claim",
    "Results", "Table",
    "above_all", "all_tables", "bars", "brief", "command", "config_of", "doubtful", "gates", "grid", "lines", "main",
    "ADAMW_RATES", "markdown", "of_extremes", "panel", "rates", "screen", "summary", "table_of",
]  # fmt: skip
