"""Published augmentation recipes: their sources and their differences from the pipeline's defaults.

A preset is a function of this module. It takes the size and number of views and the options of its steps, and
returns an :class:`~contrastive_jax.augment.pipeline.Augmentation`. Images are float32 ``[h, w, c]`` in [0, 1]
before the optional normalisation, the last step in training and evaluation.

Args:
  crop_min: smallest area of the random crop, as a share of the image.
  crop_max: largest area of the random crop, as a share of the image.
  ratio: smallest and largest width over height of the random crop.
  sampler: how the crop's box is drawn, see :func:`~contrastive_jax.augment.geometry.draw_box`: tf (SimCLR's),
    torchvision, or continuous (fractions of a pixel).
  shift: largest translation in each direction, in pixels; black fills the gap.
  slant: largest slant, in pixels per row.
  flip: probability of a horizontal flip (mirror image); use 0 for characters.
  quarter_turns: rotate by 0, 90, 180 or 270 degrees, for images without an upright orientation (satellite,
    microscope).
  strength: of the colour jitter, a tuple for brightness, contrast, saturation and hue; for ``simclr`` one
    factor of all four, 1.0 on ImageNet and 0.5 on CIFAR.
  jitter: probability of a colour jitter.
  gray: probability of a grey image.
  blur: probability of a Gaussian blur; for ``byol`` and ``moco_v3`` one value for each view.
  solarize: probability of solarization, one value for each view.
  brightness: jitter of brightness: for ``simclr`` multiplicative (SimCLR v2) or additive (v1); for ``digits``
    the largest change of the factor from 1.
  contrast: largest change of the contrast factor from 1.
  noise: standard deviation of Gaussian noise.
  erase: probability of a black rectangle.
  erase_sides: smallest and largest side of the black rectangle, in pixels.
  method: interpolation for resizing: bicubic or bilinear.
  antialias: whether images are smoothed before they are made smaller.
  color_channels: number of leading channels for colour operations, 1 or 3; None: 3 if the image has at least 3
    channels, otherwise 1. Other channels (bits, infrared) are only cropped and flipped.
  mean: mean that is subtracted from each channel at the end: a tuple for the colour channels or for all
    channels; None: no normalization.
  std: standard deviation that each channel is divided by; None: no normalization.
  eval_crop: side of evaluation's centre crop as a share of the largest centred square; None: 0.875, and 1 for
    sizes up to 32.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from contrastive_jax.augment.pipeline import (
    augmentation,
    blur,
    clip,
    crop,
    erase,
    evaluation,
    flip,
    gray,
    jitter,
    light,
    noise,
    normalize,
    nothing,
    scaled_jitter,
    slant,
    solarize,
    turn,
)
from contrastive_jax.kinds import NonNegative, basic
from contrastive_jax.lookup import options_of, variant

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
TORCHVISION = {"sampler": "torchvision", "method": "bilinear", "antialias": True}
LAST = (turn, clip, normalize)


class Preset(NamedTuple):
    """A recipe: source, steps (colour steps in a tuple), differing defaults, and fixed parameters."""

    source: str
    steps: tuple
    differs: Mapping[str, Any] = {}
    fixed: Mapping[str, Any] = {}


PRESETS = {
    "simclr": Preset(
        "SimCLR (Chen et al., 2020), as in its TF2 code, but blur's sigma is drawn for each image;"
        " CIFAR: ``strength=0.5, blur=0.0``.",
        (crop, flip, turn, (scaled_jitter, gray, blur, nothing), clip, normalize),
    ),
    "moco_v1": Preset(
        "MoCo (He et al., 2020): crop, grey, jitter always, flip, normalise.",
        (crop, (gray, jitter), flip, *LAST),
        TORCHVISION | IMAGENET | {"crop_min": 0.2, "strength": (0.4, 0.4, 0.4, 0.4)},
        {"jitter": 1.0, "style": "torchvision"},
    ),
    "moco_v2": Preset(
        "MoCo v2 (Chen et al., 2020): crop, jitter, grey, blur (a true Gaussian cut at 6 pixels; MoCo"
        " uses PIL's approximation), flip, normalise.",
        (crop, (jitter, gray, blur, nothing), flip, *LAST),
        TORCHVISION | IMAGENET | {"crop_min": 0.2},
        {"style": "torchvision", "edges": "edge"},
    ),
    "byol": Preset(
        "BYOL (Grill et al., 2020), as in its JAX code except the crop: torchvision's box, in up to"
        " ten draws, where that code draws once and clips the box. The views have different"
        " probabilities of blur and solarization.",
        (crop, clip, flip, (jitter, gray, blur, solarize), *LAST),
        IMAGENET
        | {
            "sampler": "torchvision",
            "strength": (0.4, 0.4, 0.2, 0.1),
            "blur": (1.0, 0.1),
            "solarize": (0.0, 0.2),
        },
        {"additive": True},
    ),
    "moco_v3": Preset(
        "MoCo v3 (Chen, Xie and He, 2021): crop, jitter, grey, blur (as in ``moco_v2``), solarize, flip,"
        " normalise; BYOL's probabilities and strengths with torchvision's operations. ResNets have"
        " ``crop_min=0.2``.",
        (crop, (jitter, gray, blur, solarize), flip, *LAST),
        TORCHVISION
        | IMAGENET
        | {"strength": (0.4, 0.4, 0.2, 0.1), "blur": (1.0, 0.1), "solarize": (0.0, 0.2)},
        {"style": "torchvision", "edges": "edge"},
    ),
    "macl": Preset(
        "MACL (Huang et al., 2022) on CIFAR and STL-10: crop, jitter, flip, grey; no blur. The paper"
        " gives no numbers; strengths, probabilities and the absence of normalisation are assumed.",
        (crop, flip, (jitter, gray, nothing, nothing), *LAST),
        TORCHVISION,
        {"style": "torchvision"},
    ),
    "digits": Preset(
        "Our recipe for small images of characters (8 x 8 to 28 x 28), without flips, which turn"
        " characters into others. Slant and shift blacken margins in all channels: set both to 0 if"
        " further channels are bits.",
        (slant, crop, (light, noise, erase), flip, *LAST),
        {"crop_min": 0.6, "ratio": (0.8, 1.25), "sampler": "continuous", "method": "bilinear", "flip": 0.0}
        | {"shift": 1.0, "eval_crop": 1.0},
    ),
    "crop_only": Preset(
        "Random crop and resize only: MultiDigits of Intriguing Properties (Chen et al., 2021)."
        " Evaluation uses the whole image, since digits may lie at its edge. The crop's area is assumed"
        " to be SimCLR's.",
        (crop, flip, *LAST),
        {"flip": 0.0, "eval_crop": 1.0},
    ),
    "none": Preset(
        "No augmentation: every view is the evaluation view, the largest centred square at ``size``.",
        (),
        {"eval_crop": 1.0},
    ),
}


def _function(name: str, preset: Preset) -> Callable:
    steps = [step for place in preset.steps for step in (place if isinstance(place, tuple) else (place,))]
    known = options_of(*steps, evaluation)
    if "shift" in preset.differs:  # the other crops stay within the image
        known["shift"] = known["crop_min"].replace(name="shift", annotation=NonNegative)
    by_view = [
        n
        for n, value in preset.differs.items()
        if isinstance(value, tuple) and basic(known[n].annotation) == {float}
    ]
    for option in by_view:
        each = known[option].annotation
        known[option] = known[option].replace(annotation=tuple[each, ...])  # type: ignore[valid-type]
    options = [parameter for option, parameter in known.items() if option not in preset.fixed]
    build = functools.partial(augmentation, steps=preset.steps, by_view=by_view)
    differs = {**preset.differs, **preset.fixed}
    function = variant(build, name, __name__, preset.source, ("size", "views"), options, differs, "augment")
    function.by_view = tuple(by_view)  # type: ignore[attr-defined]  # options of one value for each view
    return function


globals().update({name: _function(name, preset) for name, preset in PRESETS.items()})
