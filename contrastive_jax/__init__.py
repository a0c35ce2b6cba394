"""Contrastive representation learning in JAX: five papers as one family."""

import importlib

__version__ = "0.1.0"

# Loaded when first asked for, so that importing the package stays light.
_DOOR = {
    "alignment": "contrastive_jax.contrast.door",
    "contrastive_loss": "contrastive_jax.contrast.door",
    "in_microbatches": "contrastive_jax.contrast.microbatch",
    "load_encoder": "contrastive_jax.encoder",
    "ntxent": "contrastive_jax.contrast.pairwise",
    "sigmoid_loss": "contrastive_jax.contrast.pairwise",
}
__all__ = ["__version__", *_DOOR]


def __getattr__(name: str):
    if name in _DOOR:
        return getattr(importlib.import_module(_DOOR[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_DOOR))
