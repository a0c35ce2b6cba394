"""The folder of a run: one run in it at a time, and room for what the run will write."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator

from contrastive_jax.workdir import remote

LOCK, HOLDER = ".lock", "lock.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, the largest file allowed


class InUse(OSError):
    """The error of a workdir in which another run lives."""


class Full(OSError):
    """The disk of the workdir took no more; the message says what is safe and what to do."""


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
            report(f"took over the lock of {_holder(path)}, which is gone.")
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        path.write_text(json.dumps(about) + "\n")
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


def _holder(path: pathlib.Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"


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
            f"the disk of {workdir} has {_size(free)} free; a checkpoint of this run takes {_size(checkpoint)}, and"
            f" checkpoint.keep_last={kept} of them and the one being written are there at once. Make room for"
            f" {_size(needed - free)}, lower checkpoint.keep_last, or choose another --workdir."
        )


@contextlib.contextmanager
def translate_errors(workdir: str | os.PathLike) -> Iterator[None]:
    """Translate errors of whatever writes into a workdir: a full disk, however it shows, is one sentence.

    Files are replaced whole, a line of metrics that did not fit is taken back, and a checkpoint has its name only
    when it is complete: what is there can be trusted.

    Raises:
      Full: in place of the error.
    """
    try:
        yield
    except Exception as error:
        reason = None if isinstance(error, Full) else _full(error)
        if reason is None:
            raise
        folder = pathlib.Path(workdir, "checkpoints")
        steps = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
        safe = f"Its checkpoint of step {max(steps)} is whole: m" if steps else "M"
        raise Full(
            f"the disk of {workdir} is full ({reason}). {safe}ake room or raise the quota, and give the same command"
            f" again{'; it goes on from there' if steps else ''}."
        ) from error


def _full(error: BaseException | None) -> str | None:
    """Return what a system says where a disk is full, if that is behind the error: libraries hide it in theirs."""
    while error is not None:
        for reason in map(os.strerror, FULL):
            if reason in str(error):
                return reason
        error = error.__cause__
    return None


def _size(count: int) -> str:
    unit = next(u for u in ("GiB", "MiB", "KiB", "B") if u == "B" or count >= _BYTES[u])
    return f"{count / _BYTES[unit]:.3g} {unit}"


_BYTES = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
