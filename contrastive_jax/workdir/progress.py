"""Progress displays of training and of an evaluation."""

import collections
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from contrastive_jax.evaluators import progress
from contrastive_jax.system.console import shared, visible
from contrastive_jax.workdir.metric_table import METRICS

_SHOWN = {name: metric.column for name, metric in METRICS.items() if metric.column and "." not in name}

LOST = ("data", "evaluation", "checkpoint")  # causes of lost time


def log(message: str) -> None:
    """Print a message above the progress bar, if there is one, without wrapping, so that it can be grepped."""
    shared().print(visible(message), markup=False, highlight=False, soft_wrap=True)


class Progress:
    """Progress bar in a terminal; elsewhere a line of at most 80 columns per log point, below headings.

    images/s and the time left are computed from the latest log points. Rates exclude the first step and the
    time spent in :meth:`pause` (except for "data").

        with Progress(total_steps, steps_per_epoch, batch_size, start_step) as progress:
            ...first step, waited for...
            progress.first_step(step)
            ...
            timing = progress.update(step, metrics)

    Args:
        total_steps: number of steps of the run.
        steps_per_epoch: steps per epoch, may be fractional.
        batch_size: images per step, on all devices together.
        start_step: steps done before this process began.
        utilisation: utilisation of the devices at one image per second; None if it is not known.
        quiet: show nothing; rates are still measured.
        console: a ``rich`` console; the shared one by default, so that :func:`log` prints above the bar.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: float,
        batch_size: int,
        start_step: int = 0,
        *,
        utilisation: float | None = None,
        quiet: bool = False,
        console=None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._total, self._steps_per_epoch, self._batch_size = total_steps, steps_per_epoch, batch_size
        self._quiet, self._clock = quiet, clock
        self._console = console or shared()
        self._live, self._headed = None, False
        self._utilisation = utilisation
        self._paused = dict.fromkeys(LOST, 0.0)  # seconds so far; rates include waiting for data
        self._counted = (clock(), dict(self._paused))  # at the last log point
        self._began = clock()
        self._ended: float | None = None  # end of training; later time is not lost
        self._first: tuple[int, float] | None = None  # step and time at which rates start
        self._latest: tuple[int, float] | None = None
        self._recent: collections.deque = collections.deque(maxlen=10)
        self._start_step = start_step

    def __enter__(self):
        if not self._quiet and self._console.is_interactive:
            from rich.live import Live

            self._live = Live(
                self._render(self._start_step, {}, None, None), console=self._console, auto_refresh=False
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, *error):
        if self._live is not None:
            self._live.stop()
            self._live = None

    def first_step(self, step: int) -> None:
        """Start measuring rates; call this when the result of the first step is available."""
        self._mark(step)

    def update(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Show a log point and return its timing; wait for metrics that are still on the device."""
        metrics = {name: float(metrics[name]) for name in _SHOWN if name in metrics}
        self._mark(step)  # after the line above, which waits for the device
        rate, left = self._between(self._recent[0], self._recent[-1]), None
        if rate:
            left = (self._total - step) * self._batch_size / rate
        if self._live is not None:
            self._live.update(self._render(step, metrics, rate, left), refresh=True)
        elif not self._quiet:
            fields = self._fields(step, metrics, rate, left)
            if not self._headed:
                self._print("  ".join(f"{heading:>{width}}" for heading, (width, _) in fields.items()))
                self._headed = True
            self._print("  ".join(f"{text:>{width}}" for width, text in fields.values()))
        timing = {"seconds": self._clock() - self._began}
        if rate is not None:
            timing["images_per_second"] = rate
            if self._utilisation is not None:
                timing["utilisation"] = rate * self._utilisation
        (since, before), self._counted = self._counted, (self._clock(), dict(self._paused))
        return timing | self._shares(since, before)

    @contextlib.contextmanager
    def pause(self, what: str):
        """Count time as lost to ``what``, one of ``LOST``; rates exclude it, except for "data"."""
        began = self._clock()
        try:
            yield
        finally:
            self.lose(what, self._clock() - began)

    def lose(self, what: str, seconds: float) -> None:
        """Add lost seconds, see :meth:`pause`; after the end of training they do not count."""
        if self._ended is None:
            self._paused[what] += seconds

    def end(self) -> None:
        """End training, after which :attr:`lost` does not change. A second call does nothing."""
        if self._ended is None:
            self._ended = self._clock()

    @property
    def lost(self) -> dict[str, float]:
        """Shares of the training time so far that were lost to each of ``LOST``.

        They are the time-weighted mean of the shares of :meth:`update`, with the time since the last log point.
        """
        return self._shares(self._began, dict.fromkeys(LOST, 0.0))

    def _shares(self, since: float, before: Mapping[str, float]) -> dict[str, float]:
        seconds = (self._clock() if self._ended is None else self._ended) - since
        return {
            f"lost_to_{what}": (lost - before[what]) / seconds if seconds else 0.0
            for what, lost in self._paused.items()
        }

    @property
    def images_per_second(self) -> float | None:
        """Mean rate from the first step's end (or first log point) to the latest log point, or None."""
        return self._between(self._first, self._latest)

    @property
    def utilisation(self) -> float | None:
        """Utilisation of the devices at :attr:`images_per_second`, or None."""
        rate = self.images_per_second
        return None if rate is None or self._utilisation is None else rate * self._utilisation

    def _now(self) -> float:
        return self._clock() - sum(seconds for what, seconds in self._paused.items() if what != "data")

    def _mark(self, step: int) -> None:
        self._latest = (step, self._now())
        self._first = self._first or self._latest
        self._recent.append(self._latest)

    def _between(self, first, last) -> float | None:
        if first is None or last[0] <= first[0] or last[1] <= first[1]:
            return None
        return (last[0] - first[0]) * self._batch_size / (last[1] - first[1])

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _fields(self, step, metrics, rate, left) -> dict[str, tuple[int, str]]:
        """Return heading -> width and text."""
        epochs = f"{self._total / self._steps_per_epoch:.2f}"
        fields = {
            "step": (len(str(self._total)), str(step)),
            "epoch": (len(epochs), f"{step / self._steps_per_epoch:.2f}"),
        }
        fields |= {_SHOWN[name]: (6, _fitting(metrics[name], 6)) for name in _SHOWN if name in metrics}
        fields["images/s"] = (8, "-" if rate is None else f"{rate:,.{1 if rate < 1000 else 0}f}")
        fields["left"] = (8, "-" if left is None else _duration(left))
        return {heading: (max(width, len(heading)), text) for heading, (width, text) in fields.items()}

    def _render(self, step, metrics, rate, left):
        """Render the bar and, below it, the fields, which wrap between fields in a narrow terminal."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        totals = {"step": f"/{self._total}", "epoch": f"/{self._total / self._steps_per_epoch:.4g}"}
        fields = [
            Text(f"{heading} {text}{totals.get(heading, '')}", no_wrap=True)
            for heading, (_, text) in self._fields(step, metrics, rate, left).items()
        ]
        bar = Table.grid(expand=True)  # without colours, a bar alone neither fills nor ends its line
        bar.add_row(ProgressBar(total=max(self._total, 1), completed=step))
        return Group(bar, Columns(fields, padding=(0, 2)))


def _fitting(value: float, width: int) -> str:
    """Return a number as text with as many decimals, up to four, as fit into ``width``."""
    texts = [f"{value:.{decimals}f}" for decimals in (4, 3, 2, 1, 0)]
    return next((text for text in texts if len(text) <= width), f"{value:.0e}")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


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
            from rich.text import Text  # a name such as k[5] is no markup

            self._status.update(Text(visible(f"{self._row}{': ' * bool(how_far)}{how_far}")))

    def _print(self, line: str) -> None:
        if not self._quiet:
            self._console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
