"""The rules by which numbers judge a claim.

Every rule reads one interval of 95 %, so that a false "holds" and a false "does not hold" have at most 2.5 % each:

* ``seeds``: a measurement, the seeds are the sample. Student's t of the mean. "within" is two one-sided tests of
  equivalence.
* ``each``: a measurement of several comparisons ("is the best", "at every size"), a sample each, and the claim is of
  all of them. It holds where each one holds, which needs no correction; it does not hold where one does not, by
  Bonferroni over the comparisons. Nothing is chosen on the numbers that judge.
* ``fisher``: correlations, a seed each: Student's t of Fisher's z, so that no interval leaves [-1, 1].
* ``formula``: numbers without chance at points that were chosen; one counterexample refutes.
"""

import contextlib
import math
import statistics
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from scipy import special, stats

from contrastive_jax.evaluators import RUN_SEED
from experiments.harness import records
from experiments.harness.jobs import choosing
from experiments.harness.results import Results
from experiments.harness.table import TEN_LABELS, Cell, Claim

TAIL = 0.025  # of a false "holds", and of a false "does not hold"


class Estimate(NamedTuple):
    """A mean and its standard error, with the error's degrees of freedom."""

    mean: float
    error: float
    freedom: int

    def half(self) -> float:
        """Return the half-width of the interval that leaves a tail on either side; infinite for a single number."""
        return float(special.stdtrit(self.freedom, 1 - TAIL)) * self.error if self.freedom else math.inf

    def above(self, bound: float) -> float:
        """Compute the one-sided p-value of a true mean that is not above ``bound``."""
        if not self.freedom:
            return 1.0
        if not self.error:
            return float(self.mean <= bound)
        return float(special.stdtr(self.freedom, (bound - self.mean) / self.error))

    def below(self, bound: float) -> float:
        """Compute the one-sided p-value of a true mean that is not below ``bound``."""
        return Estimate(-self.mean, self.error, self.freedom).above(-bound)


class Judgement(NamedTuple):
    """The verdict of numbers on a claim.

    Attributes:
      word: "holds", "does not hold", "undecided", "cannot be judged here" or "not tested".
      mean, low, high: what is shown; of ``each`` the comparison that is least in the claim's favour.
      about: of how many numbers.
      p: two-sided p-value of the nearer verdict; None for formulas and where nothing can be judged.
      why: what a failing gate says.
    """

    word: str
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    about: str = ""
    p: float | None = None
    why: str = ""


def student(values: Sequence[float]) -> Estimate:
    """Estimate the mean, its variance that of the values."""
    n = len(values)
    return Estimate(
        statistics.mean(values), statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf, n - 1
    )


def samples(claim: Claim, read: Any) -> list[list[float]]:
    """Return the evidence, a list a comparison, each of one number a seed; empty without any."""
    values = list(claim.evidence(read)) if claim.evidence else []
    found = [list(sample) for sample in values] if claim.by == "each" else [values]
    return found if all(found) else []


def chances(claim: Claim, estimate: Estimate, margin: float) -> tuple[float, float]:
    """Compute one-sided p-values of "holds" and of "does not hold"; each is small where its verdict is earned."""
    if claim.expects == "within":
        outside = min(estimate.above(margin), estimate.below(-margin))
        return max(estimate.above(-margin), estimate.below(margin)), outside
    ends = estimate.above(0.0), estimate.below(0.0)
    return ends if claim.expects == "above" else ends[::-1]


def of_formula(claim: Claim, values: Sequence[float]) -> Judgement:
    """Judge by the range: all of it on the claim's side, or there is a counterexample."""
    sides = {"above": lambda v: v > 0, "below": lambda v: v < 0, "within": lambda v: abs(v) < claim.margin}
    met, n = sum(map(sides[claim.expects], values)), len(values)
    word, about = ("holds", "") if met == n else ("does not hold", f", {met} as claimed")
    return Judgement(word, statistics.mean(values), min(values), max(values), f"range of {n}{about}")


def of_samples(claim: Claim, found: list[list[float]], read: Any) -> tuple[Judgement, float]:
    """Judge by the intervals, and return the half-width that gates are told, of the widest one."""
    fisher = claim.by == "fisher"
    if fisher:
        found = [[math.atanh(max(-0.999999, min(0.999999, r))) for r in sample] for sample in found]
    margin = math.atanh(claim.margin) if fisher else claim.margin
    n = len(found[0])
    estimates, about = [student(sample) for sample in found], f"n = {n}"
    pairs = [chances(claim, estimate, margin) for estimate in estimates]
    if len(found) > 1:
        about = f"weakest of {len(found)}, {about}"
    weakest = max(range(len(pairs)), key=lambda i: pairs[i][0] - pairs[i][1])
    half = max(estimate.half() for estimate in estimates)
    shown = estimates[weakest]
    ends = [shown.mean, shown.mean - shown.half(), shown.mean + shown.half()]
    mean, low, high = map(math.tanh, ends) if fisher else ends
    holds, fails = max(p for p, _ in pairs), min(1.0, len(pairs) * min(p for _, p in pairs))
    word = "holds" if holds < TAIL else "does not hold" if fails < TAIL else "undecided"
    if n < 2:
        return Judgement("cannot be judged here", mean, low, high, about, why="one seed is no sample"), half
    return Judgement(word, mean, low, high, about, min(1.0, 2 * min(holds, fails))), half


def seeds_left(read: Any) -> str:
    """Say how many seeds of the judged cells are left to run: a claim is judged once, by all of them."""
    if not isinstance(read, Results) or not read.judged:
        return ""
    planned = read.table.seeds_at(read.scale)
    common = set.intersection(*(set(read.cells[cell]["seeds"]) for cell in read.judged))
    return f"{len(common)} of {len(planned)} seeds" if len(common) < len(planned) else ""


def cells_left(claim: Claim, read: Any) -> str:
    """Say which cells the evidence would read as well, had they run: a partly run table has other extremes, rivals and
    means."""
    if not isinstance(read, Results):
        return ""
    whole = read.completed().of_one_seed().watched()
    with contextlib.suppress(ArithmeticError, ValueError):  # of numbers that are made up
        samples(claim, whole)
    left = [", ".join(cell) for cell in whole.cells if cell in whole.asked and cell not in read.cells]
    return f"missing: {'; '.join(left)}" if left else ""


def not_converged(read: Any, cells: Collection[Cell], paths: Collection[str]) -> str:
    """Name the cells whose evidence has a fit that did not converge."""
    if not isinstance(read, Results):
        return ""
    found = [
        ", ".join(cell)
        for cell in sorted(cells)
        if cell in read.cells
        and not all(
            records.converged(result, path) for result in read.cells[cell]["seeds"].values() for path in paths
        )
    ]
    return f"not converged: {'; '.join(found)}" if found else ""


def decides(claim: Claim, said: Judgement) -> bool:
    """Return whether a verdict is of an effect: not of equality, nor of something that is no worse by so many points,
    both of which a ceiling forges."""
    forged = claim.expects == "within" or any(
        getattr(gate, "keywords", {}).get("always") for gate in claim.gates
    )
    return said.word == "does not hold" or said.word == "holds" and not forged


def conditions(read: Results, paths: Collection[str]) -> list[str]:
    """Name what the judged cells of a table have in common beside the seeds, which no interval over these contains.

    Draws of labels that are the same in every run, and rates that one run each has chosen.
    """
    configs = [read.cells[cell].get("config", {}) for cell in read.judged if cell in read.cells]
    drawn = any(config.get("evaluators.few_labels.seed", 0) != RUN_SEED for config in configs)
    found = ["fixed draws"] if TEN_LABELS in paths and drawn else []
    chosen = [choosing(read.table, read.scale, cell) for cell in read.judged if cell in read.cells]
    lone = any(len(job.seeds()) == 1 for jobs in chosen for job in jobs)
    return [*found, "rates by one seed"] if lone else found


def judge(claim: Claim, read: Any = None) -> Judgement:
    """Return the verdict of what is kept of a table, after the claim's gates."""
    asked, cells, paths = read, (), ()
    if isinstance(read, Results):
        watched = read.of_one_seed().watched()
        samples(claim, watched)
        cells, paths = watched.asked, watched.paths
        asked = read.of_claim(cells)
        read = read.paired(cells) if cells else read
        if not read:
            return Judgement("not tested", why=claim.needs)
    if not (found := samples(claim, read)):
        return Judgement("not tested", why=claim.needs)
    if not all(math.isfinite(value) for sample in found for value in sample):
        return Judgement("cannot be judged here", why="a number of the evidence is not finite")
    said, half = (
        (of_formula(claim, found[0]), 0.0) if claim.by == "formula" else of_samples(claim, found, read)
    )
    reasons = [
        why for why in (cells_left(claim, asked), seeds_left(asked), not_converged(read, cells, paths)) if why
    ]
    if isinstance(read, Results):
        said = said._replace(about=", ".join([said.about, *conditions(asked, paths)]))
        asked = asked.of_claim(cells, decides(claim, said))
    reasons += [why for gate in claim.gates if (why := gate(asked, half))]
    if not reasons:
        return said
    contrary = ["contrary here"] if said.word == "does not hold" else []
    own = [said.why] if said.why else []
    return said._replace(word="cannot be judged here", p=None, why="; ".join(contrary + own + reasons))


def survivors(p_values: Sequence[float], rate: float = 2 * TAIL) -> list[bool]:
    """Say which of several verdicts remain at a false discovery rate (Benjamini and Hochberg 1995)."""
    return [bool(q <= rate) for q in stats.false_discovery_control(p_values)] if p_values else []
