"""``--mode=train``: the loop, read top to bottom: prepare, restore, step, look, save, judge.

The loop asks the device for numbers at log points only.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from contrastive_jax import alarms, checkpoint, data, distributed, encoder, logbook, sharding, weights
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.evaluate import Judge
from contrastive_jax.run import Run, feed_of, initial_state, prepare
from contrastive_jax.step import make_train_step
from contrastive_jax.types import TrainState


class Stopped(Exception):
    """The run was asked to stop, and saved; the message says how to go on. ``code`` is the exit status."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class Diverged(ArithmeticError):
    """A loss or gradient is not finite; nothing of it was saved."""


def compiler_options() -> dict[str, int] | None:
    """On CPU LLVM's first level compiles a third faster, and the step is as fast."""
    return {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None


def compiled_step(
    run: Run, feed: data.Resident | data.Stream, state: TrainState
) -> tuple[jax.stages.Compiled, float]:
    """The train step for these shapes, ahead of its first call, and the seconds that it took to make."""
    began = time.perf_counter()
    step = jax.jit(make_train_step(run.recipe, feed.take), donate_argnums=0)
    return step.lower(state, feed.feed(int(state.step))).compile(
        compiler_options()
    ), time.perf_counter() - began


def first_state(run: Run, report: Callable[[str], None]) -> TrainState:
    """The state before step 0, with the encoder of ``init.checkpoint`` (a workdir or file) where there is one."""
    state = initial_state(run)
    if not (path := run.config["init"]["checkpoint"]):
        return state
    everywhere = sharding.named(run.mesh, sharding.REPLICATED)
    found = encoder.read(path, rooms=("encoder",), sharding=everywhere, report=report)
    if other := weights.difference(found.params["encoder"], state.params["encoder"]):
        raise ValueError(
            f"init.checkpoint={path!r} holds another encoder than this config's: its {other};"
            " compare the encoder sections of their configs."
        )
    report(f"encoder: from {'' if found.step is None else f'step {found.step} of '}{path}")
    params, stats = jax.tree.map(lambda x: x.astype(run.recipe.parameter_dtype), (found.params, found.stats))
    params, stats = state.params | params, state.stats | stats
    # The target starts as a copy of what it follows.
    return dataclasses.replace(
        state, params=params, stats=stats, target=run.recipe.target.init(params, stats)
    )


def restored(run: Run, saved: checkpoint.Checkpoints, report: Callable[[str], None]) -> TrainState:
    """The state of the newest intact checkpoint, or the first state.

    Raises:
      ValueError: the config differs from the run's in leaves that may not change.
    """
    state = first_state(run, report)
    meta = saved.read_meta()
    if meta is None:
        return state
    before = meta[1]["config"]
    if wrong := configs.forbidden_changes(before, run.config):
        changes = "; ".join(f"{name} was {was!r}, is {now!r}" for name, (was, now) in wrong.items())
        raise ValueError(
            f"this workdir's run has another config: {changes}. Take those back, or choose another --workdir."
        )
    if before["train"]["duration"] != run.config["train"]["duration"]:
        report(
            f"train.duration was {before['train']['duration']}, is {run.config['train']['duration']}:"
            " schedules stretch to the new length from here on."
        )
    state, step, _ = saved.restore(state, report)
    report(f"resuming at step {step} of {run.total_steps}")
    return state


class Reports:
    """Metrics of the steps since the last log point, still on the device: steps do not wait for the host."""

    def __init__(self, workdir: str, saved: checkpoint.Checkpoints):
        self._workdir, self._saved, self._pending = workdir, saved, []

    def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Takes note of a step."""
        self._pending.append((step, metrics))

    def fetch(self) -> dict[str, np.ndarray]:
        """Waits for the device; the metrics of the latest step, or {} where there is none since the last fetch.

        Raises:
          Diverged: a loss or a gradient was not finite, at the first such step.
        """
        fetched, self._pending = jax.device_get(self._pending), []
        for step, metrics in fetched:
            if not (np.isfinite(metrics["loss"]) and np.isfinite(metrics["gradient_norm"])):
                good = max(self._saved.steps(), default=None)
                raise Diverged(
                    f"step {step}: loss {metrics['loss']}, gradient norm {metrics['gradient_norm']}: not finite."
                    f" Last good checkpoint: {'none' if good is None else f'step {good}'} in {self._workdir}."
                    " A lower schedule.learning_rate, a longer warm-up or a higher temperature usually helps."
                )
        return fetched[-1][1] if fetched else {}


def train(
    config: Mapping[str, Any],
    workdir: str,
    *,
    quiet: bool = False,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """Trains to the end of ``train.duration``, or goes on where the workdir's run stopped.

    Args:
      config: a plain config (:func:`contrastive_jax.config.plain`).
      workdir: holds config.json, config_diff.txt, metrics.jsonl, checkpoints/, result.json, curves.png.
      quiet: print the final table only.
      devices: to train on; default all.

    Returns:
      What ``result.json`` holds.

    Raises:
      ValueError: a wrong option, before anything is compiled or written.
      Stopped: Ctrl-C or SIGTERM; the state is saved.
      Diverged: a loss or gradient is not finite.
      OSError: another run lives in the workdir, it cannot be written, or has no room for the checkpoints.
    """
    began = time.perf_counter()
    quiet = quiet or not distributed.first()
    say = (lambda message: None) if quiet else logbook.say
    run = prepare(config, devices)
    folder = epath.Path(workdir)
    held = workdirs.lock(workdir, say) if distributed.first() else contextlib.nullcontext()
    with jax.set_mesh(run.mesh), held, checkpoint.Checkpoints(
        folder / "checkpoints", keep_last=config["checkpoint"]["keep_last"], keep_every=run.keep_every
    ) as saved, distributed.stop_requests() as asked:  # fmt: skip
        state = restored(run, saved, say)
        step = start = int(state.step)
        if start < run.total_steps and distributed.first():
            size = sum(x.nbytes for x in jax.tree.leaves(state))
            workdirs.check_room(workdir, size, config["checkpoint"]["keep_last"], len(saved.steps()))
        if distributed.first():
            logbook.write_config(
                workdir, run.config, configs.diff_text(configs.plain(configs.base()), run.config)
            )
        _, meta = saved.read_meta() or (0, {})
        feed = feed_of(run, meta.get("data", {}).get("replaced", 0), logbook.say)
        judge = Judge(run.config, run.source, run.mesh)
        if not judge.possible:
            say("no labelled test images: evaluations are left out.")
        book = logbook.Logbook(
            workdir,
            start_step=start,
            tensorboard=config["log"]["tensorboard"],
            active=distributed.first(),
        )
        progress = logbook.Progress(
            run.total_steps, run.steps_per_epoch, config["train"]["batch_size"], start, quiet=quiet
        )
        with book, progress, contextlib.closing(feed):
            reports, last, last_save = Reports(workdir, saved), {}, time.monotonic()
            watch = alarms.Watch(config)
            for note in alarms.notes(config):
                say(note)
            if start < run.total_steps:
                train_step, seconds = compiled_step(run, feed, state)
                say(f"compiled in {seconds:.1f} s")
            while step < run.total_steps:
                state, metrics = train_step(state, feed.feed(step))
                step += 1
                reports.add(step, metrics)
                if step == start + 1:
                    jax.block_until_ready(state)
                    progress.first_step(step)
                looked = step % config["log"]["every"] == 0 or step == run.total_steps
                if looked:
                    last = reports.fetch() | feed.metrics()
                    epoch = step / run.steps_per_epoch
                    rung, sentences = watch.look({"step": step, "epoch": epoch, **last})
                    book.write(step, epoch, last | rung, progress.update(step, last))
                    for sentence in sentences:
                        say(sentence)
                if judge.possible and run.evaluate_every and step % run.evaluate_every == 0:
                    with progress.pause():
                        book.write(step, step / run.steps_per_epoch, judge.look(state))
                late = time.monotonic() - last_save > config["checkpoint"]["every_seconds"]
                due = looked and distributed.agreed(late)
                kept = run.keep_every and step % run.keep_every == 0
                stop = asked(step)
                if stop or due or kept or step == run.total_steps:
                    reports.fetch()  # nothing is saved behind a step that nobody looked at
                    with progress.pause():
                        saved.save(step, state, {"config": run.config, "data": feed.metrics()})
                    last_save = time.monotonic()
                if stop and step < run.total_steps:
                    saved.wait()
                    raise Stopped(
                        f"stopped at step {step} of {run.total_steps}; saved in {workdir}."
                        " The same command goes on from there.",
                        128 + stop,
                    )
            images_per_second = progress.images_per_second
        evaluations = (
            judge.table((state.params, state.stats), quiet=not distributed.first())
            if judge.possible and config["evaluate"]["final"]
            else {}
        )
        result = logbook.write_result(
            workdir if distributed.first() else None,
            step=step,
            epoch=step / run.steps_per_epoch,
            metrics=last
            or next((row for row in reversed(logbook.read_metrics(workdir)) if "loss" in row), {}),
            evaluations=evaluations,
            seconds=time.perf_counter() - began,
            images_per_second=images_per_second,
            alarms=alarms.summary(logbook.read_metrics(workdir), config) if distributed.first() else (),
        )
        if distributed.first():
            logbook.plot_curves(workdir)
    return result
