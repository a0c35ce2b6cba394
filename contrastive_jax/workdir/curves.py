"""Plots of logged metrics against the epoch: ``curves.png`` and the panels of a report."""

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contrastive_jax.workdir import metric_table
from contrastive_jax.workdir.files import replacing
from contrastive_jax.workdir.metrics import read_metrics

COLOURS = ("#3b6fd4", "#d9722e", "#2a9d6f", "#b3479b", "#8a7a1f", "#c23b4b", "#2b93a8", "#7359c9")
INK = "#0a0b0c"
LARGEST = 1e300  # larger numbers, whole ones too, have no place on an axis

Records = Sequence[Mapping[str, Any]]


def plot_curves(workdir: str | os.PathLike) -> pathlib.Path | None:
    """Draw ``curves.png`` from ``metrics.jsonl`` and return its path; if nothing was logged, return None."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = draw([read_metrics(workdir)], metric_table.PANELS[0])
    if figure is None:
        return None
    FigureCanvasAgg(figure)
    path = pathlib.Path(workdir, "curves.png")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120, facecolor="white")
    return path


def draw(runs: Sequence[Records], panel: str, colours: Sequence[str] = COLOURS):
    """Return a figure of a panel's metrics against the epoch, one line per run; None without such metrics.

    Metrics that vary come first: a loss may be constant (FlatNCE's value), and so may a temperature.
    """
    from matplotlib.ticker import LogFormatter

    names = list(dict.fromkeys(name for records in runs for record in records for name in record))
    shown = metric_table.drawn(names, panel)
    shown = sorted(shown, key=lambda name: not any(_moves(points(records, name)) for records in runs))
    if not shown:
        return None
    columns = min(4, len(shown))
    figure, axes = grid(-(-len(shown) // columns), columns, 3.2, 2.3)
    for place, name in zip(axes.flat, shown, strict=False):
        metric = metric_table.find(name)
        for records, colour in zip(runs, colours, strict=False):
            _curve(place, records, name, colour, metric)
        place.set_title(metric_table.title(name).replace("$", r"\$"), fontsize=9, loc="left")
        if (
            metric
            and metric.logarithmic
            and place.lines
            and all((line.get_ydata() > 0).all() for line in place.lines)
        ):
            place.set_yscale("log")
            place.yaxis.set_major_formatter(LogFormatter())  # 20, not 2 x 10^1
            place.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    for place in axes.flat[len(shown) :]:
        place.set_axis_off()
    for place in axes.flat[max(0, len(shown) - columns) : len(shown)]:
        place.set_xlabel("epoch", fontsize=8)
    return figure


def _moves(curve: np.ndarray) -> bool:
    values = curve[:, 1]
    return len(values) > 1 and bool(np.ptp(values) > 1e-6 * np.abs(values).max())


def _curve(place, records: Records, name: str, colour: str, metric: metric_table.Metric | None) -> None:
    middle = points(records, name)
    if not len(middle):
        return
    mark = "o" if len(middle) < 15 else None
    place.plot(*middle.T, color=colour, linewidth=1.3, marker=mark, markersize=3)
    band = [points(records, other)[:, 1] for other in (metric.band if metric else ())]
    if band and all(len(edge) == len(middle) for edge in band):
        low, high = band if len(band) == 2 else (middle[:, 1] - band[0], middle[:, 1] + band[0])
        place.fill_between(middle[:, 0], low, high, color=colour, alpha=0.2)


def points(records: Iterable[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return [n, 2], the epoch and value of records in which both are finite numbers."""
    values = [
        (r["epoch"], r[name])
        for r in records
        if all(isinstance(r.get(x), int | float) and abs(r[x]) < LARGEST for x in ("epoch", name))
    ]
    array = np.array(values, float).reshape(-1, 2)
    return array[np.isfinite(array).all(axis=1)]


def grid(rows: int, columns: int, width: float, height: float):
    """Return a figure and its axes [rows, columns], each ``width`` by ``height`` inches, with a plain style."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for place in axes.flat:
        place.patch.set_alpha(0)
        place.grid(color=INK, alpha=0.12, linewidth=0.6)
        place.tick_params(which="both", colors=INK, labelsize=7, length=2)
        place.title.set_color(INK), place.xaxis.label.set_color(INK)
        for side, spine in place.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(INK), spine.set_alpha(0.4)
    return figure, axes
