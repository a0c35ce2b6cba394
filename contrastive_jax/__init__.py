"""Contrastive representation learning in JAX: five papers as one family."""

import importlib

__version__ = "0.1.0"

# Loaded on first access, so that importing the package stays light.
_PUBLIC = {
    "assert_conforms": "contrastive_jax.conformance",
    "check": "contrastive_jax.conformance",
    "contrastive_loss": "contrastive_jax.contrast.contrastive_loss",
    "evaluate": "contrastive_jax.commands.evaluate",
    "in_microbatches": "contrastive_jax.contrast.microbatch",
    "load_encoder": "contrastive_jax.training.encoder",
    "macl_temperature": "contrastive_jax.contrast.contrastive_loss",
    "matryoshka_loss": "contrastive_jax.contrast.nested",
    "ntxent": "contrastive_jax.contrast.pairwise",
    "sigmoid_loss": "contrastive_jax.contrast.pairwise",
    "sincere": "contrastive_jax.contrast.pairwise",
    "soft_target_loss": "contrastive_jax.contrast.soft_targets",
    "train": "contrastive_jax.training.loop",
}
_IN_PROGRAMS_OF_OTHERS = (
    *("contrastive_loss", "in_microbatches", "matryoshka_loss", "ntxent", "sigmoid_loss", "sincere"),
    "soft_target_loss",
)
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str):
    if name in _PUBLIC:
        if name in _IN_PROGRAMS_OF_OTHERS:
            importlib.import_module("contrastive_jax.native.compiler").set_flag()
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_PUBLIC))
