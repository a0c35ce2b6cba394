"""Names to functions: a config section is the keyword arguments of the function that it names.

A name is that of a public function of the axis' own module, so there is no table to edit: a new temperature rule is a
function in ``contrast/temperature.py`` and its name in a config. Or it is ``module:function``, a function of one's own
that is found where Python finds modules. A misspelt name or option is an error that shows what there is.
"""

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


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
    """Return whether a name is ``module:function``."""
    return isinstance(name, str) and ":" in name


def own(name: str, option: str) -> Callable:
    """Return the function that ``module:function``, the value of an option, names.

    A config that somebody else saved may name any: those of Python itself are refused, and :func:`call` hands a
    function keyword-only options alone.

    Raises:
      ValueError: there is no such module, or no such function in it.
    """
    module, _, function = name.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{option} is {name!r}: {module} is Python's own module, none of yours.")
    if not module or not function or module.startswith("."):
        raise ValueError(f"{option} is {name!r}; a function of your own is module:function.")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # one that the module itself imports
        raise ValueError(
            f"{option} is {name!r}: there is no module {error.name!r} where Python looks for modules (its"
            " folder may be missing from PYTHONPATH)."
        ) from None
    if not hasattr(loaded, function) and module == "__main__":
        raise ValueError(
            f"{option} is {name!r}: the run was made by a script or a notebook that defines {function}. Define it here"
            " before, or move it to a file that both import."
        )
    if not hasattr(loaded, function):
        raise ValueError(
            f"{option} is {name!r}: {module} has no function {function!r}. {near(function, functions_of(loaded))}"
        )
    if not callable(value := getattr(loaded, function)):
        raise ValueError(f"{option} is {name!r}: that is a {type(value).__name__}, no function.")
    return value


def placed(error: Exception, function: Callable) -> str:
    """Return what an error of a function says and, unless the function raised it itself, where in its file it arose."""
    code = getattr(inspect.unwrap(function), "__code__", None)  # None: an object that is called
    file = getattr(code, "co_filename", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    text = str(error).strip().partition("\n")[0]
    if not lines or isinstance(error, ValueError) and frames[-1].filename == file:
        return text
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{text} ({file}, line {lines[-1]})"


def find(module: ModuleType, name: Any, option: str) -> Callable | None:
    """Return a public function of a module by its name, or one's own; None where the module has none of the name.

    Raises:
      ValueError: a ``module:function`` that there is not.
    """
    return own(name, option) if is_own(name) else functions_of(module).get(name)


def near(name: str, known: Any) -> str:
    """Return ``Did you mean 'x'?`` for a name that is not among ``known``, in any case, or the list of them."""
    lowered = {str(one).lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), lowered, 1)
    return f"Did you mean {lowered[close[0]]!r}?" if close else f"Allowed: {', '.join(sorted(known))}."


def call(function: Callable, path: str, section: Mapping[str, Any], *context: Any) -> Any:
    """Call ``function(*context, **section)``; an option that it does not have is an error with its signature.

    Args:
      function: what the section configures; its options are keyword-only.
      path: the section's name in the config, for messages.
      section: the options.
      *context: what a config cannot hold (lengths, other functions).

    Raises:
      ValueError: unknown or missing option; or what the function itself finds wrong.
    """
    parameters = inspect.signature(function).parameters.values()
    options = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)  # it checks the rest itself
    shown = f"{function.__name__}({', '.join(str(p) for p in options)})"
    for name in section:
        if name not in {p.name for p in options} and not open_ended:
            hint = near(name, [p.name for p in options]) if options else "It takes none."
            raise ValueError(f"{path}.{name}: no such option of {shown}. {hint}")
    for p in options:
        if p.default is p.empty and p.name not in section:
            raise ValueError(f"{path}.{p.name} is missing: {shown}.")
    try:
        return function(*context, **section)
    except (TypeError, ValueError) as error:  # a TypeError: a value of a type that it cannot reckon with
        raise ValueError(str(error) if path in str(error) else f"{path}: {error}") from error


def pick(module: ModuleType | None, path: str, section: Mapping[str, Any], *context: Any) -> Any:
    """Call the function of ``module``, or of one's own, that ``section["name"]`` names with the rest of the section.

    Args:
      module: whose public functions the section may name; None: one's own alone.
      path: the section's name in the config, for messages.
      section: ``name`` and the function's options.
      *context: as in :func:`call`.

    Raises:
      ValueError: there is no such function; or as :func:`call`.
    """
    section = dict(section)
    name = section.pop("name", "")
    function = own(name, f"{path}.name") if module is None else find(module, name, f"{path}.name")
    if function is None:
        raise ValueError(f"{path}.name is {name!r}. {near(name, functions_of(module))}")
    return call(function, path, section, *context)
