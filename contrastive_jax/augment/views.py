"""Views of an example in training and evaluation, made by the presets."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from contrastive_jax import kinds, sharding
from contrastive_jax.augment import arrays, crops, pipeline, presets
from contrastive_jax.kinds import Count, CountOrZero, PositiveFraction, check
from contrastive_jax.lookup import call, functions_of, is_own, near, own
from contrastive_jax.types import Example


class Views:
    """Training views: ``(key, image) -> float32 [views, size, size, c]``, in [0, 1] unless normalized.

    View v uses the key ``fold_in(key, first + v)``. The two halves are ``cut``, which draws and cuts out boxes on
    the host (:class:`crops.Cut`), and ``finish``, the steps on the device after the crop.

    Args:
      chains: the steps of every view.
      local: views of another size, which are not among these; None: there are none.
      first: number of the first view.
    """

    def __init__(self, chains: tuple[crops.Chain, ...], local: "Views | None" = None, first: int = 0):
        self._chains, self.local, self._first = chains, local, first

    def __call__(self, key, image):
        """Apply both halves to a whole image ``[h, w, c]``."""
        image = _to_float(image)
        if self._alike:  # one program for all views
            return jax.vmap(self._chains[0], (0, None))(self._keys(key), image)
        return jnp.stack([chain(k, image) for k, chain in zip(self._each(key), self._chains, strict=True)])

    def finish(self, key, images):
        """Apply the steps after the crop to views that the host cut out, ``[views, size, size, c]`` uint8."""
        images = jax.vmap(_to_float)(images)
        if self._alike:
            return jax.vmap(self._chains[0].finish)(self._keys(key), images)
        return jnp.stack(
            [chain.finish(*rest) for chain, *rest in zip(self._chains, self._each(key), images, strict=True)]
        )

    @property
    def cut(self) -> crops.Cut:
        """The crops on the host; raises ValueError if a step precedes a crop, or a crop is shifted."""
        return crops.cut_of(self._chains)

    def check_streamed(self) -> None:
        """Raise ValueError if there are local views: the host cuts out views of one size."""
        if self.local:
            raise ValueError(
                f"augment.local_views is {self.local.count}, and data is streamed: the host cuts out views of one size;"
                " set augment.local_views=0, or data.stream=off."
            )

    @property
    def count(self) -> int:
        """Number of views, without local ones."""
        return len(self._chains)

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
        return jax.vmap(jax.random.fold_in, (None, 0))(
            key, jnp.arange(self._first, self._first + len(self._chains))
        )

    def _each(self, key):
        return [jax.random.fold_in(key, self._first + v) for v in range(len(self._chains))]


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

    local = None  # only images are cropped
    count = arrays.VIEWS

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

    def check_streamed(self) -> None:
        """Do nothing: ``cut`` refuses all views of arrays."""

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


_LOCAL = ("local_views", "local_size", "local_crop_min", "local_crop_max")
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
    local_views: CountOrZero = 0,
    local_size: Count | None = None,
    local_crop_min: PositiveFraction = 0.05,
    local_crop_max: PositiveFraction = 0.14,
    **options,
) -> Views | ArrayViews:
    """Return training views of a preset.

    Local views (multi-crop, SwAV: Caron et al., 2020) are smaller crops at a smaller size. The defaults of their
    area are SwAV's on ImageNet, beside ``crop_min=0.14``; DINO's with a ViT is 0.05 to 0.4, beside 0.4. A preset
    with one value of an option for each view (``byol``) has one more value, for all local views.

    Args:
      examples: the training examples ``[n, ...]``, which some presets of arrays draw from.
      preset: the recipe: one of contrastive_jax.augment.presets, or of contrastive_jax.augment.arrays.
      size: height and width of a view, in pixels.
      views: number of views of an example that are keys, all of one size; each is a query of all others.
      local_views: number of local views (multi-crop), which query the views above and are no keys; 0: none.
      local_size: height and width of a local view, in pixels; None: 3/7 of size, SwAV's 96 of 224.
      local_crop_min: smallest area of a local view's crop, as a share of the image.
      local_crop_max: largest area of a local view's crop, as a share of the image.
      **options: options of the preset.

    Raises:
      ValueError: an unknown preset or option (the message shows the valid ones), or a value out of range.
    """
    given = {} if size is None else {"size": size}
    local = {
        **{"local_views": local_views, "local_size": local_size},
        **{"local_crop_min": local_crop_min, "local_crop_max": local_crop_max},
    }
    check(make_views, {"preset": preset, "views": views} | given | local, "augment")
    if of_arrays(_known(preset)):
        options |= given | ({"views": views} if views != arrays.VIEWS else {})
        options |= {"local_views": local_views} if local_views else {}
        return make_views_of_arrays(examples, preset=preset, **options)
    if not local_views:
        return Views(_build(preset, size, views, options).views)
    whole = _build(preset, size, views + 1, options).views  # the last is the local views'
    small = _local(preset, side_of_local(size, local_size), views, options, (local_crop_min, local_crop_max))
    return Views(whole[:views], Views((small,) * local_views, first=views))


def side_of_local(size: int, local_size: int | None) -> int:
    """Return the height and width of a local view in pixels."""
    return max(1, round(size * 3 / 7)) if local_size is None else local_size


def _local(
    preset: str, size: int, views: int, options: Mapping[str, Any], area: tuple[float, float]
) -> crops.Chain:
    """Return the steps of a local view: those of a preset at this size, whose crop has the area ``area``.

    Raises:
      ValueError: the preset has no random crop of a chosen area, or does not take this size.
    """
    known = kinds.parameters(_known(preset))
    section = {**options, "crop_min": area[0], "crop_max": area[1]}
    if not {"crop_min", "crop_max"} <= set(known):
        raise ValueError(
            f"augment.preset is {preset!r}, which has no options crop_min and crop_max, so that local views would be"
            " whole images: set augment.local_views=0, or another preset."
        )
    if area[0] > area[1]:
        raise ValueError(
            f"augment.local_crop_min is {area[0]!r} and augment.local_crop_max {area[1]!r}; local_crop_min must be at"
            " most local_crop_max."
        )
    try:
        return _build(preset, size, views + 1, section).views[-1]
    except ValueError as error:
        raise ValueError(f"local views of {size} pixels: {error}") from None


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


def make_second_views(examples=None, /, *, preset: str, **options) -> Views | ArrayViews:
    """Return training views of the second arrays of pairs: one of images, two of other arrays.

    Args:
      examples: the training examples ``[n, ...]`` of the second arrays.
      preset: the recipe, as in :func:`make_views`.
      **options: options of the preset, and the size of images.

    Raises:
      ValueError: an unknown option, or examples of another kind.
    """
    if of_arrays(_known(preset)):
        return make_views_of_arrays(examples, preset=preset, **options)
    return make_views(examples, preset=preset, views=1, **options)


def make_eval(
    *, preset: str, size: int | None = None, views: int = 2, **options
) -> EvaluationView | ArrayEvaluationView:
    """Return the evaluation view, cropped and normalized as in ``preset``; for arrays, the example itself.

    The options are those of :func:`make_views`, so that one config section serves both.
    """
    if of_arrays(_known(preset)):
        return _EVALUATION
    options, local = _without_local(options)
    return EvaluationView(_build(preset, size, views + local, options).evaluate)


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
    options, local = _without_local(options)
    views = options.pop("views", 2) + local
    return Views((pipeline.crops_alone(_build(preset, size, views, options), crop_min, mirrored),))


def _without_local(options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the options without those of local views, and whether there are any local views."""
    rest = {name: value for name, value in options.items() if name not in _LOCAL}
    return rest, bool(options.get("local_views"))


def with_views(section: Mapping[str, Any], views: int) -> dict[str, Any]:
    """Return a section ``augment`` with another number of views; of options with one value a view the last is repeated.

    Presets of arrays, which have no such number, stay as they are.
    """
    function = _known(section["preset"])
    if of_arrays(function):
        return dict(section)

    def fitted(values: Any) -> Any:
        known = tuple(values) if isinstance(values, list | tuple) else ()
        return (known + known[-1:] * views)[:views] if known else values

    by_view = {name: fitted(section[name]) for name in getattr(function, "by_view", ()) if name in section}
    return {**section, "views": views, **by_view}


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
