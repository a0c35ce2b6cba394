"""Properties that a loss declares beside its signature: multiples of 1 / tau, and what it does not support."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

LossFunction = TypeVar("LossFunction", bound=Callable)

# Reasons why a loss takes no margin (:mod:`contrastive_jax.contrast.margin`).
CANCELS = "cancels in the gradient of"  # its gradient is dc times a factor without c
HAS_ONE = "would be added to the margin that is part of"  # EqCo
MISREADS = "would bias the estimate of"  # c enters an estimate


class Declaration(NamedTuple):
    """Properties of a loss; see :func:`loss`."""

    multiples: Callable[..., tuple[float, ...]] | None = None
    no_margin: str = ""
    cosine_only: bool | Callable[..., bool] = False
    constant: bool = False
    vanishing: bool = False
    maximised: bool = False
    labels: Literal["", "one", "several"] = ""


def loss(
    *,
    multiples: Callable[..., tuple[float, ...]] | None = None,
    no_margin: str = "",
    cosine_only: bool | Callable[..., bool] = False,
    constant: bool = False,
    vanishing: bool = False,
    maximised: bool = False,
    labels: Literal["", "one", "several"] = "",
) -> Callable[[LossFunction], LossFunction]:
    """Declare properties of a loss that its signature does not show; a loss without any needs no decorator.

    Args:
      multiples: function of the loss's options that returns, for each of the loss's contrasts (its first
        parameters), the multiple of 1 / tau at which it is computed; None: one contrast, at 1 / tau.
      no_margin: why the loss takes no margin, as a verb phrase for messages, such as "cancels in the gradient
        of"; "": it takes one.
      cosine_only: whether the loss is defined for cosine scores only, or a function of the options that
        returns it.
      constant: whether the value is 1 by definition; runs then advise to watch InfoNCE.
      vanishing: whether the gradient has the factor sigmoid(c), which vanishes for a query that is separated
        from its negatives; such queries can raise the alarm ``saturation``.
      maximised: whether the function is an estimate that is maximised; its weight must then be at most 0.
      labels: labels of an example that the loss reads: "one" or "several"; "": none, or any number.

    Returns:
      A decorator that returns the same function.
    """
    declared = Declaration(multiples, no_margin, cosine_only, constant, vanishing, maximised, labels)

    def declare(function: LossFunction) -> LossFunction:
        function.declared = declared  # type: ignore[attr-defined]
        return function

    return declare


def declaration(function: Callable) -> Declaration:
    """Return what a loss declares."""
    return getattr(function, "declared", Declaration())
