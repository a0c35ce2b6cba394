"""A table as a page of Markdown, with a figure."""

import math
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from experiments.harness.jobs import choose, choosing, chosen_by, score_of
from experiments.harness.ledger import ledger_rows
from experiments.harness.results import Results, measured
from experiments.harness.table import ROOT, SCALES, Cell, Doubtful, Table, command

PAGES = SCALES[:-1]  # what a page shows
ALWAYS = ("paper", "cpu")  # also where nothing was run
COMMAND = ("    ", "python -m ")  # what a docstring's line of a command begins with


def number(value: float | None, decimals: int | None = None) -> str:
    """Show a printed number as it was printed; a lost one stays empty."""
    if value is None:
        return "—"
    shown = f"{float(value):g}" if decimals is None else f"{float(value):.{decimals}f}"
    return f"{shown}{' ?' if isinstance(value, Doubtful) else ''}"


def _decimals(values: Iterable[float | None]) -> int:
    """Count the decimals that a table prints: those of its longest number."""
    return max((len(f"{float(v):g}".partition(".")[2]) for v in values if v is not None), default=0)


def summary(values: Iterable[float], percent: bool = False) -> str:
    """Write mean ± standard deviation (n); a dash where nothing was run."""
    values = list(values)
    if not values:
        return "—"
    mean = statistics.mean(values)
    digits = 1 if percent or abs(mean) >= 10 else 3
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{spread} ({len(values)})"


def markdown(head: Iterable, rows: Iterable[Iterable]) -> list[str]:
    """Write a table of Markdown, the first column to the left."""
    head = [str(cell) for cell in head]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def _ordered(cells: Iterable[Cell]) -> tuple[list[str], list[str]]:
    """Return rows and columns as they come; columns that are numbers by size."""
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True)) if cells else ([], [])
    if all(re.fullmatch(r"[\d.]+", column) for column in columns):
        columns.sort(key=float)
    return rows, columns


def section(table: Table, scale: str) -> list[str]:
    """Write a scale's part of the page: a table for each heading, ours beside the paper's."""
    results, lines = Results(table, scale), [f"## Scale `{scale}`", ""]
    runs = table.runs.get(scale, {})
    for heading in table.metric_at(scale):
        reported = table.reported.get(heading, {})
        paper = scale == "paper" and reported
        if not (results or paper):
            continue
        rows, columns = _ordered([*runs, *reported] if paper else runs)
        if not rows:
            continue
        label = f"{heading}: ours, mean ± standard deviation (n)" + (" / the paper's" if paper else "")
        decimals = _decimals(reported.values())
        lines += [label, "", f"| | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
        for row in rows:
            cells = []
            for column in columns:
                ours = summary(results.values(row, column, heading).values(), "%" in heading)
                known = f" / {number(reported.get((row, column)), decimals)}" if paper else ""
                cells.append(ours + known if (row, column) in runs or (row, column) in reported else "")
            lines.append(f"| {row} | {' | '.join(cells)} |")
        lines.append("")
    if results:
        known = f" Protocols: {'; '.join(found)}." if (found := _protocols(results)) else ""
        lines += [f"{'; '.join(_machines(results))}.{known}"]
    elif runs:
        lines += ["Not run at this scale."]
    lines += _sweeps(table, scale)
    if runs:
        lines += ["", "<details><summary>The command of every cell</summary>", "", "```sh"]
        seed = table.seeds_at(scale)[0]
        lines += [
            command(results.cells.get(cell, {"arguments": runs[cell]})["arguments"], seed) for cell in runs
        ]
        lines += ["```", "</details>", ""]
    return lines


def _sweeps(table: Table, scale: str) -> list[str]:
    """List what the points of each cell's sweep reached on the images that choose, the chosen one in bold."""
    body, seeds = [], 0
    for cell in table.runs.get(scale, {}):
        chosen = choose(table, scale, cell)
        ran = [job for job in choosing(table, scale, cell) if None not in map(job.result, job.seeds())]
        tried = []
        for job in sorted(ran, key=lambda job: [value for _, value in job.point]):
            at, bold = ", ".join(str(value) for _, value in job.point), "**" * (job.point == chosen)
            score = score_of(table, job)
            tried.append(f"{bold}{at}: {f'{score:.4g}' if math.isfinite(score) else 'diverged'}{bold}")
            leaves, seeds = ", ".join(leaf for leaf, _ in job.point), len(job.seeds())
        if tried:
            body.append((*cell, leaves, "; ".join(tried)))
    if not body:
        return []
    said = f"What each sweep chose by, {seeds} seed{'s' * (seeds > 1)} a point"
    head = ["row", "column", "option", f"value: `{chosen_by(table, scale)}` on the images that choose"]
    return ["", f"<details><summary>{said}</summary>", "", *markdown(head, body), "</details>"]


def _machines(results: Results) -> list[str]:
    """List what the runs of a scale ran on."""
    seeds = [record | seed for record in results.cells.values() for seed in record["seeds"].values()]
    return list(dict.fromkeys(f"{of['device']['kind']}, jax {of['versions']['jax']}" for of in seeds))


def _protocols(results: Results) -> list[str]:
    """Say how each column was judged."""
    records = results.cells.values()
    found = [f"{column}: {text}" for r in records for column, text in r.get("protocols", {}).items()]
    return list(dict.fromkeys(found))


def page_of(table: Table) -> pathlib.Path:
    """Return ``results/<file>.md`` beside the table."""
    return (ROOT / table.path).parent / "results" / f"{table.path.name}.md"


def text(table: Table) -> str:
    """Write the page: verdicts, figures, numbers at each scale beside the paper's, assumptions; commands last."""
    title, _, about = (table.about or "").partition("\n")
    commands, prose = _parted(about)
    paragraphs = [part for part in (prose, *table.rounds) if part]
    lines = [f"# {title.rstrip('.')}", "", *(line for part in paragraphs for line in (part, ""))]
    if table.claims:
        lines += ["| verdict | claim | evidence |", "| --- | --- | --- |"]
        lines += [f"| {row.verdict()} | {row.sentence()} | {row.evidence} |" for row in ledger_rows(table)]
        lines += ["", "Each claim by itself; [the ledger](../README.md) decides among all of a paper's.", ""]
    lines += [f"![{scale}]({page_of(table).stem}/{scale}.svg)\n" for scale in drawn(table)]
    if table.is_measured:
        there = measured(table)
        lines += ["Not measured yet.", ""] if there is None else [*table.page(there), ""]
    for scale in PAGES:
        if scale in table.runs and (scale in ALWAYS or Results(table, scale)):
            lines += section(table, scale)
    for heading, entries in (("Assumed", table.assumed), ("Not produced here", table.needs)):
        if entries:
            lines += [f"## {heading}", "", *(f"- {name}: {why}" for name, why in entries.items()), ""]
    if commands:
        opened = ["<details><summary>The commands of this page</summary>", "", "```sh"]
        lines += [*opened, *commands, "```", "</details>", ""]
    return "\n".join(lines)


def _parted(about: str) -> tuple[list[str], str]:
    """Part the commands of a docstring, which are indented (unless nothing else follows the title), from its prose."""
    lines = about.strip("\n").rstrip().splitlines()
    commands = [line.strip() for line in lines if line.startswith(COMMAND)]
    prose = "\n".join(line for line in lines if not line.startswith(COMMAND))
    return commands, re.sub(r"\n{3,}", "\n\n", prose).strip()


def drawn(table: Table) -> dict[str, Any]:
    """Return scale -> its results, where the table draws them."""
    results = {"measured": measured(table)} if table.is_measured else {s: Results(table, s) for s in PAGES}
    return {scale: of for scale, of in results.items() if of} if table.draw else {}


def render(table: Table) -> str:
    """Write the page, and a figure for each scale with results where the table draws one; return the page."""
    import matplotlib

    page = page_of(table)
    folder = page.with_suffix("")
    for scale, results in drawn(table).items():
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": page.stem}):  # the same drawing, the same file
            figure = table.draw(results)
            figure.savefig(folder / f"{scale}.svg", metadata={"Date": None})
            figure.savefig(folder / f"{scale}.png", dpi=150)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text(table))
    return page.read_text()


def panel(width: float = 5.2, height: float = 3.4):
    """Return a figure with one panel, and the panel's axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def bars(axes, places: Iterable[float], values: Iterable[Sequence[float]], **style) -> None:
    """Draw the mean of each place's values, one for each seed, with bars of one standard deviation."""
    values = list(values)
    spread = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in values]
    style = {"marker": "o", "capsize": 3} | style
    axes.errorbar(list(places), list(map(statistics.mean, values)), spread, **style)


def lines(axis: str, heading: str | None = None, log: bool = False) -> Callable[[Results], Any]:
    """Return what draws the common kind of figure: a line a row over the columns, which are numbers."""

    def draw(results: Results):
        of = heading or next(iter(results.table.metric))
        figure, axes = panel()
        rows, columns = _ordered(results.cells)
        for row in rows:
            known = sorted((float(c), c) for c in columns if (row, c) in results.cells)
            values = [list(results.values(row, c, of).values()) for _, c in known]
            bars(axes, [x for x, _ in known], values, label=row)
        if log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel=axis, ylabel=of)
        axes.legend(frameon=False)
        return figure

    return draw
