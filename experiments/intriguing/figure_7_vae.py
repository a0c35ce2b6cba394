"""Intriguing Properties (Chen, Luo and Li 2021), Figure 7's variational autoencoder: random bits against accuracy.

    python -m experiments.intriguing.figure_7_vae run       # 9 trainings of vae.py, 15 CPU minutes
    python -m experiments.intriguing.figure_7_vae render

The paper says that bits affect a variational autoencoder much less than contrastive learning; the curve's
values are not printed. Ours is trained on the images, with the encoder and for the epochs of Figure 7's scale `cpu`.
"""

import statistics
import sys

from experiments import harness
from experiments.harness import Claim, Results, gates
from experiments.intriguing import figure_7

BITS, SEEDS, EPOCHS = (0, 8, 12), (0, 1, 2), 20  # as long as Figure 7 at cpu


def measure() -> dict:
    """Measure bits -> row of the evaluation -> linear top-1 of each seed, percent."""
    from experiments.intriguing import vae

    found: dict = {}
    for bits in BITS:
        for seed in SEEDS:
            rows = vae.measure(bits, scale="cpu", seed=seed, epochs=EPOCHS)["evaluations"]
            for row, columns in rows.items():
                found.setdefault(str(bits), {}).setdefault(row, []).append(100 * columns["linear"]["top1"])
    return found


def page(found: dict) -> list[str]:
    """Write accuracy by bits, each row mean ± standard deviation."""
    lines = [
        (row, *(f"{statistics.mean(of[row]):.1f} ± {statistics.stdev(of[row]):.1f}" for of in found.values()))
        for row in next(iter(found.values()))
    ]
    title = "Linear top-1 over random bits, percent, mean ± standard deviation of 3 seeds."
    return [title, "", *harness.markdown(["encoder", *(f"{bits} bits" for bits in found)], lines)]


def spared(found: dict) -> list[float]:
    """Return, of the accuracy above chance (10 %), the share that 12 bits take: NT-Xent's less the autoencoder's, a
    seed each.

    A share, as the two start from different accuracies and cannot fall below chance.
    """

    def lost(clean, with_bits):
        return [(a - b) / (a - 10.0) for a, b in zip(clean, with_bits, strict=True)]

    results = Results(figure_7.TABLE, "cpu")
    theirs = [[results.values("NT-Xent", bits).get(str(seed)) for seed in SEEDS] for bits in (0, 12)]
    if None in (*theirs[0], *theirs[1]):
        return []
    return [
        a - b for a, b in zip(lost(*theirs), lost(found["0"]["trained"], found["12"]["trained"]), strict=True)
    ]


def above_untrained(found: dict) -> list[float]:
    """Return what the autoencoder with 12 bits has learnt of the classes, points above its first weights."""
    return [a - b for a, b in zip(found["12"]["trained"], found["12"]["untrained"], strict=True)]


CONTROLS = gates.lacking(
    "220 steps of Adam, untuned; with 12 bits 12 of the 13 channels of the likelihood are bits, and the untrained"
    " encoder is as accurate: a tuned rate, a longer training and a likelihood of the image alone are missing"
)


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed={
        "settings": "none is printed: 64 latents, Adam 1e-3, beta 1, a Bernoulli variable a pixel, no augmentation",
        "cpu": "digits, 20 epochs, batch 128, a decoder of width 16",
    },
    claims=(
        Claim(
            "A variational autoencoder loses less to shared bits than contrastive learning",
            "share of the accuracy above chance that 12 bits take, NT-Xent - autoencoder",
            spared,
            gates=(CONTROLS,),
        ),
        Claim(
            "With the bits it still learns the classes",
            "linear top-1 with 12 bits, trained - untrained, points",
            above_untrained,
            gates=(CONTROLS,),
            ours=True,
        ),
    ),
    measure=measure,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
