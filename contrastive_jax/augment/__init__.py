"""Views of an image, on the device: presets by name, built once, pure functions of (key, image).

One image goes in, ``[h, w, c]`` uint8 or float in [0, 1]; use ``jax.vmap`` for a batch. Rows never meet, so
on a mesh nothing is communicated and the bits do not depend on the number of devices.
"""

import difflib
import inspect

import jax
import jax.numpy as jnp

from contrastive_jax.augment import presets


def make_views(*, preset: str, size: int, views: int = 2, **options):
    """Training views: ``(key, image) -> float32 [views, size, size, c]``, in [0, 1] unless normalised.

    ``options`` are the keyword arguments of the function of :mod:`contrastive_jax.augment.presets` that
    ``preset`` names; an unknown one raises a ValueError that shows them. View v draws from
    ``fold_in(key, v)``.
    """
    each = _build(preset, size, views, options).views

    def augment(key, image):
        image = _to_float(image)
        if all(view is each[0] for view in each):  # one program for all views
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(views))
            return jax.vmap(each[0], (0, None))(keys, image)
        return jnp.stack([view(jax.random.fold_in(key, v), image) for v, view in enumerate(each)])

    return augment


def make_eval(*, preset: str, size: int, views: int = 2, **options):
    """Evaluation's view: ``image -> float32 [size, size, c]``, cropped and normalised as ``preset`` has it.

    Takes what :func:`make_views` takes, so that one config section serves both.
    """
    evaluate = _build(preset, size, views, options).evaluate
    return lambda image: evaluate(_to_float(image))


def names() -> list[str]:
    """The presets there are."""
    functions = inspect.getmembers(presets, inspect.isfunction)
    return [
        name
        for name, function in functions
        if not name.startswith("_") and function.__module__ == presets.__name__
    ]


def _build(preset, size, views, options):
    if preset not in names():
        raise ValueError(f"preset is {preset!r}{_nearest(preset, names())}; there are {', '.join(names())}")
    for name, value in (("size", size), ("views", views)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, allowed is a whole number from 1")
    function = getattr(presets, preset)
    parameters = inspect.signature(function).parameters
    allowed = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options:
        if name not in allowed:
            shown = ", ".join(str(parameters[option]) for option in allowed)
            raise ValueError(
                f"{preset} has no option {name!r}{_nearest(name, allowed)}; it has {preset}({shown})"
            )
    return function(size, views, **options)


def _nearest(name, allowed):
    near = difflib.get_close_matches(str(name), allowed, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _to_float(image):
    """The door: uint8 is divided by 255, float becomes float32."""
    if image.ndim != 3:
        raise ValueError(
            f"an image is [height, width, channels], this has shape {image.shape}; jax.vmap makes a batch"
        )
    if image.dtype == jnp.uint8:
        return image.astype(jnp.float32) / 255
    if jnp.issubdtype(image.dtype, jnp.floating):
        return image.astype(jnp.float32)
    raise ValueError(f"an image is uint8 or float in [0, 1], this one is {image.dtype}")
