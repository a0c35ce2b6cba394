"""Second encoder, of the second arrays of pairs: none, or one of those of encoder.name.

A function takes the options of batch norm and the dtype of the computation, as those of :mod:`encoders` do.
"""

import inspect
from collections.abc import Callable

from contrastive_jax.lookup import functions_of, options_of, variant
from contrastive_jax.models import encoders
from contrastive_jax.models.norm import Norm


def none(norm: Norm, dtype) -> None:
    """Return no second encoder: examples are not pairs."""
    return None


def _second(name: str, function: Callable) -> Callable:
    """Return an encoder's function for the section ``second_encoder``."""
    parameters = inspect.signature(function).parameters.values()
    context = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    options = options_of(function).values()
    return variant(function, name, __name__, function.__doc__ or "", context, options, {}, "second_encoder")


globals().update({name: _second(name, function) for name, function in functions_of(encoders).items()})
