"""The papers' sentences, and what our numbers say about them."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from experiments.harness.measured import found, is_measured
from experiments.harness.results import Results
from experiments.harness.table import ROOT, SCALES, all_tables, table_of, where


class Claim(NamedTuple):
    """A sentence of the paper, and what we have to say about it.

    Attributes:
      text: the claim.
      effect: what :attr:`evidence` measures, with its unit, "linear top-1 at batch 16, FlatNCE - InfoNCE, points".
      evidence: results (of a table with ``measure()``: what it returned) -> one number a seed; None: nothing here
        tests it.
      expects: "above" or "below" 0 by the claim; or "within": the effect is no larger than ``margin``.
      margin: for "within".
      every: the numbers are no sample (a formula's, at points that were chosen): the claim is of every one of them.
    """

    text: str
    effect: str = ""
    evidence: Callable[[Any], Sequence[float]] | None = None
    expects: str = "above"
    margin: float = 0.0
    every: bool = False


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high): Student's t interval of the mean; infinite for a single value."""
    from scipy import stats

    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = error * float(stats.t.ppf(0.5 + level / 2, len(values) - 1))
    return mean, mean - half, mean + half


def bounds(claim: Claim, values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) by which a claim is judged: its 95 % interval, or the range of ``every`` number."""
    return (statistics.mean(values), min(values), max(values)) if claim.every else interval(values)


def verdict(claim: Claim, values: Sequence[float]) -> str:
    """``holds``, ``does not hold`` or ``undecided`` by the whole of :func:`bounds`; ``not tested`` without values."""
    if not values:
        return "not tested"
    _, low, high = bounds(claim, values)
    if claim.expects == "within":
        inside, outside = (
            -claim.margin < low and high < claim.margin,
            low > claim.margin or high < -claim.margin,
        )
    else:
        inside, outside = (low > 0, high < 0) if claim.expects == "above" else (high < 0, low > 0)
    return "holds" if inside else "does not hold" if outside or claim.every else "undecided"


def found_by_scale(table: ModuleType) -> dict[str, Any]:
    """Scale -> results, from the largest; ``{"measured": ...}`` of a table without runs. Without empty ones."""
    of = (
        {"measured": found(table)}
        if is_measured(table)
        else {s: Results(table, s).paired() for s in SCALES[:3]}
    )
    return {scale: results for scale, results in of.items() if results}


def evidence_of(claim: Claim, by_scale: Mapping[str, Any]) -> tuple[str, list[float]]:
    """The largest scale whose runs are evidence of a claim, and its numbers; ``("", [])`` without such a scale."""
    if claim.evidence is None:
        return "", []
    numbers = ((scale, list(claim.evidence(results))) for scale, results in by_scale.items())
    return next(((scale, values) for scale, values in numbers if values), ("", []))


def ledger_rows(table: ModuleType) -> list[tuple[str, str, str]]:
    """(claim, evidence, verdict) of a table's claims, each at the largest scale that has evidence of it."""
    by_scale, rows = found_by_scale(table), []
    for claim in table.CLAIMS:
        scale, values = evidence_of(claim, by_scale)
        if values:
            mean, low, high = bounds(claim, values)
            what = f"range of {len(values)}" if claim.every else f"n = {len(values)}"
            about = f"{claim.effect}: {mean:+.3g} [{low:.3g}, {high:.3g}] ({what}, {scale})"
            if claim.expects == "within":
                about += f", margin {claim.margin:g}"
        else:
            about = claim.effect or "—"
        rows.append((claim.text, about, verdict(claim, values)))
    return rows


def ledger() -> str:
    """``experiments/README.md``: how to run, every table's state, every claim's verdict."""
    lines = [LEDGER_HEAD]
    states, claims = [], []
    for name in all_tables():
        table = table_of(name)
        path = where(table).relative_to("experiments")
        title = (table.__doc__ or "").splitlines()[0].rstrip(".")
        done = [
            f"{scale}: {len(Results(table, scale).cells)} of {len(cells)} cells"
            for scale, cells in table.RUNS.items()
            if scale != "smoke" and Results(table, scale)
        ]
        done += ["measured"] if is_measured(table) and found(table) else []
        page = (ROOT / where(table)).parent / "results" / f"{path.name}.md"
        link = f"[{title}]({page.relative_to(ROOT / 'experiments')})" if page.exists() else title
        states.append(f"| `{path}` | {link} | {'; '.join(done) or 'not run'} |")
        claims += [
            f"| {path.parent.name} | {text} | {evidence} | **{word}** | `{path.name}` |"
            if word != "not tested"
            else f"| {path.parent.name} | {text} | {evidence} | not tested | `{path.name}` |"
            for text, evidence, word in ledger_rows(table)
        ]
    lines += [
        "",
        "## Claims",
        "",
        "| paper | claim | evidence | verdict | file |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        *claims,
        "",
        "## Tables and figures",
        "",
        "| file | what | run |",
        "| --- | --- | --- |",
        *states,
        "",
    ]
    return "\n".join(lines)


LEDGER_HEAD = """# The papers, table by table

Generated by `python -m experiments.harness ledger`.

Each file is one table or figure. `python -m experiments.flatnce.figure_2 plan` says what would run and what it
costs, `run` runs it (and goes on after a kill), `collect` gathers the numbers, `render` writes the page, `diff`
shows the config leaves in which its cells differ. `--scale` is `paper` (as published), `gpu` (one GPU, hours),
`cpu` (2 cores, minutes; digits inside scikit-learn) or `smoke` (seconds). `run --workers=8` uses eight devices of
this host, `run --cluster=slurm --set=slurm_partition=gpu` a cluster (`pip install submitit`). Each page prints the
command of every cell. Finished runs are kept in `results/`, a JSON file each, known by the settled config: what two
tables ask for is one run.

A verdict is of the 95 % interval (Student's t, paired over seeds: the same seed gives every cell the same first
weights, order and augmentation). A claim *holds* where the whole interval is on its side, *does not hold* where it
is on the other, and is *undecided* else. Of formulas and exact measurements the range of all numbers is in the
place of the interval, and one counterexample is enough. It is a verdict at our scale, not on the paper."""
