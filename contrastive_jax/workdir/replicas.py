"""Layout of the workdir of replicas: what differs between them, and a folder each, as of a single run."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from contrastive_jax.workdir import remote
from contrastive_jax.workdir.files import Broken, read_json, write_json

TABLE = "replicas.json"  # a line a replica: the leaves that differ, and their values


def folder(workdir: str | os.PathLike, number: int) -> epath.Path:
    """Return the workdir of replica ``number``."""
    return epath.Path(workdir) / f"replica_{number}"


def folders(workdir: str | os.PathLike) -> list[epath.Path]:
    """Return the workdirs of the replicas of a workdir; none of a single run's."""
    return [folder(workdir, number) for number in range(len(differences(workdir)))]


def places(workdir: str | os.PathLike, count: int) -> list[str | os.PathLike]:
    """Return the workdir of each of ``count`` runs that train as one: of one run the workdir itself."""
    return [workdir] if count == 1 else [str(folder(workdir, number)) for number in range(count)]


def checkpoints(workdir: str | os.PathLike, number: int) -> epath.Path:
    """Return where the checkpoints of replica ``number`` are, of an address in the store itself."""
    return folder(remote.checkpoints(workdir).parent, number) / remote.CHECKPOINTS


def differences(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the leaves in which each replica of a workdir differs from others; none of a single run's.

    Raises:
        Broken: the file that holds them is no such table.
    """
    file = epath.Path(workdir) / TABLE
    if not file.is_file():
        return []
    table = read_json(file, list)
    if not all(isinstance(row, dict) and row for row in table):
        raise Broken(f"{file} is broken: an object of options is expected for each replica.")
    return table


def words(differences: Sequence[Mapping[str, Any]]) -> str:
    """Return a name of replicas: what differs, and its values."""
    names = differences[0]
    return ", ".join(f"{name}={','.join(dict.fromkeys(str(d[name]) for d in differences))}" for name in names)


def who(numbers: Sequence[int], count: int) -> str:
    """Return the beginning of a message about some of ``count`` replicas; of a single run nothing."""
    if count == 1:
        return ""
    some = f"replica{'s' if numbers[1:] else ''} {', '.join(map(str, numbers))}"
    return f"{'all replicas' if len(numbers) == count else some}: "


def write(workdir: str | os.PathLike, differences: list[dict[str, Any]]) -> None:
    """Write what differs between the replicas of a workdir; of a single run there is nothing to write."""
    if len(differences) > 1:
        write_json(epath.Path(workdir) / TABLE, differences)


def divergence(workdir: str | os.PathLike, number: int) -> str | None:
    """Return why a replica diverged; None: it has not."""
    file = folder(workdir, number) / "diverged.json"
    if not file.is_file():
        return None
    try:
        return str(read_json(file, dict)["diverged"])
    except (Broken, KeyError):  # the file itself says that it diverged
        return f"{file} is broken: why it diverged is not known"


def forget_divergence(workdir: str | os.PathLike, number: int) -> None:
    """Remove what :func:`write_divergence` wrote: the replica starts anew."""
    (folder(workdir, number) / "diverged.json").unlink(missing_ok=True)


def write_divergence(workdir: str | os.PathLike, number: int, why: str) -> None:
    """Write why a replica diverged."""
    write_json(folder(workdir, number) / "diverged.json", {"diverged": why})
