"""Arguments of the losses for one's own loop: what is no array of embeddings, or no temperature, is a sentence."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.types import Array, fit_32_bits, narrow_ids


def check_arrays(function: str, **arrays: Any) -> None:
    """Refuse arguments that are no arrays of floating numbers; None is not given.

    Raises:
      ValueError: one sentence that names the argument and what it is.
    """
    for name, value in arrays.items():
        if value is None:
            continue
        kind = type(value)
        if not isinstance(value, jax.Array | np.ndarray):
            hint = (
                " Of a torch tensor: tensor.detach().numpy()." if kind.__module__.startswith("torch") else ""
            )
            raise ValueError(
                f"{function}.{name} is a {kind.__name__}; it must be an array of NumPy or JAX, [rows, D].{hint}"
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"{function}.{name} is {value.dtype}; it must be floating.")


def ids_of(function: str, **ids: Any) -> list[Array | None]:
    """Return ids of rows as arrays of JAX that are equal where those given are; None stays.

    JAX would cut ids of more than 32 bits without a word: known ones, hashes, are numbered anew, together.

    Raises:
      ValueError: one sentence that names the argument: it is no array of ids, or traced beside ids of more bits.
    """
    given = {
        name: value if isinstance(value, jax.Array) else np.asarray(value)
        for name, value in ids.items()
        if value is not None
    }
    for name, value in given.items():
        if value.dtype.kind not in "iub":
            raise ValueError(f"{function}.{name} is {value.dtype}; it must be ids, whole numbers.")
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
            f"{function}.{wide[0]} has ids of more than 32 bits, and {traced[0]} is traced: number both anew before"
            " jit, numpy.unique(ids, return_inverse=True)[1]."
        )
    kinds = {name: value.dtype for name, value in given.items()}
    if traced and jnp.uint32 in kinds.values() and any(kind.kind == "i" for kind in kinds.values()):
        raise ValueError(
            f"{function}: ids are {', '.join(f'{name} {kind}' for name, kind in kinds.items())}, and {traced[0]} is"
            " traced: give all of them as uint32, or as int32."
        )
    if wide:
        narrow = narrow_ids(*(np.asarray(value) for value in given.values()))
        given = dict(zip(given, narrow, strict=True))
    return [jnp.asarray(given[name]) if name in given else None for name in ids]


def whole_number(argument: str, value: Any) -> int:
    """Return a whole number of at least 1, Python's or NumPy's.

    Raises:
      ValueError: one sentence that names the argument and its value.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{argument} is {value!r}; it must be a whole number of at least 1.")
    return int(value)


def check_scalar(argument: str, value: Any) -> None:
    """Refuse what is neither a number nor an array without axes.

    Raises:
      ValueError: one sentence that names the argument and what it is.
    """
    shape = getattr(value, "shape", None)
    if isinstance(value, bool) or not isinstance(value, numbers.Real) and shape != ():
        what = f"is {value!r}" if shape is None else f"has shape {shape}"
        raise ValueError(f"{argument} {what}; it must be a number or a scalar array.")


def positive_or_nan(temperature: Array) -> Array:
    """Return a temperature that is known when the program runs only: NaN where it is not positive."""
    return jnp.where(temperature > 0, temperature, jnp.nan)
