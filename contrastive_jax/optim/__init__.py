"""Optimizers, learning-rate schedules, and the gradient's signal-to-noise ratio."""

from contrastive_jax.optim.optimizers import COMMON_NAMES, EXCLUDED, adam, adamw, lars, sgd
from contrastive_jax.optim.schedules import Schedule, constant, cosine, linear, step

__all__ = [
    "COMMON_NAMES",
    "EXCLUDED",
    "Schedule",
    "adam",
    "adamw",
    "constant",
    "cosine",
    "lars",
    "linear",
    "sgd",
    "step",
]
