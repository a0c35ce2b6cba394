"""``--mode=train``: the loop, read top to bottom: prepare, restore, step, look, save, judge.

The loop asks the device for numbers at log points only.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import data, distributed, sharding
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings, approval
from contrastive_jax.models import norm
from contrastive_jax.system import signals
from contrastive_jax.training import memory
from contrastive_jax.training.compilation import compiled_step
from contrastive_jax.training.evaluation import Evaluator
from contrastive_jax.training.recorder import Recorder
from contrastive_jax.training.run import Run, feed_of, initial_state, prepare
from contrastive_jax.types import TrainState
from contrastive_jax.workdir import checkpoint, encoder, remote, weights
from contrastive_jax.workdir import replicas as layout

PATIENCE = 60.0  # seconds from a signal in which a step has to end and to be saved


class Stopped(Exception):
    """The run was asked to stop, and saved; the message says how to go on. ``code`` is the exit status."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def pretrained(run: Run, report: Callable[[str], None]) -> encoder.Saved:
    """Return what ``init.checkpoint`` (a workdir or file) holds of an encoder; report what it computes otherwise here.

    Raises:
      FileNotFoundError: nothing is there.
      ValueError: it is another encoder than the config's; both name the option.
    """
    path, everywhere = run.settings.init.checkpoint, sharding.named(run.mesh, sharding.REPLICATED)
    try:
        saved = encoder.read(path, modules=("encoder",), sharding=everywhere, report=report)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"init.checkpoint={path!r}: {error}") from None
    encoder.check_example(saved.example, run.source, f"init.checkpoint={path!r}")
    wanted = run.recipe.network.shapes(run.recipe.view)
    for here, there in zip((saved.params, saved.stats), wanted, strict=True):
        if other := weights.difference(here["encoder"], there["encoder"]):
            raise ValueError(
                f"init.checkpoint={path!r} holds another encoder than this config's: its {other};"
                " compare the encoder sections of their configs."
            )
    changed = _changed(saved, run.settings)
    if "encoder.variant" in changed and run.settings.encoder.name == "resnet":
        was, now = changed["encoder.variant"]
        raise ValueError(
            f"init.checkpoint={path!r} has encoder.variant={was}, this config {now}: the same arrays in another"
            f" function. Take --config.encoder.variant={was}."
        )
    report(f"encoder: from {'' if saved.step is None else f'step {saved.step} of '}{path}")
    if changed:
        told = ", ".join(f"{leaf} {was} there and {now} here" for leaf, (was, now) in changed.items())
        report(f"encoder: it computes something else with these weights than where they are from: {told}")
    return saved


def _changed(saved: encoder.Saved, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return by leaf what the saved encoder computes otherwise than this config's; of a foreign file nothing.

    The arrays need not show it: an option of one's own encoder, batch norm's epsilon, how images are normalized.
    ResNet's variants with the same arrays differ in the max-pooling of the ImageNet stem.
    """

    def of_function(settings: Settings) -> dict[str, Any]:
        network = {"name": settings.encoder.name, **settings.encoder.options}
        if settings.encoder.name == "resnet" and network["stem"] != "imagenet":
            del network["variant"]
        epsilon = norm.norm(**settings.norm.options).epsilon
        images = {name: value for name, value in settings.augment.options.items() if name in ("mean", "std")}
        return {"encoder": network, "norm": {"epsilon": epsilon}, "augment": images}

    if "augment" not in saved.settings:
        return {}
    return configs.diff(of_function(saved.settings), of_function(settings))


def check_init(run: Run, workdir: str) -> None:
    """Refuse an ``init.checkpoint`` that does not fit, before anything is written; a begun run needs it no more."""
    if run.settings.init.checkpoint and not checkpoint.steps_in(remote.checkpoints(workdir)):
        pretrained(run, lambda message: None)


def first_state(run: Run, report: Callable[[str], None]) -> TrainState:
    """Return the state before step 0, with the encoder of ``init.checkpoint`` where there is one."""
    if not run.settings.init.checkpoint:
        return initial_state(run)
    saved = pretrained(run, report)
    params, stats = run.recipe.init_network(run.settings.seed)
    loaded, loaded_stats = jax.device_get((saved.params, saved.stats))
    return initial_state(run, (params | loaded, stats | loaded_stats))


def about(run: Run) -> dict[str, Any]:
    """Return what a checkpoint says of its run."""
    train = run.source.train
    images = {
        "examples": len(train),
        "files": data.files_digest(train.paths),
        "streamed": isinstance(train, data.Streamed),
    }
    example = train.example
    what = (
        {"channels": example.shape[2]}
        if example.is_image
        else {"example": [list(example.shape), example.dtype]}
    )
    return {"config": run.settings.to_dict(), **what, **images}


def durations(before: Mapping[str, Any], now: str) -> list[str]:
    """Return every ``train.duration`` that a run has had, by what its last checkpoint says, and the one of now."""
    had = before.get("durations") or (
        [configs.saved_settings(before["config"]).train.duration] if before else []
    )
    return had if had[-1:] == [now] else [*had, now]


class One:
    """A run as :func:`train_to_end` sees it; :class:`~contrastive_jax.training.replicas.Replicas` are several."""

    def __init__(self, run: Run):
        self.run, self.mesh, self.together = run, run.mesh, 1
        self.about = about(run)

    @property
    def words(self) -> str:
        """Return what a step is, in a line."""
        return words(self.run)

    def note(self, contents: dict[str, Any] | None) -> None:
        """Keep the digests of the training images for the checkpoints."""
        self.about = self.about | {"contents": contents}

    def first_state(self, report: Callable[[str], None]) -> TrainState:
        """Return :func:`first_state`."""
        return first_state(self.run, report)

    def initial_state(self) -> TrainState:
        """Return a state like those that are saved."""
        return initial_state(self.run)

    def check(self, before: Mapping[str, Any]) -> None:
        """Refuse to go on with what is no single run, by what its checkpoint says."""
        if "replicas" in before:
            raise ValueError(
                f"this workdir holds {len(before['replicas'])} replicas, and this is a single run; choose another"
                " --workdir."
            )

    def check_workdir(self, workdir: str, start: int) -> None:
        """Refuse a folder whose files speak of replicas: what reads them would take those for this run."""
        if replicas := layout.folders(workdir):
            raise ValueError(
                f"{workdir} is a workdir of {len(replicas)} replicas ({layout.TABLE}), and this is a single run; choose"
                " another --workdir."
            )

    def feed(self, replaced: int, report: Callable[[str], None]) -> Any:
        """Open what feeds the step."""
        return feed_of(self.run, replaced, report)

    def compiled_step(self, feed: Any, state: TrainState) -> tuple[jax.stages.Compiled, float]:
        """Compile the step, see :func:`contrastive_jax.training.compilation.compiled_step`."""
        return compiled_step(self.run, feed, state)

    def evaluator(self) -> Any:
        """Return what judges the state."""
        return Evaluator(self.run.settings, self.run.source, self.run.mesh, self.run.evaluators)

    def recorder(self, *arguments: Any, **options: Any) -> Any:
        """Return what keeps the metrics, a :class:`Recorder`."""
        return Recorder(self.run, *arguments, **options)

    def finish(self, workdir: str, state: TrainState) -> None:
        """Write what a trained state leaves behind, beside its checkpoint."""

    def place(self, workdir: str) -> str:
        """Return where the results are."""
        return str(workdir)


def restored(
    trainee: One, saved: checkpoint.Checkpoints, workdir: str | os.PathLike, report: Callable[[str], None]
) -> TrainState:
    """Restore the state of the newest intact checkpoint, or the first state.

    Raises:
      ValueError: the config differs from the run's in leaves that may not change.
      checkpoint.DamagedCheckpoints: there are some, and none is intact.
    """
    run = trainee.run
    if not saved.steps():
        trainee.note(data.contents(run.source.train))
        return trainee.first_state(report)
    if (meta := saved.read_meta()) is not None:  # else restore says that all are damaged
        done, before = meta[0], meta[1]["config"]
        trainee.check(meta[1])
        if done > run.total_steps:
            raise ValueError(
                f"train.duration is {run.settings.train.duration!r}, {run.total_steps} steps, and this"
                f" workdir's run has done {done}: take at least as many, or begin another run in another --workdir."
            )
        approval.check(before, workdir)
        if wrong := configs.forbidden_changes(before, run.settings.to_dict()):
            changes = "; ".join(f"{name} was {was!r}, is {now!r}" for name, (was, now) in wrong.items())
            raise ValueError(
                f"this workdir's run has another config: {changes}. Take those back, or choose another --workdir."
            )
        examples = len(run.source.train)
        if (had := meta[1].get("examples", examples)) != examples:
            raise ValueError(
                f"data has {examples:,} training images, and this workdir's run began with {had:,}: their order and its"
                " epochs would be others. Bring the same images, or choose another --workdir."
            )
        files = data.files_digest(run.source.train.paths)
        if meta[1].get("files") not in (None, files):
            raise ValueError(
                f"data has as many training images as this workdir's run began with, {examples:,}, and not the same"
                " files: their order would be another. Bring the same images, or choose another --workdir."
            )
        contents = data.contents(run.source.train, meta[1].get("contents"))
        check_contents(run.source.train, contents, meta[1].get("contents"))
        trainee.note(contents)
        streamed = isinstance(run.source.train, data.Streamed)
        if (had := meta[1].get("streamed", streamed)) != streamed:
            now, then = ("streamed" if it else "in memory" for it in (streamed, had))
            raise ValueError(
                f"data would be {now}, and this workdir's run began with data {then}: views would be rounded otherwise."
                f" Set data.stream={'on' if had else 'off'} or the data.memory_limit of before, or choose another"
                " --workdir."
            )
        was, now = (of.train.duration for of in (configs.saved_settings(before), run.settings))
        if was != now:
            report(f"train.duration was {was}, is {now}: schedules stretch to the new length from here on.")
    newest = saved.restore(trainee.initial_state(), report)
    assert newest is not None  # there are steps
    state, step, _ = newest
    report(f"resuming at step {step} of {run.total_steps}")
    return state


def check_contents(train: data.Split | data.Streamed, now: Mapping | None, had: Mapping | None) -> None:
    """Refuse to go on with images that hold something else under the same names; unknown of old checkpoints."""
    if now is None or had is None or not (others := data.differing(train, now, had)):
        return
    first = ", ".join(others[:3]) + (f" and {len(others) - 3:,} more" if len(others) > 3 else "")
    raise ValueError(
        f"data holds other pixels, labels or groups than this workdir's run began with: {first}. Bring back the"
        " images of before, or begin another run in another --workdir."
    )


def words(run: Run) -> str:
    """Return what a step of the run is, in a line."""
    encoder, size = run.settings.encoder, run.settings.augment.options.get("size")
    depth = f"{encoder.name}-{encoder.options['depth']}" if "depth" in encoder.options else encoder.name
    what = f"images of {size} x {size} pixels" if size else f"examples {run.source.train.example}"
    count, kind = run.mesh.size, run.mesh.devices.flat[0].platform
    return (
        f"batches of {run.settings.train.batch_size:,} {what}, encoder {depth}, on"
        f" {count} {kind} device{'s' if count > 1 else ''}"
    )


@remote.supports_remote
def train(
    config: Settings | Mapping[str, Any] | str,
    workdir: str,
    *,
    quiet: bool = False,
    devices: Sequence[jax.Device] | None = None,
    source: data.Source | None = None,
) -> dict[str, Any]:
    """Train to the end of ``train.duration``, or go on where the workdir's run stopped.

    Args:
      config: settings, which :func:`contrastive_jax.config.resolve` gives, the same as plain dictionaries, or the name
        of a config, "digits:scale=smoke".
      workdir: a folder, or ``gs://bucket/run``: config.json, config_diff.txt, metrics.jsonl, checkpoints/,
        result.json, curves.png.
      quiet: print the final table only.
      devices: to train on; default all.
      source: the images of the config, where they are loaded already.

    Returns:
      What ``result.json`` holds.

    Raises:
      ValueError: a wrong option, before anything is compiled or written.
      Stopped: Ctrl-C or SIGTERM; the state is saved.
      memory.OutOfMemory: the step does not fit; says what would.
      recorder.Diverged: a loss or gradient is not finite.
      OSError: another run lives in the workdir, it cannot be written, or its disk is full.
    """
    config = configs.resolve(config) if isinstance(config, str) else config
    return train_to_end(One(prepare(config, devices, source=source)), workdir, quiet=quiet)


def _raising(alone: bool) -> contextlib.AbstractContextManager:
    """Let signals raise inside, of one process: it is no step, whose end is waited for. Several stop together."""
    return signals.handled_by(signals.handle) if alone else contextlib.nullcontext()


def _stopped(step: int, total: int, workdir: str, code: int) -> Stopped:
    return Stopped(
        f"stopped at step {step} of {total}; saved in {workdir}. The same command goes on from there.", code
    )


@contextlib.contextmanager
def _keeping(
    step: int,
    save: Callable[[], None],
    saved: checkpoint.Checkpoints,
    total: int,
    workdir: str,
    log: Callable[[str], None],
    alone: bool,
) -> Iterator[None]:
    """Save the state of the last step where what comes after it fails (images, a worker, an evaluation), or is stopped.

    Several processes save together or not at all: there the last checkpoint has to do.

    Raises:
      Stopped: in place of KeyboardInterrupt.
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
                f"{error} Step {step} is saved in {workdir}; the same command goes on from there."
            ) from None
        log(f"step {step} is saved; the same command goes on from there.")
        raise


def train_to_end(trainee: One, workdir: str, *, quiet: bool) -> Any:
    """Train a run that is prepared, or replicas, to the end; see :func:`train`."""
    began, run, settings = time.perf_counter(), trainee.run, trainee.run.settings
    alone = distributed.alone()
    first = distributed.first()  # of several processes one writes and speaks
    log = workdirs.log if first and not quiet else lambda message: None
    check_init(run, workdir)
    profile = workdirs.Profile(workdir, settings.profile.steps if first else (0, 0))
    lock = workdirs.lock(workdir, log) if first else contextlib.nullcontext()
    with workdirs.translate_errors(workdir), jax.set_mesh(trainee.mesh), lock, checkpoint.Checkpoints(
        remote.checkpoints(workdir), keep_last=settings.checkpoint.keep_last, keep_every=run.keep_every
    ) as saved:  # fmt: skip
        if first:
            approval.keep(settings.to_dict(), workdir)
        state = restored(trainee, saved, workdir, log)
        step = start = int(state.step)
        trainee.check_workdir(workdir, start)
        if first and start < run.total_steps:
            size = sum(x.nbytes for x in jax.tree.leaves(state))
            workdirs.check_room(workdir, size, settings.checkpoint.keep_last, len(saved.steps()))
        _, meta = saved.read_meta() or (0, {})
        facts = trainee.about | {"durations": durations(meta, settings.train.duration)}
        feed = trainee.feed(meta.get("data", {}).get("replaced", 0), log)
        evaluator = trainee.evaluator()
        if not evaluator.has_labels:
            log("no labelled test images: evaluations are left out.")
        with contextlib.closing(feed), distributed.stop_requests() as stop_requested, trainee.recorder(
            workdir, feed, saved, start, log, quiet=quiet or not first, active=first
        ) as recorder:  # fmt: skip
            last_save, stop = time.monotonic(), 0
            if start < run.total_steps:
                log(f"compiling the training step for {trainee.words} ...")
                with memory.translate_errors(run, together=trainee.together), _raising(alone):
                    train_step, seconds = trainee.compiled_step(feed, state)
                memory.check(run, train_step, trainee.together)
                log(f"compiled in {seconds:.1f} s")

            def save() -> None:
                """Save the state of the last step that was done."""
                recorder.fetch()  # check all pending steps before saving
                with recorder.pause("checkpoint"):
                    saved.save(step, recorder.sound(state), facts | {"data": feed.metrics()})
                    remote.push(workdir)

            left = f"What came after the last checkpoint in {workdir} is lost; the same command goes on from there."
            with profile, signals.phase(PATIENCE, left):
                while step < run.total_steps:
                    profile.before(step, state)
                    with _keeping(step, save, saved, run.total_steps, workdir, log, alone):
                        batch = recorder.next_batch(step)
                    with memory.translate_errors(run, train_step, trainee.together):
                        state, metrics = train_step(state, batch)
                        recorder.add(step + 1, metrics)
                    del batch  # else there is one more on the device while the next is waited for
                    step += 1
                    log_due = step % settings.log.every == 0 or step == run.total_steps
                    if log_due:
                        recorder.log_point()
                    if evaluator.has_labels and run.evaluate_every and step % run.evaluate_every == 0:
                        recorder.fetch()  # report divergence before evaluating
                        with (
                            recorder.pause("evaluation"),
                            _keeping(step, save, saved, run.total_steps, workdir, log, alone),
                            _raising(alone),
                        ):
                            scores = evaluator.look(state, log)
                        recorder.write(step, scores)
                    save_due = log_due and distributed.agreed(
                        time.monotonic() - last_save > settings.checkpoint.every_seconds
                    )
                    keep_due = run.keep_every and step % run.keep_every == 0
                    stop = stop_requested(step)
                    if stop or save_due or keep_due or step == run.total_steps:
                        save()
                        last_save = time.monotonic()
                    if stop and step < run.total_steps:
                        saved.wait()
                        raise _stopped(step, run.total_steps, workdir, 128 + stop)
            with recorder.pause("checkpoint"), signals.phase(PATIENCE, left):
                saved.wait()
                trainee.finish(workdir, state)
            stop = stop or stop_requested(step + 1)  # since the last step
        final = evaluator.has_labels and settings.evaluate.final
        try:
            trained = f"The run is trained and saved in {workdir}; the same command evaluates it."
            with signals.phase(signals.GRACE, trained), distributed.ended_by_sigterm() as ended:
                if start < run.total_steps or not final:  # judging may take hours, and be interrupted
                    result = recorder.result(step, {}, time.perf_counter() - began)
                if final and (ended or (stop := stop or stop_requested(step + 2))):  # 2: since one was here
                    raise (
                        KeyboardInterrupt
                        if stop == signal.SIGINT
                        else distributed.Terminated(stop or signal.SIGTERM)
                    )
                if final:
                    encoders = (state.params, state.stats)
                    evaluations = evaluator.table(
                        encoders, quiet=not first, show_progress=first and not quiet
                    )
                    result = recorder.result(step, evaluations, time.perf_counter() - began)
        except KeyboardInterrupt as error:
            which = "no evaluations yet" if start < run.total_steps else "the evaluations of before"
            raise Stopped(
                f"stopped before all was evaluated. The run is trained and saved in {workdir}, its result.json has"
                f" {which}. The same command evaluates it.",
                signals.code_of(error),
            ) from None
        log(
            f"results: {trainee.place(workdir)} (result.json, metrics.jsonl, curves.png; --mode=report makes a page of"
            " them)"
        )
        return result
