"""Files, written whole or not at all."""

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
    """Write ``path`` atomically: whoever reads it, at any moment, sees the old text or the new."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write ``value`` atomically as indented JSON; NaN and the infinities become strings."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


class Broken(ValueError):
    """A file that does not hold what this package writes there; the message names it."""


def read_json(path: str | os.PathLike, kind: type = object) -> Any:
    """Read what :func:`write_json` wrote, NaN and the infinities as numbers.

    Raises:
        Broken: the file is no JSON, or holds another ``kind`` of value: dict or list.
    """
    text = epath.Path(path).read_bytes()
    try:
        value = numbers(json.loads(text))
    except (
        ValueError,
        RecursionError,
    ) as error:  # also of text that is not UTF-8, and of values nested deeply
        why = f"it is no JSON ({_short(error)})" if text else "it is empty"
        raise Broken(f"{path} is broken: {why}.") from None
    if not isinstance(value, kind):
        names = {dict: "an object", list: "a list"}
        raise Broken(
            f"{path} is broken: {names[kind]} is expected, and it holds {_short(json.dumps(value))}."
        )
    return value


def _short(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 80 else f"{line[:77]}..."


def write_config(workdir: str | os.PathLike, config: Mapping[str, Any], diff: str) -> None:
    """Write ``config.json``, and in ``config_diff.txt`` the leaves that differ from the base."""
    write_json(pathlib.Path(workdir, "config.json"), config)
    write_text(pathlib.Path(workdir, "config_diff.txt"), diff.rstrip("\n") + "\n")


@contextlib.contextmanager
def replacing(path):
    """Yield a temporary path beside ``path`` that takes its place when the block ends without an error."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = pathlib.Path(name)
    try:
        yield temporary
        mask = os.umask(0)  # mkstemp makes files for the owner alone; what a run leaves is like any file
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)  # a write that fails does not name its file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def shareable(value: Any) -> Any:
    """Return a value without the absolute paths in its texts, for files that are sent to others: a path's last name."""
    if isinstance(value, Mapping):
        return {key: shareable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shareable(item) for item in value]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        return value
    if os.path.isabs(value) and "\n" not in value:  # the whole text, blanks and all
        return os.path.basename(value.rstrip("/")) or "/"
    for own in filter(None, (os.path.expanduser("~"), os.getcwd())):  # their names may have blanks
        value = value.replace(f"{own.rstrip('/')}/", "/")
    return _PATH.sub(lambda found: found[1].rpartition("/")[2], value)


# In a text: after a blank, a quote, a bracket, = or :, up to a blank, a quote, a bracket or a separator.
_PATH = re.compile(
    r"""(?<![^\s'"`(\[{=:,])((?:~[\w.-]*)?(?:/[^\s'"`()\[\]{}/,;:]+)+)(?=$|[\s'"`()\[\]{},;:]|/)/?"""
)


def plain(value: Any) -> Any:
    """Bring ``value`` to JSON's own types."""
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


def numbers(value: Any) -> Any:
    """Bring the texts that :func:`plain` made of numbers back to numbers."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity") else value
