"""Few negatives at fixed weights: what their number changes, and what the weight of a query does.

    python -m experiments.family.few_negatives run       # MNIST at 14 x 14 pixels; goes on where it stopped
    python -m experiments.family.few_negatives render

At the end of a training at tau 0.1 the gradient of InfoNCE with 10 random negatives has three times the squared
signal-to-noise ratio of that with all 254, and points the other way: its cosine to the gradient of a pool of 4,096
images is -0.4 (`less_can_be_more/figure_4_fixed`, where a ratio above 1.1 was called a surprise). An explanation,
written after those runs: ten negatives make c small and its weight e^c, so that in the mean over draws the gradient is
that of all negatives with each query's weight W = sigmoid(c) replaced by e^c, which heeds the hardest queries alone.
The weights are at rest for W, and for no other weight, so that any other has a larger mean; the signal is bias.

If so, EqCo's margin log(alpha / K) does both without a change of negatives: with alpha 254 it gives ten negatives the
weight of all, and with alpha 10 all negatives the weight of ten.

Predictions, written before any run: ten negatives with alpha 254 have a ratio below 1 and a cosine above 0.3; all
negatives with alpha 10 have a ratio above 1.5 and a cosine below 0. Judged are the ratio's side of 1 and the cosine's
side of 0. A surprise would be a ratio above 1 of ten negatives with alpha 254: then few negatives would lower the
noise.

Read after the runs: the surprise. With the weight of all, ten negatives have 4.8 times the ratio of all, so that the
weight of a query is not what their number changes; all negatives with the weight of ten have 8.4 times, which is as
predicted, and a cosine below 0 (each seed; their mean is undecided). Two explanations are left. Ten negatives weigh
hard negatives less than all do, as a softmax over ten saturates where one of them is hard: then that, too, is another
objective, whose gradient is not at rest. Or few negatives have less noise.

They part at weights that were trained with ten negatives. Prediction, written before these runs: there the gradient
of ten has the lowest ratio of the four, as that of all has at the weights of all; so that the ratio tells which
objective the weights have come to rest for, and nothing of the noise of few negatives. A surprise would be a ratio of
ten above that of all.

Read after these runs: as predicted, on each seed. Ten negatives have 0.055 of the ratio of all, where at the weights of
all they have three times it. Noise of few negatives would lower the one and not raise the other, so that the pair shows
the rest; it does not show that there is no such noise. At tau 1 (`less_can_be_more/figure_4_fixed`) it is seen: there
the number hardly turns the mean gradient, and fewer negatives have the lower ratio.
"""

import itertools
import json
import pathlib
import sys

import numpy as np

from experiments import harness
from experiments.harness import Claim
from experiments.less_can_be_more import figure_4_fixed as fixed

TAU, POINT, FEW, ALL = 0.1, "end", 10, 254
ARMS = {  # name -> negatives (0: all), alpha of EqCo's margin
    "all": (0, None),
    "ten": (FEW, None),
    "ten, alpha 254": (FEW, ALL),
    "all, alpha 10": (0, FEW),
}
FOLDER = pathlib.Path(__file__).parent / "results" / "few_negatives" / "parts"
TRAINED = {"all": 0, "ten": FEW}  # the negatives that the weights were trained with
ASSUMED = {
    "settings": "those of less_can_be_more/figure_4_fixed: its trainings, minibatches and pool, tau 0.1, the end",
    "weights of ten": "the same training with 10 negatives a query, drawn anew each step",
}


def config_of(seed: int, count: int, alpha: int | None) -> dict:
    """The config of an arm."""
    margin = {"name": "eqco", "alpha": alpha} if alpha else {"name": "none"}
    return fixed.config_of(seed, TAU, "info_nce", count) | {"margin": margin}


def part(seed: int, count: int) -> list[dict]:
    """The rows of one training: ratio to all negatives and its error, cosine to the pool's gradient."""
    weights = fixed.trained(seed, TAU, count)[POINT]
    whole = next(fixed.gradients(fixed.config_of(seed, TAU, "info_nce", 0, fixed.POOL), weights, 1))
    of_arm = {name: fixed.moments(config_of(seed, *arm), weights) for name, arm in ARMS.items()}
    rows = []
    for name, (sums, _) in of_arm.items():
        ratio, error = fixed.compared(of_arm[name], of_arm["all"])
        mean = sums.sum(0)
        cosine = float(mean @ whole / np.linalg.norm(mean) / np.linalg.norm(whole))
        rows.append({"seed": seed, "arm": name, "ratio": ratio, "error": error, "cosine": cosine})
    return rows


def measure() -> dict:
    """All rows; a training's are kept as soon as they are there."""
    from contrastive_jax import native

    native.keep_pages()  # as the command does
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = []
    for (weights, count), seed in itertools.product(TRAINED.items(), fixed.SEEDS):
        file = FOLDER / f"{weights}_seed{seed}.json"
        if not file.exists():
            file.write_text(json.dumps(part(seed, count), indent=0) + "\n")
        rows += [row | {"weights": weights} for row in json.loads(file.read_text())]
    return {"rows": rows}


def page(found: dict) -> list[str]:
    """A table for each training: arms down, ratio and cosine across."""
    lines = []
    for weights in TRAINED:
        rows = [
            (
                arm,
                *(
                    harness.summary(fixed.of(found, name, weights=weights, arm=arm), False)
                    for name in ("ratio", "cosine")
                ),
            )
            for arm in ARMS
        ]
        head = ["negatives", "squared ratio, as a share of that with all", "cosine to the pool's gradient"]
        lines += [f"### Weights trained with {weights}", "", *harness.markdown(head, rows), ""]
    return lines


def sides(arm: str, sign: int):
    """Evidence: how far an arm's ratio is below 1 and its cosine above 0, reversed by ``sign`` -1, a seed each."""
    return lambda found: [
        [sign * (1 - ratio) for ratio in fixed.of(found, "ratio", weights="all", arm=arm)],
        [sign * cosine for cosine in fixed.of(found, "cosine", weights="all", arm=arm)],
    ]


def least(weights: str):
    """Evidence: each other arm's ratio less that of the arm which the weights were trained with, a seed each."""

    def evidence(found: dict) -> list[list[float]]:
        own = fixed.of(found, "ratio", weights=weights, arm=weights)
        return [
            [ratio - base for ratio, base in zip(others, own, strict=True)]
            for arm in ARMS
            if arm != weights
            for others in [fixed.of(found, "ratio", weights=weights, arm=arm)]
        ]

    return evidence


CLAIMS = (
    Claim(
        "Few negatives with the weight of all lower the signal and keep its direction",
        "10 negatives, alpha 254: one less the squared ratio, and the cosine; InfoNCE, tau 0.1, the end",
        sides("ten, alpha 254", 1),
        by="each",
    ),
    Claim(
        "All negatives with the weight of few raise it and turn it round",
        "all negatives, alpha 10: the squared ratio less one, and the cosine's negative; InfoNCE, tau 0.1, the end",
        sides("all, alpha 10", -1),
        by="each",
    ),
    Claim(
        "The gradient's ratio is lowest for the negatives that the weights were trained with",
        "trained with 10: squared ratio of each other arm less that of 10, in units of all; InfoNCE, tau 0.1, the end",
        least("ten"),
        by="each",
    ),
)

if __name__ == "__main__":
    sys.exit(harness.main())
