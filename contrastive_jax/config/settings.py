"""Leaves of a config and their defaults; ``base()`` is the config that all others start from."""

import functools
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from contrastive_jax import augment, data, evaluators, kinds
from contrastive_jax.augment import second
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
from contrastive_jax.models import critics, encoders, norm, second_encoders
from contrastive_jax.optim import optimizers, schedules

# Sections that name a function of a module; their leaves are that function's options.
CHOICES = {
    "compose": compose,
    "encoder": encoders,
    "second_augment": second,
    "second_encoder": second_encoders,
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


SIZE = 32  # pixels of the base config's views
NAMED = (*CHOICES, "data")  # sections whose leaf ``name`` names a function


def function_of(path: str, name: Any) -> Callable | None:
    """Return the function that a section names; its keyword arguments are the section's options.

    Args:
      path: path of the section: ``temperature``, ``evaluators.knn``; for every term of the loss ``loss``.
      name: name of the function.

    Returns:
      The function; None if the name is unknown.

    Raises:
      ValueError: an unknown ``module:function`` or loss.
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
    """Return a function of the package; cached, as these functions do not change."""
    return function_of(section, name)


class Finder:
    """Lookup of the functions that the sections of a config name, once per name."""

    def __init__(self) -> None:
        self._own: dict[str, Callable | None] = {}

    def __call__(self, path: str, name: Any) -> Callable | None:
        """Return the function as :func:`function_of` does; None for a name that is not text."""
        if not isinstance(name, str):
            return None
        if not is_own(name):
            return _packaged(path.partition(".")[0], name)
        if name not in self._own:
            self._own[name] = function_of(path, name)
        return self._own[name]


class SavedFinder(Finder):
    """:class:`Finder` for saved configs: a missing function raises an error only when it is called."""

    def __call__(self, path: str, name: Any) -> Callable | None:
        """Return the function, or a substitute that raises the error of the lookup when it is called."""
        try:
            return super().__call__(path, name)
        except ValueError as error:
            return _absent(str(error))


def _absent(sentence: str) -> Callable:
    def absent(*arguments: Any, **options: Any) -> Any:
        raise ValueError(sentence)

    return absent


def base() -> ConfigDict:
    """Return the base of all configs: SimCLR with a CIFAR-stem ResNet-18, LARS and a cosine schedule."""
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
            "second_augment": {"name": "unchanged"},
            "second_encoder": {"name": "none"},
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
    """Fill in the defaults of the named functions, so that every option is a leaf that can be seen and set.

    Options of other functions (:func:`strangers`) are removed.
    """
    find = find or Finder()
    for section in (*NAMED, "augment"):
        name = config[section].get("preset" if section == "augment" else "name")
        for option in strangers(section, config[section], find):
            del config[section][option]
        if section == "augment" and augment.make_views in augment.options_of(find(section, name)):
            config.augment.size = config.augment.get("size", SIZE)  # a preset of arrays, before, has no size
            _fill(config, section, augment.make_views)
        _fill(config, section, find(section, name))
    _fill(config, "norm", norm.norm)  # a config may have replaced the whole section
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
    """Return the options in a section that belong to other functions of the package, not to the named one.

    Sections of older configs have the options of all optimizers, schedules and data sets; an option of another
    data set counts only at its default. Views of arrays have no size, unlike those of the base config.
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


OF_COLUMNS = ("C", "k", "layer", "temperature", "labels_per_class", "draws")  # of evaluate in older configs


def completed(saved: Mapping[str, Any]) -> ConfigDict:
    """Complete a saved config with the options that are newer than it, at their defaults.

    Defaults of newer options reproduce the behaviour of older runs. Errors (in a file edited by hand) are left
    to ``schema.check``.
    """
    config = base()
    # complete() fills these with the options of the functions that they name.
    whole = (*NAMED, "loss", "evaluators", "augment")
    with config.unlocked(), config.ignore_type():
        for section, value in saved.items():
            given = ConfigDict(value) if isinstance(value, Mapping) else value
            if section == "evaluate" and isinstance(given, ConfigDict):  # now options of the columns
                given = ConfigDict({name: v for name, v in given.items() if name not in OF_COLUMNS})
            known = config.get(section)
            if isinstance(known, ConfigDict) and isinstance(given, ConfigDict) and section not in whole:
                known.update(given)
            else:
                config[section] = given
        try:
            config.encoder.name = config.encoder.get("name", "resnet")  # the only encoder of older configs
            return complete(config)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, ImportError):
            return config  # a value in place of a section, or a user's loss that is missing


def settle(
    config: ConfigDict, before: Mapping[str, Any], overridden: set[str], find: Finder | None = None
) -> ConfigDict:
    """Complete a config after overrides; a section with another function drops the options of the old one.

    Overridden options stay, and raise an error later if the new function does not have them. A new augmentation
    preset or evaluator starts from its own defaults (but keeps the number and size of views, or ``layer``). Other
    sections keep the value of options that both functions have (tau of a temperature), if the new function accepts
    it; an option ``like`` becomes the old function's name. ``before`` is the config before the overrides;
    ``overridden`` holds the names of the overridden leaves (or whole sections).
    """
    find = find or Finder()
    with config.unlocked():
        for choice in _choices(config, before, find):
            whole = any(choice.path == name or choice.path.startswith(f"{name}.") for name in overridden)
            if choice.changed and not whole:
                choice.parent[choice.section] = _kept(choice, overridden)
        return complete(config, find)


class _Choice(NamedTuple):
    """Section that names a function, before and after the overrides."""

    parent: ConfigDict
    original: Mapping[str, Any]
    section: str
    path: str
    key: str  # the leaf that names the function
    function_of: Callable[[Any], list[Callable | None]]  # name -> functions that take the section's options
    outlive: set[str] | None = None  # options that keep their value; None: all that the new function has

    @property
    def was(self) -> Any:
        return self.original[self.section][self.key]

    @property
    def now(self) -> Any:
        return self.parent[self.section][self.key]

    @property
    def changed(self) -> bool:
        """Return whether the section names another function than before."""
        return self.now != self.was

    def options(self) -> dict[str, inspect.Parameter]:
        """Return the options of the function that the section names now."""
        functions = [function for function in self.function_of(self.now) if function is not None]
        return {name: p for function in functions for name, p in kinds.parameters(function).items()}


def _choices(config: ConfigDict, before: Mapping[str, Any], find: Finder) -> list[_Choice]:
    """Return the sections that name a function, without columns that only the overrides have."""

    def named(section: str, name: Any) -> list[Callable | None]:
        return [find(section, name)]

    def preset(name: Any) -> list[Callable | None]:
        return list(augment.options_of(find("augment", name)))

    def column(column: str, name: Any) -> list[Callable | None]:
        return [find(f"evaluators.{column}", name)]

    sections = [_Choice(config, before, s, s, "name", partial(named, s)) for s in NAMED]
    shared = set(kinds.parameters(augment.make_views))  # numbers and sizes of views
    augmented = _Choice(config, before, "augment", "augment", "preset", preset, shared)
    columns, known = config.evaluators, before["evaluators"]
    judges = [
        _Choice(columns, known, c, f"evaluators.{c}", "name", partial(column, c), {"layer"})
        for c in columns
        if c in known
    ]
    return [*sections, augmented, *judges]


def _kept(choice: _Choice, overridden: set[str]) -> ConfigDict:
    """Return the options that a section keeps when it names another function."""
    section, known = choice.parent[choice.section], choice.options()
    stays = {leaf for leaf in section if f"{choice.path}.{leaf}" in overridden}
    stays |= set(known) if choice.outlive is None else choice.outlive & set(known)
    stays -= {leaf for leaf in section if leaf in known and not kinds.takes(known[leaf], section[leaf])}
    like = {"like": choice.was} if "like" in stays else {}
    return ConfigDict(like | {leaf: section[leaf] for leaf in section if leaf in stays | {choice.key}})


def _fill(config: ConfigDict, section: str, function: Any) -> None:
    if function is None:  # an unknown name, which is refused later
        return
    for p in kinds.parameters(function).values():
        if p.name not in config[section] and p.default is not p.empty:
            if p.default is not None:
                _check_kind(f"{section}.{p.name}", p.default)
            config[section][p.name] = p.default


def _check_kind(option: str, default: Any) -> None:
    """Refuse a default of a user's function that a config cannot hold."""
    if isinstance(default, tuple | list):
        for one in default:
            _check_kind(option, one)
    elif not isinstance(default, bool | int | float | str):
        raise ValueError(
            f"the default of {option} is a {type(default).__name__}; a config can hold numbers, text,"
            " True and False, and tuples of these."
        )


def plain(config: Any) -> dict[str, Any]:
    """Return a ConfigDict or Settings as plain dictionaries with tuples as lists, as in ``config.json``.

    Raises:
      ValueError: a value that JSON does not hold.
    """
    try:
        return json.loads(config.to_json())
    except TypeError:
        leaf, value = next(_not_plain(config.to_dict()))
        raise ValueError(
            f"{leaf} is {value!r} of type {type(value).__name__}; it must be a number, a text, True, False, None or a"
            " list of these, of Python's own types."
        ) from None


def _not_plain(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _not_plain(value, f"{prefix}{name}.")
            continue
        try:
            json.dumps(value)
        except TypeError:
            yield f"{prefix}{name}", value


def steps_of(option: str, duration: str, examples: int, batch_size: int) -> int:
    """Return the steps of a duration, ``"60 epochs"``, ``"1000 steps"`` or ``"1e6 examples"``, rounded up.

    Raises:
      ValueError: the text is not a number and one of the three units, or the steps are 2**31 or more.
    """
    number = r"([0-9]+\.?[0-9]*|\.[0-9]+)(e\+?[0-9]{1,2})?"
    match = re.fullmatch(rf"\s*(?P<number>{number})\s*(?P<unit>epoch|step|example)s?\s*", str(duration))
    if not match:
        raise ValueError(
            f"{option} is {duration!r}; it must be a number and a unit: '60 epochs', '1000 steps' or"
            " '1e6 examples'."
        )
    examples_in = {"epoch": examples, "step": batch_size, "example": 1}[match["unit"]]
    steps = math.ceil(float(match["number"]) * examples_in / batch_size - 1e-9)
    if steps >= 2**31:
        raise ValueError(f"{option} is {duration!r}, {steps:.1e} steps; a run must have fewer than 2**31.")
    return steps
