"""Residual networks (He et al., 2016), v1.5: the stride of a bottleneck is in its 3x3 convolution."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contrastive_jax.models import initial
from contrastive_jax.models.convolution import Convolution
from contrastive_jax.models.norm import BatchNorm, Members, Norm
from contrastive_jax.models.pooling import max_pool
from contrastive_jax.types import PyTree

Array = jax.Array
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
STRIDES = {"cifar": 8, "imagenet": 32}  # total stride: pixels of the image per pixel of the last feature map
KERNEL_INITS = {  # standard deviations
    "fan_in": initial.fan_in,
    "fan_out": lambda path, shape: (2 / (math.prod(shape[:-2]) * shape[-1])) ** 0.5,
}


class Block(nn.Module):
    """Residual block: two 3x3 convolutions, or the bottleneck 1x1, 3x3, 1x1, with a shortcut."""

    channels: int
    stride: int
    bottleneck: bool
    projection: bool
    norm: Norm
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, members: Members | None, train: bool) -> Array:
        """Map ``[N, h, w, c]`` to ``[N, h / stride, w / stride, channels or 4 * channels]``."""

        def conv(y, channels, kernel, stride, conv_name, norm_name, **end):
            y = Convolution(channels, kernel, stride, self.dtype, name=conv_name)(y)
            return BatchNorm(self.norm, name=norm_name)(y, members, train=train, **end)

        c = self.channels
        layers: tuple[tuple[int, int, int], ...]  # channels, size, stride
        if self.bottleneck:
            layers = ((c, 1, 1), (c, 3, self.stride), (4 * c, 1, 1))
        else:
            layers = ((c, 3, self.stride), (c, 3, 1))
        shortcut = x
        if self.projection:
            shortcut = conv(x, layers[-1][0], 1, self.stride, "shortcut_conv", "shortcut_norm")
        y = x
        for i, (channels, kernel, stride) in enumerate(layers, 1):
            residual = shortcut if i == len(layers) else None
            y = conv(y, channels, kernel, stride, f"conv{i}", f"norm{i}", residual=residual, relu=True)
        return y.astype(self.dtype)


class ResNet(nn.Module):
    """Residual network: images ``[N, h, w, c]`` to the mean over space of the last group, ``[N, F]``."""

    depth: int
    channels: int  # of the first group
    stem: str
    variant: str
    zero_init: bool
    kernel_init: str
    norm: Norm
    dtype: Any
    remat: bool = False

    def draw(self, seed: int, shapes: PyTree) -> PyTree:
        """Draw initial weights of these shapes."""
        last = "norm3" if self.depth >= 50 else "norm2"  # last norm of a residual block
        return initial.draw(
            seed,
            shapes,
            deviation=KERNEL_INITS[self.kernel_init],
            zero=lambda path: self.zero_init and path[-2:] == (last, "scale"),
        )

    @property
    def features(self) -> int:
        """Width of the features, F."""
        return self.channels * (32 if self.depth >= 50 else 8)

    @nn.compact
    def __call__(self, x: Array, members: Members | None = None, *, train: bool = False) -> Array:
        """Return float32 features (float64 if that is the compute dtype)."""
        check_images(x)
        check_image(self.stem, x.shape[1:])
        small, bottleneck = self.stem == "cifar", self.depth >= 50
        x = Convolution(self.channels, 3 if small else 7, 1 if small else 2, self.dtype, name="stem_conv")(x)
        x = BatchNorm(self.norm, name="stem_norm")(x, members, train=train, relu=True).astype(self.dtype)
        if not small:
            padding = "SAME" if self.variant == "simclr" else ((1, 1), (1, 1))
            x = max_pool(x, padding)
        block_class = nn.remat(Block, static_argnums=3) if self.remat else Block  # 3: train
        for group, blocks in enumerate(BLOCKS[self.depth]):
            channels, width = self.channels * 2**group, self.channels * 2**group * (4 if bottleneck else 1)
            for block in range(blocks):
                stride = 2 if group > 0 and block == 0 else 1
                changes = stride > 1 or x.shape[-1] != width
                projection = block == 0 if self.variant == "simclr" else changes
                x = block_class(
                    channels,
                    stride,
                    bottleneck,
                    projection,
                    self.norm,
                    self.dtype,
                    name=f"group{group + 1}_block{block}",
                )(x, members, train)
        return x.astype(jnp.promote_types(self.dtype, jnp.float32)).mean((1, 2))


def check_images(images: Array) -> None:
    """Raise ValueError if an array is not a batch of images."""
    if images.ndim != 4 or not jnp.issubdtype(images.dtype, jnp.floating):
        raise ValueError(
            f"this encoder reads images, float [n, h, w, c], not {images.dtype} {list(images.shape)};"
            " for other examples use encoder.name=mlp, conv1d or transformer."
        )


def check_image(stem: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError if an image is smaller than the encoder's total stride."""
    if min(shape[:2]) < STRIDES[stem]:
        advice = "; the stem 'cifar' needs 8 x 8" if stem == "imagenet" and min(shape[:2]) >= 8 else ""
        raise ValueError(
            f"the image is {shape[0]} x {shape[1]} pixels, too small for encoder.stem={stem!r}, which"
            f" needs {STRIDES[stem]} x {STRIDES[stem]}{advice}."
        )
