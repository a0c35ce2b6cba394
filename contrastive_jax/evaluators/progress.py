"""Progress of an evaluation, from the loops that report it to the listener that shows it."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

Listener = Callable[[str, int, int], None]  # (name of the units, number done, total number)
_LISTENER: contextvars.ContextVar[Listener | None] = contextvars.ContextVar("listener", default=None)


def report(what: str, done: int, total: int) -> None:
    """Call the listener, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, done, total)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send reports inside the context to ``listener``."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
