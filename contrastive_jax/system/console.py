"""Console output that never ends a run: other encodings, closed pipes, full disks behind a redirection."""

import codecs
import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

PLAIN = {
    "±": "+-",
    "×": "x",
    "—": "-",
    "–": "-",
    "…": "...",
    "·": ".",
    "→": "->",
    "≥": ">=",
    "≤": "<=",
    "’": "'",
}
GONE = (errno.EPIPE, errno.EBADF, errno.ESHUTDOWN, errno.ENXIO)  # errors of a stream without a reader


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Return the replacement of characters that an encoding lacks: a plain form, or an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text), error.end


codecs.register_error("contrastive_jax-plain", _replace)


class Stream:
    """Text stream whose ``write`` and ``flush`` never raise; other attributes are those of the wrapped stream.

    Args:
      stream: function that returns the current stream (``sys.stdout`` may be replaced), or None.
      redirect: whether to redirect the file descriptor to ``os.devnull`` when its reader is gone; only for this
        program's own streams.
      report: called once with the error if output is lost although the reader is not gone.
    """

    def __init__(
        self,
        stream: Callable[[], Any],
        redirect: bool = False,
        report: Callable[[Exception], None] | None = None,
    ):
        self._find, self._redirect, self._report = stream, redirect, report
        self.lost: Exception | None = None

    @property
    def _stream(self) -> Any:
        stream = self._find()
        return getattr(
            stream, "rich_proxied_file", stream
        )  # rich's own proxy would print to this console again

    def write(self, text: str) -> int:
        """Write a text, with characters that the encoding lacks replaced; return its length."""
        stream = self._stream
        if stream is not None:
            try:
                try:
                    stream.write(text)
                except UnicodeEncodeError:
                    encoding = getattr(stream, "encoding", None) or "ascii"
                    stream.write(text.encode(encoding, "contrastive_jax-plain").decode(encoding))
            except (OSError, ValueError, LookupError) as error:
                self._lose(stream, error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        stream = self._stream
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                self._lose(stream, error)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, stream: Any, error: Exception) -> None:
        first, self.lost = self.lost is None, error
        gone = getattr(error, "errno", None) in GONE
        if gone and self._redirect:
            try:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())  # else the buffered output fails again when Python ends
                os.close(null)
            except (OSError, ValueError):
                pass
        if first and not gone and self._report is not None:
            self._report(error)


@functools.cache
def shared() -> Any:
    """Return the package's ``rich`` console, shared by progress, log lines and tables."""
    import rich.console

    return rich.console.Console(file=Stream(lambda: sys.stdout))  # type: ignore[arg-type]


def protect() -> Callable[[], Exception | None]:
    """Replace the standard streams by streams that never raise; a command calls this before it prints.

    Returns:
      A function that returns the error that made standard output incomplete, or None; a closed pipe does not
      count.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed by the shell: the next opened file would get its number and the output
            os.open(os.devnull, os.O_RDWR)
    out, err = sys.stdout, sys.stderr
    if out is None and err is None:
        return lambda: None
    errors = Stream(lambda: err, redirect=True)

    def report(error: Exception) -> None:
        why = getattr(error, "strerror", None) or error
        errors.write(
            f"warning: standard output cannot be written from here on ({why}); the command continues.\n"
        )
        errors.flush()

    output = Stream(lambda: out, redirect=True, report=report)
    if out is not None:
        sys.stdout = output
    if err is not None:
        sys.stderr = errors

    def incomplete() -> Exception | None:
        output.flush()
        return None if getattr(output.lost, "errno", None) in GONE else output.lost

    return incomplete


def visible(text: str) -> str:
    """Return a text with control characters escaped, so that a name cannot move the cursor."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return a text as one line, with lines joined by spaces and control characters escaped."""
    return visible(" ".join(text.split("\n")))


def warn(message: str) -> None:
    """Write a line to standard error."""
    errors = Stream(lambda: sys.stderr)
    errors.write(f"{one_line(message)}\n")
    errors.flush()
