"""Gradient signal-to-noise ratio over the steps of a run, with optax-like state; off by default.

The state has two numbers per parameter; while the metric is off, there is neither state nor computation.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.kinds import Decay, checked
from contrastive_jax.types import Array, PyTree


class GradientSNR(NamedTuple):
    """Functions ``init(params) -> state`` and ``apply(state, gradient) -> (metrics, state)``."""

    init: Callable[[PyTree], PyTree]
    apply: Callable[[PyTree, PyTree], tuple[dict[str, Array], PyTree]]


@checked("gradient_snr")
def gradient_snr(*, decay: Decay = 0.0) -> GradientSNR:
    """Track |mean| / std of every parameter's gradient over recent steps (Less can be more, section 3, fig. 4).

    Mean and variance are bias-corrected exponential moving averages: after t steps the gradient of step s has
    the weight ``(1 - decay) decay^(t - s) / (1 - decay^t)``, and the variance is ``E[g^2] - E[g]^2`` under
    these weights, computed without that difference. The metrics are mean and standard deviation of the ratio
    over all scalar parameters of encoder, projector and predictor, not of probe or critic. Parameters whose
    gradient has not varied are left out; without any others, as at the first step, the metrics are nan.

    A gradient of pure noise also has a ratio, on average ``sqrt(2 (1 - decay) / (pi (1 + decay)))`` in a long
    run: 0.06 at 0.99, 0.18 at 0.9. In the first steps of a run, a few parameters with nearly equal gradients
    can have huge ratios and dominate the metrics: read them after about 1 / (1 - decay) steps.

    Args:
      decay: decay of the moving averages; 0: off. 0.99 averages about 100 steps. The paper gives no value.

    Raises:
      ValueError: ``decay`` out of range.
    """
    if not decay:
        return GradientSNR(lambda params: (), lambda state, gradient: ({}, state))

    def init(params):
        def zeros(x: Array) -> Array:  # squares of half-precision gradients would round to 0
            return jnp.zeros_like(x, dtype=jnp.promote_types(x.dtype, jnp.float32))

        moments = {moment: jax.tree.map(zeros, _of_model(params)) for moment in ("mean", "variance")}
        return moments | {"steps": jnp.zeros((), jnp.int32)}

    def apply(state, gradient):
        steps = state["steps"] + 1
        # Weights of the latest gradient and of all earlier ones: exactly 1 and 0 at the first step.
        whole = jnp.expm1(steps * math.log(decay))
        latest = jnp.where(steps == 1, 1.0, (decay - 1.0) / whole)
        before = decay * jnp.expm1((steps - 1) * math.log(decay)) / whole
        surprise = jax.tree.map(jnp.subtract, _of_model(gradient), state["mean"])
        state = {
            "mean": jax.tree.map(lambda m, s: (m + latest * s).astype(m.dtype), state["mean"], surprise),
            "variance": jax.tree.map(
                lambda v, s: (before * (v + latest * s * s)).astype(v.dtype), state["variance"], surprise
            ),
            "steps": steps,
        }
        return _over_parameters(state["mean"], state["variance"]), state

    return GradientSNR(init, apply)


def _of_model(params: PyTree) -> PyTree:
    if not isinstance(params, Mapping):
        return params
    return {module: tree for module, tree in params.items() if module not in ("probe", "critic")}


def _over_parameters(mean: PyTree, variance: PyTree) -> dict[str, Array]:
    """Compute the mean and standard deviation of |mean| / std over the parameters with std > 0."""
    pairs = list(zip(jax.tree.leaves(mean), jax.tree.leaves(variance), strict=True))
    ratio = [jnp.where(v > 0, jnp.abs(m) / jnp.sqrt(jnp.where(v > 0, v, 1)), 0) for m, v in pairs]
    count = sum(jnp.sum(v > 0) for _, v in pairs)
    average = jnp.asarray(sum(map(jnp.sum, ratio))) / count  # 0 / 0 is nan if no parameter has a ratio
    spread = sum(
        jnp.sum(jnp.where(v > 0, (r - average) ** 2, 0)) for r, (_, v) in zip(ratio, pairs, strict=True)
    )
    return {"gradient_snr": average, "gradient_snr_std": jnp.sqrt(spread / count)}
