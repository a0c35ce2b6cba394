"""Arguments of the losses for one's own loop: what is no array of embeddings, or no temperature, is a sentence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.types import Array


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


def positive_or_nan(temperature: Array) -> Array:
    """Return a temperature that is known when the program runs only: NaN where it is not positive."""
    return jnp.where(temperature > 0, temperature, jnp.nan)
