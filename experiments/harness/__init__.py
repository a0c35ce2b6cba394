"""What every table and figure of the papers shares: plan, run, collect, render, diff.

A table is a module of ``experiments/<paper>/`` that says

* ``RUNS``: scale -> (row, column) -> the command's arguments, ``configs/x.py:scale=cpu --config.a.b=c``;
* ``METRIC``: heading -> path into a run's result, ``trained.linear.top1 %`` (``%``: times 100), ``metrics.ess``, or
  None where nothing here gives that number;
* ``REPORTED``: heading -> (row, column) -> the paper's number, :func:`doubtful` or None where it is lost;
* ``ASSUMED``: what the paper does not print -> our choice and its source;

and may say ``SEEDS`` (scale -> seeds), ``SWEEP`` (scale -> leaf -> values, or scale -> row -> leaf -> values: chosen on
a validation part of the training images, by the first heading of ``METRIC`` or the path that ``CHOOSES`` has for the
scale, and a seed that judges nothing, or as many as ``CHOOSING_SEEDS`` has for the scale; at small scales a sweep of
rates goes on beyond its edge, twice or ``FURTHER`` times), ``PUBLISHED_RATES`` (scales whose rates are the paper's),
``ALSO`` (scale -> further headings and paths, which its runs alone have), ``CURVES`` (metrics kept over training),
``NEEDS`` (what a cell that is not run would take), ``CLAIMS`` (what the table is evidence for, by the rules of
``judging`` and after the claim's ``gates``; a claim that no small scale has cells for says why, ``needs``) and
``draw(results)`` (a matplotlib figure).

A table without training runs (a formula, a measurement of seconds) says ``measure() -> dict`` in the place of ``RUNS``
and ``METRIC`` (or ``read()``, of what another file has measured), and ``page(found)``, the lines of Markdown that show
it.

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
from experiments.harness.evidence import above_all, of_extremes
from experiments.harness.judging import Claim
from experiments.harness.pages import lines, markdown, summary
from experiments.harness.results import Results
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
    "Results",
    "above_all", "all_tables", "brief", "command", "config_of", "doubtful", "gates", "grid", "lines", "main",
    "ADAMW_RATES", "markdown", "of_extremes", "rates", "screen", "summary", "table_of",
]  # fmt: skip
