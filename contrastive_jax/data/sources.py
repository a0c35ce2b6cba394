"""Sources of images: one function, by name."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from contrastive_jax.data.digits import digits
from contrastive_jax.data.folder import folder
from contrastive_jax.data.noise import EXAMPLES, facts, synthetic
from contrastive_jax.data.split import Source, Split, stratified
from contrastive_jax.data.storage import Corrupt, NumWorkers, Resize, Streaming, White, streams
from contrastive_jax.data.tfds_images import tfds_images
from contrastive_jax.kinds import CountOrZero, Decay, Positive, checked


@checked("data")
def load(
    *,
    name: str,
    dir: str = "",
    train_split: str = "train",
    test_split: str = "auto",
    test_fraction: Decay = 0.0,
    validation: Decay = 0.0,
    label_key: str = "label",
    labels: str = "",
    path_key: str = "",
    label_separator: str = "",
    group: str = "",
    channels: Literal[0, 1, 3] = 0,
    white: White = 65535,
    size: CountOrZero = 0,
    memory_limit: Positive = 8.0,
    stream: Streaming = "auto",
    workers: NumWorkers = -1,
    corrupt: Corrupt = "raise",
    resize: Resize = "exact",
) -> Source:
    """Load a data set into host memory, or open it for streaming.

    Args:
        name: ``digits`` (inside scikit-learn, no download), ``folder`` (images below ``dir``), or the
            TFDS name of a prepared set. A config may also name ``synthetic``, with the options of :func:`synthetic`.
        dir: the folder of images, or the TFDS folder ("": $TFDS_DATA_DIR, or ~/tensorflow_datasets).
        train_split: a sub-folder, or a split in TFDS's language (``train+unlabelled`` of stl10).
        test_split: the same; "auto" looks for the usual names; "" takes none.
        test_fraction: folder only: a fixed stratified fraction for test, where there is no test folder.
        validation: a fixed stratified fraction of the training images that stands in for the test images, to choose
            options by; they are not trained on, and the test images not looked at. Images in memory only.
        label_key: the feature (TFDS) or column (``labels``) with the labels; "" leaves them out.
        labels: folder only: a file that lists the images with their labels; "" takes labels from sub-folders.
        path_key: folder only: that file's column of paths; "" looks for the usual names.
        label_separator: folder only: what stands between several labels of one image.
        group: folder only: which images are near-duplicates, never each other's negatives: a column of the file, or
            a regular expression that is searched in the path, see :func:`folder.folder`.
        channels: folder only: 1 makes images grey, 3 makes them RGB; 0: as they are, RGB where some are.
        white: folder only: the value of 16-bit images that becomes 255.
        size: short side resized to it, centre cropped; 0 leaves images of one size as they are.
        memory_limit: GiB that the decoded images may take.
        stream: "auto" leaves images encoded where they are, to be decoded and cropped as they are needed, if they
            differ in size (and there is no ``size``) or take more memory; "on" always; "off" never.
        workers: processes that decode a stream; 0: threads of the training process; -1: one a core, up to 32.
        corrupt: "raise" ends the run at an image that cannot be read, by its name; "replace" takes the next one of the
            order (of the set, where images are in memory), with its label; --mode=embed takes "raise" alone.
        resize: how a stream resizes training's views: "exact", as the device does, or by "opencv", which is
            faster; its cubic kernel is sharper.

    Raises:
        ValueError: an unknown name (with the nearest ones), an option that does not apply, an image
            that cannot be read.
        FileNotFoundError: a missing set, with the command that prepares it.
    """
    options = dict(locals())
    read = _reader(name)
    accepted = inspect.signature(read).parameters
    for option, parameter in inspect.signature(load).parameters.items():
        if option not in ("name", "validation", *accepted) and options[option] != parameter.default:
            takes = ", ".join(accepted) or "no option"
            raise ValueError(
                f"data.{option}={options[option]!r} does not apply to {name}, which takes {takes}"
            )
    source = read(**{option: options[option] for option in accepted})
    return held_out(source, validation) if validation else source


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
        images: ``[n, h, w, c]`` uint8, to train on.
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
    train = Split(np.asarray(images), labels)
    test = None if test_images is None else Split(np.asarray(test_images), test_labels)
    if test is not None and test.shape != train.shape:
        raise ValueError(
            f"training images are {list(train.shape)} and test images {list(test.shape)}: one shape"
        )
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
    """Make synthetic images in the place of a set that :func:`load` does not find; None: too little is known of it.

    They are in memory or streamed as those of the set would be.

    Args:
        name: of the set.
        **options: of :func:`load`.
    """
    options = {k: p.default for k, p in inspect.signature(load).parameters.items() if k != "name"} | options
    if re.split("[:/]", name)[0] not in EXAMPLES:
        return None
    taken = {k: v for k, v in options.items() if k in inspect.signature(synthetic).parameters}
    source = synthetic(like=name, **taken | {"stream": "off"})
    count = sum(len(part) for part in (source.train, source.test) if part)
    shape = source.train.shape if options["size"] else facts(name, options["label_key"])[0]
    if streams(options["stream"], count, shape, options["memory_limit"]):
        source = synthetic(like=name, **taken | {"stream": "on"})
    return held_out(source, options["validation"]) if options["validation"] else source


def _reader(name: str) -> Callable[..., Source]:
    readers: dict[str, Callable[..., Source]] = {"digits": digits, "folder": folder}
    return readers.get(name, tfds_images)


def accepts(name: str, option: str) -> bool:
    """Return whether the set of a name takes an option of :func:`load`."""
    return option in inspect.signature(_reader(name)).parameters


def held_out(source: Source, fraction: float) -> Source:
    """Hold out part of the training images in the place of the test images."""
    if not isinstance(source.train, Split):
        raise ValueError(f"data.validation={fraction} needs images in memory; {source.name} is streamed")
    aside = stratified(source.train.label, fraction, source.train.group)
    if not 0 < aside.sum() < len(aside):
        raise ValueError(
            f"data.validation={fraction} of {len(aside)} images leaves {aside.sum()} to judge by"
            f" and {(~aside).sum()} to train on"
        )
    return dataclasses.replace(source, train=source.train[~aside], test=source.train[aside])
