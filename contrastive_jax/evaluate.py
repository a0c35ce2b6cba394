"""``--mode=evaluate``: any encoder, judged by any protocols on any labelled images.

The checkpoint's own config says what the network is and how images are prepared for it; the config given says
what to evaluate on (``data``) and how (``evaluators``, ``evaluate``). So no data of the pretraining is needed.
"""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from contrastive_jax import (
    checkpoint,
    data,
    distributed,
    encoder,
    evaluators,
    logbook,
    mirror,
    native,
    sharding,
)
from contrastive_jax import config as configs
from contrastive_jax.encoder import network_of
from contrastive_jax.evaluators import features, table
from contrastive_jax.evaluators.subject import Encoder, Part, Subject, labelled, several
from contrastive_jax.run import replicate, source_of
from contrastive_jax.types import PyTree, TrainState

# Sections by which an encoder is what it is; "seed" is of its first weights.
OF_THE_ENCODER = ("encoder", "projector", "predictor", "norm", "dtype", "augment", "seed")
PIXEL_LIMIT = 2**31  # bytes of float32; a linear classifier of more raw pixels is nobody's baseline


def pixels_fit(train: Part, test: Part) -> bool:
    """Whether a linear classifier of the raw pixels of two parts is worth its memory."""
    return all(isinstance(part.split, data.Split) for part in (train, test)) and (
        4 * (len(train) + len(test)) * math.prod(train.split.shape) <= PIXEL_LIMIT
    )


@native.jit(static_argnums=(0, 1))
def _statistics(apply, view, params, stats, images):
    return apply(params, stats, jax.vmap(view)(images)[:, None], train=True)[1]


class Judge:
    """Evaluates encoders of one architecture on labelled data, and checks that judging changed nothing.

    Args:
        config: sections of the encoder, ``evaluate`` and ``evaluators``.
        source: what to evaluate on.
        mesh: the devices; must be in context when a method is called.

    Raises:
        ValueError: one sentence, before anything is compiled.
    """

    def __init__(self, config: Mapping[str, Any], source: data.Source, mesh: Mesh):
        self.config, self.source, self.mesh = config, source, mesh
        self.settings = config["evaluate"]
        self.network = network_of(config)
        self._prepared = evaluators.prepare(config, source)
        self.evaluators = self._prepared[""]
        self.sets = {
            name: (labelled(train), labelled(test))
            for name, (train, test) in source.judged.items()
            if test is not None and train.labelled and test.labelled
        }
        self.possible = "" in self.sets
        self._unbalanced = False

    def subject(
        self, name: str, weights: tuple[PyTree, PyTree] | None, columns: Any = None, on: str = ""
    ) -> Subject:
        """A row of the table; ``columns``: those that will be judged, default all; ``on``: one of ``sets``."""
        sections = self.config["evaluators"]
        layers = evaluators.layers_of({k: v for k, v in sections.items() if columns is None or k in columns})
        if weights is not None:  # trained or not, an encoder is of one structure, and so encoded by one program
            weights = weights[0] | {"probe": {}}, weights[1] | {"probe": {}}
        seen = None if weights is None else Encoder(self.network, *weights, self.config["augment"])
        return Subject(name, seen, *self.sets[on], layers=layers, batch_size=self.settings["batch_size"])

    def look(self, state: TrainState) -> dict[str, float]:
        """The quick look while a run trains: the columns that ``evaluate.look`` names.

        Metrics:
            eval/<column>_top1: accuracy on the test images by this column of the evaluators.
            eval/<column>_map_11_point: of sets with several labels an image: the 11-point mean average precision.
            eval/<column>_<number>: of a column that gives no accuracy: each of its numbers.
        """
        columns = self.settings["look"]
        subject = self.subject("", (state.params, state.stats), columns)
        scores = {column: self.evaluators[column](subject) for column in columns}
        metric = table.metric_of("", several(subject.test.split))
        return {
            f"eval/{column}_{name}": value
            for column, score in scores.items()
            for name, value in score.items()
            if (name == metric or metric not in score) and isinstance(value, float)
        }

    def untrained(self, seed: int | None = None) -> tuple[PyTree, PyTree]:
        """The initial weights (of the run's seed), with batch-norm statistics of up to 1,024 clean training images.

        With the initial statistics (mean 0, variance 1) nothing would be normalised, and the baseline would
        say less of the architecture than of that.
        """
        seed = self.config["seed"] if seed is None else seed
        size, channels = self.config["augment"]["size"], self.source.train.shape[2]
        params, stats = replicate(self.network.init(seed, (size, size, channels)), self.mesh)
        count = max(self.mesh.size, min(1024, len(self.source.train)) // self.mesh.size * self.mesh.size)
        view = self.subject("", (params, stats)).view()
        rows = np.arange(count) % len(self.source.train)
        images = np.concatenate([some for some, _ in self.source.train.batches(count, view, rows)])
        forgetful, finish = network_of(self.config, momentum=0.0), self.source.train.finish(view)
        return params, _statistics(forgetful.apply, finish, params, stats, features.on_devices(images))

    def subjects(self, weights: tuple[PyTree, PyTree]) -> Iterator[tuple[str, Subject]]:
        """The rows of the table on each of ``sets``, by its name, one at a time."""
        for row in self.settings["rows"]:
            seen = {"trained": lambda: weights, "untrained": self.untrained}.get(row, lambda: None)()
            for name, parts in self.sets.items():
                if seen is not None or pixels_fit(*parts):
                    yield name, self.subject(row, seen, on=name)

    def table(self, weights: tuple[PyTree, PyTree], quiet: bool = False) -> dict:
        """Trained encoder, untrained encoder and raw pixels under every protocol, printed and returned.

        Of sets with competing features each protocol has a column for every set that the encoder is judged on:
        ``linear`` of the first, ``linear@digit`` of the one that is called digit.

        Raises:
          RuntimeError: the encoder's bits are not what they were before.
        """
        before = checkpoint.fingerprint(weights)
        results = {}
        for name, subject in self.subjects(weights):
            scores = table.scores([subject], self._prepared[name])[subject.name]
            columns = {f"{column}@{name}" if name else column: score for column, score in scores.items()}
            results.setdefault(subject.name, {}).update(columns)
            if not name and subject.test_labels is not None:
                self._unbalanced = table.unbalanced(subject.test_labels)
        if checkpoint.fingerprint(weights) != before:
            raise RuntimeError("the encoder changed while it was evaluated; its numbers are void.")
        if not results:
            raise ValueError(
                "evaluate.rows leaves nothing to judge: raw pixels are for small sets in memory."
            )
        if not quiet:
            self.print(results)
        return results

    def metric(self) -> str:
        """The score that the table shows: ``evaluate.metric``, or the one that the set's literature reports."""
        chosen = self.settings["metric"]
        test = self.sets[""][1].split
        return table.metric_of(self.config["data"]["name"], several(test)) if chosen == "auto" else chosen

    def print(self, results: dict) -> None:
        """Prints the table."""
        metric = self.metric()
        second = metric == "top1" and self._unbalanced
        table.print_table(results, metric=metric, beside="mean_per_class" if second else "")


@mirror.anywhere
def evaluate(config: Mapping[str, Any], workdir: str, *, quiet: bool = False) -> dict[str, Any]:
    """Judges the encoder of ``evaluate.checkpoint`` (default: the workdir's) on the config's labelled data.

    Returns:
      What ``evaluation.json`` of the workdir holds: the results, with the step and the config's fingerprint of
      the checkpoint.

    Raises:
      ValueError: the encoder cannot read these images, or an evaluator cannot work, in a sentence.
      FileNotFoundError: no checkpoint, or a missing data set.
    """
    began, path = time.perf_counter(), config["evaluate"]["checkpoint"] or workdir
    first = distributed.first()
    say = logbook.say if first and not quiet else lambda message: None
    mesh = sharding.make_mesh()
    trained = encoder.config_of(path)
    with jax.set_mesh(mesh):
        judge = Judge(as_trained(config, trained, say), source_of(config), mesh)
        if not judge.possible:
            raise ValueError(
                f"data.name={config['data']['name']!r} has no labelled test images to evaluate on."
            )
        weights, step = restored(path, judge)
        say(path if step is None else f"step {step} of {path}")
        results = judge.table(weights, quiet=True)
    if first:
        judge.print(results)
    found = {
        "checkpoint": str(path),
        "step": step,
        "config": configs.fingerprint(trained),
        "data": dict(config["data"]),
        "compose": dict(config["compose"]),
        "metric": judge.metric(),
        "results": results,
        "seconds": time.perf_counter() - began,
        **logbook.environment(),
    }
    if first:
        file = epath.Path(workdir) / "evaluation.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        logbook.write_json(file, found)
    return found


def as_trained(config: Mapping[str, Any], trained: Mapping[str, Any], say: Any) -> dict[str, Any]:
    """The config with the sections of the encoder that its checkpoint was saved with; says what differed.

    A file that is not a run's own may not say all of them: the config's stay.
    """
    said = {name: trained[name] for name in OF_THE_ENCODER if name in trained}
    differs = [
        name for name in said if name != "seed" and configs.diff({name: config[name]}, {name: said[name]})
    ]
    if differs:
        say(f"{', '.join(differs)}: as the checkpoint has it, not the config.")
    merged = dict(config) | said
    if size := config["evaluate"]["size"]:
        merged["augment"] = dict(merged["augment"]) | {"size": size}
    return merged


def restored(path: str, judge: Judge) -> tuple[tuple[PyTree, PyTree], int | None]:
    """(params, stats) of encoder, projector and predictor, and their step.

    Raises:
      ValueError: images of another number of channels, or weights of another shape.
    """
    saved = encoder.read(path, sharding=sharding.named(judge.mesh, sharding.REPLICATED))
    params, stats = saved.params | {"probe": {}}, saved.stats | {"probe": {}}
    channels = Encoder(judge.network, params, stats, judge.config["augment"]).channels
    size, here = judge.config["augment"]["size"], judge.source.train.shape[2]
    if channels != here:
        name = judge.config["data"]["name"]
        raise ValueError(
            f"data.name={name!r} has images of {here} channels; the encoder of {path} reads {channels}."
        )
    expected = judge.network.init(0, (size, size, channels))
    if jax.tree.map(np.shape, expected) != jax.tree.map(np.shape, (params, stats)):
        raise ValueError(f"the arrays of {path} are not those of the network that its config names.")
    return (params, stats), saved.step
