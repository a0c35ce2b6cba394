"""The config: what a run is, as leaves with defaults. ``base()`` is the common ground of all."""

import functools
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ml_collections import ConfigDict, config_dict

from contrastive_jax import augment, data, evaluators, kinds
from contrastive_jax.config import sections
from contrastive_jax.config.sections import defaults
from contrastive_jax.contrast import (
    candidates,
    margin,
    negatives,
    normalizer,
    target,
    temperature,
    transform,
)
from contrastive_jax.contrast.terms import canonical, find_loss
from contrastive_jax.data import compose
from contrastive_jax.lookup import find, functions_of, is_own, own
from contrastive_jax.models import critics, encoders, norm
from contrastive_jax.optim import optimizers, schedules

# Sections that name a function of a module; their leaves are that function's options.
CHOICES = {
    "compose": compose,
    "encoder": encoders,
    "critic": critics,
    "target": target,
    "candidates": candidates,
    "negatives": negatives,
    "margin": margin,
    "transform": transform,
    "temperature": temperature,
    "normalizer": normalizer,
    "optimizer": optimizers,
    "schedule": schedules,
}


SIZE = 32  # of the base config's views
# Arguments of functions that a config does not say, but the run.
GIVEN = {
    "augment": ("views",),
    "encoder": ("remat",),
}
NAMED = (*CHOICES, "data")  # all whose leaf ``name`` names a function


def function_of(path: str, name: Any) -> Callable | None:
    """Return the function whose keyword arguments a section is where it names ``name``; None: there is none.

    Args:
      path: of the section: ``temperature``, ``evaluators.knn``; of all terms of the loss ``loss``.
      name: of the function.

    Raises:
      ValueError: a ``module:function``, or a loss, that there is not.
    """
    section, _, column = path.partition(".")
    if section in CHOICES:
        return find(CHOICES[section], name, f"{section}.name")
    if section == "augment":
        return augment.find(name)
    if section == "loss":
        return find_loss(name)
    if section == "evaluators":
        return evaluators.find(name, column)
    return own(name, f"{section}.name") if is_own(name) else data.find(name)


@functools.cache
def _packaged(section: str, name: str) -> Callable | None:
    """Return a function of the package, which no user can change."""
    return function_of(section, name)


class Finder:
    """The functions that the sections of a config name; each name is looked up once."""

    def __init__(self) -> None:
        self._own: dict[str, Callable | None] = {}

    def __call__(self, path: str, name: Any) -> Callable | None:
        """Return the function as :func:`function_of` does."""
        if not isinstance(name, str):
            return None
        if not is_own(name):
            return _packaged(path.partition(".")[0], name)
        if name not in self._own:
            self._own[name] = function_of(path, name)
        return self._own[name]


class SavedFinder(Finder):
    """A :class:`Finder` for saved configs: a function that is not here raises an error when it is called."""

    def __call__(self, path: str, name: Any) -> Callable | None:
        """Return the function, or one that raises what looking it up raised."""
        try:
            return super().__call__(path, name)
        except ValueError as error:
            return _absent(str(error))


def _absent(sentence: str) -> Callable:
    def absent(*arguments: Any, **options: Any) -> Any:
        raise ValueError(sentence)

    return absent


def base() -> ConfigDict:
    """Return the common ground of all configs: SimCLR with a CIFAR-stem ResNet-18, LARS and a cosine schedule."""
    return ConfigDict(
        {
            **defaults(sections.General),
            "data": {"name": "digits"},
            "compose": {"name": "none"},
            "augment": {"preset": "simclr", "size": SIZE},
            "encoder": {
                "name": "resnet",
                "depth": 18,
                "width": 1.0,
                "stem": "cifar",
                "variant": "torchvision",
                "zero_init": True,
            },
            "projector": {"layers": 2, "hidden": 0, "out": 128, "norm": "all", "widths": ()},
            "predictor": {"layers": 0, "hidden": 0, "out": 0, "norm": "hidden", "widths": ()},
            "critic": {"name": "none"},
            "norm": {"scope": "joint", "groups": 1, "momentum": 0.9, "epsilon": 1e-5, "unbiased": False},
            "probe": defaults(sections.Probe),
            "target": {"name": "online"},
            "candidates": {"name": "both_views"},
            "negatives": {"name": "all"},
            "margin": {"name": "none"},
            "transform": {"name": "none"},
            "temperature": {"name": "fixed", "tau": 0.1},
            "normalizer": {"name": "none"},
            "loss": {"info_nce": {"weight": 1.0}},
            "optimizer": {"name": "lars", "momentum": 0.9, "weight_decay": 1e-6},
            "schedule": {
                "name": "cosine",
                "learning_rate": 0.3,
                "scaling": "linear",
                "warmup": "10 epochs",
            },
            "train": defaults(sections.Train),
            "evaluate": defaults(sections.Evaluate),
            "evaluators": {
                "linear": {"name": "lbfgs"},
                "few_labels": {"name": "lbfgs", "labels_per_class": 10, "draws": 20},
                "knn": {"name": "knn", "k": 10, "temperature": 0.0},
            },
            "gradient_snr": {"decay": 0.0},
            "diagnostics": {"quantiles": 0, "rankme": False},
            "log": defaults(sections.Log),
            "checkpoint": defaults(sections.Checkpoint),
            "init": defaults(sections.Init),
            "preview": defaults(sections.Preview),
            "profile": defaults(sections.Profile),
            "embed": defaults(sections.Embed),
            "export": defaults(sections.Export),
            "report": defaults(sections.Report),
        }
    )


def complete(config: ConfigDict, find: Finder | None = None) -> ConfigDict:
    """Fill in what the named functions take by default, so that every option is a leaf one can see and set."""
    find = find or Finder()
    for section in (*NAMED, "augment"):
        name = config[section].get("preset" if section == "augment" else "name")
        for option in strangers(section, config[section], find):
            del config[section][option]
        _fill(config, section, find(section, name), leave=GIVEN.get(section, ()))
    if "size" not in config.augment and augment.make_views in augment.options_of(
        find("augment", config.augment.preset)
    ):
        config.augment.size = SIZE  # views of arrays, in whose place images have come, have none
    _fill(config, "norm", norm.norm)  # a config may have the section anew
    config.loss = ConfigDict({
        canonical(name): value if isinstance(value, ConfigDict) else {"weight": float(value)}
        for name, value in config.loss.items()
    })  # fmt: skip
    for name in config.loss:
        _fill(config.loss, name, find("loss", name))
    for column in config.evaluators:
        _fill(config.evaluators, column, find(f"evaluators.{column}", config.evaluators[column].name))
    return config


def strangers(section: str, options: Mapping[str, Any], find: Finder) -> list[str]:
    """Return the options of another function of the package that a section has, and the one that it names has not.

    Sections of older configs have the options of all optimizers, of all schedules, and of all data sets; of these
    the ones of another set were at their defaults. Views of arrays have no size, which the base config has.
    """
    if section == "augment":
        function = find(section, options.get("preset"))
        size_of_base = "size" in options and options["size"] == SIZE
        return ["size"] if size_of_base and function and augment.of_arrays(function) else []
    if section not in ("optimizer", "schedule", "data") or is_own(name := options.get("name")):
        return []
    function = find(section, name)
    known = {*(kinds.parameters(function) if function else options), "name"}
    everything = data.known() if section == "data" else functions_of(CHOICES[section])
    others = [kinds.parameters(other) for other in everything.values()]
    return [
        option
        for option, value in options.items()
        if option not in known
        and any(option in other and (section != "data" or other[option].default == value) for other in others)
    ]


OF_COLUMNS = ("C", "k", "layer", "temperature", "labels_per_class", "draws")  # once of evaluate


def completed(saved: Mapping[str, Any]) -> ConfigDict:
    """Add to a config as it was saved every option that is newer than it, at its default.

    A run that is older than an option was made with what is now its default. What is wrong (a file edited by hand)
    is left for ``schema.check`` to refuse.
    """
    config = base()
    # Filled by complete, with the options of the functions that these name.
    whole = (*NAMED, "loss", "evaluators", "augment")
    with config.unlocked(), config.ignore_type():
        for section, value in saved.items():
            given = ConfigDict(value) if isinstance(value, Mapping) else value
            if section == "evaluate" and isinstance(given, ConfigDict):  # options of the columns by now
                given = ConfigDict({name: v for name, v in given.items() if name not in OF_COLUMNS})
            known = config.get(section)
            if isinstance(known, ConfigDict) and isinstance(given, ConfigDict) and section not in whole:
                known.update(given)
            else:
                config[section] = given
        try:
            config.encoder.name = config.encoder.get("name", "resnet")  # the only one that there was
            return complete(config)
        except (AttributeError, KeyError, TypeError, ValueError, ImportError):
            return config  # a section that is none, a loss of one's own that is not here


def settle(
    config: ConfigDict, before: Mapping[str, Any], overridden: set[str], find: Finder | None = None
) -> ConfigDict:
    """Complete a config after overrides: where another function is named, what was the old one's goes.

    Options that were set themselves stay, and are an error later if the new function has none of the name. A
    new augmentation preset or evaluator starts from its own defaults; of the other choices options of the same
    name keep their value (tau of a temperature) where it is of the new one's kind, and an option ``like`` is the
    name that was there. ``before`` is the config as its file gave it, ``overridden`` names the leaves (or whole
    sections) that were set.
    """
    find = find or Finder()
    with config.unlocked():
        for choice in _choices(config, before, find):
            whole = any(choice.path == name or choice.path.startswith(f"{name}.") for name in overridden)
            if choice.changed and not whole:
                choice.parent[choice.section] = _kept(choice, overridden)
        return complete(config, find)


class _Choice(NamedTuple):
    """A section that names a function, as it is now and as its config file gave it."""

    parent: ConfigDict
    original: Mapping[str, Any]
    section: str
    path: str
    key: str  # the leaf that names the function
    function_of: Callable[[Any], list[Callable | None]]  # whose keyword arguments are the section's options
    outlive: set[str] | None = None  # the options that keep their value; None: all that the new function has

    @property
    def was(self) -> Any:
        return self.original[self.section][self.key]

    @property
    def now(self) -> Any:
        return self.parent[self.section][self.key]

    @property
    def changed(self) -> bool:
        """Return whether another function is named."""
        return self.now != self.was

    def options(self) -> dict[str, inspect.Parameter]:
        """Return the options of the function that is named now."""
        functions = [function for function in self.function_of(self.now) if function is not None]
        return {name: p for function in functions for name, p in kinds.parameters(function).items()}


def _choices(config: ConfigDict, before: Mapping[str, Any], find: Finder) -> list[_Choice]:
    """Return the sections that name a function; a column that the config file lacks is as it was set."""

    def named(section: str, name: Any) -> list[Callable | None]:
        return [find(section, name)]

    def preset(name: Any) -> list[Callable | None]:
        return list(augment.options_of(find("augment", name)))

    def column(column: str, name: Any) -> list[Callable | None]:
        return [find(f"evaluators.{column}", name)]

    sections = [_Choice(config, before, s, s, "name", partial(named, s)) for s in NAMED]
    augmented = _Choice(config, before, "augment", "augment", "preset", preset, {"size"})
    columns, known = config.evaluators, before["evaluators"]
    judges = [
        _Choice(columns, known, c, f"evaluators.{c}", "name", partial(column, c), {"layer"})
        for c in columns
        if c in known
    ]
    return [*sections, augmented, *judges]


def _kept(choice: _Choice, overridden: set[str]) -> ConfigDict:
    """Return what a section keeps where another function is named."""
    section, known = choice.parent[choice.section], choice.options()
    stays = {leaf for leaf in section if f"{choice.path}.{leaf}" in overridden}
    stays |= set(known) if choice.outlive is None else choice.outlive & set(known)
    stays -= {leaf for leaf in section if leaf in known and not kinds.takes(known[leaf], section[leaf])}
    like = {"like": choice.was} if "like" in stays else {}
    return ConfigDict(like | {leaf: section[leaf] for leaf in section if leaf in stays | {choice.key}})


def _fill(config: ConfigDict, section: str, function: Any, leave: tuple[str, ...] = ()) -> None:
    if function is None:  # a wrong name: who builds the function refuses it in a sentence
        return
    for p in kinds.parameters(function).values():
        if p.name not in config[section] and p.name not in leave:
            if p.default is None:  # a plain None could not be set from the command line
                known = kinds.basic(p.annotation) & {int, float, tuple}
                config[section][p.name] = config_dict.placeholder(known.pop() if len(known) == 1 else object)
            elif p.default is not p.empty:
                _check_kind(f"{section}.{p.name}", p.default)
                config[section][p.name] = p.default


def _check_kind(option: str, default: Any) -> None:
    """Refuse a default of one's own function that a config cannot hold."""
    if isinstance(default, tuple | list):
        for one in default:
            _check_kind(option, one)
    elif not isinstance(default, bool | int | float | str):
        raise ValueError(
            f"{option} has a {type(default).__name__} as its default; a config holds numbers, text, True and False, and"
            " tuples of these."
        )


def plain(config: Any) -> dict[str, Any]:
    """Return a ConfigDict or Settings as plain dictionaries, tuples as lists: what ``config.json`` holds."""
    return json.loads(config.to_json())


def steps_of(option: str, duration: str, examples: int, batch_size: int) -> int:
    """Count steps in a duration: ``"60 epochs"``, ``"1000 steps"`` or ``"1e6 examples"``; the last step is whole.

    Raises:
      ValueError: not a number and one of the three units.
    """
    number = r"([0-9]+\.?[0-9]*|\.[0-9]+)(e\+?[0-9]{1,2})?"
    match = re.fullmatch(rf"\s*(?P<number>{number})\s*(?P<unit>epoch|step|example)s?\s*", str(duration))
    if not match:
        raise ValueError(
            f"{option} is {duration!r}; write a number and its unit: '60 epochs', '1000 steps' or '1e6 examples'."
        )
    examples_in = {"epoch": examples, "step": batch_size, "example": 1}[match["unit"]]
    steps = math.ceil(float(match["number"]) * examples_in / batch_size - 1e-9)
    if steps >= 2**31:
        raise ValueError(f"{option} is {duration!r}, {steps:.1e} steps; a run has fewer than 2**31.")
    return steps
