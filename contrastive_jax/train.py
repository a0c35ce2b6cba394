"""The loop, read top to bottom: prepare, restore, step, look, save, judge.

``prepare`` checks everything that can be wrong before anything is compiled or written. The loop asks
the device for numbers at log points only.
"""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh
from jax.tree_util import Partial

from contrastive_jax import augment, checkpoint, data, logbook, sharding
from contrastive_jax import config as configs
from contrastive_jax.evaluators import features, knn, report
from contrastive_jax.recipe import Recipe, build, call
from contrastive_jax.step import init_state, make_train_step
from contrastive_jax.types import PyTree, TrainState


class Stopped(Exception):
    """The run was asked to stop, and saved; the message says how to go on. ``code`` is the exit status."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class Diverged(ArithmeticError):
    """A loss or gradient is not finite; nothing of it was saved."""


class Run(NamedTuple):
    """A config with its data and functions: all that a run needs to know before its first array."""

    config: dict[str, Any]
    source: data.Source
    recipe: Recipe
    mesh: Mesh
    total_steps: int
    steps_per_epoch: float
    evaluate_every: int
    keep_every: int


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> Run:
    """Loads the data and builds the recipe, for ``devices`` (default: all).

    Raises:
      ValueError: one sentence that names an option, its value and what is allowed.
      FileNotFoundError: a missing data set, with the command that prepares it.
    """
    source = call(data.load, "data", config["data"])
    mesh = sharding.make_mesh(devices)
    examples, batch_size = len(source.train), config["train"]["batch_size"]
    if batch_size < 2 or batch_size > examples:
        raise ValueError(
            f"train.batch_size is {batch_size}; it must lie in [2, {examples}], the examples there are."
        )
    if batch_size % mesh.size:
        raise ValueError(
            f"train.batch_size is {batch_size}; the {mesh.size} devices share it equally, so take"
            f" a multiple of {mesh.size}."
        )

    def steps(option: str, text: str) -> int:
        return configs.steps_of(option, text, examples, batch_size)

    total_steps = steps("train.duration", config["train"]["duration"])
    if total_steps < 1:
        raise ValueError(f"train.duration is {config['train']['duration']!r}; it must be at least one step.")
    if config["log"]["every"] < 1:
        raise ValueError(f"log.every is {config['log']['every']}; it must be at least 1 step.")
    schedule = dict(config["schedule"])
    schedule["warmup"] = steps("schedule.warmup", schedule["warmup"])
    schedule["milestones"] = tuple(steps("schedule.milestones", m) for m in schedule["milestones"])
    recipe = build(
        dict(config) | {"schedule": schedule},
        image_shape=source.train.image.shape[1:],
        classes=len(source.classes),
        total_steps=total_steps,
        steps_per_epoch=max(1, round(examples / batch_size)),
    )
    check_evaluation(config, source)
    return Run(
        dict(config),
        source,
        recipe,
        mesh,
        total_steps,
        examples / batch_size,
        steps("evaluate.every", config["evaluate"]["every"]),
        steps("checkpoint.keep_every", config["checkpoint"]["keep_every"]),
    )


def check_evaluation(config: Mapping[str, Any], source: data.Source) -> None:
    """Refuses, before hours of training, what the evaluators would refuse after them."""
    settings, projector = config["evaluate"], config["projector"]
    layers = [
        "pooled",
        *(f"projection_{i + 1}" for i in range(len(projector["widths"]) or projector["layers"])),
    ]
    if settings["layer"] not in layers:
        raise ValueError(f"evaluate.layer is {settings['layer']!r}; this network has {', '.join(layers)}.")
    for name, least in (
        ("batch_size", 1),
        ("k", 1),
        ("labels_per_class", 1),
        ("draws", 1),
        ("temperature", 0),
    ):
        if settings[name] < least:
            raise ValueError(f"evaluate.{name} is {settings[name]}; it must be at least {least}.")
    if not settings["C"] > 0:
        raise ValueError(f"evaluate.C is {settings['C']}; it must be positive.")
    labels = source.train.label[source.train.label >= 0]
    if source.test is None or not len(labels):
        return
    if settings["k"] > len(labels):
        raise ValueError(f"evaluate.k is {settings['k']}; there are {len(labels)} labelled training images.")
    rarest = int(np.unique(labels, return_counts=True)[1].min())
    if settings["labels_per_class"] > rarest:
        raise ValueError(
            f"evaluate.labels_per_class is {settings['labels_per_class']}; the rarest class has {rarest} images."
        )


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Host arrays -> the same arrays on every device, in buffers of their own (they will be donated)."""
    put = sharding.named(mesh, sharding.REPLICATED)

    def everywhere(x):
        x = np.array(x)
        return jax.make_array_from_callback(x.shape, put, lambda index: x[index])

    return jax.tree.map(everywhere, tree)


def encoder_of(run: Run) -> Callable[[PyTree, np.ndarray], dict[str, np.ndarray]]:
    """``(params and stats, images [n, h, w, c]) -> {layer: [n, F]}``, by running statistics, compiled once."""
    prepare_image = call(augment.make_eval, "augment", run.config["augment"])

    def encode(weights: tuple[PyTree, PyTree], images: np.ndarray) -> dict[str, np.ndarray]:
        bound = Partial(run.recipe.network.encode, *weights)
        return features.encode_all(bound, images, prepare_image, run.config["evaluate"]["batch_size"])

    return encode


class Judge:
    """Evaluates encoders of a run on its labelled data, and checks that judging changed nothing."""

    def __init__(self, run: Run):
        self.run, self.encode = run, encoder_of(run)
        prepare_image = call(augment.make_eval, "augment", run.config["augment"])
        self._calibrated = jax.jit(
            lambda params, stats, images: run.recipe.calibrate(params, stats, jax.vmap(prepare_image)(images))
        )
        self.settings = run.config["evaluate"]
        train, test = run.source.train, run.source.test
        self.possible = test is not None and len(run.source.classes) > 0 and bool((train.label >= 0).any())

    def encoded(self, weights: tuple[PyTree, PyTree]) -> report.Encoded:
        """Both splits at the layer that ``evaluate.layer`` names; unlabelled training images are left out."""
        layer, train = self.settings["layer"], self.run.source.train
        both = (train.image[train.label >= 0], self.run.source.test.image)
        return report.Encoded(*(self.encode(weights, images)[layer] for images in both), layer=layer)

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the labelled training images, and of the test images."""
        train = self.run.source.train.label
        return train[train >= 0], self.run.source.test.label

    def knn(self, state: TrainState) -> dict[str, float]:
        """The quick look while a run trains."""
        seen = self.encoded((state.params, state.stats))
        train_labels, test_labels = self.labels()
        scores = knn.evaluate(
            seen.train, train_labels, seen.test, test_labels, k=self.settings["k"],
            temperature=self.settings["temperature"],
        )  # fmt: skip
        return {"eval/knn_top1": scores["top1"]}

    def untrained(self, seed: int | None = None) -> tuple[PyTree, PyTree]:
        """The initial weights (of the run's seed), with batch-norm statistics of up to 1,024 clean training images.

        With the initial statistics (mean 0, variance 1) nothing would be normalised, and the baseline would
        say less of the architecture than of that.
        """
        seed = self.run.config["seed"] if seed is None else seed
        params, stats = replicate(self.run.recipe.init_network(seed), self.run.mesh)
        count = min(1024, len(self.run.source.train)) // self.run.mesh.size * self.run.mesh.size
        rows = sharding.named(self.run.mesh, sharding.ROWS)
        images = self.run.source.train.image[:count]
        images = jax.make_array_from_callback(images.shape, rows, lambda index: images[index])
        return params, self._calibrated(params, stats, images)

    def table(self, weights: tuple[PyTree, PyTree], quiet: bool = False) -> dict:
        """Trained encoder, untrained encoder and raw pixels under every protocol, printed and returned.

        Raises:
          RuntimeError: the encoder's bits are not what they were before.
        """
        before = checkpoint.fingerprint(weights)
        train, test = self.run.source.train, self.run.source.test
        encoders = {
            "trained": self.encoded(weights),
            "untrained": self.encoded(self.untrained()),
            "raw pixels": report.Encoded(
                features.raw_pixels(train.image[train.label >= 0]),
                features.raw_pixels(test.image),
                layer="pixels",
            ),
        }
        options = {
            name: self.settings[name] for name in ("C", "labels_per_class", "draws", "k", "temperature")
        }
        results = report.report(encoders, *self.labels(), **options, quiet=quiet)
        if checkpoint.fingerprint(weights) != before:
            raise RuntimeError("the encoder changed while it was evaluated; its numbers are void.")
        return results


@contextlib.contextmanager
def stop_requests():
    """Ctrl-C and SIGTERM ask; what is yielded says whether one did. A second Ctrl-C insists."""
    asked = {}

    def ask(number, frame):
        if number == signal.SIGINT and "signal" in asked:
            raise KeyboardInterrupt
        asked["signal"] = number

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def compiled_step(run: Run, feed: data.Resident, state: TrainState) -> tuple[jax.stages.Compiled, float]:
    """The train step for these shapes, ahead of its first call, and the seconds that it took to make."""
    began = time.perf_counter()
    step = jax.jit(make_train_step(run.recipe, feed.take), donate_argnums=0)
    # On CPU LLVM's first level compiles a third faster, and the step is as fast.
    options = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
    return step.lower(state, feed.feed(0)).compile(options), time.perf_counter() - began


def first_state(run: Run, report: Callable[[str], None]) -> TrainState:
    """The state before step 0, with the encoder of ``init.checkpoint`` where there is one."""
    state = replicate(init_state(run.recipe, run.config["seed"]), run.mesh)
    if not (path := run.config["init"]["checkpoint"]):
        return state
    everywhere = sharding.named(run.mesh, sharding.REPLICATED)
    with checkpoint.Checkpoints(_checkpoints_of(path), read_only=True) as other:
        found, step, _ = other.restore_part(
            ("params/encoder", "stats/encoder"), sharding=everywhere, report=report
        )
    shapes = [jax.tree.map(np.shape, tree) for tree in (found["params"]["encoder"], state.params["encoder"])]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"init.checkpoint={path!r} holds another encoder than this config's; compare their config.json."
        )
    report(f"encoder: from step {step} of {path}")
    params, stats = state.params | found["params"], state.stats | found["stats"]
    # The target starts as a copy of what it follows.
    return dataclasses.replace(
        state, params=params, stats=stats, target=run.recipe.target.init(params, stats)
    )


def _checkpoints_of(path: str) -> epath.Path:
    """The checkpoints of a workdir, or of the folder itself."""
    folder = epath.Path(path)
    return folder / "checkpoints" if (folder / "checkpoints").exists() else folder


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
    """
    began = time.perf_counter()
    say = (lambda message: None) if quiet else logbook.say
    run = prepare(config, devices)
    folder = epath.Path(workdir)
    with jax.set_mesh(run.mesh), checkpoint.Checkpoints(
        folder / "checkpoints", keep_last=config["checkpoint"]["keep_last"], keep_every=run.keep_every
    ) as saved, stop_requests() as asked:  # fmt: skip
        state = restored(run, saved, say)
        step = start = int(state.step)
        logbook.write_config(
            workdir, run.config, configs.diff_text(configs.plain(configs.base()), run.config)
        )
        feed = data.Resident(
            run.source.train, seed=config["seed"], batch_size=config["train"]["batch_size"], mesh=run.mesh
        )
        judge = Judge(run)
        if not judge.possible:
            say("no labelled test images: evaluations are left out.")
        book = logbook.Logbook(workdir, start_step=start, tensorboard=config["log"]["tensorboard"])
        progress = logbook.Progress(
            run.total_steps, run.steps_per_epoch, config["train"]["batch_size"], start, quiet=quiet
        )
        with book, progress:
            reports, last, last_save = Reports(workdir, saved), {}, time.monotonic()
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
                if step % config["log"]["every"] == 0 or step == run.total_steps:
                    last = reports.fetch()
                    book.write(step, step / run.steps_per_epoch, last, progress.update(step, last))
                if judge.possible and run.evaluate_every and step % run.evaluate_every == 0:
                    with progress.pause():
                        book.write(step, step / run.steps_per_epoch, judge.knn(state))
                due = time.monotonic() - last_save > config["checkpoint"]["every_seconds"]
                kept = run.keep_every and step % run.keep_every == 0
                if asked or due or kept or step == run.total_steps:
                    reports.fetch()  # nothing is saved behind a step that nobody looked at
                    with progress.pause():
                        saved.save(step, state, {"config": run.config})
                    last_save = time.monotonic()
                if asked and step < run.total_steps:
                    saved.wait()
                    raise Stopped(
                        f"stopped at step {step} of {run.total_steps}; saved in {workdir}."
                        " The same command goes on from there.",
                        128 + asked["signal"],
                    )
            images_per_second = progress.images_per_second
        evaluations = (
            judge.table((state.params, state.stats)) if judge.possible and config["evaluate"]["final"] else {}
        )
        result = logbook.write_result(
            workdir,
            step=step,
            epoch=step / run.steps_per_epoch,
            metrics=last
            or next((row for row in reversed(logbook.read_metrics(workdir)) if "loss" in row), {}),
            evaluations=evaluations,
            seconds=time.perf_counter() - began,
            images_per_second=images_per_second,
        )
        logbook.plot_curves(workdir)
    return result


def evaluate(config: Mapping[str, Any], workdir: str, *, quiet: bool = False) -> dict[str, Any]:
    """Judges the encoder of ``evaluate.checkpoint`` (default: the workdir's) on the config's labelled data."""
    run = prepare(config)
    path = config["evaluate"]["checkpoint"] or workdir
    everywhere = sharding.named(run.mesh, sharding.REPLICATED)
    with jax.set_mesh(run.mesh), checkpoint.Checkpoints(_checkpoints_of(path), read_only=True) as saved:
        found, step, _ = saved.restore_part(("params", "stats"), sharding=everywhere, report=logbook.say)
        if not quiet:
            logbook.say(f"step {step} of {path}")
        judge = Judge(run)
        if not judge.possible:
            raise ValueError(
                f"data.name={config['data']['name']!r} has no labelled test images to evaluate on."
            )
        return judge.table((found["params"], found["stats"]))


def describe(config: Mapping[str, Any], workdir: str, *, quiet: bool = False) -> dict[str, Any]:
    """Prints the config, the network, the mesh, the steps and what the compiled step costs; trains nothing."""
    run = prepare(config)
    print("config")
    for name, value in configs.leaves(run.config).items():
        print(f"  {name} = {value!r}")
    shape = run.source.train.image.shape
    rows, totals = run.recipe.network.describe(run.recipe.view_shape)
    print("network")
    for room, path, size, count in rows:
        print(f"  {room}/{path:<40} {'x'.join(map(str, size)):>20} {count:>12,}")
    for room, count in totals.items():
        print(f"  {room}: {count:,} parameters")
    print(
        f"data\n  {run.source.name}: {shape[0]:,} images {'x'.join(map(str, shape[1:]))},"
        f" {len(run.source.classes)} classes"
    )
    devices = run.mesh.devices.reshape(-1)
    print(f"mesh\n  {run.mesh.size} x {devices[0].device_kind}, axis {sharding.AXIS!r}")
    print(
        f"steps\n  {run.total_steps:,} in all, {run.steps_per_epoch:.2f} an epoch,"
        f" batch {config['train']['batch_size']}"
    )
    with jax.set_mesh(run.mesh):
        feed = data.Resident(
            run.source.train, seed=config["seed"], batch_size=config["train"]["batch_size"], mesh=run.mesh
        )
        step, seconds = compiled_step(run, feed, replicate(init_state(run.recipe, config["seed"]), run.mesh))
    memory, cost = step.memory_analysis(), step.cost_analysis() or {}
    facts = {"compile_seconds": seconds, "gflops_per_step": cost.get("flops", float("nan")) / 1e9}
    for name in ("argument", "output", "temp"):
        facts[f"{name}_mib"] = getattr(memory, f"{name}_size_in_bytes") / 2**20
    print("compiled step, per device")
    for name, value in facts.items():
        print(f"  {name} = {value:,.2f}")
    return facts
