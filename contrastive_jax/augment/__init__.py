"""Views of an image, on the device: presets by name, built once, pure functions of (key, image).

One image goes in, ``[h, w, c]`` uint8 or float in [0, 1]; use ``jax.vmap`` for a batch. Rows never meet, so
on a mesh nothing is communicated and the bits do not depend on the number of devices.
"""

import dataclasses

import jax
import jax.numpy as jnp

from contrastive_jax.augment import crops, pipeline, presets
from contrastive_jax.augment.crops import example_keys
from contrastive_jax.kinds import Count, check
from contrastive_jax.lookup import call, find, functions_of, near

__all__ = [
    "EvaluationView",
    "Views",
    "crops",
    "example_keys",
    "make_crops",
    "make_eval",
    "make_views",
    "names",
    "presets",
]


class Views:
    """Training views: ``(key, image) -> float32 [views, size, size, c]``, in [0, 1] unless normalized.

    View v draws from ``fold_in(key, v)``. Its two halves are ``cut``, boxes of an image drawn on the host
    (:class:`crops.Cut`), and ``finish``, what the device does with the views that were cut out.
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
        """Make what training sees of views that the host cut out, ``[views, size, size, c]`` uint8."""
        images = jax.vmap(_to_float)(images)
        if self._alike:
            return jax.vmap(self._chains[0].finish)(self._keys(key), images)
        return jnp.stack(
            [chain.finish(jax.random.fold_in(key, v), images[v]) for v, chain in enumerate(self._chains)]
        )

    @property
    def cut(self) -> crops.Cut:
        """The host's half; a ValueError where a step before the crop forbids it."""
        return crops.cut_of(self._chains)

    def check_constant(self, channels: int, constant: int) -> None:
        """Refuse views in which the last ``constant`` of ``channels`` channels, each of one value all over an image,
        would not be so: no step may touch them but to move pixels, or to normalise.

        Raises:
          ValueError: one sentence that names every such option and what to take.
        """
        touches = dict.fromkeys(touch for chain in self._chains for touch in chain.touches(channels))
        if wrong := [touch for touch in touches if touch.channels > channels - constant]:
            advice = (
                f"augment.{touch.option} is {touch.value}, take {touch.instead(channels - constant)}"
                for touch in wrong
            )
            raise ValueError(
                f"of {channels} channels the last {constant} are bits, the same all over an image, and would not stay"
                f" so: {'; '.join(advice)}."
            )

    @property
    def _alike(self):
        return all(chain is self._chains[0] for chain in self._chains)

    def _keys(self, key):
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(self._chains)))


class EvaluationView:
    """Evaluation's view: ``image -> float32 [size, size, c]``, cropped and normalized, in two halves as
    :class:`Views` has them."""

    def __init__(self, chain: crops.Chain):
        self._chain = chain

    def __call__(self, image):
        """Apply both halves to a whole image ``[h, w, c]``."""
        return self._chain(None, _to_float(image))

    def finish(self, image):
        """Make what the network sees of a square that the host cut out, ``[size, size, c]`` uint8."""
        return self._chain.finish(None, _to_float(image))

    @property
    def cut(self) -> crops.Cut:
        """The host's half."""
        return crops.cut_of((self._chain,))

    def cropped(self, proportion: float) -> "EvaluationView":
        """Return the view of another share of the largest centred square."""
        place, steps = self._chain.crop, list(self._chain.steps)
        steps[place] = dataclasses.replace(steps[place], proportion=proportion)
        return EvaluationView(crops.Chain(*steps))

    @property
    def normalization(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of the leading channels; of none where it does not normalize."""
        steps = (step for step in self._chain.steps if isinstance(step, pipeline.Normalization))
        return next(((step.mean, step.std) for step in steps), ((), ()))

    @property
    def crop(self) -> crops.CenterCrop | None:
        """The crop, where only a clip and a normalization follow it; None where the view has steps of another kind."""
        first, *rest = (step for step in self._chain.steps if step is not crops.same)
        plain = rest[:1] == [pipeline.CLIP] and all(isinstance(s, pipeline.Normalization) for s in rest[1:])
        return first if isinstance(first, crops.CenterCrop) and plain and len(rest) < 3 else None


def make_views(*, preset: str, size: Count, views: Count = 2, **options) -> Views:
    """Return training views of a preset.

    ``options`` are those of ``preset``; an unknown one raises a ValueError that shows them.

    Args:
      preset: the recipe: one of contrastive_jax.augment.presets.
      size: height and width of a view, in pixels.
      views: of an image; a step compares 2.
      **options: of the preset.
    """
    return Views(_build(preset, size, views, options).views)


def make_eval(*, preset: str, size: int, views: int = 2, **options) -> EvaluationView:
    """Return evaluation's view, cropped and normalized as ``preset`` has it.

    Takes what :func:`make_views` takes, so that one config section serves both.
    """
    return EvaluationView(_build(preset, size, views, options).evaluate)


def make_crops(crop_min: float, mirrored: float, /, *, preset: str, size: int, **options) -> Views:
    """Return one training view of random crops and mirror images alone, resized and normalized as ``preset`` has it.

    Takes, beside these, what :func:`make_views` takes.

    Args:
      crop_min: smallest area of the crop, as a share of the image.
      mirrored: probability of a mirror image.
      preset: the recipe: one of contrastive_jax.augment.presets.
      size: height and width of a view, in pixels.
      **options: of the preset.
    """
    views = options.pop("views", 2)
    return Views((pipeline.crops_alone(_build(preset, size, views, options), crop_min, mirrored),))


def names() -> list[str]:
    """Return the presets there are."""
    return sorted(functions_of(presets))


def _build(preset, size, views, options):
    check(make_views, {"preset": preset, "size": size, "views": views}, "augment")
    function = find(presets, preset, "augment.preset")
    if function is None:
        raise ValueError(f"augment.preset is {preset!r}. {near(preset, names())}")
    augmentation = call(function, "augment", options, size, views)
    if not isinstance(augmentation, pipeline.Augmentation) or not all(
        map(_cuts, (*augmentation.views, augmentation.evaluate))
    ):
        raise ValueError(
            f"augment.preset is {preset!r}; it must return what the functions of contrastive_jax.augment.presets do,"
            " an Augmentation whose every Chain has a crop among its steps"
        )
    return augmentation


def _cuts(chain):
    return isinstance(chain, crops.Chain) and any(
        isinstance(step, crops.RandomCrop | crops.CenterCrop) for step in chain.steps
    )


def _to_float(image):
    """Return an image in float32: uint8 is divided by 255."""
    if image.ndim != 3:
        raise ValueError(
            f"an image is [height, width, channels], this has shape {image.shape}; jax.vmap makes a batch"
        )
    if image.dtype == jnp.uint8:
        return image.astype(jnp.float32) / 255
    if jnp.issubdtype(image.dtype, jnp.floating):
        return image.astype(jnp.float32)
    raise ValueError(f"an image is uint8 or float in [0, 1], this one is {image.dtype}")
