"""The capacity law of feature suppression: do losses without the ceiling log K escape shared bits?

    python -m experiments.family.capacity run --scale=small_mnist         # skips what is done
    python -m experiments.family.capacity render

InfoNCE's estimate cannot exceed log(2B - 1) nats, and shared random bits give it away: the paper's explanation of why
12 bits ruin a representation (Chen, Luo and Li 2021, figure 7). FlatNCE, DCL and EqCo with a large alpha have no such
ceiling. If the ceiling is the reason they should keep more, and accuracy lost should collapse on one curve over the
bits less log2(2B - 1).
"""

import itertools
import statistics
import sys

from experiments import harness
from experiments.harness import Claim, Results, gates

LINEAR = "linear top-1, %"
LOSSES = {
    "InfoNCE": "method=simclr",
    "FlatNCE": "method=flatclr",
    "EqCo, alpha 65,536": "method=simclr",
    "MACL-a": "method=macl",
    "SWD": "method=swd_hypersphere",
}
ATTENTION = {
    "relative": "method=simclr",
    "scaled": "method=simclr",
}  # attention and scale of the two, exchanged
BITS, TAUS, BATCHES = (0, 4, 8, 12), (0.05, 0.2), (64, 512)
FREE = ("FlatNCE", "EqCo, alpha 65,536")


def spec(loss: str, bits: int, tau: float | None, batch: int, scale: str) -> str:
    """Return the arguments of a cell; SWD has no temperature."""
    own = " --config.margin=eqco --config.margin.alpha=65536" if loss.startswith("EqCo") else ""
    own += f" --config.loss={loss}" if loss in ATTENTION else ""
    at = f" --config.temperature.tau={tau}" if tau else ""
    return (
        f"configs/randbit_mnist.py:bits={bits},{(LOSSES | ATTENTION)[loss]},scale={scale}{own}{at}"
        f" --config.train.batch_size={batch}{harness.screen()}"
    )


def row(loss: str, tau: float | None, batch: int) -> str:
    """Return the name of a row."""
    return ", ".join([loss, *([f"tau {tau}"] if tau else []), f"batch {batch}"])


RUNS = {
    scale: {
        (row(loss, tau, batch), str(bits)): spec(loss, bits, tau, batch, scale)
        for loss, bits, batch in itertools.product(LOSSES, BITS, BATCHES)
        for tau in (TAUS if loss != "SWD" else (None,))
    }
    | {
        (row(loss, 0.05, batch), "8"): spec(loss, 8, 0.05, batch, scale)
        for loss, batch in itertools.product(ATTENTION, BATCHES)
    }
    for scale in ("small_mnist",)
}


def lost(results: Results, loss: str, tau: float | None, batch: int, bits: int) -> list[float]:
    """Return the share of a loss's accuracy above chance that bits take, a seed each."""
    clean = results.values(row(loss, tau, batch), "0").values()
    falls = results.differences((row(loss, tau, batch), str(bits)), (row(loss, tau, batch), "0"))
    return [-fall / (value - 10.0) for fall, value in zip(falls, clean, strict=True)] if falls else []


def kept(results: Results, tau: float, bits: int) -> list[float]:
    """Return the points that the losses without a ceiling keep more than InfoNCE, the mean over them and the
    batches."""
    found = [
        results.differences((row(loss, tau, batch), str(bits)), (row("InfoNCE", tau, batch), str(bits)))
        for loss in FREE
        for batch in BATCHES
    ]
    return [statistics.mean(seed) for seed in zip(*found, strict=True)] if all(found) else []


def attention(results: Results) -> list[float]:
    """Return the points that InfoNCE's attention keeps more than uniform attention, at either scale, batch 64, a seed
    each."""
    pairs = [
        results.differences((row(one, 0.05, 64), "8"), (row(other, 0.05, 64), "8"))
        for one, other in (("InfoNCE", "scaled"), ("relative", "FlatNCE"))
    ]
    return [statistics.mean(seed) for seed in zip(*pairs, strict=True)] if all(pairs) else []


def all_lost(results: Results, tau: float, bits: int) -> list[list[float]]:
    """Return the share that bits take of each loss and batch size, less a half."""
    found = [
        lost(results, loss, tau if loss != "SWD" else None, batch, bits)
        for loss in LOSSES
        for batch in BATCHES
    ]
    return [[share - 0.5 for share in seeds] for seeds in found if seeds]


def colliding(batch: int, bits: int) -> float:
    """Return the expected share of queries whose bits another image of the batch has too."""
    return 1 - (1 - 0.5**bits) ** (batch - 1)


def draw(results: Results):
    """Draw accuracy over the share of queries whose bits collide, a line a loss; hollow: tau 0.2.

    Bars are standard deviations; the line at 10 % is chance.
    """
    figure, axes = harness.panel(5.6, 3.6)
    losses = {loss: f"C{n}" for n, loss in enumerate(LOSSES | ATTENTION)}
    for (loss, colour), tau in itertools.product(losses.items(), TAUS):
        found = sorted(
            (100 * colliding(batch, bits), list(results.values(row(loss, tau, batch), str(bits)).values()))
            for bits, batch in itertools.product(BITS[1:], BATCHES)
            if (row(loss, tau, batch), str(bits)) in results.cells
        )
        if found:
            harness.bars(
                axes, *zip(*found, strict=True),
                label=loss if tau == 0.05 else None,
                color=colour,
                markerfacecolor=colour if tau == 0.05 else "none",
                linestyle="-" if tau == 0.05 else "none",
            )  # fmt: skip
    axes.axhline(10, color="0.6", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"], minor=False)
    axes.minorticks_off()
    axes.set(xlabel="queries whose bits another image of the batch has too, %", ylabel=LINEAR)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted=(
        """
Predictions, written before any run. No: at tau 0.2 every contrastive loss falls to within 5 points of the untrained
network at 12 bits, at batch 64 and at 512, as the bits are the easiest feature for all of them. At tau 0.05 FlatNCE and
EqCo keep 5 points more than InfoNCE at 8 bits, and nothing at 12. SWD falls as they do. A surprise would be any loss
that keeps half of its accuracy at 12 bits.

Judged is the weaker sentence of each: that more than half of what is above chance is lost, and that FlatNCE and EqCo
keep more at all. Changed before any two losses could be compared (three runs of InfoNCE were there): InfoNCE's W is
asked for where a claim is of it, at 8 bits and both batch sizes, and no claim is judged before each loss has run.
""",
        """
If collisions are what matters, the share of queries that collide decides, and not the number of bits: three claims of
it, each committed below before its runs. With 4 bits nearly all queries of a batch of 64 (98 %) share theirs with
another image, so that uniform attention keeps the image too; with 12 bits 1.5 % do, so that attention has next to
nothing to turn to; in batches of 512, where 12 bits collide for 12 %, it has something again, though the paper has it
that no batch size helps. (We expected 20 points or more of the last; that number was left out of the commit by a slip.)
""",
    ),
    read_after=(
        """
The first run of FlatNCE (tau 0.05, batch 64, 8 bits) is at chance, where InfoNCE keeps 72 %: the other way round. An
explanation, written after that run and before its test: bits tell most queries of a small batch apart, and InfoNCE
turns to those whose bits collide, which only the image can tell apart; FlatNCE goes on with all alike. So attention is
what keeps the image: `relative`, W / mean(W), keeps within 10 points of InfoNCE, and `scaled`, mean(W) for all, is
within 10 of FlatNCE, at batch 64; at 512, where nearly all bits collide, all four keep within 10 points.
""",
        """
Read after the runs. At 512 and 8 bits the four lie 18 points apart, not 10: attention helps there too. At tau 0.2 every
loss is at chance, so that their equality says that none escapes, and no more; InfoNCE's weights hardly differ between
queries there (their effective share is 0.96, at tau 0.05 it is 0.05). Why is asked in `sphere`: 8 bits are more than
that temperature resolves. At 12 bits a batch of 512 brings 8 points, with an eighth of the steps. Suspected first was
the linear classifier, which reads chance where neighbours by cosine read 30 % with FlatNCE: on the features of two runs
neither a penalty of a ten-thousandth nor whitening changed it (checked by hand). Nearly all of the features' variance
is that of the bits; neighbours share these, and are then ordered by the image. Confirmed on other images, widths and
seeds: `shared_bits`.
""",
    ),
    runs=RUNS,
    metric={LINEAR: "trained.linear.top1 %", "kNN top-1, %": "trained.knn.top1 %"},
    seeds=harness.SEEDS | dict.fromkeys(harness.SMALL, (0, 1, 2)),  # effects of tens of points
    assumed={
        "settings": "those of the scale and of configs/randbit_mnist.py; MACL's tau is tau0; 5 epochs, one rate"
    },
    claims=(
        Claim(
            "No loss of the family escapes 12 shared bits at tau 0.2",
            "share of the accuracy above chance that 12 bits take, less a half, of each loss and batch size",
            lambda results: all_lost(results, 0.2, 12),
            by="each",
            gates=(
                gates.ran(
                    *(cell for cell in RUNS["small_mnist"] if "tau 0.05" not in cell[0] and cell[1] == "12")
                ),
            ),
        ),
        Claim(
            "Without a ceiling of log K a loss keeps no more at tau 0.2",
            "linear top-1 at 8 bits, all at chance, mean of FlatNCE and EqCo over batches - InfoNCE, points",
            lambda results: kept(results, 0.2, 8),
            expects="within",
            margin=3.0,
        ),
        Claim(
            "At tau 0.05 a loss without a ceiling of log K keeps more",
            "linear top-1 at 8 bits, mean of FlatNCE and EqCo over batches - InfoNCE, points",
            lambda results: kept(results, 0.05, 8),
            gates=tuple(gates.regime(row("InfoNCE", 0.05, batch), "8") for batch in BATCHES),
        ),
        Claim(
            "Attention to queries that are not solved keeps the image, at batch 64",
            "linear top-1 at 8 bits, tau 0.05, weight W less weight 1, mean over scales, points",
            attention,
            gates=(gates.regime(row("InfoNCE", 0.05, 64), "8"),),
        ),
        Claim(
            "Uniform attention keeps the image where nearly all bits collide, 4 bits at batch 64",
            "half, less the share of FlatNCE's accuracy above chance that 4 bits take, tau 0.05",
            lambda results: [0.5 - share for share in lost(results, "FlatNCE", 0.05, 64, 4)],
        ),
        Claim(
            "Attention does not keep it where next to none collide, 12 bits at batch 64",
            "share of InfoNCE's accuracy above chance that 12 bits take, less a half, tau 0.05",
            lambda results: [share - 0.5 for share in lost(results, "InfoNCE", 0.05, 64, 12)],
        ),
        Claim(
            "A larger batch, where more bits collide, gives the image back to attention",
            "linear top-1 at 12 bits, InfoNCE, tau 0.05, batch 512 - 64, points",
            lambda results: results.differences(
                (row("InfoNCE", 0.05, 512), "12"), (row("InfoNCE", 0.05, 64), "12")
            ),
        ),
    ),
    draw=draw,
)


if __name__ == "__main__":
    sys.exit(harness.main())
