"""The margin of a query against its negatives: what is added to its contrast."""

import math
from collections.abc import Callable

import jax.numpy as jnp

from contrastive_jax.kinds import Positive, checked
from contrastive_jax.losses.contrastive import check_option
from contrastive_jax.types import Array

Margin = Callable[[Array], Array]  # count [B, V] -> what is added to the contrast [B, V]


def none() -> Margin:
    """No margin."""
    return lambda count: jnp.zeros(count.shape)


@checked("margin")
def eqco(*, alpha: Positive) -> Margin:
    """EqCo's margin (Zhu et al. 2020, eq. 5): log(alpha / K_i), for the K_i negatives a query has.

    Adding log(alpha / K) to every negative's logit equals taking m / tau off the positive's, with
    m = tau log(alpha / K). alpha = K is InfoNCE.

    Args:
      alpha: number of negatives that the loss behaves as if it had; alpha = K is no margin.
    """
    check_option("margin.alpha", alpha, lambda x: 0 < float(x) < math.inf, "positive and finite")
    alpha = float(alpha)  # two integers would divide in float32, also where float64 exists
    return lambda count: jnp.log(alpha / jnp.maximum(count, 1))
