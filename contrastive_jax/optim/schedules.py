"""Learning-rate schedules of the field. A batch is counted in images, not in views."""

import itertools
import math
from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp

from contrastive_jax.kinds import Count, CountOrZero, Fraction, NonNegative, checked
from contrastive_jax.types import Array

Schedule = Callable[[Array | int], Array]


@checked("schedule")
def schedule(
    *,
    name: Literal["cosine", "linear", "step", "constant"] = "cosine",
    learning_rate: NonNegative,
    total_steps: Count,
    batch_size: Count,
    warmup_steps: CountOrZero = 0,
    scaling: Literal["linear", "sqrt", "none"] = "linear",
    milestones: tuple[int, ...] = (),
    decay: Fraction = 0.1,
    end_factor: Fraction = 0.0,
    per_epoch: bool = False,
    steps_per_epoch: CountOrZero = 0,
) -> Schedule:
    """Return the learning rate as a function of the step: linear warm-up from 0 to the peak, then a decay.

    The peak is ``learning_rate * batch_size / 256`` (``scaling="linear"``), ``learning_rate *
    sqrt(batch_size)`` (``"sqrt"``) or ``learning_rate`` (``"none"``); 0.3 linear and 0.075 sqrt meet at
    4,096 images. Step ``s < warmup_steps`` has ``peak * s / warmup_steps``. After that

    * ``"cosine"``: half a cosine from the peak to ``end_factor * peak`` over the steps that remain, and
      constant beyond ``total_steps`` (SimCLR, ``WarmUpAndCosineDecay``, where ``end_factor`` is 0);
    * ``"linear"``: a straight line between the same two points;
    * ``"step"``: ``peak * decay ** (number of milestones reached)``, milestones in steps since the start
      (MoCo v1: a tenth at epochs 120 and 160 of 200);
    * ``"constant"``: the peak.

    With ``per_epoch`` the decay moves only where an epoch of ``steps_per_epoch`` begins (MoCo v2's
    cosine); the warm-up still moves at each step. Raises ValueError for a value out of range.

    Args:
      name: how the learning rate falls after the warm-up: cosine, linear, step or constant.
      learning_rate: of a batch of 256 images (scaling=linear), of 1 image (sqrt), or of any batch (none).
      total_steps: length of the run.
      batch_size: images a step.
      warmup_steps: steps of the linear warm-up from 0.
      scaling: how the peak grows with the batch: linear (batch / 256), sqrt (its root) or none.
      milestones: when a step schedule decays, as durations since the start.
      decay: factor of a step schedule at each milestone.
      end_factor: what cosine and linear end at, as a share of the peak.
      per_epoch: the decay moves at the beginning of an epoch only (MoCo v2), of as many whole steps as come nearest.
      steps_per_epoch: read by per_epoch.
    """
    if warmup_steps >= total_steps:
        raise ValueError(
            f"schedule.warmup_steps is {warmup_steps}; it must be below schedule.total_steps, {total_steps}."
        )
    if name == "step" and not milestones:
        raise ValueError("schedule.milestones is empty; a 'step' schedule needs the steps at which it decays")
    if any(later <= earlier for earlier, later in itertools.pairwise((0, *milestones))):
        raise ValueError(f"schedule.milestones is {milestones}; the steps must be positive and increasing")
    if per_epoch and steps_per_epoch < 1:
        raise ValueError(
            f"schedule.steps_per_epoch is {steps_per_epoch}; with schedule.per_epoch it must be at least 1."
        )

    scale = {"linear": batch_size / 256, "sqrt": math.sqrt(batch_size), "none": 1.0}[scaling]
    peak = learning_rate * scale
    decay_steps = total_steps - warmup_steps

    def learning_rate_at(step: Array | int) -> Array:
        step = jnp.asarray(step)
        if step.dtype.kind in "iu" and (step.dtype.kind == "u" or step.dtype.itemsize < 4):
            step = step.astype(jnp.int32)  # it would wrap below 0, or beyond its largest
        at = step // steps_per_epoch * steps_per_epoch if per_epoch else step
        # Whole steps are counted as integers: float32 is exact only up to 2**24 of them.
        left = jnp.clip(total_steps - at, 0, decay_steps) / decay_steps
        if name == "cosine":
            # sin(x)**2 is (1 - cos(2x)) / 2 without the cancellation at the end of the run.
            factor = end_factor + (1 - end_factor) * jnp.sin(jnp.pi / 2 * left) ** 2
        elif name == "linear":
            factor = end_factor + (1 - end_factor) * left
        elif name == "step":
            factor = decay ** jnp.searchsorted(jnp.array(milestones), at, side="right")
        else:
            factor = jnp.ones_like(left)
        return peak * jnp.where(step < warmup_steps, step / max(warmup_steps, 1), factor)

    return learning_rate_at
