"""Operations on pixel values: brightness, contrast, saturation, hue, grey, blur, solarise, noise, erasing.

Images are float32 ``[h, w, c]`` with colour channels only, c = 1 (grey) or 3 (RGB); callers separate other
channels. ``axis`` is the channel axis: the presets' steps work on planes, ``[c, h, w]``, which is faster.
Saturation, hue and grayscale leave grey images unchanged. Single operations do not clip.
Libraries differ, so their conventions are options: ``tf`` is SimCLR's and BYOL's (contrast about each
channel's mean, saturation in HSV), ``torchvision`` MoCo's (both blend with the luminance).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from contrastive_jax.augment.geometry import between, order_free_sum, uniform

BLURS = {-1: {0: "ij,jwc->iwc", 1: "ij,hjc->hic"}, 0: {1: "ij,cjw->ciw", 2: "ij,chj->chi"}}  # by channel axis
EDGES = {"zero": "constant", "reflect": "reflect", "edge": "edge", "valid": None}
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def clip(image):
    """Clip to [0, 1]."""
    return jnp.clip(image, 0, 1)


def luminance(image, axis=-1):
    """Return 0.2989 R + 0.587 G + 0.114 B, ``[h, w, 1]``; a grey image is returned as it is."""
    if image.shape[axis] == 1:
        return image
    red, green, blue = jnp.split(image, 3, axis)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def grayscale(image, axis=-1):
    """Put the luminance in every channel."""
    return jnp.broadcast_to(luminance(image, axis), image.shape)


def brightness(image, factor):
    """Return ``factor * image`` (SimCLR v2, torchvision)."""
    return factor * image


def brightness_additive(image, delta):
    """Return ``image + delta`` (SimCLR v1, BYOL)."""
    return image + delta


def contrast(image, factor, *, style="tf", axis=-1):
    """Scale about the image's mean: each channel's (``tf``) or the luminance's (``torchvision``)."""
    values = image if style == "tf" else luminance(image, axis)
    for place in sorted({0, 1, 2} - {axis % 3}):  # rows, then columns
        total = order_free_sum(values, axis=place) / values.shape[place]
        values = jnp.expand_dims(total, place)
    return factor * (image - values) + values


def saturation(image, factor, *, style="tf", axis=-1):
    """Scale HSV saturation up to its limit 1 (``tf``), or blend with the luminance (``torchvision``)."""
    if image.shape[axis] == 1:
        return image
    if style == "torchvision":
        grey = luminance(image, axis)
        return factor * (image - grey) + grey
    # saturation is (max - min) / max: at constant maximum, scaling it scales the distances from the maximum
    value, chroma = _value_chroma(image, axis)
    limit = jnp.where(chroma > 0, value / jnp.where(chroma > 0, chroma, 1), factor)
    return value + jnp.where(value > 0, jnp.minimum(factor, limit), 0) * (image - value)


def hue(image, delta, *, axis=-1):
    """Rotate the hue by ``delta`` turns of the HSV colour circle."""
    if image.shape[axis] == 1:
        return image
    value, chroma = _value_chroma(image, axis)
    red, green, blue = jnp.split(image, 3, axis)
    safe = jnp.where(chroma > 0, chroma, 1)
    # no test of equality with the maximum: XLA may round the two sides differently
    sextant = jnp.where(
        (red >= green) & (red >= blue),
        (green - blue) / safe,
        jnp.where(green >= blue, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )

    def turned(first):
        place = first + sextant + 6 * delta
        place = place - 6 * jnp.floor(place / 6)  # a third of the time of jnp.mod
        return value - chroma * jnp.clip(jnp.minimum(place, 4 - place), 0, 1)

    return jnp.concatenate([turned(first) for first in (5, 3, 1)], axis)


def _value_chroma(image, axis):
    value = jnp.max(image, axis, keepdims=True)
    return value, value - jnp.min(image, axis, keepdims=True)


def draw_order(draws):
    """Draw a random order of brightness 0, contrast 1, saturation 2, hue 3: int ``[4]``, from 4 uniform draws."""
    return jnp.argsort(draws)


def jitter(image, order, factors, *, style="tf", additive=False, axis=-1):
    """Apply the four colour operations in the given order (codes as in :func:`draw_order`), clipped after each.

    ``factors`` are brightness (a shift if ``additive``), contrast, saturation and hue.
    """
    bright = brightness_additive if additive else brightness
    if image.shape[axis] == 1:  # no saturation or hue: two operations in two orders
        light = lambda x: clip(bright(x, factors[BRIGHTNESS]))  # noqa: E731
        tone = lambda x: clip(contrast(x, factors[CONTRAST], style=style, axis=axis))  # noqa: E731
        brightness_first = jnp.argmax(order == BRIGHTNESS) < jnp.argmax(order == CONTRAST)
        return jnp.where(brightness_first, tone(light(image)), light(tone(image)))

    # Under vmap a switch runs all its branches at all four places. Hue is expensive, so it runs once, with
    # three slots for the operations before it and three for those after it; slots may stay empty.
    def slot(planes, operation):
        choices = [
            bright(planes, factors[BRIGHTNESS]),
            contrast(planes, factors[CONTRAST], style=style, axis=0),
            saturation(planes, factors[SATURATION], style=style, axis=0),
        ]
        for code, choice in zip((BRIGHTNESS, CONTRAST, SATURATION), choices, strict=True):
            planes = jnp.where(
                operation == code, clip(choice), planes
            )  # jnp.select mixes shardings on a mesh
        return planes

    place_of_hue, planes = jnp.argmax(order == HUE), jnp.moveaxis(image, axis, 0)
    for place in range(3):
        planes = slot(planes, jnp.where(place < place_of_hue, order[place], HUE))
    planes = clip(hue(planes, factors[HUE], axis=0))
    for place in range(1, 4):
        planes = slot(planes, jnp.where(place > place_of_hue, order[place], HUE))
    return jnp.moveaxis(planes, 0, axis)


def color_jitter(key, image, *, brightness, contrast, saturation, hue, style="tf", additive=False, axis=-1):
    """Apply :func:`jitter` with random order and factors.

    Factors are uniform in ``[max(0, 1 - strength), 1 + strength]``; hue, and brightness if ``additive``, are
    uniform in ``[-strength, strength]``.
    """
    draws = uniform(key, (8,))

    def factor(code, strength, shift=False):
        low = -strength if shift else max(0.0, 1 - strength)
        return between(low, strength if shift else 1 + strength, draws[code])

    factors = (
        factor(BRIGHTNESS, brightness, shift=additive),
        factor(CONTRAST, contrast),
        factor(SATURATION, saturation),
        factor(HUE, hue, shift=True),
    )
    return jitter(image, draw_order(draws[4:]), factors, style=style, additive=additive, axis=axis)


def simclr_taps(height: int) -> int:
    """Return the odd number of taps of SimCLR's blur, a tenth of the height; 1 (no blur) below 20 pixels."""
    return 2 * (height // 10 // 2) + 1


def gaussian_blur(image, sigma, *, taps: int, edges="zero", axis=-1):
    """Blur with a separable Gaussian of ``taps`` (odd) pixels, as two matrix products; ``sigma`` in pixels.

    ``edges``: ``zero`` pads with black (SimCLR, BYOL: borders darken), ``edge`` repeats the border (PIL:
    MoCo v2), ``reflect`` mirrors (torchvision), ``valid`` drops the border.
    """
    radius = taps // 2
    total = jnp.sum(jnp.exp(-(jnp.arange(-radius, radius + 1, dtype=image.dtype) ** 2) / (2 * sigma**2)))

    def kernel(size):
        """Return the weights of pixels in results, ``[size, size]``, or ``[size - 2 radius, size]`` if valid."""
        mode = EDGES[edges]
        padded = size + 2 * radius if mode else size
        distance = jnp.arange(padded) - jnp.arange(padded - 2 * radius)[:, None] - radius
        gaussian = jnp.exp(-(distance.astype(image.dtype) ** 2) / (2 * sigma**2)) / total
        weights = jnp.where(jnp.abs(distance) <= radius, gaussian, 0)
        if not mode:
            return weights
        # Weights beyond the edge go to the pixels repeated there: XLA's CPU compiler would compute the steps
        # before a padded image several times over.
        inside = weights[:, radius:-radius]
        if mode == "constant":
            return inside
        border = np.r_[:radius, padded - radius : padded]
        source = np.pad(np.eye(size, dtype=image.dtype), ((radius, radius), (0, 0)), mode=mode)[border]
        outside = jnp.concatenate([weights[:, :radius], weights[:, -radius:]], 1)
        return inside + jnp.matmul(outside, source, precision=lax.Precision.HIGHEST)

    for place, product in BLURS[axis].items():  # rows, then columns
        image = jnp.einsum(product, kernel(image.shape[place]), image, precision=lax.Precision.HIGHEST)
    return image


def solarize(image, threshold=0.5):
    """Invert pixels at or above the threshold."""
    return jnp.where(image < threshold, image, 1 - image)


def gaussian_noise(key, image, scale, *, axis=-1):
    """Add Gaussian noise of standard deviation ``scale``, clipped to [0, 1]."""
    shape = jax.eval_shape(lambda image: jnp.moveaxis(image, axis, -1), image).shape
    noise = jax.random.normal(key, shape, image.dtype)
    return clip(image + scale * jnp.moveaxis(noise, -1, axis))


def erase(key, image, *, smallest: int, largest: int, axis=-1):
    """Blacken a random rectangle inside the image, with sides uniform in ``smallest..largest`` pixels."""
    size, place = uniform(key, (2, 2))
    side = smallest + jnp.floor(size * (largest - smallest + 1))
    rows, columns = sorted({0, 1, 2} - {axis % 3})
    extent = jnp.array([image.shape[rows], image.shape[columns]], jnp.float32)
    start = jnp.floor(place * (extent - side + 1))
    row = lax.broadcasted_iota(jnp.float32, image.shape, rows)
    column = lax.broadcasted_iota(jnp.float32, image.shape, columns)
    inside = (
        (row >= start[0]) & (row < start[0] + side[0]) & (column >= start[1]) & (column < start[1] + side[1])
    )
    return jnp.where(inside, 0, image)


def normalize(image, mean, std):
    """Return ``(image - mean) / std`` for each channel."""
    return (image - jnp.array(mean, image.dtype)) / jnp.array(std, image.dtype)
