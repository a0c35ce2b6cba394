"""Atomically written text and JSON files."""

import contextlib
import json
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write ``path`` atomically: a concurrent reader gets the old text or the new one."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write ``value`` atomically as indented JSON; NaN and the infinities become strings."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


class Broken(ValueError):
    """Error for a file with other content than this package writes there; the message names it."""


def read_json(path: str | os.PathLike, kind: type = object) -> Any:
    """Read a file of :func:`write_json`, with NaN and the infinities as numbers.

    Raises:
        Broken: the file is not JSON, or its value is not of type ``kind``, dict or list.
    """
    text = epath.Path(path).read_bytes()
    try:
        value = numbers(json.loads(text))
    except (
        ValueError,
        RecursionError,
    ) as error:  # also for text that is not UTF-8, and for deeply nested values
        why = f"it is not JSON ({_short(error)})" if text else "it is empty"
        raise Broken(f"{path} is broken: {why}.") from None
    if not isinstance(value, kind):
        names: dict[type, str] = {dict: "an object", list: "a list"}
        raise Broken(
            f"{path} is broken: it must hold {names[kind]}, and it holds {_short(json.dumps(value))}."
        )
    return value


def _short(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 80 else f"{line[:77]}..."


def write_config(workdir: str | os.PathLike, config: Mapping[str, Any], diff: str) -> None:
    """Write ``config.json``, and the leaves that differ from the base config to ``config_diff.txt``."""
    write_json(pathlib.Path(workdir, "config.json"), config)
    write_text(pathlib.Path(workdir, "config_diff.txt"), diff.rstrip("\n") + "\n")


@contextlib.contextmanager
def replacing(path):
    """Yield a temporary path beside ``path`` that replaces it if the block ends without an error."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = pathlib.Path(name)
    try:
        yield temporary
        mask = os.umask(0)  # mkstemp's files are private to their owner; a run's files have usual permissions
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)  # the error of a failed write does not name its file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def shareable(value: Any) -> Any:
    """Return a value whose texts have absolute paths reduced to their last name, for files that are shared."""
    if isinstance(value, Mapping):
        return {key: shareable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shareable(item) for item in value]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        return value
    if os.path.isabs(value) and "\n" not in value:  # the whole text is a path, even with blanks
        return os.path.basename(value.rstrip("/")) or "/"
    for own in _own_folders():  # their names may contain blanks
        value = value.replace(f"{own.rstrip('/')}/", "/")
    return _PATH.sub(lambda found: found[1].rpartition("/")[2], value)


def _own_folders() -> list[str]:
    """Return the home folder and the current one, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        return [os.path.expanduser("~"), os.getcwd()]
    return [os.path.expanduser("~")]


# An absolute path in a text: after a blank, quote, bracket, comma, colon or =, up to a blank, quote, bracket or
# separator.
_PATH = re.compile(
    r"""(?<![^\s'"`(\[{=:,])((?:~[\w.-]*)?(?:/[^\s'"`()\[\]{}/,;:]+)+)(?=$|[\s'"`()\[\]{},;:]|/)/?"""
)


def plain(value: Any) -> Any:
    """Convert ``value`` to JSON's types; NaN and the infinities become strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def free_name(path: pathlib.Path, word: str) -> pathlib.Path:
    """Return ``<name>.<word>``, ``<name>.<word>-2`` and so on: the first that does not exist."""
    aside, number = path.with_name(f"{path.name}.{word}"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.{word}-{number}")
    return aside


def numbers(value: Any) -> Any:
    """Convert the strings "NaN", "Infinity" and "-Infinity" of :func:`plain` back to numbers."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity") else value
