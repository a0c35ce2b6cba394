"""Margins that are added to a query's contrast."""

import math
from collections.abc import Callable

import jax.numpy as jnp

from contrastive_jax.kinds import Positive, checked
from contrastive_jax.losses.contrastive import check_option
from contrastive_jax.types import Array

Margin = Callable[[Array], Array]  # number of negatives [B, V] -> margin [B, V]


def none() -> Margin:
    """No margin."""
    return lambda count: jnp.zeros(count.shape)


@checked("margin")
def eqco(*, alpha: Positive) -> Margin:
    """EqCo's margin (Zhu et al. 2020, eq. 5): log(alpha / K_i) for a query with K_i negatives.

    Adding log(alpha / K) to every negative's logit equals subtracting m / tau from the positive's,
    with m = tau log(alpha / K). alpha = K is InfoNCE.

    Args:
      alpha: effective number of negatives; alpha = K means no margin.
    """
    check_option("margin.alpha", alpha, lambda x: 0 < float(x) < math.inf, "positive and finite")
    alpha = float(alpha)  # two integers would be divided in float32, even with float64 enabled
    return lambda count: jnp.log(alpha / jnp.maximum(count, 1))
