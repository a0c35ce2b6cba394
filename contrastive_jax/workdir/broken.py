"""Broken or foreign files of a workdir, which are reported and renamed before a run needs their names."""

import contextlib
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

from contrastive_jax.workdir import remote
from contrastive_jax.workdir.files import Broken, free_name, read_json, write_json
from contrastive_jax.workdir.links import check_links

RESULTS = ("result.json", "diverged.json", "evaluation.json")  # rewritten by the mode that wrote them
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
)  # temporary files of killed writes


def read_result(path: str | os.PathLike, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the JSON object in a results file; {} if the file is missing, or unreadable, which is reported."""
    path = pathlib.Path(path)
    if not path.exists():
        return {}
    try:
        return read_json(path, dict)
    except (Broken, OSError) as error:
        report(f"{error} It is left out.")
        return {}


def set_aside(path: pathlib.Path, word: str = "broken") -> pathlib.Path:
    """Rename a file to ``<name>.<word>``, or ``<name>.<word>-2`` and so on, and return its new path."""
    aside = free_name(path, word)
    path.rename(aside)
    return aside


def set_result_aside(workdir: str | os.PathLike, report: Callable[[str], None]) -> None:
    """Rename ``result.json`` to ``result.json.earlier``, or ``result.json.earlier-2`` and so on."""
    path = pathlib.Path(workdir, "result.json")
    if path.is_file():
        step, aside = read_result(path, report).get("step"), set_aside(path, "earlier")
        report(f"result.json had the results of an earlier end, step {step}; it was renamed to {aside.name}.")


def tidy(workdir: str | os.PathLike, report: Callable[[str], None]) -> None:
    """Prepare a workdir for its run: remove temporary files of killed writes, and rename broken results files.

    Folders with the name of a file are renamed too. Call this with the workdir's lock held. The folders of
    replicas are prepared likewise.
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
                report(f"{path} is a folder in place of a file; it was renamed to {set_aside(path).name}.")
            elif name in RESULTS and path.is_file():
                try:
                    read_json(path, dict)
                except Broken as error:
                    report(f"{error} It was renamed to {set_aside(path).name}.")


def restore_config(workdir: str | os.PathLike, report: Callable[[str], None]) -> None:
    """Rewrite broken ``config.json`` (also of replicas) and ``replicas.json`` from the newest checkpoint.

    Without a checkpoint they stay as they are, and reading them raises an error with their names.
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
                report(f"{error} It was renamed to {aside.name} and restored from the newest checkpoint.")
