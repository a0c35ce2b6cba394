"""Encoders, heads and batch norm as pure functions: the only place that knows flax."""

from contrastive_jax.models.network import Network, network

__all__ = ["Network", "network"]
