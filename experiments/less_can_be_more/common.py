"""What the figures of Less can be more share: CIFAR-100 (small sets at small scales) over the number of negatives.

All figures of a scale but ``paper`` read the same runs.
"""

import statistics

from experiments import harness

METHODS = {"SimCLR": "simclr", "ReLIC": "relic"}
MEASURED = " --config.gradient_snr.decay=0.99 --config.log.every=8" + harness.brief(
    geometry={"name": "geometry"}
)
# ReLIC's published head has 11 million parameters, two hundred times those of the encoder that meets digits.
NARROW = ' --config.projector.widths="(512,256,128)"'
SCREENS = {
    "small": harness.screen(geometry={"name": "geometry"}),
    "small_mnist": harness.screen(few_labels=harness.OWN_DRAWS, geometry={"name": "geometry"}),
}
NEGATIVES = {
    "gpu": {"SimCLR": (1, 2, 10, 100, 0), "ReLIC": (1, 2, 10, 100, 0)},
    "small": {"SimCLR": (1, 2, 5, 10, 50, 0), "ReLIC": (1, 5, 0)},
    "small_mnist": {"SimCLR": (1, 2, 10, 0), "ReLIC": (1, 0)},
    "cpu": {"SimCLR": (1, 2, 8, 32, 0), "ReLIC": (1, 0)},
    "smoke": {"SimCLR": (2,)},
}
ASSUMED = {
    "tau, learning rate": "1.0 and 1.2 (cpu: 0.003), the only ones printed (Figure 4's), where nothing is swept",
    "ReLIC's weight of the invariance": "1 where it is not swept",
    "scores": "cosine, as SimCLR's; embeddings are not said to be normalised",
    "which negatives": "K of both views of the other images (SimCLR), of the other view (ReLIC)",
    "other settings": "SimCLR's: linear scaling, 10 epochs of warm-up, weight decay 1e-6, colour strength 0.5",
    "ReLIC's head": "'4092' is read as 4,096",
    "gpu": "ResNet-18, 200 epochs; no sweep",
    "small": "CIFAR-10, 5 epochs, batch 128, AdamW; ReLIC's head is 512-256-128, its tau 1; for each number of"
    " negatives the rate is chosen from (1/2, 1, 2) x 0.001 sqrt(batch), with it SimCLR's tau from 0.2 and 1, ReLIC's"
    " weight from 1 and 20",
    "small_mnist": "as small, on MNIST at 14 x 14 pixels; rates from (1/2, 1, 2) x 0.00025 sqrt(batch); chosen by 10"
    " labels a class and two seeds",
    "cpu": "digits, batch 128, 20 epochs, AdamW; ReLIC's head is 512-256-128; no sweep",
}


def column(k: int) -> str:
    """Return a column's name; ``standard`` is the paper's word for all negatives."""
    return str(k) if k else "standard"


def runs(scale: str) -> dict[tuple[str, str], str]:
    """Return the cells that all figures share."""
    short = " --config.train.duration='20 epochs'" if scale == "cpu" else ""
    narrow = NARROW if scale in (*harness.SMALL, "cpu") else ""
    measured = SCREENS.get(scale, MEASURED)
    return {
        (
            name,
            column(k),
        ): f"configs/few_negatives_cifar100.py:method={METHODS[name]},k={k},scale={scale}{short}"
        f"{narrow if name == 'ReLIC' else ''}{measured}"
        for name, negatives in NEGATIVES[scale].items()
        for k in negatives
    }


def published(methods: dict[str, tuple[int, ...]], overrides: str = "") -> dict[tuple[str, str], str]:
    """Return the cells of a figure at the scale ``paper``: method -> negatives."""
    return {
        (name, column(k)): f"configs/few_negatives_cifar100.py:method={METHODS[name]},k={k}{overrides}"
        for name, negatives in methods.items()
        for k in negatives
    }


def difference(row: str, one: str, other: str, heading: str | None = None):
    """Return the evidence: a method's number with ``one`` count of negatives less that with ``other``, a seed each."""
    return lambda results: results.differences((row, one), (row, other), heading)


def best(row: str, column: str):
    """Return the evidence: a method's number with a count of negatives less that with each other count."""
    return lambda results: harness.above_all(
        results, (row, column), [cell for cell in results.cells if cell[0] == row]
    )


def correlation(results: harness.Results, row: str) -> list[float]:
    """Compute Pearson's correlation of the first two headings over a method's numbers of negatives: one number a
    seed."""
    first, second = list(results.table.metric)[:2]
    columns = [c for r, c in results.cells if r == row]
    pairs = [(results.values(row, c, first), results.values(row, c, second)) for c in columns]
    seeds = set.intersection(*(set(values) for pair in pairs for values in pair)) if len(pairs) > 2 else set()
    return [
        statistics.correlation(*zip(*((x[s], y[s]) for x, y in pairs), strict=True)) for s in sorted(seeds)
    ]


def over_negatives(heading: int = 0):
    """Return what draws a heading, a line a method over the number of negatives; ``standard`` at the right end."""

    def draw(results: harness.Results):
        of = list(results.table.metric)[heading]
        figure, axes = harness.panel()
        columns = sorted(
            {c for _, c in results.cells}, key=lambda c: (c == "standard", c == "standard" or int(c))
        )
        for row in dict.fromkeys(r for r, _ in results.cells):
            values = {n: list(results.values(row, c, of).values()) for n, c in enumerate(columns)}
            known = {n: seeds for n, seeds in values.items() if seeds}
            harness.bars(axes, known, known.values(), label=row)
        axes.set_xticks(range(len(columns)), columns)
        axes.set(xlabel="negatives of a query", ylabel=of)
        axes.legend(frameon=False)
        return figure

    return draw
