"""Data sets by name: one function per name."""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from contrastive_jax.data.array_files import arrays
from contrastive_jax.data.arrow_tables import huggingface
from contrastive_jax.data.image_files import FILES
from contrastive_jax.data.image_folder import folder
from contrastive_jax.data.noise import EXAMPLES, facts, synthetic
from contrastive_jax.data.scikit_digits import digits
from contrastive_jax.data.shards import webdataset
from contrastive_jax.data.split import Split, numbers
from contrastive_jax.data.split import pairs as paired
from contrastive_jax.data.storage import Source, held_out, one_shape, streams
from contrastive_jax.data.tfds_images import tfds
from contrastive_jax.kinds import parameters
from contrastive_jax.lookup import check_options, variant


def known() -> dict[str, Callable[..., Source]]:
    """Return the functions that ``data.name`` can name; any other value is the name of a TFDS set."""
    functions = (digits, folder, webdataset, huggingface, arrays, tfds, synthetic)
    return {function.__name__: function for function in functions}


@functools.cache
def find(name: str) -> Callable[..., Source]:
    """Return the function that loads a data set: one of :func:`known`, or :func:`tfds` with ``set=name``."""
    if name in known():
        return known()[name]
    options = [option for option in parameters(tfds).values() if option.name != "set"]
    build = functools.partial(tfds, set=name)
    return variant(build, name, tfds.__module__, tfds.__doc__ or "", (), options, {}, "data")


def load(*, name: str, **options: Any) -> Source:
    """Load a data set by its name, as a config does: ``load(name="folder", dir="photographs")``.

    Args:
        name: ``digits``, ``folder``, ``webdataset``, ``huggingface``, ``arrays``, ``tfds``, ``synthetic``, or the
            TFDS name of a prepared set.
        **options: options of the function of that name.

    Raises:
        ValueError: an unknown name, an unknown option, or a value that the function refuses.
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
    pairs: np.ndarray | None = None,
    test_pairs: np.ndarray | None = None,
    name: str = "arrays",
) -> Source:
    """Return a data set made from arrays, for your own function given as ``data.name=module:function``.

    Args:
        images: training examples ``[n, ...]``: images ``[n, h, w, c]`` uint8, or integers or finite floats of
            any shape.
        labels: ``[n]`` integers from 0, -1 for no label, or ``[n, C]`` of 0 and 1; None: no labels.
        test_images, test_labels: the same for the test examples; None: no test examples.
        pairs, test_pairs: second arrays ``[n, ...]``, numbers or images, the pairs of the examples, for
            ``second_encoder``; None: no pairs.
        name: name of the data set.

    Raises:
        ValueError: other shapes or dtypes, training and test examples or labels of different shapes, test
            labels without test images, or pairs of one split only.
    """
    if test_labels is not None and test_images is None:
        raise ValueError("test_labels are given without test_images; pass both")
    for argument, given in (("labels", labels), ("test_labels", test_labels)):
        if given is not None and np.asarray(given).dtype.kind not in "iub":
            raise ValueError(f"{argument} are {np.asarray(given).dtype}; they must be whole numbers")
    if test_pairs is not None and test_images is None:
        raise ValueError("test_pairs are given without test_images; pass both")
    if test_images is not None and (pairs is None) != (test_pairs is None):
        raise ValueError("pairs are given for one split only; pass pairs and test_pairs")

    def split(name: str, images: np.ndarray, labels: np.ndarray | None, second: np.ndarray | None) -> Split:
        first = numbers(np.asarray(images), name)
        return (
            Split(first, labels)
            if second is None
            else paired(first, numbers(np.asarray(second), "pairs"), labels)
        )

    train = split("images", images, labels, pairs)
    test = None if test_images is None else split("test_images", test_images, test_labels, test_pairs)
    for number in (0, 1) if train.paired else (0,):
        here = train.of_pair(number).example
        there = here if test is None else test.of_pair(number).example
        if here != there:
            what = "second arrays" if number else "images"
            raise ValueError(
                f"training {what} are {here} and test {what} are {there}; they must have one shape"
            )
    if test is not None and labels is not None and test_labels is not None:
        if test.label.shape[1:] != train.label.shape[1:]:
            raise ValueError(
                f"labels are {list(train.label.shape)} and test_labels are {list(test.label.shape)};"
                " both must be [n], or both [n, C] with one C"
            )
    if train.label.ndim == 2:
        count = train.label.shape[1]
    else:
        count = 1 + max(int(part.label.max()) for part in (train, test) if part is not None)
    return Source(name, train, test, tuple(map(str, range(count))))


def stand_in(name: str, **options: Any) -> Source | None:
    """Make synthetic images that replace a missing data set; None if its number of examples is unknown.

    They are in memory or streamed, as the data set itself would be.

    Args:
        name: name of the data set.
        **options: options of its function.
    """
    name = options.pop("set", name)
    if re.split("[:/]", name)[0] not in EXAMPLES:
        return None
    options = {option: p.default for option, p in parameters(find(name)).items()} | options
    taken = {k: v for k, v in options.items() if k in parameters(synthetic)}
    if name in FILES:  # whose splits are named by the user
        taken |= {"train_split": "train", "test_split": options["test_split"] and "auto"}
    source = synthetic(like=name, **taken | {"stream": "off"})
    count = sum(len(part) for part in (source.train, source.test) if part)
    shape = source.train.shape if options["size"] else facts(name, options["label_key"])[0]
    if streams(options["stream"], count, one_shape(shape), options["memory_limit"]):
        source = synthetic(like=name, **taken | {"stream": "on"})
    return held_out(source, options["validation"])
