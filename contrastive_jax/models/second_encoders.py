"""Second encoder, of the second arrays of pairs: none, or one of those of encoder.name.

A function takes the options of batch norm and the dtype of the computation, as those of :mod:`encoders` do.
"""

from contrastive_jax.lookup import functions_of, options_of, variant
from contrastive_jax.models import encoders
from contrastive_jax.models.norm import Norm


def none(norm: Norm, dtype) -> None:
    """Return no second encoder: examples are not pairs."""
    return None


for _name, _function in functions_of(encoders).items():
    globals()[_name] = variant(
        _function,
        _name,
        __name__,
        _function.__doc__ or "",
        ("norm", "dtype"),
        options_of(_function).values(),
        {},
        "second_encoder",
    )
