"""Gradient signal-to-noise over the steps of a run: state in the manner of optax, off by default.

Off, there is no state and nothing is computed. On, it holds two numbers a parameter.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.kinds import Decay, checked
from contrastive_jax.types import Array, PyTree


class GradientSNR(NamedTuple):
    """``init(params) -> state``; ``apply(state, gradient) -> (metrics, state)``."""

    init: Callable[[PyTree], PyTree]
    apply: Callable[[PyTree, PyTree], tuple[dict[str, Array], PyTree]]


@checked("gradient_snr")
def gradient_snr(*, decay: Decay = 0.0) -> GradientSNR:
    """Follow |mean| / std of every parameter's gradient over the recent steps (Less can be more, section 3, figure 4).

    Mean and variance are exponential moving averages of the first two moments, bias-corrected: after t steps
    the gradient of step s weighs ``(1 - decay) decay^(t - s) / (1 - decay^t)``, and the variance is
    ``E[g^2] - E[g]^2`` under these weights, computed without that difference. Each single parameter of encoder,
    projector and predictor, not of probe or critic, has its ratio, but for one whose gradient has not varied (at the
    first step, all): it is left out, and where that leaves none the metrics are nan.

    A gradient of pure noise has a ratio too, on average ``sqrt(2 (1 - decay) / (pi (1 + decay)))`` in a long run:
    0.06 at 0.99, 0.18 at 0.9. In a run's first steps, when some parameters' few gradients happen to be nearly equal,
    single ratios are huge and rule the metrics: read them after some 1 / (1 - decay) steps.

    Args:
      decay: of the moving averages, in [0, 1); 0 is off. The paper does not print its own; 0.99 looks back some
        hundred steps.

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
        # The latest gradient's weight and that of all before: at the first step 1 and 0 to the last bit.
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
    """Compute the mean and standard deviation of |mean| / std over the parameters that have one."""
    pairs = list(zip(jax.tree.leaves(mean), jax.tree.leaves(variance), strict=True))
    ratio = [jnp.where(v > 0, jnp.abs(m) / jnp.sqrt(jnp.where(v > 0, v, 1)), 0) for m, v in pairs]
    count = sum(jnp.sum(v > 0) for _, v in pairs)
    average = jnp.asarray(sum(map(jnp.sum, ratio))) / count  # 0 / 0 is nan: there is no ratio
    spread = sum(
        jnp.sum(jnp.where(v > 0, (r - average) ** 2, 0)) for r, (_, v) in zip(ratio, pairs, strict=True)
    )
    return {"gradient_snr": average, "gradient_snr_std": jnp.sqrt(spread / count)}
