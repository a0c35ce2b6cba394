"""Encoders, heads and batch norm as pure functions: the only package that uses flax."""

from contrastive_jax.models.adapters import Encoder, from_nnx
from contrastive_jax.models.network import Network, network
from contrastive_jax.models.norm import BatchNorm
from contrastive_jax.models.towers import MODULES, SECOND, joined, of_tower, second_seed, towers

__all__ = [
    "MODULES",
    "SECOND",
    "BatchNorm",
    "Encoder",
    "Network",
    "from_nnx",
    "joined",
    "network",
    "of_tower",
    "second_seed",
    "towers",
]
