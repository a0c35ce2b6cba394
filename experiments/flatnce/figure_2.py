"""FlatNCE (Chen et al. 2021), Figure 2: accuracy by batch size, FlatCLR against SimCLR.

    python -m experiments.flatnce.figure_2 run       # --scale=paper|gpu|cpu; skips what is done
    python -m experiments.flatnce.figure_2 render

The paper claims that FlatCLR is better at every batch size and that at batch 16 it is as good as SimCLR at 128. Both
methods have the same budget of epochs and the learning rate that their batch size gives. At small scales each cell
chooses its rate from half, once and twice that, on a fifth of the training images.
"""

import sys

from experiments import harness
from experiments.harness import Claim, Results, gates
from experiments.harness.judging import judge

METHODS = {"SimCLR": "simclr", "FlatCLR": "flatclr"}
BATCHES = {
    "paper": (16, 32, 64, 128, 256),
    "gpu": (16, 64, 128, 256),
    **dict.fromkeys(harness.SMALL, (16, 64, 256)),
    "cpu": (16, 64, 256),
    "smoke": (32,),
}
OWN = {
    **dict.fromkeys(harness.SMALL, harness.screen()),
    "cpu": " --config.train.duration='20 epochs' --config.schedule.scaling=sqrt"
    " --config.schedule.learning_rate=0.000265" + harness.BRIEF,
}

LINEAR = "linear top-1, %"


def gap(results: Results, batch: int) -> list[float]:
    """Return FlatCLR - SimCLR, a seed each."""
    return results.differences(("FlatCLR", str(batch)), ("SimCLR", str(batch)))


def gaps(results: Results) -> list[list[float]]:
    """Return the gap at every batch size that both were run at."""
    found = (gap(results, batch) for batch in sorted({int(column) for _, column in results.cells}))
    return [seeds for seeds in found if seeds]


def shrinkage(results: Results) -> list[float]:
    """Return how much less FlatCLR loses than SimCLR between the largest and the smallest batch."""
    batches = [int(column) for _, column in results.cells]
    small, large = gap(results, min(batches)), gap(results, max(batches))
    return [a - b for a, b in zip(small, large, strict=True)] if small and large else []


def grown(method: str):
    """Return the evidence: a method at the largest batch less at the smallest, a seed each."""

    def evidence(results: Results) -> list[float]:
        batches = [int(column) for _, column in results.cells]
        return results.differences((method, str(max(batches))), (method, str(min(batches))))

    return evidence


def eightfold(results: Results, method: str = "FlatCLR") -> list[float]:
    """Return a method at the smallest batch less SimCLR at eight times that, or the next that was run, plus one
    point."""
    batches = sorted({int(column) for _, column in results.cells})
    larger = next((b for b in batches if b >= 8 * batches[0]), batches[-1])
    return [d + 1 for d in results.differences((method, str(batches[0])), ("SimCLR", str(larger)))]


def not_simclr_too(results: Results, half: float) -> str:
    """Ask that SimCLR itself, which takes more steps at a small batch, does not match its large batch so."""
    own = Claim("", "", lambda read: eightfold(read, "SimCLR"))
    return "SimCLR at the smallest batch meets it too" if judge(own, results).word == "holds" else ""


ALL = gates.ran(*((name, batch) for name in METHODS for batch in ("16", "64", "256")))
SHORT = gates.lacking(
    "steps: at one number of epochs, 5 or 20, batch 16 takes 16 times the steps of 256",
    (*harness.SMALL, "cpu"),
)


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions for small scales, written before any run. MNIST: SimCLR's median W falls below 0.5 at batch 16 and 64, and
FlatCLR is better there, by 0.5 to 3 points with 10 labels a class, less with all; nothing at 256. CIFAR-10 at 16
pixels: W stays above 0.5 in 5 epochs, so that its columns are outside the claims' regime, and the methods differ by
less than a point. AdamW divides a common scale out of the gradient: what is seen is the relative weight of queries. A
surprise would be a gap of more than a point at batch 256, or FlatCLR worse by a point anywhere.
""",
    read_after="""
"Matches" is read as no worse by a point. Before MNIST's runs were complete it was read as equal within a point, which
FlatCLR failed by being 3 points better with 10 labels a class: at one number of epochs a batch of 16 takes 16 times the
steps of 256. SimCLR gains by them too, so the figure says which batch to take more than which loss.

Two claims of section 4, on each method's own small and large batches, were added after all of these runs, when a reader
missed them: they had no prediction. A later reader showed that they are not judged by these runs: with 10 labels a
class FlatCLR at batch 256 is 2.7 points below batch 16, by all labels 0.2 and by kNN nothing, and a batch of 16 takes
16 times the steps. They wait for cells of equal steps.
""",
    runs={
        scale: {
            (name, str(batch)): f"configs/flatclr_cifar10.py:method={method},scale={scale}"
            f" --config.train.batch_size={batch}{OWN.get(scale, '')}"
            for name, method in METHODS.items()
            for batch in batches
            if scale != "smoke" or name == "FlatCLR"
        }
        for scale, batches in BATCHES.items()
    },
    metric={
        LINEAR: "trained.linear.top1 %",
        "kNN top-1, %": "trained.knn.top1 %",
        "ESS at the end": "metrics.ess",
    },
    also=harness.FEW_LABELS,
    curves=("ess", "ess_with_positive", "info_nce"),
    sweep={scale: {"schedule.learning_rate": tried} for scale, tried in harness.ADAMW_RATES.items()},
    reported={
        "linear top-1, %": {(name, str(b)): None for name in METHODS for b in BATCHES["paper"]}
    },  # a drawn curve
    assumed={
        "epochs": "100; the paper does not print CIFAR's (divergence 'after 50 epochs' shows there are more)",
        "batch sizes": "16, 128 and 256 are printed, 32 and 64 are ours",
        "learning rate": "0.3 x batch / 256, SimCLR's; the paper finds its own at the base batch by a grid, not printed"
        " (`figure_2_tuned` gives both methods one)",
        "small, small_mnist": "5 epochs, AdamW, rate chosen for each cell from (1/2, 1, 2) x 0.001 (MNIST: 0.00025)"
        " sqrt(batch)",
        "cpu": "digits, 20 epochs, AdamW with lr 0.003 at batch 128 and the square root of the batch elsewhere",
    },
    claims=(
        Claim(
            "FlatCLR loses less than SimCLR as the batch shrinks",
            "gap at the smallest batch less gap at the largest, points",
            shrinkage,
            gates=(ALL, gates.headroom, gates.regime("SimCLR", "16"), gates.tuned),
        ),
        Claim(
            "FlatCLR is better at every batch size",
            "FlatCLR - SimCLR at each batch size, points",
            gaps,
            by="each",
            gates=(ALL, gates.headroom, gates.regime("SimCLR"), gates.tuned),
        ),
        Claim(
            "FlatCLR at batch 16 matches SimCLR at 128 (8 times)",
            "FlatCLR at the smallest batch - SimCLR at 8 times that or the next larger, plus one, points",
            eightfold,
            gates=(ALL, not_simclr_too, gates.room_to_differ, gates.regime("SimCLR", "16"), gates.tuned),
        ),
        *(
            Claim(
                claim,
                f"{method}, largest batch - smallest, points",
                grown(method),
                gates=(ALL, SHORT, gates.headroom, gates.regime("SimCLR", "16"), gates.tuned),
            )
            for method, claim in (
                ("SimCLR", "SimCLR is better at large batches: it degrades as the batch shrinks (section 4)"),
                ("FlatCLR", "FlatCLR, too, is better at large batches (section 4)"),
            )
        ),
        Claim(
            "Until epoch 50 all models do alike, then they part (appendix C)",
            "linear top-1 at epoch 50 and at the end, FlatCLR - SimCLR, points",
            needs="trainings of 100 epochs and more: scale gpu",
        ),
    ),
    draw=harness.lines("batch size", log=True),
)


if __name__ == "__main__":
    sys.exit(harness.main())
