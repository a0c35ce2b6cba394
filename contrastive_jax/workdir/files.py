"""Files, written whole or not at all."""

import contextlib
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write ``path`` atomically: whoever reads it, at any moment, sees the old text or the new."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write ``value`` atomically as indented JSON; NaN and the infinities become strings."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | os.PathLike) -> Any:
    """Read what :func:`write_json` wrote, NaN and the infinities as numbers."""
    try:
        return numbers(json.loads(pathlib.Path(path).read_text()))
    except RecursionError:
        raise ValueError(f"{path} is JSON that is nested too deep to be read.") from None


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
    finally:
        temporary.unlink(missing_ok=True)


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
