"""Steps of the augmentation pipeline: functions of options that return a step, ``(key, image) -> image``.

Keyword-only parameters are options of the presets with this step; a preset fixes the others. A tuple of steps
is a chain on the colour channels only, as planes ``[c, h, w]``, which leaves other channels (bits, infrared)
unchanged.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.augment import color, geometry
from contrastive_jax.augment.crops import CenterCrop, Chain, RandomCrop, Step, same
from contrastive_jax.kinds import (
    Count,
    Fraction,
    Ge,
    Le,
    NonNegative,
    Positive,
    PositiveFraction,
    checked,
)

Method = Literal["bicubic", "bilinear"]
Hue = Annotated[float, Ge(0), Le(0.5)]


class Augmentation(NamedTuple):
    """The result of a preset: ``(key, image) -> image`` for each view and for evaluation, whose key is None.

    One step of every chain is a crop, which may run on the host before the others.
    """

    views: tuple[Chain, ...]
    evaluate: Chain


@dataclasses.dataclass(frozen=True)
class Normalization(Step):
    """Step that subtracts ``mean`` from the leading channels and divides them by ``std``."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def augmentation(
    size: int, views: int, *, steps: Sequence, by_view: Sequence[str], **options: Any
) -> Augmentation:
    """Return the chains of the views, equal unless there are options ``by_view``, and that of evaluation.

    Raises:
      ValueError: an option out of range.
    """
    for name in by_view:
        if not _is_row(options[name]) or len(options[name]) != views:
            raise ValueError(
                f"augment.{name} is {options[name]!r}; it must be a tuple of {views} probabilities, one"
                " for each view (the last one for all local views, if there are any)."
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
    """Return a chain of random crops and flips for evaluators that train on augmented images.

    Box, resizing and quarter turns are those of the preset's first view; the steps before and after them are
    those of its evaluation.
    """
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


@checked("augment")
def evaluation(
    size: int,
    *,
    method: Method = "bicubic",
    antialias: bool = False,
    color_channels: Literal[1, 3] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[Positive, ...] | None = None,
    eval_crop: PositiveFraction | None = None,
) -> Chain:
    """Return evaluation's chain without randomness: centre crop, clip, normalise."""
    proportion = (0.875 if size > 32 else 1.0) if eval_crop is None else eval_crop
    normalization = normalize(size, mean=mean, std=std, color_channels=color_channels)
    return Chain(CenterCrop(size, proportion, method, antialias), clip(size), normalization)


# ------------------------------------------------------------------------------------------------ places


@checked("augment")
def crop(
    size: int,
    shift: float = 0.0,
    *,
    crop_min: PositiveFraction = 0.08,
    crop_max: PositiveFraction = 1.0,
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3),
    sampler: Literal["torchvision", "tf", "continuous"] = "tf",
    method: Method = "bicubic",
    antialias: bool = False,
) -> RandomCrop:
    """Return the step that crops a random box and resizes it."""
    if not shift >= 0:
        raise ValueError(f"augment.shift is {shift!r}; it must be at least 0.")
    if crop_min > crop_max:
        raise ValueError(
            f"augment.crop_min is {crop_min!r}; it must be at most augment.crop_max, {crop_max!r}."
        )
    narrowest, widest = ratio
    if narrowest > widest:
        raise ValueError(f"augment.ratio is {ratio!r}; the first number must be at most the second.")
    return RandomCrop(size, (crop_min, crop_max), (narrowest, widest), sampler, method, antialias, shift)


@checked("augment")
def slant(size: int, *, slant: NonNegative = 0.3) -> Callable:
    """Return the step that slants the image and fills the margins with black."""

    def slanted(key, image):
        return geometry.slant(image, geometry.between(-slant, slant, geometry.uniform(key)))

    return Step(slanted, "slant", slant) if slant else same


@checked("augment")
def flip(size: int, *, flip: Fraction = 0.5) -> Callable:
    """Return the step that flips left and right with a probability."""
    return Step(functools.partial(geometry.horizontal_flip, probability=flip)) if flip else same


def turn(size: int, *, quarter_turns: bool = False) -> Callable:
    """Return the step that rotates by a random multiple of 90 degrees."""
    return Step(geometry.quarter_turn) if quarter_turns else same


# ------------------------------------------------------------------------------------------------ values


def nothing(size: int) -> Callable:
    """Return the step that does nothing but still has its own key."""
    return same


CLIP = Step(lambda key, image: color.clip(image))


def clip(size: int) -> Callable:
    """Return the step that clips to [0, 1]."""
    return CLIP


@checked("augment")
def jitter(
    size: int,
    style: str = "tf",
    additive: bool = False,
    *,
    jitter: Fraction = 0.8,
    strength: tuple[NonNegative, NonNegative, NonNegative, Hue] = (0.4, 0.4, 0.4, 0.1),
) -> Callable:
    """Return the step that jitters brightness, contrast, saturation and hue with a probability.

    The order of the four is random.
    """
    strengths = dict(zip(("brightness", "contrast", "saturation", "hue"), strength, strict=True))
    step = functools.partial(color.color_jitter, **strengths, style=style, additive=additive, axis=0)
    return _sometimes(jitter, step)


@checked("augment")
def scaled_jitter(
    size: int,
    *,
    strength: Annotated[float, Ge(0), Le(2.5)] = 1.0,
    jitter: Fraction = 0.8,
    brightness: Literal["multiplicative", "additive"] = "multiplicative",
) -> Callable:
    """Return SimCLR's jitter, with strengths (0.8, 0.8, 0.8, 0.2) times ``strength``."""
    strengths = (0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    return _jitter(size, additive=brightness == "additive", jitter=jitter, strength=strengths)


_jitter = jitter  # an option of the same name shadows it


@checked("augment")
def light(size: int, *, brightness: NonNegative = 0.2, contrast: NonNegative = 0.2) -> Callable:
    """Return the step that always jitters brightness and contrast."""
    return jitter(size, jitter=float(bool(brightness or contrast)), strength=(brightness, contrast, 0.0, 0.0))


@checked("augment")
def gray(size: int, *, gray: Fraction = 0.2) -> Callable:
    """Return the step that makes images grey with a probability."""
    return _sometimes(gray, lambda key, planes: color.grayscale(planes, axis=0))


@checked("augment")
def blur(size: int, edges: str = "zero", *, blur: Fraction = 0.5) -> Callable:
    """Return the step that blurs with a probability by a Gaussian, sigma uniform in 0.1 to 2 pixels.

    The kernel has SimCLR's taps with zero edges, otherwise a radius of 3 times the largest sigma.
    """
    smallest, largest, none = 0.1, 2.0, 0.01  # of 0.01 pixels float32 has the identity, exactly

    def blurred(key, planes, drawn=True):
        sigma = jnp.where(drawn, geometry.between(smallest, largest, geometry.uniform(key)), none)
        planes = jnp.where(drawn, color.clip(planes), planes)  # bicubic resizing overshoots
        taps = color.simclr_taps(planes.shape[1]) if edges == "zero" else 2 * math.ceil(3 * largest) + 1
        return planes if taps == 1 else color.gaussian_blur(planes, sigma, taps=taps, edges=edges, axis=0)

    def perhaps(key, planes):
        # A choice between the image and the blurred one would compute the steps before it twice on a CPU.
        coin, key = jax.random.split(key)
        return blurred(key, planes, geometry.uniform(coin) < blur)

    return _sometimes(blur, blurred) if blur in (0, 1) else perhaps


@checked("augment")
def solarize(size: int, *, solarize: Fraction = 0.0) -> Callable:
    """Return the step that solarises (inverts bright pixels) with a probability."""
    return _sometimes(solarize, lambda key, planes: color.solarize(planes))


@checked("augment")
def noise(size: int, *, noise: NonNegative = 0.05) -> Callable:
    """Return the step that adds Gaussian noise."""
    return functools.partial(color.gaussian_noise, scale=noise, axis=0) if noise else same


@checked("augment")
def erase(size: int, *, erase: Fraction = 0.0, erase_sides: tuple[Count, Count] = (2, 3)) -> Callable:
    """Return the step that blackens a rectangle with a probability."""
    if not erase_sides[0] <= erase_sides[1] <= size:
        raise ValueError(
            f"augment.erase_sides is {erase_sides!r}; it must be two sides in ascending order, at most"
            f" augment.size, {size}."
        )
    smallest, largest = erase_sides
    return _sometimes(erase, functools.partial(color.erase, smallest=smallest, largest=largest, axis=0))


@checked("augment")
def normalize(
    size: int,
    *,
    color_channels: Literal[1, 3] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[Positive, ...] | None = None,
) -> Callable:
    """Return the step that subtracts ``mean`` and divides by ``std``."""
    if mean is None and std is None:
        return same
    if mean is None or std is None or len(mean) != len(std):
        raise ValueError(
            f"augment.mean is {mean!r} and augment.std is {std!r}; they must be tuples of one length,"
            " or both None."
        )

    def normalized(key, image):
        channels = image.shape[-1]
        count = _count_color(channels, color_channels)
        if len(mean) not in (count, channels):
            raise ValueError(
                f"augment.mean and augment.std have {len(mean)} entries, and images have {channels}"
                f" channel{'s' if channels > 1 else ''}; allowed: {count} (colour channels)"
                + (f", {channels} (all)" if channels != count else "")
                + ", or None: set --config.augment.mean=None --config.augment.std=None"
                + (f", or data.channels={len(mean)} for a folder" if channels == 1 and len(mean) == 3 else "")
            )
        rest = channels - len(mean)
        return color.normalize(image, (*mean, *[0.0] * rest), (*std, *[1.0] * rest))

    return Normalization(normalized, mean=tuple(mean), std=tuple(std))


# ------------------------------------------------------------------------------------------------ in common


def _sometimes(probability: float, step: Callable) -> Callable:
    """Return the step applied with a probability; 0 and 1 are resolved without a draw on the device."""
    if probability in (0, 1):
        return step if probability else same

    def perhaps(key, image):
        coin, key = jax.random.split(key)
        return jnp.where(geometry.uniform(coin) < probability, step(key, image), image)

    return perhaps


def _on_color(step: Chain, color_channels: int | None) -> Step:
    """Return the step on planes as a step on images, applied to the leading colour channels only."""

    def apply(key, image):
        count = _count_color(image.shape[-1], color_channels)
        planes = step(key, jnp.moveaxis(image[..., :count], -1, 0))
        return jnp.concatenate([jnp.moveaxis(planes, 0, -1), image[..., count:]], axis=-1)

    count = functools.partial(_count_color, color_channels=color_channels)
    return Step(apply, "color_channels", color_channels, count)


def _count_color(channels: int, color_channels: int | None) -> int:
    count = color_channels or (3 if channels >= 3 else 1)
    if count > channels:
        raise ValueError(
            f"augment.color_channels is {count}; it must be at most {channels}, the channels of the image."
        )
    return count


def _is_row(value: Any) -> TypeGuard[tuple]:
    """Return whether a value is one-dimensional: a tuple, list or array of numbers."""
    return np.ndim(value) == 1
