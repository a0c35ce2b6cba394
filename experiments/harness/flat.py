"""All kept runs as a table, ``experiments/results.csv``, and a page that draws it, ``experiments/explore.html``."""

import csv
import io
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contrastive_jax.evaluators import ROWS
from experiments.harness import records
from experiments.harness.table import ROOT

CSV = ROOT / "experiments" / "results.csv"
PAGE = ROOT / "experiments" / "explore.html"
TEMPLATE = pathlib.Path(__file__).with_name("explore.html")
ABOUT = ("record", "config", "scale", "seed", "loss", "device", "jax", "git_commit", "seconds", "diverged")
# The first word of a measure's column; the other columns are leaves of the config.
MEASURES = (*ROWS, "metrics", "curves")
NOT_DRAWN = re.compile(
    r"evaluate\.|evaluators\.|log\.|curves\.|metrics\.(timing|epoch|step)|git_commit|diverged"
    r"|.*(mean_per_class|top5|_std$|converged$|intra_class_distances\.)"
)
DIGITS = 5  # of the page's numbers

Row = dict[str, Any]


def rows() -> list[Row]:
    """Return a row for each seed of each record, by the record's name and the seed: column -> value, known ones only.

    Columns are ``ABOUT``, the config's leaves, the numbers of evaluations (``trained.knn.top1``), the last metrics of
    training (``metrics.ess``) and the last points of kept curves (``curves.ess``).
    """
    return [
        _row(file.stem, record, seed, record["seeds"][seed])
        for file in sorted(records.folder().glob("*.json"))
        for record in [records.read(file.stem)]
        for seed in sorted(record["seeds"], key=int)
    ]


def _row(key: str, record: Mapping[str, Any], seed: str, result: Mapping[str, Any]) -> Row:
    leaves = records.SINCE | record["config"]
    scale = re.search(r"\bscale=(\w+)", record["arguments"])
    device = result.get("device", record.get("device", {}))
    versions = result.get("versions", record.get("versions", {}))
    terms = [
        name.split(".")[1] for name in leaves if re.fullmatch(r"loss\.\w+\.weight", name) and leaves[name]
    ]
    about = {
        "record": key,
        "config": key.rpartition("-")[0],
        "scale": scale[1] if scale else "paper",
        "seed": int(seed),
        "loss": "+".join(sorted(terms)),
        "device": device.get("kind"),
        "jax": versions.get("jax"),
        "git_commit": result.get("git_commit", record.get("git_commit")),
        "seconds": result.get("seconds"),
        "diverged": result.get("diverged"),
    }
    found = dict(_numbers(result.get("evaluations", {})))
    found |= {f"metrics.{name}": value for name, value in _numbers(result.get("metrics", {}))}
    found |= {
        f"curves.{name}": values[-1] for name, (_, values) in result.get("curves", {}).items() if values
    }
    return {name: value for name, value in about.items() if value is not None} | leaves | found


def _numbers(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value
        elif value in records.NOT_FINITE:
            yield f"{prefix}{name}", float(value)


def leaves(found: Sequence[Row]) -> list[str]:
    """Return the config's leaves in which runs differ, or which only some have.

    An evaluator's option with one value wherever it is used is left out: its measures show its use.
    """
    names = {name for row in found for name in row if name not in ABOUT and not _measured(name)}
    kept = []
    for name in sorted(names):
        values = {json.dumps(row[name]) for row in found if name in row}
        some = not name.startswith("evaluators.") and any(name not in row for row in found)
        if len(values) > 1 or some:
            kept.append(name)
    return kept


def _measured(name: str) -> bool:
    return name.partition(".")[0] in MEASURES and "." in name


def measures(found: Sequence[Row]) -> list[str]:
    """Return the columns of evaluations, then of metrics, then of curves."""
    names = {name for row in found for name in row if _measured(name)}
    return sorted(names, key=lambda name: (name.startswith("curves."), name.startswith("metrics."), name))


def cell(value: Any) -> str:
    """Write a value: text as it is, anything else, and text that could be read as that, as JSON."""
    if isinstance(value, str) and value == read(value) != "":
        return value
    return json.dumps(value)


def read(text: str) -> Any:
    """Read a cell: JSON, or text; None of an empty one, and of ``null``."""
    try:
        return json.loads(text) if text else None
    except json.JSONDecodeError:
        return text


def table(found: Sequence[Row], names: Sequence[str]) -> str:
    """Write the table as RFC 4180 has it, with line feeds; what a run does not have is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([cell(row[name]) if name in row else "" for name in names] for row in found)
    return file.getvalue()


def page(found: Sequence[Row], names: Sequence[str]) -> str:
    """Write the page: the columns that are worth drawing, a line each, inside of ``harness/explore.html``."""
    data = {name: _column([row.get(name) for row in found]) for name in names if not NOT_DRAWN.match(name)}
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(column)}" for name, column in data.items())
    return TEMPLATE.read_text().replace("DATA", "{\n" + text.replace("</", "<\\/") + "\n}", 1)


def _column(values: Sequence[Any]) -> dict[str, Any]:
    """Return numbers as ``{"at": "1,,2.5"}``, other values as ``{"of": ["a"], "at": "0,,0"}``; nothing is nothing."""
    column: dict[str, Any] = {}
    if not all(value is None or type(value) in (int, float) for value in values):
        texts = [None if value is None else cell(value) for value in values]
        column["of"] = sorted({text for text in texts if text is not None})
        index = {text: i for i, text in enumerate(column["of"])}
        values = [index.get(text) for text in texts]
    return column | {"at": ",".join(map(_short, values))}


def _short(value: float | None) -> str:
    """Write a number with the page's digits; nothing for what cannot be drawn, as nan."""
    if value is None or not math.isfinite(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.{DIGITS}g}"


def files() -> dict[pathlib.Path, str]:
    """Return file -> text of the table and of the page."""
    found = rows()
    names = [*ABOUT, *leaves(found), *measures(found)]
    return {CSV: table(found, names), PAGE: page(found, names)}
