"""``curves.png``: what was logged, against the epoch."""

import os
import pathlib

import numpy as np

from contrastive_jax.workdir.files import replacing
from contrastive_jax.workdir.metrics import read_metrics


def plot_curves(workdir: str | os.PathLike) -> pathlib.Path | None:
    """Draw ``curves.png`` from ``metrics.jsonl``: loss and InfoNCE, contrast accuracy, tau, ESS, evaluations.

    A panel is drawn for what was logged, against the epoch; None, and no file, where nothing was.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = read_metrics(workdir)
    names = list(dict.fromkeys(name for record in records for name in record))
    evaluations = [name for name in names if name.endswith(("top1", "mean_per_class"))]
    panels = (
        ("loss", ["loss", "info_nce"]),
        ("contrast accuracy", ["contrast_accuracy"]),
        ("temperature", ["tau"]),
        ("effective sample size / negatives", ["ess", "ess_with_positive"]),
        ("evaluation", evaluations),
    )
    panels = [(title, [name for name in shown if name in names]) for title, shown in panels]
    panels = [(title, shown) for title, shown in panels if shown]
    if not panels:
        return None
    figure = Figure(figsize=(3.6 * len(panels), 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, shown) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in shown:
            points = [(record["epoch"], record[name]) for record in records if name in record]
            marker = "o" if len(points) < 40 else None
            axes.plot(*np.asarray(points, float).T, label=name, marker=marker, markersize=3, linewidth=1.2)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        if len(shown) > 1:
            axes.legend(fontsize=7)
    path = pathlib.Path(workdir, "curves.png")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return path
