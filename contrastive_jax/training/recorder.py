"""The record of a run: metrics, progress, alarms and the result. Between log points the device is not asked."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import alarms, utilisation
from contrastive_jax.training.packing import Packed
from contrastive_jax.training.run import Run
from contrastive_jax.types import TrainState
from contrastive_jax.workdir import checkpoint

IN_FLIGHT = 4  # steps that the device may be behind the host, each with its batch


class Diverged(ArithmeticError):
    """A loss or gradient is not finite; nothing of it was saved."""


def keep_pace(pending: Sequence[tuple[int, Packed]]) -> None:
    """Wait until the device is at most ``IN_FLIGHT`` steps behind: each that waits there holds its batch."""
    if len(pending) > IN_FLIGHT:
        jax.block_until_ready(pending[-1 - IN_FLIGHT][1].values)


class Recorder(contextlib.ExitStack):
    """Metrics of the steps since the last log point, still on the device, and where they go from there.

    Opening it writes the config. The device does not wait for the host, which waits for the
    first step, and where it is far ahead.

    Args:
      run: what runs.
      workdir: where it lives.
      feed: adds its own metrics.
      saved: named where the run diverges.
      start: step from which it goes on.
      log: for sentences.
      quiet: show no progress.
      active: False writes and shows nothing: for every process but the first.
      together: runs that the devices train at once.
    """

    def __init__(
        self,
        run: Run,
        workdir: str,
        feed: data.Resident | data.Stream,
        saved: checkpoint.Checkpoints,
        start: int,
        log: Callable[[str], None],
        *,
        quiet: bool = False,
        active: bool = True,
        together: int = 1,
    ):
        super().__init__()
        self._run, self._workdir, self._feed, self._saved = run, workdir, feed, saved
        self._log, self._active, self._start = log, active, start
        self._pending, self._step, self._last, self._together = [], start, {}, together
        self._watch = alarms.Watch(run.settings)
        if active:
            config = run.settings.to_dict()
            base = configs.plain(configs.complete(configs.base()))
            workdirs.write_config(workdir, config, configs.diff_text(base, config))
        self._book = workdirs.Logbook(
            workdir,
            start_step=start,
            active=active,
            config=run.settings.to_dict(),
            tensorboard=run.settings.log.tensorboard,
            wandb=run.settings.log.wandb,
            verbose=not quiet and start == 0,
            report=log,
        )
        known = active and start < run.total_steps
        self._progress = workdirs.Progress(
            run.total_steps,
            run.steps_per_epoch,
            run.settings.train.batch_size,
            start,
            utilisation=utilisation.of_one_image_a_second(run, together) if known else None,
            quiet=quiet,
        )
        if start >= run.total_steps:
            self._progress.end()  # before it began: there is only something to judge
        self.pause, self.lose, self.show = self._progress.pause, self._progress.lose, self._progress.update

    def __enter__(self):
        super().__enter__()
        self.enter_context(self._book)
        self.enter_context(self._progress)
        for note in self._notes():
            self._log(note)
        return self

    def _notes(self) -> list[str]:
        return alarms.notes(self._run.settings, self._run.mesh.devices.flat[0].platform)

    def next_batch(self, step: int) -> Any:
        """Return what the feed gives for the step; whether the device ran dry meanwhile is asked, not waited for."""
        given, waited = self.wait_for_feed(step, self._pending)
        self.lose("data", waited)
        return given

    def wait_for_feed(self, step: int, pending: Sequence[tuple[int, Any]]) -> tuple[Any, float]:
        """Return what the feed gives for the step, and the seconds for which the device had nothing to do meanwhile.

        ``pending``: the steps on the device.
        """
        began = time.perf_counter()
        given = self._feed.feed(step)
        idle = not pending or pending[-1][1].values.is_ready()  # none: a log point waited for all
        return given, time.perf_counter() - began if idle else 0.0

    def add(self, step: int, metrics: Packed) -> None:
        """Take note of a step; wait where the device is many behind."""
        self._pending.append((step, metrics))
        self.wait_for_first(step, metrics)
        keep_pace(self._pending)

    def wait_for_first(self, step: int, metrics: Packed) -> None:
        """Wait for the first step, from which time counts."""
        if step == self._start + 1:
            jax.block_until_ready(metrics)
            self._progress.first_step(step)

    def fetch(self) -> None:
        """Wait for the device, and look whether all steps so far are sound.

        Raises:
          Diverged: a loss or a gradient was not finite, at the first such step.
        """
        fetched, self._pending = jax.device_get(self._pending), []
        self.receive([(step, packed.unpacked()) for step, packed in fetched])

    def receive(self, steps: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Take the metrics of steps, on the host.

        Raises:
          OSError: the workdir was removed under the run.
          Diverged: see :meth:`fetch`.
        """
        self._book.check()
        for step, metrics in steps:
            if not (np.isfinite(metrics["loss"]) and np.isfinite(metrics["gradient_norm"])):
                good = max(self._saved.steps(), default=None)
                raise Diverged(
                    f"step {step}: loss {metrics['loss']}, gradient norm {metrics['gradient_norm']}: not finite."
                    f" Last good checkpoint: {'none' if good is None else f'step {good}'} in {self._saved.directory}."
                    " A lower schedule.learning_rate, a longer warm-up or a higher temperature usually helps."
                )
            self._step, self._last = step, metrics

    @property
    def latest(self) -> tuple[int, Mapping[str, Any]]:
        """The latest step that was fetched, and its metrics."""
        return self._step, self._last

    def sound(self, state: TrainState) -> TrainState:
        """Return what may be saved: a run whose steps so far are sound is sound."""
        return state

    def log_point(self) -> None:
        """Take a log point: write and show the metrics of the latest step, and speak alarms.

        Raises:
          Diverged: see :meth:`fetch`.
        """
        self.fetch()
        step, epoch = self._step, self._step / self._run.steps_per_epoch
        self._last = self._last | self._feed.metrics()
        rung, sentences = self._watch.hear({"step": step, "epoch": epoch, **self._last})
        self.write(step, self._last | rung, self._progress.update(step, self._last))
        for sentence in sentences:
            self._log(sentence)

    def write(self, step: int, metrics: Mapping[str, Any], timing: Mapping[str, float] | None = None) -> None:
        """Write a record of a step."""
        self._book.write(step, step / self._run.steps_per_epoch, metrics, timing)

    def _stretched(self) -> list[str]:
        """Return a sentence where the run's length was changed under way."""
        *before, last = (self._saved.read_meta() or (0, {}))[1].get("durations") or [""]
        if not before:
            return []
        return [
            f"train.duration was {', then '.join(before)}, and is {last}: schedules stretched under way, which"
            " another run of this config would not do."
        ]

    def result(self, step: int, evaluations: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Write ``result.json`` and ``curves.png``; return what the first holds. Training is over by the first call:
        what is judged after it is not time that training lost. ``seconds`` are shared by the runs that train together.
        Where nothing was left to train, what the training said of its speed stays, and so do evaluations where there
        are no others."""
        self._progress.end()
        self._book.check()
        rows = workdirs.read_metrics(self._workdir) if self._active else []
        measured = {
            "evaluations": {},
            "metrics": self._last or next((row for row in reversed(rows) if "loss" in row), {}),
            "seconds": seconds / self._together,
            "images_per_second": self._progress.images_per_second,
            "utilisation": self._progress.utilisation,
            "lost": self._progress.lost,
        }
        if self._start >= self._run.total_steps and self._active:
            measured |= workdirs.measured_before(self._workdir, step)
        result = workdirs.write_result(
            self._workdir if self._active else None,
            step=step,
            epoch=step / self._run.steps_per_epoch,
            **measured | ({"evaluations": evaluations} if evaluations else {}),
            alarms=alarms.summary(rows, self._run.settings),
            notes=[*self._notes(), *self._stretched()],
        )
        if self._active:
            workdirs.plot_curves(self._workdir)
        return result
