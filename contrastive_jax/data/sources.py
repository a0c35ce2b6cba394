"""Data sets: one function a name."""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from contrastive_jax.data.array_files import arrays
from contrastive_jax.data.image_folder import folder
from contrastive_jax.data.noise import EXAMPLES, facts, synthetic
from contrastive_jax.data.scikit_digits import digits
from contrastive_jax.data.split import Source, Split, held_out, numbers
from contrastive_jax.data.storage import streams
from contrastive_jax.data.tfds_images import tfds
from contrastive_jax.kinds import parameters
from contrastive_jax.lookup import check_options, variant


def known() -> dict[str, Callable[..., Source]]:
    """Return the functions that ``data.name`` may name; any other name is that of a TFDS set."""
    return {function.__name__: function for function in (digits, folder, arrays, tfds, synthetic)}


@functools.cache
def find(name: str) -> Callable[..., Source]:
    """Return the function of a data set: one of :func:`known`, or :func:`tfds` of the set of that name."""
    if name in known():
        return known()[name]
    options = [option for option in parameters(tfds).values() if option.name != "set"]
    build = functools.partial(tfds, set=name)
    return variant(build, name, tfds.__module__, tfds.__doc__ or "", (), options, {}, "data")


def load(*, name: str, **options: Any) -> Source:
    """Load a data set by its name, as a config does: ``load(name="folder", dir="photographs")``.

    Args:
        name: ``digits``, ``folder``, ``arrays``, ``tfds``, ``synthetic``, or the TFDS name of a prepared set.
        **options: of the function of that name.

    Raises:
        ValueError: an unknown name, an option that the function does not have, or what the function refuses.
        FileNotFoundError: a missing set, with the command that prepares it.
    """
    function = find(name)
    check_options(function, "data", options)
    return function(**options)


def from_arrays(
    images: np.ndarray,
    labels: np.ndarray | None = None,
    test_images: np.ndarray | None = None,
    test_labels: np.ndarray | None = None,
    *,
    name: str = "arrays",
) -> Source:
    """Return a data set of arrays, for a function of one's own that ``data.name=module:function`` names.

    Args:
        images: ``[n, ...]``, examples to train on: images ``[n, h, w, c]`` uint8, or arrays of any shape, whole numbers
            or finite floats.
        labels: ``[n]`` whole numbers from 0 on, -1 where there is none; None: none anywhere.
        test_images, test_labels: the same, to test on; None: no test.
        name: what the set is called.

    Raises:
        ValueError: other shapes or dtypes, test images or labels of another shape, labels of no images.
    """
    if test_labels is not None and test_images is None:
        raise ValueError("test_labels are given without test_images")
    for argument, given in (("labels", labels), ("test_labels", test_labels)):
        if given is not None and np.asarray(given).dtype.kind not in "iub":
            raise ValueError(f"{argument} are {np.asarray(given).dtype}; they must be whole numbers")
    train = Split(numbers(np.asarray(images), "images"), labels)
    test = (
        None if test_images is None else Split(numbers(np.asarray(test_images), "test_images"), test_labels)
    )
    if test is not None and test.example != train.example:
        raise ValueError(f"training images are {train.example} and test images {test.example}: one shape")
    if test is not None and labels is not None and test_labels is not None:
        if test.label.shape[1:] != train.label.shape[1:]:
            raise ValueError(
                f"labels are {list(train.label.shape)} and test_labels {list(test.label.shape)}: one kind, and as many"
                " classes"
            )
    if train.label.ndim == 2:
        count = train.label.shape[1]
    else:
        count = 1 + max(int(part.label.max()) for part in (train, test) if part is not None)
    return Source(name, train, test, tuple(map(str, range(count))))


def stand_in(name: str, **options: Any) -> Source | None:
    """Make synthetic images in the place of a set that is not here; None: too little is known of it.

    They are in memory or streamed as those of the set would be.

    Args:
        name: of the set.
        **options: of its function.
    """
    name = options.pop("set", name)
    if re.split("[:/]", name)[0] not in EXAMPLES:
        return None
    options = {option: p.default for option, p in parameters(find(name)).items()} | options
    taken = {k: v for k, v in options.items() if k in parameters(synthetic)}
    source = synthetic(like=name, **taken | {"stream": "off"})
    count = sum(len(part) for part in (source.train, source.test) if part)
    shape = source.train.shape if options["size"] else facts(name, options["label_key"])[0]
    if streams(options["stream"], count, shape, options["memory_limit"]):
        source = synthetic(like=name, **taken | {"stream": "on"})
    return held_out(source, options["validation"])
