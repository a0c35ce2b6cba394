"""Vision transformers (Dosovitskiy et al., 2021), with the fixed positions of MoCo v3 (Chen et al., 2021)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.models.resnet import check_images

Array = jax.Array
_linear = nn.initializers.xavier_uniform()
EPSILON = 1e-6  # of layer norm: Flax's default, and that of torchvision and timm


class TransformerBlock(nn.Module):
    """Self-attention and a two-layer perceptron, each with layer norm before and a shortcut."""

    heads: int
    hidden: int
    dtype: Any
    exact_gelu: bool = False  # False: GELU's approximation by tanh

    @nn.compact
    def __call__(self, x: Array, kept: Array | None = None) -> Array:
        """Map tokens ``[N, T, d]`` to ``[N, T, d]``; the mask ``kept`` [N, 1, 1, T] limits the attention."""
        y = nn.LayerNorm(name="norm1")(x).astype(self.dtype)
        attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype, kernel_init=_linear)
        x = x + attention(y, mask=kept)
        y = nn.LayerNorm(name="norm2")(x).astype(self.dtype)
        y = nn.Dense(self.hidden, dtype=self.dtype, kernel_init=_linear, name="dense1")(y)
        y = nn.gelu(y, approximate=not self.exact_gelu)
        return x + nn.Dense(x.shape[-1], dtype=self.dtype, kernel_init=_linear, name="dense2")(y)


class ViT(nn.Module):
    """Vision transformer: images ``[N, h, w, c]`` to features ``[N, dim]``.

    Variant "mean": the features are the mean of the last layer's tokens, after layer norm. Positions are fixed
    sines and cosines in two dimensions, so the network also encodes images of other sizes. Variant "class_token"
    is that of Dosovitskiy et al. (2021) in torchvision and timm: a further token, whose output is the feature,
    learned positions of images of one size, and the exact GELU. A frozen projection of patches is kept with the
    statistics, so that neither gradient nor weight decay reaches it.
    """

    patch: int
    dim: int
    layers: int
    heads: int
    hidden: int
    dtype: Any
    remat: bool = False
    frozen_patches: bool = False
    variant: str = "mean"

    @nn.compact
    def __call__(self, images: Array, *, train: bool = False) -> Array:
        """Return features in float32 (float64 if that is the compute dtype); the same for ``train``."""
        check_images(images)
        n, height, width, channels = images.shape
        p = self.patch
        if height % p or width % p:
            raise ValueError(
                f"encoder.patch is {p}; it must divide the image size, {height} x {width} pixels"
            )
        rows, columns = height // p, width // p
        x = images.reshape(n, rows, p, columns, p, channels).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(n, rows * columns, p * p * channels).astype(self.dtype)
        if self.frozen_patches:
            shape = (x.shape[-1], self.dim)
            kernel = self.variable("batch_stats", "patches", lambda: _linear(self.make_rng("params"), shape))
            x = x @ kernel.value.astype(self.dtype)  # MoCo v3's bias is frozen at 0
        else:
            x = nn.Dense(self.dim, dtype=self.dtype, kernel_init=_linear, name="patches")(x)
        learned = self.variant == "class_token"
        if learned:
            x = self._with_class_token(x, (height, width))
        else:
            x = x + jnp.asarray(positions(rows, columns, self.dim), self.dtype)
        block = nn.remat(TransformerBlock) if self.remat else TransformerBlock
        for layer in range(self.layers):
            x = block(self.heads, self.hidden, self.dtype, learned, name=f"block{layer}")(x)
        x = x.astype(jnp.promote_types(self.dtype, jnp.float32))
        x = nn.LayerNorm(name="norm")(x)
        return x[:, 0] if learned else x.mean(1)

    def _with_class_token(self, x: Array, size: tuple[int, int]) -> Array:
        """Put the class token before the patches ``[N, T, d]``, and add the learned positions."""
        count = x.shape[1] + 1
        if self.has_variable("params", "positions"):
            there: int = self.get_variable("params", "positions").shape[0]
            if there != count:
                raise ValueError(
                    f"encoder.variant=class_token has learned positions of {there - 1} patches; images of"
                    f" {size[0]} x {size[1]} pixels have {count - 1}."
                )
        token = self.param("class_token", nn.initializers.zeros, (self.dim,))
        places = self.param("positions", nn.initializers.normal(0.02), (count, self.dim))
        first = jnp.broadcast_to(token.astype(self.dtype), (len(x), 1, self.dim))
        return jnp.concatenate([first, x], axis=1) + places.astype(self.dtype)


def positions(rows: int, columns: int, dim: int) -> np.ndarray:
    """Return ``[rows * columns, dim]``: sines and cosines of a patch's row, then of its column.

    Each of the four has a quarter of the dimensions, with wavelengths from 2 pi to 20,000 pi (Chen et al.,
    2021, section 4.1).
    """
    frequency = 10_000.0 ** -(np.arange(dim // 4) / (dim // 4))
    row, column = (axis.reshape(-1, 1) * frequency for axis in np.mgrid[:rows, :columns])
    return np.concatenate([np.sin(row), np.cos(row), np.sin(column), np.cos(column)], axis=1)
