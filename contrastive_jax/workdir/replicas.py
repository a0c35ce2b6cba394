"""Layout of the workdir of replicas: what differs between them, and a folder each, as of a single run."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from contrastive_jax.workdir.files import write_json

TABLE = "replicas.json"  # a line a replica: the leaves that differ, and their values


def folder(workdir: str | os.PathLike, number: int) -> epath.Path:
    """Return the workdir of replica ``number``."""
    return epath.Path(workdir) / f"replica_{number}"


def folders(workdir: str | os.PathLike) -> list[epath.Path]:
    """Return the workdirs of the replicas of a workdir; none of a single run's."""
    return [folder(workdir, number) for number in range(len(differences(workdir)))]


def differences(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the leaves in which each replica of a workdir differs from others; none of a single run's."""
    file = epath.Path(workdir) / TABLE
    try:
        return json.loads(file.read_text()) if file.is_file() else []
    except RecursionError:
        raise ValueError(f"{file} is JSON that is nested too deep to be read.") from None


def words(differences: Sequence[Mapping[str, Any]]) -> str:
    """Return a name of replicas: what differs, and its values."""
    names = differences[0]
    return ", ".join(f"{name}={','.join(dict.fromkeys(str(d[name]) for d in differences))}" for name in names)


def write(workdir: str | os.PathLike, differences: list[dict[str, Any]]) -> None:
    """Write what differs between the replicas of a workdir."""
    write_json(epath.Path(workdir) / TABLE, differences)


def divergence(workdir: str | os.PathLike, number: int) -> str | None:
    """Return why a replica diverged; None: it has not."""
    file = folder(workdir, number) / "diverged.json"
    return json.loads(file.read_text())["diverged"] if file.is_file() else None


def forget_divergence(workdir: str | os.PathLike, number: int) -> None:
    """Remove what :func:`write_divergence` wrote: the replica starts anew."""
    (folder(workdir, number) / "diverged.json").unlink(missing_ok=True)


def write_divergence(workdir: str | os.PathLike, number: int, why: str) -> None:
    """Write why a replica diverged."""
    write_json(folder(workdir, number) / "diverged.json", {"diverged": why})
