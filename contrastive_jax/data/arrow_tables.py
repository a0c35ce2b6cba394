"""Hugging Face data sets saved by ``save_to_disk``: Arrow files, memory-mapped."""

import functools
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from contrastive_jax.data.image_files import (
    ImageOptions,
    check_fraction,
    class_names,
    label_array,
    numbered_groups,
    root_of,
    source_of,
)
from contrastive_jax.data.image_folder import check_links
from contrastive_jax.data.listing import LABELS, Names, known_label, label_names, parse_json
from contrastive_jax.data.records import Unreadable, opened
from contrastive_jax.data.storage import Source
from contrastive_jax.kinds import with_options
from contrastive_jax.lookup import near

AUTO = "auto"
TESTS = ("test", "validation", "val")
SPLITS, STATE = "dataset_dict.json", "state.json"
LONGEST = 64 << 20  # bytes of a description; one with 100,000 class names takes some 2 MB


@with_options(ImageOptions, "data")
def huggingface(
    options: ImageOptions,
    *,
    dir: str = "",
    train_split: str = "train",
    test_split: str = AUTO,
    image_key: str = AUTO,
    label_key: str = AUTO,
    group: str = "",
) -> Source:
    """Load the images of a ``DatasetDict`` or ``Dataset`` that ``save_to_disk`` wrote, in the order of its rows.

    The Arrow files are memory-mapped, so rows are read in any order. Images are converted as those of a folder
    (:func:`image_folder.folder`). Needs the extra ``arrow``; the package ``datasets`` is not needed.
    The options after ``group`` are those of :class:`image_files.ImageOptions`.

    Args:
        dir: folder that ``save_to_disk`` wrote.
        train_split: split of the training images; ignored for a single ``Dataset``.
        test_split: split of the test images; "auto": the first of test, validation and val with labels; "": none.
        image_key: column of the images, encoded files; "auto": the only one of type ``Image``.
        label_key: column of the labels: ``ClassLabel``, whole numbers or texts, or lists of them; "auto": ``label``
            or ``labels``, else the only ``ClassLabel``, else no labels; "": no labels. Null and -1 mean no label;
            where labels are lists, every image needs one, which may be empty.
        group: column of groups of images, which are never each other's negatives; null and "" are groups of their
            own; "": each image is its own group.

    Raises:
        ValueError: a description or an Arrow file that is damaged or names another folder, a file that occurs twice,
            through a link, a missing column or split, a column of another type, a label outside its classes, an image
            that cannot be read.
        FileNotFoundError: a missing folder, or one that ``save_to_disk`` did not write.
        ImportError: pyarrow is not installed.
    """
    places = splits_of(dir, train_split)
    for option, name in {"train_split": train_split, "test_split": test_split}.items():
        if name not in places and (option == "train_split" or name not in ("", AUTO)):
            raise ValueError(f"data.{option} is {name!r}; the splits of {dir} are {', '.join(places)}.")
    if train_split == test_split:
        raise ValueError(
            f"data.test_split is {test_split!r}, the training split; set data.test_split='' for no test images."
        )
    keys = Keys(image_key, label_key, group)
    train = read_split(places[train_split], keys)
    if test_split == AUTO:
        found = (read_split(places[name], keys) for name in TESTS if name in places and name != train_split)
        test = next((one for one in found if any(one.labels) or not any(train.labels)), None)
    else:
        test = read_split(places[test_split], keys) if test_split else None
    if test and test_split != AUTO:
        check_fraction(options, f"data.test_split is {test_split!r}")
    if test and test.classes != train.classes:
        raise ValueError(f"the classes of {places[train_split]} and of another split, {test.place}, differ.")
    if test and test.image != train.image:
        raise ValueError(
            f"the images of {train.place} are in the column {train.image!r}, those of {test.place} in"
            f" {test.image!r}; set data.image_key to a column of both."
        )
    splits = [train, test] if test else [train]
    root = pathlib.Path(dir).expanduser()
    check_links(root, *([str(file.relative_to(root)) for file in s.files] for s in (train, test) if s))
    labels, groups = (
        [*itertools.chain.from_iterable(some)] for some in zip(*(s[-2:] for s in splits), strict=True)
    )
    count = len(train.labels)
    classes = train.classes or class_names(labels[:count], labels[count:])
    return source_of(
        "huggingface", TableFiles([file for split in splits for file in split.files], splits[0].image),
        np.arange(len(labels)) >= count, label_array(labels, classes, any(split.several for split in splits)),
        numbered_groups(groups, group, f"the column of {train.place} is empty") if group else None, classes,
        options,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------- descriptions


def splits_of(dir: str, train_split: str) -> dict[str, pathlib.Path]:
    """Return the folders of the splits; a single ``Dataset`` is the training split."""
    root = root_of(dir, "a folder that save_to_disk wrote for data.name=huggingface")
    if (root / STATE).exists():
        return {train_split: root}
    if not (root / SPLITS).exists():
        raise FileNotFoundError(
            f"data.dir is {dir}; it has neither {SPLITS} nor {STATE}, as save_to_disk writes them. Convert other"
            f" files once: python -c \"import datasets; datasets.load_dataset('{dir}').save_to_disk('NEW')\""
        )
    names = _description(root / SPLITS).get("splits")
    if not isinstance(names, list) or not names or not all(_is_name(name) for name in names):
        raise ValueError(f"{root / SPLITS} must have a list 'splits' of names of folders beside it.")
    return {name: root / name for name in names}


def _is_name(name: Any) -> bool:
    """Return whether a value is the name of a file beside the one that holds it."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {*name} & {*"/\\\0"}


def _description(file: pathlib.Path) -> dict[str, Any]:
    with opened(file, "a description") as stream:
        content = stream.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(
            f"{file} has more than {LONGEST >> 20} MiB; it is not the description of a data set."
        )
    return _object(content, str(file))


def _object(content: bytes, place: str) -> dict[str, Any]:
    try:
        described = parse_json(content.decode())
    except ValueError as error:
        raise ValueError(f"{place} is not the description of a data set: {error}.") from None
    if not isinstance(described, dict):
        raise ValueError(f"{place} is not the description of a data set: it must be an object.")
    return described


def arrow_files(place: pathlib.Path) -> list[pathlib.Path]:
    """Return the Arrow files of a split, in the order of their rows."""
    state = _description(place / STATE)
    files = state.get("_data_files")
    listed = files if isinstance(files, list) else []
    names: list[Any] = [one.get("filename") if isinstance(one, dict) else None for one in listed]
    if not names or not all(_is_name(name) for name in names):
        raise ValueError(f"{place / STATE} must have a list '_data_files' of names of files beside it.")
    if len({*names}) < len(names):
        raise ValueError(
            f"{place / STATE} names a file twice, so that its images would be their own negatives."
        )
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ValueError(
            f"{place / STATE} selects rows by further files; save the set again by save_to_disk."
        )
    return [place / name for name in names]


# -------------------------------------------------------------------------------------------------- tables


class Keys(NamedTuple):
    """Names of the columns."""

    image: str
    label: str
    group: str


class Described(NamedTuple):
    """A split: its files, the column of its images, and the labels and groups of its rows."""

    place: pathlib.Path
    files: list[pathlib.Path]
    image: str
    classes: tuple[str, ...]  # of a ClassLabel, in its order; (): the labels themselves
    several: bool  # whether labels are lists
    labels: list[Names]
    groups: list[str]  # [] without a column of groups


def read_split(place: pathlib.Path, keys: Keys) -> Described:
    """Read the description, labels and groups of a split."""
    files = arrow_files(place)
    schema = _schema(files[0])
    features = _features(schema, files[0])
    image = _image_column(schema, features, keys.image, files[0])
    label = _label_column(schema, features, keys.label, files[0])
    if keys.group and keys.group not in schema.names:
        raise ValueError(
            f"data.group is {keys.group!r}; {files[0]} has no such column. {near(keys.group, schema.names)}"
        )
    for file, key in itertools.product(files[1:], filter(None, (image, label, keys.group))):
        other = _schema(file)
        if key not in other.names or other.field(key).type != schema.field(key).type:
            raise ValueError(
                f"{file} does not have the column {key!r} of {files[0]}, {schema.field(key).type}."
            )
    classes, several = _classes(features.get(label), files[0])
    labels: list[Names] = []
    groups: list[str] = []
    for file in files:
        table = _table(file, tuple(key for key in (label, keys.group) if key))
        if label:
            labels += [
                _names(value, classes, f"row {row} of {file}")
                for row, value in enumerate(table.column(label).to_pylist())
            ]
            several |= _is_list(table.schema.field(label).type)
        else:
            labels += [()] * len(_table(file, (image,)))
        if keys.group:
            groups += [_group(value, file) for value in table.column(keys.group).to_pylist()]
    if not labels:
        raise ValueError(f"{place} has no rows.")
    return Described(place, files, image, classes, several, labels, groups)


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError(
            "data.name=huggingface needs pyarrow: pip install 'contrastive_jax[arrow]'"
        ) from None
    return pyarrow


def _is_list(kind: Any) -> bool:
    types = _arrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _reader(file: pathlib.Path, columns: Sequence[int] | None = None) -> Any:
    """Return a reader of a memory-mapped Arrow stream.

    Raises:
        ValueError: the file is not an Arrow stream.
        FileNotFoundError: there is no such file.
    """
    arrow = _arrow()
    opened(file, "an Arrow file").close()
    try:
        options = arrow.ipc.IpcReadOptions(included_fields=columns)
        return arrow.ipc.open_stream(arrow.memory_map(str(file)), options=options)
    except (arrow.ArrowException, OSError) as error:  # an OSError for damaged headers
        raise _damaged(file, error) from None


def _damaged(file: pathlib.Path, error: Exception) -> ValueError:
    return ValueError(
        f"{file} is not an intact Arrow stream ({' '.join(str(error).split())[:200]}); copy it again."
    )


def _schema(file: pathlib.Path) -> Any:
    schema = _reader(file).schema
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise ValueError(f"{file} has two columns {twice[0]!r}; it must have one.")
    return schema


def _table(file: pathlib.Path, names: Sequence[str]) -> Any:
    """Return columns of an Arrow file, with offsets that are checked to lie inside the file."""
    arrow = _arrow()
    known = _schema(file).names
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"{file} has no column {missing[0]!r}; it has {', '.join(known)}.")
    try:
        table = _reader(file, [known.index(name) for name in names]).read_all()
        table.validate(full=True)
    except (arrow.ArrowException, OSError) as error:
        raise _damaged(file, error) from None
    return table


def _features(schema: Any, file: pathlib.Path) -> dict[str, Any]:
    """Return Hugging Face's types of the columns, from the metadata of the file; {} without them."""
    kept = (schema.metadata or {}).get(b"huggingface")
    info = {} if kept is None else _object(kept, f"the metadata of {file}").get("info")
    features = info.get("features", {}) if isinstance(info, Mapping) else None
    if not isinstance(features, Mapping):
        raise ValueError(f"the metadata of {file} must describe the columns by an object info.features.")
    return {**features}


def _kind(feature: Any) -> str:
    return feature.get("_type", "") if isinstance(feature, Mapping) else ""


def _image_column(schema: Any, features: Mapping[str, Any], key: str, file: pathlib.Path) -> str:
    types = _arrow().types
    if key == AUTO:
        images = [name for name in schema.names if _kind(features.get(name)) == "Image"]
        if len(images) != 1:
            have = f"several images ({', '.join(images)})" if images else "no column of type Image"
            raise ValueError(
                f"data.image_key is 'auto', and {file} has {have}; set it to one of its columns,"
                f" {', '.join(schema.names)}."
            )
        key = images[0]
    if key not in schema.names:
        raise ValueError(f"data.image_key is {key!r}; {file} has no such column. {near(key, schema.names)}")
    kind = schema.field(key).type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise ValueError(
            f"data.image_key is {key!r}, which is {schema.field(key).type} in {file}; it must be encoded images, a"
            " struct with 'bytes', or binary."
        )
    return key


def _label_column(schema: Any, features: Mapping[str, Any], key: str, file: pathlib.Path) -> str:
    if key == AUTO:
        named = [name for name in schema.names if _kind(_inner(features.get(name))) == "ClassLabel"]
        usual = [name for name in LABELS if name in schema.names]
        return next(iter(usual), named[0] if len(named) == 1 else "")
    if key and key not in schema.names:
        raise ValueError(f"data.label_key is {key!r}; {file} has no such column. {near(key, schema.names)}")
    return key


def _inner(feature: Any) -> Any:
    """Return the type of the elements of a list, or a type itself."""
    if isinstance(feature, list) and len(feature) == 1:  # as older versions of `datasets` describe a list
        return feature[0]
    return feature.get("feature") if _kind(feature) in ("Sequence", "List", "LargeList") else feature


def _classes(feature: Any, file: pathlib.Path) -> tuple[tuple[str, ...], bool]:
    """Return the class names of a column, () unless it is a ClassLabel, and whether it is of lists."""
    inner = _inner(feature)
    if _kind(inner) != "ClassLabel":
        return (), inner is not feature
    names = inner.get("names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"the metadata of {file} must give the names of a ClassLabel as a list of texts.")
    if len({*names}) < len(names):
        raise ValueError(f"the metadata of {file} names two classes alike.")
    return tuple(names), inner is not feature


def _group(value: Any, file: pathlib.Path) -> str:
    """Return the name of a row's group; "" without one."""
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"data.group is a column of {file} with {value!r}; a group is text or a number.")
    return "" if value is None or value != value else str(value)


def _names(value: Any, classes: tuple[str, ...], place: str) -> Names:
    """Return the names of a row's labels, None if they are not known."""
    if (value := known_label(value)) is None:
        return None
    if not classes:
        return label_names(value, place)
    numbers = value if isinstance(value, list) else [value]
    if wrong := [one for one in numbers if not isinstance(one, int) or not 0 <= one < len(classes)]:
        raise ValueError(
            f"{place} has the label {wrong[0]!r}; it must be a whole number from 0 to {len(classes) - 1}."
        )
    return tuple(dict.fromkeys(classes[one] for one in numbers))


# -------------------------------------------------------------------------------------------------- images


class TableFiles:
    """Images in a column of Arrow files (:class:`image_files.Files`)."""

    paths = None  # a row has no path of its own

    def __init__(self, files: Sequence[pathlib.Path], column: str, rows: np.ndarray | None = None):
        self._files, self._column = tuple(files), column
        self._rows = np.arange(self._starts[-1]) if rows is None else rows

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: getattr(self, name) for name in ("_files", "_column", "_rows")
        }  # each process maps files itself

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: np.ndarray) -> "TableFiles":
        part = TableFiles(self._files, self._column, self._rows[rows])
        vars(part).update(_chunks=self._chunks)
        return part

    @functools.cached_property
    def _chunks(self) -> list[tuple[int, Any]]:
        """Number of the file and array of each record batch."""
        return [
            (number, chunk)
            for number, file in enumerate(self._files)
            for chunk in _table(file, (self._column,)).column(self._column).chunks
        ]

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """First row of each record batch, and the number of rows."""
        return np.cumsum([0, *(len(chunk) for _, chunk in self._chunks)])

    def _place(self, row: int) -> tuple[int, int]:
        """Return the record batch of an image, and its row there."""
        stored = int(self._rows[row])
        batch = int(np.searchsorted(self._starts, stored, "right")) - 1
        return batch, stored - int(self._starts[batch])

    def _bytes(self, row: int) -> Any:
        """Return an image as a buffer of the mapped file."""
        batch, inside = self._place(row)
        value = self._chunks[batch][1][inside]
        if value.is_valid and _arrow().types.is_struct(value.type):
            value = value["bytes"]
        if not value.is_valid:
            raise Unreadable(
                f"cannot read {self.name(row)}: its bytes are not in the file; save the set again by save_to_disk,"
                " which embeds images"
            )
        return value.as_buffer()

    def open(self, row: int) -> BinaryIO:
        """Open an image as a file in memory, of which only the parts that are read are loaded."""
        return _arrow().BufferReader(self._bytes(row))

    def size(self, row: int) -> int:
        """Return the number of bytes of an image."""
        try:
            return self._bytes(row).size
        except Unreadable:
            return 0

    def locate(self, row: int) -> pathlib.Path:
        """Return the Arrow file of an image."""
        return self._files[self._chunks[self._place(row)[0]][0]]

    def name(self, row: int) -> str:
        """Return an image's name for messages."""
        batch, inside = self._place(row)
        file = self._chunks[batch][0]
        first = next(number for number, (other, _) in enumerate(self._chunks) if other == file)
        return f"the image in row {inside + int(self._starts[batch] - self._starts[first])} of {self._files[file]}"
