"""The pipeline that presets are rows of: every function here makes a step, ``(key, image) -> image``, of its options.

Keyword-only parameters are options of the presets that have the step; the others are fixed by a preset's row. A
tuple of steps is a chain on the colour channels alone: further channels (bits, infrared) pass by.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.augment import color, geometry
from contrastive_jax.augment.crops import CenterCrop, Chain, RandomCrop, Step, same


class Augmentation(NamedTuple):
    """The result of a preset: ``(key, image) -> image`` for each view and for evaluation, whose key is None.

    One step of every chain is a crop; on the host it may be taken ahead of the others.
    """

    views: tuple[Chain, ...]
    evaluate: Chain


@dataclasses.dataclass(frozen=True)
class Normalization(Step):
    """The step that subtracts ``mean`` and divides by ``std``, of the leading channels."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def augmentation(
    size: int, views: int, *, steps: Sequence, by_view: Sequence[str], **options: Any
) -> Augmentation:
    """Return the views of some steps, one chain for all unless options are given ``by_view``, and evaluation's.

    Raises:
      ValueError: an option out of range.
    """
    for name in by_view:
        if not _is_row(options[name]) or len(options[name]) != views:
            raise ValueError(
                f"{name} is {options[name]!r}, allowed is a tuple of {views} probabilities, one for each view"
            )

    def make(step, options):
        if isinstance(step, tuple):
            return _on_color(Chain(*(make(inner, options) for inner in step)), options["color_channels"])
        return step(size, **_taken(step, options))

    def chain(options):
        return Chain(*(make(step, options) for step in steps))

    evaluate = evaluation(size, **_taken(evaluation, options))
    if not steps:
        return Augmentation((evaluate,) * views, evaluate)
    if not by_view:
        return Augmentation((chain(options),) * views, evaluate)
    each = (options | {name: options[name][view] for name in by_view} for view in range(views))
    return Augmentation(tuple(map(chain, each)), evaluate)


def crops_alone(whole: Augmentation, crop_min: float, probability: float) -> Chain:
    """Return random crops, and mirror images with a probability: the boxes, the resizing and the turns of a preset's
    first view, and what its evaluation does beside the crop."""
    drawn, seen = whole.views[0], whole.evaluate
    box = drawn.steps[drawn.crop]
    if isinstance(box, RandomCrop):
        box = dataclasses.replace(box, area=(crop_min, 1.0), shift=0.0)
    else:
        box = crop(box.size, crop_min=crop_min, method=box.method, antialias=box.antialias)
    turns = turn(box.size, quarter_turns=True)
    steps = (box, flip(box.size, flip=probability), turns if turns in drawn.steps else same)
    return Chain(*seen.steps[: seen.crop], *steps, *seen.steps[seen.crop + 1 :])


def _taken(function: Callable, options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in inspect.signature(function).parameters if name in options}


def evaluation(
    size: int,
    *,
    method: str = "bicubic",
    antialias: bool = False,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    eval_crop: float | None = None,
) -> Chain:
    """Return evaluation's view: centre crop, clip, normalise; no randomness."""
    _check_choice(method, "method", tuple(geometry.KERNELS))
    proportion = (0.875 if size > 32 else 1.0) if eval_crop is None else eval_crop
    if not 0 < proportion <= 1:
        raise ValueError(f"eval_crop is {eval_crop!r}, allowed is a number above 0 up to 1, or None")
    normalization = normalize(size, mean=mean, std=std, color_channels=color_channels)
    return Chain(CenterCrop(size, proportion, method, antialias), clip(size), normalization)


# ------------------------------------------------------------------------------------------------ places


def crop(
    size: int,
    shift: float = 0.0,
    *,
    crop_min: float = 0.08,
    crop_max: float = 1.0,
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    sampler: str = "tf",
    method: str = "bicubic",
    antialias: bool = False,
) -> RandomCrop:
    """Return a random crop, resized."""
    _check(shift, "shift", 0, math.inf)
    _check_choice(sampler, "sampler", geometry.SAMPLERS)
    _check_choice(method, "method", tuple(geometry.KERNELS))
    if not 0 < crop_min <= crop_max <= 1:
        raise ValueError(
            f"crop_min and crop_max are {crop_min!r} and {crop_max!r}, allowed: 0 < crop_min <= crop_max <= 1"
        )
    if not (_is_row(ratio) and len(ratio) == 2 and 0 < ratio[0] <= ratio[1]):
        raise ValueError(f"ratio is {ratio!r}, allowed are two positive numbers in order, width over height")
    return RandomCrop(size, (crop_min, crop_max), tuple(ratio), sampler, method, antialias, shift)


def slant(size: int, *, slant: float = 0.3) -> Callable:
    """Return a slant; black comes in."""
    _check(slant, "slant", 0, math.inf)

    def slanted(key, image):
        return geometry.slant(image, geometry.between(-slant, slant, geometry.uniform(key)))

    return Step(slanted, "slant", slant) if slant else same


def flip(size: int, *, flip: float = 0.5) -> Callable:
    """Return a mirror image, with a probability."""
    _check(flip, "flip", 0, 1)
    return Step(functools.partial(geometry.horizontal_flip, probability=flip)) if flip else same


def turn(size: int, *, quarter_turns: bool = False) -> Callable:
    """Return a turn by a multiple of 90 degrees."""
    return Step(geometry.quarter_turn) if quarter_turns else same


# ------------------------------------------------------------------------------------------------ values


def nothing(size: int) -> Callable:
    """Return the step that does nothing, in a place whose key is drawn."""
    return same


CLIP = Step(lambda key, image: color.clip(image))


def clip(size: int) -> Callable:
    """Return a clip to [0, 1]."""
    return CLIP


def jitter(
    size: int,
    style: str = "tf",
    additive: bool = False,
    *,
    jitter: float = 0.8,
    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),
) -> Callable:
    """Return a jitter of brightness, contrast, saturation and hue in random order, with a probability."""
    if not _is_row(strength) or len(strength) != 4:
        raise ValueError(
            f"strength is {strength!r}, allowed are four numbers: brightness, contrast, saturation, hue"
        )
    names = ("brightness", "contrast", "saturation", "hue")
    for name, value, most in zip(names, strength, (math.inf, math.inf, math.inf, 0.5), strict=True):
        _check(value, f"{name} strength", 0, most)
    strengths = dict(zip(names, strength, strict=True))
    step = functools.partial(color.color_jitter, **strengths, style=style, additive=additive)
    return _sometimes(jitter, "jitter", step)


def scaled_jitter(
    size: int,
    *,
    strength: float = 1.0,
    jitter: float = 0.8,
    brightness: str = "multiplicative",
) -> Callable:
    """Return SimCLR's jitter: strengths (0.8, 0.8, 0.8, 0.2) times one number."""
    _check(strength, "strength", 0, math.inf)
    _check_choice(brightness, "brightness", ("multiplicative", "additive"))
    strengths = tuple(s * strength for s in (0.8, 0.8, 0.8, 0.2))
    return _jitter(size, additive=brightness == "additive", jitter=jitter, strength=strengths)


_jitter = jitter  # whose name is an option's, too


def light(size: int, *, brightness: float = 0.2, contrast: float = 0.2) -> Callable:
    """Return factors of brightness and contrast, always."""
    return jitter(size, jitter=float(bool(brightness or contrast)), strength=(brightness, contrast, 0.0, 0.0))


def gray(size: int, *, gray: float = 0.2) -> Callable:
    """Return a grey image, with a probability."""
    return _sometimes(gray, "gray", lambda key, image: color.grayscale(image))


def blur(size: int, edges: str = "zero", *, blur: float = 0.5) -> Callable:
    """Return a Gaussian blur, with a probability: sigma uniform in 0.1 to 2 pixels; SimCLR's taps with zero edges, else
    3 times the largest sigma."""
    smallest, largest = 0.1, 2.0

    def blurred(key, image):
        sigma = geometry.between(smallest, largest, geometry.uniform(key))
        image = color.clip(image)  # bicubic resizing overshoots
        taps = color.simclr_taps(image.shape[0]) if edges == "zero" else 2 * math.ceil(3 * largest) + 1
        return image if taps == 1 else color.gaussian_blur(image, sigma, taps=taps, edges=edges)

    return _sometimes(blur, "blur", blurred)


def solarize(size: int, *, solarize: float = 0.0) -> Callable:
    """Return an image inverted where it is bright, with a probability."""
    return _sometimes(solarize, "solarize", lambda key, image: color.solarize(image))


def noise(size: int, *, noise: float = 0.05) -> Callable:
    """Return Gaussian noise."""
    _check(noise, "noise", 0, math.inf)
    return functools.partial(color.gaussian_noise, scale=noise) if noise else same


def erase(size: int, *, erase: float = 0.0, erase_sides: tuple[int, int] = (2, 3)) -> Callable:
    """Return a black rectangle, with a probability."""
    if not (_is_row(erase_sides) and len(erase_sides) == 2 and 1 <= erase_sides[0] <= erase_sides[1] <= size):
        raise ValueError(
            f"erase_sides is {erase_sides!r}, allowed are two numbers of pixels from 1 to {size} in order"
        )
    smallest, largest = erase_sides
    return _sometimes(erase, "erase", functools.partial(color.erase, smallest=smallest, largest=largest))


def normalize(
    size: int,
    *,
    color_channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Callable:
    """Return an image less its mean, over its standard deviation."""
    _check_color_channels(color_channels)
    if mean is None and std is None:
        return same
    if not (_is_row(mean) and _is_row(std) and len(mean) == len(std) and all(s > 0 for s in std)):
        raise ValueError(
            f"mean and std are {mean!r} and {std!r}, allowed: tuples of one length, std positive, or None"
        )

    def normalized(key, image):
        channels = image.shape[-1]
        count = _count_color(channels, color_channels)
        if len(mean) not in (count, channels):
            raise ValueError(
                f"augment.mean and augment.std have {len(mean)} entries, and images {channels}"
                f" channel{'s' if channels > 1 else ''}, allowed: {count} (colour channels)"
                + (f", {channels} (all)" if channels != count else "")
                + ", or None: set --config.augment.mean=None --config.augment.std=None"
                + (f", or data.channels={len(mean)} for a folder" if channels == 1 and len(mean) == 3 else "")
            )
        rest = channels - len(mean)
        return color.normalize(image, (*mean, *[0.0] * rest), (*std, *[1.0] * rest))

    return Normalization(normalized, mean=tuple(mean), std=tuple(std))


# ------------------------------------------------------------------------------------------------ in common


def _sometimes(probability: float, name: str, step: Callable) -> Callable:
    """Return the step with a probability; always or never is decided here, not on the device."""
    _check(probability, name, 0, 1)
    if probability in (0, 1):
        return step if probability else same

    def perhaps(key, image):
        coin, key = jax.random.split(key)
        return jnp.where(geometry.uniform(coin) < probability, step(key, image), image)

    return perhaps


def _on_color(step: Chain, color_channels: int | None) -> Step:
    """Return the step on the leading colour channels; the others pass by."""
    _check_color_channels(color_channels)

    def apply(key, image):
        count = _count_color(image.shape[-1], color_channels)
        return jnp.concatenate([step(key, image[..., :count]), image[..., count:]], axis=-1)

    count = functools.partial(_count_color, color_channels=color_channels)
    return Step(apply, "color_channels", color_channels, count)


def _count_color(channels: int, color_channels: int | None) -> int:
    count = color_channels or (3 if channels >= 3 else 1)
    if count > channels:
        raise ValueError(f"color_channels is {count}, the image has only {channels}")
    return count


def _is_row(value: object) -> TypeGuard[tuple]:
    """Return whether a value is a row of numbers: a tuple, list or array."""
    return np.ndim(value) == 1


def _check(value: float, name: str, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, allowed is a number from {low} to {high}")


def _check_choice(value: str, name: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, allowed are {', '.join(allowed)}")


def _check_color_channels(value: int | None) -> None:
    if value not in (None, 1, 3):
        raise ValueError(f"color_channels is {value!r}, allowed are 1, 3 and None")
