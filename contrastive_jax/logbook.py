"""What a run leaves in its workdir, and what it shows while it trains.

``metrics.jsonl`` is the source of truth: one JSON object a line. Everything else (TensorBoard files,
``curves.png``, ``result.json``) is derived, or describes the run around it.
"""

import collections
import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

METRICS = "metrics.jsonl"
_NON_FINITE = {"NaN", "Infinity", "-Infinity"}

# name of the metric, its heading on screen, its format; in the order shown
_SHOWN = (
    ("loss", "loss", "8.4f"),
    ("info_nce", "InfoNCE", "7.4f"),
    ("contrast_accuracy", "accuracy", "6.4f"),
    ("tau", "tau", "6.4f"),
    ("ess", "ESS", "6.4f"),
)


# ---------------------------------------------------------------- files, written whole or not at all


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write ``path`` atomically: whoever reads it, at any moment, sees the old text or the new."""
    with _replacing(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write ``value`` atomically as indented JSON; NaN and the infinities become strings."""
    write_text(path, json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_config(workdir: str | os.PathLike, config: Mapping[str, Any], diff: str) -> None:
    """``config.json``, and in ``config_diff.txt`` the leaves that differ from the base."""
    write_json(pathlib.Path(workdir, "config.json"), config)
    write_text(pathlib.Path(workdir, "config_diff.txt"), diff.rstrip("\n") + "\n")


@contextlib.contextmanager
def _replacing(path):
    """A temporary path beside ``path`` that takes its place when the block ends without an error."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = pathlib.Path(name)
    try:
        yield temporary
        mask = os.umask(0)  # mkstemp makes files for the owner alone; what a run leaves is like any file
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# ---------------------------------------------------------------- metrics.jsonl


class Logbook:
    """Writes ``metrics.jsonl`` and, where TensorFlow is installed, TensorBoard files.

    A line is ``{"step": …, "epoch": …, every metric, "timing": {…}}``. ``timing`` holds what the wall clock
    says (images_per_second, seconds); the rest is a function of the config, bit for bit. JSON has no NaN
    and no infinity: they are the strings "NaN", "Infinity" and "-Infinity", which :func:`read_metrics` turns
    back into numbers.

    A step may have several records, of different metrics (training, evaluation). Opening the book at
    ``start_step`` repairs the file: records of later steps, repetitions and an unfinished last line go. Write
    a step's records *before* its checkpoint is saved, and the file of a resumed run is that of an
    uninterrupted one. A record that is already there is not written again.

    Args:
        workdir: is made if it is not there.
        start_step: the step of the checkpoint from which the run goes on; 0 for a new run.
        tensorboard: also write TensorBoard files, through ``clu.metric_writers``.
        verbose: say, once, that TensorBoard files are not written and what to install.
        active: False writes nothing: for every process but the first.

    Raises:
        ValueError: a line of the file, not the last, is no record.
        OSError: the workdir cannot be written.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        start_step: int = 0,
        tensorboard: bool = True,
        verbose: bool = False,
        active: bool = True,
    ):
        self._file = self._writer = None
        self._written: set[tuple] = set()
        if not active:
            return
        path = pathlib.Path(workdir, METRICS)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._written = _repair(path, start_step)
        self._file = path.open("ab", buffering=0)
        if tensorboard and importlib.util.find_spec("tensorflow") is not None:
            from clu import metric_writers  # imports TensorFlow

            self._writer = metric_writers.SummaryWriter(str(workdir))
        elif tensorboard and verbose:
            say("No TensorBoard files: TensorFlow is not installed (pip install 'contrastive_jax[tf]').")

    def write(
        self, step: int, epoch: float, metrics: Mapping[str, Any], timing: Mapping[str, Any] | None = None
    ) -> None:
        """Add one record; it is out of the process's hands when this returns.

        Args:
            step: steps done.
            epoch: epochs done.
            metrics: name -> scalar (array, NumPy or Python number); fetched from the device in one go.
            timing: what depends on the clock.

        Raises:
            ValueError: a value that is not a number, or a metric called step, epoch or timing.
        """
        if self._file is None:
            return
        reserved = {"step", "epoch", "timing"} & set(metrics)
        if reserved:
            raise ValueError(
                f"A metric cannot be called {sorted(reserved)[0]!r}: the record has such a field."
            )
        metrics, timing = jax.device_get((dict(metrics), dict(timing or {})))
        scalars = {name: _scalar(name, value) for name, value in metrics.items()}
        record = {"step": int(step), "epoch": float(epoch), **scalars}
        if _identity(record) in self._written:
            return
        if timing:
            record["timing"] = {name: _scalar(name, value) for name, value in timing.items()}
        self._file.write(_line(record))  # one system call a record
        self._written.add(_identity(record))
        if self._writer is not None:
            self._writer.write_scalars(int(step), {**scalars, **timing})
            self._writer.flush()

    def close(self) -> None:
        """Close the files; a second time does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of ``metrics.jsonl`` in order, every number a number; an unfinished last line is left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line, not the last, is no record.
    """
    return [_numbers(record) for record in _records(pathlib.Path(workdir, METRICS))]


def _records(path: pathlib.Path) -> list[dict]:
    lines = path.read_bytes().splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise ValueError
        except ValueError:
            if number == len(lines):
                break  # the process died while it wrote
            raise ValueError(f"{path}, line {number}, is no record of metrics: move the file away.") from None
        records.append(record)
    return records


def _repair(path: pathlib.Path, start_step: int) -> set[tuple]:
    """Cut the file back to ``start_step``; what is in it, by step and names."""
    if not path.exists():
        return set()
    kept = {}
    for record in _records(path):
        if record["step"] <= start_step:
            kept.setdefault(_identity(record), record)
    text = b"".join(map(_line, kept.values()))
    if text != path.read_bytes():
        with _replacing(path) as temporary:
            temporary.write_bytes(text)
    return set(kept)


def _identity(record: Mapping[str, Any]) -> tuple:
    return record["step"], frozenset(record) - {"timing"}


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(_plain(record), allow_nan=False, ensure_ascii=False) + "\n").encode()


def _scalar(name: str, value: Any) -> bool | int | float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ValueError(f"The metric {name!r} is {value!r}: a metric is one number.")
    return float(array.reshape(())) if array.dtype.kind not in "biu" else array.reshape(()).item()


def _plain(value: Any) -> Any:
    """``value`` in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    return float(value) if isinstance(value, str) and value in _NON_FINITE else value


# ---------------------------------------------------------------- result.json


def write_result(
    workdir: str | os.PathLike,
    *,
    step: int,
    epoch: float,
    metrics: Mapping[str, Any],
    evaluations: Mapping[str, Any],
    seconds: float,
    images_per_second: float | None,
) -> dict[str, Any]:
    """Write ``result.json`` atomically, and return what it holds.

    Args:
        workdir: of the run.
        step: steps done.
        epoch: epochs done.
        metrics: the last training metrics.
        evaluations: what the evaluators returned, with their protocols.
        seconds: wall time of this process's part of the run.
        images_per_second: mean rate without compiling and evaluating; None where nothing was trained.
    """
    metrics, evaluations = jax.device_get((dict(metrics), dict(evaluations)))
    result = {
        "step": int(step),
        "epoch": float(epoch),
        "metrics": metrics,
        "evaluations": evaluations,
        "seconds": seconds,
        "images_per_second": images_per_second,
        **environment(),
    }
    write_json(pathlib.Path(workdir, "result.json"), result)
    return result


def environment() -> dict[str, Any]:
    """Versions, devices and the git commit of the source (None where it is not in a repository)."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scikit-learn", "contrastive_jax")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a source tree that was not installed
            versions[name] = None
    commit, modified = _git_commit()
    return {
        "versions": versions,
        "device": {
            "platform": jax.default_backend(),
            "kind": jax.devices()[0].device_kind,
            "count": jax.device_count(),
            "processes": jax.process_count(),
        },
        "git_commit": commit,
        "git_modified": modified,
    }


def _git_commit() -> tuple[str | None, bool | None]:
    """The commit of the repository that tracks this very file, and whether tracked files differ from it."""

    def git(*arguments):
        command = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", os.path.basename(__file__)
        )  # not any repository around an installation
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


# ---------------------------------------------------------------- curves.png


def plot_curves(workdir: str | os.PathLike) -> pathlib.Path | None:
    """Draw ``curves.png`` from ``metrics.jsonl``: loss and InfoNCE, contrast accuracy, tau, ESS, evaluations.

    A panel is drawn for what was logged, against the epoch; None, and no file, where nothing was.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = read_metrics(workdir)
    names = list(dict.fromkeys(name for record in records for name in record))
    evaluations = [name for name in names if name.endswith(("top1", "mean_per_class"))]
    panels = (
        ("loss", ["loss", "info_nce"]),
        ("contrast accuracy", ["contrast_accuracy"]),
        ("temperature", ["tau"]),
        ("effective sample size / negatives", ["ess", "ess_with_positive"]),
        ("evaluation", evaluations),
    )
    panels = [(title, [name for name in shown if name in names]) for title, shown in panels]
    panels = [(title, shown) for title, shown in panels if shown]
    if not panels:
        return None
    figure = Figure(figsize=(3.6 * len(panels), 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, shown) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in shown:
            points = [(record["epoch"], record[name]) for record in records if name in record]
            marker = "o" if len(points) < 40 else None
            axes.plot(*np.asarray(points, float).T, label=name, marker=marker, markersize=3, linewidth=1.2)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        if len(shown) > 1:
            axes.legend(fontsize=7)
    path = pathlib.Path(workdir, "curves.png")
    with _replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return path


# ---------------------------------------------------------------- the screen


def say(message: str) -> None:
    """Print a sentence, above the progress bar where there is one; never wrapped: it can be grepped."""
    import rich

    rich.get_console().print(message, markup=False, highlight=False, soft_wrap=True)


class Progress:
    """A bar in a terminal; elsewhere one aligned line for each log point.

    images/s and the time left come from the latest log points. The first step, which traces and compiles, has
    a line of its own and counts in no rate, nor does the time spent in :meth:`pause`.

        with Progress(total_steps, steps_per_epoch, batch_size, start_step) as progress:
            ...first step, waited for...
            progress.first_step(step)
            ...
            timing = progress.update(step, metrics)

    Args:
        total_steps: at which the run ends.
        steps_per_epoch: need not be whole.
        batch_size: images of one step, all devices together.
        start_step: steps done before this process began.
        quiet: show nothing; rates are still measured.
        console: a ``rich`` console; the shared one by default, so that :func:`say` prints above the bar.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: float,
        batch_size: int,
        start_step: int = 0,
        *,
        quiet: bool = False,
        console=None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        import rich

        self._total, self._steps_per_epoch, self._batch_size = total_steps, steps_per_epoch, batch_size
        self._quiet, self._clock = quiet, clock
        self._console = console or rich.get_console()
        self._live = None
        self._paused = 0.0  # seconds, so far
        self._began = clock()
        self._first: tuple[int, float] | None = None  # step and time from which rates count
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

    def first_step(self, step: int) -> float:
        """Say how long the first step took, compiling included; call it once that step's result is there."""
        seconds = self._now() - self._began
        self._mark(step)
        self.say(f"first step (tracing and compiling included): {seconds:.1f} s")
        return seconds

    def update(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Show a log point; return its timing: ``seconds`` since the start, ``images_per_second`` once known.

        Metrics that are still on the device are waited for.
        """
        metrics = {name: float(metrics[name]) for name, _, _ in _SHOWN if name in metrics}
        self._mark(step)  # only now: the lines above have waited for the device
        rate, left = self._between(self._recent[0], self._recent[-1]), None
        if rate:
            left = (self._total - step) * self._batch_size / rate
        if self._live is not None:
            self._live.update(self._render(step, metrics, rate, left), refresh=True)
        elif not self._quiet:
            self._print(self._plain_line(step, metrics, rate, left))
        timing = {"seconds": self._clock() - self._began}
        if rate is not None:
            timing["images_per_second"] = rate
        return timing

    @contextlib.contextmanager
    def pause(self):
        """Time that is not training (an evaluation, a checkpoint) and counts in no rate."""
        began = self._clock()
        try:
            yield
        finally:
            self._paused += self._clock() - began

    def say(self, message: str) -> None:
        """Print a sentence above the bar, unless quiet."""
        if not self._quiet:
            self._print(message)

    @property
    def images_per_second(self) -> float | None:
        """Mean rate from the first step's end (or first log point) to the latest log point, or None."""
        return self._between(self._first, self._latest)

    def _now(self) -> float:
        return self._clock() - self._paused

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

    def _fields(self, step, metrics, rate, left) -> Iterable[str]:
        epochs = self._total / self._steps_per_epoch
        yield f"step {step:{len(str(self._total))}d}/{self._total}"
        yield f"epoch {step / self._steps_per_epoch:{len(f'{epochs:.2f}')}.2f}/{epochs:.4g}"
        for name, heading, form in _SHOWN:
            if name in metrics:
                yield f"{heading} {metrics[name]:{form}}"
        yield f"images/s {'-':>9}" if rate is None else f"images/s {rate:9,.1f}"
        yield f"left {'-':>8}" if left is None else f"left {_duration(left):>8}"

    def _plain_line(self, step, metrics, rate, left) -> str:
        return "  ".join(self._fields(step, metrics, rate, left))

    def _render(self, step, metrics, rate, left):
        """The bar, and below it the fields, which wrap between fields where the terminal is narrow."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        fields = [
            Text(" ".join(field.split()), no_wrap=True) for field in self._fields(step, metrics, rate, left)
        ]
        bar = Table.grid(expand=True)  # without colours a bar alone does not fill, or end, its line
        bar.add_row(ProgressBar(total=max(self._total, 1), completed=step))
        return Group(bar, Columns(fields, padding=(0, 2)))


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
