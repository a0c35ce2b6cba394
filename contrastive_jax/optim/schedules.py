"""Learning-rate schedules of the field: a linear warm-up from 0 to the peak, then a decay.

The peak is ``learning_rate * batch_size / 256`` (``scaling="linear"``), ``learning_rate * sqrt(batch_size)``
(``"sqrt"``) or ``learning_rate`` (``"none"``); 0.3 linear and 0.075 sqrt meet at 4,096 images. Step ``s < warmup`` has
``peak * s / warmup``. With ``per_epoch`` the decay moves only where an epoch of ``steps_per_epoch`` begins (MoCo v2's
cosine); the warm-up still moves at each step. A batch is counted in images, not in views. A function takes durations in
steps; a config has them as text, "10 epochs".

Args:
  total_steps: length of the run.
  batch_size: images a step.
  steps_per_epoch: read by per_epoch.
  learning_rate: of a batch of 256 images (scaling=linear), of 1 image (sqrt), or of any batch (none).
  scaling: how the peak grows with the batch: linear (batch / 256), sqrt (its root) or none.
  warmup: duration of the linear warm-up from 0.
  milestones: when the rate decays, as durations since the start.
  decay: factor at each milestone.
  end_factor: share of the peak that the rate ends at.
  per_epoch: the decay moves at the beginning of an epoch only (MoCo v2), of as many whole steps as come nearest.
"""

import itertools
import math
import typing
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp

from contrastive_jax.kinds import (
    Count,
    CountOrZero,
    Duration,
    Fraction,
    NonNegative,
    check_values,
    checked,
)
from contrastive_jax.types import Array

Schedule = Callable[[Array | int], Array]
Scaling = Literal["linear", "sqrt", "none"]


@checked("schedule")
def cosine(
    total_steps: int,
    batch_size: int,
    steps_per_epoch: int = 0,
    *,
    learning_rate: NonNegative,
    scaling: Scaling = "linear",
    warmup: Duration,
    end_factor: Fraction = 0.0,
    per_epoch: bool = False,
) -> Schedule:
    """Half a cosine from the peak to ``end_factor * peak`` over the steps after the warm-up, and constant beyond.

    SimCLR's ``WarmUpAndCosineDecay``, where ``end_factor`` is 0.
    """

    def factor(at: Array, left: Array) -> Array:
        # sin(x)**2 is (1 - cos(2x)) / 2 without the cancellation at the end of the run.
        return end_factor + (1 - end_factor) * jnp.sin(jnp.pi / 2 * left) ** 2

    lengths = Lengths(total_steps, batch_size, steps_per_epoch)
    return _rate(factor, lengths, learning_rate, scaling, warmup, per_epoch)


@checked("schedule")
def linear(
    total_steps: int,
    batch_size: int,
    steps_per_epoch: int = 0,
    *,
    learning_rate: NonNegative,
    scaling: Scaling = "linear",
    warmup: Duration,
    end_factor: Fraction = 0.0,
    per_epoch: bool = False,
) -> Schedule:
    """A straight line from the peak to ``end_factor * peak`` over the steps after the warm-up, and constant beyond."""

    def factor(at: Array, left: Array) -> Array:
        return end_factor + (1 - end_factor) * left

    lengths = Lengths(total_steps, batch_size, steps_per_epoch)
    return _rate(factor, lengths, learning_rate, scaling, warmup, per_epoch)


@checked("schedule")
def step(
    total_steps: int,
    batch_size: int,
    steps_per_epoch: int = 0,
    *,
    learning_rate: NonNegative,
    scaling: Scaling = "linear",
    warmup: Duration,
    milestones: tuple[Duration, ...] = (),
    decay: Fraction = 0.1,
    per_epoch: bool = False,
) -> Schedule:
    """The peak times ``decay`` for every milestone that is reached (MoCo v1: a tenth at epochs 120 and 160 of 200)."""
    if not milestones:
        raise ValueError("schedule.milestones is empty; a 'step' schedule needs the steps at which it decays")
    if any(later <= earlier for earlier, later in itertools.pairwise((0, *milestones))):
        raise ValueError(f"schedule.milestones is {milestones}; the steps must be positive and increasing")

    def factor(at: Array, left: Array) -> Array:
        return decay ** jnp.searchsorted(jnp.array(milestones), at, side="right")

    lengths = Lengths(total_steps, batch_size, steps_per_epoch)
    return _rate(factor, lengths, learning_rate, scaling, warmup, per_epoch)


@checked("schedule")
def constant(
    total_steps: int,
    batch_size: int,
    *,
    learning_rate: NonNegative,
    scaling: Scaling = "linear",
    warmup: Duration,
) -> Schedule:
    """The peak, after the warm-up."""
    lengths = Lengths(total_steps, batch_size)
    return _rate(lambda at, left: jnp.ones_like(left), lengths, learning_rate, scaling, warmup, False)


class Lengths(NamedTuple):
    """What a schedule knows of the run."""

    total_steps: Count
    batch_size: Count
    steps_per_epoch: CountOrZero = 0


def _rate(
    factor: Callable[[Array, Array], Array],
    lengths: Lengths,
    learning_rate: float,
    scaling: str,
    warmup: int,
    per_epoch: bool,
) -> Schedule:
    """Return the learning rate of a step: a linear warm-up, then the peak times ``factor(step, left)``.

    ``left`` is the share of the decay that remains.

    Raises:
      ValueError: lengths out of range, a warm-up as long as the run.
    """
    total_steps, batch_size, steps_per_epoch = lengths
    check_values(typing.get_type_hints(Lengths, include_extras=True), lengths._asdict(), "schedule")
    check_values({"warmup": CountOrZero}, {"warmup": warmup}, "schedule")
    if warmup >= total_steps:
        raise ValueError(f"schedule.warmup is {warmup} steps; it must be below total_steps, {total_steps}.")
    if per_epoch and steps_per_epoch < 1:
        raise ValueError(
            f"schedule.steps_per_epoch is {steps_per_epoch}; with schedule.per_epoch it must be at least 1."
        )
    scale = {"linear": batch_size / 256, "sqrt": math.sqrt(batch_size), "none": 1.0}[scaling]
    peak = learning_rate * scale
    decay_steps = total_steps - warmup

    def learning_rate_at(step: Array | int) -> Array:
        step = jnp.asarray(step)
        if step.dtype.kind in "iu" and (step.dtype.kind == "u" or step.dtype.itemsize < 4):
            step = step.astype(jnp.int32)  # it would wrap below 0, or beyond its largest
        at = step // steps_per_epoch * steps_per_epoch if per_epoch else step
        # Whole steps are counted as integers: float32 is exact only up to 2**24 of them.
        left = jnp.clip(total_steps - at, 0, decay_steps) / decay_steps
        return peak * jnp.where(step < warmup, step / max(warmup, 1), factor(at, left))

    return learning_rate_at
