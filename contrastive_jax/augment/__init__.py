"""Augmented views of an example, computed on the device by pure functions of (key, example).

Presets of :mod:`presets` make views of an image, ``[h, w, c]`` uint8 or float in [0, 1]; those of :mod:`arrays`
make views of other examples. The functions take one example; use ``jax.vmap`` for a batch. Examples are
independent of each other, so a mesh needs no communication and the results do not depend on the number of
devices.
"""

from contrastive_jax.augment import arrays, crops, presets
from contrastive_jax.augment.batch import views_of_batch
from contrastive_jax.augment.crops import example_keys
from contrastive_jax.augment.views import (
    EvaluationView,
    Views,
    find,
    make_crops,
    make_eval,
    make_second_views,
    make_views,
    make_views_of_arrays,
    names,
    of_arrays,
    options_of,
    seen,
    with_views,
)

__all__ = [
    "EvaluationView",
    "Views",
    "arrays",
    "crops",
    "example_keys",
    "find",
    "make_crops",
    "make_eval",
    "make_second_views",
    "make_views",
    "make_views_of_arrays",
    "names",
    "of_arrays",
    "options_of",
    "presets",
    "seen",
    "views_of_batch",
    "with_views",
]
