"""Files of a workdir that are broken or foreign: named, and set aside before a run needs their place."""

import contextlib
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

from contrastive_jax.workdir import remote
from contrastive_jax.workdir.files import Broken, read_json, write_json
from contrastive_jax.workdir.links import check_links

RESULTS = ("result.json", "diverged.json", "evaluation.json")  # made again by the mode that wrote them
OURS = (
    *RESULTS,
    "config.json",
    "replicas.json",
    "config_diff.txt",
    "metrics.jsonl",
    "curves.png",
    "wandb_id.txt",
)
LEFT = re.compile(
    rf"\.({'|'.join(map(re.escape, OURS))})\.[a-z0-9_]{{8}}"
)  # what a write that was killed leaves


def read_result(path: str | os.PathLike, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the object that a file of results holds; {} where there is none, or it is broken, which is reported."""
    path = pathlib.Path(path)
    if not path.exists():
        return {}
    try:
        return read_json(path, dict)
    except (Broken, OSError) as error:
        report(f"{error} It is left out.")
        return {}


def set_aside(path: pathlib.Path) -> pathlib.Path:
    """Rename a file so that another takes its place; return its new path."""
    aside, number = path.with_name(f"{path.name}.broken"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.broken-{number}")
    path.rename(aside)
    return aside


def tidy(workdir: str | os.PathLike, report: Callable[[str], None]) -> None:
    """Prepare a workdir for its run: remove temporary files of killed writes, set broken files of results aside.

    Call it with the lock of the workdir held. Replicas' folders are prepared alike.
    """
    root = pathlib.Path(workdir)
    for folder in (root, *root.glob("replica_[0-9]*")):
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            if LEFT.fullmatch(path.name) and path.is_file():
                path.unlink(missing_ok=True)
        for name in OURS:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                report(
                    f"{path} is a folder, and a file is written there: it was renamed to {set_aside(path).name}."
                )
            elif name in RESULTS and path.is_file():
                try:
                    read_json(path, dict)
                except Broken as error:
                    report(f"{error} It was renamed to {set_aside(path).name}.")


def restore_config(workdir: str | os.PathLike, report: Callable[[str], None]) -> None:
    """Write broken ``config.json``, of replicas too, and ``replicas.json`` anew from the newest checkpoint.

    Without a checkpoint they stay as they are: whatever reads them names them.
    """
    if remote.is_remote(workdir):
        return
    root = pathlib.Path(workdir)
    _restore(root, root, "replicas.json", list, report)
    for folder in (root, *sorted(root.glob("replica_[0-9]*"))):
        _restore(root, folder, "config.json", dict, report)


def _restore(
    root: pathlib.Path, folder: pathlib.Path, name: str, kind: type, report: Callable[[str], None]
) -> None:
    from contrastive_jax.workdir import checkpoint

    path, key = folder / name, pathlib.PurePath(name).stem
    try:
        if path.is_file():
            read_json(path, kind)
    except OSError:
        return
    except Broken as error:
        with contextlib.suppress(OSError, ValueError):
            check_links(root)
            if not checkpoint.steps_in(folder / remote.CHECKPOINTS):
                return
            with checkpoint.Checkpoints(folder / remote.CHECKPOINTS, read_only=True) as saved:
                _, meta = saved.read_meta() or (0, {})
            if isinstance(meta.get(key), kind) and (key != "config" or "replicas" not in meta):
                aside = set_aside(path)
                write_json(path, meta[key])
                report(f"{error} It was renamed to {aside.name} and written anew from the newest checkpoint.")
