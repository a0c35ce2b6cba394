"""The drawing that MACL's tables share."""

import statistics

from experiments.harness import Results
from experiments.macl.common import CURVES


def sensitivity(results: Results):
    """Draw semantic sensitivity over training, the mean over seeds: a panel a column."""
    from matplotlib.figure import Figure

    columns = list(dict.fromkeys(column for _, column in results.cells))
    figure = Figure(figsize=(4.2 * len(columns), 3.2), layout="constrained")
    for axes, column in zip(
        figure.subplots(1, len(columns), sharey=True, squeeze=False)[0], columns, strict=True
    ):
        for row in dict.fromkeys(row for row, c in results.cells if c == column):
            curves = list(results.curve(row, column, CURVES[0]).values())
            if curves:
                values = [statistics.mean(at) for at in zip(*(s for _, s in curves), strict=True)]
                axes.plot(curves[0][0], values, label=row)
        axes.set(title=column, xlabel="epoch")
    figure.axes[0].set_ylabel("semantic sensitivity S")
    figure.axes[0].legend(frameon=False)
    return figure
