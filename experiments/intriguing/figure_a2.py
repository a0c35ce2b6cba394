"""Intriguing Properties (Chen, Luo and Li 2021), Figure A.2: temperature and weight of the decoupled NT-Xent.

    python -m experiments.intriguing.figure_a2 run       # --scale=paper|gpu; skips what is done
    python -m experiments.intriguing.figure_a2 render

Linear accuracy of a ResNet-18 over a grid of tau and lambda, the weight of the distribution term. The paper claims that
the two are inversely related over most of their range: a larger tau wants a smaller lambda. The values are lost.
"""

import sys

from experiments import harness
from experiments.harness import Claim, Results

TAUS, WEIGHTS = (0.05, 0.1, 0.2, 0.5, 1.0), (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
METRIC = {"linear top-1, %": "trained.linear.top1 %"}


def cells(taus, weights, epochs):
    """tau down, lambda across."""
    return {
        (f"tau {tau}", str(weight)): "configs/intriguing_cifar10.py:loss=decoupled --config.encoder.depth=18"
        f" --config.train.duration='{epochs} epochs' --config.temperature.tau={tau}"
        f" --config.loss.decoupled_nt_xent.lambda_weight={weight}"
        for tau in taus
        for weight in weights
    }


RUNS = {"paper": cells(TAUS, WEIGHTS, 200), "gpu": cells((0.05, 0.2, 1.0), (0.02, 0.1, 0.5), 50)}
REPORTED = {"linear top-1, %": dict.fromkeys(RUNS["paper"])}
ASSUMED = {
    "tau, lambda": "the grid is lost in the text at hand: ours",
    "batch": "128",
    "learning rate": "LARS 0.2 x sqrt(batch): the authors, google-research/simclr issue 166",
    "gpu": "50 epochs",
}


def best_weights(results: Results) -> dict[str, dict[str, float]]:
    """tau -> seed -> the lambda of the best accuracy."""
    found: dict[str, dict[str, float]] = {}
    for row in dict.fromkeys(row for row, _ in results.cells):
        columns = {column: results.values(row, column) for r, column in results.cells if r == row}
        seeds = set.intersection(*map(set, columns.values()))
        found[row] = {s: float(max(columns, key=lambda c: columns[c][s])) for s in sorted(seeds)}
    return found


def shift(results: Results) -> list[float]:
    """log10 of the best lambda at the largest tau, less that at the smallest, a seed each."""
    import math

    found = best_weights(results)
    rows = sorted(found, key=lambda row: float(row.split()[1]))
    if len(rows) < 2:
        return []
    small, large = found[rows[0]], found[rows[-1]]
    return [math.log10(large[seed]) - math.log10(small[seed]) for seed in large if seed in small]


CLAIMS = (
    Claim(
        "tau and lambda are inversely related",
        "log10 of the best lambda, largest tau less smallest",
        shift,
        expects="below",
    ),
)


def draw(results: Results):
    """Accuracy over lambda, a line a tau."""
    return harness.lines(results, "lambda", log=True)


if __name__ == "__main__":
    sys.exit(harness.main())
