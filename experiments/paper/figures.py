"""The figures of the paper, from the same records as its numbers."""

import pathlib
import statistics

import matplotlib

from experiments import harness
from experiments.family import yoked
from experiments.harness import ROOT, Results, table_of
from experiments.harness.judging import student
from experiments.paper import numbers

FOLDER = ROOT / "experiments" / "paper" / "results"


def panel(width: float):
    """Make an empty figure of one panel."""
    figure, axes = harness.panel(width, 3.2)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def arms():
    """Draw MACL's temperature less each yoked arm, points with 10 labels a class; the band is the margin of
    equivalence."""
    results = Results(table_of("family.yoked"), numbers.EASY)
    found = {
        arm: seeds
        for arm in (yoked.REPLAYED, yoked.LINE, yoked.MEAN, yoked.CONSTANT)
        if len(seeds := yoked.against(arm)(results)) > 1
    }
    figure, axes = panel(5.2)
    axes.axvspan(-0.5, 0.5, color="0.92")
    axes.axvline(0, color="0.6", linewidth=0.8)
    for y, seeds in enumerate(found.values()):
        axes.errorbar(
            statistics.mean(seeds), -y, xerr=student(seeds).half(), marker="o", capsize=3, color="C0"
        )
        axes.plot(seeds, [-y - 0.18] * len(seeds), ".", color="C0", alpha=0.4, markersize=4)
    axes.set_yticks([-y for y in range(len(found))], list(found))
    axes.set(xlabel="(a) MACL-a less the arm, points", ylim=(-len(found) + 0.4, 0.6))
    return figure


FIGURES = (arms,)


def save() -> list[pathlib.Path]:
    """Write every figure; the files."""
    FOLDER.mkdir(exist_ok=True)
    files = [FOLDER / f"{draw.__name__}.svg" for draw in FIGURES]
    for file, draw in zip(files, FIGURES, strict=True):
        with matplotlib.rc_context({"svg.hashsalt": "paper"}):  # the same drawing, the same file
            draw().savefig(file, metadata={"Date": None})
    return files
