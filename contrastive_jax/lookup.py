"""Names to functions: a config section is the keyword arguments of the function that it names.

So there is no table to edit: a new temperature rule is a function in ``contrast/temperature.py`` and its name in a
config. A misspelt name or option is an error that shows what there is.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def functions_of(module: ModuleType) -> dict[str, Callable]:
    """The public functions that a module defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def near(name: str, known: Any) -> str:
    """``Did you mean 'x'?`` for a name that is not among ``known``, or the list of them."""
    close = difflib.get_close_matches(str(name), list(known), 1)
    return f"Did you mean {close[0]!r}?" if close else f"Allowed: {', '.join(sorted(known))}."


def call(function: Callable, path: str, section: Mapping[str, Any], *context: Any) -> Any:
    """``function(*context, **section)``; an option that it does not have is an error with its signature.

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
        raise ValueError(str(error) if path in str(error) else f"{path}: {error}") from None


def pick(module: ModuleType, path: str, section: Mapping[str, Any], *context: Any) -> Any:
    """Calls the function of ``module`` that ``section["name"]`` names with the rest of the section."""
    section = dict(section)
    name, known = section.pop("name", ""), functions_of(module)
    if name not in known:
        raise ValueError(f"{path}.name is {name!r}. {near(name, known)}")
    return call(known[name], path, section, *context)
