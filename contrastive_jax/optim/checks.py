"""Refusals of options, each a sentence."""

import difflib
import math
from collections.abc import Iterable


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError for a value that is not allowed."""
    if value not in allowed:
        raise ValueError(
            f"{option} is {value!r}; it must be one of {', '.join(allowed)}{nearest(value, allowed)}"
        )


def in_range(option: str, value: float, holds: bool, rule: str) -> None:
    """Raise ValueError for a number that does not hold the rule, or is not finite."""
    if not (holds and math.isfinite(value)):
        raise ValueError(f"{option} is {value}; it must be {rule}")


def nearest(value: object, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)``, or nothing."""
    matches = difflib.get_close_matches(str(value), sorted(allowed), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
