"""Kinds of values: what an option takes, by the annotation that it has in a signature.

Bounds and choices stand there: ``tau: Positive = 0.1``, ``schedule: Literal["constant", "cosine"] = "constant"``. One
matcher, :func:`fits`, compares a value with its annotation, and one sentence refuses it (:func:`refusal`): of a config
when it is resolved, of a call from Python where the function is :func:`checked`.
"""

import dataclasses
import difflib
import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

LARGEST = 2**31  # whole numbers lie below it: lengths and steps are int32
OVERFLOW = 3.4e38  # and numbers below this: float32


# ------------------------------------------------------------------------------------------------ bounds


@dataclasses.dataclass(frozen=True)
class Bound:
    """One end of a range, as annotation of a number."""

    value: float

    def __str__(self) -> str:
        return f"{self.words} {self.value:.12g}"

    def holds(self, number: float) -> bool:
        """Return whether a number is on the right side of it."""
        raise NotImplementedError

    words = ""


class Gt(Bound):
    """Greater than."""

    words = "above"

    def holds(self, number: float) -> bool:
        """Return whether a number is above it."""
        return number > self.value


class Ge(Bound):
    """Greater than or equal to."""

    words = "at least"

    def holds(self, number: float) -> bool:
        """Return whether a number is at least that."""
        return number >= self.value


class Lt(Bound):
    """Less than."""

    words = "below"

    def holds(self, number: float) -> bool:
        """Return whether a number is below it."""
        return number < self.value


class Le(Bound):
    """Less than or equal to."""

    words = "at most"

    def holds(self, number: float) -> bool:
        """Return whether a number is at most that."""
        return number <= self.value


Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
PositiveFraction = Annotated[float, Gt(0), Le(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]


class Steps:
    """The mark of a duration: text in a config, "10 epochs", and a number of steps in a call."""


Duration = Annotated[int | str, Steps]


# ------------------------------------------------------------------------------------------------ signatures


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


# ------------------------------------------------------------------------------------------------ values


def takes(option: inspect.Parameter, value: Any) -> bool:
    """Return whether a value is of an option's kind, by its annotation, else by its default."""
    if option.annotation is not option.empty:
        return fits(value, option.annotation)
    return option.default in (None, option.empty) or fits(value, type(option.default))


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a kind, an annotation: bool, int, float, str, choices, tuples and unions of these.

    Numbers are finite, lie where int32 and float32 do and within the bounds of their annotation; a whole number is a
    number, True is none.
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


def is_duration(kind: Any) -> bool:
    """Return whether values of a kind are durations, or tuples of these."""
    return kind == Duration or Duration in typing.get_args(kind)


def basic(kind: Any) -> set[Any]:
    """Return the types of a kind's values, without bounds and choices: {float} of ``Positive``, {tuple} of a tuple."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return basic(parts[0])
    if origin is Literal:
        return set(map(type, parts))
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(basic, parts))
    return {origin or kind}


# ------------------------------------------------------------------------------------------------ sentences


def refusal(option: str, value: Any, kind: Any) -> str:
    """Return the sentence that refuses a value which does not fit a kind; "" where it fits."""
    if fits(value, kind):
        return ""
    return f"{option} is {short(value)}; it must be {_wanted(value, kind)}.{_nearest(value, kind)}"


def words(kind: Any) -> str:
    """Return in words what values of a kind are."""
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
    """Return the bounds and choices of a kind, briefly; "" for one that has none."""
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
    """Return what is allowed: of a number that is out of bounds the bounds alone."""
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
    """Return alternatives in words, with a comma where one of them has an ``and`` or a list."""
    texts = list(texts)
    return (", or " if any(re.search(" and |,|at least", text) for text in texts) else " or ").join(texts)


def _nearest(value: Any, kind: Any) -> str:
    """Return which choice a text may have meant."""
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
    """Return in words what several values of a kind are."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind == Duration:
        return "durations"
    if origin is Annotated:
        return _bounded("whole numbers" if parts[0] is int else "numbers", parts[1:])
    if origin is Literal:
        return f"values, each {words(kind)}"
    return {int: "whole numbers", float: "finite numbers", str: "texts"}.get(kind, "values")


def short(value: Any) -> str:
    """Return a value as it is written, cut where it is long."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


_WORDS = {
    bool: "True or False",
    int: "a whole number below 2**31",
    float: "a finite number below 3.4e38",
    str: "a text",
    types.NoneType: "None",
    tuple: "a tuple",
    list: "a tuple",
}
_SHORT = {types.NoneType: "None", bool: "True or False", int: "a whole number", float: "a number"}


# ------------------------------------------------------------------------------------------------ calls

F = TypeVar("F", bound=Callable)


def check(function: Callable, options: Mapping[str, Any], path: str = "") -> None:
    """Refuse options, given by name, that do not fit the annotations of a function.

    Raises:
      ValueError: one sentence, with ``path`` before the option's name.
    """
    known = parameters(function)
    check_values({name: known[name].annotation for name in options if name in known}, options, path)


def check_values(kinds: Mapping[str, Any], values: Mapping[str, Any], path: str = "") -> None:
    """Refuse values, by name, that do not fit their kinds.

    Arrays of numbers count as the numbers, paths as texts and sets as tuples; of what is traced nothing is known.

    Raises:
      ValueError: one sentence, with ``path`` before the name.
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
    """Return what a config would hold in the place of a value that Python can give."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, tuple | list | set | frozenset):
        return tuple(map(_plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def checked(path: str = "") -> Callable[[F], F]:
    """Let a function refuse options that do not fit their annotations, whoever calls it; see :func:`check`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*arguments, **options):
            check(function, options, path)
            return function(*arguments, **options)

        return typing.cast(F, called)

    return decorate
