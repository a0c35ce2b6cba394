"""Encoders, heads and batch norm as pure functions: the only package that uses flax."""

from contrastive_jax.models.adapters import Encoder, from_nnx
from contrastive_jax.models.network import Network, network
from contrastive_jax.models.norm import BatchNorm

__all__ = ["BatchNorm", "Encoder", "Network", "from_nnx", "network"]
