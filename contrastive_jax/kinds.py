"""Kinds of option values, defined by annotations with bounds and choices.

Examples are ``tau: Positive = 0.1`` and ``schedule: Literal["constant", "cosine"] = "constant"``. :func:`fits`
compares a value with its annotation, and :func:`refusal` returns the error message: for configs when they are
resolved, and for calls from Python if the function is :func:`checked`.
"""

import dataclasses
import difflib
import functools
import inspect
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

LARGEST = 2**31  # integers are below it: lengths and steps are int32
OVERFLOW = 3.4e38  # floats are below it: float32


# ------------------------------------------------------------------------------------------------ bounds


@dataclasses.dataclass(frozen=True)
class Bound:
    """Bound of a range, used in the annotation of a number."""

    value: float
    words: ClassVar[str]
    holds_between: ClassVar[Callable[[float, float], bool]]

    def __str__(self) -> str:
        return f"{self.words} {self.value:.12g}"

    def holds(self, number: float) -> bool:
        """Return whether a number is within the bound."""
        return type(self).holds_between(number, self.value)


class Gt(Bound):
    """Greater than."""

    words, holds_between = "above", operator.gt


class Ge(Bound):
    """Greater than or equal to."""

    words, holds_between = "at least", operator.ge


class Lt(Bound):
    """Less than."""

    words, holds_between = "below", operator.lt


class Le(Bound):
    """Less than or equal to."""

    words, holds_between = "at most", operator.le


Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
PositiveFraction = Annotated[float, Gt(0), Le(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]


class Steps:
    """Marker of a duration: text in a config, such as "10 epochs", and a number of steps in a call."""


Duration = Annotated[int | str, Steps]


# ------------------------------------------------------------------------------------------------ signatures


@functools.cache
def parameters(function: Callable) -> dict[str, inspect.Parameter]:
    """Return the options of a function: its keyword-only parameters."""
    return {name: p for name, p in signature(function).items() if p.kind is p.KEYWORD_ONLY}


def signature(function: Callable) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; text annotations are dropped if one of them cannot be evaluated."""
    try:
        return inspect.signature(function, eval_str=True).parameters
    except NameError:
        given = inspect.signature(function).parameters
        return {
            name: p.replace(annotation=p.empty) if isinstance(p.annotation, str) else p
            for name, p in given.items()
        }


# ------------------------------------------------------------------------------------------------ values


def takes(option: inspect.Parameter, value: Any) -> bool:
    """Return whether a value fits an option's annotation or, without one, the type of its default."""
    if option.annotation is not option.empty:
        return fits(value, option.annotation)
    return option.default in (None, option.empty) or fits(value, type(option.default))


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value fits an annotation: bool, int, float, str, choices, tuples and unions of these.

    Numbers must be finite, in the range of int32 or float32, and within the bounds of their annotation. An
    integer fits float; True fits neither int nor float.
    """
    if kind is Any:
        return True
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return fits(value, parts[0]) and all(b.holds(value) for b in parts[1:] if isinstance(b, Bound))
    if origin is Literal:
        return any(value == choice for choice in parts if type(choice) is type(value))
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is tuple or kind is list or (origin in (tuple, list, Sequence) and not parts):  # of any elements
        return isinstance(value, list | tuple)  # config.json has lists only
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
        return isinstance(value, int | float) and abs(value) < OVERFLOW  # False for NaN
    return not isinstance(kind, type) or isinstance(value, kind)


def is_duration(kind: Any) -> bool:
    """Return whether a kind is a duration, or a tuple or union with one."""
    return kind == Duration or Duration in typing.get_args(kind)


def basic(kind: Any) -> set[Any]:
    """Return the types of a kind's values, without bounds and choices: {float} for ``Positive``."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return basic(parts[0])
    if origin is Literal:
        return set(map(type, parts))
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(basic, parts))
    return {origin or kind}


# ------------------------------------------------------------------------------------------------ messages


def refusal(option: str, value: Any, kind: Any) -> str:
    """Return the error message for a value that does not fit a kind; "" if it fits."""
    if fits(value, kind):
        return ""
    return f"{option} is {short(value)}; it must be {_wanted(value, kind)}.{_nearest(value, kind)}"


def words(kind: Any) -> str:
    """Return a description of a kind's values in words."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind == Duration:
        return "a duration"
    if origin is Annotated:
        return _bounded("a whole number" if parts[0] is int else "a number", parts[1:])
    if origin is Literal:
        return str(parts[0]) if len(parts) == 1 else f"one of {', '.join(map(str, parts))}"
    if origin in (typing.Union, types.UnionType):
        return _either(map(words, parts))
    if origin in (tuple, list, Sequence) and parts:
        many = origin in (list, Sequence) or parts[1:] == (...,)
        if not many and any(part != parts[0] for part in parts):
            return f"a tuple of {len(parts)} values: {', '.join(map(words, parts))}"
        return f"a tuple of {'' if many else f'{len(parts)} '}{_plural(parts[0])}"
    return _WORDS.get(origin or kind, getattr(kind, "__name__", str(kind)))


def limits(kind: Any) -> str:
    """Return the bounds and choices of a kind in short form; "" if it has none."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _range(parts[1:])
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        known = [limits(part) or str(_SHORT.get(part, "")) for part in parts]
        return _either(known) if any(map(limits, parts)) else ""
    if origin in (tuple, list, Sequence) and parts:
        each = list(dict.fromkeys(limits(part) for part in parts if part is not ...))
        return (f"each {each[0]}" if len(each) == 1 else ", ".join(each)) if all(each) else ""
    return ""


def _wanted(value: Any, kind: Any) -> str:
    """Return a description of the allowed values; for a number out of bounds, only the bounds."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated and isinstance(value, int | float) and not isinstance(value, bool):
        if fits(value, parts[0]):
            return _range(parts[1:])
        if parts[0] is float or isinstance(value, int):  # NaN, or too large
            return words(parts[0])
    if origin in (typing.Union, types.UnionType):
        return _either(dict.fromkeys(_wanted(value, part) for part in parts))
    return _SHORT[int] if kind is int and not isinstance(value, int) else words(kind)


def _either(texts: Iterable[str]) -> str:
    """Join alternatives by "or", with a comma if one of them has an "and" or a list."""
    texts = list(texts)
    return (", or " if any(re.search(" and |,|at least", text) for text in texts) else " or ").join(texts)


def _nearest(value: Any, kind: Any) -> str:
    """Return the suggestion of a similar choice for a text; "" if there is none."""
    texts = [text for text in _choices(kind) if isinstance(text, str)]
    near = difflib.get_close_matches(value.lower(), texts, 1) if isinstance(value, str) else []
    return f" Did you mean {near[0]!r}?" if near else ""


def _choices(kind: Any) -> tuple[Any, ...]:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return tuple(choice for part in parts for choice in _choices(part))
    return parts if origin is Literal else ()


def _bounded(noun: str, bounds: Sequence[Any]) -> str:
    within = _range(bounds)
    return f"{noun} {'of ' if within.startswith('at ') else ''}{within}"


def _range(bounds: Sequence[Any]) -> str:
    """Return bounds in words: ``from 0 to 1``, ``above 0``, ``at least 0 and below 1``."""
    bounds = [bound for bound in bounds if isinstance(bound, Bound)]
    if [type(bound) for bound in bounds] == [Ge, Le]:
        return f"from {bounds[0].value:.12g} to {bounds[1].value:.12g}"
    return " and ".join(map(str, bounds))


def _plural(kind: Any) -> str:
    """Return a description of several values of a kind in words."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind == Duration:
        return "durations"
    if origin is Annotated:
        return _bounded("whole numbers" if parts[0] is int else "numbers", parts[1:])
    if origin is Literal:
        return f"values, each {words(kind)}"
    return {int: "whole numbers", float: "finite numbers", str: "strings"}.get(kind, "values")


def short(value: Any) -> str:
    """Return the repr of a value, shortened to 60 characters."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


_WORDS = {
    bool: "True or False",
    int: "a whole number below 2**31",
    float: "a finite number below 3.4e38",
    str: "a string",
    types.NoneType: "None",
    tuple: "a tuple",
    list: "a tuple",
}
_SHORT = {types.NoneType: "None", bool: "True or False", int: "a whole number", float: "a number"}


# ------------------------------------------------------------------------------------------------ calls

F = TypeVar("F", bound=Callable)
T = TypeVar("T")


def check(function: Callable, options: Mapping[str, Any], path: str = "") -> None:
    """Check a function's options, given by name, against its annotations.

    Raises:
      ValueError: an option does not fit; the message has ``path`` before the option's name.
    """
    known = parameters(function)
    check_values({name: known[name].annotation for name in options if name in known}, options, path)


def check_values(kinds: Mapping[str, Any], values: Mapping[str, Any], path: str = "") -> None:
    """Check values, given by name, against their kinds.

    Arrays count as their numbers, paths as texts and sets as tuples; traced values are not checked.

    Raises:
      ValueError: a value does not fit; the message has ``path`` before its name.
    """
    for name, kind in kinds.items():
        value = values[name]
        try:
            value = _plain(value)
        except TypeError:  # traced
            continue
        if kind is not inspect.Parameter.empty:
            if refused := refusal(f"{path}.{name}" if path else name, value, kind):
                raise ValueError(refused)


def _plain(value: Any) -> Any:
    """Return a Python value in the form of a config: arrays as numbers, paths as texts, sets as tuples."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, tuple | list | set | frozenset):
        return tuple(map(_plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def checked(path: str = "") -> Callable[[F], F]:
    """Return a decorator that checks the options of every call against the annotations, see :func:`check`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*arguments, **options):
            check(function, options, path)
            return function(*arguments, **options)

        return typing.cast(F, called)

    return decorate


def with_options(record: type, path: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator for a function of several that share options, the fields of the dataclass ``record``.

    The function takes the record as its only positional argument. Its callers give the fields by name, like its
    own options, and all are checked, see :func:`check`. Signature and docstring list the fields after them.
    """
    shared = parameters(record)
    entries = [inspect.cleandoc(part.__doc__ or "").partition("Args:")[2] for part in record.__mro__[:-1]]

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def called(**options):
            check(called, options, path)
            given = {name: options.pop(name) for name in shared if name in options}
            return function(record(**given), **options)

        own = parameters(function)
        called.__signature__ = inspect.Signature([*own.values(), *shared.values()])  # type: ignore[attr-defined]
        described, errors, raised = inspect.cleandoc(function.__doc__ or "").partition("\n\nRaises:")
        called.__doc__ = "".join([described, *map(str.rstrip, entries), errors, raised])
        return called

    return decorate
