"""Evaluation of representations: named protocols, and every number carries its own.

Evaluators of features read arrays, ``[n, F]`` and ``[n]``, and never see a network. Those that train on images
(augmentation, fine-tuning) read the encoder's weights and train copies.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from contrastive_jax import data, models
from contrastive_jax.evaluators import measures, protocols
from contrastive_jax.evaluators.evaluation_data import EvalSpec, known_labels, labelled
from contrastive_jax.evaluators.table import METRICS, OF_SEVERAL
from contrastive_jax.lookup import call, functions_of, is_own, near, own


def known() -> dict[str, Callable]:
    """Return what a column may be, by name: protocols, which give an accuracy, and measures, which do not."""
    return functions_of(protocols) | functions_of(measures)


def find(name: str, column: str) -> Callable | None:
    """Find one of :func:`known` by its name, or any function by ``module:function``; None where there is none."""
    return own(name, f"evaluators.{column}.name") if is_own(name) else known().get(name)


def options_of(column: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column's options with the defaults of its protocol."""
    function = find(section.get("name", ""), column)
    defaults = {} if function is None else inspect.signature(function).parameters
    options = {k: p.default for k, p in defaults.items() if p.kind is p.KEYWORD_ONLY}
    return options | {k: v for k, v in section.items() if k != "name"}


def build(
    sections: Mapping[str, Mapping[str, Any]],
    facts: EvalSpec,
    find: Callable[[str, str], Callable | None] = find,
) -> dict[str, Callable]:
    """Build the config's ``evaluators``: column -> ``evaluate(subject)``; ``find(name, column)`` looks up functions.

    Raises:
        ValueError: an unknown protocol or option, or one that cannot work on these labels, in a sentence.
    """
    built = {}
    for column, section in sections.items():
        path = f"evaluators.{column}"
        if not isinstance(section, Mapping) or "name" not in section:
            raise ValueError(
                f"{path} is {section!r}; it needs a name and options: {{'name': 'knn', 'k': 20}}."
            )
        function = find(section["name"], column)
        if function is None:
            raise ValueError(f"{path}.name is {section['name']!r}. {near(section['name'], known())}")
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in section.items() if k != "name"}
        if options.get("seed") == RUN_SEED:
            raise ValueError(f"{path}: seed is {RUN_SEED}; it must be at least 0 where there is no run.")
        built[column] = call(function, path, options, facts)
        if not callable(built[column]):
            raise ValueError(
                f"{path}.name={section['name']!r} returned a {type(built[column]).__name__}; it must return a function"
                " of what is evaluated."
            )
    return built


def resized(
    section: Mapping[str, Any], size: int, network: models.Network, channels: int
) -> Mapping[str, Any]:
    """Return the section ``augment`` with images of ``evaluate.size`` pixels; 0 leaves its own.

    Raises:
        ValueError: the network cannot read them, or would have other weights.
    """
    if not size:
        return section
    own = section["size"]
    try:
        expected, shapes = (jax.tree.map(np.shape, network.shapes((s, s, channels))) for s in (own, size))
    except ValueError as error:
        raise ValueError(f"evaluate.size is {size}: {error}") from None
    if shapes != expected:
        raise ValueError(
            f"evaluate.size is {size}, and this network's weights are for images of {own} pixels: take 0."
        )
    return dict(section) | {"size": size}


ROWS = ("trained", "untrained", "raw pixels")
RUN_SEED = -1  # as the seed of a column: the run's own


def prepare(
    config: Mapping[str, Any], source: data.Source, find: Callable[[str, str], Callable | None] = find
) -> dict[str, dict[str, Callable]]:
    """Build the evaluators of a config, for each set that an encoder is judged on (``source.judged``): all that they
    would refuse after hours of training is refused now.

    Raises:
        ValueError: one sentence.
    """
    settings, projector = config["evaluate"], config["projector"]
    depth = len(projector.get("widths", ())) or projector["layers"]
    layers = ("pooled", *(f"projection_{i + 1}" for i in range(depth)))
    if not settings["rows"]:
        raise ValueError(f"evaluate.rows is empty; it must name some of {', '.join(ROWS)}.")
    train, test = source.judged[""]
    if test is not None and train.labelled and settings["metric"] != "auto":
        several = bool(train.label_shape)
        if several != (settings["metric"] in OF_SEVERAL):
            fitting = [name for name in METRICS if (name in OF_SEVERAL) == several]
            raise ValueError(
                f"evaluate.metric is {settings['metric']!r}; with {'several labels' if several else 'one label'}"
                f" an image it is auto or one of {', '.join(fitting)}."
            )
        if settings["metric"] == "top5" and len(source.classes) <= 5:
            raise ValueError(
                f"evaluate.metric is 'top5'; the {len(source.classes)} classes of data.name={source.name!r} are all"
                " among the first five: take top1."
            )
    sections = config["evaluators"]
    if per_run(sections):
        sections = {
            column: dict(section) | {"seed": config["seed"]} if per_run({column: section}) else section
            for column, section in sections.items()
        }
    return {
        name: build(sections, _facts(layers, train, test), find)
        for name, (train, test) in source.judged.items()
    }


def per_run(sections: Mapping[str, Any]) -> bool:
    """Return whether a column uses the run's seed, so that runs of several seeds have evaluators of their own."""
    return any(isinstance(of, Mapping) and of.get("seed") == RUN_SEED for of in sections.values())


def _facts(layers: tuple[str, ...], train: Any, test: Any) -> EvalSpec:
    """Return what is known of a set before anything is encoded: of one that nobody judges the layers alone."""
    if test is None or not train.labelled:
        return EvalSpec(layers, None)
    labels, rows = known_labels(train), labelled(train).rows
    return EvalSpec(layers, labels if labels is None or rows is None else labels[rows], len(train))


def layers_of(sections: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the encoder's layers that some column reads."""
    layers = {options_of(*item).get("layer", "pooled") for item in sections.items()}
    return tuple(sorted(layers))
