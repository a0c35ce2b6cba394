"""Overrides of a config from a command line: ``--config=FILE --config.section.option=value``.

Names of functions (``temperature.name``, ``augment.preset``, ``loss``) are read before options, so
``--config.temperature.name=ess --config.temperature.target=0.3`` works in any order. A section that names a
function may be set by the function's name alone: ``--config.temperature=ess``, ``--config.loss=dcl``,
``--config.optimizer=adamw``. A number may have several values, ``--config.seed=0,1,2``, one run for each
(:func:`expand`).
"""

import ast
import contextlib
import copy
import functools
import inspect
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict, FieldReference

from contrastive_jax import kinds
from contrastive_jax.config import approval, schema
from contrastive_jax.config.files import load, suggest
from contrastive_jax.config.identity import base_leaves, leaves
from contrastive_jax.config.resolved import Settings, settings_of
from contrastive_jax.config.settings import Finder, base, complete, plain, settle, strangers
from contrastive_jax.contrast.terms import canonical

_LIST = re.compile(r"[^,()\[\]{}'\"]+(,[^,()\[\]{}'\"]+)+")  # words separated by commas


def resolve(spec: str | None, overrides: Sequence[tuple[str, Any]] | Mapping[str, Any] = ()) -> Settings:
    """Return the settings of a file, a workdir or a name, with overrides applied and every option filled in.

    Args:
      spec: as :func:`contrastive_jax.config.load` takes it; None is the base config.
      overrides: pairs ``(section.option, value)``, or a dictionary; a value may be given as text. The last
        value of a leaf counts.

    Raises:
      ValueError: an unknown leaf or function, or a value that is not allowed; the message is one sentence.
    """
    find = Finder()
    return settings_of(_resolve(spec, overrides, find), find)


def _resolve(
    spec: str | None, overrides: Sequence[tuple[str, Any]] | Mapping[str, Any], find: Finder
) -> dict[str, Any]:
    """Return the config with the overrides, without validating the values of its file."""
    overrides = list(overrides.items() if isinstance(overrides, Mapping) else overrides)
    if wrong := [one for one in overrides if not isinstance(one, tuple | list) or len(one) != 2]:
        raise ValueError(
            f"overrides contain {wrong[0]!r}; they must be pairs such as ('temperature.tau', 0.2), or a"
            " dictionary."
        )
    given = {name: str(value) for name, value in overrides}
    approval.allow(*(function for pair in given.items() for function in _own_functions(*pair)))
    loaded = base() if spec is None else load(spec)
    schema.check_sections(loaded)
    loaded = complete(loaded, find)
    before = loaded.to_dict()
    # A copy without references between options is made faster, and has no types to be ignored.
    config = copy.deepcopy(loaded) if _refers(loaded) else ConfigDict(before, type_safe=False)
    with config.unlocked(), config.ignore_type() if config.is_type_safe else contextlib.nullcontext():
        choices = {name: _choose(config, name, text, find) for name, text in given.items()}
        config = settle(config, before, {chosen or name for name, chosen in choices.items()}, find)
    known, settings = leaves(config), plain(config)
    schema.check_names(settings, find)
    values = {}
    for name, text in given.items():
        if choices[name]:
            continue
        name = _leaf(name)
        if name not in known and not _is_required(settings, name, find):
            of_command = name in ("mode", "workdir", "quiet", "debug", "distributed")
            hint = f"Write --{name}=..." if of_command else suggest(name, known)
            if others := [option.of for option in schema.every() if option.name == name]:
                hint = f"{', '.join(others)} {'have' if len(others) > 1 else 'has'} it."
            raise ValueError(f"--config.{name}: there is no such option. {hint}")
        values[name] = _value(settings, name, text, find)
    if _refers(config):  # options that refer to others follow them
        with config.ignore_type():
            config.update_from_flattened_dict(values)
        return plain(config)
    for name, value in values.items():
        *path, option = name.split(".")
        section = functools.reduce(dict.__getitem__, path, settings)
        section[option] = json.loads(json.dumps(value))  # tuples as lists
    return settings


def _refers(config: ConfigDict) -> bool:
    """Return whether an option of the config refers to another, as ``config.get_ref`` makes it do."""
    values = config.values(preserve_field_references=True)
    return any(isinstance(v, FieldReference) or isinstance(v, ConfigDict) and _refers(v) for v in values)


def expand(spec: str | None, overrides: Sequence[tuple[str, str]] = ()) -> list[Settings]:
    """Return the settings of a command line: one, or one per combination if numbers have several values.

    ``--config.seed=0,1,2 --config.temperature.tau=0.1,0.2`` gives six; the last option varies fastest.

    Args:
      spec, overrides: as in :func:`resolve`.

    Raises:
      ValueError: as in :func:`resolve`.
    """
    given, find = dict(overrides), Finder()

    def settings(overrides: Sequence[tuple[str, str]]) -> Settings:
        return settings_of(_resolve(spec, overrides, find), find)

    if not any(map(_LIST.fullmatch, given.values())):
        return [settings(overrides)]
    # The functions that overrides name determine the options' types: apply all overrides but lists first.
    chosen = _resolve(spec, [pair for pair in given.items() if not _LIST.fullmatch(pair[1])], find)
    values = [[(name, part) for part in _several(chosen, name, text, find)] for name, text in given.items()]
    return [settings(combination) for combination in itertools.product(*values)]


def _several(settings: Mapping[str, Any], name: str, text: str, find: Finder) -> list[str]:
    """Return the values of an override: several if a number is given as a list."""
    leaf = _leaf(name)
    if not _LIST.fullmatch(text) or leaf not in leaves(settings) and not _is_required(settings, leaf, find):
        return [text]
    each = kinds.basic(schema.kind_of(settings, leaf, base_leaves(), find)) - {
        type(None)
    }  # a tuple is one value
    return [part.strip() for part in text.split(",")] if each and each <= {int, float} else [text]


def _own_functions(name: str, text: str) -> list[str]:
    """Return the functions outside the package that an override names."""
    section, _, key = name.partition(".")
    literal = _literal(text)
    if isinstance(literal, Mapping):
        return [function for _, function in approval.named({section: literal})]
    named = [_term(key)[0].replace("/", ".")] if section == "loss" and key else []
    named += [text] if key in ("", "name", "preset", "on_log") or section == "evaluators" else []
    return [function for function in named if approval.is_name(function)]


def _is_required(settings: Mapping[str, Any], name: str, find: Finder) -> bool:
    """Return whether a leaf is an option without a default, which configs lack until it is set."""
    return schema.option_of(settings, name, find).default is inspect.Parameter.empty


def _leaf(name: str) -> str:
    """Return the full name of a leaf: a loss term has its function's name, and means its weight if alone."""
    section, _, key = name.partition(".")
    if section != "loss" or not key:
        return name
    term, option = _term(key)
    return f"loss.{term}.{option or 'weight'}"


def _term(key: str) -> tuple[str, str]:
    """Split ``dcl.weight`` or ``package.module:function.option`` into the loss and its option."""
    module, colon, rest = key.rpartition(":")
    function, _, option = rest.partition(".")
    return canonical(f"{module}{colon}{function}"), option


def _choose(config: ConfigDict, name: str, text: str, find: Finder) -> str:
    """Apply an override to the config if it names a function or sets a whole section.

    Returns:
      The leaf or section that was set; "" for an option, which is read after all functions are known.
    """
    section, _, key = name.partition(".")
    parent = config.get(section)
    if not isinstance(parent, ConfigDict):
        return ""
    literal = _literal(text)
    choice = next((leaf for leaf in ("name", "preset") if leaf in parent), "")
    if not key and isinstance(literal, Mapping):
        named = {canonical(str(k)): v for k, v in literal.items()} if section == "loss" else literal
        if section in ("optimizer", "schedule") and (others := strangers(section, literal, find)):
            raise ValueError(
                f"--config.{section}: {literal.get('name')!r} has no option {others[0]!r}; remove it from the section."
            )
        config[section] = ConfigDict(named)
        return section
    if section == "loss" and not key:
        find("loss", text)  # before ConfigDict refuses a misspelt name with a dot, with a less clear message
        config.loss = ConfigDict({canonical(text): {"weight": 1.0}})
        return section
    if section == "loss" and (term := _term(key)[0]) not in parent:
        parent[term] = ConfigDict({"weight": 1.0})
    if section == "loss":
        return ""
    column, _, option = key.partition(".")
    if section == "evaluators" and option in ("", "name") and column:
        parent[column] = ConfigDict(
            literal if isinstance(literal, Mapping) else dict(parent.get(column, {})) | {"name": text}
        )
        return f"evaluators.{column}" if isinstance(literal, Mapping) else f"evaluators.{column}.name"
    if not key and choice and isinstance(literal, int | float | tuple) and not isinstance(literal, bool):
        numbers = [f"--config.{section}.{o}={text}" for o, v in parent.items() if type(v) in (int, float)]
        raise ValueError(
            f"--config.{section}={text}: {section} must be the name of a function, not a number"
            + (f"; did you mean {' or '.join(numbers[:3])}?" if numbers else ".")
        )
    if not key and choice or key == choice and choice:
        parent[choice] = text
        return f"{section}.{choice}"
    if not key:
        raise ValueError(
            f"--config.{section}={text}: {section} is a section; write --config.{section}.OPTION=VALUE"
            f" with OPTION one of {', '.join(parent)}."
        )
    return ""


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return float(text) if text.lower().lstrip("+-") in ("inf", "nan") else text


def _value(settings: Mapping[str, Any], name: str, text: str, find: Finder) -> Any:
    """Parse the text of a leaf's value by the leaf's type.

    Raises:
      ValueError: the text is not a value of that type.
    """
    kind = schema.kind_of(settings, name, base_leaves(), find)
    literal = {"true": True, "false": False}.get(text.lower(), _literal(text))
    several = tuple(_literal(part.strip()) for part in text.split(",") if part.strip())
    if kind is None:  # an option without annotation, of a user's function
        try:
            json.dumps(literal)
        except TypeError:
            raise ValueError(
                f"{name} is {text!r}; a config can hold numbers, text, True and False, and tuples of these."
            ) from None
        return literal
    texts_first = str in kinds.basic(kind)
    for value in (text, literal, several) if texts_first else (literal, several, text):
        if kinds.fits(value, kind):
            return value
    number = type(literal) in (int, float) and kinds.basic(kind) & {int, float}  # out of bounds
    raise ValueError(kinds.refusal(name, literal if number else text, kind))
