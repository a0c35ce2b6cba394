"""The config: what a run is, as leaves with defaults; composing, comparing and checking it.

``base()`` is the common ground. A replication is the base, a method and a few assignments; a diff of
two configs prints the leaves that differ and nothing else (:mod:`contrastive_jax.browse` has more commands):

    python -m contrastive_jax.config diff configs/digits.py:method=simclr configs/digits.py:method=flatclr
"""

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict, config_dict

from contrastive_jax import data, evaluators, methods, optim
from contrastive_jax.augment import presets
from contrastive_jax.contrast import candidates, margin, objective, selection, target, temperature
from contrastive_jax.data import compose
from contrastive_jax.recipe import functions_of, near

SCALES = ("paper", "gpu", "cpu", "smoke")

# Leaves (by prefix) in which a run and its continuation may differ.
MAY_CHANGE = (
    *("name", "log", "evaluate", "evaluators", "checkpoint", "init"),
    *("preview", "embed", "export", "report", "profile"),
    *("train.duration", "train.remat", "optimizer.shard_state", "diagnostics"),
    *("data.dir", "data.memory_limit", "data.workers", "data.corrupt"),
)

# Sections that name a function of a module; their leaves are that function's options.
CHOICES = {
    "compose": compose,
    "target": target,
    "candidates": candidates,
    "negatives": selection,
    "margin": margin,
    "temperature": temperature,
}


def base() -> ConfigDict:
    """The common ground of all configs: SimCLR with a CIFAR-stem ResNet-18, LARS and a cosine schedule."""
    return ConfigDict(
        {
            "name": "base",
            "seed": 0,
            "dtype": "float32",
            "data": {"name": "digits", "dir": ""},
            "compose": {"name": "none"},
            "augment": {"preset": "simclr", "size": 32},
            "encoder": {
                "depth": 18,
                "width": 1.0,
                "stem": "cifar",
                "variant": "torchvision",
                "zero_init": True,
            },
            "projector": {"layers": 2, "hidden": 0, "out": 128, "norm": "all", "widths": ()},
            "predictor": {"layers": 0, "hidden": 0, "out": 0, "norm": "hidden", "widths": ()},
            "norm": {"scope": "joint", "groups": 1},
            "probe": {"weight": 1.0, "gradient": False},
            "directions": "both",
            "target": {"name": "online"},
            "candidates": {"name": "both_views"},
            "negatives": {"name": "all"},
            "score": "cosine",
            "margin": {"name": "none"},
            "temperature": {"name": "fixed", "tau": 0.1},
            "loss": {"info_nce": {"weight": 1.0}},
            "optimizer": {"name": "lars", "momentum": 0.9, "weight_decay": 1e-6},
            "schedule": {
                "name": "cosine",
                "learning_rate": 0.3,
                "scaling": "linear",
                "warmup": "10 epochs",
                "milestones": (),
            },
            "train": {"duration": "100 epochs", "batch_size": 256, "microbatches": 1, "remat": False},
            "evaluate": {
                "every": "0 epochs",
                "look": ("knn",),  # columns of `evaluators` that are looked at every so often
                "final": True,
                "rows": evaluators.ROWS,
                "metric": "auto",
                "batch_size": 512,
                "checkpoint": "",
                "size": 0,  # of the images that the encoder sees; 0: as in its pretraining
            },
            "evaluators": {
                "linear": {"name": "lbfgs"},
                "few_labels": {"name": "lbfgs", "labels_per_class": 10, "draws": 20},
                "knn": {"name": "knn", "k": 10, "temperature": 0.0},
            },
            "gradient_snr": {"decay": 0.0},
            "diagnostics": {"quantiles": 0, "rankme": False},
            "log": {"every": 10, "tensorboard": True, "wandb": ""},
            "checkpoint": {"every_seconds": 60.0, "keep_last": 3, "keep_every": "0 epochs"},
            "init": {"checkpoint": ""},
            "preview": {"images": 8, "draws": 4},
            "profile": {"steps": (0, 0)},
            "embed": {"layers": ("pooled",), "splits": ("train", "test")},
            "export": {"architecture": "torchvision"},
            "report": {
                "images": 1000,
                "layer": "pooled",
                "map": "tsne",
                "queries": 8,
                "neighbours": 7,
            },
        }
    )


def parse(arg: str, **defaults: Any) -> ConfigDict:
    """The part of ``--config=FILE:key=value,key=value`` behind the colon.

    Args:
      arg: ``key=value`` pairs, separated by commas.
      **defaults: every key there is, with its default; a value takes its default's type. A tuple lists
        the values allowed, the default first.

    Raises:
      ValueError: unknown key, or a value that is not of the default's type or not allowed.
    """
    allowed = {"scale": SCALES} | {key: v for key, v in defaults.items() if isinstance(v, tuple)}
    defaults = {key: v[0] if isinstance(v, tuple) else v for key, v in defaults.items()}
    options = dict(defaults)
    for pair in filter(None, (arg or "").split(",")):
        key, _, text = pair.partition("=")
        if key not in defaults:
            raise ValueError(f"config argument {key!r} is unknown. {near(key, defaults)}")
        default = defaults[key]
        options[key] = text if isinstance(default, str) else _number(key, text, type(default))
    for key, value in options.items():
        if key in allowed and value not in allowed[key]:
            raise ValueError(f"config argument {key}={value!r}. {near(value, tuple(map(str, allowed[key])))}")
    return ConfigDict(options)


def _number(key: str, text: str, kind: type) -> int | float:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if type(value) is not kind and not (kind is float and type(value) is int):  # 2.7 is no int, True neither
        expected = "a whole number" if kind is int else "a number"
        raise ValueError(f"config argument {key}={text!r}: expected {expected}.")
    return kind(value)


def use_method(config: ConfigDict, name: str) -> ConfigDict:
    """Writes a method of :mod:`contrastive_jax.methods` over ``config``: sections it names are replaced."""
    if name not in methods.METHODS:
        raise ValueError(f"config argument method={name!r}. {near(name, methods.METHODS)}")
    settings: Mapping[str, Any] = methods.METHODS[name]
    for section, value in settings.items():
        if section in ("optimizer", "schedule", "projector", "predictor", "norm", "probe", "augment"):
            with config.unlocked():
                config[section].update(value)
        else:
            config[section] = ConfigDict(value) if isinstance(value, dict) else value
    return config


def on_digits(config: ConfigDict, smoke: bool = False) -> ConfigDict:
    """The same method where it trains in a minute on two CPU cores: digits, ResNet-18 of width 16, AdamW.

    Loss, heads and rules stay; what a method takes from the size of its data (queue, alpha, K, momentum
    of the target) is scaled to the 1,437 training images. ``smoke``: 4 steps, for seconds.
    """
    config.data = {"name": "digits", "dir": ""}
    config.augment = {"preset": "digits", "size": 8}
    width = 0.125 if smoke else 0.25
    # An 8x8 image meets no spatial layer but the stem while the residual branches are zero.
    config.encoder.update({"depth": 18, "width": width, "stem": "cifar", "zero_init": False})
    config.optimizer = {"name": "adamw", "weight_decay": 1e-4}
    config.schedule = {
        "name": "cosine", "learning_rate": 3e-3, "scaling": "none", "warmup": "1 step" if smoke else "2 epochs",
        "milestones": (),
    }  # fmt: skip
    config.train.update({"duration": "4 steps" if smoke else "30 epochs", "batch_size": 32 if smoke else 128})
    config.dtype = "float32"
    config.evaluators, config.evaluate.rows = base().evaluators, evaluators.ROWS
    config.log.every = 25
    if config.candidates.name == "queue":
        few = config.margin.name == "eqco"  # as many negatives as alpha would be no margin
        config.candidates.size = min(config.candidates.size, 128 if smoke else 256 if few else 1024)
    if config.negatives.get("k", 0) >= config.train.batch_size:
        config.negatives.k = config.train.batch_size // 2
    if config.margin.name == "eqco":
        config.margin.alpha = min(config.margin.alpha, 1024.0)
    if config.target.name == "ema":
        config.target.decay = min(config.target.decay, 0.95)  # of 337 steps, not of a million
    return config


def at_scale(config: ConfigDict, scale: str, gpu: Mapping[str, Any] | None = None) -> ConfigDict:
    """A config as published -> the same at one of ``SCALES``, complete.

    Args:
      config: what ``paper`` is.
      scale: ``cpu`` and ``smoke`` are :func:`on_digits`.
      gpu: leaf -> value, what one GPU takes instead. With a new ``train.duration``, warm-up and milestones
        keep their share of the run.
    """
    if scale in ("cpu", "smoke"):
        on_digits(config, smoke=scale == "smoke")
    elif scale == "gpu" and gpu:
        published = config.train.duration
        config.update_from_flattened_dict(gpu)
        config.schedule.warmup = _share(config.schedule.warmup, published, config.train.duration)
        config.schedule.milestones = tuple(
            _share(milestone, published, config.train.duration) for milestone in config.schedule.milestones
        )
    return complete(config)


def _share(duration: str, published: str, now: str) -> str:
    """``"120 epochs"`` of ``"200 epochs"`` is ``"12 epochs"`` of ``"20 epochs"``."""
    (number, unit), (whole, _), (new, _) = (text.split() for text in (duration, published, now))
    return f"{float(number) * float(new) / float(whole):g} {unit}"


def complete(config: ConfigDict) -> ConfigDict:
    """Fills in what the named functions take by default, so that every option is a leaf one can see and set."""
    for section, module in CHOICES.items():
        _fill(config, section, functions_of(module).get(config[section].get("name")))
    _fill(config, "data", data.load)
    _fill(config, "augment", functions_of(presets).get(config.augment.get("preset")))
    _fill(config, "optimizer", optim.optimizer)
    _fill(
        config,
        "schedule",
        optim.schedule,
        leave=("total_steps", "warmup_steps", "batch_size", "steps_per_epoch"),
    )
    config.loss = ConfigDict({
        name: value if isinstance(value, ConfigDict) else {"weight": float(value)}
        for name, value in config.loss.items()
    })  # fmt: skip
    for name in config.loss:
        _fill(config.loss, name, objective.find(name))
    for column in config.evaluators:
        _fill(config.evaluators, column, evaluators.find(config.evaluators[column].name))
    return config


def completed(saved: Mapping[str, Any]) -> ConfigDict:
    """A config as it was saved, with every option that is newer than it, at its default.

    A run that is older than an option was made with what is now its default. What is wrong (a file edited by hand)
    is left for ``options.check`` to refuse.
    """
    config = base()
    # What complete fills by the functions that these name.
    whole = (*CHOICES, "loss", "evaluators", "augment", "data", "optimizer", "schedule")
    with config.unlocked(), config.ignore_type():
        for section, value in saved.items():
            given = ConfigDict(value) if isinstance(value, Mapping) else value
            known = config.get(section)
            if isinstance(known, ConfigDict) and isinstance(given, ConfigDict) and section not in whole:
                known.update(given)
            else:
                config[section] = given
        try:
            return complete(config)
        except (AttributeError, KeyError, TypeError, ValueError, ImportError):
            return config  # a section that is none, a loss of one's own that is not here


def settle(config: ConfigDict, before: Mapping[str, Any], overridden: set[str]) -> ConfigDict:
    """A config after overrides, complete: where another function is named, what was the old one's goes.

    Options that were set themselves stay, and are an error later if the new function has none of the name. A
    new augmentation preset or evaluator starts from its own defaults; of the other choices options of the same
    name keep their value (tau of a temperature). ``before`` is the config as its file gave it, ``overridden``
    names the leaves (or whole sections) that were set.
    """
    with config.unlocked():
        return _settled(config, before, overridden)


def _settled(config: ConfigDict, before: Mapping[str, Any], overridden: set[str]) -> ConfigDict:
    def options(find, name):
        function = find(name)
        return set() if function is None else set(inspect.signature(function).parameters)

    # (parent, its original, path, section, the leaf that names a function, which leaves outlive a change of it)
    chosen: list[tuple[Any, Any, str, str, str, Callable[[str], set[str]]]] = [
        (config, before, "", section, "name", functools.partial(options, functions_of(module).get))
        for section, module in CHOICES.items()
    ]
    chosen += [(config, before, "", "augment", "preset", lambda name: {"size", "views"})]
    chosen += [
        (config.evaluators, before["evaluators"], "evaluators.", column, "name", lambda name: {"layer"})
        for column in config.evaluators
        if column in before["evaluators"]
    ]
    for parent, original, path, section, key, outlive in chosen:
        now, path = parent[section], f"{path}{section}"
        whole = any(path == name or path.startswith(f"{name}.") for name in overridden)
        if now[key] != original[section][key] and not whole:
            stays = {key, *outlive(now[key]), *(leaf for leaf in now if f"{path}.{leaf}" in overridden)}
            parent[section] = ConfigDict({leaf: now[leaf] for leaf in now if leaf in stays})
    return complete(config)


def _fill(config: ConfigDict, section: str, function: Any, leave: tuple[str, ...] = ()) -> None:
    if function is None:  # a wrong name: recipe.build says so in a sentence
        return
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and p.name not in config[section] and p.name not in leave:
            if p.default is None:  # a plain None could not be set from the command line
                kind = next(
                    k for k in (int, float, tuple) if re.search(rf"\b{k.__name__}\b", str(p.annotation))
                )
                config[section][p.name] = config_dict.placeholder(kind)
            elif p.default is not p.empty:
                config[section][p.name] = p.default


def plain(config: ConfigDict) -> dict[str, Any]:
    """The config as plain dictionaries, tuples as lists: what ``config.json`` holds."""
    return json.loads(config.to_json())


def leaves(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``section.option`` -> value."""
    found = {}
    for name, value in config.items():
        if isinstance(value, Mapping | ConfigDict):
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def diff(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The leaves in which two configs differ: ``section.option`` -> (first, second); None where it is absent."""
    one, two = leaves(first), leaves(second)
    names = [*one, *(name for name in two if name not in one)]
    return {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def diff_text(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """:func:`diff`, a line a leaf."""
    return "".join(f"{name}: {one!r} -> {two!r}\n" for name, (one, two) in diff(first, second).items())


def forbidden_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between a run's config, as it was saved, and its continuation's and may not (``MAY_CHANGE``)."""
    allowed = re.compile("|".join(rf"{re.escape(prefix)}(\.|$)" for prefix in MAY_CHANGE))
    found = diff(plain(completed(saved)), plain(completed(now)))
    return {name: change for name, change in found.items() if not allowed.match(name)}


def fingerprint(config: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a config's content."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]


def steps_of(option: str, duration: str, examples: int, batch_size: int) -> int:
    """Steps in a duration: ``"60 epochs"``, ``"1000 steps"`` or ``"1e6 examples"``; the last step is whole.

    Raises:
      ValueError: not a number and one of the three units.
    """
    number = r"([0-9]+\.?[0-9]*|\.[0-9]+)(e\+?[0-9]{1,2})?"
    found = re.fullmatch(rf"\s*(?P<number>{number})\s*(?P<unit>epoch|step|example)s?\s*", str(duration))
    if not found:
        raise ValueError(
            f"{option} is {duration!r}; write a number and its unit: '60 epochs', '1000 steps' or '1e6 examples'."
        )
    examples_in = {"epoch": examples, "step": batch_size, "example": 1}[found["unit"]]
    steps = math.ceil(float(found["number"]) * examples_in / batch_size - 1e-9)
    if steps >= 2**31:
        raise ValueError(f"{option} is {duration!r}, {steps:.1e} steps; a run has fewer than 2**31.")
    return steps


def suggest(name: str, known: Mapping[str, Any]) -> str:
    """What a misspelt leaf may have meant: the nearest leaf, else the options of its section."""
    close = difflib.get_close_matches(name, list(known), 1, cutoff=0.8)
    if close:
        return f"Did you mean {close[0]!r}?"
    section = name.rpartition(".")[0]
    while section and not any(leaf.startswith(f"{section}.") for leaf in known):
        section = section.rpartition(".")[0]
    here = (
        [leaf for leaf in known if leaf.startswith(f"{section}.")]
        if section
        else sorted({n.split(".")[0] for n in known})
    )
    return f"{f'Options of {section}' if section else 'Sections'}: {', '.join(here)}."


def load(spec: str) -> ConfigDict:
    """The config of ``FILE[:key=value,...]``, or of a workdir or ``config.json``."""
    path, _, arg = spec.partition(":")
    file = pathlib.Path(path)
    if file.is_dir():
        file = file / "config.json"
    if not file.is_file():
        raise ValueError(
            f"there is no config {path!r}; name a file of configs/, a workdir, or a config.json."
        )
    if file.suffix == ".json":
        try:
            saved = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file} is no JSON ({error}); it is damaged, or no config.json.") from None
        return completed(saved)
    module = _module(file)
    if not hasattr(module, "get_config"):
        raise ValueError(f"{path} is no config: it has no function get_config(arg).")
    return module.get_config(arg)


def sibling(file: str, name: str) -> ModuleType:
    """The config module ``name`` beside ``file``, for a config that builds on another."""
    return _module(pathlib.Path(file).with_name(f"{name}.py"))


def _module(file: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":  # the commands read every floor of the house
    sys.exit(importlib.import_module("contrastive_jax.browse").main(sys.argv[1:]))
