"""The convolution of the networks: XLA's own, with another weight gradient where it is large and runs on a CPU.

XLA's CPU compiler writes the gradient of the kernel as a convolution whose window is the whole image, the slowest of
the three in all but the first layer (`experiments/performance/convolutions.py`). It is a product, patches times
gradients, and is made here as one, over pieces of the batch that stay in the cache.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax import sharding

Array = jax.Array
Pairs = tuple[tuple[int, int], tuple[int, int]]

LARGE = 4e9  # FLOPs of a weight gradient; below, what is won is less than the loop takes to compile
PIECE = 5 * 2**20  # bytes of patches: more would leave the cache, fewer would leave cores idle


class Convolution(nn.Module):
    """Without bias; padded alike on both sides also where it strides: PyTorch's rule, and SimCLR's."""

    channels: int
    size: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """``[N, h, w, c]`` to ``[N, h / stride, w / stride, channels]``."""
        shape = (self.size, self.size, images.shape[-1], self.channels)
        kernel = self.param("kernel", nn.initializers.zeros, shape)  # values come from network.init
        images, kernel = images.astype(self.dtype), kernel.astype(self.dtype)
        around = (self.size // 2, self.size // 2)
        return convolve(images, kernel, (self.stride, self.stride), (around, around))


def _plain(images: Array, kernel: Array, strides: tuple[int, int], padding: Pairs) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, kernel, strides, padding, dimension_numbers=layout)


def convolve(images: Array, kernel: Array, strides: tuple[int, int], padding: Pairs) -> Array:
    """``[N, h, w, c]`` and a kernel ``[k, l, c, d]`` to ``[N, H, W, d]``; padding of height, of width."""
    places = jax.eval_shape(functools.partial(_plain, strides=strides, padding=padding), images, kernel)
    large = 2 * math.prod(places.shape[:3]) * kernel.size >= LARGE
    return (_with_products if large else _plain)(images, kernel, strides, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _with_products(images, kernel, strides, padding):
    return _plain(images, kernel, strides, padding)


def _forward(images, kernel, strides, padding):
    return _plain(images, kernel, strides, padding), (images, kernel)


def _backward(strides, padding, saved, gradient):
    images, kernel = saved
    of_images = jax.vjp(lambda x: _plain(x, kernel, strides, padding), images)[1](gradient)[0]

    def by_convolution(images, gradient):
        return jax.vjp(lambda x: _plain(images, x, strides, padding), kernel)[1](gradient)[0]

    def by_products(images, gradient):
        return weight_gradient(images, gradient, kernel.shape[:2], strides, padding)

    return of_images, lax.platform_dependent(images, gradient, cpu=by_products, default=by_convolution)


_with_products.defvjp(_forward, _backward)


def weight_gradient(
    images: Array, gradient: Array, size: tuple[int, int], strides: tuple[int, int], padding: Pairs
) -> Array:
    """Images ``[N, h, w, c]`` and the gradient ``[N, H, W, d]`` of their convolution by a kernel of ``size`` to that of
    the kernel, ``[k, l, c, d]``; summed in float32 at least."""
    channels, dtype = (images.shape[-1], gradient.shape[-1]), gradient.dtype
    wide, length = jnp.promote_types(dtype, jnp.float32), math.prod(size) * images.shape[-1]

    def product(total, piece):
        images, gradient = piece
        seen = patches(images, size, strides, padding, gradient.shape[1:3])
        return total + jnp.einsum("nhwp,nhwd->pd", seen, gradient, preferred_element_type=wide), None

    def over_pieces(images, gradient):
        example = math.prod(gradient.shape[1:3]) * length * images.dtype.itemsize  # bytes of its patches
        each = max(1, PIECE // example)
        divided = [in_pieces(x, each) for x in (images, gradient)]
        return lax.scan(product, jnp.zeros((length, channels[1]), wide), divided)[0]

    return sharding.summed(over_pieces)(images, gradient).astype(dtype).reshape(*size, *channels)


def in_pieces(rows: Array, each: int) -> Array:
    """``[N, ...]`` to ``[pieces, each, ...]``, as many rows of zeros at the end as that takes: they add nothing."""
    pieces = -(-len(rows) // each)
    rows = jnp.pad(rows, ((0, pieces * each - len(rows)), *[(0, 0)] * (rows.ndim - 1)))
    return rows.reshape(pieces, each, *rows.shape[1:])


def patches(images: Array, size: tuple[int, int], strides: tuple[int, int], padding: Pairs, places) -> Array:
    """``[N, h, w, c]`` to ``[N, H, W, k * l * c]``: what a kernel sees at each of ``places = (H, W)``."""
    padded = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    (examples, _, _, channels), (height, width) = padded.shape, places
    down, right = (height - 1) * strides[0] + 1, (width - 1) * strides[1] + 1

    def tap(i, j):
        return lax.slice(padded, (0, i, j, 0), (examples, i + down, j + right, channels), (1, *strides, 1))

    return jnp.concatenate([tap(i, j) for i in range(size[0]) for j in range(size[1])], -1)
