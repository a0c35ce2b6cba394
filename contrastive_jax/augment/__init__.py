"""Augmented views of an example, computed on the device by pure functions of (key, example).

Presets of :mod:`presets` make views of an image, ``[h, w, c]`` uint8 or float in [0, 1]; those of :mod:`arrays`
make views of other examples. The functions take one example; use ``jax.vmap`` for a batch. Examples are
independent of each other, so a mesh needs no communication and the results do not depend on the number of
devices.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from contrastive_jax import sharding
from contrastive_jax.augment import arrays, crops, pipeline, presets
from contrastive_jax.augment.crops import example_keys
from contrastive_jax.kinds import Count, check
from contrastive_jax.lookup import call, functions_of, is_own, near, own
from contrastive_jax.types import Example

__all__ = [
    "EvaluationView",
    "Views",
    "arrays",
    "crops",
    "example_keys",
    "find",
    "make_crops",
    "make_eval",
    "make_views",
    "make_views_of_arrays",
    "names",
    "of_arrays",
    "options_of",
    "presets",
    "seen",
]


class Views:
    """Training views: ``(key, image) -> float32 [views, size, size, c]``, in [0, 1] unless normalized.

    View v uses the key ``fold_in(key, v)``. The two halves are ``cut``, which draws and cuts out boxes on the
    host (:class:`crops.Cut`), and ``finish``, the steps on the device after the crop.
    """

    def __init__(self, chains: tuple[crops.Chain, ...]):
        self._chains = chains

    def __call__(self, key, image):
        """Apply both halves to a whole image ``[h, w, c]``."""
        image = _to_float(image)
        if self._alike:  # one program for all views
            return jax.vmap(self._chains[0], (0, None))(self._keys(key), image)
        return jnp.stack([chain(jax.random.fold_in(key, v), image) for v, chain in enumerate(self._chains)])

    def finish(self, key, images):
        """Apply the steps after the crop to views that the host cut out, ``[views, size, size, c]`` uint8."""
        images = jax.vmap(_to_float)(images)
        if self._alike:
            return jax.vmap(self._chains[0].finish)(self._keys(key), images)
        return jnp.stack(
            [chain.finish(jax.random.fold_in(key, v), images[v]) for v, chain in enumerate(self._chains)]
        )

    @property
    def cut(self) -> crops.Cut:
        """The crops on the host; raises ValueError if a step precedes a crop, or a crop is shifted."""
        return crops.cut_of(self._chains)

    def check_constant(self, channels: int, constant: int) -> None:
        """Check that constant channels stay constant: the last ``constant`` of ``channels`` channels.

        Each of them has one value in the whole image. Steps may only move their pixels or normalise them.

        Raises:
          ValueError: options that change these channels; the message names each with a value to use instead.
        """
        touches = dict.fromkeys(touch for chain in self._chains for touch in chain.touches(channels))
        if wrong := [touch for touch in touches if touch.channels > channels - constant]:
            advice = (
                f"augment.{touch.option} is {touch.value}, use {touch.instead(channels - constant)}"
                for touch in wrong
            )
            raise ValueError(
                f"the last {constant} of {channels} channels are bits and must stay constant over an"
                f" image: {'; '.join(advice)}."
            )

    @property
    def _alike(self):
        return all(chain is self._chains[0] for chain in self._chains)

    def _keys(self, key):
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(self._chains)))


class EvaluationView:
    """Evaluation view: ``image -> float32 [size, size, c]``, cropped and normalized, in two halves as in
    :class:`Views`."""

    def __init__(self, chain: crops.Chain):
        self._chain = chain

    def __call__(self, image):
        """Apply both halves to a whole image ``[h, w, c]``."""
        return self._chain(None, _to_float(image))

    def finish(self, image):
        """Apply the steps after the crop to a square that the host cut out, ``[size, size, c]`` uint8."""
        return self._chain.finish(None, _to_float(image))

    @property
    def cut(self) -> crops.Cut:
        """The crop on the host."""
        return crops.cut_of((self._chain,))

    def cropped(self, proportion: float) -> "EvaluationView":
        """Return the view with another crop side, as a share of the largest centred square."""
        place, steps = self._chain.crop, list(self._chain.steps)
        steps[place] = dataclasses.replace(steps[place], proportion=proportion)
        return EvaluationView(crops.Chain(*steps))

    @property
    def normalization(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of the leading channels; empty if the view does not normalize."""
        steps = (step for step in self._chain.steps if isinstance(step, pipeline.Normalization))
        return next(((step.mean, step.std) for step in steps), ((), ()))

    @property
    def crop(self) -> crops.CenterCrop | None:
        """The crop, if only a clip and a normalization follow it; None if the view has other steps."""
        first, *rest = (step for step in self._chain.steps if step is not crops.same)
        plain = rest[:1] == [pipeline.CLIP] and all(isinstance(s, pipeline.Normalization) for s in rest[1:])
        return first if isinstance(first, crops.CenterCrop) and plain and len(rest) < 3 else None


class ArrayViews:
    """Training views of non-image examples: ``(key, example) -> [2, ...]``, by a preset of :mod:`arrays`."""

    def __init__(self, function: Callable, preset: str):
        self._preset = preset

        def views(key, example):
            made = function(key, example)
            if getattr(made, "shape", ())[:1] != (arrays.VIEWS,):
                found = list(made.shape) if hasattr(made, "shape") else f"a {type(made).__name__}"
                raise ValueError(
                    f"augment.preset is {preset!r}, which returned {found}; views must be [2, ...]."
                )
            return made

        self._views = jax.custom_batching.custom_vmap(views)

        @self._views.def_vmap
        def of_rows(size, batched, key, example):
            rows = jax.vmap(views, tuple(0 if one else None for one in batched))
            # Each device makes the views of its own rows, so that the function can ignore the mesh.
            return sharding.each_device(rows, (key, example)) if all(batched) else rows(key, example), True

    def __call__(self, key, example):
        """Return both views.

        Raises:
          ValueError: the function does not return two views.
        """
        return self._views(key, _as_seen(example))

    @property
    def cut(self) -> crops.Cut:
        """Raise ValueError: only images can be streamed, since the host cuts out their views."""
        raise ValueError(
            f"augment.preset is {self._preset!r}, and data is streamed; only images can be streamed:"
            " set data.stream=off."
        )


class ArrayEvaluationView:
    """Evaluation view of non-image examples: the example itself, as float32 (floats) or int32 (integers)."""

    crop = None
    normalization: tuple[tuple[float, ...], tuple[float, ...]] = (), ()

    def __call__(self, example):
        """Return the example as float32 or int32."""
        return _as_seen(example)

    def cropped(self, proportion: float) -> "ArrayEvaluationView":
        """Raise ValueError: only images are cropped."""
        raise ValueError(f"crop is {proportion:g}; it must be 0, since only images can be cropped.")


_EVALUATION = ArrayEvaluationView()  # one object, so that programs are shared


def _one_view(key, example):
    return _as_seen(example)[None]


def _as_seen(example):
    floats = jnp.issubdtype(example.dtype, jnp.floating)
    return jnp.asarray(example, jnp.float32 if floats else jnp.int32)


def find(name: Any) -> Callable | None:
    """Return a preset's function from :mod:`presets`, :mod:`arrays` or a user's module; None if unknown."""
    if is_own(name):
        return own(name, "augment.preset")
    return (functions_of(presets) | functions_of(arrays)).get(name)


def of_arrays(function: Callable) -> bool:
    """Return whether a preset makes views of arrays; presets of images have ``size`` as first argument."""
    parameters = list(inspect.signature(function).parameters.values())
    return not parameters or (
        parameters[0].kind is not parameters[0].VAR_POSITIONAL and parameters[0].name != "size"
    )


def options_of(function: Callable | None) -> tuple[Callable, ...]:
    """Return the functions whose options the section ``augment`` accepts, for a preset's function."""
    if function is None:
        return (make_views,)
    return make_views_of_arrays if of_arrays(function) else make_views, function


def seen(section: Mapping[str, Any], example: Example) -> jax.ShapeDtypeStruct:
    """Return shape and type of the network's input for an example, by the section ``augment``.

    Raises:
      ValueError: a preset of images, and an example that is not an image.
    """
    if of_arrays(_known(section["preset"])):
        floats = jnp.issubdtype(example.dtype, jnp.floating)
        return jax.ShapeDtypeStruct(example.shape, jnp.float32 if floats else jnp.int32)
    if not example.is_image:
        raise ValueError(
            f"augment.preset is {section['preset']!r}, for images, uint8 [h, w, c]; these examples are"
            f" {example}. Use {', '.join(functions_of(arrays))}, or your own function."
        )
    return jax.ShapeDtypeStruct((section["size"], section["size"], example.shape[-1]), jnp.float32)


def make_views(
    examples=None,
    /,
    *,
    preset: str,
    size: Count = None,  # type: ignore[assignment]  # None: a preset of arrays; one of images refuses it
    views: Count = 2,
    **options,
) -> Views | ArrayViews:
    """Return training views of a preset.

    Args:
      examples: the training examples ``[n, ...]``, which some presets of arrays draw from.
      preset: the recipe: one of contrastive_jax.augment.presets, or of contrastive_jax.augment.arrays.
      size: height and width of a view, in pixels.
      views: number of views per image; a training step compares 2.
      **options: options of the preset.

    Raises:
      ValueError: an unknown preset or option (the message shows the valid ones), or a value out of range.
    """
    given = {} if size is None else {"size": size}
    check(make_views, {"preset": preset, "views": views} | given, "augment")
    if of_arrays(_known(preset)):
        options |= given | ({"views": views} if views != arrays.VIEWS else {})
        return make_views_of_arrays(examples, preset=preset, **options)
    return Views(_build(preset, size, views, options).views)


def make_views_of_arrays(examples=None, /, *, preset: str, **options) -> ArrayViews:
    """Return training views of a preset of arrays.

    Args:
      examples: the training examples ``[n, ...]``.
      preset: the recipe: one of contrastive_jax.augment.arrays.
      **options: options of the preset.

    Raises:
      ValueError: an unknown option, or examples of another kind.
    """
    function = call(_known(preset), "augment", options, examples)
    if not callable(function):
        raise ValueError(
            f"augment.preset is {preset!r}, which returned a {type(function).__name__}; it must return"
            " a function (key, example) -> views [2, ...]. A preset for images must have the arguments"
            " size and views."
        )
    return ArrayViews(function, preset)


def make_eval(
    *, preset: str, size: int | None = None, views: int = 2, **options
) -> EvaluationView | ArrayEvaluationView:
    """Return the evaluation view, cropped and normalized as in ``preset``; for arrays, the example itself.

    The options are those of :func:`make_views`, so that one config section serves both.
    """
    if of_arrays(_known(preset)):
        return _EVALUATION
    return EvaluationView(_build(preset, size, views, options).evaluate)


def make_crops(
    crop_min: float, mirrored: float, /, *, preset: str, size: int | None = None, **options
) -> Callable:
    """Return one training view by random crop and flip, resized and normalized as in ``preset``.

    Quarter turns of the preset are kept. For arrays, which are neither cropped nor flipped, it is the
    evaluation view. The other options are those of :func:`make_views`.

    Args:
      crop_min: smallest area of the crop, as a share of the image.
      mirrored: probability of a horizontal flip.
      preset: augmentation recipe, a function of contrastive_jax.augment.presets.
      size: height and width of a view, in pixels.
      **options: options of the preset.
    """
    if of_arrays(_known(preset)):
        return _one_view
    views = options.pop("views", 2)
    return Views((pipeline.crops_alone(_build(preset, size, views, options), crop_min, mirrored),))


def names() -> list[str]:
    """Return the names of all presets."""
    return sorted(functions_of(presets) | functions_of(arrays))


def _known(preset):
    if (function := find(preset)) is None:
        raise ValueError(f"augment.preset is {preset!r}, which is unknown. {near(preset, names())}")
    return function


def _build(preset, size, views, options):
    check(make_views, {"preset": preset, "size": size, "views": views}, "augment")
    augmentation = call(_known(preset), "augment", options, size, views)
    if not isinstance(augmentation, pipeline.Augmentation) or not all(
        map(_cuts, (*augmentation.views, augmentation.evaluate))
    ):
        raise ValueError(
            f"augment.preset is {preset!r}; it must return an Augmentation, as the functions of"
            " contrastive_jax.augment.presets do, with a crop in every Chain."
        )
    return augmentation


def _cuts(chain):
    return isinstance(chain, crops.Chain) and any(
        isinstance(step, crops.RandomCrop | crops.CenterCrop) for step in chain.steps
    )


def _to_float(image):
    """Return an image as float32; uint8 is divided by 255."""
    if image.ndim != 3:
        raise ValueError(
            f"the image has shape {image.shape}; it must be [height, width, channels]. Use jax.vmap for"
            " a batch."
        )
    if image.dtype == jnp.uint8:
        return image.astype(jnp.float32) / 255
    if jnp.issubdtype(image.dtype, jnp.floating):
        return image.astype(jnp.float32)
    raise ValueError(f"the image is {image.dtype}; it must be uint8, or floating in [0, 1].")
