"""Where images come from: one function, by name."""

import inspect

from contrastive_jax.data.digits import digits
from contrastive_jax.data.folder import folder
from contrastive_jax.data.split import Source
from contrastive_jax.data.tfds_images import tfds_images


def load(
    *,
    name: str,
    dir: str = "",
    train_split: str = "train",
    test_split: str = "auto",
    test_fraction: float = 0.0,
    label_key: str = "label",
    labels: str = "",
    path_key: str = "",
    label_separator: str = "",
    group: str = "",
    white: int = 65535,
    size: int = 0,
    memory_limit: float = 8.0,
    stream: str = "auto",
    workers: int = -1,
    corrupt: str = "raise",
    resize: str = "exact",
) -> Source:
    """Loads a data set into host memory, or opens it for streaming.

    Args:
        name: ``digits`` (inside scikit-learn, no download), ``folder`` (images below ``dir``), or the
            TFDS name of a prepared set.
        dir: the folder of images, or the TFDS folder ("": $TFDS_DATA_DIR, or ~/tensorflow_datasets).
        train_split: a sub-folder, or a split in TFDS's language (``train+unlabelled`` of stl10).
        test_split: the same; "auto" looks for the usual names; "" takes none.
        test_fraction: folder only: a fixed stratified fraction for test, where there is no test folder.
        label_key: the feature (TFDS) or column (``labels``) with the labels; "" leaves them out.
        labels, path_key, label_separator, group, white: folder only, see :func:`folder.folder`: a file that
            lists the images with their labels, its columns, which images are near-duplicates, and which value
            of 16 bits is white.
        size: short side resized to it, centre cropped; 0 leaves images of one size as they are.
        memory_limit: GiB that the decoded images may take.
        stream: "auto" leaves images encoded where they are, to be decoded and cropped as they are needed, if they
            differ in size (and there is no ``size``) or take more memory; "on" always; "off" never.
        workers: processes that decode a stream; 0: threads of the training process; -1: one a core, up to 32.
        corrupt: "raise" ends the run at a record that a stream cannot read, "replace" takes the next of the order.
        resize: how a stream resizes training's views: "exact", as the device does, or by "opencv", which is
            faster; its cubic kernel is sharper.

    Raises:
        ValueError: an unknown name (with the nearest ones), an option that does not apply, an image
            that cannot be read.
        FileNotFoundError: a missing set, with the command that prepares it.
    """
    options = dict(locals())
    if size < 0:
        raise ValueError(f"data.size={size} is negative: pixels, or 0 for images as they are")
    if not memory_limit > 0:
        raise ValueError(f"data.memory_limit={memory_limit} is not a positive number of GiB")
    read = {"digits": digits, "folder": folder}.get(name, tfds_images)
    accepted = inspect.signature(read).parameters
    for option, parameter in inspect.signature(load).parameters.items():
        if option != "name" and option not in accepted and options[option] != parameter.default:
            takes = ", ".join(accepted) or "no option"
            raise ValueError(
                f"data.{option}={options[option]!r} does not apply to {name}, which takes {takes}"
            )
    return read(**{option: options[option] for option in accepted})
