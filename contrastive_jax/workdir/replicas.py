"""Layout of a workdir of replicas: a file of their differences, and a folder per replica like a run's."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from contrastive_jax.workdir import remote
from contrastive_jax.workdir.files import Broken, read_json, write_json

TABLE = "replicas.json"  # a list with the differing options and their values of each replica


def folder(workdir: str | os.PathLike, number: int) -> epath.Path:
    """Return the workdir of replica ``number``."""
    return epath.Path(workdir) / f"replica_{number}"


def folders(workdir: str | os.PathLike) -> list[epath.Path]:
    """Return the workdirs of the replicas of a workdir; empty for a single run."""
    return [folder(workdir, number) for number in range(len(differences(workdir)))]


def places(workdir: str | os.PathLike, count: int) -> list[str | os.PathLike]:
    """Return the workdir of each of ``count`` runs that train together; for one run, the workdir itself."""
    return [workdir] if count == 1 else [str(folder(workdir, number)) for number in range(count)]


def checkpoints(workdir: str | os.PathLike, number: int) -> epath.Path:
    """Return the folder of the checkpoints of replica ``number``; for an address, in the remote store."""
    return folder(remote.checkpoints(workdir).parent, number) / remote.CHECKPOINTS


def differences(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the options in which the replicas of a workdir differ, for each replica; empty for a single run.

    Raises:
        Broken: the file of the differences is damaged.
    """
    file = epath.Path(workdir) / TABLE
    if not file.is_file():
        return []
    table = read_json(file, list)
    if not all(isinstance(row, dict) and row for row in table):
        raise Broken(f"{file} is broken: it must hold an object of options for each replica.")
    return table


def words(differences: Sequence[Mapping[str, Any]]) -> str:
    """Return a name for replicas: the differing options and their values."""
    names = differences[0]
    return ", ".join(f"{name}={','.join(dict.fromkeys(str(d[name]) for d in differences))}" for name in names)


def who(numbers: Sequence[int], count: int) -> str:
    """Return the prefix of a message about some of ``count`` replicas; empty for a single run."""
    if count == 1:
        return ""
    some = f"replica{'s' if numbers[1:] else ''} {', '.join(map(str, numbers))}"
    return f"{'all replicas' if len(numbers) == count else some}: "


def write(workdir: str | os.PathLike, differences: list[dict[str, Any]]) -> None:
    """Write the differences between the replicas of a workdir; for a single run, write nothing."""
    if len(differences) > 1:
        write_json(epath.Path(workdir) / TABLE, differences)


def divergence(workdir: str | os.PathLike, number: int) -> str | None:
    """Return the reason why a replica diverged; None if it has not diverged."""
    file = folder(workdir, number) / "diverged.json"
    if not file.is_file():
        return None
    try:
        return str(read_json(file, dict)["diverged"])
    except (Broken, KeyError):  # the file exists, so the replica diverged
        return f"{file} is broken: the cause of the divergence is unknown"


def forget_divergence(workdir: str | os.PathLike, number: int) -> None:
    """Remove the file of :func:`write_divergence`, for a replica that starts again."""
    (folder(workdir, number) / "diverged.json").unlink(missing_ok=True)


def write_divergence(workdir: str | os.PathLike, number: int, why: str) -> None:
    """Write the reason why a replica diverged."""
    write_json(folder(workdir, number) / "diverged.json", {"diverged": why})
