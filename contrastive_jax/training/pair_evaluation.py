"""Evaluation of runs with two encoders: retrieval between the arrays of test pairs, and each encoder by itself."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh

from contrastive_jax import data, models
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings
from contrastive_jax.evaluators import table
from contrastive_jax.evaluators.evaluation_data import LabelledSubset
from contrastive_jax.evaluators.pairs import Embedded
from contrastive_jax.training import pairs
from contrastive_jax.training.encoder import known_layers
from contrastive_jax.training.evaluation import Evaluator, attempt, pixels_fit
from contrastive_jax.training.run import evaluators_of
from contrastive_jax.types import PyTree

Weights = tuple[PyTree, PyTree]
SUFFIXES = tuple(f"@{name}" if name else "" for name in pairs.SETS)  # of the columns of each encoder


class PairEvaluator:
    """Evaluation of two encoders on test pairs; the counterpart of :class:`evaluation.Evaluator`.

    Columns of the second encoder have the suffix ``@second``. Without labels only the columns of pairs are computed.

    Args:
        settings: settings of the run.
        source: pairs to evaluate on.
        mesh: mesh of devices; must be in context when a method is called.
        built: evaluators of the settings, if already built (``Run.evaluators``).
    """

    def __init__(
        self,
        settings: Settings,
        source: data.Source,
        mesh: Mesh,
        built: Mapping[str, Mapping[str, Any]] | None = None,
    ):
        self.settings, self.source, self.mesh = settings, source, mesh
        built = evaluators_of(settings, source) if built is None else built
        self._of_pairs = built.get(pairs.PAIRS, {})
        self._layer = known_layers(settings)[-1]
        chosen = [name for name in settings.evaluate.look if name not in self._of_pairs]
        self.towers = []
        for name, (one, of) in zip(pairs.SETS, pairs.towers(settings, source), strict=True):
            columns = {column: one.values["evaluators"][column] for column in built[name]}
            alone = one.replaced(
                evaluators=columns, evaluate={**one.values["evaluate"], "look": tuple(chosen)}
            )
            self.towers.append(Evaluator(alone, of, mesh, {"": built[name]}))
        self.view = self.towers[0].view
        self._failed: set[str] = set()

    @property
    def evaluates(self) -> bool:
        """Return whether there are test pairs, and columns that can be computed."""
        return self.source.test is not None and bool(
            self._of_pairs or self.has_labels and self.towers[0].evaluators
        )

    @property
    def has_labels(self) -> bool:
        """Return whether the pairs have labels, for the columns of each encoder."""
        return self.towers[0].evaluates

    def _weights(self, weights: Weights, number: int) -> Weights:
        params, stats = (models.of_tower(tree, number) for tree in weights)
        return params, stats

    def embedded(self, name: str, weights: Weights) -> Embedded:
        """Embed the test pairs by both encoders."""
        test = self.source.test
        assert isinstance(test, data.Split)
        found: list[np.ndarray] = []
        for number, tower in enumerate(self.towers):
            part = LabelledSubset(test.of_pair(number))
            subject = tower.subject_of(name, self._weights(weights, number), (part, part), (self._layer,))
            rows, _ = subject.encoded(part)
            found.append(rows[self._layer].numpy())
        items = [_items(test.of_pair(number).image) for number in (0, 1)]
        return Embedded(
            name, found[0], found[1], items[0], items[1], test.group, self._layer, self.towers[0].held
        )

    def look(self, weights: Weights, report: Callable[[str], None] = print) -> dict[str, float]:
        """Evaluate the columns of ``evaluate.look`` during training; :meth:`Evaluator.look` describes errors."""
        scores: dict[str, float] = {}
        if columns := [name for name in self.settings.evaluate.look if name in self._of_pairs]:
            embedded = self.embedded("", weights)
            for column in columns:
                found = attempt(column, self._of_pairs[column], embedded, self._failed, report)
                scores |= {f"eval/{column}_{name}": value for name, value in table.numbers(found).items()}
        for number, tower in enumerate(self.towers if self.has_labels else ()):
            if tower.settings.evaluate.look:
                scores |= tower.look(self._weights(weights, number), report, SUFFIXES[number])
        return scores

    def untrained(self) -> Weights:
        """Return initial weights with batch-norm statistics of training pairs, see :meth:`Evaluator.untrained`."""
        seed = self.settings.seed
        (params, stats), (second_params, second_stats) = (
            self.towers[0].untrained(seed),
            self.towers[1].untrained(models.second_seed(seed)),
        )
        return models.joined(params, second_params), models.joined(stats, second_stats)

    def table(self, weights: Weights, *, show_progress: bool = False) -> dict:
        """Evaluate ``evaluate.rows`` with every evaluator; the values themselves only if there are labels."""
        results: dict[str, dict] = {}
        with workdirs.EvaluationProgress(self._what(), quiet=not show_progress) as progress:
            for row in self.settings.evaluate.rows:
                seen = {"trained": lambda: weights, "untrained": self.untrained}.get(row, lambda: None)()
                if seen is None and not self.has_labels:
                    continue
                progress.begin(row)
                scores: dict[str, dict] = {}
                if seen is not None:
                    embedded = self.embedded(row, seen)
                    for column, judge in self._of_pairs.items():
                        scores[column] = table.judged(judge, embedded)
                        progress.score(row, column, table.line(scores[column], self.metric()))
                if self.has_labels:
                    scores |= self._alone(row, seen, progress)
                if scores:
                    results[row] = scores
        if not results:
            raise ValueError(
                "evaluate.rows leaves nothing to evaluate; raw pixels are evaluated by columns of one encoder only,"
                " with labels."
            )
        return results

    def _alone(self, row: str, weights: Weights | None, progress: Any) -> dict[str, dict]:
        """Evaluate the columns of each encoder."""
        scores: dict[str, dict] = {}
        for number, tower in enumerate(self.towers):
            own = None if weights is None else self._weights(weights, number)
            if own is None and not pixels_fit(*tower.sets[""]):
                continue
            subject = tower.subject(row, own)
            for column, judge in tower.evaluators.items():
                name = f"{column}{SUFFIXES[number]}"
                scores[name] = table.judged(judge, subject)
                progress.score(row, name, table.line(scores[name], self.metric()))
        return scores

    def _what(self) -> str:
        """Return a one-line description of the evaluation."""
        test, of_towers = len(self.source.test or ()), list(self.towers[0].evaluators)
        columns = [*self._of_pairs, *(of_towers if self.has_labels else ())]
        skipped = (
            f", without labels: {', '.join(of_towers)} skipped" if of_towers and not self.has_labels else ""
        )
        rows = ", ".join(self.settings.evaluate.rows)
        return f"evaluating {rows} by {', '.join(columns)}; {test:,} {self.towers[0].held} pairs{skipped}"

    def metric(self) -> str:
        """Return the score in the table of accuracies, see :meth:`Evaluator.metric`."""
        return self.towers[0].metric() if self.has_labels else "top1"

    def print(self, results: Mapping[str, dict]) -> None:
        """Print the table."""
        table.print_table(results, metric=self.metric(), images=f"the {self.towers[0].held} pairs")


def _items(array: np.ndarray) -> np.ndarray:
    """Return numbers [n] that are equal for equal rows."""
    rows = np.ascontiguousarray(array).reshape(len(array), -1)
    as_bytes = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    return np.unique(as_bytes, return_inverse=True)[1]


def evaluator_of(
    settings: Settings,
    source: data.Source,
    mesh: Mesh,
    built: Mapping[str, Mapping[str, Any]] | None = None,
) -> Evaluator | PairEvaluator:
    """Return the evaluator of a run with one encoder, or with two."""
    return (PairEvaluator if pairs.paired(settings) else Evaluator)(settings, source, mesh, built)


NO_TEST = "no test examples"


def skipped(evaluator: Evaluator | PairEvaluator) -> str:
    """Return the line of a run that evaluates nothing, with the option that holds out test examples if one does."""
    hint = ""
    if (what := lacks(evaluator)) == NO_TEST and "test_fraction" in evaluator.settings.data.options:
        hint = " --config.data.test_fraction=0.2 holds out a fifth."
    return f"{what}: evaluations are skipped.{hint}"


def lacks(evaluator: Evaluator | PairEvaluator) -> str:
    """Return what is missing for an evaluation."""
    source, of_pairs = evaluator.source, isinstance(evaluator, PairEvaluator)
    if source.test is None and (of_pairs or source.train.labelled):
        return NO_TEST
    if of_pairs:
        return "no evaluator for these pairs"
    part = "training" if source.test is not None and source.test.labelled else "test"
    return f"no labelled {part} examples"
