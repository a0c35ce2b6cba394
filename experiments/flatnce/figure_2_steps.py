"""FlatNCE (Chen et al. 2021), section 4: large batches against small ones, at one number of steps.

    python -m experiments.flatnce.figure_2_steps run --scale=small_mnist     # skips what is done
    python -m experiments.flatnce.figure_2_steps render

The paper says that SimCLR and FlatCLR are better at large batches. Figure 2 has one number of epochs for all, so that a
batch of 16 takes 16 times the steps of 256; what is compared there is the number of steps. Here batch 16 trains for one
epoch and batch 256 for sixteen, 3,750 steps each.
"""

import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results, gates

EPOCHS = {16: 1, 256: 16}


def grown(method: str):
    """Return the evidence: a method at batch 256 less at 16, a seed each."""
    return lambda results: results.differences((method, "256"), (method, "16"))


def by_less(results: Results) -> list[float]:
    """Return what SimCLR gains by the large batch less what FlatCLR gains, a seed each."""
    pairs = [grown(method)(results) for method in figure_2.METHODS]
    return [sim - flat for sim, flat in zip(*pairs, strict=True)] if all(pairs) else []


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions, written before any run: batch 256 is 2 to 8 points better with 10 labels a class, for either method, as it
sees sixteen times the images; by kNN 0.5 to 3. The gain is smaller for FlatCLR by 0 to 2 points, as SimCLR is in the
regime of small W at batch 16 alone. A surprise would be a batch of 16 that is as good.
""",
    runs={
        "small_mnist": {
            (name, str(batch)): f"configs/flatclr_cifar10.py:method={method},scale=small_mnist"
            f" --config.train.batch_size={batch}{harness.screen(epochs, few_labels=harness.OWN_DRAWS)}"
            for name, method in figure_2.METHODS.items()
            for batch, epochs in EPOCHS.items()
        }
    },
    metric=figure_2.TABLE.metric,
    also=figure_2.TABLE.also,
    sweep={"small_mnist": figure_2.TABLE.sweep["small_mnist"]},
    chooses=harness.BY_FEW_LABELS,
    choosing_seeds={"small_mnist": 2},
    assumed={
        "steps": "3,750 for all: one epoch at batch 16, sixteen at 256",
        "rate": "chosen for each cell by two seeds; the other settings are Figure 2's",
    },
    claims=(
        *(
            Claim(
                f"At one number of steps {method} is better at large batches (section 4)",
                f"{method}, batch 256 - 16, points",
                grown(method),
                gates=(gates.headroom, gates.tuned),
            )
            for method in figure_2.METHODS
        ),
        Claim(
            "At one number of steps FlatCLR gains less by a large batch than SimCLR",
            "batch 256 - 16, SimCLR's less FlatCLR's, points",
            by_less,
            gates=(gates.headroom, gates.regime("SimCLR", "16"), gates.tuned),
            ours=True,
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
