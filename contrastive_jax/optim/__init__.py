"""Optimizers, learning-rate schedules, and the gradient's signal-to-noise ratio."""

from contrastive_jax.optim.optimizers import COMMON_NAMES, EXCLUDED, optimizer
from contrastive_jax.optim.schedules import Schedule, schedule

__all__ = [
    "COMMON_NAMES",
    "EXCLUDED",
    "Schedule",
    "optimizer",
    "schedule",
]
