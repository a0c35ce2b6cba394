"""The folder of a run: one run in it at a time, and room for what the run will write."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from contrastive_jax.workdir import remote
from contrastive_jax.workdir.broken import tidy
from contrastive_jax.workdir.exhausted import size
from contrastive_jax.workdir.files import read_json
from contrastive_jax.workdir.links import check_links

LOCK, HOLDER = ".lock", "lock.json"


class InUse(OSError):
    """The error of a workdir in which another run lives."""


@contextlib.contextmanager
def lock(workdir: str | os.PathLike, report: Callable[[str], None] = print) -> Iterator[None]:
    """Keep other runs out of a workdir; make it where there is none.

    The operating system holds the lock, so that of a process that died, however it died, is free at once. ``lock.json``
    says who holds it. A workdir that is no local path (``gs://``) is not locked.

    Raises:
      InUse: by whom, and what to do.
      OSError: the workdir cannot be written.
    """
    if remote.is_remote(workdir):
        yield
        return
    import filelock

    check_links(workdir)
    path = pathlib.Path(workdir, HOLDER)
    held = filelock.FileLock(path.with_name(LOCK), timeout=0, is_singleton=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held.acquire()
    except filelock.Timeout:
        raise InUse(
            f"{path.parent} is in use by {_holder(path)}. Stop it first, or choose another --workdir."
        ) from None
    except OSError as error:
        raise _not_writable(path.parent, error) from None
    try:
        if path.exists():
            report(_taken_over(path))
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        path.write_text(json.dumps(about) + "\n")
        tidy(path.parent, report)
        yield
    finally:
        path.unlink(missing_ok=True)
        held.release()


def check_writable(workdir: str | os.PathLike) -> None:
    """Make a workdir where there is none, and refuse one that takes no file, before anything is computed for it.

    Raises:
      OSError: it cannot be written.
    """
    if not remote.is_remote(workdir):
        check_links(workdir)
        try:
            pathlib.Path(workdir).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=workdir):
                pass
        except OSError as error:
            raise _not_writable(pathlib.Path(workdir), error) from None


def _not_writable(workdir: pathlib.Path, error: OSError) -> OSError:
    return OSError(
        f"the workdir {workdir} cannot be written: {error.strerror or error}. Choose another --workdir."
    )


def _held_by(path: pathlib.Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        holder = read_json(path, dict)
        return holder if {"pid", "host", "since"} <= holder.keys() else {}
    return {}


def _holder(path: pathlib.Path) -> str:
    holder = _held_by(path)
    return (
        f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        if holder
        else "another process"
    )


def _taken_over(path: pathlib.Path) -> str:
    """Return what is known of the holder that left its file: on another host, not whether it still runs."""
    there, here = _held_by(path).get("host"), socket.gethostname()
    if there in (None, here):
        return f"took over the lock of {_holder(path)}, which is gone."
    return (
        f"took over the lock of {_holder(path)}: it is free as seen from {here}, but whether that process still runs"
        f" cannot be seen from here. If it does, and this is a file system without locks between hosts, stop one of"
        " the two."
    )


def check_room(workdir: str | os.PathLike, checkpoint: int, kept: int, there: int) -> None:
    """Refuse to train where the disk cannot hold the checkpoints.

    Args:
      workdir: of the run; one that is no local path is not asked.
      checkpoint: bytes of one.
      kept: ``checkpoint.keep_last``; one more is there while it is written.
      there: checkpoints that are there already, to be replaced.

    Raises:
      OSError: not enough room.
    """
    if remote.is_remote(workdir):
        return
    free, needed = shutil.disk_usage(workdir).free, checkpoint * max(1, kept + 1 - there)
    if free < needed:
        raise OSError(
            f"the disk of {workdir} has {size(free)} free; a checkpoint of this run takes {size(checkpoint)}, and"
            f" checkpoint.keep_last={kept} of them and the one being written are there at once. Make room for"
            f" {size(needed - free)}, lower checkpoint.keep_last, or choose another --workdir."
        )
