"""The ledger: what our numbers say about the papers' sentences; the papers at a glance, and one page a paper."""

import collections
import importlib
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.judging import Judgement, decides, judge, survivors
from experiments.harness.results import Results, measured
from experiments.harness.table import FEW, MEASURES, PAPERS, ROOT, SCALES, Claim, Table, all_tables, table_of

VERDICTS = ("holds", "does not hold", "undecided", "cannot be judged here", "not tested")
FOLDER = ROOT / "experiments"
OURS = "family"  # its predictions are no paper's claims
DECIDED = ("holds", "does not hold")
FEW_TOO = (
    "small_mnist"  # judged by 10 labels a class too: all of them leave no room, kNN of pixels is as good
)


class Row(NamedTuple):
    """A claim in the ledger: its sentence, the evidence in words, the judgement, and whether the sentence is ours.

    ``others``: measure -> the judgement by another measure of the same accuracy, its conditions not asked.
    """

    text: str
    evidence: str
    said: Judgement
    ours: bool = False
    others: Mapping[str, Judgement] = {}

    def sentence(self) -> str:
        """Return the claim, marked where it is our reading."""
        return self.text + " (our reading)" * self.ours

    def verdict(self) -> str:
        """Write the verdict in Markdown, with the half-width where nothing is decided; and the reason where nothing can
        be."""
        word = self.said.word if self.said.word == "not tested" else f"**{self.said.word}**"
        if self.said.why:
            return f"{word}: {self.said.why}{self.elsewhere()}"
        if self.said.word == "undecided":
            return f"{word}, ± {(self.said.high - self.said.low) / 2:.2g}{self.elsewhere()}"
        return word

    def reason(self) -> str:
        """Write the verdict on a page of one verdict each: the reason alone, where there is one."""
        return f"{self.said.why}{self.elsewhere()}" if self.said.why else self.verdict()

    def elsewhere(self) -> str:
        """Name the measures that decide where the judged one does not."""
        if self.said.word not in ("undecided", "cannot be judged here"):
            return ""
        found = {name: one.word for name, one in self.others.items() if one.word in DECIDED}
        return "".join(f"; by {name} it {word}" for name, word in found.items())


def _by_few(scale: str) -> str:
    return f"{scale} by {FEW.removesuffix(', %')}"


def found_by_scale(table: Table) -> dict[str, Any]:
    """Return scale -> results, from the largest; ``{"measured": ...}`` of a table without runs. Without empty ones."""
    if table.is_measured:
        of = {"measured": measured(table)}
    else:
        of = {}
        for scale in SCALES:
            if scale != "smoke":
                of[scale] = Results(table, scale)
            if scale == FEW_TOO:
                of[_by_few(scale)] = of[scale].by_few_labels()
    return {scale: results for scale, results in of.items() if results}


def judged(claim: Claim, by_scale: Mapping[str, Any]) -> tuple[str, Judgement]:
    """Return the largest scale whose runs can decide a claim, and their result; else the largest with evidence.

    Of the latter by 10 labels a class where these could have judged. ``("", ...)`` where no scale has any.
    """
    said = [(scale, judge(claim, read)) for scale, read in by_scale.items()]
    tested = [(scale, one) for scale, one in said if one.word != "not tested"]
    judging = [(scale, one) for scale, one in tested if one.word != "cannot be judged here"]
    if not tested:
        return "", Judgement("not tested", why=claim.needs)
    scale, first = (judging or tested)[0]
    if not judging and scale == FEW_TOO:
        by_few = dict(tested).get(_by_few(scale))
        if by_few and by_few.mean != first.mean:  # equal where the evidence is no accuracy
            return _by_few(scale), by_few
    return scale, first


def by_others(claim: Claim, read: Any, said: Judgement) -> dict[str, Judgement]:
    """Return measure -> what the other measures of an accuracy say of a claim; {} where its evidence is none.

    Of equality, which wants room, they decide nothing. A claim on a level ("above 53 %") has no other measure.
    """
    found = {}
    for name in MEASURES if isinstance(read, Results) and claim.by != "formula" else ():
        try:
            other, shifted = (judge(claim._replace(gates=()), read.by(name, more)) for more in (0.0, 8.0))
        except (KeyError, ValueError):  # the runs were not judged so
            continue
        compares = math.isclose(
            other.mean, shifted.mean, abs_tol=1e-6
        )  # and is no level, which another measure has not
        if (
            compares
            and math.isfinite(other.low)
            and all(other.mean != one.mean for one in (said, *found.values()))
        ):
            found[name] = other if decides(claim, other) else other._replace(word="undecided")
    return found


def ledger_rows(table: Table) -> list[Row]:
    """Return a table's claims, each at the largest scale that has evidence of it."""
    by_scale, rows = found_by_scale(table), []
    for claim in table.claims:
        scale, said = judged(claim, by_scale)
        about, others = claim.effect or "—", {}
        if scale:
            ends = f" [{said.low:.3g}, {said.high:.3g}]" if math.isfinite(said.low) else ""
            about += f": {said.mean:+.3g}{ends} ({said.about}, {scale})"
            if claim.expects == "within":
                about += f", margin {claim.margin:g}"
            others = by_others(claim, by_scale[scale], said)
            about += "".join(
                f"; by {name} {one.mean:+.2g} ± {(one.high - one.low) / 2:.2g}"
                for name, one in others.items()
            )
        rows.append(Row(claim.text, about, said, claim.ours, others))
    return rows


def of_paper(paper: str) -> list[tuple[pathlib.Path, Row]]:
    """Return file and row of every claim of a paper, undecided where Benjamini and Hochberg take the verdict back.

    The printed claims are one family, our readings another.
    """
    tables = [table_of(name) for name in all_tables() if name.split(".")[1] == paper]
    claims = [(table.path, row) for table in tables for row in ledger_rows(table)]
    kept = {ours: iter(together([row for _, row in claims if row.ours == ours])) for ours in (False, True)}
    return [(path, next(kept[row.ours])) for path, row in claims]


def together(rows: Sequence[Row]) -> list[Row]:
    """Return the claims of a family: what is decided alone, and not among them, is not."""
    family = {n: row.said.p for n, row in enumerate(rows) if row.said.p is not None}
    stays = dict(zip(family, survivors(list(family.values())), strict=True))
    return [
        row
        if stays.get(n, True) or row.said.word == "undecided"
        else row._replace(
            said=row.said._replace(
                word="undecided", why=f"{row.said.word} alone, not among all of the paper's"
            )
        )
        for n, row in enumerate(rows)
    ]


def pages() -> dict[pathlib.Path, str]:
    """Return file -> text of ``experiments/README.md``, of each paper's ``README.md``, and of the front page."""
    texts, counts, readings = {}, {}, collections.Counter()
    for paper in PAPERS:
        tables = [name for name in all_tables() if name.split(".")[1] == paper]
        claims = of_paper(paper)
        title, _, story = (importlib.import_module(f"experiments.{paper}").__doc__ or "").partition("\n")
        counts[paper] = title.rstrip("."), collections.Counter(row.said.word for row in printed(claims))
        readings.update(row.said.word for _, row in claims if row.ours)
        texts[FOLDER / paper / "README.md"] = "\n".join([
            f"# {title.rstrip('.')}", "", *([story.strip(), ""] if story.strip() else []),
            *_verdicts(claims), *_tables(paper, tables),
        ])  # fmt: skip
    front = ROOT / "README.md"
    return {
        FOLDER / "README.md": _overview(counts, readings),
        front: _counted(front.read_text(), counts),
    } | texts


def printed(claims: Sequence[tuple[pathlib.Path, Row]]) -> list[Row]:
    """Return those that the paper prints; :data:`OURS` prints all of its own."""
    return [row for _, row in claims if not row.ours]


def _counted(text: str, counts: dict[str, tuple[str, collections.Counter]]) -> str:
    """Put the counts of verdicts into the front page's rows, one a paper."""
    for paper, (_, of) in counts.items():
        cells = " | ".join(str(of[verdict]) for verdict in VERDICTS)
        row = rf"^(\| \[.*\]\(experiments/{paper}/README\.md\) \|.*?)(?: \| \d+){{{len(VERDICTS)}}} \|$"
        text = re.sub(row, rf"\g<1> | {cells} |", text, flags=re.M)
    return text


def _overview(counts: dict[str, tuple[str, collections.Counter]], readings: collections.Counter) -> str:
    rows = {paper: (f"[{title}]({paper}/README.md)", of) for paper, (title, of) in counts.items()}
    ours = rows.pop(OURS)
    total = ("all of the papers'", sum((of for _, of in rows.values()), collections.Counter()))
    lines = [
        f"| {name} | {' | '.join(str(of[verdict]) for verdict in VERDICTS)} |"
        for name, of in [*rows.values(), total, ("our readings of them, and controls", readings), ours]
    ]
    return "\n".join([
        "# The papers, claim by claim", "", HEAD, "", f"| paper | {' | '.join(VERDICTS)} |",
        f"| --- |{' ---: |' * len(VERDICTS)}", *lines, "", "## Verdicts", "", RULES, "",
        "## Tables", "", COMMANDS, "",
    ])  # fmt: skip


def _verdicts(claims: Sequence[tuple[pathlib.Path, Row]]) -> list[str]:
    """Write a table for each verdict."""
    lines = []
    for verdict in VERDICTS:
        rows = [
            f"| {row.sentence()} | {row.evidence} | {row.reason()} | `{path.name}` |"
            for path, row in claims
            if row.said.word == verdict
        ]
        if rows:
            count = sum(row.said.word == verdict for row in printed(claims))
            head = [f"## {verdict[0].upper()}{verdict[1:]}: {count} of {len(printed(claims))}", ""]
            lines += [*head, "| claim | evidence | verdict | file |", "| --- | --- | --- | --- |", *rows, ""]
    return lines


def _tables(paper: str, names: Sequence[str]) -> list[str]:
    lines = ["## Tables and figures", "", "| file | subject | run |", "| --- | --- | --- |"]
    for name in names:
        table = table_of(name)
        file = table.path.name
        title = (table.about or "").splitlines()[0].rstrip(".")
        title = title.partition("), ")[2] or title  # without the paper's name
        done = [
            f"{scale}: {len(Results(table, scale).cells)} of {len(cells)} cells"
            for scale, cells in table.runs.items()
            if scale != "smoke" and Results(table, scale)
        ]
        done += ["measured"] if table.is_measured and measured(table) else []
        link = (
            f"[{title}](results/{file}.md)" if (FOLDER / paper / "results" / f"{file}.md").exists() else title
        )
        lines.append(f"| `{file}` | {link} | {'; '.join(done) or 'not run'} |")
    return [*lines, ""]


HEAD = """\
Generated by `python -m experiments.harness pages`. Verdicts on the papers' printed claims, at the largest scale
that can judge them here; each links to its evidence, and each file of a table to the commands that make it. Where a
claim could be read otherwise, or wants a control, that stands beside it as *our reading* and is counted apart.
[The plan](PLAN.md) has what is left to run, and what was decided after data."""

COMMANDS = """\
Each file is one table or figure. `python -m experiments.flatnce.figure_2 plan` says what would run and what it
costs, `run` runs it (and goes on after a kill), `collect` gathers the numbers, `render` writes the page, `diff`
shows the config leaves in which its cells differ. `--scale` is `paper` (as published), `gpu` (one GPU, hours),
`small` and `small_mnist` (one core, a quarter of an hour a run: CIFAR-10 at 16 pixels, MNIST at 14), `cpu` (2
cores, minutes; digits inside scikit-learn) or `smoke` (seconds). `run --workers=8` uses eight devices of this
host, `run --cluster=slurm --set=slurm_partition=gpu` a cluster (`pip install submitit`). Each page prints the
command of every cell. Finished runs are kept in `results/`, a JSON file each, known by the settled config: what
two tables ask for is one run.

## All runs

[`results.csv`](results.csv) has every kept run, a row for each seed: the options in which runs differ, the numbers of
all evaluations (`trained.knn.top1`), the last metrics of training (`metrics.ess`), the last points of kept curves
(`curves.ess`), device, jax version and commit. Text is as it is, other values are JSON, an empty cell is an option or a
measure that the run does not have. [`explore.html`](explore.html) draws it: open the file in a browser, no server is
needed. `python -m experiments.harness csv` writes both.

Rows compare as far as their options are equal. Where `data.validation` is above 0 a run only chose a rate: its
accuracies are of training images that were held out. `loss` names the terms of positive weight."""

RULES = """\
A verdict is of a 95 % interval, paired over seeds: the same seed gives every cell the same first weights, order
and augmentation. A claim *holds* where the whole interval is on its side, *does not hold* where it is on the
other, and is *undecided* else, with the half-width of the interval beside it. The sample is the seeds: Student's
t, Fisher's z for correlations. Equality is two one-sided tests within a margin that the file fixes. A claim of several
comparisons holds where each one holds; shown is the weakest. On MNIST kNN of raw pixels is as good as SimCLR with all
labels, so that claims on linear accuracy are judged by 10 labels a class. Claims on formulas have no sampling
error: the range of all values replaces the interval, and one counterexample refutes the claim.

Beside an accuracy stand the same cells by its other measures, linear with all labels or with 10 a class and kNN, each
by itself: a measure that decides where the judged one does not is named in the verdict. Two conditions are in no
interval. *Fixed draws*: the 20 draws of 10 labels a class are the same in every run, but for the newest tables, where
each seed has its own. *Rates by one seed*: one run of each rate chose it, in the newest tables two or three.

*Cannot be judged here*: a condition of the claim is not met, whatever the numbers say. *Headroom*: supervised training
is less than three points above the compared methods, or these above raw pixels. A decided effect does not need it: a
ceiling can make a difference smaller, but not create one. *Regime*: the runs are not of the kind that the claim is
about; for claims on a query's weight, InfoNCE's W is above one half by its interval. *Edge*: rates were not tuned. Or a
control or some of the seeds are missing: nothing is judged before all have run. A claim is also undecided if it is
decided by itself but *not among all of the paper's*, at a false discovery rate of 5 % among the paper's measured claims
(Benjamini and Hochberg); our readings are a family of their own. A verdict is one at our scale, not on the paper. *Not
tested*: the reason says what no small scale has; a claim without a reason can be run."""
