"""Files of labels and groups for the images of a folder: CSV, TSV, JSON or JSONL."""

import codecs
import csv
import io
import json
import os
import pathlib
import posixpath
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

LABELS = ("label", "labels")  # usual names of labels in tables and JSON
PATHS = ("path", "file_name", "filename", "file", "image")  # usual names of the column of paths
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")  # not the end of a column's name


Names = tuple[str, ...] | None  # the labels of an image; None: not known


class Row(NamedTuple):
    """One image's row of a listing."""

    labels: Names
    group: str  # "": a group of its own


class Listing(NamedTuple):
    """Rows of a listing by path, relative to ``data.dir`` and with /."""

    rows: dict[str, Row]
    several: bool  # whether images may have any number of labels
    grouped: bool  # whether there is a column of groups


def read_listing(
    file: pathlib.Path,
    *,
    path_key: str,
    label_key: str,
    label_separator: str,
    group: str,
    root: pathlib.Path | None = None,
    known: Collection[str] = (),
) -> Listing:
    """Read a file of labels and groups.

    Tables (CSV and TSV with a header, JSON as a list of objects, JSONL with one object per line) have a column
    of paths and one of labels. A JSON object is path -> label, or path -> object. A label is a string or an
    integer. If some label is a list, or ``label_separator`` is set, every image of the set may have any number
    of labels, or none (an empty list or cell). An empty cell, "" or null without lists means no label; -1 is refused.

    Files are UTF-8, or UTF-16 as written by Excel and PowerShell. A CSV may be separated by semicolons or tabs
    if its header then has the columns. A path that is not in ``known`` is also tried with its backslashes as /,
    as an absolute path inside ``root``, as the part behind the name of ``root``, and with its accents in the
    other Unicode form.

    Args:
        file: path of the file, which ends in .csv, .tsv, .json or .jsonl.
        path_key: column of paths; "": the first of ``PATHS`` that exists.
        label_key: column of labels; "": no labels.
        label_separator: separator of several labels in a CSV or TSV cell; "": one label.
        group: column of groups, ignored if there is no such column.
        root: ``data.dir``.
        known: paths of its images, relative and with /.

    Raises:
        ValueError: a missing column, a path that occurs twice or is outside of the folder, or a label of
            another type; the message gives the line.
    """
    try:
        paths = _Paths(root, known)
        return _read(file, path_key, label_key, label_separator, group, paths.relative)
    except RecursionError:
        raise ValueError(f"data.labels is {file}; it is nested too deeply for a list of labels") from None
    except ValueError as error:  # of the JSON decoder, too
        raise ValueError(f"data.labels is {file}; {error}") from error


def _read(
    file: pathlib.Path,
    path_key: str,
    label_key: str,
    label_separator: str,
    group: str,
    relative: Callable[[Any, str], str],
) -> Listing:
    table = file.suffix.lower() in (".csv", ".tsv")
    if label_separator and not table:
        raise ValueError(
            f"data.label_separator is {label_separator!r}; it must be '' for JSON, where several labels"
            " are a list"
        )
    wanted = [*([(path_key,)] if path_key else [PATHS]), *([(label_key,)] if label_key else [])]
    entries = list(_table(file, wanted) if table else _json(file, label_key))
    if not entries:
        raise ValueError("it has no rows")
    columns = list(entries[0][1])
    path_key = next(
        (name for key in ((path_key,) if path_key else PATHS) if (name := _column(key, columns))),
        path_key or PATHS[0],
    )
    label_key = _column(label_key, columns) or label_key
    grouped = bool(group) and group in columns
    needed = {"path_key": path_key, "label_key": label_key, "group": group if grouped else ""}
    rows: dict[str, Row] = {}
    places: dict[str, str] = {}
    several = bool(label_separator and label_key)
    for place, entry in entries:
        for option, key in needed.items():
            if key and key not in entry:
                raise ValueError(f"{place} has no {key!r} (data.{option}); it has {', '.join(entry)}")
        path = relative(entry[path_key], place)
        if path in rows:
            raise ValueError(f"{path} occurs twice: {places[path]} and {place}")
        value = entry[label_key] if label_key else None
        if label_separator and value is not None:
            value = [part.strip() for part in value.split(label_separator) if part.strip()]
        several |= isinstance(value, list)
        if any(label in (-1, "-1") for label in (value if isinstance(value, list) else [value])):
            raise ValueError(
                f"{place}: the label is -1, which means no label in other formats; leave it empty for an image"
                " without a label, or give the class another name"
            )
        own = entry[group] if grouped else None
        rows[path] = Row(label_names(value, place), "" if own is None else str(own))
        places[path] = place
    return Listing(rows, several, grouped)


def _text(file: pathlib.Path) -> str:
    """Return a file's text, which is UTF-8, or UTF-16 or UTF-32 by its byte order mark or its zeros."""
    content = file.read_bytes()
    marks = {"utf-8-sig": codecs.BOM_UTF8, "utf-32": codecs.BOM_UTF32_LE, "utf-16": codecs.BOM_UTF16_LE}
    marks_of_others = {"utf-32": codecs.BOM_UTF32_BE, "utf-16": codecs.BOM_UTF16_BE}
    encoding = next(
        (
            name
            for some in (marks, marks_of_others)
            for name, mark in some.items()
            if content.startswith(mark)
        ),
        "",
    )
    if not encoding:
        zeros = [content[i:400:2].count(0) for i in (0, 1)]
        encoding = (
            "utf-16-le" if zeros[1] > 4 * zeros[0] else "utf-16-be" if zeros[0] > 4 * zeros[1] else "utf-8"
        )
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        if not encoding.startswith("utf-8"):
            raise ValueError(
                f"it starts as {encoding.upper()} but is not {encoding.upper()}: save it as UTF-8"
            ) from None
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line} is not UTF-8 (byte 0x{content[error.start]:02x}), perhaps an older encoding"
            " such as Windows' cp1252, which cannot be recognised: save it as UTF-8 (Excel: CSV UTF-8;"
            f" pandas: to_csv(encoding='utf-8'); or iconv -f CP1252 -t UTF-8 {file.name})"
        ) from None


def _column(key: str, columns: Collection[str]) -> str:
    """Return the column named ``key``, or else the only one that differs in letter case alone, or ""."""
    alike = [key] if key in columns else [name for name in columns if name.lower() == key.lower()]
    return alike[0] if key and len(alike) == 1 else ""


def _separator(text: str, usual: str, wanted: Collection[Collection[str]]) -> str:
    """Return the separator of the cells: the usual one, or another with which the header has the columns."""
    for separator in dict.fromkeys((usual, ",", ";", "\t", "|")):
        header = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
        names = [name.strip() for name in header]
        if all(any(_column(key, names) for key in some) for some in wanted) and (
            len(names) > 1 or separator == usual
        ):
            return separator
    return usual


def _table(file: pathlib.Path, wanted: Collection[Collection[str]]) -> Iterator[tuple[str, dict[str, str]]]:
    text, skipped, usual = _text(file), 0, "\t" if file.suffix.lower() == ".tsv" else ","
    if told := re.match(r"sep=(.)\r?\n", text):  # a first line that Excel adds
        text, usual, skipped = text[told.end() :], told[1], 1
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=_separator(text, usual, wanted), strict=True
    )
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        if any(posixpath.splitext(name)[1].lower() in IMAGES for name in header):
            raise ValueError(
                f"line {1 + skipped} is a row, not a header ({', '.join(header)}): add a line of column"
                " names before it, such as path,label"
            )
        if twice := {name for name in header if header.count(name) > 1}:  # otherwise the last would count
            raise ValueError(f"its header contains {min(twice)!r} twice")
        for entry in reader:
            place = f"line {reader.line_num + skipped}"
            if None in entry or None in entry.values():
                raise ValueError(f"{place} does not have {len(header)} cells like the header")
            yield place, {name.strip(): value.strip() for name, value in entry.items()}
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num + skipped}: {error}") from None


def _json(file: pathlib.Path, label_key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if file.suffix.lower() == ".jsonl":
        lines = _text(file).split("\n")  # not splitlines: JSON's strings may contain U+2028
        content = [(f"line {i}", _line(line, i)) for i, line in enumerate(lines, 1) if line.strip()]
    elif file.suffix.lower() == ".json":
        content = parse_json(_text(file))
        if isinstance(content, dict):
            content = [(repr(path), _with_path(path, x, label_key)) for path, x in content.items()]
        elif isinstance(content, list):
            content = [(f"entry {i}", entry) for i, entry in enumerate(content)]
        else:
            raise ValueError("it must be a list or an object")
    else:
        raise ValueError("its name must end in .csv, .tsv, .json or .jsonl; save a spreadsheet as CSV UTF-8")
    for place, entry in content:
        if not isinstance(entry, dict):
            raise ValueError(f"{place} is {entry!r}; it must be an object")
        yield place, entry


def _line(line: str, number: int) -> Any:
    try:
        return parse_json(line)
    except json.JSONDecodeError as error:  # it counts lines from this line
        raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from None
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def parse_json(text: str) -> Any:
    """Return the content of a JSON text; raise ValueError for a repeated key or too deep nesting too."""
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except ValueError as error:
        if "int_max_str_digits" in str(error):
            raise ValueError("its JSON has an integer of thousands of digits") from None
        raise


def _with_path(path: str, entry: Any, label_key: str) -> dict[str, Any]:
    """Return an entry of path -> label or object as an object that includes the path."""
    if not isinstance(entry, dict):
        return {PATHS[0]: path, label_key or "label": entry}
    if entry.get(PATHS[0], path) != path:
        raise ValueError(f"the entry {path!r} contains another {PATHS[0]}, {entry[PATHS[0]]!r}")
    return {PATHS[0]: path} | entry


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs; refuse repeated keys, as Python would silently drop all but one."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)} occurs twice")
    return entries


class _Paths:
    """Conversion of a listing's paths to those of images."""

    def __init__(self, root: pathlib.Path | None, known: Collection[str]):
        self._known = frozenset(known)
        self._root = "" if root is None else os.path.abspath(root)
        self._alike: dict[str, str] | None = None

    def relative(self, path: Any, place: str) -> str:
        """Return a path relative to the root, with /.

        Raises:
            ValueError: it is not a path, or is outside of the root.
        """
        if not isinstance(path, str) or not path:
            raise ValueError(f"{place}: {path!r} is not a path")
        clean = posixpath.normpath(path)
        if clean in self._known:
            return clean
        for other in self._readings(clean):
            if other in self._known:
                return other
        if clean.startswith(("/", "..")) or re.match(r"[A-Za-z]:[\\/]", path):
            where = f" {self._root}" if self._root else ""
            raise ValueError(f"{place}: {path} is outside data.dir{where}; paths must be relative to it")
        return clean

    def _readings(self, path: str) -> Iterator[str]:
        slashes = posixpath.normpath(path.replace("\\", "/"))
        yield slashes
        name = posixpath.basename(self._root)
        for root in filter(None, (self._root, os.path.realpath(self._root) if self._root else "")):
            if slashes.startswith(f"{root}/"):
                yield slashes[len(root) + 1 :]
        parts = slashes.split("/")
        yield from ("/".join(parts[i + 1 :]) for i, part in enumerate(parts) if part == name)
        if not slashes.isascii():  # macOS decomposes accents
            if self._alike is None:
                self._alike = {unicodedata.normalize("NFC", one): one for one in self._known}
            yield self._alike.get(unicodedata.normalize("NFC", slashes), slashes)


def known_label(value: Any) -> Any:
    """Return a stored label, or list of labels, without the nulls and -1 that mean none; None if nothing is left."""
    if isinstance(value, list) and value:
        return [one for one in value if one not in (None, -1)] or None
    return None if value in (None, -1) else value


def label_names(value: Any, place: str) -> Names:
    """Return the names of an entry's labels, None for null or an empty text.

    Raises:
        ValueError: with ``place``, a label that is not a name, or a multi-hot list.
    """
    if value in (None, ""):
        return None
    values = value if isinstance(value, list) else [value]
    for name in values:
        if isinstance(name, bool) or not isinstance(name, str | int) or name == "" or _halved(name):
            raise ValueError(f"{place}: the label is {name!r}; it must be a name or a whole number")
    if len(values) > 1 and {"0", "1"} >= {*map(str, values)} and len({*values}) < len(values):
        raise ValueError(
            f"{place}: the labels are {values!r:.80}, which is a multi-hot list; they must be the names or numbers of"
            " the classes that the image belongs to, each once"
        )
    return tuple(dict.fromkeys(str(name) for name in values))


def _halved(name: str | int) -> bool:
    """Return whether a text has an unpaired surrogate, which JSON can express and UTF-8 cannot."""
    return isinstance(name, str) and any("\ud800" <= c <= "\udfff" for c in name)
