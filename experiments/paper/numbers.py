"""The numbers of the paper and of the findings, as their prose names them: words, from the tables' kept records."""

import functools
import itertools
import math
import statistics
from collections.abc import Sequence

from scipy import stats

from experiments.family import bounds as bounds_page
from experiments.family import capacity, few_negatives, gains, second_set, tau_by_batch, yoked
from experiments.family.sphere import resolved
from experiments.flatnce import figure_s2
from experiments.harness import FEW, Results, markdown, table_of
from experiments.harness.gates import room as room_of
from experiments.harness.judging import student
from experiments.harness.ledger import OURS, VERDICTS, of_paper, printed
from experiments.harness.results import measured
from experiments.harness.table import ALL_LABELS, NEIGHBOURS, PAPERS
from experiments.intriguing import figure_b1, figure_b3
from experiments.less_can_be_more import figure_4_fixed

__all__ = [
    "ALL", "FEW", "GAINS", "KNN", "above_chance", "again", "arm", "at_rest", "b3", "between_optimizers", "bounds",
    "ceiling", "colliding", "count", "counts", "difference", "exact",
    "gained", "kept", "kept_by_attention", "knn_leads", "larger", "lead", "leads_at", "learnt_sooner", "left", "mean",
    "on_photographs", "on_sphere", "printed_best", "printed_gain", "reached", "room", "rows",
    "seen", "signal", "sphere", "temperatures", "weight", "with_bits",
]  # fmt: skip

EASY = "small_mnist"
LINEAR = "linear top-1, %"
ALL, KNN = ALL_LABELS, NEIGHBOURS  # paths, which every table's runs have
NAMES = {
    "flatnce": "FlatNCE", "intriguing": "Intriguing Properties", "eqco": "EqCo", "less_can_be_more": "Less can be more",
    "macl": "MACL",
}  # fmt: skip


def interval(values: Sequence[float], decimals: int = 1) -> str:
    """Return the mean and the half-width of its 95 % interval, "+2.0 ± 1.1"."""
    found = student(values)
    return f"{found.mean:+.{decimals}f} ± {found.half():.{decimals}f}"


def lead(batch: int | str, heading: str = FEW) -> str:
    """Return FlatNCE less InfoNCE at a batch size of Figure 2, MNIST, points."""
    return difference("flatnce.figure_2", EASY, ("FlatCLR", str(batch)), ("SimCLR", str(batch)), heading)


def arm(name: str, heading: str = FEW) -> str:
    """Return what MACL's temperature has more than a yoked arm, points; the arm by its letter, "b"."""
    (row,) = (row for row, _ in yoked.TABLE.runs[EASY] if row.startswith(f"({name})"))
    return interval(yoked.against(row, heading)(Results(table_of("family.yoked"), EASY)))


# Optimizer, rate and batch size of what has run.
GAINS = [
    *(
        (optimizer, gains.RATES[0], batch)
        for optimizer in ("AdamW", "LARS", "SGD")
        for batch in gains.BATCHES
    ),
    ("AdamW", gains.RATES[1], 16),
    *(("SGD", gains.RATES[1], batch) for batch in gains.BATCHES),
]


def gained(
    what: str,
    batch: int,
    optimizer: str = "AdamW",
    rate: str = gains.RATES[0],
    measure: str = "10 labels a class",
) -> str:
    """Return what unit ``scale`` or uniform ``attention`` gains by a measure, points."""
    plus, minus = {
        "scale": (gains.UNIT, gains.SMALLER), "attention": (gains.UNIFORM, gains.FOLLOWING),
    }[what]  # fmt: skip
    evidence = gains.effect(plus, minus, optimizer, rate, (batch,))
    cells = [(gains.row(loss, optimizer, rate), f"batch {batch}") for loss in gains.LOSSES]
    return interval(evidence(Results(table_of("family.gains"), EASY).paired(cells).by(measure)))


def between_optimizers() -> str:
    """Return the gain of uniform attention under AdamW less that under SGD, points, own rates, batch 16."""
    results = Results(table_of("family.gains"), EASY)
    rows_of = [gains.row(loss, name, gains.RATES[1]) for name in ("AdamW", "SGD") for loss in gains.LOSSES]
    return interval(gains.interaction(results.paired([(row, "batch 16") for row in rows_of])))


def temperatures() -> str:
    """Return InfoNCE's accuracy over temperatures and batch sizes, and FlatNCE's lead there: 10 labels a class; by
    kNN."""
    results = Results(table_of("family.tau_by_batch"), EASY)

    def cell(tau: float, batch: int) -> str:
        info, flat = ((f"{loss}, tau {tau}", f"batch {batch}") for loss in tau_by_batch.LOSSES)
        if not {info, flat} <= results.cells.keys():
            return "not run"
        leads = [interval(results.differences(flat, info, heading)) for heading in (FEW, KNN)]
        return f"{results.mean(*info):.1f}, {leads[0]}; {leads[1]}"

    taus = (*tau_by_batch.TAUS, tau_by_batch.LARGER)
    body = [(f"{tau}", *(cell(tau, batch) for batch in tau_by_batch.BATCHES)) for tau in taus]
    return rows(["tau", *(f"batch {batch}" for batch in tau_by_batch.BATCHES)], body)


def knn_leads() -> str:
    """Return in how many cells of temperature by batch FlatNCE's lead by kNN has an interval above 0: "0 of 15"."""
    results = Results(table_of("family.tau_by_batch"), EASY)
    found = [
        student(results.differences((row.replace("InfoNCE", "FlatNCE"), column), (row, column), KNN))
        for row, column in results.cells
        if row.startswith("InfoNCE")
    ]
    return f"{sum(one.mean > one.half() for one in found)} of {len(found)}"


def leads_at(low: float, high: float) -> str:
    """Return the range of FlatNCE's mean leads where InfoNCE's median W ends in [low, high), 10 labels a class."""
    results, found = Results(table_of("family.tau_by_batch"), EASY), []
    for info in results.cells:
        flat = info[0].replace("InfoNCE", "FlatNCE"), info[1]
        if flat != info and flat in results.cells and low <= results.mean(*info, "metrics.w_p50") < high:
            found.append(statistics.mean(results.differences(flat, info)))
    return f"{min(found):.1f} to {max(found):.1f}"


def on_photographs() -> str:
    """Return InfoNCE's accuracy and W over temperatures on CIFAR-10, batch 16, and FlatNCE's lead; linear / kNN."""
    results = Results(table_of("family.second_set"), "small")

    def line(tau: float) -> tuple[str, ...]:
        info, flat, longer = ((row, f"tau {tau}") for row in (*second_set.LOSSES, second_set.LONGER))
        if not {info, flat} <= results.cells.keys():
            return (f"{tau}", *["not run"] * 5)
        both = LINEAR, KNN
        return (
            f"{tau}",
            " / ".join(f"{results.mean(*info, heading):.1f}" for heading in both),
            f"{results.mean(*info, 'metrics.w_p50'):.2f}",
            *(interval(results.differences(flat, info, heading)) for heading in both),
            " / ".join(f"{results.mean(*longer, heading):.1f}" for heading in both)
            if longer in results.cells
            else "",
        )

    head = [
        "tau", "InfoNCE, 5 epochs", "its W", "FlatNCE - InfoNCE, linear", "by kNN", "InfoNCE, 20 epochs",
    ]  # fmt: skip
    return rows(head, [line(tau) for tau in second_set.TAUS])


def larger() -> str:
    """Return FlatNCE's mean norm of a query's gradient over InfoNCE's: SGD, batch 16, over the training."""
    results = Results(table_of("family.gains"), EASY)

    def norm(loss: str) -> float:
        cell = (gains.row(loss, "SGD", gains.RATES[0]), "batch 16")
        curves = results.curve(*cell, "query_gradient_norm").values()
        return statistics.mean(statistics.mean(values) for _, values in curves)

    return f"{norm('FlatNCE') / norm('InfoNCE'):.1f}"


def kept() -> str:
    """Return what losses reach with 8 shared bits at tau 0.05, linear / kNN in percent, by batch size."""
    results = Results(table_of("family.capacity"), EASY)
    body = []
    for loss in ("InfoNCE", "relative", "EqCo, alpha 65,536", "scaled", "FlatNCE"):
        cells = [(capacity.row(loss, 0.05, batch), "8") for batch in capacity.BATCHES]
        shown = [
            " / ".join(f"{results.mean(*cell, heading):.1f}" for heading in (LINEAR, KNN))
            if cell in results.cells
            else "—"
            for cell in cells
        ]
        body.append((loss, *shown))
    return rows(["loss", *(f"batch {batch}" for batch in capacity.BATCHES)], body)


def reached(loss: str, bits: int, batch: int = 64, tau: float = 0.05, heading: str = LINEAR) -> str:
    """Return what a loss reaches with shared bits, MNIST, percent."""
    return mean("family.capacity", EASY, capacity.row(loss, tau, batch), str(bits), heading)


def again(scale: str, loss: str) -> str:
    """Return what a loss keeps more than FlatNCE with 8 bits in the confirmation at a scale, points."""
    return interval(Results(table_of("family.shared_bits"), scale).differences((loss, "8"), ("FlatNCE", "8")))


def kept_by_attention() -> str:
    """Return what InfoNCE's attention keeps more than uniform attention with 8 bits at batch 64, points."""
    return interval(capacity.attention(Results(table_of("family.capacity"), EASY)), 0)


def colliding(batch: int, bits: int, decimals: int = 0) -> str:
    """Return the share of queries whose bits another image of the batch has too, percent."""
    return f"{100 * capacity.colliding(batch, bits):.{decimals}f}"


def mean(table: str, scale: str, row: str, column: str, heading: str, decimals: int = 1) -> str:
    """Return the mean of a cell.

    Raises:
      LookupError: it has not run.
    """
    found = Results(table_of(table), scale).mean(row, column, heading)
    if math.isnan(found):
        raise LookupError(f"{table}, {scale}: {row}, {column} has not run")
    return f"{found:.{decimals}f}"


def difference(
    table: str,
    scale: str,
    one: tuple[str, str],
    other: tuple[str, str],
    heading: str = LINEAR,
    decimals: int = 1,
) -> str:
    """Return how much more one cell has than another, paired over seeds."""
    return interval(Results(table_of(table), scale).differences(one, other, heading), decimals)


def learnt_sooner() -> str:
    """Return what batch 256 has more than 1,024 after an epoch in FlatNCE's Figure S2, points of kNN."""
    (values,) = figure_s2.early(Results(table_of("flatnce.figure_s2"), "small"))
    return interval(values)


def weight(batch: int | str, decimals: int = 2) -> str:
    """Return InfoNCE's median W at the end of training at a batch size of Figure 2, MNIST."""
    return mean("flatnce.figure_2", EASY, "SimCLR", str(batch), "metrics.w_p50", decimals)


def room(table: str, scale: str, few: bool = False) -> str:
    """Return the headroom, points of linear top-1: supervised less the best cell, or that less the best baseline.

    The smaller of the two; ``few``: by 10 labels a class.
    """
    return f"{room_of(Results(table_of(table), scale), few)['room']:.1f}"


def counts() -> str:
    """Return the table of verdicts by paper, and of our own predictions."""
    found = {paper: verdicts(paper) for paper in (*NAMES, OURS)}
    lines = [(name, *(found[paper].count(v) for v in VERDICTS)) for paper, name in NAMES.items()]
    papers = [v for paper in NAMES for v in found[paper]]
    lines += [("all five", *(papers.count(v) for v in VERDICTS))]
    lines += [("our own predictions", *(found[OURS].count(v) for v in VERDICTS))]
    return rows(["", *VERDICTS], lines)


@functools.cache
def verdicts(paper: str) -> list[str]:
    """Return the verdict of each claim that a paper prints, read once."""
    return [row.said.word for row in printed(of_paper(paper))]


def count(*verdict: str) -> int:
    """Return how many claims of the five papers have one of these verdicts; all without any."""
    words = [v for paper in PAPERS if paper != OURS for v in verdicts(paper)]
    return sum(v in verdict for v in words) if verdict else len(words)


def b3(row: str, what: str) -> str:
    """Return a cell of Figure B.3 at 12 bits, nats: what is "resolved", or was "untrained", and what is "there"."""
    heading = {
        "resolved": figure_b3.RESOLVED, "untrained": figure_b3.UNTRAINED, "there": figure_b3.THERE,
    }[what]  # fmt: skip
    return mean("intriguing.figure_b3", "small", row, "12", heading, 2)


def ceiling(batch: int) -> str:
    """Return the most that a batch of two views can show, log(2 batch - 1), nats."""
    return f"{math.log(2 * batch - 1):.2f}"


def sphere(tau: float, dimensions: int) -> str:
    """Return what a uniform distribution on a sphere resolves at a temperature, -log E exp((cos - 1) / tau), nats."""
    return f"{resolved(tau, dimensions):.2f}"


def on_sphere() -> str:
    """Return what shared bits leave at batch 512, by the nats that the sphere resolves: linear top-1 / kNN, percent."""
    body = []
    for tau, bits in ((0.05, 8), (0.1, 8), (0.2, 4), (0.2, 8), (0.3, 6)):
        cells = [
            " / ".join(
                mean("family.sphere", EASY, loss, f"tau {tau}, {bits} bits", heading)
                for heading in (LINEAR, "kNN top-1, %")
            )
            for loss in ("InfoNCE", "FlatNCE")
        ]
        body.append((f"{tau}", f"{bits}", sphere(tau, 64), nats(bits), *cells))
    return rows(
        ["tau", "bits", "nats that the sphere resolves", "nats of the bits", "InfoNCE", "FlatNCE"], body
    )


def nats(bits: int) -> str:
    """Return the nats of random bits."""
    return f"{bits * math.log(2):.2f}"


def above_chance() -> str:
    """Return the most that 12 bits leave of a setting of Figure B.1 above chance, points."""
    results = Results(table_of("intriguing.figure_b1"), "small")
    left = [results.mean(row, column, LINEAR) for row, column in results.cells if column == "12"]
    return f"{max(left) - figure_b1.CHANCE:.1f}"


def rows(head: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    """Return a table of Markdown."""
    return "\n".join(markdown(head, body))


def signal(k: int, tau: float, name: str = "ratio", loss: str = "info_nce", point: str = "end") -> str:
    """Return the squared "ratio" of few negatives as a share of that of all, or the "cosine", at fixed weights."""
    rows_of = measured(figure_4_fixed.TABLE) or {}
    values = figure_4_fixed.of(rows_of, name, loss=loss, tau=tau, point=point, k=k)
    return f"{statistics.mean(values):.2f}"


def at_rest() -> str:
    """Return the squared ratios of the arms of few negatives, by the negatives that the weights were trained with."""
    rows_of = measured(few_negatives.TABLE) or {}

    def of(arm: str, weights: str) -> str:
        values = figure_4_fixed.of(rows_of, "ratio", weights=weights, arm=arm)
        return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"

    return rows(
        ["gradient with", "at weights trained with all 254", "at weights trained with ten"],
        [(arm, *(of(arm, weights) for weights in few_negatives.TRAINED)) for arm in few_negatives.ARMS],
    )


def bounds() -> str:
    """Return FlatNCE's Table 1 as measured: what lies above the truth, bias and standard deviation in nats."""
    head = [
        "estimate",
        "printed: bias / stability",
        "settings above the truth by 4 s.e.",
        "bias, nats",
        "s.d., nats",
    ]
    return rows(head, [row[1:] for row in bounds_page.estimates(bounds_page.read())])


def exact(name: str, negatives: int) -> str:
    """Return an estimate of 10 nats with the exact critic."""
    return f"{bounds_page.read()['exact'][name, negatives]:.2f}"


def left(nats: int) -> str:
    """Return how EqCo's estimate changes over K, trained critics, in percent of how InfoNCE's does."""
    share = {float(k): v for k, v in bounds_page.read()["left"].items()}[float(nats)]
    return f"{100 * statistics.mean(share):.0f}"


def printed_best(loss: str) -> float:
    """Return the best that MACL's Table 2 prints of a loss on STL-10, over temperatures, percent."""
    printed = table_of("macl.table_2").reported[LINEAR]
    return max(value for (row, column), value in printed.items() if row == loss and column.startswith("tau0"))


def printed_gain(one: str, other: str) -> str:
    """Return what MACL's Table 2 prints as one loss's mean lead over another on CIFAR-10, over batch sizes, points."""
    printed = table_of("macl.table_2").reported[LINEAR]
    batches = [column for row, column in printed if row == one and column.startswith("batch")]
    return f"{statistics.mean(printed[one, b] - printed[other, b] for b in batches):.1f}"


def seen(table: str, scale: str, heading: str = LINEAR, n: int = 5) -> str:
    """Return the half-width of a difference of two cells at n seeds, points; its variance is the mean over pairs."""
    results = Results(table_of(table), scale)
    pairs = [results.differences(*pair, heading) for pair in itertools.combinations(results.cells, 2)]
    variance = statistics.mean(statistics.variance(sample) for sample in pairs if len(sample) > 1)
    return f"{stats.t.ppf(0.975, n - 1) * math.sqrt(variance / n):.1f}"


def with_bits() -> str:
    """Return what settings reach on CIFAR-10 without and with 12 shared bits: linear / kNN, percent."""
    results = Results(table_of("intriguing.figure_b1"), "small")
    both = [row for row, column in results.cells if column == "12" and (row, "0") in results.cells]
    body = [
        (
            row,
            *(
                " / ".join(f"{results.mean(row, bits, heading):.1f}" for heading in (LINEAR, KNN))
                for bits in ("0", "12")
            ),
        )
        for row in both
    ]
    return rows(["setting", "no bits", "12 bits"], body)
