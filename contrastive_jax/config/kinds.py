"""Kinds of values: what a function's annotations say of its options."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LARGEST = 2**31  # whole numbers lie below it: lengths and steps are int32
OVERFLOW = 3.4e38  # and numbers below this: float32


@functools.cache
def parameters(function: Callable) -> dict[str, inspect.Parameter]:
    """Return the options of a function: its keyword-only parameters."""
    return {name: p for name, p in signature(function).items() if p.kind is p.KEYWORD_ONLY}


def signature(function: Callable) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; annotations that cannot be read (names for type checkers) say nothing."""
    try:
        return inspect.signature(function, eval_str=True).parameters
    except NameError:
        given = inspect.signature(function).parameters
        return {
            name: p.replace(annotation=p.empty) if isinstance(p.annotation, str) else p
            for name, p in given.items()
        }


def takes(option: inspect.Parameter, value: Any) -> bool:
    """Return whether a value is of an option's kind, by its annotation, else by its default."""
    if option.annotation is not option.empty:
        return fits(value, option.annotation)
    return option.default in (None, option.empty) or fits(value, type(option.default))


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a kind, an annotation: bool, int, float, str, tuples and unions of these.

    Numbers are finite, and lie where int32 and float32 do; a whole number is a number, True is none.
    """
    if kind is Any:
        return True
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is tuple or kind is list or (origin in (tuple, list, Sequence) and not parts):  # of anything
        return isinstance(value, list | tuple)  # config.json knows lists alone
    if origin in (tuple, list, Sequence):
        if not isinstance(value, list | tuple):
            return False
        each = [parts[0]] * len(value) if origin in (list, Sequence) or parts[1:] == (...,) else parts
        return len(each) == len(value) and all(map(fits, value, each))
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is int:
        return isinstance(value, int) and abs(value) < LARGEST
    if kind is float:
        return isinstance(value, int | float) and abs(value) < OVERFLOW  # NaN is not
    return not isinstance(kind, type) or isinstance(value, kind)


def words(kind: Any) -> str:
    """Return in words what values of a kind are."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(words, parts))
    if origin in (tuple, list, Sequence) and parts:
        many = origin in (list, Sequence) or parts[1:] == (...,)
        inside = {int: "whole numbers", float: "finite numbers", str: "texts"}.get(parts[0], "values")
        return f"a tuple of {inside}" if many else f"a tuple of {len(parts)} {inside}"
    return _WORDS.get(origin or kind, getattr(kind, "__name__", str(kind)))


_WORDS = {
    bool: "True or False",
    int: "a whole number below 2**31",
    float: "a finite number below 3.4e38",
    str: "a text",
    types.NoneType: "None",
    tuple: "a tuple",
    list: "a tuple",
}
