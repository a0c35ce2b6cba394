"""Learning-rate schedules: a linear warm-up from 0 to the peak, then a decay.

The peak is ``learning_rate * batch_size / 256`` (``scaling="linear"``), ``learning_rate * sqrt(batch_size)``
(``"sqrt"``) or ``learning_rate`` (``"none"``); 0.3 with linear and 0.075 with sqrt are equal at 4,096 images.
The rate at step ``s < warmup`` is ``peak * s / warmup``. With ``per_epoch`` the decay changes only at the
beginning of an epoch (MoCo v2's cosine); the warm-up still changes at every step. Batch sizes count images, not
views. Functions take durations in steps; a config has them as text, such as "10 epochs".

Args:
  total_steps: length of the run in steps.
  batch_size: number of images per step.
  steps_per_epoch: length of an epoch in steps, used by ``per_epoch``.
  learning_rate: peak learning rate for a batch of 256 (``scaling=linear``), of 1 (sqrt), or any batch (none).
  scaling: scaling of the peak with batch size: linear (batch / 256), sqrt (square root of the batch) or none.
  warmup: duration of the linear warm-up from 0.
  milestones: durations since the start at which the rate decays.
  decay: factor at each milestone.
  end_factor: final learning rate as a share of the peak.
  per_epoch: whether the rate changes only at the beginning of an epoch (MoCo v2), rounded to whole steps.
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
    """Half-cosine decay from the peak to ``end_factor * peak`` over the steps after the warm-up, then constant.

    With ``end_factor`` 0, this is SimCLR's ``WarmUpAndCosineDecay``.
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
    """Linear decay from the peak to ``end_factor * peak`` over the steps after the warm-up, then constant."""

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
    """Peak rate, multiplied by ``decay`` at every milestone (MoCo v1: 0.1 at epochs 120 and 160 of 200)."""
    if not milestones:
        raise ValueError(
            "schedule.milestones is empty; a 'step' schedule needs the steps at which it decays."
        )
    check_values({"milestones": tuple[int, ...]}, {"milestones": milestones}, "schedule")
    steps = tuple(map(int, milestones))  # the check refuses texts
    if any(later <= earlier for earlier, later in itertools.pairwise((0, *steps))):
        raise ValueError(f"schedule.milestones is {milestones}; the steps must be positive and increasing.")

    def factor(at: Array, left: Array) -> Array:
        return decay ** jnp.searchsorted(jnp.array(steps), at, side="right")

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
    """Constant peak rate after the warm-up."""
    lengths = Lengths(total_steps, batch_size)
    return _rate(lambda at, left: jnp.ones_like(left), lengths, learning_rate, scaling, warmup, False)


class Lengths(NamedTuple):
    """Lengths of a run, as used by schedules."""

    total_steps: Count
    batch_size: Count
    steps_per_epoch: CountOrZero = 0


def _rate(
    factor: Callable[[Array, Array], Array],
    lengths: Lengths,
    learning_rate: float,
    scaling: str,
    warmup: int | str,
    per_epoch: bool,
) -> Schedule:
    """Return a schedule: a linear warm-up, then the peak times ``factor(step, left)``.

    ``left`` is the remaining share of the decay.

    Raises:
      ValueError: a length is out of range, or the warm-up is as long as the run.
    """
    total_steps, batch_size, steps_per_epoch = lengths
    check_values(typing.get_type_hints(Lengths, include_extras=True), lengths._asdict(), "schedule")
    check_values({"warmup": CountOrZero}, {"warmup": warmup}, "schedule")
    start = int(warmup)  # the check refuses texts
    if start >= total_steps:
        raise ValueError(f"schedule.warmup is {warmup} steps; it must be below total_steps, {total_steps}.")
    if per_epoch and steps_per_epoch < 1:
        raise ValueError(
            f"schedule.steps_per_epoch is {steps_per_epoch}; with schedule.per_epoch it must be at least 1."
        )
    scale = {"linear": batch_size / 256, "sqrt": math.sqrt(batch_size), "none": 1.0}[scaling]
    peak = learning_rate * scale
    decay_steps = total_steps - start

    def learning_rate_at(step: Array | int) -> Array:
        step = jnp.asarray(step)
        if step.dtype.kind in "iu" and (step.dtype.kind == "u" or step.dtype.itemsize < 4):
            step = step.astype(jnp.int32)  # otherwise it would wrap below 0 or overflow
        at = step // steps_per_epoch * steps_per_epoch if per_epoch else step
        # Steps remain integers here: float32 is exact only up to 2**24.
        left = jnp.clip(total_steps - at, 0, decay_steps) / decay_steps
        return peak * jnp.where(step < start, step / max(start, 1), factor(at, left))

    return learning_rate_at
