"""Prepared TFDS image data sets, read without TensorFlow."""

import contextlib
import difflib
import functools
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epath

from contrastive_jax.data.pixels import MODES
from contrastive_jax.data.records import Record, Unreadable
from contrastive_jax.data.split import Indices
from contrastive_jax.data.storage import Source, StorageOptions, held_out, stored
from contrastive_jax.kinds import with_options

FIRST = 32  # images from which the kind of a split's labels is read
# Preparing needs TensorFlow; the command `tfds` (4.9.10) imports the other two on start.
INSTALL = "pip install 'contrastive_jax[tf]' apache-beam mlcroissant"


@with_options(StorageOptions, "data")
def tfds(
    options: StorageOptions,
    *,
    set: str,
    dir: str = "",
    train_split: str = "train",
    test_split: str = "auto",
    label_key: str = "label",
) -> Source:
    """Load a set by its TFDS name (``cifar10``, ``imagenet_resized/64x64``, ``mnist:3.0.1``), from ArrayRecord.

    The options after ``label_key`` are those of :class:`storage.StorageOptions`.

    Args:
        set: TFDS name of the data set; a prepared set needs no builder code. ``data.name`` can be this name
            itself, without ``set``.
        dir: TFDS folder; "": $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        train_split: training split in TFDS's syntax: train, train+unlabelled, train[:10%].
        test_split: test split in TFDS's syntax; "auto": the first of test and validation with labels; "": no
            test images.
        label_key: the feature with the labels (``coarse_label`` of cifar100); "" leaves them out. A sequence of
            labels makes a multi-label set; -1 in it means none. The ``labels`` of voc count every object;
            ``labels_no_difficult`` those that its challenge does, whose rule (leave an image out of the evaluation
            of a class that it shows in difficult objects only) neither of the two is.

    Raises:
        ValueError: an unknown or empty split, images twice in the training split or in both splits, a test split
            without labels, or labels by position (CheXpert's one of four classes for each of 14 observations).
        FileNotFoundError: a set that is not prepared.
    """
    name = set
    dir = os.path.expanduser(dir or os.environ.get("TFDS_DATA_DIR", "") or "~/tensorflow_datasets")
    builder = prepared(name, dir)
    features, splits = dict(builder.info.features), builder.info.splits
    classes = class_names(name, features, label_key)
    shape = image_shape(name, features)

    def records(split: str) -> TfdsRecords:
        return TfdsRecords(
            builder, split, shape, label_key, len(classes) if several(features, label_key) else 0
        )

    if test_split == "auto":
        usual = [split for split in ("test", "validation") if split in splits]
        test_split = next((split for split in usual if not label_key or records(split).labelled), "")
    wanted = {"train_split": train_split} | ({"test_split": test_split} if test_split else {})
    for option, split in wanted.items():
        try:
            empty = not splits[split].num_examples
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"data.{option} is {split!r}; the splits of {name} are {', '.join(splits)}"
            ) from error
        if empty:
            raise ValueError(f"data.{option} is {split!r}, which has no images in {name}")
    if twice(splits[train_split]):
        raise ValueError(
            f"data.train_split is {train_split!r}, which contains images of {name} twice: each would be"
            " its own negative"
        )
    if test_split and overlap(splits[train_split], splits[test_split]):
        raise ValueError(
            f"data.train_split is {train_split!r} and data.test_split is {test_split!r}; they share"
            f" images of {name}, so training would include test images. Set data.test_split='' for no"
            " test images"
        )

    train, test = records(train_split), records(test_split) if test_split else None
    if count := train.positions():
        raise ValueError(
            f"data.label_key is {label_key!r}, which gives every image of {name} {count} labels by position, not a set"
            " of classes. Set data.label_key= to train without labels"
        )
    if test and label_key and not test.labelled:
        raise ValueError(
            f"data.test_split is {test_split!r}, which has no labels in {name}; choose another of"
            f" {', '.join(splits)}"
        )
    return held_out(Source(name, *stored(name, train, test, options), classes), options.validation)


def overlap(one, other) -> bool:
    """Return whether two splits (TFDS's ``SplitInfo``) have a record in common."""
    return any(_meet(a, b) for a, b in itertools.product(one.file_instructions, other.file_instructions))


def twice(split) -> bool:
    """Return whether a split (TFDS's ``SplitInfo``) contains a record twice."""
    return any(_meet(a, b) for a, b in itertools.combinations(split.file_instructions, 2))


def _meet(a, b) -> bool:
    return a.filename == b.filename and max(a.skip, b.skip) < min(a.skip + a.take, b.skip + b.take)


def prepared(name: str, dir: str):
    """Open the read-only builder of a set in ``dir``.

    Raises:
        ValueError: a name that is not in TFDS's syntax, an unknown set, or classes outside TFDS.
        FileNotFoundError: no ArrayRecord files; the message contains the command that makes them.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import read_only_builder

    if not NAME.fullmatch(name):
        raise ValueError(
            f"data.name is {name!r}; it must be digits, folder, webdataset, huggingface, arrays,"
            " synthetic or a name of TFDS, name[/config][:1.2.3]."
        )
    check_classes(name, dir)
    try:
        builder = read_only_builder.builder_from_files(name, data_dir=dir)
    except tfds.core.DatasetNotFoundError:
        raise not_prepared(name, dir) from None
    if "array_record" not in {file_format.value for file_format in builder.info.available_file_formats()}:
        raise FileNotFoundError(
            f"{name} is stored at {builder.data_dir} as {builder.info.file_format.value}, without"
            f" random access: add ArrayRecord files with `{INSTALL} && tfds convert_format"
            f" --dataset_version_dir={shlex.quote(str(builder.data_dir))} --out_file_format=array_record"
            " --num_workers=1`"  # with more workers it hides errors
        )
    return builder


def check_classes(name: str, dir: str) -> None:
    """Refuse a prepared set whose ``features.json`` names a class outside TFDS, whose module TFDS would import.

    Raises:
      ValueError: with the file and the class.
    """

    def letters(text: str) -> str:
        return text.replace("_", "").lower()

    def classes(value: Any) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(inner, dict | list):
                yield from classes(inner)
            elif isinstance(inner, str) and key in ("pythonClassName", "python_class_name", "type"):
                yield inner

    root, base = epath.Path(dir), letters(re.split("[/:]", name)[0])
    folders = [one for one in root.iterdir() if letters(one.name) == base] if root.is_dir() else []
    layouts = (
        "features.json",
        "*/features.json",
        "*/*/features.json",
    )  # in a version's folder, a set's, a set's configs'
    for file in (
        file for folder in folders for layout in layouts for file in folder.glob(layout) if file.is_file()
    ):
        try:
            named = [one for one in classes(json.loads(file.read_text())) if "." in one]
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{file} is not the description of a data set: {error}") from None
        if foreign := [one for one in named if not one.startswith(OF_TFDS)]:
            raise ValueError(
                f"{file} contains the class {foreign[0]!r}, which TFDS would import; only TFDS's own"
                " classes are allowed."
            )


OF_TFDS = "tensorflow_datasets."
NAME = re.compile(
    r"[a-z]\w*(/[\w+.-]+)?(:(\d+|\*)(\.(\d+|\*)){2})?", re.ASCII | re.IGNORECASE
)  # TFDS's syntax


def not_prepared(name: str, dir: str) -> Exception:
    """Return the error for a set that is not in ``dir``, with the command that prepares it or similar names."""
    import tensorflow_datasets as tfds

    known = tfds.list_builders(with_community_datasets=False)
    base = name.split("/")[0].split(":")[0]
    if base not in known:
        here = os.listdir(dir) if os.path.isdir(dir) else []
        names = sorted({"digits", "folder", "synthetic", *known, *here})
        of_a_year = [name for name in known if re.fullmatch(rf"{re.escape(base)}\d+", name)]  # imagenet2012
        return _unknown("data.name", name, of_a_year or difflib.get_close_matches(base, names))
    by_hand = ""
    if tfds.builder_cls(base).MANUAL_DOWNLOAD_INSTRUCTIONS:
        by_hand = (
            f"put the archives listed on https://www.tensorflow.org/datasets/catalog/{base} into"
            f" {os.path.join(dir, 'downloads', 'manual')}, then "
        )
    return FileNotFoundError(
        f"{name} is not prepared in {dir}: {by_hand}run `{INSTALL} && "
        f"tfds build {name} --data_dir={shlex.quote(dir)} --file_format=array_record`"
    )


def _unknown(option: str, name: str, near: list[str]) -> ValueError:
    meant = ", ".join(near or ["digits", "folder", "any TFDS name"])
    return ValueError(f"{option} is {name!r}, which is not a known data set. Did you mean {meant}?")


def registered(name: str, label_key: str) -> tuple[tuple[int | None, int | None, int], tuple[str, ...]]:
    """Return the image shape and class names of a set from its builder's code; the set need not be prepared."""
    import tensorflow_datasets as tfds

    known = tfds.list_builders(with_community_datasets=False)
    if re.split("[:/]", name)[0] not in known:
        raise _unknown("data.like", name, difflib.get_close_matches(name, ["digits", "folder", *known]))
    try:
        features = dict(tfds.builder(name.split(":")[0], try_gcs=False).info.features)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise ValueError(f"data.like is {name!r}: {' '.join(str(error).split())[:200]}") from error
    return image_shape(name, features), class_names(name, features, label_key)


def image_shape(name: str, features) -> tuple[int | None, int | None, int]:
    """Return (h, w, c) of the images; h and w are None if images differ in size."""
    image = features.get("image")
    if image is None or len(image.shape or ()) != 3 or image.shape[-1] not in MODES:
        raise ValueError(
            f"{name} has no feature `image` of shape [h, w, c]: its features are {', '.join(features)}"
        )
    if image.np_dtype != np.uint8:
        raise ValueError(f"the images of {name} are {np.dtype(image.np_dtype)}; they must be uint8")
    return image.shape


def class_names(name: str, features, label_key: str) -> tuple[str, ...]:
    """Return the names of the classes; () without labels."""
    import tensorflow_datasets as tfds

    if not label_key:
        return ()
    if not isinstance(label_of(features.get(label_key)), tfds.features.ClassLabel):
        labels = sorted(k for k, x in features.items() if isinstance(label_of(x), tfds.features.ClassLabel))
        raise ValueError(
            f"data.label_key is {label_key!r}, which is not a label of {name}: "
            + (f"it has {', '.join(labels)}" if labels else "it has none, so set data.label_key=")
        )
    return tuple(label_of(features[label_key]).names)


def several(features, label_key: str) -> bool:
    """Return whether the set is multi-label: each image has a sequence of labels."""
    return bool(label_key) and label_of(features[label_key]) is not features[label_key]


def label_of(feature):
    """Return the feature, or the element feature of a sequence."""
    import tensorflow_datasets as tfds

    return feature.feature if isinstance(feature, tfds.features.Sequence) else feature


def parts(splits, split: str) -> list[range]:
    """Return the row ranges of a split in TFDS's syntax, one per stored split: two for train+unlabelled."""
    stored = {file.basename(): name for name, one in splits.items() for file in one.file_instructions}
    files = [file for file in splits[split].file_instructions if file.take]
    ranges, first = [], 0
    for _, some in itertools.groupby(files, lambda file: stored[file.basename()]):
        ranges.append(range(first, first := first + sum(file.take for file in some)))
    return ranges


class TfdsRecords:
    """The encoded images of one split (:class:`records.Records`); each example is its own group."""

    chunk = 4096

    def __init__(
        self,
        builder,
        split: str,
        shape: tuple[int | None, int | None, int],
        label_key: str,
        several: int = 0,
    ):
        """Open the split; ``several``: number of classes of a multi-label set, else 0."""
        import tensorflow_datasets as tfds

        # Its pickle contains file names, not open files.
        self._source = builder.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})
        self._place, self._label_key = f"{builder.info.full_name}, {split}", label_key
        self.shape, self.label_shape = shape, (several,) if several else ()
        self._parts = parts(builder.info.splits, split)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Indices) -> list[Record]:
        """Read the records of some rows, in that order.

        Raises:
            Unreadable: the first damaged record, by name.
            OSError: a file that cannot be read, for instance on an unresponsive file system.
        """
        rows = [int(row) for row in rows]
        try:
            return [
                Record(example["image"], self._label(example), row)
                for row, example in zip(rows, self._source.__getitems__(rows), strict=True)
            ]
        except OSError:
            raise
        except Exception as error:  # array_record raises one type of error, the parser many
            if isinstance(error, RuntimeError) and "Corrupted" not in str(error):
                raise OSError(f"cannot read {self._place}: {error}") from error
            if len(rows) > 1:  # find the damaged one
                return [record for row in rows for record in self.read([row])]
            raise Unreadable(f"cannot read {self.name(rows[0])}: {error}") from error

    def _label(self, example) -> int | np.ndarray:
        if not self.label_shape:
            return int(example[self._label_key]) if self._label_key else -1
        label = np.zeros(self.label_shape, np.uint8)
        found = np.asarray(example[self._label_key], np.int64)
        label[found[found >= 0]] = 1
        return label

    def positions(self) -> int:
        """Return the number of labels by position of an image; 0 if its labels are a set of classes.

        Labels are by position if the lists of the first images have one length and each repeats a class.
        """
        if not self.label_shape:
            return 0
        lists = []
        for row in range(min(FIRST, len(self))):
            with contextlib.suppress(RuntimeError, ValueError):  # a damaged record, which `read` names
                lists.append(np.asarray(self._source[row][self._label_key]).tolist())
        alike = len({*map(len, lists)}) == 1 and all(len({*one}) < len(one) for one in lists)
        return len(lists[0]) if alike and len(lists) > 1 else 0

    @functools.cached_property
    def labelled_rows(self) -> np.ndarray | None:
        """Rows of the images that have a label; None: all.

        The first image of each stored split is checked: its images all have labels or all have none. Of a multi-label
        set, whose images may belong to no class, the first :data:`FIRST` of them.
        """
        if not self._label_key:
            return np.empty(0, np.int64)
        labelled = [part for part in self._parts if self._labelled(part)]
        return (
            None if len(labelled) == len(self._parts) else np.concatenate([*labelled, np.empty(0, np.int64)])
        )

    def _labelled(self, part: range) -> bool:
        """Return whether the first images of a stored split have labels; damaged ones are skipped."""
        error = None
        for row in part[:FIRST]:
            try:
                label = self.read([row])[0].label
            except Unreadable as unreadable:
                error = unreadable
                continue
            error = None
            if not self.label_shape or np.any(label):
                return bool(np.any(label) if self.label_shape else label >= 0)
        if error:
            raise error
        return False

    @property
    def labelled(self) -> bool:
        """Return whether any image has a label."""
        return self.labelled_rows is None or len(self.labelled_rows) > 0

    def name(self, row: int) -> str:
        """Return a record's name for messages."""
        return f"image {row} of {self._place}"
