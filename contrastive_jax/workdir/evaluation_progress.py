"""Progress display of an evaluation: its description, its scores, and the work in progress."""

import contextlib
import time
from collections.abc import Callable

from contrastive_jax.evaluators import progress
from contrastive_jax.system.console import shared


class EvaluationProgress:
    """Lines of scores and, in a terminal, a status line below them.

    Args:
        what: description of the evaluation in one line, printed first.
        quiet: show nothing.
        console: a ``rich`` console; the shared one by default.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        what: str,
        *,
        quiet: bool = False,
        console=None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._what, self._quiet, self._clock = what, quiet, clock
        self._console = console or shared()
        self._row, self._since, self._shown = "", clock(), 0.0
        self._context = contextlib.ExitStack()
        self._status = None

    def __enter__(self):
        self._context.enter_context(progress.listening(self._reported))
        self._print(self._what)
        if not self._quiet and self._console.is_interactive:
            self._status = self._context.enter_context(self._console.status(""))
        self._since = self._clock()
        return self

    def __exit__(self, *error):
        self._context.close()

    def begin(self, row: str) -> None:
        """Set the row of the next scores."""
        self._row = row
        self._update("")

    def score(self, row: str, column: str, cell: str) -> None:
        """Print a score as it appears in the table, and its duration in seconds."""
        now = self._clock()
        self._print(f"  {row}, {column}: {cell}  ({now - self._since:.1f} s)")
        self._since = now
        self._update("")

    def _reported(self, what: str, done: int, total: int) -> None:
        self._update(f"{done:,} of {total:,} {what}")

    def _update(self, how_far: str) -> None:
        if self._status is not None and (not how_far or self._clock() - self._shown > 0.2):
            self._shown = self._clock()
            self._status.update(f"{self._row}{': ' * bool(how_far)}{how_far}")

    def _print(self, line: str) -> None:
        if not self._quiet:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
