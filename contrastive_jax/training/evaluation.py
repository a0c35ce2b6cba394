"""Evaluation of the encoders of runs: quick looks while they train, and the table at the end."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

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
    labelled,
    several,
)
from contrastive_jax.lookup import is_own
from contrastive_jax.training.run import evaluators_of, replicate
from contrastive_jax.types import PyTree
from contrastive_jax.workdir import replicas as layout
from contrastive_jax.workdir.encoder import network_of

PIXEL_LIMIT = 2**31  # bytes of float32; a linear classifier of more raw pixels is nobody's baseline


def pixels_fit(train: LabelledSubset, test: LabelledSubset) -> bool:
    """Return whether a linear classifier of the raw pixels of two parts is worth its memory."""
    return all(isinstance(part.split, data.Split) for part in (train, test)) and (
        4 * (len(train) + len(test)) * math.prod(train.split.shape) <= PIXEL_LIMIT
    )


@native.jit(static_argnums=(0, 1))
def _statistics(apply, view, params, stats, images):
    return apply(params, stats, jax.vmap(view)(images)[:, None], train=True)[1]


PASSES = 8  # by one, statistics that keep 0.999 move too little for float32 to extrapolate


def settled(update: Callable[[PyTree], PyTree], stats: PyTree) -> PyTree:
    """Return what running statistics come to when the same images pass again and again, extrapolated from a few passes:
    each is the average, kept at a share that nobody says, of its old value and one of these images."""
    seen = [stats]
    for _ in range(2):
        for _ in range(PASSES):
            stats = update(stats)
        seen.append(stats)
    return jax.tree.map(_limit, *seen)


def _limit(first: jax.Array, second: jax.Array, third: jax.Array) -> jax.Array:
    """Estimate the end of a geometric series by three values as far apart; of what is none, the last."""
    if not jnp.issubdtype(third.dtype, jnp.floating):
        return third
    ratio = (third - second) / jnp.where(second == first, jnp.inf, second - first)
    falls = (ratio > 0) & (ratio < 1)
    return jnp.where(falls, third + (third - second) * ratio / jnp.where(falls, 1 - ratio, 1), third)


class Evaluator:
    """Evaluation of encoders of one architecture on labelled data.

    Args:
        config: settings, or a config as plain dictionaries: sections of the encoder, ``evaluate``, ``evaluators``.
        source: what to evaluate on.
        mesh: the devices; must be in context when a method is called.
        built: the evaluators of the config for the source's sets, where they are built already (``Run.evaluators``).

    Raises:
        ValueError: one sentence, before anything is compiled.
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
        self.has_labels = "" in self.sets
        self._unbalanced = False
        self._failed: set[str] = set()

    def subject(
        self, name: str, weights: tuple[PyTree, PyTree] | None, columns: Any = None, on: str = ""
    ) -> EvaluationData:
        """Make a row of the table; ``columns``: those that will be judged, default all; ``on``: one of ``sets``."""
        known = self.settings.evaluators
        layers = evaluators.layers_of(known[name] for name in known if columns is None or name in columns)
        if weights is not None:  # one structure for every row, so that one program encodes them all
            weights = weights[0] | {"probe": {}}, weights[1] | {"probe": {}}
        seen = None if weights is None else Pretrained(self.network, *weights, self.view)
        return EvaluationData(
            name, seen, *self.sets[on], layers=layers, batch_size=self.settings.evaluate.batch_size
        )

    def look(self, weights: tuple[PyTree, PyTree], report: Callable[[str], None] = print) -> dict[str, float]:
        """Take the quick look while a run trains: the columns that ``evaluate.look`` names.

        A column that fails is left out, and ``report`` told why, once: it takes no training with it.

        Raises:
            NotFinite: the encoder's features are not finite, which is the training's failure.
        """
        columns = self.settings.evaluate.look
        subject = self.subject("", weights, columns)
        scores = {}
        for column in columns:
            try:
                scores[column] = table.checked(self.evaluators[column](subject))
            except (features.NotFinite, OSError):  # the training's failure, the images' file system's
                raise
            except Exception as error:  # an evaluator may be the user's own
                if column not in self._failed:
                    self._failed.add(column)
                    report(f"evaluate.look: {column} failed: {table.failure(error)}")
        metric = table.metric_of("", several(subject.test.split))
        return {
            f"eval/{column}_{name}": value
            for column, score in scores.items()
            for name, value in table.numbers(score).items()
            if name == metric or metric not in score
        }

    def untrained(self, seed: int | None = None) -> tuple[PyTree, PyTree]:
        """Return the initial weights (of the run's seed), with batch-norm statistics of up to 1,024 clean training
        images that the seed draws.

        With the initial statistics (mean 0, variance 1) nothing would be normalised, and the baseline would
        say less of the architecture than of that.
        """
        seed = self.settings.seed if seed is None else seed
        params, stats = replicate(self.network.init(seed, self.reads), self.mesh)
        share = math.lcm(self.mesh.size, 8)  # one device takes as many images as eight
        there = min(1024, len(self.source.train))
        count = there // share * share or max(self.mesh.size, there // self.mesh.size * self.mesh.size)
        view = self.subject("", (params, stats)).view()
        order = np.random.default_rng(seed).permutation(len(self.source.train))  # a folder is sorted by class
        rows = np.resize(order, count)
        images = np.concatenate([some for some, _ in self.source.train.batches(count, view, rows)])
        forgetful, finish = network_of(self.settings, momentum=0.0), self.source.train.finish(view)
        images = features.on_devices(images)

        def update(stats: PyTree) -> PyTree:
            # One pass at a time: emulated devices share their threads, and passes that queue can wait for each other.
            return jax.block_until_ready(_statistics(forgetful.apply, finish, params, stats, images))

        # An own encoder's batch norm may have a momentum that norm.momentum does not reach.
        return params, settled(update, stats) if is_own(self.settings.encoder.name) else update(stats)

    def subjects(self, weights: tuple[PyTree, PyTree]) -> Iterator[tuple[str, EvaluationData]]:
        """Yield the rows of the table on each of ``sets``, by its name, one at a time."""
        for row in self.settings.evaluate.rows:
            seen = {"trained": lambda: weights, "untrained": self.untrained}.get(row, lambda: None)()
            for name, parts in self.sets.items():
                if seen is not None or pixels_fit(*parts):
                    yield name, self.subject(row, seen, on=name)

    def table(self, weights: tuple[PyTree, PyTree], *, show_progress: bool = False) -> dict:
        """Evaluate trained encoder, untrained encoder and raw pixels under every protocol; :meth:`print` shows it.

        Of sets with competing features each protocol has a column for every set that the encoder is judged on:
        ``linear`` of the first, ``linear@digit`` of the one that is called digit. ``show_progress`` prints each score
        as it comes.

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
                "evaluate.rows leaves nothing to judge: raw pixels are for small sets in memory."
            )
        return results

    def _what(self) -> str:
        """Return what an evaluation will do, in a line."""
        sizes = [
            f"{len(train):,} training and {len(test):,} {self._held} images{f' of {name}' if name else ''}"
            for name, (train, test) in self.sets.items()
        ]
        rows = ", ".join(self.settings.evaluate.rows)
        return f"evaluating {rows} by {', '.join(self.evaluators)}; {', '.join(sizes)}"

    def metric(self) -> str:
        """Return the score that the table shows: ``evaluate.metric``, or the one that the set's literature reports."""
        chosen = self.settings.evaluate.metric
        test = self.sets[""][1].split
        return table.metric_of(self.settings.data.name, several(test)) if chosen == "auto" else chosen

    def print(self, results: dict) -> None:
        """Print the table."""
        metric = self.metric()
        beside = {"top1": "mean_per_class" if self._unbalanced else "", "top5": "top1"}.get(metric, "")
        kind = "synthetic" if self.settings.data.name == "synthetic" else "the"
        table.print_table(results, metric=metric, beside=beside, images=f"{kind} {self._held} images")

    @property
    def _held(self) -> str:
        """Return what the images are that judge: of training, where ``data.validation`` holds some of them out."""
        return "validation" if self.settings.data.options.get("validation") else "test"


def look(
    evaluators: Sequence[Evaluator], encoders: Iterable[tuple[PyTree, PyTree] | None], report: Callable
) -> list[dict[str, float]]:
    """Take the quick look at the encoder of each run, see :meth:`Evaluator.look`; None of one that diverged.

    Raises:
        NotFinite: the features of a run by itself are not finite; of several, the next log point finds it.
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
    evaluators: Sequence[Evaluator],
    encoders: Iterable[tuple[PyTree, PyTree] | None],
    differences: Sequence[Mapping[str, Any]],
    *,
    quiet: bool = False,
    show_progress: bool = False,
) -> list[dict]:
    """Evaluate the encoder of each run, see :meth:`Evaluator.table`; {} of one that diverged, which is None.

    One table is printed unless ``quiet``: of several runs with a row each, named by their ``differences``.
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
