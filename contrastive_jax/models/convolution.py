"""Convolution of the networks: XLA's, and on a CPU the kernels of :mod:`contrastive_jax.native`.

XLA's CPU compiler computes the gradient of a kernel as a convolution with a window of the whole image, the
slowest of the three (`experiments/performance/README.md`). Without a compiler for the kernels, this
module computes it as a matrix product in plain JAX.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax import native, sharding

Array = jax.Array
Pairs = tuple[tuple[int, int], tuple[int, int]]


class Convolution(nn.Module):
    """A convolution without bias, with equal padding on both sides at any stride, as in PyTorch and SimCLR."""

    channels: int
    size: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Convolve ``[N, h, w, c]`` to ``[N, h / stride, w / stride, channels]``."""
        shape = (self.size, self.size, images.shape[-1], self.channels)
        kernel = self.param("kernel", nn.initializers.zeros, shape)  # values come from network.init
        images, kernel = images.astype(self.dtype), kernel.astype(self.dtype)
        around = (self.size // 2, self.size // 2)
        return convolve(images, kernel, (self.stride, self.stride), (around, around))


def convolve(images: Array, kernel: Array, strides: tuple[int, int], padding: Pairs) -> Array:
    """Convolve ``[N, h, w, c]`` with a kernel ``[k, l, c, d]`` to ``[N, H, W, d]``; padding is per axis."""
    empty = 0 in (*images.shape, *kernel.shape)
    if not native.on_cpu() or empty or images.dtype == jnp.float64 or not native.check_switch():
        rounded = jnp.finfo(kernel.dtype).bits < 32 and not empty
        convolution = _summed_in_float32 if rounded and sharding.devices() > 1 else _plain
        return convolution(images, kernel, strides, padding)
    if not native.available():
        return _by_product(images, kernel, strides, padding)
    dtype, given = images.dtype, (images.astype(jnp.float32), kernel.astype(jnp.float32))
    return _by_kernels(*given, strides, padding).astype(dtype)


def _plain(images: Array, kernel: Array, strides: tuple[int, int], padding: Pairs) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, kernel, strides, padding, dimension_numbers=layout)


def _own_gradient(convolution, gradients):
    """Return the convolution with ``gradients(images, kernel, gradient, strides, padding)`` of both inputs."""
    function = jax.custom_vjp(convolution, nondiff_argnums=(2, 3))

    def forward(images, kernel, strides, padding):
        return convolution(images, kernel, strides, padding), (images, kernel)

    function.defvjp(
        forward, lambda strides, padding, saved, gradient: gradients(*saved, gradient, strides, padding)
    )
    return function


def _image_gradient(images, kernel, gradient, strides, padding):
    return jax.vjp(lambda images: _plain(images, kernel, strides, padding), images)[1](gradient)[0]


def _plain_gradients(images, kernel, gradient, strides, padding):
    """Compute gradients in the arrays' dtype; sum the kernel's gradient over devices in float32."""

    def of_kernel(images, gradient):
        apply = lambda kernel: _plain(images, kernel, strides, padding)  # noqa: E731
        (found,) = jax.linear_transpose(apply, jax.ShapeDtypeStruct(kernel.shape, kernel.dtype))(gradient)
        return found.astype(jnp.float32)

    summed = sharding.psum_over_data(of_kernel)(images, gradient).astype(kernel.dtype)
    return _image_gradient(images, kernel, gradient, strides, padding), summed


_summed_in_float32 = _own_gradient(_plain, _plain_gradients)


def _kernel_forward(images, kernel, strides, padding):
    result = jax.eval_shape(functools.partial(_plain, strides=strides, padding=padding), images, kernel)
    return _each_device("convolve", (images,), kernel, result.shape[1:], strides, padding)


def _kernel_gradients(images, kernel, gradient, strides, padding):
    options = _attributes(strides, padding)

    def of_kernel(images, gradient):
        return native.call("kernel_gradient", like(kernel.shape), images, gradient, **options)

    of_images = _each_device("image_gradient", (gradient,), kernel, images.shape[1:], strides, padding)
    return of_images, sharding.psum_over_data(of_kernel)(images, gradient)


def _each_device(name, rows, kernel, shape, strides, padding):
    options = _attributes(strides, padding)

    def on_each(rows, kernel):
        return native.call(name, like((len(rows), *shape)), rows, kernel, **options)

    return sharding.each_device(on_each, rows, (kernel,))


def _attributes(strides, padding):
    return dict(strides=strides, before=(padding[0][0], padding[1][0]), winograd=native.winograd())


def like(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a float32 array."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


_by_kernels = _own_gradient(_kernel_forward, _kernel_gradients)


def _product_gradients(images, kernel, gradient, strides, padding):
    of_images = _image_gradient(images, kernel, gradient, strides, padding)
    return of_images, kernel_gradient(images, gradient, kernel.shape[:2], strides, padding)


_by_product = _own_gradient(_plain, _product_gradients)


def kernel_gradient(
    images: Array, gradient: Array, size: tuple[int, int], strides: tuple[int, int], padding: Pairs
) -> Array:
    """Return a convolution's gradient with respect to the kernel, ``[k, l, c, d]``, summed in float32 at least.

    ``images`` are ``[N, h, w, c]``, ``gradient`` that of the output, ``[N, H, W, d]``, ``size`` that of the
    kernel. Row y of the output uses row y * stride + i of the padded images with row i of the kernel. So image
    rows of one phase, r * stride + phase, need one matrix product: the rows, shifted by each column j, times
    the gradient, shifted by each such i.
    """
    (tall, wide), (down, right), (height, width) = size, strides, gradient.shape[1:3]
    channels, dtype = (images.shape[-1], gradient.shape[-1]), jnp.promote_types(gradient.dtype, jnp.float32)
    rows = -(-((height - 1) * down + tall) // down)  # image rows of a phase

    def of_phase(images, gradient, phase):
        moves = range(len(range(phase, tall, down)))
        seen = [images[:, phase::down, j : j + (width - 1) * right + 1 : right] for j in range(wide)]
        ends = [((0, 0), (i, rows - height - i), (0, 0), (0, 0)) for i in moves]
        moved = [jnp.pad(gradient, end) for end in ends]
        seen, moved = jnp.concatenate(seen, -1), jnp.concatenate(moved, -1)
        products = jnp.einsum("nhwp,nhwq->pq", seen, moved, preferred_element_type=dtype)
        return products.reshape(wide, channels[0], len(moves), channels[1]).transpose(2, 0, 1, 3)

    def all_phases(images, gradient):
        (top, _), (left, _) = padding
        below, after = (
            rows * down - top - images.shape[1],
            (width - 1) * right + wide - left - images.shape[2],
        )
        images = lax.pad(
            images, jnp.zeros((), images.dtype), [(0, 0, 0), (top, below, 0), (left, after, 0), (0, 0, 0)]
        )
        phases = [of_phase(images, gradient, phase) for phase in range(min(down, tall))]
        return jnp.stack([phases[i % down][i // down] for i in range(tall)])

    return sharding.psum_over_data(all_phases)(images, gradient).astype(gradient.dtype)
