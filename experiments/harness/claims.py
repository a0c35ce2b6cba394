"""The ledger: the papers' sentences, and what our numbers say about them."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from experiments.harness.judging import Claim, Judgement, decides, judge, survivors
from experiments.harness.measured import found, is_measured
from experiments.harness.results import Results
from experiments.harness.table import FEW, MEASURES, SCALES, all_tables, table_of, where


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


DECIDED = ("holds", "does not hold")
FEW_TOO = (
    "small_mnist"  # judged by 10 labels a class too: all of them leave no room, kNN of pixels is as good
)


def _by_few(scale: str) -> str:
    return f"{scale} by {FEW.removesuffix(', %')}"


def found_by_scale(table: ModuleType) -> dict[str, Any]:
    """Return scale -> results, from the largest; ``{"measured": ...}`` of a table without runs. Without empty ones."""
    if is_measured(table):
        of = {"measured": found(table)}
    else:
        of = {}
        for scale in SCALES:
            if scale != "smoke":
                of[scale] = Results(table, scale)
            if scale == FEW_TOO:
                of[_by_few(scale)] = of[scale].by_few_labels()
    return {scale: results for scale, results in of.items() if results}


def judged(claim: Claim, by_scale: Mapping[str, Any]) -> tuple[str, Judgement]:
    """Return the largest scale whose runs can judge a claim, and what they say; else the largest that has evidence.

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


def ledger_rows(table: ModuleType) -> list[Row]:
    """Return a table's claims, each at the largest scale that has evidence of it."""
    by_scale, rows = found_by_scale(table), []
    for claim in table.CLAIMS:
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
    """Return file and row of every claim of a paper, undecided where Benjamini and Hochberg take the verdict back."""
    tables = [table_of(name) for name in all_tables() if name.split(".")[1] == paper]
    claims = [(where(table), row) for table in tables for row in ledger_rows(table)]
    kept = together([row for _, row in claims])
    return [(path, row) for (path, _), row in zip(claims, kept, strict=True)]


def together(rows: Sequence[Row]) -> list[Row]:
    """Return the claims of a paper, its measurements one family: what is decided alone, and not among them, is not."""
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
