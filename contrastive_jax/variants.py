"""Functions that are rows of a table: another function, under a name, with defaults and a source of their own."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def options_of(*functions: Callable) -> dict[str, inspect.Parameter]:
    """Return the parameters of some functions that can be set by name, without those before them."""
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
) -> Callable:
    """Return ``build`` as a function of a module: what a config may name, with a signature that says its defaults.

    Args:
      build: is called with the context and every option, and with what ``differs`` beside them.
      name: of the function.
      module: whose function it is.
      source: its docstring.
      context: names of the positional arguments.
      options: keyword-only parameters that the function has.
      differs: defaults other than the parameters' own; what is no option is fixed.
    """
    parameter = inspect.Parameter
    shown = [parameter(argument, parameter.POSITIONAL_OR_KEYWORD) for argument in context]
    shown += [option.replace(default=differs.get(option.name, option.default)) for option in options]
    signature = inspect.Signature(shown)

    def function(*arguments, **given):
        bound = signature.bind(*arguments, **given)
        bound.apply_defaults()
        return build(*bound.args, **{**differs, **bound.kwargs})

    function.__name__ = function.__qualname__ = name
    function.__module__, function.__doc__ = module, source
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function
