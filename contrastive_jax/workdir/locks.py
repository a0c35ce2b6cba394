"""The folder of a run: one run in it at a time, and room for what the run will write."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator

from contrastive_jax.workdir import remote

LOCK = "lock.json"
BEAT = 30.0  # seconds between two signs of life
GONE = 300.0  # seconds without one after which a process of another host is taken for dead
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, the largest file allowed


class InUse(OSError):
    """Another run lives in the workdir."""


class Full(OSError):
    """The disk of the workdir took no more; the message says what is safe and what to do."""


@contextlib.contextmanager
def lock(workdir: str | os.PathLike, report: Callable[[str], None] = print) -> Iterator[None]:
    """Keeps other runs out of a workdir; makes it where there is none.

    On one host the operating system holds the lock, so that of a process that died, however it died, is taken
    over at once. Between hosts that share the file system, where it may not, ``lock.json`` says who holds it,
    and is touched every :data:`BEAT` seconds. A workdir that is no local path (``gs://``) is not locked.

    Raises:
      InUse: by whom, and what to do.
      OSError: the workdir cannot be written.
    """
    if remote.is_remote(workdir):
        yield
        return
    path = pathlib.Path(workdir, LOCK)
    file, by_system = _locked(path)
    try:
        _take(file, path, by_system, report)
    except BaseException:
        file.close()
        raise
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, done), daemon=True)
    beating.start()
    try:
        yield
    finally:
        done.set()
        beating.join()
        if _is_current(file, path):
            path.unlink(missing_ok=True)
        file.close()  # only now: whoever waits for it finds another file, or none


def _is_current(file, path: pathlib.Path) -> bool:
    """Whether the path still names the file that is open."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _locked(path: pathlib.Path):
    """The file and whether it is ours, see :func:`_lock_by_system`."""
    while True:
        file = _opened(path)
        by_system = _lock_by_system(file)
        if not by_system or _is_current(file, path):
            return file, by_system
        file.close()  # its holder has just left, and took the file away


def _opened(path: pathlib.Path):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"the workdir {path.parent} cannot be written: {error.strerror or error}. Choose another --workdir."
        ) from None


def _take(file, path: pathlib.Path, by_system: bool | None, report: Callable[[str], None]) -> None:
    """Writes who we are into the file, unless it is somebody's."""
    here = socket.gethostname()
    file.seek(0)
    text = file.read()
    holder = _holder(text)
    if by_system is False:
        raise InUse(_sentence(path, holder, "Stop it first, or choose another --workdir."))
    if holder and holder["host"] != here and not _outlasted(path, holder, by_system, report):
        raise InUse(
            _sentence(
                path,
                holder,
                f"It gave a sign of life {_silence(path):.0f} s ago. If it is dead, delete {path}, or wait: after"
                f" {GONE:.0f} s without one the lock is taken over.",
            )
        )
    if holder and holder["host"] == here and by_system is None and _alive(holder["pid"]):
        raise InUse(_sentence(path, holder, f"If that is another program, delete {path}."))
    if text:
        who = f"process {holder['pid']} on {holder['host']}" if holder else "a process"
        report(f"took over the lock of {who}, which is gone.")
    file.truncate(0)
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    file.write(json.dumps({"pid": os.getpid(), "host": here, "since": started}) + "\n")
    file.flush()


def _lock_by_system(file) -> bool | None:
    """Whether the operating system gave us the lock; None where it has no locks for this file."""
    try:
        import fcntl
    except ImportError:  # not POSIX
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


def _holder(text: str) -> dict | None:
    try:
        found = json.loads(text)
        return {"pid": int(found["pid"]), "host": str(found["host"]), "since": str(found["since"])}
    except (ValueError, KeyError, TypeError):
        return None


def _sentence(path: pathlib.Path, holder: dict | None, advice: str) -> str:
    who = (
        f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        if holder
        else "another process"
    )
    return f"{path.parent} is in use by {who}. {advice}"


def _outlasted(
    path: pathlib.Path, holder: dict, by_system: bool | None, report: Callable[[str], None]
) -> bool:
    """Whether a holder on another host has been silent for :data:`GONE` seconds.

    Where the system says that nobody holds the lock, that is waited for: a job that is started again elsewhere,
    after its host died, cannot be told to come back later.
    """
    silent = _silence(path)
    if silent < GONE and by_system:
        report(
            f"process {holder['pid']} on {holder['host']} left a lock; waiting up to {GONE - silent:.0f} s for a sign"
            " of its life."
        )
        touched = path.stat().st_mtime
        while silent < GONE:
            time.sleep(min(BEAT, GONE - silent))
            if path.stat().st_mtime > touched:
                return False
            silent = _silence(path)
    return silent >= GONE


def _silence(path: pathlib.Path) -> float:
    """Seconds since the lock was touched, by the clock of its file system, which may not be ours."""
    trial = path.with_name(f".now-{socket.gethostname()}-{os.getpid()}")
    trial.touch()
    try:
        return max(0.0, trial.stat().st_mtime - path.stat().st_mtime)
    finally:
        trial.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def _beat(path: pathlib.Path, done: threading.Event) -> None:
    while not done.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)


def check_room(workdir: str | os.PathLike, checkpoint: int, kept: int, there: int) -> None:
    """Refuses to train where the disk cannot hold the checkpoints.

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
def answered(workdir: str | os.PathLike) -> Iterator[None]:
    """Around whatever writes into a workdir: a full disk, however it shows, is one sentence.

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
    """What a system says where a disk is full, if that is behind the error: libraries hide it in theirs."""
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
