"""What a table declares: its runs, the paper's numbers, and the claims that it is evidence for."""

import dataclasses
import functools
import importlib
import itertools
import json
import pathlib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parents[2]


SCALES = ("paper", "gpu", "small", "small_mnist", "cpu", "smoke")  # the first have the more to say
SMALL = ("small", "small_mnist")
SEEDS = {scale: (0, 1, 2) for scale in SCALES} | {
    **dict.fromkeys(SMALL, (0, 1, 2, 3, 4)),
    "smoke": (0,),
}
FURTHER = 2  # steps that a sweep at a small scale takes beyond its edge

FEW = "10 labels a class, %"
ALL_LABELS, TEN_LABELS, NEIGHBOURS = (
    "trained.linear.top1 %",
    "trained.few_labels.top1 %",
    "trained.knn.top1 %",
)
MEASURES = {"all labels": ALL_LABELS, "10 labels a class": TEN_LABELS, "kNN": NEIGHBOURS}  # of one accuracy
KNN_TOO = {"kNN top-1, %": NEIGHBOURS}
FEW_LABELS = dict.fromkeys(SMALL, {FEW: TEN_LABELS} | KNN_TOO)  # what `screen` adds, as `also`
OWN_DRAWS = {
    "name": "lbfgs",
    "labels_per_class": 10,
    "draws": 20,
    "seed": -1,
}  # of labels, by each run's own seed
BY_FEW_LABELS = {"small_mnist": TEN_LABELS}  # as `chooses`: what judges there chooses too

VALIDATION = 0.2  # of the training images, where a sweep chooses

PAPERS = ("flatnce", "intriguing", "eqco", "less_can_be_more", "macl", "family")  # folders of tables

Cell = tuple[str, str]  # (row, column)
Gate = Callable[[Any, float], str]
"""(what the evidence reads, half-width of the interval) -> why the claim cannot be judged there; empty: it can."""


class Claim(NamedTuple):
    """A sentence of the paper, and what we have to say about it.

    Attributes:
      text: the claim.
      effect: what :attr:`evidence` measures, with its unit, "linear top-1 at batch 16, FlatNCE - InfoNCE, points".
      evidence: results (of a table with ``measure``: what it returned) -> one number a seed; by ``each`` a list a
        comparison of one number a seed; None: nothing here tests it.
      expects: "above" or "below" 0 by the claim; or "within": the effect is no larger than ``margin``.
      margin: for "within"; fixed here before a run.
      by: the rule, "seeds", "each", "fisher" or "formula".
      gates: what has to be met before the numbers are a judgement.
      needs: why no cell at a small scale can test it; the ledger says so where nothing has.
      ours: the paper does not print it: a weaker or corrected reading, or a control, which the ledger counts apart.
    """

    text: str
    effect: str = ""
    evidence: Callable[[Any], Sequence[Any]] | None = None
    expects: str = "above"
    margin: float = 0.0
    by: str = "seeds"
    gates: tuple[Gate, ...] = ()
    needs: str = ""
    ours: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table or figure of a paper: what would be run, what the paper printed, what we claim and how it is drawn.

    A table of training runs has ``runs`` and ``metric``. One of formulas, or of seconds measured in this process, has
    ``measure`` (or ``read``) and ``page`` in their place. One that only says what it would take has ``needs``.

    Attributes:
      name: the module, ``__name__``.
      about: its docstring, ``__doc__``: a title, then commands (indented) and prose.
      predicted: what we expected, written before the runs; and what was changed before their numbers were read. A text,
        or a tuple of a text a round, where runs that were read led to others.
      read_after: what the runs showed, written after them; a text, or a tuple of a text a round.
      runs: scale -> cell, (row, column) -> the command's arguments, ``configs/x.py:scale=cpu --config.a.b=c``.
      metric: heading -> path into a run's result, ``trained.linear.top1 %`` (``%``: times 100), ``metrics.ess``, or
        None where nothing here gives that number. A sweep chooses by the first.
      also: scale -> further headings and paths, which its runs alone have.
      curves: metrics that are kept over training.
      seeds: scale -> seeds, where these are not ``SEEDS``.
      sweep: scale -> leaf -> values, or scale -> row -> leaf -> values. Each cell chooses on a validation part of the
        training images, by seeds that judge nothing.
      chooses: scale -> path of what a sweep chooses by, where that is not the first of ``metric``.
      choosing_seeds: scale -> number of seeds that choose, where that is not one.
      further: how often a sweep of rates at a small scale goes on beyond its edge.
      published_rates: scales whose rates are the paper's.
      reported: heading -> cell -> the paper's number, :func:`doubtful`, or None where it is lost.
      assumed: what the paper does not print -> our choice and its source.
      needs: what is not produced here -> what it would take.
      claims: what the table is evidence for, by the rules of ``judging`` and after each claim's gates.
      draw: results of a scale (or what was measured) -> a matplotlib figure.
      measure: () -> numbers, kept in ``results/<file>/measured.json``.
      read: () -> numbers that another file has measured, or None before it has; in the place of ``measure``.
      page: what was measured -> lines of Markdown.

    Raises:
      ValueError: a scale or a heading that there is not, or fields that do not go together.
    """

    name: str
    about: str | None
    _: dataclasses.KW_ONLY
    predicted: str | tuple[str, ...] = ()
    read_after: str | tuple[str, ...] = ()
    runs: dict[str, dict[Cell, str]] = dataclasses.field(default_factory=dict)
    metric: dict[str, str | None] = dataclasses.field(default_factory=dict)
    also: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    curves: Sequence[str] = ()
    seeds: dict[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    sweep: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    chooses: dict[str, str] = dataclasses.field(default_factory=dict)
    choosing_seeds: dict[str, int] = dataclasses.field(default_factory=dict)
    further: int = FURTHER
    published_rates: Sequence[str] = ()
    reported: dict[str, dict[Cell, float | None]] = dataclasses.field(default_factory=dict)
    assumed: dict[str, str] = dataclasses.field(default_factory=dict)
    needs: dict[str, str] = dataclasses.field(default_factory=dict)
    claims: Sequence[Claim] = ()
    draw: Callable[[Any], Any] | None = None
    measure: Callable[[], dict[str, Any]] | None = None
    read: Callable[[], dict[str, Any] | None] | None = None
    page: Callable[[dict[str, Any]], list[str]] | None = None

    def __post_init__(self):
        by_scale = ("runs", "also", "seeds", "sweep", "chooses", "choosing_seeds", "published_rates")
        wrong = [
            f"{field} has scale {s!r}" for field in by_scale for s in getattr(self, field) if s not in SCALES
        ]
        if wrong:
            raise ValueError(f"{self.name}: {', '.join(wrong)}; scales are {', '.join(SCALES)}.")
        headings = [heading for heading in self.reported if heading not in self.metric]
        if headings:
            known = ", ".join(self.metric) or "empty"
            raise ValueError(f"{self.name}: reported has heading {', '.join(headings)}; metric is {known}.")
        if bool(self.runs) + bool(self.measure) + bool(self.read) > 1:
            raise ValueError(f"{self.name}: one of runs, measure and read is allowed.")
        if bool(self.runs) > bool(self.metric):
            raise ValueError(f"{self.name}: runs need metric.")
        if len(_texts(self.read_after)) > len(_texts(self.predicted)):
            raise ValueError(f"{self.name}: read_after has more rounds than predicted.")
        if self.is_measured != bool(self.page):
            raise ValueError(f"{self.name}: page goes with measure or read, and they with page.")

    @property
    def is_measured(self) -> bool:
        """Whether ``measure`` or ``read`` stands in the place of runs."""
        return bool(self.measure or self.read)

    @property
    def path(self) -> pathlib.Path:
        """``experiments/<paper>/<file>`` without its ending, relative to the project's root."""
        return pathlib.Path(*self.name.split("."))

    @property
    def rounds(self) -> list[str]:
        """What was predicted and what was read after the runs, in the order in which they were written."""
        pairs = itertools.zip_longest(_texts(self.predicted), _texts(self.read_after), fillvalue="")
        return [text.strip("\n") for pair in pairs for text in pair if text]

    def seeds_at(self, scale: str) -> tuple[int, ...]:
        """Return the seeds of a scale."""
        return tuple(self.seeds.get(scale, SEEDS[scale]))

    def metric_at(self, scale: str) -> dict[str, str | None]:
        """Return heading -> path at a scale: ``metric``, and what its runs alone have."""
        return {**self.metric, **self.also.get(scale, {})}


def _texts(rounds: str | tuple[str, ...]) -> tuple[str, ...]:
    return (rounds,) if isinstance(rounds, str) else rounds


def brief(**evaluators: dict[str, Any]) -> str:
    """Return what a cell of digits need not do, as arguments: the trained encoder alone, two protocols and
    ``evaluators``."""
    columns = {"linear": {"name": "lbfgs"}, "knn": {"name": "knn"}} | evaluators
    return (
        f""" --config.evaluate.rows="('trained',)" --config.evaluators='{json.dumps(columns)}'"""
        " --config.checkpoint.keep_last=1 --config.log.tensorboard=False"
    )


BRIEF = brief()


def screen(epochs: int = 5, **evaluators: dict[str, Any]) -> str:
    """Return a short run at ``small`` or ``small_mnist`` and what judges it, as arguments: linear, 10 labels a class,
    kNN."""
    columns = {
        "linear": {"name": "lbfgs", "tolerance": 1e-4},
        "few_labels": {"name": "lbfgs", "labels_per_class": 10, "draws": 20},
        "knn": {"name": "knn"},
    } | evaluators
    return (
        f" --config.train.duration='{epochs} epochs' --config.schedule.warmup='{epochs / 10:g} epochs'"
        f""" --config.evaluate.rows="('trained',)" --config.evaluators='{json.dumps(columns)}'"""
        " --config.checkpoint.keep_last=1 --config.log.tensorboard=False"
    )


def rates(base: float) -> tuple[float, ...]:
    """Return half, once and twice a learning rate: what a sweep at a small scale tries."""
    return (base / 2, base, 2 * base)


ADAMW_RATES = {
    "small": rates(1e-3),
    "small_mnist": rates(2.5e-4),
}  # on CIFAR-10 the best of 0.00025's was the largest


class Doubtful(float):
    """A printed number that the scan leaves in doubt."""


def doubtful(value: float) -> Doubtful:
    """Mark a printed number that the scan leaves in doubt; rendered with a question mark."""
    return Doubtful(value)


def grid(
    rows: Iterable, columns: Iterable, values: Iterable[Iterable[float | None]]
) -> dict[Cell, float | None]:
    """Return (row, column) -> value, of a table written as it is printed; sizes must agree."""
    return {
        (str(row), str(column)): value
        for row, line in zip(rows, values, strict=True)
        for column, value in zip(columns, line, strict=True)
    }


def table_of(name: str) -> Table:
    """Import a table by its module's name, ``experiments.flatnce.figure_2`` or ``flatnce/figure_2``."""
    name = name.replace("/", ".").removesuffix(".py")
    return importlib.import_module(name if name.startswith("experiments.") else f"experiments.{name}").TABLE


def all_tables() -> list[str]:
    """Return the names of all tables and figures built on this harness, in the order of the papers."""
    found = []
    for paper in PAPERS:
        files = sorted((ROOT / "experiments" / paper).glob("*.py"), key=_natural)
        found += [f"experiments.{paper}.{f.stem}" for f in files if "\nTABLE = " in f.read_text()]
    return found


def _natural(path: pathlib.Path) -> list:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.stem)]


def config_of(arguments: str) -> dict[str, Any]:
    """Return the plain config of a cell's arguments, read as the command reads them.

    Raises:
      ValueError: an unknown file, argument or leaf.
    """
    return json.loads(_config_of(arguments))


@functools.cache
def _config_of(arguments: str) -> str:
    from contrastive_jax import config as configs
    from contrastive_jax.main import split

    spec, overrides, _ = split(["--config", *shlex.split(arguments)])
    try:
        config = configs.resolve(str(ROOT / spec) if "/" in spec else spec, overrides)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{arguments}: {error}") from error
    return json.dumps(configs.plain(config), sort_keys=True)


def stem_of(arguments: str) -> str:
    """Return the name of their config file."""
    return pathlib.Path(arguments.split(maxsplit=1)[0].partition(":")[0]).stem


def command(arguments: str, seed: int) -> str:
    """Return what a stranger types to run one seed of a cell."""
    return f"python -m contrastive_jax.main --config={arguments} --config.seed={seed}"
