"""Evaluation of representations by named protocols; every result records its protocol.

Evaluators of features read only arrays, ``[n, F]`` and ``[n]``. Those that train on images (augmentation,
fine-tuning) read the encoder's weights and train copies.
"""

from contrastive_jax.evaluators.columns import (
    ROWS,
    RUN_SEED,
    build,
    find,
    known,
    layers_of,
    of_pairs,
    per_run,
    prepare,
    resized,
    section_of,
)
from contrastive_jax.evaluators.evaluation_data import EvalSpec

__all__ = [
    "EvalSpec",
    "ROWS",
    "RUN_SEED",
    "build",
    "find",
    "known",
    "layers_of",
    "of_pairs",
    "per_run",
    "prepare",
    "resized",
    "section_of",
]
