"""Limits of a process: errors that stem from memory, open files or threads that ran out, by the limit's name."""

import errno
import os
from collections.abc import Iterator

LEAST_SPACE = 1_300_000_000  # bytes of address space; measured: 0.9e9 do not do on two cores, 1.5e9 do


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those behind it: libraries raise their own in place of the system's."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_errno(error: BaseException, number: int) -> bool:
    """Return whether an error is the system's error of a number, or quotes its text."""
    return getattr(error, "errno", None) == number or os.strerror(number) in str(error)


def exhausted(error: BaseException) -> str | None:
    """Return a sentence where memory, open files, threads or processes ran out behind an error; else None."""
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
                f"memory ran out{detail}{_limit('RLIMIT_AS', '; this process may have {:,} bytes')}. Give it more"
                " (`ulimit -v`, the job's or container's limit), or lower train.batch_size, evaluate.batch_size,"
                " data.workers or data.memory_limit."
            )
        if is_errno(one, errno.ENFILE):
            return f"too many files are open on this machine{where}. Close other programs, or lower data.workers."
        if is_errno(one, errno.EMFILE):
            return (
                f"too many files are open{where}{_limit('RLIMIT_NOFILE', '; this process may have {:,}')}. Raise the"
                " limit (`ulimit -n`), or lower data.workers."
            )
        if number == errno.EAGAIN or "can't start new thread" in text or "pthread_create" in text:
            return (
                "no more threads or processes can be started"
                f"{_limit('RLIMIT_NPROC', '; this user may have {:,}')}. Raise the limit (`ulimit -u`, pids.max of a"
                " container), or lower data.workers."
            )
    return None


def too_little_space() -> str | None:
    """Return a sentence where the address space is so small that libraries abort the process while they are loaded."""
    space = _soft("RLIMIT_AS")
    if space is None or space >= LEAST_SPACE:
        return None
    return (
        f"this process may have {space:,} bytes of address space (`ulimit -v`), and the program takes"
        f" {LEAST_SPACE:,} before it begins. Raise the limit."
    )


def _soft(name: str) -> int | None:
    """Return a limit of the process; None: there is none, or the system has no such limits."""
    try:
        import resource

        soft = resource.getrlimit(getattr(resource, name))[0]
    except (ImportError, AttributeError, ValueError, OSError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def _limit(name: str, words: str) -> str:
    soft = _soft(name)
    return "" if soft is None else words.format(soft)
