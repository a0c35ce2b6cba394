"""Signal handling that ends the command within seconds of SIGINT, SIGTERM or SIGHUP, at any point.

An exception raised by a Python handler is not enough: it is raised only when the main thread is back in Python
(compiling takes minutes), and Python drops it in callbacks of the garbage collector. So Python's C code writes
the number of every signal to a socket at once, and a thread reads it and ends the process if the main thread
does not end within the seconds of the current phase. Checkpoints are complete or absent, so it is safe to end
at any point.

Only the standard library is imported, so that this also works while everything else is imported.
"""

import atexit
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

GRACE = 5.0  # seconds from a signal to the end, unless the phase sets others
AGAIN = 0.05  # seconds until a dropped exception is raised again
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Terminated(KeyboardInterrupt):
    """Interruption by SIGTERM or SIGHUP."""

    def __init__(self, number: int = signal.SIGTERM):
        super().__init__()
        self.number = number


class Insisted(KeyboardInterrupt):
    """Interruption by a second Ctrl-C, before the run stopped after a step."""


class _State:
    """State of the process: received signals, and the deadline of the main thread."""

    def __init__(self) -> None:
        self.number, self.since = 0, 0.0  # number and time of the first signal
        self.deadline = float("inf")
        self.phases: list[tuple[float, str]] = []
        self.held, self.late = 0, 0  # number of open blocks of held(); a signal received in one
        self.early = False  # nothing is written yet: a signal ends the process at once
        self.code: int | None = None  # exit status, once the program ends by itself
        self.writer: socket.socket | None = None

    def limit(self) -> tuple[float, str]:
        return self.phases[-1] if self.phases else (GRACE, "")


_state = _State()


def code_of(error: BaseException) -> int:
    """Return the exit status of an interruption."""
    return 128 + (error.number if isinstance(error, Terminated) else signal.SIGINT)


def word(number: int) -> str:
    """Return the word for a signal's effect on the command."""
    return WORDS.get(number, "terminated, because its terminal closed")


def note(number: int) -> None:
    """Remember the first received signal, and start its deadline."""
    if not _state.number:
        _state.since = time.monotonic()
        _state.deadline = _state.since + _state.limit()[0]
        _state.number = number


def forget() -> None:
    """Forget a handled signal if the process continues (notebooks, tests)."""
    _state.number, _state.deadline = 0, float("inf")


def pending() -> float:
    """Return the seconds since the first signal that is not yet handled; 0.0: there is none."""
    return time.monotonic() - _state.since if _state.number else 0.0


def check(patience: float) -> None:
    """Raise the exception of a signal that is pending for more than ``patience`` seconds.

    For waiting loops of the main thread.
    """
    if pending() > patience:
        _raise(_state.number)


@contextlib.contextmanager
def phase(seconds: float, left: str = "") -> Iterator[None]:
    """Replace ``GRACE``, the time to end after a signal, by ``seconds`` during the body.

    Args:
      seconds: time since the signal, or since the start of the body if the signal came earlier.
      left: sentence that ends the error message if the process has to be killed.
    """
    _state.phases.append((seconds, left))
    _start_again()
    try:
        yield
    finally:
        _state.phases.pop()
        _start_again()


def _start_again() -> None:
    if _state.number:
        _state.deadline = time.monotonic() + _state.limit()[0]


def leaving(code: int, seconds: float) -> None:
    """End the process with exit status ``code`` within ``seconds``, even if its threads still wait."""
    if _state.writer is not None:
        _state.code, _state.deadline = code, time.monotonic() + seconds
        with contextlib.suppress(OSError):
            _state.writer.send(b"\0")


def leave(code: int) -> None:
    """End a failed process after its exit handlers; return if ``code`` is 0, or without :func:`guard`.

    After an interruption, Python's own exit can fail: XLA crashes, and asyncio's loops print stack traces.
    """
    if _state.writer is None or not code:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def guard() -> None:
    """Start to watch for signals; until :func:`begin`, a signal ends the process at once.

    Call it once, from the main thread.
    """
    if _state.writer is not None or threading.current_thread() is not threading.main_thread():
        return
    reader, _state.writer = socket.socketpair()
    _state.writer.setblocking(False)
    _state.early = True
    for number in ENDING:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _handle)
    signal.set_wakeup_fd(_state.writer.fileno(), warn_on_full_buffer=False)
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            number = getattr(dropped.exc_value, "number", signal.SIGINT)
            timer = threading.Timer(AGAIN, signal.pthread_kill, (threading.main_thread().ident, number))
            timer.daemon = True
            timer.start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    threading.Thread(target=_watch, args=(reader,), daemon=True, name="signals").start()


def begin() -> None:
    """Let signals raise in the main thread from now on, so that it can close its resources."""
    _state.early = False


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let signals raise only after the body, such as a process start, which prints a stack trace if cut off."""
    _state.held += 1
    try:
        yield
    finally:
        _state.held -= 1
        if _state.late and not _state.held:
            number, _state.late = _state.late, 0
            signal.pthread_kill(threading.main_thread().ident or 0, number)


def handle(number: int, frame: Any = None) -> None:
    """Raise KeyboardInterrupt or Terminated for a signal, after the blocks of :func:`held`."""
    note(number)
    if _state.held:
        _state.late = number
    else:
        _raise(number)


def _raise(number: int) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _handle(number: int, frame: Any) -> None:
    if _state.early:
        _end(f"error: {word(number)}.", 128 + number)
    handle(number)


def _watch(reader: socket.socket) -> None:
    interrupts = 0
    while True:
        ready, _, _ = select.select([reader], [], [], 0.1 if _state.deadline < float("inf") else None)
        for number in reader.recv(4096) if ready else b"":
            if number not in ENDING or signal.getsignal(number) == signal.SIG_IGN:
                continue
            note(number)
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                _state.deadline = min(_state.deadline, time.monotonic() + 2)
        if _state.early and _state.number and pending() > 0.5:
            _end(f"error: {word(_state.number)}.", 128 + _state.number)
        if time.monotonic() < _state.deadline:
            continue
        if _state.code is not None:
            _end("", _state.code)
        left = _state.limit()[1] or "Unsaved results are lost; repeat the command to resume or start again."
        _end(
            f"error: {word(_state.number)}; the current work did not end within"
            f" {time.monotonic() - _state.since:.0f} s and was stopped. {left}",
            128 + _state.number,
        )


def _end(message: str, code: int) -> None:
    """End the process at once; a blocked standard error delays it by at most one second."""

    def say() -> None:
        show = (
            "\x1b[?25h\n" if sys.stderr is not None and sys.stderr.isatty() else ""
        )  # shows a hidden cursor
        if message:
            os.write(2, f"{show}{message}\n".encode())

    speaker = threading.Thread(target=say, daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be started
        speaker.start()
        speaker.join(1)
    os._exit(code)


@contextlib.contextmanager
def handled_by(handler: Callable[[int, Any], Any], numbers: tuple[int, ...] = ENDING) -> Iterator[None]:
    """Install a handler of signals during the body; SIGTERM and SIGHUP stay ignored if they are.

    Do nothing outside the main thread, the only one that may install handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [n for n in numbers if n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)  # None: not Python's, which cannot restore it
        if _state.writer is None:  # the process continues
            forget()
