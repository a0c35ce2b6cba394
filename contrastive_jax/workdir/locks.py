"""Lock of a workdir for one run at a time, and checks of its permissions and disk space."""

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
    """Error for a workdir that another run uses."""


@contextlib.contextmanager
def lock(workdir: str | os.PathLike, report: Callable[[str], None] = print) -> Iterator[None]:
    """Lock a workdir against other runs, and create it if it is missing.

    The operating system holds the lock and releases it as soon as the process ends, for whatever reason. The
    file ``lock.json`` names the holder. A remote workdir (``gs://``) is not locked.

    Raises:
      InUse: another run holds the lock; the message names its process.
      OSError: the workdir cannot be written, or has a link to a place outside of it.
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


def check_writable(workdir: str | os.PathLike, output: str | os.PathLike | None = None) -> str | os.PathLike:
    """Return the folder that a mode writes to: ``output``, or else the workdir; call this before all computations.

    Raises:
      OSError: it cannot be written (or created, if it is missing), or the workdir has a link to a place outside of it.
    """
    folder = workdir if output is None else output
    if not remote.is_remote(folder):
        if output is None:
            check_links(workdir)
        try:
            path = pathlib.Path(folder).absolute()
            with tempfile.TemporaryFile(dir=next(one for one in (path, *path.parents) if one.exists())):
                pass  # in the first folder that exists: writing creates the others
        except OSError as error:
            if output is None:
                raise _not_writable(
                    pathlib.Path(workdir), error, "Name a folder to write to, --output"
                ) from None
            raise OSError(
                f"--output={output} cannot be written: {error.strerror or error}. Name another folder."
            ) from None
    return folder


def _not_writable(workdir: pathlib.Path, error: OSError, advice: str = "Choose another --workdir") -> OSError:
    return OSError(f"the workdir {workdir} cannot be written: {error.strerror or error}. {advice}.")


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
    """Return a message about the previous holder; a holder on another host may still be running."""
    there, here = _held_by(path).get("host"), socket.gethostname()
    if there in (None, here):
        return f"took over the lock of {_holder(path)}, which has ended."
    return (
        f"took over the lock of {_holder(path)}: the lock is free on {here}, but that process may still"
        " run on its host. If it does, and the file system has no locks between hosts, stop one of the"
        " two."
    )


def check_room(workdir: str | os.PathLike, checkpoint: int, kept: int, there: int) -> None:
    """Refuse to train if the disk cannot hold the checkpoints.

    Args:
      workdir: workdir of the run; a remote one is not checked.
      checkpoint: size of one checkpoint in bytes.
      kept: ``checkpoint.keep_last``; one more exists while it is written.
      there: number of existing checkpoints, which will be replaced.

    Raises:
      OSError: not enough room.
    """
    if remote.is_remote(workdir):
        return
    free, needed = shutil.disk_usage(workdir).free, checkpoint * max(1, kept + 1 - there)
    if free < needed:
        raise OSError(
            f"the disk of {workdir} has {size(free)} free; a checkpoint of this run takes"
            f" {size(checkpoint)}, and the disk must hold checkpoint.keep_last={kept} of them and the"
            f" one being written. Free {size(needed - free)} more, lower checkpoint.keep_last, or choose"
            " another --workdir."
        )
