"""Geometry of a view: crop boxes, resizing, flips, quarter turns and slants.

Images are float32 ``[h, w, c]``; a box is ``(top, left, height, width)`` in pixels, as floats. All channels
move together. Functions are pure, for one image under ``jax.vmap``, without gathers or loops.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SAMPLERS = ("torchvision", "tf", "continuous")
OBJECT_COVERED = 0.1  # least area of a box as a share of the image, for the sampler tf


def triangle(distance, xp=jnp):
    """Evaluate the bilinear kernel; ``xp`` is jax.numpy or numpy."""
    return xp.maximum(0, 1 - distance)


def keys_cubic(distance, xp=jnp):
    """Evaluate the cubic kernel of Keys (1981) with a = -0.5; ``xp`` is jax.numpy or numpy."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    return xp.where(distance < 1, near, xp.where(distance < 2, far, 0))


KERNELS = {"bilinear": triangle, "bicubic": keys_cubic}
REACH = {"bilinear": 1, "bicubic": 2}  # distance in pixels beyond which a kernel is zero


def uniform(key, shape=()):
    """Draw uniform numbers in [0, 1), float32 at any default precision."""
    # Drawn flat and behind a barrier: XLA would compile the generator again into every reader.
    draws = lax.optimization_barrier(jax.random.uniform(key, (math.prod(shape),), jnp.float32))
    return draws.reshape(shape)


def between(low, high, draw):
    """Scale a draw, uniform in [0, 1), to low to high."""
    return low + (high - low) * draw


def order_free_sum(values, axis: int):
    """Sum n values, |value| < 2, along an axis, with the same bits in any order of additions.

    Values are rounded to multiples of n / 2^29 (n rounded up to a power of two) and added as integers. XLA's
    order of additions depends on a device's batch, and thus on the number of devices.
    """
    unit = 2.0 ** (math.ceil(math.log2(values.shape[axis])) - 29)
    return jnp.sum(jnp.round(values / unit).astype(jnp.int32), axis, jnp.int32).astype(values.dtype) * unit


def draw_box(key, height: int, width: int, *, area=(0.08, 1.0), ratio=(3 / 4, 4 / 3), sampler="torchvision"):
    """Draw the box of a random resized crop: float32 ``[4]``.

    ``area`` is relative to the image, ``ratio`` is width over height. Samplers:

    * ``torchvision`` (default): ``RandomResizedCrop``. Area uniform, log ratio uniform, 10 attempts, then the
      largest centred box of a permitted ratio. It is the default as the distribution that papers describe:
      the area as named, tall and wide boxes equally likely, at every position.
    * ``tf``: ``tf.image.sample_distorted_bounding_box`` as SimCLR calls it. Ratio uniform, height uniform (so
      smaller areas: mean 0.42 of a square, not 0.48), boxes below a tenth of the image refused; a box shorter
      (narrower) than the image never touches its last row (column); 100 attempts, then the whole image.
    * ``continuous``: torchvision's without rounding to whole pixels, for small images.
    """
    limits = frame(height, width, area=area, ratio=ratio, sampler=sampler)
    return draw_box_in(key, limits, area=area, ratio=ratio, sampler=sampler)


def frame(height: int, width: int, *, area, ratio, sampler) -> np.ndarray:
    """Return the values of an image's size that a box depends on, float32 ``[9]``.

    Height and width; the smallest and largest area to draw, and the area below which a box is refused, in
    pixels; the box to use if all attempts fail. Computed here in double precision, so that :func:`draw_box_in`
    draws the same box for constant and traced sizes.
    """
    pixels = height * width
    if sampler == "tf":
        smallest, largest = (a * pixels for a in area)
        refused, fallback = max(smallest, OBJECT_COVERED * pixels), (0, 0, height, width)
    elif sampler in SAMPLERS:
        h, w = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
        smallest, largest, refused = 0, pixels, 0
        fallback = ((height - h) // 2, (width - w) // 2, h, w)
    else:
        raise ValueError(f"sampler is {sampler!r}; it must be one of {', '.join(SAMPLERS)}.")
    return np.array([height, width, smallest, largest, refused, *fallback], np.float32)


def draw_box_in(key, frame, *, area, ratio, sampler):
    """Draw the box of :func:`draw_box` for the result ``[9]`` of :func:`frame`."""
    height, width, smallest, largest, refused, *fallback = frame
    if sampler == "tf":
        boxes, valid = _attempts_tf(key, height, width, smallest, largest, refused, ratio)
    else:
        boxes, valid = _attempts_torchvision(key, height, width, area, ratio, sampler == "torchvision")
    first = valid & (jnp.cumsum(valid) == 1)
    drawn = jnp.sum(jnp.where(first[:, None], boxes, 0), axis=0)
    return jnp.where(jnp.any(valid), drawn, jnp.stack(fallback))


def _attempts_torchvision(key, height, width, area, ratio, whole_pixels, attempts=10):
    area_draw, ratio_draw, top_draw, left_draw = uniform(key, (4, attempts))
    target = height * width * between(*area, area_draw)
    shape = jnp.exp(between(math.log(ratio[0]), math.log(ratio[1]), ratio_draw))
    w, h = jnp.sqrt(target * shape), jnp.sqrt(target / shape)
    if whole_pixels:
        w, h = jnp.round(w), jnp.round(h)
    valid = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    positions = int(whole_pixels)  # a box of n whole pixels has height - n + 1 positions
    top, left = top_draw * (height - h + positions), left_draw * (width - w + positions)
    if whole_pixels:
        top, left = jnp.floor(top), jnp.floor(left)
    return jnp.stack([top, left, h, w], axis=1), valid


def _attempts_tf(key, height, width, smallest, largest, refused, ratio, attempts=100):
    ratio_draw, height_draw, top_draw, left_draw = uniform(key, (4, attempts))
    shape = between(*ratio, ratio_draw)

    tallest = jnp.round(jnp.sqrt(largest / shape))
    fitting = jnp.floor((width + 0.5) / shape)  # the tallest whose rounded width still fits
    fitting = jnp.where(jnp.round(fitting * shape) > width, fitting - 1, fitting)
    tallest = jnp.where(jnp.round(tallest * shape) > width, fitting, tallest)
    tallest = jnp.minimum(tallest, height)
    shortest = jnp.minimum(jnp.round(jnp.sqrt(smallest / shape)), tallest)
    h = shortest + jnp.floor(height_draw * (tallest - shortest + 1))

    # rounding may have missed the permitted areas: add one row, then remove one
    h = jnp.where(h * jnp.round(h * shape) < smallest, h + 1, h)
    h = jnp.where(h * jnp.round(h * shape) > largest, h - 1, h)
    w = jnp.round(h * shape)
    valid = (h > 0) & (w > 0) & (h <= height) & (w <= width)
    valid &= (h * w >= refused) & (h * w <= largest)

    top = jnp.floor(top_draw * (height - h))  # the op draws below height - h, not up to it
    left = jnp.floor(left_draw * (width - w))
    return jnp.stack([top, left, h, w], axis=1), valid


def crop_and_resize(image, box, size, *, method="bicubic", antialias=False, confined=True):
    """Resample ``box`` of the image to ``size`` (a number or ``(height, width)``).

    Half-pixel centres; ``bicubic`` is TF2's kernel, :func:`keys_cubic`, and may overshoot [0, 1];
    ``antialias`` widens the kernel when shrinking, as PIL does. ``confined`` ignores pixels outside the box,
    as if it were cut out before resizing; otherwise they count, and the box may extend beyond the image,
    which is padded with zeros.
    """
    box = jnp.asarray(box, image.dtype)
    shape = (size, size) if isinstance(size, int) else size
    for axis, product in ((0, "oi,iwc->owc"), (1, "oi,hic->hoc")):
        weights = _weights(
            image.shape[axis], shape[axis], box[axis], box[axis + 2], method, antialias, confined
        )
        image = jnp.einsum(product, weights, image, precision=lax.Precision.HIGHEST)
    return image


def _weights(size_in, size_out, start, extent, method, antialias, confined):
    """Return the weights of a row's or column's input pixels in output pixels, ``[size_out, size_in]``."""
    step = extent / size_out
    centre = start + (jnp.arange(size_out, dtype=step.dtype) + 0.5) * step - 0.5
    pixel = jnp.arange(size_in, dtype=step.dtype)
    distance = jnp.abs(centre[:, None] - pixel)
    weights = KERNELS[method](distance / jnp.maximum(step, 1) if antialias else distance)
    if confined:
        weights = jnp.where((pixel + 1 > start) & (pixel < start + extent), weights, 0)
    total = order_free_sum(weights, axis=1)
    seen = (total > 0) & (centre >= -0.5) & (centre <= size_in - 0.5)
    return jnp.where(seen[:, None], weights / jnp.where(seen, total, 1)[:, None], 0)


def random_resized_crop(
    key,
    image,
    size,
    *,
    area=(0.08, 1.0),
    ratio=(3 / 4, 4 / 3),
    sampler="torchvision",
    method="bicubic",
    antialias=False,
    shift=0.0,
):
    """Cut out a random box of the image at ``size``: :func:`draw_box`, then :func:`crop_and_resize`.

    ``shift`` is the largest random move of the box in pixels in each direction; outside the image pixels are
    zero.
    """
    box_key, shift_key = jax.random.split(key)
    box = draw_box(box_key, *image.shape[:2], area=area, ratio=ratio, sampler=sampler)
    if shift:
        moved = between(-shift, shift, uniform(shift_key, (2,)))
        box = box + jnp.pad(moved, (0, 2))
    return crop_and_resize(image, box, size, method=method, antialias=antialias, confined=not shift)


def center_crop(image, size, *, proportion=0.875, method="bicubic", antialias=False):
    """Crop the largest centred box of ``size``'s shape, times ``proportion``, and resize it (as in SimCLR).

    An image that needs neither is returned as it is.
    """
    shape = (size, size) if isinstance(size, int) else tuple(size)
    top, left, h, w = center_box(*image.shape[:2], shape, proportion)
    image = image[top : top + h, left : left + w]
    if (h, w) == shape:
        return image
    return crop_and_resize(image, (0, 0, h, w), shape, method=method, antialias=antialias)


def center_box(height: int, width: int, shape: tuple[int, int], proportion: float) -> tuple[int, ...]:
    """Return the box of :func:`center_crop`: (top, left, height, width) in whole pixels."""
    aspect = shape[1] / shape[0]
    if aspect > width / height:
        h, w = round(proportion / aspect * width), round(proportion * width)
    else:
        h, w = round(proportion * height), round(proportion * aspect * height)
    h, w = max(h, 1), max(w, 1)
    return (height - h + 1) // 2, (width - w + 1) // 2, h, w


def horizontal_flip(key, image, *, probability=0.5):
    """Flip left and right with the given probability."""
    return jnp.where(uniform(key) < probability, image[:, ::-1], image)


def quarter_turn(key, image):
    """Rotate a square image by 0, 90, 180 or 270 degrees, with equal probability."""
    if image.shape[0] != image.shape[1]:
        raise ValueError(
            f"the image is {image.shape[0]} x {image.shape[1]}; a quarter turn needs a square image."
        )
    half, quarter = uniform(key, (2,)) < 0.5
    image = jnp.where(half, image[::-1, ::-1], image)
    return jnp.where(quarter, jnp.swapaxes(image, 0, 1)[::-1], image)


def slant(image, slope):
    """Shear the image by ``slope`` pixels per row, like slanted handwriting: bilinear, zero outside."""
    height, width = image.shape[:2]
    column = jnp.arange(width, dtype=image.dtype)
    offset = slope * (jnp.arange(height, dtype=image.dtype) - (height - 1) / 2)
    source = column[:, None] + offset[:, None, None]  # [h, w, 1]
    weight = triangle(jnp.abs(source - column))  # [h, w, w]
    return jnp.einsum("hoi,hic->hoc", weight, image, precision=lax.Precision.HIGHEST)
