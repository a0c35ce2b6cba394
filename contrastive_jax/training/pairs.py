"""Runs with two encoders: each encoder by itself is an ordinary one, with the settings and data of :func:`tower`."""

import inspect
from collections.abc import Mapping
from typing import Any

from contrastive_jax import augment, data
from contrastive_jax.config import Settings

NONE = {"name": "none"}
SETS = ("", "second")  # names of the evaluation sets of both encoders
PAIRS = "pairs"  # and of the test pairs


def paired(settings: Settings) -> bool:
    """Return whether there is a second encoder; older configs lack the section."""
    return settings.values.get("second_encoder", NONE)["name"] != "none"


def tower(settings: Settings, number: int) -> Settings:
    """Return the settings of the first (0) or second (1) encoder alone, with views of its own array.

    An array has two views in evaluation, for measures of augmented views. ``evaluate.size`` is the size of the first
    array's images.
    """
    if not paired(settings):
        return settings
    values = settings.values
    alone: dict[str, Any] = {"second_encoder": NONE, "second_augment": {"name": "unchanged"}}
    if number == 0:
        return settings.replaced(augment=augment.with_views(values["augment"], 2), **alone)
    section = dict(values["second_augment"])
    return settings.replaced(
        augment=augment.with_views({"preset": section.pop("name"), **section}, 2),
        encoder=values["second_encoder"],
        evaluate={**values["evaluate"], "size": 0},
        **alone,
    )


def towers(settings: Settings, source: data.Source) -> list[tuple[Settings, data.Source]]:
    """Return settings and data of each encoder: one, or two."""
    if not paired(settings):
        return [(settings, source)]
    return [(tower(settings, number), source.of_pair(number)) for number in (0, 1)]


def check_data(settings: Settings, source: data.Source) -> None:
    """Refuse pairs without a second encoder, and a second encoder without pairs.

    Raises:
      ValueError: one of them; or data composed of pairs.
    """
    name = settings.values.get("second_encoder", NONE)["name"]
    if source.paired and not paired(settings):
        raise ValueError(
            "second_encoder.name is 'none'; it must be the encoder of the second arrays, since the examples of"
            f" data.name={source.name!r} are pairs; or set data.pair_key=''."
        )
    if paired(settings) and not source.paired:
        raise ValueError(
            f"second_encoder.name is {name!r}; it must be none, since the examples of data.name={source.name!r} are"
            " not pairs: or set data.name=arrays and data.pair_key."
        )


def refusals(settings: Settings) -> None:
    """Refuse options that are not defined for two encoders.

    Raises:
      ValueError: the first of them, with the allowed value.
    """
    views, predictor = settings.augment.options, settings.predictor.options
    allowed: tuple[tuple[str, Any, Any, str], ...] = (
        ("augment.views", views.get("views", 1), 1, "the other view is the pair's second array"),
        ("augment.local_views", views.get("local_views", 0), 0, "a pair has one view of each array"),
        ("predictor.layers", predictor.get("layers", 0), 0, "embeddings are compared without a predictor"),
        (
            "predictor.widths",
            tuple(predictor.get("widths", ())),
            (),
            "embeddings are compared without a predictor",
        ),
        ("target.name", settings.target.name, "online", "keys are the other encoder's embeddings"),
        ("probe.weight", settings.probe.weight, 0.0, "there is no online probe"),
        ("probe.gradient", settings.probe.gradient, False, "there is no online probe"),
    )
    for option, value, only, why in allowed:
        if value != only:
            raise ValueError(f"{option} is {value!r}; it must be {only!r} with second_encoder: {why}.")
    for term, section in settings.loss.items():
        if "logits" in inspect.signature(section.function).parameters:
            raise ValueError(f"loss.{term} reads the online probe, which does not exist with second_encoder.")
    if settings.candidates.name == "queue":
        raise ValueError(
            "candidates.name is 'queue', which would mix the keys of both encoders; it must be other_view, both_views"
            " or own_view with second_encoder."
        )


def check_evaluators(settings: Settings, of_pairs: Mapping[str, Any]) -> None:
    """Refuse evaluators of pairs without a second encoder."""
    for column in settings.evaluators:
        if column in of_pairs and not paired(settings):
            raise ValueError(
                f"evaluators.{column}.name is {settings.evaluators[column].name!r}; it needs pairs: data.pair_key and"
                " second_encoder."
            )
