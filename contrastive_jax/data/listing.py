"""A CSV, TSV, JSON or JSONL file that says of every image of a folder what its labels and its group are."""

import csv
import json
import pathlib
import posixpath
from collections.abc import Iterator
from typing import Any, NamedTuple

PATHS = ("path", "file_name", "filename", "file", "image")  # what a column of paths is usually called


class Row(NamedTuple):
    """One image's row of a listing."""

    labels: tuple[str, ...]
    group: str  # "": a group of its own


class Listing(NamedTuple):
    """The rows of a listing by path, relative to ``data.dir`` and with /."""

    rows: dict[str, Row]
    several: bool  # images may have any number of labels
    grouped: bool  # it has a column of groups


def read_listing(
    file: pathlib.Path, *, path_key: str, label_key: str, label_separator: str, group: str
) -> Listing:
    """Read a listing.

    Tables (CSV and TSV with a header; JSON as a list of objects; JSONL, an object a line) have a column of
    paths and one of labels. A JSON object is path -> label, or path -> object. A label is a string or a whole
    number; a list of them, or a cell with separators, is several labels of one image, and then every image of
    the set may have any number of them. An empty cell, "" or null is no label.

    Args:
        file: by its ending: .csv, .tsv, .json or .jsonl.
        path_key: the column of paths; "" is the first of ``PATHS`` that there is.
        label_key: the column of labels; "" leaves labels out.
        label_separator: in CSV and TSV, what stands between several labels in a cell; "" is one label.
        group: the column of groups, where there is one of this name.

    Raises:
        ValueError: in a sentence, with the line: no such column, a path twice or outside the folder, a label
            of another kind.
    """
    try:
        return _read(file, path_key, label_key, label_separator, group)
    except (ValueError, csv.Error) as error:  # of the JSON and UTF-8 decoders, too
        raise ValueError(f"data.labels={file}: {error}") from error


def _read(file: pathlib.Path, path_key: str, label_key: str, label_separator: str, group: str) -> Listing:
    table = file.suffix.lower() in (".csv", ".tsv")
    if label_separator and not table:
        raise ValueError(
            f"data.label_separator={label_separator!r} is for CSV; in JSON several labels are a list"
        )
    entries = list(_table(file) if table else _json(file, label_key))
    if not entries:
        raise ValueError("it has no rows")
    columns = entries[0][1]
    path_key = path_key or next((name for name in PATHS if name in columns), PATHS[0])
    grouped = bool(group) and group in columns
    needed = {"path_key": path_key, "label_key": label_key, "group": group if grouped else ""}
    rows, places, several = {}, {}, bool(label_separator and label_key)
    for place, entry in entries:
        for option, key in needed.items():
            if key and key not in entry:
                raise ValueError(f"{place} has no {key!r} (data.{option}), but {', '.join(entry)}")
        path = _relative(entry[path_key], place)
        if path in rows:
            raise ValueError(f"{path} is there twice: {places[path]} and {place}")
        value = entry[label_key] if label_key else None
        if several and label_separator:
            value = [part.strip() for part in value.split(label_separator) if part.strip()]
        several |= isinstance(value, list)
        own = entry[group] if grouped else None
        rows[path] = Row(_names(value, place), "" if own is None else str(own))
        places[path] = place
    return Listing(rows, several, grouped)


def _table(file: pathlib.Path) -> Iterator[tuple[str, dict[str, str]]]:
    with open(file, newline="", encoding="utf-8-sig") as text:  # Excel begins with a byte order mark
        reader = csv.DictReader(text, delimiter="\t" if file.suffix.lower() == ".tsv" else ",", strict=True)
        header = [name.strip() for name in reader.fieldnames or ()]
        if twice := {name for name in header if header.count(name) > 1}:  # else the last would count
            raise ValueError(f"its header has {min(twice)!r} twice")
        for entry in reader:
            if None in entry or None in entry.values():
                raise ValueError(
                    f"line {reader.line_num} has not the {len(reader.fieldnames)} cells of the header"
                )
            yield f"line {reader.line_num}", {name.strip(): value.strip() for name, value in entry.items()}


def _json(file: pathlib.Path, label_key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if file.suffix.lower() == ".jsonl":
        lines = file.read_text(encoding="utf-8-sig").split(
            "\n"
        )  # not at U+2028, which JSON's strings may have
        content = [(f"line {i}", _parsed(line)) for i, line in enumerate(lines, 1) if line.strip()]
    elif file.suffix.lower() == ".json":
        content = _parsed(file.read_text(encoding="utf-8-sig"))
        if isinstance(content, dict):
            content = [(repr(path), _with_path(path, x, label_key)) for path, x in content.items()]
        elif isinstance(content, list):
            content = [(f"entry {i}", entry) for i, entry in enumerate(content)]
        else:
            raise ValueError("it is neither a list nor an object")
    else:
        raise ValueError("it is none of .csv, .tsv, .json and .jsonl")
    for place, entry in content:
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: an object is expected, not {entry!r}")
        yield place, entry


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except RecursionError:
        raise ValueError("its JSON is nested too deep to be read") from None


def _with_path(path: str, entry: Any, label_key: str) -> dict[str, Any]:
    """Return an entry of path -> label or object, its path within."""
    if not isinstance(entry, dict):
        return {PATHS[0]: path, label_key or "label": entry}
    if entry.get(PATHS[0], path) != path:
        raise ValueError(f"{path!r} has another {PATHS[0]} within, {entry[PATHS[0]]!r}")
    return {PATHS[0]: path} | entry


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its pairs, or refuse it; Python would take the last of several equal keys in silence."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)} is there twice")
    return entries


def _relative(path: Any, place: str) -> str:
    if not isinstance(path, str) or not path:
        raise ValueError(f"{place}: {path!r} is no path")
    clean = posixpath.normpath(path)
    if clean.startswith(("/", "..")):
        raise ValueError(f"{place}: {path} does not lie inside data.dir; paths are relative to it")
    return clean


def _names(value: Any, place: str) -> tuple[str, ...]:
    """Read the names of labels: none, one or several."""
    values = value if isinstance(value, list) else [] if value in (None, "") else [value]
    for name in values:
        if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
            raise ValueError(f"{place}: a label is a name or a whole number, not {name!r}")
    return tuple(dict.fromkeys(str(name) for name in values))
