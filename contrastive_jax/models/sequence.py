"""Encoders of examples other than images: a perceptron, convolutions over time, a transformer."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contrastive_jax.models.vit import TransformerBlock, positions

Array = jax.Array


def _exact(x: Array, dtype: Any) -> Array:
    """Return features in float32 (float64 if that is the compute dtype)."""
    return x.astype(jnp.promote_types(dtype, jnp.float32))


class MLP(nn.Module):
    """Linear layers, each with ReLU, from flattened examples ``[N, ...]`` to features ``[N, width]``."""

    layers: int
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return features."""
        x = x.reshape(len(x), -1).astype(self.dtype)
        for layer in range(self.layers):
            x = nn.relu(nn.Dense(self.width, dtype=self.dtype, name=f"dense{layer}")(x))
        return _exact(x, self.dtype)


class Conv1D(nn.Module):
    """Dilated residual blocks and the maximum over time: ``[N, T]`` or ``[N, T, C]`` to ``[N, width]``."""

    layers: int
    width: int
    kernel: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return features."""
        if x.ndim not in (2, 3) or not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(
                f"encoder.name=conv1d reads float [n, T] or [n, T, C], not {x.dtype} {list(x.shape)}."
            )
        x = x.reshape(*x.shape[:2], -1).astype(self.dtype)
        x = nn.Dense(self.width, dtype=self.dtype, name="steps")(x)
        for layer in range(self.layers):
            y = x
            for part in (1, 2):
                conv = nn.Conv(
                    self.width,
                    (self.kernel,),
                    kernel_dilation=2**layer,
                    dtype=self.dtype,
                    name=f"conv{layer}_{part}",
                )
                y = conv(nn.gelu(y))
            x = x + y
        return _exact(x.max(1), self.dtype)


class Transformer(nn.Module):
    """Transformer of token ids ``[N, T]`` or series ``[N, T, C]``, averaged over positions to ``[N, dim]``."""

    vocabulary: int
    dim: int
    layers: int
    heads: int
    hidden: int
    padding_id: int
    dtype: Any
    remat: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return features."""
        ids = jnp.issubdtype(x.dtype, jnp.integer)
        if x.ndim != (2 if ids else 3):
            raise ValueError(
                f"encoder.name=transformer reads ids [n, T] or float [n, T, C], not {x.dtype} {list(x.shape)}."
            )
        if ids and not self.vocabulary:
            raise ValueError("encoder.vocabulary is 0; set it to the number of token ids.")
        kept = x != self.padding_id if ids else jnp.ones(x.shape[:2], bool)
        if ids:
            x = nn.Embed(self.vocabulary, self.dim, dtype=self.dtype, name="tokens")(x)
        else:
            x = nn.Dense(self.dim, dtype=self.dtype, name="steps")(x.astype(self.dtype))
        x = x + jnp.asarray(positions(x.shape[1], 1, self.dim), self.dtype)
        block = nn.remat(TransformerBlock) if self.remat else TransformerBlock
        for layer in range(self.layers):
            x = block(self.heads, self.hidden, self.dtype, name=f"block{layer}")(x, kept[:, None, None, :])
        x = nn.LayerNorm(name="norm")(_exact(x, self.dtype))
        weight = kept[..., None].astype(x.dtype)
        return (x * weight).sum(1) / jnp.maximum(weight.sum(1), 1)
