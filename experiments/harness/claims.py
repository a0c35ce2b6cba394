"""The ledger: the papers' sentences, and what our numbers say about them."""

import math
import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from experiments.harness.judging import Claim, Judgement, judge, survivors
from experiments.harness.measured import found, is_measured
from experiments.harness.results import Results
from experiments.harness.table import FEW, SCALES


class Row(NamedTuple):
    """A claim in the ledger: its sentence, the evidence in words, and the judgement."""

    text: str
    evidence: str
    said: Judgement

    def verdict(self, survives: bool = True) -> str:
        """In Markdown, with the half-width where nothing is decided; and the reason where nothing can be."""
        word = self.said.word if self.said.word == "not tested" else f"**{self.said.word}**"
        if self.said.why:
            return f"{word}: {self.said.why}"
        if self.said.word == "undecided":
            return f"{word}, ± {(self.said.high - self.said.low) / 2:.2g}"
        return word if survives else f"{word}, not among all of the paper's"


FEW_TOO = (
    "small_mnist"  # judged by 10 labels a class too: all of them leave no room, kNN of pixels is as good
)


def found_by_scale(table: ModuleType) -> dict[str, Any]:
    """Scale -> results, from the largest; ``{"measured": ...}`` of a table without runs. Without empty ones."""
    if is_measured(table):
        of = {"measured": found(table)}
    else:
        of = {}
        for scale in SCALES:
            if scale != "smoke":
                of[scale] = Results(table, scale).paired()
            if scale == FEW_TOO:
                of[f"{scale} by {FEW.removesuffix(', %')}"] = of[scale].by_few_labels()
    return {scale: results for scale, results in of.items() if results}


def judged(claim: Claim, by_scale: Mapping[str, Any]) -> tuple[str, Judgement]:
    """The largest scale whose runs can judge a claim, and what they say; without one the largest that has evidence.

    ``("", ...)`` where no scale has any.
    """
    said = [(scale, judge(claim, read)) for scale, read in by_scale.items()]
    tested = [(scale, one) for scale, one in said if one.word != "not tested"]
    judging = [(scale, one) for scale, one in tested if one.word != "cannot be judged here"]
    return next(iter(judging or tested), ("", Judgement("not tested", why=claim.needs)))


def ledger_rows(table: ModuleType) -> list[Row]:
    """A table's claims, each at the largest scale that has evidence of it."""
    by_scale, rows = found_by_scale(table), []
    for claim in table.CLAIMS:
        scale, said = judged(claim, by_scale)
        about = claim.effect or "—"
        if scale:
            ends = f" [{said.low:.3g}, {said.high:.3g}]" if math.isfinite(said.low) else ""
            about += f": {said.mean:+.3g}{ends} ({said.about}, {scale})"
            if claim.expects == "within":
                about += f", margin {claim.margin:g}"
        rows.append(Row(claim.text, about, said))
    return rows


def fallen(claims: list[tuple[pathlib.PurePath, Row]]) -> set[int]:
    """Indices of the verdicts that Benjamini and Hochberg take back, each paper's measurements being a family."""
    lost = set()
    for paper in {path.parent for path, _ in claims}:
        family = {
            n: row.said.p
            for n, (path, row) in enumerate(claims)
            if path.parent == paper and row.said.p is not None
        }
        lost |= {n for n, stays in zip(family, survivors(list(family.values())), strict=True) if not stays}
    return lost
