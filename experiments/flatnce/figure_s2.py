"""FlatNCE (Chen et al. 2021), Figure S2: FlatCLR's learning at large batches, learning rate linear in the batch.

    python -m experiments.flatnce.figure_s2 run --scale=paper     # skips what is done
    python -m experiments.flatnce.figure_s2 render

The paper sees batch 256 learn fastest early; its values are only drawn.
"""

import statistics
import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results

BATCHES = {"paper": (256, 512, 1024, 2048), "gpu": (256, 1024)}
LOOK = " --config.evaluate.every='5 epochs' --config.evaluate.look=\"('knn',)\""

METRIC = {"linear top-1, %": "trained.linear.top1 %", "kNN top-1, %": "trained.knn.top1 %"}
CURVES = ("eval/knn_top1",)
RUNS = {
    scale: {
        (
            "FlatCLR",
            str(batch),
        ): f"configs/flatclr_cifar10.py:scale={scale} --config.train.batch_size={batch}{LOOK}"
        for batch in batches
    }
    for scale, batches in BATCHES.items()
} | {"smoke": figure_2.RUNS["smoke"]}
REPORTED = {"linear top-1, %": dict.fromkeys(RUNS["paper"])}  # drawn
ASSUMED = {
    "batch sizes": "256 is printed, the larger ones are ours",
    "accuracy on the way": "kNN, every 5 epochs",
}


def early(results: Results) -> list[list[float]]:
    """kNN at the first look of batch 256 less that of each larger batch, a seed each."""
    found = {
        int(column): [values[0] for _, values in results.curve(row, column, CURVES[0]).values()]
        for row, column in results.cells
    }
    larger = [values for batch, values in found.items() if batch > 256]
    if 256 not in found or not larger:
        return []
    return [[100 * (a - b) for a, b in zip(found[256], values, strict=False)] for values in larger]


CLAIMS = (
    Claim(
        "Batch 256 learns fastest early",
        "kNN top-1 after 5 epochs, batch 256 - each of the larger, points",
        early,
        by="each",
    ),
)


def draw(results: Results):
    """kNN over epochs, the mean over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for row, column in results.cells:
        curves = list(results.curve(row, column, CURVES[0]).values())
        mean = [100 * statistics.mean(at) for at in zip(*(values for _, values in curves), strict=False)]
        axes.plot(curves[0][0][: len(mean)], mean, label=f"batch {column}")
    axes.set(xlabel="epoch", ylabel="kNN top-1, %")
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(harness.main())
