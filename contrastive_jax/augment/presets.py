"""Published augmentation recipes. Every public function here is a preset, found by its name.

A preset takes the size and number of views, and options with published defaults, and gives an
:class:`Augmentation`: one chain of steps, ``(key, image) -> image``, for each view, and one for evaluation.
Images are float32 ``[h, w, c]`` in [0, 1] before the optional normalisation, the last step of training and
evaluation alike.

Where a preset's function does not say what an option is, it is one that presets share:

Args:
  crop_min: smallest area of the random crop, as a share of the image.
  crop_max: largest area of the random crop, as a share of the image.
  ratio: smallest and largest width over height of the random crop.
  sampler: how the crop's box is drawn, see :func:`~contrastive_jax.augment.geometry.draw_box`: tf (SimCLR's),
    torchvision, or continuous (fractions of a pixel).
  flip: probability of a mirror image; 0 for characters.
  quarter_turns: turned by 0, 90, 180 or 270 degrees, for images without an up (satellites, microscopes).
  method: how images are resized: bicubic or bilinear.
  antialias: whether what is made smaller is smoothed first.
  color_channels: how many leading channels colour operations see, 1 or 3 (None: 3 where the image has at least
    3, else 1). Further channels (bits, infrared) are cropped and flipped, nothing else.
  mean: subtracted in the end: a tuple for the colour channels, or for all; None for no normalisation.
  std: divided by in the end, likewise.
  eval_crop: share of the largest centred square that evaluation sees (None: 0.875, and 1 for sizes up to 32).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.augment import color, geometry
from contrastive_jax.augment.crops import CenterCrop, Chain, RandomCrop, Step, same

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Augmentation(NamedTuple):
    """The result of a preset: ``(key, image) -> image`` for each view and for evaluation, whose key is None.

    One step of every chain is a crop; on the host it may be taken ahead of the others.
    """

    views: tuple[Chain, ...]
    evaluate: Chain


def simclr(
    size: int,
    views: int,
    *,
    strength: float = 1.0,
    crop_min: float = 0.08,
    crop_max: float = 1.0,
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    sampler: str = "tf",
    flip: float = 0.5,
    quarter_turns: bool = False,
    jitter: float = 0.8,
    gray: float = 0.2,
    blur: float = 0.5,
    brightness: str = "multiplicative",
    method: str = "bicubic",
    antialias: bool = False,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    eval_crop: float | None = None,
) -> Augmentation:
    """SimCLR (Chen et al., 2020), as its TF2 code has it; CIFAR: ``strength=0.5, blur=0.0``.

    Crop (bicubic), flip, jitter (0.8, 0.8, 0.8, 0.2) x strength in random order, grey, blur. ``flip``,
    ``jitter``, ``gray`` and ``blur`` are probabilities; blur may be False or True for 0 and 0.5. Its sigma is
    drawn for each image, where the code draws one for each batch of views.
    ``brightness``: ``multiplicative`` (v2) or ``additive`` (v1).

    Args:
      strength: of the colour jitter; 1.0 on ImageNet, 0.5 on CIFAR.
      jitter: probability of a colour jitter.
      gray: probability of a grey image.
      blur: probability of a Gaussian blur.
      brightness: how jitter changes it: multiplicative (SimCLR v2) or additive (v1).
    """
    _check(strength, "strength", 0, math.inf)
    _check_choice(brightness, "brightness", ("multiplicative", "additive"))
    jitterer = _jitter(*(s * strength for s in (0.8, 0.8, 0.8, 0.2)), additive=brightness == "additive")
    blur = 0.5 * blur if isinstance(blur, bool) else blur
    view = Chain(
        _crop(size, crop_min, crop_max, ratio, sampler, method, antialias),
        _flip(flip),
        _turn(quarter_turns),
        _on_color(_distortion(jitter, jitterer, gray, blur, edges="zero"), color_channels),
        _clip,
        normalization := _normalization(mean, std, color_channels),
    )
    return Augmentation((view,) * views, _evaluation(size, eval_crop, method, antialias, normalization))


def moco_v1(
    size: int,
    views: int,
    *,
    crop_min: float = 0.2,
    crop_max: float = 1.0,
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    sampler: str = "torchvision",
    flip: float = 0.5,
    quarter_turns: bool = False,
    gray: float = 0.2,
    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.4),
    method: str = "bilinear",
    antialias: bool = True,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = IMAGENET_MEAN,
    std: tuple[float, ...] | None = IMAGENET_STD,
    eval_crop: float | None = None,
) -> Augmentation:
    """MoCo (He et al., 2020): crop, grey, jitter always, flip, normalise.

    ``strength`` is of brightness, contrast, saturation and hue.

    Args:
      gray: probability of a grey image.
      strength: of the jitter's brightness, contrast, saturation and hue.
    """
    values = Chain(_sometimes(gray, "gray", _grayscale), _jitter(*_four(strength), style="torchvision"))
    view = Chain(
        _crop(size, crop_min, crop_max, ratio, sampler, method, antialias),
        _on_color(values, color_channels),
        _flip(flip),
        _turn(quarter_turns),
        _clip,
        normalization := _normalization(mean, std, color_channels),
    )
    return Augmentation((view,) * views, _evaluation(size, eval_crop, method, antialias, normalization))


def moco_v2(
    size: int,
    views: int,
    *,
    crop_min: float = 0.2,
    crop_max: float = 1.0,
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    sampler: str = "torchvision",
    flip: float = 0.5,
    quarter_turns: bool = False,
    jitter: float = 0.8,
    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),
    gray: float = 0.2,
    blur: float = 0.5,
    method: str = "bilinear",
    antialias: bool = True,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = IMAGENET_MEAN,
    std: tuple[float, ...] | None = IMAGENET_STD,
    eval_crop: float | None = None,
) -> Augmentation:
    """MoCo v2 (Chen et al., 2020): crop, jitter, grey, blur, flip, normalise.

    The blur is a true Gaussian with repeated edges, cut at 6 pixels, where MoCo has PIL's approximation.

    Args:
      jitter: probability of a colour jitter.
      gray: probability of a grey image.
      blur: probability of a Gaussian blur.
      strength: of the jitter's brightness, contrast, saturation and hue.
    """
    jitterer = _jitter(*_four(strength), style="torchvision")
    view = Chain(
        _crop(size, crop_min, crop_max, ratio, sampler, method, antialias),
        _on_color(_distortion(jitter, jitterer, gray, blur, edges="edge"), color_channels),
        _flip(flip),
        _turn(quarter_turns),
        _clip,
        normalization := _normalization(mean, std, color_channels),
    )
    return Augmentation((view,) * views, _evaluation(size, eval_crop, method, antialias, normalization))


def byol(
    size: int,
    views: int,
    *,
    crop_min: float = 0.08,
    crop_max: float = 1.0,
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    sampler: str = "torchvision",
    flip: float = 0.5,
    quarter_turns: bool = False,
    jitter: float = 0.8,
    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1),
    gray: float = 0.2,
    blur: tuple[float, ...] = (1.0, 0.1),
    solarize: tuple[float, ...] = (0.0, 0.2),
    method: str = "bicubic",
    antialias: bool = False,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = IMAGENET_MEAN,
    std: tuple[float, ...] | None = IMAGENET_STD,
    eval_crop: float | None = None,
) -> Augmentation:
    """BYOL (Grill et al., 2020), as its JAX code has it: views differ in how likely they blur and solarise.

    Crop (bicubic, clipped), flip, jitter in random order with additive brightness, grey, blur, solarise,
    normalise. MoCo v3's probabilities and strengths are the same, with ``crop_min=0.2``.

    Args:
      jitter: probability of a colour jitter.
      gray: probability of a grey image.
      blur: probability of a Gaussian blur, one of each view.
      strength: of the jitter's brightness, contrast, saturation and hue.
      solarize: probability of solarising, one of each view.
    """
    for name, probabilities in (("blur", blur), ("solarize", solarize)):
        if len(probabilities) != views:
            raise ValueError(
                f"{name} is {probabilities!r}, allowed is a tuple of {views} probabilities, one for each view"
            )
    normalization = _normalization(mean, std, color_channels)
    jitterer = _jitter(*_four(strength), additive=True)

    def view(*probabilities):
        return Chain(
            _crop(size, crop_min, crop_max, ratio, sampler, method, antialias),
            _clip,
            _flip(flip),
            _on_color(_distortion(jitter, jitterer, gray, *probabilities, edges="zero"), color_channels),
            _turn(quarter_turns),
            _clip,
            normalization,
        )

    each = tuple(view(*probabilities) for probabilities in zip(blur, solarize, strict=True))
    return Augmentation(each, _evaluation(size, eval_crop, method, antialias, normalization))


def macl(
    size: int,
    views: int,
    *,
    crop_min: float = 0.08,
    crop_max: float = 1.0,
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    sampler: str = "torchvision",
    flip: float = 0.5,
    quarter_turns: bool = False,
    jitter: float = 0.8,
    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),
    gray: float = 0.2,
    method: str = "bilinear",
    antialias: bool = True,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    eval_crop: float | None = None,
) -> Augmentation:
    """MACL (Huang et al., 2023) on CIFAR and STL-10: crop, jitter, flip, grey; no blur.

    The paper names the four operations and no numbers: strengths, probabilities and no normalisation are
    assumed.

    Args:
      jitter: probability of a colour jitter.
      strength: of the jitter's brightness, contrast, saturation and hue.
      gray: probability of a grey image.
    """
    jitterer = _jitter(*_four(strength), style="torchvision")
    view = Chain(
        _crop(size, crop_min, crop_max, ratio, sampler, method, antialias),
        _flip(flip),
        _on_color(_distortion(jitter, jitterer, gray), color_channels),
        _turn(quarter_turns),
        _clip,
        normalization := _normalization(mean, std, color_channels),
    )
    return Augmentation((view,) * views, _evaluation(size, eval_crop, method, antialias, normalization))


def digits(
    size: int,
    views: int,
    *,
    crop_min: float = 0.6,
    crop_max: float = 1.0,
    ratio: tuple[float, float] = (0.8, 1.25),
    sampler: str = "continuous",
    flip: float = 0.0,
    quarter_turns: bool = False,
    shift: float = 1.0,
    slant: float = 0.3,
    brightness: float = 0.2,
    contrast: float = 0.2,
    noise: float = 0.05,
    erase: float = 0.0,
    erase_sides: tuple[int, int] = (2, 3),
    method: str = "bilinear",
    antialias: bool = False,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    eval_crop: float = 1.0,
) -> Augmentation:
    """Our recipe for small images of characters (8 x 8 to 28 x 28): no flips, which make other characters.

    Slant of up to ``slant`` pixels a row, crop in fractions of a pixel, moved by up to ``shift`` pixels each
    way (black outside), factors 1 ± ``brightness`` and 1 ± ``contrast``, Gaussian ``noise`` (standard
    deviation), and with probability ``erase`` a black rectangle with sides in ``erase_sides`` pixels.
    Slant and shift blacken margins in all channels: set both to 0 where further channels are bits.

    Args:
      shift: largest move either way, in pixels; black comes in.
      slant: largest slant, in pixels a row.
      brightness: factors of brightness lie within 1 plus or minus this.
      contrast: factors of contrast lie within 1 plus or minus this.
      noise: standard deviation of Gaussian noise.
      erase: probability of a black rectangle.
      erase_sides: smallest and largest side of that rectangle, in pixels.
    """
    for name, value in (("shift", shift), ("slant", slant), ("noise", noise)):
        _check(value, name, 0, math.inf)
    if not (len(erase_sides) == 2 and 1 <= erase_sides[0] <= erase_sides[1] <= size):
        raise ValueError(
            f"erase_sides is {erase_sides!r}, allowed are two numbers of pixels from 1 to {size} in order"
        )
    values = Chain(
        _jitter(brightness, contrast, 0.0, 0.0) if brightness or contrast else same,
        functools.partial(color.gaussian_noise, scale=noise) if noise else same,
        _sometimes(
            erase, "erase", functools.partial(color.erase, smallest=erase_sides[0], largest=erase_sides[1])
        ),
    )
    view = Chain(
        _slant(slant),
        _crop(size, crop_min, crop_max, ratio, sampler, method, antialias, shift=shift),
        _on_color(values, color_channels),
        _flip(flip),
        _turn(quarter_turns),
        _clip,
        normalization := _normalization(mean, std, color_channels),
    )
    return Augmentation((view,) * views, _evaluation(size, eval_crop, method, antialias, normalization))


def crop_only(
    size: int,
    views: int,
    *,
    crop_min: float = 0.08,
    crop_max: float = 1.0,
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    sampler: str = "tf",
    flip: float = 0.0,
    quarter_turns: bool = False,
    method: str = "bicubic",
    antialias: bool = False,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    eval_crop: float = 1.0,
) -> Augmentation:
    """Random crop and resize alone: MultiDigits of Intriguing Properties (Chen et al., 2021).

    Evaluation sees the whole image: a digit at its edge counts. The crop's area is assumed to be SimCLR's.
    """
    view = Chain(
        _crop(size, crop_min, crop_max, ratio, sampler, method, antialias),
        _flip(flip),
        _turn(quarter_turns),
        _clip,
        normalization := _normalization(mean, std, color_channels),
    )
    return Augmentation((view,) * views, _evaluation(size, eval_crop, method, antialias, normalization))


def none(
    size: int,
    views: int,
    *,
    method: str = "bicubic",
    antialias: bool = False,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    eval_crop: float = 1.0,
) -> Augmentation:
    """No augmentation: every view is what evaluation sees, the largest centred square at ``size``."""
    evaluate = _evaluation(size, eval_crop, method, antialias, _normalization(mean, std, color_channels))
    return Augmentation((evaluate,) * views, evaluate)


# The steps that presets are made of: (key, image) -> image.


def _clipped(key, image):
    return color.clip(image)


_clip = Step(_clipped)


def _grayscale(key, image):
    return color.grayscale(image)


def _solarize(key, image):
    return color.solarize(image)


def _slant(largest):
    def slanted(key, image):
        return geometry.slant(image, geometry.between(-largest, largest, geometry.uniform(key)))

    return Step(slanted, "slant", largest) if largest else same  # black comes in


def _sometimes(probability, name, step):
    """The step with a probability; always or never is decided here, not on the device."""
    _check(probability, name, 0, 1)
    if probability in (0, 1):
        return step if probability else same

    def perhaps(key, image):
        coin, key = jax.random.split(key)
        return jnp.where(geometry.uniform(coin) < probability, step(key, image), image)

    return perhaps


def _on_color(step, color_channels):
    """The step on the leading colour channels; the others pass by."""
    _check_color_channels(color_channels)

    def apply(key, image):
        count = _count_color(image.shape[-1], color_channels)
        return jnp.concatenate([step(key, image[..., :count]), image[..., count:]], axis=-1)

    count = functools.partial(_count_color, color_channels=color_channels)
    return Step(apply, "color_channels", color_channels, count)


def _count_color(channels, color_channels):
    count = color_channels or (3 if channels >= 3 else 1)
    if count > channels:
        raise ValueError(f"color_channels is {count}, the image has only {channels}")
    return count


def _crop(size, crop_min, crop_max, ratio, sampler, method, antialias, shift=0.0):
    _check_choice(sampler, "sampler", geometry.SAMPLERS)
    _check_choice(method, "method", tuple(geometry.KERNELS))
    if not 0 < crop_min <= crop_max <= 1:
        raise ValueError(
            f"crop_min and crop_max are {crop_min!r} and {crop_max!r}, allowed: 0 < crop_min <= crop_max <= 1"
        )
    if not (len(ratio) == 2 and 0 < ratio[0] <= ratio[1]):
        raise ValueError(f"ratio is {ratio!r}, allowed are two positive numbers in order, width over height")
    return RandomCrop(size, (crop_min, crop_max), tuple(ratio), sampler, method, antialias, shift)


def _flip(probability):
    _check(probability, "flip", 0, 1)
    return Step(functools.partial(geometry.horizontal_flip, probability=probability)) if probability else same


def _turn(quarter_turns):
    return Step(geometry.quarter_turn) if quarter_turns else same


def _distortion(jitter, jitterer, gray, blur=0.0, solarize=0.0, *, edges="edge"):
    """Jitter, grey, blur, solarise, each with its probability: what most recipes do to colours."""
    return Chain(
        _sometimes(jitter, "jitter", jitterer),
        _sometimes(gray, "gray", _grayscale),
        _sometimes(blur, "blur", _blur(edges)),
        _sometimes(solarize, "solarize", _solarize),
    )


def _jitter(brightness, contrast, saturation, hue, *, style="tf", additive=False):
    for name, value in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation)):
        _check(value, f"{name} strength", 0, math.inf)
    _check(hue, "hue strength", 0, 0.5)
    return functools.partial(
        color.color_jitter,
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=hue,
        style=style,
        additive=additive,
    )


def _four(strength):
    if len(strength) != 4:
        raise ValueError(
            f"strength is {strength!r}, allowed are four numbers: brightness, contrast, saturation, hue"
        )
    return strength


def _blur(edges, smallest=0.1, largest=2.0):
    """Sigma uniform in 0.1 to 2 pixels; SimCLR's taps with zero edges, else 3 times the largest sigma."""

    def blur(key, image):
        sigma = geometry.between(smallest, largest, geometry.uniform(key))
        taps = color.simclr_taps(image.shape[0]) if edges == "zero" else 2 * math.ceil(3 * largest) + 1
        return image if taps == 1 else color.gaussian_blur(image, sigma, taps=taps, edges=edges)

    return blur


def _normalization(mean, std, color_channels):
    _check_color_channels(color_channels)
    if mean is None and std is None:
        return same
    if mean is None or std is None or len(mean) != len(std) or not all(s > 0 for s in std):
        raise ValueError(
            f"mean and std are {mean!r} and {std!r}, allowed: tuples of one length, std positive, or None"
        )

    def normalization(key, image):
        channels = image.shape[-1]
        count = _count_color(channels, color_channels)
        if len(mean) not in (count, channels):
            raise ValueError(
                f"mean has {len(mean)} entries, allowed: {count} (colour channels), {channels} (all), or None"
            )
        rest = channels - len(mean)
        return color.normalize(image, (*mean, *[0.0] * rest), (*std, *[1.0] * rest))

    return Step(normalization)


def _evaluation(size, eval_crop, method, antialias, normalization):
    """Centre crop, clip, normalise: no randomness."""
    _check_choice(method, "method", tuple(geometry.KERNELS))
    proportion = (0.875 if size > 32 else 1.0) if eval_crop is None else eval_crop
    if not 0 < proportion <= 1:
        raise ValueError(f"eval_crop is {eval_crop!r}, allowed is a number above 0 up to 1, or None")

    return Chain(CenterCrop(size, proportion, method, antialias), _clip, normalization)


def _check(value, name, low, high):
    if not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, allowed is a number from {low} to {high}")


def _check_choice(value, name, allowed):
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, allowed are {', '.join(allowed)}")


def _check_color_channels(value):
    if value not in (None, 1, 3):
        raise ValueError(f"color_channels is {value!r}, allowed are 1, 3 and None")
