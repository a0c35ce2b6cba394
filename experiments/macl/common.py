"""What MACL's tables share: losses, configs, columns."""

import json
import statistics
from collections.abc import Callable, Container

from experiments import harness
from experiments.harness import Results

# The paper's names -> methods of the library.
LOSSES = {
    "InfoNCE": "simclr",
    "DCL": "dcl",
    "Dual": "dual_temperature",
    "MACL-a": "macl",
    "MACL-b": "macl_b",
}
SENSITIVITY = {"name": "geometry", "layer": "projection_2", "images": 0}
PUBLISHED = {
    "linear": {"name": "macl"},
    "knn": {"name": "knn", "k": 200, "temperature": 0.1},
    "sensitivity": SENSITIVITY,
}
LINEAR, KNN, S = "linear top-1, %", "kNN top-1, %", "semantic sensitivity S"
ALSO, CHOOSES = harness.FEW_LABELS, harness.BY_FEW_LABELS
METRIC = {
    LINEAR: "trained.linear.top1 %",
    KNN: "trained.knn.top1 %",
    S: "trained.sensitivity.semantic_sensitivity",
}
CURVES = ("eval/sensitivity_semantic_sensitivity",)
TRAINED, LOOK = (
    """ --config.evaluate.rows="('trained',)\"""",
    """ --config.evaluate.look="('sensitivity',)\"""",
)
EVALUATORS = f" --config.evaluators='{json.dumps(PUBLISHED)}'"
OWN = {
    "paper": f" --config.evaluate.every='5 epochs'{LOOK}{EVALUATORS}",
    "gpu": " --config.train.duration='50 epochs' --config.dtype=bfloat16 --config.evaluate.every='5 epochs'"
    f"{LOOK}{TRAINED}{EVALUATORS}",
    "cpu": " --config.train.duration='20 epochs' --config.evaluate.every='2 epochs'"
    f"{LOOK}{harness.brief(sensitivity=SENSITIVITY)}",
    "smoke": harness.brief(sensitivity=SENSITIVITY),
}


def screen(epochs: int = 5) -> str:
    """Return a short run at a small scale with a look at S every epoch, as arguments."""
    return f" --config.evaluate.every='1 epoch'{LOOK}{harness.screen(epochs, sensitivity=SENSITIVITY)}"


OWN |= dict.fromkeys(harness.SMALL, screen())
SWEEP = dict.fromkeys(harness.SMALL, {"schedule.learning_rate": harness.rates(2.5e-4)})
PUBLISHED_RATES = ("paper", "gpu")  # Adam at 0.001
FURTHER = (
    4  # steps beyond the sweep: MACL's best rate at batch 64 of MNIST is eight times its middle, or more
)
ASSUMED = {
    "negatives, head, augmentation, classifiers": "as the docstring of configs/macl_cifar10.py says",
    "semantic sensitivity": "layer and pairs are not printed: projections, distinct pairs of one clean view of"
    " the test images",
    "gpu": "50 epochs instead of 200, bfloat16",
    "small, small_mnist": "5 epochs, AdamW, rate chosen for each cell from (1/2, 1, 2) x 0.00025 sqrt(batch)",
    "cpu": "digits, 20 epochs, batch as given, AdamW at 0.003 (whatever the batch, as the paper's Adam) with"
    " warm-up and cosine; L-BFGS and 10 nearest neighbours",
}


def arguments(scale: str, method: str, overrides: str = "", dataset: str = "cifar10") -> str:
    """Return the arguments of the command: a method on a data set; on digits at ``cpu`` and ``smoke``."""
    where = dataset if scale == "paper" else "cifar10"
    return f"configs/macl_{where}.py:method={method},scale={scale}{overrides}{OWN[scale]}"


def smoke() -> dict[tuple[str, str], str]:
    """Return the cell of all tables that takes seconds."""
    return {("MACL-a", "batch 32"): arguments("smoke", "macl", " --config.train.batch_size=32")}


def difference(
    one: str, other: str, heading: str | None = None, columns: Container[str] | None = None
) -> Callable[[Results], list[float]]:
    """Return the evidence: row ``one`` less row ``other``, the mean over the ``columns`` that both were run in, a seed
    each."""

    def evidence(results: Results) -> list[float]:
        both = sorted(
            column
            for row, column in results.cells
            if row == one and (other, column) in results.cells and (columns is None or column in columns)
        )
        found = [results.differences((one, column), (other, column), heading) for column in both]
        return [statistics.mean(seed) for seed in zip(*found, strict=True)]

    return evidence


def rise(rows: Container[str]) -> Callable[[Results], list[float]]:
    """Return the evidence: S at the end less S at the first look, the mean over all cells of some rows, a seed each."""

    def evidence(results: Results) -> list[float]:
        cells = [cell for cell in results.cells if cell[0] in rows]
        curves = [list(results.curve(*cell, CURVES[0]).values()) for cell in cells]
        return [statistics.mean(s[-1] - s[0] for _, s in seed) for seed in zip(*curves, strict=True)]

    return evidence


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
