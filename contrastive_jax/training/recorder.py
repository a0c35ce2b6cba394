"""Records of runs: metrics, progress, alarms and results. Metrics stay on the device between log points."""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import alarms, cost
from contrastive_jax.training.on_log import OnLog
from contrastive_jax.training.program import IN_FLIGHT, Packed, Program
from contrastive_jax.training.run import Run
from contrastive_jax.types import TrainState, without
from contrastive_jax.workdir import checkpoint
from contrastive_jax.workdir import replicas as layout


class Diverged(ArithmeticError):
    """Error for a loss or gradient that is not finite; that state was not saved."""


@dataclasses.dataclass
class _Record:
    """Logbook, alarms and latest metrics of one run."""

    run: Run
    folder: str | os.PathLike
    book: workdirs.Logbook
    watch: alarms.Watch
    last: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # metrics of the latest step, on the host


class Recorder(contextlib.ExitStack):
    """Recorder of runs: holds metrics on the device, and writes them at log points, one record per run.

    Opening it writes the configs. The device never waits for the host. The host waits for the first step, in
    :meth:`fetch`, and when it is ``IN_FLIGHT`` steps ahead. A replica that diverges is left out; the others
    continue.

    Args:
      program: program of the runs.
      workdir: workdir of the program.
      feed: feed of the step, whose own metrics are added.
      saved: checkpoints of the program, named in the message about a run that diverges.
      start: step from which the program starts or resumes.
      log: function that logs a message.
      on_log: user's function, called with every new record.
      quiet: show no progress.
      active: False writes and shows nothing, for every process but the first.
    """

    def __init__(
        self,
        program: Program,
        workdir: str | os.PathLike,
        feed: data.Resident | data.Stream,
        saved: checkpoint.Checkpoints,
        start: int,
        log: Callable[[str], None],
        *,
        on_log: OnLog,
        quiet: bool = False,
        active: bool = True,
    ):
        super().__init__()
        self._program, self._workdir, self._feed, self._saved = program, workdir, feed, saved
        self._log, self._active, self._start, self._step = log, active, start, start
        self._on_log = on_log
        self._pending: list[tuple[int, Any]] = []  # (step, packed metrics)
        self._messages: dict[str, list[int]] = {}  # message -> numbers of its runs
        self._run, count = program.runs[0], len(program.runs)
        self.diverged: dict[int, str] = {}  # number of a run -> reason
        for number in range(count) if count > 1 else ():
            if start == 0:
                layout.forget_divergence(workdir, number)
            elif (why := layout.divergence(workdir, number)) is not None:
                self.diverged[number] = why
        self._records = [
            self._open(number, folder, quiet) for number, folder in enumerate(layout.places(workdir, count))
        ]
        known = active and start < self._run.total_steps
        here = self._run._replace(mesh=program.mesh)
        self._progress = workdirs.Progress(
            self._run.total_steps,
            self._run.steps_per_epoch,
            self._run.settings.train.batch_size,
            start,
            utilisation=cost.of_one_image_a_second(here, count) if known else None,
            quiet=quiet,
        )
        if start >= self._run.total_steps:
            self._progress.end()  # nothing is left to train
        self.pause = self._progress.pause

    def _open(self, number: int, folder: str | os.PathLike, quiet: bool) -> _Record:
        """Open the record of one run."""
        run = self._program.runs[number]
        config = run.settings.to_dict()
        if self._active:
            base = configs.plain(configs.complete(configs.base()))
            workdirs.write_config(folder, config, configs.diff_text(base, config))
        book = workdirs.Logbook(
            folder,
            start_step=self._start,
            active=self._active,
            config=config,
            tensorboard=run.settings.log.tensorboard,
            wandb=run.settings.log.wandb,
            verbose=not quiet and number == self._start == 0,
            report=lambda message: self._say(number, message),
            on_record=functools.partial(self._on_log, number),
        )
        return _Record(run, folder, book, alarms.Watch(run))

    def _say(self, number: int, message: str) -> None:
        self._messages.setdefault(message, []).append(number)

    def _speak(self) -> None:
        """Log the messages of the runs, merging duplicates."""
        messages, self._messages = self._messages, {}
        for message, numbers in messages.items():
            self._log(f"{layout.who(numbers, len(self._records))}{message}")

    def __enter__(self):
        super().__enter__()
        for number, record in enumerate(self._records):
            self.enter_context(record.book)
            for note in self._notes(record):
                self._say(number, note)
        self.enter_context(self._progress)
        self._speak()
        if len(self._records) > 1:
            self._log("the progress shown is that of replica 0")
        return self

    def _notes(self, record: _Record) -> list[str]:
        run, platform = record.run, self._program.mesh.devices.flat[0].platform
        return alarms.notes(run.settings, platform, run.source.train.example)

    @contextlib.contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Count the time inside as lost to data if the device is idle afterwards, without waiting for it."""
        began = time.perf_counter()
        yield
        if not self._pending or self._pending[-1][1].values.is_ready():  # empty: a log point waited for all
            self._progress.lose("data", time.perf_counter() - began)

    def record(self, step: int, metrics: Packed) -> None:
        """Record the metrics of a step; wait for the first, which starts the clock, and when far ahead."""
        self._pending.append((step, metrics))
        if step == self._start + 1:
            jax.block_until_ready(metrics)
            layout.write(self._workdir, self._program.differences)  # the replicas' program fits the device
            self._set_results_aside()
            self._progress.first_step(step)
        if len(self._pending) > IN_FLIGHT:  # each pending step holds its batch
            jax.block_until_ready(self._pending[-1 - IN_FLIGHT][1].values)

    def _set_results_aside(self) -> None:
        """Rename the results of an earlier end, or of an earlier run, which are not those of the steps to come."""
        for number, record in enumerate(self._records) if self._active else ():
            workdirs.set_result_aside(record.folder, functools.partial(self._say, number))
        self._speak()

    def _going(self) -> list[tuple[int, _Record]]:
        return [(n, record) for n, record in enumerate(self._records) if n not in self.diverged]

    def fetch(self) -> None:
        """Fetch all pending metrics, and check that losses and gradients are finite.

        Raises:
          OSError: the workdir was removed during the run.
          Diverged: every run had a loss or a gradient that is not finite.
        """
        fetched, self._pending = jax.device_get(self._pending), []
        steps = [(step, packed.unpacked()) for step, packed in fetched]
        for number, record in self._going():
            record.book.check()
            for step, metrics in steps:
                if not _finite(metrics[number]):
                    self._lose(number, step, metrics[number])
                    break
                self._step, record.last = step, metrics[number]
        self._speak()
        if not self._going():
            raise Diverged(f"all {len(self._records)} replicas diverged; replica 0: {self.diverged[0]}")

    def _lose(self, number: int, step: int, metrics: Mapping[str, Any]) -> None:
        """Continue without a replica that diverged; raise :class:`Diverged` for a single run."""
        good = max(self._saved.steps(), default=None)
        why = (
            f"step {step}: loss {metrics['loss']}, gradient norm {metrics['gradient_norm']}: not finite."
            f" Last good checkpoint: {'none' if good is None else f'step {good}'} in {self._saved.directory}."
            " A lower schedule.learning_rate, a longer warm-up or a higher temperature usually helps."
        )
        if len(self._records) == 1:
            raise Diverged(why)
        self.diverged[number] = why
        layout.write_divergence(self._workdir, number, why)
        self._say(number, f"{why} The other replicas continue.")

    def valid_state(self, state: TrainState) -> TrainState:
        """Return the state to save, with zeros for runs that diverged."""
        if not self.diverged:
            return state
        lost = np.array(sorted(self.diverged))
        rest = jax.tree.map(lambda x: x.at[lost].set(0), without(state, "step"))
        return dataclasses.replace(rest, step=state.step)

    def log_point(self) -> None:
        """Fetch, write and show the metrics of the latest step, and log alarms.

        Raises:
          Diverged: see :meth:`fetch`.
        """
        self.fetch()
        step, epoch, going = self._step, self._step / self._run.steps_per_epoch, self._going()
        for _, record in going:
            record.last = {**record.last, **self._feed.metrics()}
        timing = self._progress.update(step, going[0][1].last)
        for number, record in going:
            rung, sentences = record.watch.hear({"step": step, "epoch": epoch, **record.last})
            record.book.write(step, epoch, {**record.last, **rung}, timing)
            for sentence in sentences:
                self._say(number, sentence)
        self._speak()
        self._on_log.agree([number for number, _ in going])

    def write(self, step: int, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Write metrics of a step, one item per run."""
        for number, record in self._going():
            record.book.write(step, step / self._run.steps_per_epoch, metrics[number])
        self._on_log.agree([number for number, _ in self._going()])

    def unevaluated(self, step: int) -> bool:
        """Return whether a run that did not diverge has no record of an evaluation at a step."""
        return any(not record.book.holds(step, "eval/") for _, record in self._going())

    def _stretched(self) -> list[str]:
        """Return a note if ``train.duration`` was changed during the run."""
        *before, last = (self._saved.read_meta() or (0, {}))[1].get("durations") or [""]
        if not before:
            return []
        return [
            f"train.duration was {', then '.join(before)}, and is {last}: the schedules were stretched"
            " during the run, unlike in a new run of this config."
        ]

    def results(
        self, step: int, evaluations: Sequence[Mapping[str, Any]], seconds: float
    ) -> list[dict[str, Any]]:
        """Write ``result.json`` and ``curves.png`` of every run that did not diverge; return all results.

        Evaluation after the first call does not count as lost time. ``seconds`` are divided among the runs. If
        nothing was left to train, earlier measurements of speed are kept, and earlier evaluations if there are
        no new ones.
        """
        self._progress.end()
        return [
            {"diverged": self.diverged[number]}
            if number in self.diverged
            else self._result(record, step, evaluations[number] if evaluations else {}, seconds)
            for number, record in enumerate(self._records)
        ]

    def _result(
        self, record: _Record, step: int, evaluations: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        record.book.check()
        rows = workdirs.read_metrics(record.folder) if self._active else []
        measured: dict[str, Any] = {
            "evaluations": {},
            "metrics": record.last or next((row for row in reversed(rows) if "loss" in row), {}),
            "seconds": seconds / len(self._records),
            "images_per_second": self._progress.images_per_second,
            "utilisation": self._progress.utilisation,
            "lost": self._progress.lost,
        }
        if self._start >= self._run.total_steps and self._active:
            measured |= workdirs.measured_before(record.folder, step)
        result = workdirs.write_result(
            record.folder if self._active else None,
            step=step,
            epoch=step / self._run.steps_per_epoch,
            **measured
            | (
                {"evaluations": evaluations, "evaluated_by": workdirs.evaluated_by(record.run.settings)}
                if evaluations
                else {}
            ),
            alarms=alarms.summary(rows, record.run),
            notes=[
                *self._notes(record),
                *self._stretched(),
                *self._on_log.notes(step, self._run.total_steps),
            ],
        )
        if self._active:
            workdirs.plot_curves(record.folder)
        return result


def _finite(metrics: Mapping[str, Any]) -> bool:
    return bool(np.isfinite(metrics["loss"]) and np.isfinite(metrics["gradient_norm"]))
