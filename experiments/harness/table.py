"""What a table is: a module that says what would be run and what the paper printed."""

import functools
import importlib
import json
import pathlib
import re
import shlex
from collections.abc import Iterable
from types import ModuleType
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]


SCALES = ("paper", "gpu", "small", "small_mnist", "cpu", "smoke")  # the first have the more to say


SMALL = ("small", "small_mnist")


SEEDS = {scale: (0, 1, 2) for scale in SCALES} | {
    **dict.fromkeys(SMALL, (0, 1, 2, 3, 4)),
    "smoke": (0,),
}


FEW = "10 labels a class, %"
ALL_LABELS, TEN_LABELS, NEIGHBOURS = (
    "trained.linear.top1 %",
    "trained.few_labels.top1 %",
    "trained.knn.top1 %",
)
MEASURES = {"all labels": ALL_LABELS, "10 labels a class": TEN_LABELS, "kNN": NEIGHBOURS}  # of one accuracy
KNN_TOO = {"kNN top-1, %": NEIGHBOURS}
FEW_LABELS = dict.fromkeys(SMALL, {FEW: TEN_LABELS} | KNN_TOO)  # what `screen` adds, as ALSO
OWN_DRAWS = {
    "name": "lbfgs",
    "labels_per_class": 10,
    "draws": 20,
    "seed": -1,
}  # of labels, by each run's own seed
BY_FEW_LABELS = {"small_mnist": TEN_LABELS}  # as CHOOSES: what judges there chooses too


VALIDATION = 0.2  # of the training images, where a SWEEP chooses


PAPERS = ("flatnce", "intriguing", "eqco", "less_can_be_more", "macl", "family")  # folders of tables


Cell = tuple[str, str]  # (row, column)


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


def table_of(name: str) -> ModuleType:
    """Import a table by its module's name, ``experiments.flatnce.figure_2`` or ``flatnce/figure_2``."""
    name = name.replace("/", ".").removesuffix(".py")
    module = importlib.import_module(name if name.startswith("experiments.") else f"experiments.{name}")
    for attribute, default in {
        "RUNS": {},
        "METRIC": {},
        "ALSO": {},
        "REPORTED": {},
        "ASSUMED": {},
        "CLAIMS": (),
        "NEEDS": {},
        "CURVES": (),
    }.items():
        if not hasattr(module, attribute):
            setattr(module, attribute, default)
    return module


def all_tables() -> list[str]:
    """Return the names of all tables and figures built on this harness, in the order of the papers."""
    found = []
    for paper in PAPERS:
        files = sorted((ROOT / "experiments" / paper).glob("*.py"), key=_natural)
        found += [
            f"experiments.{paper}.{f.stem}" for f in files if "sys.exit(harness.main())" in f.read_text()
        ]
    return found


def _natural(path: pathlib.Path) -> list:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.stem)]


def where(table: ModuleType) -> pathlib.Path:
    """Return ``experiments/<paper>/<file>`` without its ending, relative to the project's root."""
    return pathlib.Path(table.__file__).resolve().relative_to(ROOT).with_suffix("")


def seeds_of(table: ModuleType, scale: str) -> tuple[int, ...]:
    """Return the seeds of a scale."""
    return tuple(getattr(table, "SEEDS", SEEDS).get(scale, SEEDS[scale]))


def metric_of(table: ModuleType, scale: str) -> dict[str, str | None]:
    """Return heading -> path at a scale: METRIC, and what its runs alone have."""
    return table.METRIC | table.ALSO.get(scale, {})


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
