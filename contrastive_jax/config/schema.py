"""Meaning and allowed values of every option, read from its definition.

A config section holds the keyword arguments of the function that it names, so an option's meaning is its entry
in the ``Args`` of that function, or of the function's module if several functions share it. Leaves that no
function takes are in ``LEAVES``.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ml_collections import ConfigDict

from contrastive_jax import augment, data, evaluators, losses
from contrastive_jax.augment import arrays, presets
from contrastive_jax.config import sections
from contrastive_jax.config.files import suggest
from contrastive_jax.config.identity import base_leaves, leaves
from contrastive_jax.config.settings import CHOICES, NAMED, Finder, base
from contrastive_jax.contrast.diagnostics import diagnostics
from contrastive_jax.contrast.terms import known_losses
from contrastive_jax.evaluators import measures, pairs, protocols
from contrastive_jax.kinds import parameters, refusal, short
from contrastive_jax.lookup import functions_of, is_own
from contrastive_jax.models import heads, norm
from contrastive_jax.optim.gradient_snr import gradient_snr

# Leaves that no function takes by this name -> their meaning.
LEAVES = {
    "loss.*.weight": "weight of this term in the training loss.",
    "evaluators.*.name": "function that computes this column, from contrastive_jax.evaluators.protocols or measures.",
    "data.name": "Data set: digits (inside scikit-learn, no download), folder, webdataset, huggingface, arrays,"
    " tfds, synthetic, or the TFDS name of a prepared set (cifar10).",
}
LEAVES |= {  # the first line of the docstring of the functions' module
    f"{section}.name": f"{(module.__doc__ or '').partition(chr(10))[0]} A function of {module.__name__}."
    for section, module in CHOICES.items()
}
SECTIONS: dict[str, Callable] = {
    "projector": heads.projector,
    "predictor": heads.predictor,
    "norm": norm.norm,
    "gradient_snr": gradient_snr,
    "diagnostics": diagnostics,
    "": sections.General,
    "probe": sections.Probe,
    "train": sections.Train,
    "evaluate": sections.Evaluate,
    "log": sections.Log,
    "checkpoint": sections.Checkpoint,
    "init": sections.Init,
    "preview": sections.Preview,
    "profile": sections.Profile,
    "embed": sections.Embed,
    "export": sections.Export,
    "report": sections.Report,
}


def entries(text: str | None) -> dict[str, str]:
    """Parse the ``Args`` of a docstring: name -> text on one line; ``a, b: text`` is an entry for both."""
    lines = inspect.cleandoc(text or "").splitlines()
    if "Args:" not in lines:
        return {}
    texts: dict[str, str] = {}
    names: list[str] = []
    indent = None
    for line in lines[lines.index("Args:") + 1 :]:
        depth = len(line) - len(line.lstrip())
        if line.strip() and not depth:
            break
        indent = depth if indent is None else indent
        if match := re.match(r"([\w*, ]+): (.*)", line[indent:]) if depth == indent else None:
            names = [name.strip("* ") for name in match[1].split(",")]
            texts |= dict.fromkeys(names, match[2])
        elif line.strip():
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return {name: _plain(meaning) for name, meaning in texts.items()}


def _plain(text: str) -> str:
    """Remove docstring markup: ``:func:`~a.b.c``` becomes c."""
    return re.sub(r":\w+:`~?([\w.]+)`", lambda found: found[1].rpartition(".")[2], text).replace("``", "")


@functools.cache
def meanings(function: Callable) -> dict[str, str]:
    """Return the meanings of a function's options, from its docstring or else its module's."""
    module = inspect.getmodule(function)
    known = entries(module.__doc__ if module else None) | entries(function.__doc__)
    return {name: known.get(name, "") for name in parameters(function)}


class Option(NamedTuple):
    """Option of a config, with the function that takes it, if any."""

    name: str  # section.option; a star stands for the name of a loss or column
    default: Any
    meaning: str
    function: Callable | None = None

    @property
    def of(self) -> str:
        """Section and function, such as ``temperature=fixed``; empty without a function."""
        if self.function is None or inspect.isclass(self.function):
            return ""
        return f"{self.name.split('.')[0]}={self.function.__name__}"

    @property
    def kind(self) -> Any:
        """Return the annotation of its values; None if there is none."""
        kind = parameters(self.function)[self.name.rpartition(".")[2]].annotation if self.function else None
        return None if kind is inspect.Parameter.empty else kind  # a user's function may have no annotations


def functions(section: str) -> tuple[Callable, ...]:
    """Return all functions that a section (also ``loss.*``, ``evaluators.*``) may name, or the fixed one."""
    if section in CHOICES:
        return tuple(functions_of(CHOICES[section]).values())
    if section == "augment":
        return (augment.make_views, *functions_of(presets).values(), *functions_of(arrays).values())
    if section == "loss.*":
        return tuple(getattr(losses, name) for name in known_losses())
    if section == "evaluators.*":
        return tuple(evaluators.known().values())
    if section == "data":
        return tuple(data.known().values())
    return tuple(SECTIONS[name] for name in SECTIONS if name == section)


def named(settings: Mapping[str, Any], path: str, find: Finder | None = None) -> tuple[Callable, ...]:
    """Return the functions that take the options of the section at ``path`` in the config ``settings``."""
    section, _, key = path.partition(".")
    find = find or Finder()
    takers: Sequence[Callable | None]
    try:
        if section == "loss":
            takers = [find("loss", key)]
        elif section == "evaluators":
            takers = [find(path, settings[section][key]["name"])]
        elif section == "augment":
            takers = augment.options_of(find(section, settings[section]["preset"]))
        elif section in NAMED:
            takers = [find(section, settings[section]["name"])]
        else:
            takers = [SECTIONS[section]]
    except (KeyError, ValueError, ImportError, AttributeError):
        return ()
    return tuple(taker for taker in takers if taker is not None)


def option_of(settings: Mapping[str, Any], leaf: str, find: Finder | None = None) -> Option:
    """Return the option of a config's leaf; an undocumented one (of a user's function) has an empty meaning."""
    path, _, key = leaf.rpartition(".")
    starred = re.sub(r"^(loss|evaluators)\..*(\.\w+)$", r"\1.*\2", leaf)
    if starred in LEAVES:
        return Option(leaf, None, LEAVES[starred])
    for function in named(settings, path, find):
        if key in parameters(function):
            return Option(leaf, parameters(function)[key].default, meanings(function)[key], function)
    return Option(leaf, None, "")


def every() -> list[Option]:
    """Return all options that configs may have, in the order of :func:`config.base`."""
    options, defaults = [], base_leaves()
    general = parameters(sections.General)
    for section in dict.fromkeys(["", *(name for name in base() if name not in general)]):
        path = f"{section}.*" if section in ("loss", "evaluators") else section
        own = [name for name in LEAVES if name.startswith(f"{section}.")]
        options += [
            Option(name, defaults.get(name, {"loss.*.weight": 1.0}.get(name)), LEAVES[name]) for name in own
        ]
        for function in functions(path):
            for name, p in parameters(function).items():
                leaf = f"{path}.{name}" if path else name
                if leaf not in LEAVES and _reachable(path, leaf, defaults):
                    own_default = (path in NAMED or "*" in path) and p.default is not p.empty
                    default = p.default if own_default else defaults.get(leaf, p.default)
                    options.append(Option(leaf, default, meanings(function)[name], function))
    return options


def _reachable(path: str, leaf: str, base: Mapping[str, Any]) -> bool:
    """Return whether configs have the leaf; heads and norm have only the leaves of the base config."""
    return path not in ("projector", "predictor", "norm") or leaf in base


# ------------------------------------------------------------------------------------------------ values

FILE_NAME = re.compile(r"[^\W_][\w.,+=@-]*")  # no separator, parent folder or hidden file


@functools.cache
def _base_sections() -> dict[str, Any]:
    return base().to_dict()


def check_sections(settings: Mapping[str, Any] | ConfigDict) -> None:
    """Raise ValueError if a section is missing, or is none."""
    for section, default in _base_sections().items():
        if section in settings:
            _check_section(section, settings[section], default)
        else:
            raise ValueError(f"{section} is missing; every config must have this section.")


def check(settings: Mapping[str, Any], find: Finder | None = None) -> None:
    """Refuse a config with missing or unknown leaves, or with values that their annotations do not allow.

    Conditions on several options or on the data are checked by the functions that take them.

    Raises:
      ValueError: one sentence with the leaf, its value and the allowed values.
    """
    find = find or Finder()
    check_sections(settings)
    check_names(settings, find)
    defaults, given = base_leaves(), leaves(settings)
    for name in defaults:
        section = name.split(".")[0]
        chosen = section in (*NAMED, "loss", "evaluators")
        if section == "augment":  # views of arrays have no size
            chosen = all(
                name.partition(".")[2] not in parameters(taker) for taker in named(settings, section, find)
            )
        if not chosen and name not in given:
            raise ValueError(f"{name} is missing. Its meaning: {option_of(settings, name, find).meaning}")
    for leaf in given:
        section = leaf.partition(".")[0]
        by_function = section in (*NAMED, "augment", "loss", "evaluators")
        if not by_function and leaf not in defaults and not option_of(settings, leaf, find).meaning:
            raise ValueError(f"{leaf}: there is no such option. {suggest(leaf, defaults)}")
    for leaf, value in given.items():
        kind = kind_of(settings, leaf, defaults, find)
        if kind is not None and (refused := refusal(leaf, value, kind)):
            raise ValueError(refused)
    if not FILE_NAME.fullmatch(settings["name"]):
        raise ValueError(
            f"name is {settings['name']!r}; it must be a folder name of letters, digits and . , + = @ _"
            " -, starting with a letter or digit."
        )


def check_names(settings: Mapping[str, Any], find: Finder) -> None:
    """Refuse unknown function names; a user's own functions are looked up when they are needed.

    Raises:
      ValueError: one sentence with the leaf, its value and the allowed values.
    """
    for column, options in settings["evaluators"].items():
        if not isinstance(options, Mapping | ConfigDict) or "name" not in options:
            raise ValueError(
                f"evaluators.{column} is {short(options)}; it needs a name and options: {{'name': 'knn', 'k': 20}}."
            )
    names = {section: settings[section]["name"] for section in CHOICES} | {
        "augment": settings["augment"]["preset"]
    }
    names |= {f"evaluators.{column}": options["name"] for column, options in settings["evaluators"].items()}
    for path, name in names.items():
        if not is_own(name) and find(path, name) is None:
            raise ValueError(unknown(path, name))


def unknown(path: str, name: Any) -> str:
    """Return the error message for a name that is not a function of a section's module."""
    section, leaf = path.partition(".")[0], f"{path}.{'preset' if path == 'augment' else 'name'}"
    modules = {"augment": [presets, arrays], "evaluators": [protocols, measures, pairs]}.get(section) or [
        CHOICES[section]
    ]
    known = sorted(name for module in modules for name in functions_of(module))
    depth = re.fullmatch(r"resnet[-_ ]?(\d+)", str(name).lower()) if path == "encoder" else None
    hint = f" Set encoder.depth={depth[1]}." if depth else ""  # torchvision's names
    return refusal(leaf, name, Literal[tuple(known)]) + hint


def _check_section(section: str, given: Any, default: Any) -> None:
    if not isinstance(default, Mapping | ConfigDict):
        return
    if not isinstance(given, Mapping | ConfigDict):
        raise ValueError(
            f"{section} is {short(given)}; it must be a section with options such as {', '.join(default)}."
        )
    if "name" in default or "preset" in default:
        key = "name" if "name" in default else "preset"
        if key not in given:
            raise ValueError(f"{section}.{key} is missing; the base config has {default[key]!r}.")
    for name, value in given.items():
        is_section = isinstance(value, Mapping | ConfigDict)
        if section == "evaluators" and not (is_section and "name" in value):
            shown = short(dict(value)) if is_section else short(value)
            raise ValueError(
                f"evaluators.{name} is {shown}; it must be a section with the name of an evaluator and its options."
            )
        if section == "loss" and not is_section and isinstance(value, bool | str | None):
            raise ValueError(f"loss.{name} is {short(value)}; it must be a weight or a section of options.")
        nested = isinstance(default.get(name), Mapping | ConfigDict) or section in ("loss", "evaluators")
        if is_section and not nested:
            raise ValueError(f"{section}.{name} is {short(value)}; it must be one value, not a section.")
        for option, inner in value.items() if is_section else ():
            if isinstance(inner, Mapping | ConfigDict):
                raise ValueError(
                    f"{section}.{name}.{option} is {short(inner)}; it must be one value, not a section."
                )


def kind_of(
    settings: Mapping[str, Any], leaf: str, defaults: Mapping[str, Any], find: Finder | None = None
) -> Any:
    """Return the type of a leaf's values, from its function or else its default; None if unknown."""
    option = option_of(settings, leaf, find)
    if option.function:
        return option.kind
    if leaf in defaults and leaf in LEAVES:
        default = defaults[leaf]
        element: Any = type(default[0]) if isinstance(default, tuple) and default else str
        return tuple[element, ...] if isinstance(default, tuple) else type(default)
    return {"loss": float, "evaluators": str}[leaf.split(".")[0]] if option.meaning else None
