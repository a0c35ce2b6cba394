"""Encoders, heads and batch norm as pure functions: the only package that uses flax."""

from contrastive_jax.models.encoder import Encoder
from contrastive_jax.models.from_nnx import from_nnx
from contrastive_jax.models.network import Network, network
from contrastive_jax.models.norm import BatchNorm

__all__ = ["BatchNorm", "Encoder", "Network", "from_nnx", "network"]
