"""View of the second arrays of pairs: a preset of arrays, or one of images with the size among its options.

A function takes the training examples of the second arrays and returns their views, of which training uses one: the
first, or of ``scarf`` the corrupted copy.
"""

import functools
import inspect
from collections.abc import Callable, Iterable

from contrastive_jax.augment import arrays, presets
from contrastive_jax.augment.views import make_second_views
from contrastive_jax.kinds import Count
from contrastive_jax.lookup import functions_of, options_of, variant

_ARGS = "\nArgs:\n"  # the options of the presets of images are described in their module
_OPTIONS = (presets.__doc__ or "").partition(_ARGS)[2]
__doc__ = f"{__doc__}{_ARGS}  size: height and width of a view, in pixels.\n{_OPTIONS}"
_SIZE = inspect.Parameter("size", inspect.Parameter.KEYWORD_ONLY, default=32, annotation=Count)


def _function(name: str, function: Callable, more: Iterable[inspect.Parameter] = ()) -> Callable:
    """Return a preset's function for the section ``second_augment``."""
    build = functools.partial(make_second_views, preset=name)
    options = [*more, *options_of(function).values()]
    return variant(
        build, name, __name__, function.__doc__ or "", ("examples",), options, {}, "second_augment"
    )


globals().update({name: _function(name, function) for name, function in functions_of(arrays).items()})
globals().update(
    {name: _function(name, function, (_SIZE,)) for name, function in functions_of(presets).items()}
)
