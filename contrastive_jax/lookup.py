"""Lookup of functions by name: a config section holds the keyword arguments of the function that it names.

A name is that of a public function in the section's module, so there is no table to edit: a new temperature
rule is a function in ``contrast/temperature.py`` and its name in a config. Or it is ``module:function``, a
user's function in any module that Python can import. A row of a table can be a function too (:func:`variant`).
The error for a misspelt name or option lists what is allowed.
"""

import contextlib
import difflib
import importlib
import importlib.machinery
import inspect
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from contrastive_jax.kinds import LARGEST, basic, check, parameters


def functions_of(module: ModuleType) -> dict[str, Callable]:
    """Find the public functions that a module defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def hashable(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return options as pairs, sorted by name, lists as tuples at any depth."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value

    return tuple(sorted((name, frozen(value)) for name, value in options.items()))


def is_own(name: Any) -> bool:
    """Return whether a name is ``module:function``, unlike ``mnist:3.0.1``, a version of a TFDS data set."""
    return isinstance(name, str) and re.search(r":(?![0-9*])", name) is not None


# Folders of users' functions in addition to sys.path: the folder in which a command is started.
FOLDERS: list[str] = []


# Functions that were not found when a saved config that names them was read; they are treated as missing.
UNKNOWN: set[str] = set()


def add_current_folder() -> None:
    """Add the current folder to FOLDERS, unless Python runs in safe-path mode or the folder is gone."""
    with contextlib.suppress(FileNotFoundError):
        if not sys.flags.safe_path:
            FOLDERS.append(os.getcwd())


def use_folders(file: str | os.PathLike | None) -> None:
    """Add those of FOLDERS that contain ``file``, code that the user has named, to ``sys.path``.

    Of the other folders nothing may be imported later, such as a file with the name of a library that is not installed.
    """
    if file:
        inside = [pathlib.Path(os.path.abspath(file)), pathlib.Path(os.path.realpath(file))]
        used = (folder for folder in FOLDERS if any(path.is_relative_to(folder) for path in inside))
        sys.path.extend(folder for folder in used if folder not in sys.path)


@contextlib.contextmanager
def importable_folders() -> Iterator[None]:
    """Have FOLDERS at the end of ``sys.path`` while code that the user has named is imported."""
    added = [folder for folder in FOLDERS if folder not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            with contextlib.suppress(ValueError):  # the code may have removed it
                sys.path.remove(folder)


def check_name(name: str, option: str) -> str:
    """Return the module of ``module:function``, the value of an option.

    Raises:
      ValueError: the name has another form, or the module is in the standard library.
    """
    module, _, function = name.partition(":")
    if not all(map(str.isidentifier, [*module.split("."), function])):
        raise ValueError(f"{option} is {name!r}; to use your own function, write module:function.")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"{option} is {name!r}; {module} is part of Python's standard library: give a module of your own."
        )
    return module


def file_of(module: str) -> str | None:
    """Return the file of a module without importing it; None if Python does not find the module.

    The file of a module without one, such as ``__main__`` in a notebook, is "".
    """
    if module in sys.modules:
        found = getattr(sys.modules[module], "__file__", None)
        return os.path.realpath(found) if found and os.path.exists(found) else ""
    importlib.invalidate_caches()
    top, *inner = module.split(".")
    find = importlib.machinery.PathFinder.find_spec
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next(filter(None, (finder.find_spec(top, None) for finder in finders)), None) or find(top, FOLDERS)
    for name in inner:
        path = spec and spec.submodule_search_locations
        spec = find(name, list(path)) if path else None
    if not spec:
        return None
    places = [place for place in (spec.origin, *(spec.submodule_search_locations or ())) if place]
    return next((os.path.realpath(place) for place in places if os.path.exists(place)), "".join(places[:1]))


class Ended(ValueError):
    """Error of a module that ended the program during its import."""


def imported(module: str) -> ModuleType:
    """Import a user's module.

    Raises:
      Ended: the module ended the program, such as a script without ``if __name__ == "__main__"``.
    """
    use_folders(file_of(module))
    try:
        with importable_folders():
            return importlib.import_module(module)
    except SystemExit as ended:
        raise Ended(f"{module} ended the program (exit status {ended.code}) when it was imported.") from None


def own(name: str, option: str) -> Callable:
    """Import the function ``module:function``, the value of an option.

    Callers check the names in saved configs first (:mod:`contrastive_jax.config.approval`). The module itself
    must define the function, without ``**`` arguments, so that its options can be listed.

    Raises:
      ValueError: the module or the function is missing, or the function is not defined that way.
    """
    module, function = check_name(name, option), name.partition(":")[2]
    try:
        if name in UNKNOWN:
            raise ModuleNotFoundError(name=module)
        loaded = imported(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that this one imports is missing
        raise ValueError(
            f"{option} is {name!r}; Python finds no module {error.name!r} (its folder may be missing"
            " from PYTHONPATH)."
        ) from None
    if not hasattr(loaded, function) and module == "__main__":
        raise ValueError(
            f"{option} is {name!r}; the function was defined in the script or notebook that started the"
            " run. Define it here first, or move it to a file that both import."
        )
    if not hasattr(loaded, function):
        raise ValueError(
            f"{option} is {name!r}; {module} has no function {function!r}."
            f" {near(function, functions_of(loaded))}"
        )
    if not callable(value := getattr(loaded, function)):
        raise ValueError(f"{option} is {name!r}; it must be a function, not a {type(value).__name__}.")
    if (home := getattr(value, "__module__", None)) not in (module, _main_of_worker(module)):
        raise ValueError(
            f"{option} is {name!r}; {function} is defined in {home}, not in {module}: write"
            f" {home}:{function}, or wrap it in a function of {module}."
        )
    if any(p.kind is p.VAR_KEYWORD for p in _parameters(value)):
        raise ValueError(
            f"{option} is {name!r}; {function} takes arbitrary options (**): list its options after a"
            " *, with their defaults."
        )
    return value


def _main_of_worker(module: str) -> str:
    """Return the module's name in a worker process, which differs for ``__main__``."""
    return "__mp_main__" if module == "__main__" else module


def _parameters(function: Callable) -> Collection[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except ValueError:  # a C function without a signature has no options
        return ()


def placed(error: Exception, function: Callable) -> str:
    """Return the first line of an error's message, with the last line of the function's file in its trace.

    The error's type comes first unless it is a ValueError. An error without such a line, and a ValueError
    raised in that file itself, have the message alone.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)  # None: a callable object
    file = getattr(code, "co_filename", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    text = str(error).strip().partition("\n")[0]
    if not lines or isinstance(error, ValueError) and frames[-1].filename == file:
        return text
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{text} ({file}, line {lines[-1]})"


def find(module: ModuleType, name: Any, option: str) -> Callable | None:
    """Return a module's public function, or a user's function, by name; None if the module lacks it.

    Raises:
      ValueError: an unknown ``module:function``.
    """
    return own(name, option) if is_own(name) else functions_of(module).get(name)


def near(name: str, known: Any) -> str:
    """Return ``Did you mean 'x'?`` with the closest known name, ignoring case, or else all known names."""
    lowered = {str(one).lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), lowered, 1)
    return f"Did you mean {lowered[close[0]]!r}?" if close else f"Allowed: {', '.join(sorted(known))}."


def call(function: Callable, path: str, section: Mapping[str, Any], *context: Any) -> Any:
    """Call ``function(*context, **section)`` after checking the names of its options.

    The function gets only as much of the context as it has positional parameters.

    Args:
      function: function that the section configures; its options are keyword-only.
      path: the section's name in the config, for messages.
      section: the options.
      *context: values that a config cannot hold (lengths, other functions).

    Raises:
      ValueError: an unknown option (the message shows the function's signature), a missing one, or a TypeError
        or ValueError of the function itself.
    """
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        context = context[: len(positional)]
    check_options(function, path, section)
    section = {name: _as_float(value, function, name) for name, value in section.items()}
    try:
        return function(*context, **section)
    except (TypeError, ValueError) as error:  # TypeError: a value of the wrong type
        raise ValueError(str(error) if path in str(error) else f"{path}: {error}") from error


def _as_float(value: Any, function: Callable, option: str) -> Any:
    """Return a whole number that is too large for JAX's int32 as a float, for an option that takes floats."""
    if type(value) is not int or abs(value) < LARGEST:
        return value
    kind = basic(parameters(function)[option].annotation) if option in parameters(function) else set()
    return float(value) if float in kind and int not in kind else value


def check_options(function: Callable, path: str, section: Mapping[str, Any]) -> None:
    """Refuse unknown and missing options of a function; arguments as in :func:`call`.

    Raises:
      ValueError: an unknown or missing option.
    """
    parameters = inspect.signature(function).parameters.values()
    options = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)  # make_views, whose preset checks the rest
    shown = f"{function.__name__}({', '.join(str(p.replace(annotation=p.empty)) for p in options)})"
    for name in section:
        if name not in {p.name for p in options} and not open_ended:
            hint = near(name, [p.name for p in options]) if options else "It takes no options."
            raise ValueError(f"{path}.{name} is not an option of {shown}. {hint}")
    for p in options:
        if p.default is p.empty and p.name not in section:
            raise ValueError(f"{path}.{p.name} is missing; it is required by {shown}.")


def pick(module: ModuleType | None, path: str, section: Mapping[str, Any], *context: Any) -> Any:
    """Call the function that ``section["name"]`` names with the rest of the section.

    Args:
      module: module whose public functions the section may name besides users' functions; None: only those.
      path: the section's name in the config, for messages.
      section: ``name`` and the function's options.
      *context: as in :func:`call`.

    Raises:
      ValueError: the function is unknown; or as in :func:`call`.
    """
    section = dict(section)
    name = section.pop("name", "")
    if module is None:
        function = own(name, f"{path}.name")
    elif (found := find(module, name, f"{path}.name")) is None:
        raise ValueError(f"{path}.name is {name!r}, which is unknown. {near(name, functions_of(module))}")
    else:
        function = found
    return call(function, path, section, *context)


class Section(NamedTuple):
    """Function that a config names, with its options."""

    path: str  # "temperature", for messages
    name: str  # name of the function in the config; "" if the section's function is fixed
    function: Callable
    options: Mapping[str, Any]

    def __call__(self, *context: Any) -> Any:
        """Call the function, as :func:`call` does."""
        return call(self.function, self.path, self.options, *context)


def options_of(*functions: Callable) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of some functions; of equal names the first counts."""
    options: dict[str, inspect.Parameter] = {}
    for function in functions:
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                options.setdefault(name, parameter)
    return options


def variant(
    build: Callable,
    name: str,
    module: str,
    source: str,
    context: Iterable[str],
    options: Iterable[inspect.Parameter],
    differs: Mapping[str, Any],
    path: str = "",
) -> Callable:
    """Return a variant of ``build`` that a config may name, with a signature that shows its defaults.

    Args:
      build: function to call with the context, every option, and the other values in ``differs``.
      name: name of the variant.
      module: name of the module that the variant belongs to.
      source: docstring of the variant.
      context: names of the positional arguments.
      options: keyword-only parameters of the variant.
      differs: defaults that replace those of ``options``; values that are not among ``options`` are fixed.
      path: prefix of an option's name in error messages.
    """
    parameter = inspect.Parameter
    shown = [parameter(argument, parameter.POSITIONAL_OR_KEYWORD) for argument in context]
    shown += [option.replace(default=differs.get(option.name, option.default)) for option in options]
    signature = inspect.Signature(shown)

    def function(*arguments, **given):
        check(function, given, path)
        bound = signature.bind(*arguments, **given)
        bound.apply_defaults()
        return build(*bound.args, **{**differs, **bound.kwargs})

    function.__name__ = function.__qualname__ = name
    function.__module__, function.__doc__ = module, source
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function
