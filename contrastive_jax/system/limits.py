"""Memory and cores of this process, and messages for errors due to exhausted memory, open files or threads."""

import errno
import os
import pathlib
from collections.abc import Iterator

CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # a container's limit
LEAST_SPACE = 1_300_000_000  # bytes of address space; measured on two cores: 0.9e9 fail, 1.5e9 suffice


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: libraries replace system errors by their own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_errno(error: BaseException, number: int) -> bool:
    """Return whether an error has a system error number, or contains its text."""
    return getattr(error, "errno", None) == number or os.strerror(number) in str(error)


def exhausted(error: BaseException) -> str | None:
    """Return a message if an error is due to exhausted memory, open files, threads or processes, else None."""
    for one in causes(error):
        text, number, file = str(one).strip(), getattr(one, "errno", None), getattr(one, "filename", None)
        where = f" at {file}" if file else ""
        if (
            isinstance(one, MemoryError)
            or is_errno(one, errno.ENOMEM)
            or "failed to map segment" in text
            or "bad_alloc" in text
        ):
            detail = f" ({text})" if isinstance(one, MemoryError) and text else where
            return (
                "memory ran"
                f" out{detail}{_limit('RLIMIT_AS', '; the limit of this process is {:,} bytes')}. Raise"
                " the limit (`ulimit -v`, the job's or container's), or lower train.batch_size,"
                " evaluate.batch_size, data.workers or data.memory_limit."
            )
        if is_errno(one, errno.ENFILE):
            return f"too many files are open on this machine{where}. Close other programs, or lower data.workers."
        if is_errno(one, errno.EMFILE):
            return (
                "too many files are"
                f" open{where}{_limit('RLIMIT_NOFILE', '; the limit of this process is {:,}')}. Raise"
                " the limit (`ulimit -n`), or lower data.workers."
            )
        if number == errno.EAGAIN or "can't start new thread" in text or "pthread_create" in text:
            return (
                "no more threads or processes can be"
                f" started{_limit('RLIMIT_NPROC', '; the limit of this user is {:,}')}. Raise the limit"
                " (`ulimit -u`, pids.max of a container), or lower data.workers."
            )
    return None


def too_little_space() -> str | None:
    """Return a message if the address space is too small to load the libraries without an abort, else None."""
    space = _soft("RLIMIT_AS")
    if space is None or space >= LEAST_SPACE:
        return None
    return (
        f"the address space of this process is limited to {space:,} bytes (`ulimit -v`); the program"
        f" needs {LEAST_SPACE:,} to start. Raise the limit."
    )


def memory() -> int | None:
    """Return the memory of this machine or its container in bytes; None: the system does not report it."""
    found = []
    for file in CGROUPS:
        try:
            found.append(int(pathlib.Path(file).read_text()))
        except (OSError, ValueError):  # another system, or "max"
            continue
    try:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        pass
    return min((size for size in found if size > 0), default=None)


def _soft(name: str) -> int | None:
    """Return a soft limit of the process; None: unlimited, or not supported by the system."""
    try:
        import resource

        soft = resource.getrlimit(getattr(resource, name))[0]
    except (ImportError, AttributeError, ValueError, OSError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def _limit(name: str, words: str) -> str:
    soft = _soft(name)
    return "" if soft is None else words.format(soft)


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
