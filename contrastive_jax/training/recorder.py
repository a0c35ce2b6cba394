"""The records of runs: metrics, progress, alarms and results. Metrics stay on the device between log points."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import alarms, utilisation
from contrastive_jax.training.packing import Packed
from contrastive_jax.training.program import Program
from contrastive_jax.training.run import Run
from contrastive_jax.types import TrainState
from contrastive_jax.workdir import checkpoint
from contrastive_jax.workdir import replicas as layout

IN_FLIGHT = 4  # steps that the device may be behind the host, each with its batch


class Diverged(ArithmeticError):
    """A loss or gradient is not finite; nothing of it was saved."""


@dataclasses.dataclass
class _Record:
    """The record of one run."""

    run: Run
    folder: str | os.PathLike
    book: workdirs.Logbook
    watch: alarms.Watch
    last: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # metrics of the latest step, on the host


class Recorder(contextlib.ExitStack):
    """Metrics of the steps since the last log point, still on the device, and where they go from there: an item a run.

    Opening it writes the configs. The device does not wait for the host, which waits for the
    first step, and where it is far ahead. Of several runs one that diverges is left out, and the others go on.

    Args:
      program: what runs.
      workdir: where it lives.
      feed: adds its own metrics.
      saved: named where a run diverges.
      start: step from which it goes on.
      log: for sentences.
      quiet: show no progress.
      active: False writes and shows nothing: for every process but the first.
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
        quiet: bool = False,
        active: bool = True,
    ):
        super().__init__()
        self._program, self._workdir, self._feed, self._saved = program, workdir, feed, saved
        self._log, self._active, self._start, self._step = log, active, start, start
        self._pending: list[tuple[int, Any]] = []  # steps, and their packed metrics
        self._messages: dict[str, list[int]] = {}  # of which runs each is
        self._run, count = program.runs[0], len(program.runs)
        self.diverged: dict[int, str] = {}  # which runs, and why
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
            utilisation=utilisation.of_one_image_a_second(here, count) if known else None,
            quiet=quiet,
        )
        if start >= self._run.total_steps:
            self._progress.end()  # before it began: there is only something to evaluate
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
        )
        return _Record(run, folder, book, alarms.Watch(run))

    def _say(self, number: int, message: str) -> None:
        self._messages.setdefault(message, []).append(number)

    def _speak(self) -> None:
        """Log the messages of the runs; what several say, once."""
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
            self._log("what is shown of training is replica 0's")
        return self

    def _notes(self, record: _Record) -> list[str]:
        return alarms.notes(record.run.settings, self._program.mesh.devices.flat[0].platform)

    @contextlib.contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Count the time inside as lost to data where the device runs dry meanwhile; it is asked, not waited for."""
        began = time.perf_counter()
        yield
        if not self._pending or self._pending[-1][1].values.is_ready():  # none: a log point waited for all
            self._progress.lose("data", time.perf_counter() - began)

    def record(self, step: int, metrics: Packed) -> None:
        """Take note of a step. Wait for the first, from which time counts, and where the device is far behind."""
        if step == self._start + 1:
            layout.write(self._workdir, self._program.differences)  # their program fits the device
        self._pending.append((step, metrics))
        if step == self._start + 1:
            jax.block_until_ready(metrics)
            self._progress.first_step(step)
        if len(self._pending) > IN_FLIGHT:  # each step that waits there holds its batch
            jax.block_until_ready(self._pending[-1 - IN_FLIGHT][1].values)

    def _going(self) -> list[tuple[int, _Record]]:
        return [(n, record) for n, record in enumerate(self._records) if n not in self.diverged]

    def fetch(self) -> None:
        """Wait for the device, and check that all steps so far are finite.

        Raises:
          OSError: the workdir was removed under the run.
          Diverged: a loss or a gradient of every run was not finite, at the first such step.
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
        """Go on without a run that diverged; one by itself ends here."""
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
        self._say(number, f"{why} The others go on.")

    def valid_state(self, state: TrainState) -> TrainState:
        """Return what may be saved: zeros in the place of runs that diverged."""
        if not self.diverged:
            return state
        lost = np.array(sorted(self.diverged))
        rest = jax.tree.map(lambda x: x.at[lost].set(0), dataclasses.replace(state, step=()))
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

    def write(self, step: int, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Write a record of a step, by run."""
        for number, record in self._going():
            record.book.write(step, step / self._run.steps_per_epoch, metrics[number])

    def _stretched(self) -> list[str]:
        """Return a sentence where the length was changed under way."""
        *before, last = (self._saved.read_meta() or (0, {}))[1].get("durations") or [""]
        if not before:
            return []
        return [
            f"train.duration was {', then '.join(before)}, and is {last}: schedules stretched under way, which"
            " another run of this config would not do."
        ]

    def results(
        self, step: int, evaluations: Sequence[Mapping[str, Any]], seconds: float
    ) -> list[dict[str, Any]]:
        """Write ``result.json`` and ``curves.png`` of every run that did not diverge; return what the first holds.

        Evaluation after the first call does not count as time that training lost. ``seconds`` are shared by the runs.
        Where nothing was left to train, what the training said of its speed stays, and so do evaluations where there
        are no others.
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
        measured = {
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
            **measured | ({"evaluations": evaluations} if evaluations else {}),
            alarms=alarms.summary(rows, record.run),
            notes=[*self._notes(record), *self._stretched()],
        )
        if self._active:
            workdirs.plot_curves(record.folder)
        return result


def _finite(metrics: Mapping[str, Any]) -> bool:
    return bool(np.isfinite(metrics["loss"]) and np.isfinite(metrics["gradient_norm"]))
