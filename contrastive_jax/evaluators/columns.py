"""Columns of a run's evaluation: evaluators by name, built from the config's sections."""

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from contrastive_jax import augment, data, models
from contrastive_jax.evaluators import measures, pairs, protocols
from contrastive_jax.evaluators.evaluation_data import EvalSpec, known_labels, labelled, several
from contrastive_jax.evaluators.table import METRICS, OF_SEVERAL
from contrastive_jax.kinds import parameters
from contrastive_jax.lookup import Section, functions_of, is_own, near, own
from contrastive_jax.types import Example


def known() -> dict[str, Callable]:
    """Return the evaluators by name: protocols, which give an accuracy, measures, which do not, and those of pairs."""
    return functions_of(protocols) | functions_of(measures) | functions_of(pairs)


def of_pairs(columns: Mapping[str, Section]) -> dict[str, Section]:
    """Return the columns that evaluate pairs, not one encoder."""
    return {
        name: column for name, column in columns.items() if column.function in functions_of(pairs).values()
    }


def find(name: str, column: str) -> Callable | None:
    """Return the evaluator with a name of :func:`known`, or a ``module:function``; None if it is unknown."""
    return own(name, f"evaluators.{column}.name") if is_own(name) else known().get(name)


def section_of(column: str, given: Mapping[str, Any]) -> Section:
    """Return the section of a config's column, ``{"name": "knn", "k": 20}``, with the function of that name.

    Raises:
        ValueError: a missing or unknown name.
    """
    path = f"evaluators.{column}"
    if not isinstance(given, Mapping) or "name" not in given:
        raise ValueError(f"{path} is {given!r}; it needs a name and options: {{'name': 'knn', 'k': 20}}.")
    name = given["name"]
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if k != "name"}
    if (function := find(name, column)) is None:
        raise ValueError(f"{path}.name is {name!r}, which is unknown. {near(name, known())}")
    return Section(path, name, function, options)


def build(columns: Mapping[str, Section | Mapping[str, Any]], facts: EvalSpec) -> dict[str, Callable]:
    """Build the columns of a config's ``evaluators``: column -> ``evaluate(subject)``.

    A column is a section or a plain dictionary.

    Raises:
        ValueError: an unknown protocol or option, one that does not fit these labels, the run's seed without a
            run, or an evaluator that does not return a function.
    """
    built = {}
    for column, given in columns.items():
        section = given if isinstance(given, Section) else section_of(column, given)
        if section.options.get("seed") == RUN_SEED:
            raise ValueError(f"{section.path}: seed is {RUN_SEED}; without a run it must be at least 0.")
        built[column] = section(facts)
        if not callable(built[column]):
            raise ValueError(
                f"{section.path}.name={section.name!r} returned a {type(built[column]).__name__}; it"
                " must return a function evaluate(subject)."
            )
    return built


def resized(
    section: Mapping[str, Any], size: int, network: models.Network, example: Example
) -> Mapping[str, Any]:
    """Return the section ``augment`` with images of ``size`` pixels (``evaluate.size``); 0 keeps its own size.

    Raises:
        ValueError: the examples are not images, or the network cannot read this size with its weights.
    """
    if not size:
        return section
    if "size" not in section:
        raise ValueError(f"evaluate.size is {size}; it must be 0, since only images can be resized.")
    own = section["size"]
    try:
        expected, shapes = (
            jax.tree.map(np.shape, network.shapes(augment.seen(dict(section) | {"size": s}, example)))
            for s in (own, size)
        )
    except ValueError as error:
        raise ValueError(f"evaluate.size is {size}: {error}") from None
    if shapes != expected:
        raise ValueError(
            f"evaluate.size is {size}; it must be 0, since the weights of this network fit images of"
            f" {own} pixels only."
        )
    return dict(section) | {"size": size}


RowName = Literal["trained", "untrained", "raw pixels"]
ROWS: tuple[RowName, ...] = typing.get_args(RowName)
RUN_SEED = -1  # a column with this seed uses the run's


def prepare(
    columns: Mapping[str, Section],
    source: data.Source,
    *,
    layers: tuple[str, ...],
    rows: Sequence[str],
    metric: str,
    seed: int,
) -> dict[str, dict[str, Callable]]:
    """Build the evaluators of a run for each data set of the evaluation (``source.judged``).

    Called before training, so that errors are raised early.

    Args:
        columns: the config's ``evaluators``.
        source: data to evaluate on.
        layers: layers of the network.
        rows: ``evaluate.rows``.
        metric: ``evaluate.metric``.
        seed: seed of the run.

    Raises:
        ValueError: no rows, a metric that does not fit the labels, or an error of :func:`build`.
    """
    if not rows:
        raise ValueError(f"evaluate.rows is empty; it must contain some of {', '.join(ROWS)}.")
    train, test = source.judged[""]
    if test is not None and train.labelled and metric != "auto":
        of_several = bool(train.label_shape)
        if of_several != (metric in OF_SEVERAL):
            fitting = [name for name in METRICS if (name in OF_SEVERAL) == of_several]
            raise ValueError(
                f"evaluate.metric is {metric!r}; with {'several labels' if of_several else 'one label'}"
                f" per image it must be auto or one of {', '.join(fitting)}."
            )
        if metric == "top5" and len(source.classes) <= 5:
            raise ValueError(
                f"evaluate.metric is 'top5'; with the {len(source.classes)} classes of"
                f" data.name={source.name!r} it is always 1: use top1."
            )
    seeded = {
        column: section._replace(options={**section.options, "seed": seed}) if per_run([section]) else section
        for column, section in columns.items()
    }
    return {name: build(seeded, _facts(layers, train, test)) for name, (train, test) in source.judged.items()}


def per_run(columns: Iterable[Section]) -> bool:
    """Return whether a column uses the run's seed, so that each seed needs its own evaluators."""
    return any(section.options.get("seed") == RUN_SEED for section in columns)


def _facts(layers: tuple[str, ...], train: Any, test: Any) -> EvalSpec:
    """Return the facts known before encoding; only the layers, if there are no test images or no labels."""
    if test is None or not train.labelled:
        return EvalSpec(layers, None)
    labels, rows = known_labels(train), labelled(train).rows
    labels = labels if labels is None or rows is None else labels[rows]
    return EvalSpec(layers, labels, len(train), several(train))


def layers_of(columns: Iterable[Section]) -> tuple[str, ...]:
    """Return the encoder layers that at least one column reads."""
    return tuple(sorted({_layer(section) for section in columns}))


def _layer(section: Section) -> str:
    """Return the layer that a column reads: its option, or its function's default."""
    layer = parameters(section.function).get("layer")
    return section.options.get("layer", layer.default if layer else "pooled")
