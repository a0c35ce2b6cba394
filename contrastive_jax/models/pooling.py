"""Max-pooling of the ImageNet stem, with a gradient that is summed in a fixed order.

XLA's own gradient of a maximum is a scatter. As windows overlap, a GPU adds in the order in which its threads
finish, or one by one if it must be deterministic.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
SIZE, STRIDE = 3, 2


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def max_pool(images: Array, padding: str | tuple[tuple[int, int], tuple[int, int]]) -> Array:
    """Take the maximum of 3 x 3 windows with stride 2: ``[N, h, w, c]`` to ``[N, H, W, c]``.

    ``padding`` is "SAME", or (before, after) for height and for width. The gradient goes to the first maximum
    of a window in row order, as in PyTorch and TensorFlow. Forward-mode derivatives (``jax.jvp``) are not
    defined.
    """
    return nn.max_pool(images, (SIZE, SIZE), (STRIDE, STRIDE), padding)


def _forward(images, padding):
    largest = max_pool(images, padding)
    return largest, (images, largest)


def _backward(padding, saved, gradient):
    images, largest = saved
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], (SIZE, SIZE), (STRIDE, STRIDE), padding)
    (top, below), (left, right) = padding
    (height, width), (tall, wide) = largest.shape[1:3], images.shape[1:3]
    around = ((0, 0, 0), (top, below, 0), (left, right, 0), (0, 0, 0))
    padded = lax.pad(images, jnp.array(-jnp.inf, images.dtype), around)
    taken, total = jnp.zeros_like(largest, bool), jnp.zeros_like(padded)
    for i in range(SIZE):
        for j in range(SIZE):
            rows, columns = i + STRIDE * (height - 1), j + STRIDE * (width - 1)  # of the last window
            seen = padded[:, i : rows + 1 : STRIDE, j : columns + 1 : STRIDE]
            first = (seen == largest) & ~taken
            taken |= first
            place = (
                (0, 0, 0),
                (i, padded.shape[1] - 1 - rows, STRIDE - 1),
                (j, padded.shape[2] - 1 - columns, STRIDE - 1),
                (0, 0, 0),
            )
            total += lax.pad(jnp.where(first, gradient, 0), jnp.zeros((), gradient.dtype), place)
    return (total[:, top : top + tall, left : left + wide],)


max_pool.defvjp(_forward, _backward)
