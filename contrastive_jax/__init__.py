"""Contrastive representation learning in JAX: five papers as one family."""

__version__ = "0.1.0"
