"""Optimizers, learning-rate schedules, and the gradient's signal-to-noise ratio."""

from contrastive_jax.optim.optimizers import COMMON_NAMES, EXCLUDED, OPTIMIZERS, optimizer
from contrastive_jax.optim.schedules import SCALINGS, SCHEDULES, Schedule, schedule

__all__ = [
    "COMMON_NAMES",
    "EXCLUDED",
    "OPTIMIZERS",
    "SCALINGS",
    "SCHEDULES",
    "Schedule",
    "optimizer",
    "schedule",
]
