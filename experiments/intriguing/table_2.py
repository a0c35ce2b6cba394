"""Intriguing Properties (Chen, Luo and Li 2021), Table 2: NT-Xent on ImageNet by head depth, batch size and epochs.

    python -m experiments.intriguing.table_2 run       # --scale=paper|gpu|small|cpu; skips what is done
    python -m experiments.intriguing.table_2 render

The paper claims that with a learning rate that follows the square root of the batch size (and with a deep head) the
batch size matters little.
"""

import sys

from experiments import harness
from experiments.flatnce import figure_2
from experiments.harness import Claim, Results, gates
from experiments.intriguing import table_a1

EPOCHS, BATCHES, LAYERS = (100, 200, 400, 800), (512, 1024, 2048), (2, 3, 4)

LINEAR = "linear top-1, %"


def over_batch(results: Results) -> list[float]:
    """Return accuracy at the largest batch less that at a quarter of it, a seed each."""
    found = {}
    for row, column in results.cells:
        head, batch = row.split(", batch ")
        found.setdefault((head, column), []).append(int(batch))
    (head, column), batches = max(found.items(), key=lambda item: len(item[1]))
    large = max(batches)
    small = next((batch for batch in sorted(batches) if 4 * batch >= large), large)
    return results.differences((f"{head}, batch {large}", column), (f"{head}, batch {small}", column))


def depth_and_batch(results: Results) -> list[float]:
    """Return what the largest batch brings over the smallest with 2 layers less with 4, a seed each."""
    columns = sorted({column for _, column in results.cells}, key=int)
    gains = []
    for layers in ("2", "4"):
        of = f"{layers} layers, batch "
        batches = sorted(int(row.removeprefix(of)) for row, column in results.cells if row.startswith(of))
        ends = sorted(set(batches))
        if len(ends) < 2:
            return []
        gains.append(results.differences((f"{of}{ends[-1]}", columns[-1]), (f"{of}{ends[0]}", columns[-1])))
    return [shallow - deep for shallow, deep in zip(*gains, strict=True)] if all(gains) else []


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions for scale small (CIFAR-10, 5 epochs, AdamW at a rate of sqrt(batch)), written before any run: batch 512 is 1
to 4 points below 128 with 2 layers, since so short a run makes its steps count, and so the claim fails here; with 4
layers the gap is within a point of that. A surprise would be 512 ahead.
""",
    read_after="""
Read after these runs: 512 is 0.8 points below 128 with 2 layers and 0.9 with 4 (half-widths 1.1 and 1.2), less than the
1 to 4 that were predicted for 2; whether within a point is undecided, and so is whether a deeper head changes it.
""",
    runs={
        "paper": {
            (
                f"{layers} layers, batch {batch}",
                str(epochs),
            ): f"configs/intriguing_imagenet.py:layers={layers}"
            f" --config.train.batch_size={batch} --config.train.duration='{epochs} epochs'"
            for layers in LAYERS
            for batch in BATCHES
            for epochs in EPOCHS
        },
        "gpu": {
            (
                f"{layers} layers, batch {batch}",
                "200",
            ): f"configs/intriguing_cifar10.py:layers={layers},scale=gpu --config.train.batch_size={batch}"
            for layers in (2, 4)
            for batch in (128, 512)
        },
        "small": {  # batch 128 is Table A.1's at the scale's own rate
            (
                f"{layers} layers, batch {batch}",
                "5",
            ): f"configs/intriguing_cifar10.py:layers={layers},scale=small"
            f" --config.train.batch_size={batch}{harness.screen()}"
            for layers in (2, 4)
            for batch in (128, 512)
        },
        "cpu": {  # the runs of two other files
            (f"{layers} layers, batch 128", "20"): table_a1.TABLE.runs["cpu"]["NT-Xent", f"{layers} layers"]
            for layers in (2, 4)
        }
        | {
            (f"FlatNCE's, batch {batch}", "20"): figure_2.TABLE.runs["cpu"]["SimCLR", batch]
            for batch in ("16", "64", "256")
        },
    },
    metric={LINEAR: "trained.linear.top1 %"},
    also={"small": harness.FEW_LABELS["small"]},
    reported={
        "linear top-1, %": harness.grid(
            [f"{layers} layers, batch {batch}" for layers in LAYERS for batch in BATCHES],
            EPOCHS,
            (
                (65.4, 67.3, 68.7, 69.3),
                (65.6, 67.6, 68.8, 69.8),
                (65.3, 67.6, 69.0, 70.1),
                (66.6, 68.4, 70.0, 71.0),
                (66.8, 68.9, 70.1, 70.9),
                (66.8, 69.1, 70.4, 71.3),
                (66.8, 68.8, 70.0, 70.7),
                (67.0, 69.0, 70.4, 70.9),
                (67.0, 69.3, 70.4, 71.3),
            ),
        )
    },
    assumed={
        "learning rate, tau": "LARS 0.075 x sqrt(batch), tau 0.2: the authors, google-research/simclr issue 166",
        "other settings": "SimCLR's: weight decay 1e-6, 10 epochs of warm-up, cosine, colour strength 1, blur",
        "gpu": "CIFAR-10 with ResNet-18, 200 epochs",
        "small": "CIFAR-10, 5 epochs, AdamW at 0.00025 sqrt(batch): the rule is what is asked about, so no sweep",
        "cpu": "digits, 20 epochs, AdamW; batch sizes are SimCLR of FlatNCE's Figure 2 (its tau, a rate of"
        " sqrt(batch))",
    },
    claims=(
        Claim(
            "With square-root learning rate scaling the batch size matters little",
            "NT-Xent at the largest batch - at a quarter of it, points",
            over_batch,
            expects="within",
            margin=1.0,
            gates=(
                gates.lacking(
                    "its runs at cpu are FlatNCE's Figure 2's (tau 0.1, no norm in the head), another experiment",
                    ("cpu",),
                ),
                gates.headroom,
            ),
        ),
        Claim(
            "A deeper head makes the batch matter less",
            "linear top-1, largest batch - smallest, points: 2 layers less 4 layers, at the longest training",
            depth_and_batch,
            gates=(gates.headroom,),
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
