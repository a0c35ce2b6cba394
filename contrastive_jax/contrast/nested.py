"""Matryoshka loss: a loss at several widths of one embedding."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from contrastive_jax.contrast.arguments import check_arrays, check_scalar, whole_number
from contrastive_jax.contrast.contrastive_loss import contrastive_loss
from contrastive_jax.types import Array


def matryoshka_loss(
    a: Array,
    b: Array,
    loss: str | Callable[..., Array] = "info_nce",
    temperature: float | Array | Callable[[Array], Array] = 0.1,
    *,
    widths: Sequence[int],
    weights: Sequence[float] | None = None,
    queue: Array | None = None,
    **options: Any,
) -> Array:
    """Return the weighted sum of a loss over several widths d, each on the first d entries of every embedding.

    Such embeddings can be truncated: their first entries are embeddings too. Each width is normalised
    separately; its loss is :func:`contrastive_jax.contrastive_loss`, which gets all other arguments.
    Source: Matryoshka representation learning (Kusupati et al., 2022).

    Args:
      a: [N, D] embeddings, not normalised.
      b: [N, D] embeddings of the other view of the same examples.
      loss: as in ``contrastive_loss``.
      temperature: as in ``contrastive_loss``, the same at all widths.
      widths: numbers of leading entries, each at most D; list D for the whole embedding.
      weights: one weight per width; None: 1 for each.
      queue: [M, D] further candidates, truncated like the embeddings.
      **options: options of ``contrastive_loss`` and of the loss.

    Returns:
      One value per query, as from ``contrastive_loss``.

    Raises:
      ValueError: the message lists the argument, its value and the allowed values.

    Examples:
      >>> import jax.numpy as jnp
      >>> from contrastive_jax import matryoshka_loss
      >>> a = jnp.array([[1.0, 0.2, 0.4], [-0.3, 1.0, 0.1], [-1.0, -0.8, 0.3]])
      >>> b = jnp.array([[0.9, -0.1, 0.2], [0.2, 1.1, 0.3], [-0.6, -1.0, 0.2]])
      >>> matryoshka_loss(a, b, "info_nce", 0.5, widths=(2, 3)).shape
      (6,)
    """
    check_arrays("matryoshka_loss", a=a, b=b, queue=queue)
    if not isinstance(widths, list | tuple) or not widths:
        raise ValueError(f"matryoshka_loss.widths is {widths!r}; it must be whole numbers such as (64, 128).")
    most = a.shape[-1] if a.ndim else 0
    for width in widths:
        if whole_number("matryoshka_loss.widths", width) > most:
            raise ValueError(
                f"matryoshka_loss.widths contains {width}; it must be at most {most}, the width of the"
                " embeddings."
            )
    weights = [1.0] * len(widths) if weights is None else weights
    if not isinstance(weights, list | tuple) or len(weights) != len(widths):
        raise ValueError(
            f"matryoshka_loss.weights is {weights!r}; it must be one number for each of {len(widths)} widths."
        )
    values = [
        check_scalar("matryoshka_loss.weights", weight)
        * contrastive_loss(
            *(a[..., :width], b[..., :width], loss, temperature),
            **{"queue": None if queue is None else queue[..., :width]} | options,
        )
        for width, weight in zip(widths, weights, strict=True)
    ]
    return jnp.sum(jnp.stack(values), axis=0)
