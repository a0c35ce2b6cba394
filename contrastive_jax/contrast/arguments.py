"""Argument validation for the public loss functions."""

import numbers
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.types import Array, fit_32_bits, narrow_ids

REQUIRED = ("a", "b", "embeddings")


def check_arrays(function: str, **arrays: Any) -> None:
    """Refuse arguments that are not floating-point arrays; None is allowed for optional arguments.

    Raises:
      ValueError: the message names the argument and its type.
    """
    for name, value in arrays.items():
        if value is None and name not in REQUIRED:
            continue
        kind = type(value)
        if not isinstance(value, jax.Array | np.ndarray):
            hint = (
                " For a torch tensor, pass tensor.detach().numpy()."
                if kind.__module__.startswith("torch")
                else ""
            )
            raise ValueError(
                f"{function}.{name} is a {kind.__name__}; it must be a NumPy or JAX array, [rows, D].{hint}"
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"{function}.{name} is {value.dtype}; it must be floating.")


def row_numbers(places: Any, rows: int) -> Array:
    """Return numbers of rows as int32, those of no row as ``rows``.

    They keep their values, unlike ids, in any integer type: JAX truncates those of more than 32 bits, counts negative
    ones from the end, and cannot compare narrow ones with a larger number.
    """
    xp = jnp if isinstance(places, jax.Array) else np
    places = xp.asarray(places)
    places = places.astype(np.int32) if places.dtype == bool else places
    outside = places < 0
    if rows <= np.iinfo(places.dtype).max:
        outside |= places >= rows
    inside = xp.where(outside, 0, places).astype(np.int32)
    return jnp.asarray(xp.where(outside, rows, inside), jnp.int32)


def ids_of(function: str, **ids: Any) -> list[Array | None]:
    """Return row ids as JAX arrays in which equal ids stay equal; None stays None.

    JAX silently truncates ids of more than 32 bits (hashes), so all ids are then renumbered together.

    Raises:
      ValueError: an argument is not an array of integers, or one is traced and another has ids of more than 32
        bits or of the other signedness. The message names the argument.
    """
    given = {
        name: value if isinstance(value, jax.Array) else np.asarray(value)
        for name, value in ids.items()
        if value is not None
    }
    for name, value in given.items():
        if value.dtype.kind not in "iub":
            raise ValueError(f"{function}.{name} is {value.dtype}; it must be integer ids.")
    traced = [name for name, value in given.items() if isinstance(value, jax.core.Tracer)]
    wide = [
        name
        for name, value in given.items()
        if name not in traced
        and not np.can_cast(value.dtype, np.int32)  # narrow ones stay on the device
        and not fit_32_bits(np.asarray(value))
    ]
    if wide and traced:
        raise ValueError(
            f"{function}.{wide[0]} has ids of more than 32 bits, and {traced[0]} is traced; renumber"
            " both before jit with numpy.unique(ids, return_inverse=True)[1]."
        )
    kinds = {name: value.dtype for name, value in given.items()}
    if traced and jnp.uint32 in kinds.values() and any(kind.kind == "i" for kind in kinds.values()):
        raise ValueError(
            f"{function}: the types of ids are"
            f" {', '.join(f'{name} {kind}' for name, kind in kinds.items())}, and {traced[0]} is traced;"
            " pass all as uint32, or all as int32."
        )
    if wide:
        narrow = narrow_ids(*(np.asarray(value) for value in given.values()))
        given = dict(zip(given, narrow, strict=True))
    return [jnp.asarray(given[name]) if name in given else None for name in ids]


def whole_number(argument: str, value: Any) -> int:
    """Return a Python or NumPy integer of at least 1 as an int.

    Raises:
      ValueError: another value; the message names the argument and the value.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{argument} is {value!r}; it must be a whole number of at least 1.")
    return int(value)


def one_of(argument: str, value: Any, allowed: Collection[str]) -> None:
    """Refuse a value of any type that is not one of the allowed names.

    Raises:
      ValueError: the message lists the argument, its value and the allowed names.
    """
    if not (isinstance(value, str) and value in allowed):
        raise ValueError(f"{argument} is {value!r}; allowed: {', '.join(allowed)}.")


def check_scalar(argument: str, value: Any) -> Any:
    """Return a Python int as a float, another real number or a scalar array of real numbers unchanged.

    Raises:
      ValueError: another type, or a number outside float32's range. The message names the argument and the
        value.
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", np.dtype(float))
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number and (shape != () or not (jnp.issubdtype(dtype, jnp.number) and dtype.kind != "c")):
        what = f"is {value!r}" if shape is None else f"has shape {shape}" if shape else f"is {dtype}"
        raise ValueError(f"{argument} {what}; it must be a number or a scalar array.")
    if not number:
        return value
    largest = float(jnp.finfo(jnp.float32).max)
    if not -largest <= value <= largest:
        shown = f"{value!r}" if len(repr(value)) < 40 else f"a number of {len(repr(value))} digits"
        raise ValueError(f"{argument} is {shown}; it must be a finite number below 3.4e38.")
    return float(value) if isinstance(value, int) else value


def positive_or_nan(temperature: Array) -> Array:
    """Return the temperature, with NaN for values that are not positive (a traced value cannot raise)."""
    return jnp.where(temperature > 0, temperature, jnp.nan)


def real_array(name: str, value: Any) -> Array:
    """Return a user function's result as an array; raise ValueError unless it holds real numbers."""
    if isinstance(value, int | float | np.number | np.ndarray | jax.Array):
        value = jnp.asarray(value)
        if jnp.issubdtype(value.dtype, jnp.number) and not jnp.issubdtype(value.dtype, jnp.complexfloating):
            return value
        raise ValueError(f"{name} returned {value.dtype}; it must return an array of real numbers.")
    raise ValueError(f"{name} returned a {type(value).__name__}; it must return an array of real numbers.")
