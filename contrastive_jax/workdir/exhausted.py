"""Errors for exhausted resources of a machine: disk, shared memory, memory, file descriptors."""

import contextlib
import errno
import os
import pathlib
import re
import shutil
import tempfile
import traceback
from collections.abc import Iterator

from contrastive_jax.system import limits, private

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # full disk, exceeded quota, file size limit
SHARED_MEMORY = pathlib.Path("/dev/shm")


class Exhausted(OSError):
    """Error for an exhausted resource; the message gives the resource, the last checkpoint and the remedy."""


class Full(Exhausted):
    """Error for a full disk, quota or shared memory, or a file at its size limit."""


@contextlib.contextmanager
def translate_errors(workdir: str | os.PathLike) -> Iterator[None]:
    """Translate errors of writes into a workdir to errors that name the exhausted resource.

    The message names the place of the file or segment that failed: a full ``/tmp`` or ``/dev/shm`` is not the
    workdir's disk. The workdir's files stay valid: files are replaced atomically, an incomplete line of metrics
    is removed, and a checkpoint gets its name only when it is complete.

    Raises:
      Full: instead of the error, if a disk, a quota or shared memory is full.
      Exhausted: instead of the error, if memory, file descriptors, threads or processes are exhausted.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, Exhausted):
            raise
        if sentence := _full(error, workdir):
            raise Full(f"{sentence} {_safe(workdir, full=True)}") from error
        if sentence := limits.exhausted(error):
            raise Exhausted(f"{sentence} {_safe(workdir, full=False)}") from error
        raise


def _safe(workdir: str | os.PathLike, full: bool) -> str:
    """Return the last complete checkpoint, if any, and the next step for the user, as text."""
    folder = pathlib.Path(workdir, "checkpoints")
    steps = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()] if folder.is_dir() else []
    advice = f"{'make room or raise the quota, and repeat' if full else 'repeat'} the command"
    if steps:
        return f"The run's checkpoint of step {max(steps)} is complete: {advice} to resume from it."
    return f"{advice[0].upper()}{advice[1:]}."


def _full(error: BaseException, workdir: str | os.PathLike) -> str | None:
    """Return a sentence that names the full resource, or None if the error has another cause."""
    chain = list(limits.causes(error))
    number = next((n for e in chain for n in FULL if limits.is_errno(e, n)), None)
    if number is None:
        return None
    file = next((path for e in chain if (path := _file(e)) is not None), None)
    reason = os.strerror(number)
    if number == errno.EFBIG:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        why = f"{reason}; `ulimit -f` allows {limit:,} bytes" if limit >= 0 else reason
        return f"{file or f'a file of {workdir}'} cannot grow ({why})."
    places = _places(workdir)
    if file is None:  # the error names no file: find the place without room
        empty = [place for place in places if (room := _room(place)) and room[0] < 2**20]
        if not empty:
            free = ", ".join(
                f"{place} has {size(room[0])} free" for place in places if (room := _room(place))
            )
            return f"A disk or a quota is full ({reason}), but the error does not name the file ({free})."
        place = empty[0]
    else:
        inside = [place for place in places if file.is_relative_to(place)]
        place = max(inside, key=lambda place: len(place.parts)) if inside else file.parent
    what = places.get(place, f"the disk of {file}")
    room = _room(place)
    if room and room[1] == 0 and room[0] > 2**20:
        reason += "; it has free space but no free inodes, and each file needs one"
    return f"{what} is full ({reason})."


def _places(workdir: str | os.PathLike) -> dict[pathlib.Path, str]:
    """Return the folders that a run writes to, each with its description."""
    cache = private.cache_home()
    try:
        temporary = tempfile.gettempdir()
    except OSError:  # it looks for a folder by writing, and all are full
        temporary = os.environ.get("TMPDIR", "/tmp")
    return {
        pathlib.Path(os.path.abspath(temporary)): f"the temporary folder {temporary} (TMPDIR)",
        SHARED_MEMORY: f"shared memory ({SHARED_MEMORY}; docker run --shm-size=... makes it larger)",
        pathlib.Path(os.path.abspath(cache)): f"the cache {cache} (XDG_CACHE_HOME)",
        pathlib.Path(os.path.abspath(workdir)): f"the disk of {workdir}",
    }


def _file(error: BaseException) -> pathlib.Path | None:
    """Return the file that caused an error, or None if the error names no file."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if re.search(r"multiprocessing.(shared_memory|synchronize|heap)\.py$", frame.f_code.co_filename):
            return SHARED_MEMORY / "segment"
    name = getattr(error, "filename", None)
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    if not isinstance(name, str):
        found = re.findall(r"(?<![\w/:.])/[^\s'\":,()\[\]]+", str(error))  # as in TensorStore's messages
        name = found[-1] if found else None
    return pathlib.Path(os.path.abspath(name)) if name else None


def _room(place: pathlib.Path) -> tuple[int, int | None] | None:
    """Return the free bytes and inodes (None: not counted) at a place, or None if they cannot be read."""
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
        about = os.statvfs(place)
        return free, about.f_favail if about.f_files else None
    except (OSError, AttributeError):
        return None


def size(count: int) -> str:
    """Return a number of bytes as text with a binary unit."""
    unit = next(u for u in ("GiB", "MiB", "KiB", "B") if u == "B" or count >= _BYTES[u])
    return f"{count / _BYTES[unit]:.3g} {unit}"


_BYTES = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
