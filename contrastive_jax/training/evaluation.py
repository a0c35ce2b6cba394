"""Evaluation of the encoders of runs: quick evaluations during training, and the table at the end."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from contrastive_jax import augment, data, evaluators, native
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings
from contrastive_jax.evaluators import features, table
from contrastive_jax.evaluators.evaluation_data import (
    EvaluationData,
    LabelledSubset,
    Pretrained,
    eval_view,
    labelled,
    several,
)
from contrastive_jax.lookup import hashable, is_own
from contrastive_jax.training.encoder import network_of
from contrastive_jax.training.run import evaluators_of, replicate
from contrastive_jax.types import PyTree
from contrastive_jax.workdir import replicas as layout

PIXEL_LIMIT = 2**31  # bytes as float32; larger raw-pixel baselines are skipped


def pixels_fit(train: LabelledSubset, test: LabelledSubset) -> bool:
    """Return whether the raw pixels of two parts are in memory and small enough for a baseline."""
    return all(isinstance(part.split, data.Split) for part in (train, test)) and (
        4 * (len(train) + len(test)) * math.prod(train.split.shape) <= PIXEL_LIMIT
    )


@native.jit(static_argnums=(0, 1))
def _statistics(apply, view, params, stats, images):
    return apply(params, stats, jax.vmap(view)(images)[:, None], train=True)[1]


PASSES = 8  # with one, statistics with momentum 0.999 change too little for float32 to extrapolate


def settled(update: Callable[[PyTree], PyTree], stats: PyTree) -> PyTree:
    """Return the limit of running statistics over repeated passes of the same images, by extrapolation.

    A pass averages the old statistics and those of the images, with an unknown momentum.
    """
    seen = [stats]
    for _ in range(2):
        for _ in range(PASSES):
            stats = update(stats)
        seen.append(stats)
    return jax.tree.map(_limit, *seen)


def _limit(first: jax.Array, second: jax.Array, third: jax.Array) -> jax.Array:
    """Estimate the limit of a geometric sequence from three equidistant values; without one: the last."""
    if not jnp.issubdtype(third.dtype, jnp.floating):
        return third
    ratio = (third - second) / jnp.where(second == first, jnp.inf, second - first)
    falls = (ratio > 0) & (ratio < 1)
    return jnp.where(falls, third + (third - second) * ratio / jnp.where(falls, 1 - ratio, 1), third)


def attempt(
    column: str,
    judge: Callable[[Any], dict],
    subject: Any,
    failed: set[str],
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Return a column's scores during training; {} if it fails, which is reported once per column in ``failed``.

    Raises:
        NotFinite: the encoder's features are not finite: training diverged.
        OSError: images cannot be read.
    """
    try:
        return table.checked(judge(subject))
    except (features.NotFinite, OSError):  # training diverged, or images cannot be read
        raise
    except Exception as error:  # an evaluator may be user-defined
        if column not in failed:
            failed.add(column)
            report(f"evaluate.look: {column} failed: {table.failure(error)}")
        return {}


class Evaluator:
    """Evaluation of encoders of one architecture on labelled data.

    Args:
        config: settings, or a config as plain dictionaries: sections of the encoder, ``evaluate``, ``evaluators``.
        source: data to evaluate on.
        mesh: mesh of devices; must be in context when a method is called.
        built: evaluators of the config for the source's sets, if already built (``Run.evaluators``).

    Raises:
        ValueError: an invalid option, before anything is compiled.
    """

    def __init__(
        self,
        config: Settings | Mapping[str, Any],
        source: data.Source,
        mesh: Mesh,
        built: Mapping[str, Mapping[str, Any]] | None = None,
    ):
        self.settings = settings = configs.as_settings(config)
        self.source, self.mesh, self.network = source, mesh, network_of(settings)
        example, size = source.train.example, settings.evaluate.size
        self.view = evaluators.resized(settings.augment.options, size, self.network, example)
        self.reads = augment.seen(self.view, example)
        self._prepared = evaluators_of(settings, source) if built is None else built
        self.evaluators = self._prepared[""]
        self.sets = {
            name: (labelled(train), labelled(test))
            for name, (train, test) in source.judged.items()
            if test is not None and train.labelled and test.labelled
        }
        self.evaluates = "" in self.sets  # there are labelled test images
        self._unbalanced = False
        self._failed: set[str] = set()

    def subject(
        self, name: str, weights: tuple[PyTree, PyTree] | None, columns: Any = None, on: str = ""
    ) -> EvaluationData:
        """Make a row of the table; ``columns``: evaluators to run, default all; ``on``: one of ``sets``."""
        known = self.settings.evaluators
        layers = evaluators.layers_of(known[name] for name in known if columns is None or name in columns)
        return self.subject_of(name, weights, self.sets[on], layers)

    def subject_of(
        self,
        name: str,
        weights: tuple[PyTree, PyTree] | None,
        parts: tuple[LabelledSubset, LabelledSubset],
        layers: tuple[str, ...],
    ) -> EvaluationData:
        """Make a row of the table for training and test images ``parts``, with the features of ``layers``."""
        if weights is not None:  # one structure for every row, so that all share a compiled program
            weights = weights[0] | {"probe": {}}, weights[1] | {"probe": {}}
        seen = None if weights is None else Pretrained(self.network, *weights, self.view)
        return EvaluationData(name, seen, *parts, layers=layers, batch_size=self.settings.evaluate.batch_size)

    def look(
        self, weights: tuple[PyTree, PyTree], report: Callable[[str], None] = print, suffix: str = ""
    ) -> dict[str, float]:
        """Evaluate the columns of ``evaluate.look`` during training; ``suffix`` is added to their names.

        A column that fails is left out and its error is reported once; training continues.

        Raises:
            NotFinite: the encoder's features are not finite: training diverged.
            OSError: images cannot be read.
        """
        columns = self.settings.evaluate.look
        subject = self.subject("", weights, columns)
        scores = {}
        for column in columns:
            if score := attempt(column, self.evaluators[column], subject, self._failed, report):
                scores[column] = score
        metric = table.metric_of("", several(subject.test.split))
        return {
            f"eval/{column}{suffix}_{name}": value
            for column, score in scores.items()
            for name, value in table.numbers(score).items()
            if name == metric or metric not in score
        }

    def untrained(self, seed: int | None = None) -> tuple[PyTree, PyTree]:
        """Return initial weights of a seed (default: the run's) with batch-norm statistics of training images.

        The statistics are those of up to 1,024 clean images, drawn with the seed. With the initial statistics
        (mean 0, variance 1) batch norm would not normalise, which would distort the baseline.
        """
        seed = self.settings.seed if seed is None else seed
        params, stats = replicate(self.network.init(seed, self.reads), self.mesh)
        share = math.lcm(self.mesh.size, 8)  # the same number of images on one device as on eight
        there = min(1024, len(self.source.train))
        count = there // share * share or max(self.mesh.size, there // self.mesh.size * self.mesh.size)
        view = eval_view(hashable(self.view))
        order = np.random.default_rng(seed).permutation(len(self.source.train))  # folders are sorted by class
        rows = np.resize(order, count)
        batches = self.source.train.batches(count, view, rows)
        images = features.on_devices(np.concatenate([some for some, _ in batches]))
        forgetful, finish = network_of(self.settings, momentum=0.0), self.source.train.finish(view)

        def update(stats: PyTree) -> PyTree:
            # One pass at a time: emulated devices share threads, and queued passes can deadlock.
            return jax.block_until_ready(_statistics(forgetful.apply, finish, params, stats, images))

        # The batch norm of a user-defined encoder may have a momentum other than norm.momentum.
        return params, settled(update, stats) if is_own(self.settings.encoder.name) else update(stats)

    def subjects(self, weights: tuple[PyTree, PyTree]) -> Iterator[tuple[str, EvaluationData]]:
        """Yield the rows of the table on each of ``sets``, with the name of the set, one at a time."""
        for row in self.settings.evaluate.rows:
            seen = {"trained": lambda: weights, "untrained": self.untrained}.get(row, lambda: None)()
            for name, parts in self.sets.items():
                if seen is not None or pixels_fit(*parts):
                    yield name, self.subject(row, seen, on=name)

    def table(self, weights: tuple[PyTree, PyTree], *, show_progress: bool = False) -> dict:
        """Evaluate ``evaluate.rows`` (such as raw pixels) with every evaluator; see :meth:`print`.

        Data with competing features has a column for each evaluator and each of ``sets``: ``linear`` for the
        first set, ``linear@digit`` for the set ``digit``. ``show_progress`` prints each score when computed.

        Raises:
          ValueError: ``evaluate.rows`` leaves nothing to evaluate.
        """
        metric = self.metric()
        results: dict[str, dict] = {}
        with workdirs.EvaluationProgress(self._what(), quiet=not show_progress) as progress:
            for name, subject in self.subjects(weights):
                progress.begin(subject.name)
                scores = table.scores(
                    [subject],
                    self._prepared[name],
                    lambda row, column, score: progress.score(row, column, table.line(score, metric)),
                )[subject.name]
                columns = {f"{column}@{name}" if name else column: score for column, score in scores.items()}
                results.setdefault(subject.name, {}).update(columns)
                if not name and subject.test_labels is not None:
                    self._unbalanced = table.unbalanced(subject.test_labels)
        if not results:
            raise ValueError(
                "evaluate.rows leaves nothing to evaluate; raw pixels are evaluated for small data"
                " sets in memory only."
            )
        return results

    def _what(self) -> str:
        """Return a one-line description of the evaluation."""
        sizes = [
            f"{len(train):,} training and {len(test):,} {self.held} images{f' of {name}' if name else ''}"
            for name, (train, test) in self.sets.items()
        ]
        rows = ", ".join(self.settings.evaluate.rows)
        return f"evaluating {rows} by {', '.join(self.evaluators)}; {', '.join(sizes)}"

    def metric(self) -> str:
        """Return the score in the table: ``evaluate.metric``, or for auto the set's usual score."""
        chosen = self.settings.evaluate.metric
        test = self.sets[""][1].split
        section = self.settings.data
        name = section.options.get("set") or section.name  # of tfds
        return table.metric_of(name, several(test)) if chosen == "auto" else chosen

    def print(self, results: Mapping[str, dict]) -> None:
        """Print the table."""
        metric = self.metric()
        beside = {"top1": "mean_per_class" if self._unbalanced else "", "top5": "top1"}.get(metric, "")
        kind = "synthetic" if self.settings.data.name == "synthetic" else "the"
        table.print_table(results, metric=metric, beside=beside, images=f"{kind} {self.held} images")

    @property
    def held(self) -> str:
        """Return the name of the test images: validation if held out by ``data.validation``, else test."""
        return "validation" if self.settings.data.options.get("validation") else "test"


class Evaluates(Protocol):
    """Evaluation of a run: :class:`Evaluator`, or for pairs :class:`pair_evaluation.PairEvaluator`."""

    mesh: Mesh

    @property
    def evaluates(self) -> bool:
        """Return whether there are test examples to evaluate on."""

    def look(self, weights: tuple[PyTree, PyTree], report: Callable[[str], None]) -> dict[str, float]:
        """Evaluate the columns of ``evaluate.look`` during training."""

    def table(self, weights: tuple[PyTree, PyTree], *, show_progress: bool = False) -> dict:
        """Evaluate ``evaluate.rows`` with every evaluator."""

    def print(self, results: Mapping[str, dict]) -> None:
        """Print the table."""


def look(
    evaluators: Sequence[Evaluates], encoders: Iterable[tuple[PyTree, PyTree] | None], report: Callable
) -> list[dict[str, float]]:
    """Evaluate the encoder of each run during training, see :meth:`Evaluator.look`; {} for a run that diverged.

    Raises:
        NotFinite: the features of a single run are not finite; for replicas the next log point detects it.
    """
    expected = (features.NotFinite,) if len(evaluators) > 1 else ()
    scores: list[dict[str, float]] = []
    for number, (evaluator, weights) in enumerate(zip(evaluators, encoders, strict=True)):
        scores.append({})

        def about(message: str, who: str = layout.who([number], len(evaluators))) -> None:
            report(f"{who}{message}")

        with jax.set_mesh(evaluator.mesh), contextlib.suppress(*expected):
            if weights is not None:
                scores[-1] = evaluator.look(weights, about)
    return scores


def tables(
    evaluators: Sequence[Evaluates],
    encoders: Iterable[tuple[PyTree, PyTree] | None],
    differences: Sequence[Mapping[str, Any]],
    *,
    quiet: bool = False,
    show_progress: bool = False,
) -> list[dict]:
    """Evaluate the encoder of each run, see :meth:`Evaluator.table`; {} for a run that diverged (weights None).

    One table is printed unless ``quiet``; with several runs it has a row each, named by ``differences``.
    """
    results: list[dict] = []
    for number, (evaluator, weights) in enumerate(zip(evaluators, encoders, strict=True)):
        if show_progress and weights is not None and len(evaluators) > 1:
            workdirs.log(f"evaluating replica {number}, {layout.words([differences[number]])} ...")
        with jax.set_mesh(evaluator.mesh):
            alone = show_progress and len(evaluators) == 1
            results.append({} if weights is None else evaluator.table(weights, show_progress=alone))
    if any(results) and not quiet:
        evaluators[0].print(table.of_runs(differences, results))
    return results
