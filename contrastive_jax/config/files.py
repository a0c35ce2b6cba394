"""Config files: loading, arguments, and the application of methods."""

import ast
import contextlib
import difflib
import importlib.util
import json
import os
import pathlib
import re
import traceback
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from contrastive_jax.config import approval, methods
from contrastive_jax.config.scales import SCALES
from contrastive_jax.config.settings import completed
from contrastive_jax.lookup import importable_folders, near, use_folders


def parse(arg: str, **defaults: Any) -> ConfigDict:
    """Parse the part of ``--config=FILE:key=value,key=value`` after the colon.

    Args:
      arg: ``key=value`` pairs, separated by commas.
      **defaults: default of every key; a value takes its default's type. A tuple lists the allowed values, the
        default first.

    Raises:
      ValueError: an unknown key, or a value of the wrong type or not allowed.
    """
    allowed = {"scale": SCALES} | {key: v for key, v in defaults.items() if isinstance(v, tuple)}
    defaults = {key: v[0] if isinstance(v, tuple) else v for key, v in defaults.items()}
    options = dict(defaults)
    for pair in filter(None, (arg or "").split(",")):
        key, given, text = pair.partition("=")
        if not given:
            raise ValueError(
                f"config argument {pair!r} is not KEY=VALUE; allowed keys: {', '.join(defaults)}. Set a"
                " value that contains a comma by --config.section.option=VALUE."
            )
        if key not in defaults:
            raise ValueError(f"config argument {key!r} is unknown. {near(key, defaults)}")
        if (second := re.search(r":(\w+)=", text)) and second[1] in defaults:
            raise ValueError(f"config argument {pair!r} has a second colon; separate arguments by commas.")
        default = defaults[key]
        options[key] = text if isinstance(default, str) else _number(key, text, type(default))
    for key, value in options.items():
        if key in allowed and value not in allowed[key]:
            if key == "method" and value in methods.METHODS:
                raise ValueError(
                    f"config argument method={value!r} is not available in this config, which allows"
                    f" {', '.join(sorted(allowed[key]))}; configs/digits.py and configs/folder.py allow"
                    " every method."
                )
            raise ValueError(
                f"config argument {key}={value!r} is not allowed."
                f" {near(value, tuple(map(str, allowed[key])))}"
            )
    return ConfigDict(options)


def _number(key: str, text: str, kind: type[int] | type[float]) -> int | float:
    value: Any = None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    if type(value) is not kind and not (kind is float and type(value) is int):  # 2.7 and True are not int
        expected = "a whole number" if kind is int else "a number"
        raise ValueError(f"config argument {key}={text!r}; it must be {expected}.")
    return kind(value)


def use_method(config: ConfigDict, name: str) -> ConfigDict:
    """Apply a method of :mod:`contrastive_jax.config.methods` to ``config``, in place.

    The method's choices replace their sections; in optimizer, schedule, projector, predictor, norm, probe and
    augment it sets single leaves.
    """
    if name not in methods.METHODS:
        raise ValueError(f"config argument method={name!r} is unknown. {near(name, methods.METHODS)}")
    settings: Mapping[str, Any] = methods.METHODS[name]
    for section, value in settings.items():
        if section in ("optimizer", "schedule", "projector", "predictor", "norm", "probe", "augment"):
            with config.unlocked():
                config[section].update(value)
        else:
            config[section] = ConfigDict(value) if isinstance(value, dict) else value
    return config


# Option names of other libraries -> the last part of the name here.
ELSEWHERE = {
    **{"lr": "learning_rate", "wd": "weight_decay", "epochs": "duration", "max_epochs": "duration"},
    **{
        "num_epochs": "duration",
        "steps": "duration",
        "bs": "batch_size",
        "batch": "batch_size",
        "temp": "tau",
    },
}


def suggest(name: str, known: Mapping[str, Any]) -> str:
    """Return a hint for an unknown leaf.

    It names leaves with the same last part, else the closest leaf or section, else the options of the section.
    """
    sections = sorted({leaf.split(".")[0] for leaf in known})
    last = name.rpartition(".")[2]
    elsewhere = [leaf for leaf in known if leaf.rpartition(".")[2] == ELSEWHERE.get(last, last)]
    if 0 < len(elsewhere) <= 3:
        return f"Did you mean {' or '.join(map(repr, elsewhere))}?"
    close = difflib.get_close_matches(name, [*known, *sections], 1, cutoff=0.8)
    if close:
        return f"Did you mean {close[0]!r}?"
    section = name.rpartition(".")[0]
    while section and not any(leaf.startswith(f"{section}.") for leaf in known):
        section = section.rpartition(".")[0]
    here = [leaf for leaf in known if leaf.startswith(f"{section}.")] if section else sections
    return f"{f'Options of {section}' if section else 'Sections'}: {', '.join(here)}."


def load(spec: str | os.PathLike[str]) -> ConfigDict:
    """Load the config of ``FILE[:key=value,...]``, a replication's name, a workdir or a ``config.json``.

    A name refers to a file of ``configs/``, in the current folder or beside the package. A workdir may be
    remote, ``gs://...``.

    Raises:
      ValueError: there is no such config, it cannot be read, or it names a function that the user has not
        allowed (:mod:`contrastive_jax.config.approval`).
    """
    address, path, arg = _parts(os.fspath(spec))
    try:
        file = epath.Path(address + path if address else os.path.expanduser(path))
        file = file / "config.json" if file.is_dir() else file
    except (KeyError, ImportError) as error:  # unknown kind of storage, or its library is missing
        raise ValueError(f"the config {(address or '') + path!r} cannot be read ({error}).") from None
    if not file.is_file() and path.isidentifier():
        file = next((f for folder in folders() if (f := folder / f"{path}.py").is_file()), file)
    if not file.is_file():
        near = difflib.get_close_matches(pathlib.Path(path).stem, names(), 1, cutoff=0.7)
        begun = [name for name in names() if name.startswith(f"{path}_")]
        hint = f" Did you mean {near[0]!r}?" if near else f" Existing: {', '.join(begun)}." if begun else ""
        if not address and pathlib.Path(f"{path}.py").is_file():
            hint = f" There is a file {path}.py: write its name with the ending."
        raise ValueError(
            f"there is no config {(address or '') + path!r}; give a file of configs/, a workdir, or a"
            f" config.json.{hint}"
        )
    if file.suffix == ".json":
        try:
            saved = json.loads(file.read_text())
        except (ValueError, RecursionError) as error:  # RecursionError: nested too deep
            raise ValueError(
                f"{file} is not valid JSON ({error}); it is damaged or not a config.json."
            ) from None
        if not isinstance(saved, dict) or not saved:
            raise ValueError(f"{file} is not a config; it must hold a JSON object of sections.")
        approval.check(saved, file.parent)
        return completed(saved)
    if file.suffix != ".py":
        raise ValueError(f"{path} is not a config; its name must end in .py or .json.")
    module = _module(pathlib.Path(file))
    if not hasattr(module, "get_config"):
        raise ValueError(f"{path} is not a config; it must define a function get_config(arg).")
    return module.get_config(arg)


def _parts(spec: str) -> tuple[str | None, str, str]:
    """Return ``gs://`` or None, the path or name, and the arguments behind its colon; a path may have a colon."""
    match = re.fullmatch(r"(\w+://)?([^:]*):?(.*)", spec, re.DOTALL)
    assert match is not None  # every text matches
    address, path, arg = match.groups()
    if arg and (os.path.exists(os.path.expanduser(spec)) if not address else "=" not in arg):
        return address, spec.removeprefix(address or ""), ""
    return address, path, arg


def raised(spec: str, error: Exception) -> str:
    """Return the description of an error in a user's config file, with file and line."""
    if isinstance(error, SyntaxError):
        place, what = (error.filename, error.lineno), error.msg
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place, what = (last.filename, last.lineno), " ".join(str(error).split())
    return f"{spec} raised {type(error).__name__}: {what} ({place[0]}, line {place[1]})"


def folders() -> list[pathlib.Path]:
    """Return the folders of named configs: of the current folder, the checkout, the installed package."""
    in_a_run = pathlib.Path("config.json").is_file()  # a run's files may come from somebody else
    here = [] if in_a_run else [pathlib.Path("configs")]
    return [*here, *_of_the_package()]


def _of_the_package() -> list[pathlib.Path]:
    package = pathlib.Path(__file__).parents[1]
    return [package.parent / "configs", package / "configs"]


def names() -> list[str]:
    """Return the names of all configs in :func:`folders`; other file names could be commands of a shell."""
    stems = {file.stem for folder in folders() for file in folder.glob("[!_]*.py")}
    return sorted(filter(str.isidentifier, stems))


def sibling(file: str, name: str) -> ModuleType:
    """Load the config module ``name`` beside ``file``, for a config that builds on another."""
    return _module(pathlib.Path(file).with_name(f"{name}.py"))


def _module(file: pathlib.Path) -> ModuleType:
    of_a_user = file.resolve().parent not in _of_the_package()
    if of_a_user:
        use_folders(file)
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # the file ends in .py
    module = importlib.util.module_from_spec(spec)
    # A user's config may import modules from the folder in which the command was started.
    with importable_folders() if of_a_user else contextlib.nullcontext():
        spec.loader.exec_module(module)
    return module
