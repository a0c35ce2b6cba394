"""Progress of an evaluation: loops report it, whoever shows it listens."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

Listener = Callable[[str, int, int], None]  # (what is done, how many of them, of how many)
_LISTENER: contextvars.ContextVar[Listener | None] = contextvars.ContextVar("listener", default=None)


def report(what: str, done: int, total: int) -> None:
    """Tell the listener, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, done, total)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hand what is reported inside to ``listener``."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
