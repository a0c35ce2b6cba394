"""Training loop of ``--mode=train``: one run, or replicas that train as one program, from a config to results.

Metrics are fetched from the device only at log points, evaluations and checkpoints.
"""

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import data, distributed
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings, approval
from contrastive_jax.system import signals
from contrastive_jax.training import cost, evaluation, initial, pair_evaluation, replicas, resume
from contrastive_jax.training.compilation import compiled_step
from contrastive_jax.training.on_log import OnLog
from contrastive_jax.training.program import Program
from contrastive_jax.training.recorder import Recorder
from contrastive_jax.workdir import checkpoint, remote

PATIENCE = 60.0  # seconds from a signal within which a step must end and be saved


class Stopped(Exception):
    """Interruption of a run that is saved; the message explains how to resume. ``code``: exit status."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


@remote.supports_remote
def train(
    config: Settings | Mapping[str, Any] | str | Sequence[Settings | Mapping[str, Any]],
    workdir: str,
    *,
    quiet: bool = False,
    devices: Sequence[jax.Device] | None = None,
    source: data.Source | None = None,
    on_log: Callable[..., str | None] | None = None,
) -> Any:
    """Train to the end of ``train.duration``, resuming a run that stopped in the workdir.

    Args:
      config: settings (from :func:`contrastive_jax.config.resolve`), the same as plain dictionaries, or the
        name of a config, "digits:scale=smoke". A list of settings or dictionaries that differ in ``seed`` and
        in numbers that the step reads: replicas, which train as one program.
      workdir: a folder, or ``gs://bucket/run``, for config.json, config_diff.txt, metrics.jsonl, checkpoints/,
        result.json and curves.png. With replicas, replicas.json lists their differences, checkpoints/ holds all
        of them, and replica_0/ and so on are the workdirs of the runs.
      quiet: print only the final table.
      devices: devices to train on; default all. Replicas use as many as share them equally.
      source: images of the config, if already loaded.
      on_log: function ``(step, metrics)`` (or ``(step, metrics, replica)``) that is called with every new record of
        ``metrics.jsonl``, ``{name: number}``, and may return "stop" to end training; in place of ``log.on_log``.

    Returns:
      The contents of ``result.json``; for a list, a list of them, with ``{"diverged": why}`` for a replica that
      diverged.

    Raises:
      ValueError: a wrong option, before anything is compiled or written; ``replicas.NotReplicas``: configs that cannot
        train as one.
      Stopped: Ctrl-C or SIGTERM; the state is saved.
      cost.OutOfMemory: the step does not fit; the message lists options that need less.
      recorder.Diverged: a loss or gradient is not finite; with replicas, in every one.
      Exception: an exception of ``on_log``, after its step was saved.
      OSError: another run uses the workdir, it cannot be written, or its disk is full.
    """
    asked = configs.resolve(config) if isinstance(config, str) else config
    given = asked if isinstance(asked, Sequence) else [asked]
    program = replicas.program_of(given, devices, source=source)
    results = train_program(program, workdir, quiet=quiet, on_log=on_log)
    return results if isinstance(asked, Sequence) else results[0]


def train_program(
    program: Program, workdir: str, *, quiet: bool, on_log: Callable[..., str | None] | None = None
) -> list[dict[str, Any]]:
    """Train a prepared program to its end; return the result of each run. See :func:`train`."""
    began, run, settings = time.perf_counter(), program.runs[0], program.runs[0].settings
    alone, first = distributed.alone(), distributed.first()  # only the first process writes and logs
    log = workdirs.log if first and not quiet else lambda message: None
    calls = OnLog(on_log, settings)
    initial.check(run, workdir)

    # ---- 1. Mesh, lock and checkpoints: from here on the workdir belongs to this program.
    lock = workdirs.lock(workdir, log) if first else contextlib.nullcontext()
    with workdirs.translate_errors(workdir), jax.set_mesh(program.mesh), lock, checkpoint.Checkpoints(
        remote.checkpoints(workdir), keep_last=settings.checkpoint.keep_last, keep_every=run.keep_every
    ) as saved:  # fmt: skip
        if first:
            approval.keep(settings.to_dict(), workdir)

        # ---- 2. State: from the newest intact checkpoint, else the initial state.
        state, facts = resume.restored(program, saved, workdir, log)
        step = start = int(state.step)
        resume.check_folders(program, workdir, start)
        if first and start < run.total_steps:
            size = sum(x.nbytes for x in jax.tree.leaves(state))
            workdirs.check_room(workdir, size, settings.checkpoint.keep_last, len(saved.steps()))

        # ---- 3. Feed, evaluators, recorder: start worker processes, open files.
        feed = program.open_feed(facts.get("data", {}).get("replaced", 0), log)
        evaluators = [
            pair_evaluation.evaluator_of(r.settings, r.source, r.mesh, r.evaluators) for r in program.runs
        ]
        if not (labelled := evaluators[0].evaluates):
            log(pair_evaluation.skipped(evaluators[0]))
        profile = workdirs.Profile(workdir, settings.profile.steps if first else (0, 0))
        with contextlib.closing(feed), distributed.stop_requests() as stop_requested, Recorder(
            program, workdir, feed, saved, start, log, on_log=calls, quiet=quiet or not first, active=first
        ) as recorder:  # fmt: skip

            def encoders() -> Iterator[Any]:
                """Yield the weights of each run; None for a run that diverged."""
                for number, weights in enumerate(program.weights(state)):
                    yield None if number in recorder.diverged else weights

            def save() -> None:
                """Save the state of the last completed step."""
                recorder.fetch()  # check all pending steps before saving
                with recorder.pause("checkpoint"):
                    saved.save(step, recorder.valid_state(state), facts | {"data": feed.metrics()})
                    remote.push(workdir)

            kept = functools.partial(_kept, save, saved, run.total_steps, workdir, log, alone)

            def evaluation_due() -> bool:
                return bool(labelled and step and run.evaluate_every and step % run.evaluate_every == 0)

            def evaluate() -> None:
                """Evaluate and record the encoders of the last completed step."""
                recorder.fetch()  # report divergence before evaluating
                with recorder.pause("evaluation"), kept(step), _raising(alone):
                    scores = evaluation.look(evaluators, encoders(), log)
                recorder.write(step, scores)

            # ---- 4. Compile: for the shapes of state and batch.
            if start < run.total_steps:
                if slow := cost.warn_long(run, run.total_steps - start, len(program.runs)):
                    log(slow)
                log(f"compiling the training step for {program.describe()} ...")
                with cost.translate_errors(run, together=len(program.runs)), _raising(alone):
                    train_step, seconds = compiled_step(program, feed, state)
                cost.check_memory(run, train_step, len(program.runs))
                log(f"compiled in {seconds:.1f} s")

            # ---- 5. Loop: batch, step, log, evaluate, save, stop.
            last_save, stop, end = time.monotonic(), 0, run.total_steps
            left = (
                f"All steps after the last checkpoint in {workdir} are lost; repeat the command to resume"
                " from it."
            )
            with profile, signals.phase(PATIENCE, left):
                if evaluation_due() and distributed.agreed(recorder.unevaluated(step)):
                    evaluate()  # it was interrupted, or failed, after this step
                    end = step if calls.stopped else end
                while step < end:
                    profile.before(step, state)
                    with kept(step), recorder.waiting_for_data():
                        batch = feed.feed(step)
                    with cost.translate_errors(run, train_step, len(program.runs)):
                        state, metrics = train_step(state, batch)
                        recorder.record(step + 1, metrics)
                    del batch  # else the device holds one more while the loop waits for the next
                    step += 1
                    log_due = step % settings.log.every == 0 or step == run.total_steps
                    if log_due:
                        recorder.log_point()
                    if evaluation_due():
                        evaluate()
                    save_due = log_due and distributed.agreed(
                        time.monotonic() - last_save > settings.checkpoint.every_seconds
                    )
                    keep_due = run.keep_every and step % run.keep_every == 0
                    end = step if calls.stopped else end
                    stop = stop_requested(step)
                    if stop or save_due or keep_due or step == end:
                        save()
                        last_save = time.monotonic()
                    if stop and step < end:
                        saved.wait()
                        raise _stopped(step, run.total_steps, workdir, 128 + stop)

            # ---- 6. Save: wait for the last checkpoint; save each replica in its own folder too.
            with recorder.pause("checkpoint"), signals.phase(PATIENCE, left):
                saved.wait()
                calls.raise_failure(workdir)
                for note in calls.notes(step, run.total_steps):
                    log(note)
                if len(program.runs) > 1:
                    replicas.save_each(program, workdir, state, facts, recorder.diverged)
            stop = stop or stop_requested(step + 1)  # a signal since the last step

        # ---- 7. Evaluate: this may take hours and be interrupted, so results are written before and after.
        final = labelled and settings.evaluate.final
        trained = f"The run is trained and saved in {workdir}; repeat the command to evaluate it."
        try:
            with signals.phase(signals.GRACE, trained), distributed.ended_by_sigterm() as ended:
                if start < run.total_steps or not final:
                    results = recorder.results(step, [], time.perf_counter() - began)
                if final and (ended or (stop := stop or stop_requested(step + 2))):  # step + 1 is used above
                    raise (
                        KeyboardInterrupt
                        if stop == signal.SIGINT
                        else distributed.Terminated(stop or signal.SIGTERM)
                    )
                if final:
                    found = evaluation.tables(
                        evaluators,
                        encoders(),
                        program.differences,
                        quiet=not first,
                        show_progress=first and not quiet,
                    )
                    results = recorder.results(step, found, time.perf_counter() - began)
        except KeyboardInterrupt as error:
            which = "no evaluations yet" if start < run.total_steps else "the earlier evaluations"
            raise Stopped(
                "stopped before the evaluation was complete. The run is trained and saved in"
                f" {workdir}; its result.json has {which}. Repeat the command to evaluate it.",
                signals.code_of(error),
            ) from None
        last = f"/replica_0 to replica_{len(program.runs) - 1}" if len(program.runs) > 1 else ""
        log(
            f"results: {workdir}{last} (result.json, metrics.jsonl, curves.png; --mode=report makes a"
            " page from them)"
        )
        return results


def _raising(alone: bool) -> contextlib.AbstractContextManager:
    """Let signals raise inside, instead of after the step; several processes stop together at a step."""
    return signals.handled_by(signals.handle) if alone else contextlib.nullcontext()


def _stopped(step: int, total: int, workdir: str, code: int) -> Stopped:
    return Stopped(
        f"stopped at step {step} of {total}; saved in {workdir}. Repeat the command to resume.", code
    )


@contextlib.contextmanager
def _kept(
    save: Callable[[], None],
    saved: checkpoint.Checkpoints,
    total: int,
    workdir: str,
    log: Callable[[str], None],
    alone: bool,
    step: int,
) -> Iterator[None]:
    """Save the last step if the code after it fails (images, a worker, an evaluation) or is interrupted.

    Several processes can only save together, so with several the last checkpoint remains.

    Raises:
      Stopped: instead of KeyboardInterrupt.
    """
    try:
        yield
    except distributed.Insisted:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if not alone or not step:
            raise
        if step not in saved.steps():
            save()
        saved.wait()
        if isinstance(error, KeyboardInterrupt):
            raise _stopped(step, total, workdir, signals.code_of(error)) from None
        if isinstance(error, data.WorkerDied):
            raise data.WorkerDied(
                f"{error} Step {step} is saved in {workdir}; repeat the command to resume from it."
            ) from None
        log(f"step {step} is saved; repeat the command to resume from it.")
        raise
