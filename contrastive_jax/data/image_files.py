"""Encoded image files of a data set, wherever they are stored: in folders, tar shards or Arrow tables."""

import contextlib
import dataclasses
import os
import pathlib
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, BinaryIO, Literal, Protocol

import numpy as np

from contrastive_jax.data import pixels
from contrastive_jax.data.listing import Names
from contrastive_jax.data.records import Record, Unreadable, opened
from contrastive_jax.data.split import Indices, group_numbers, stratified
from contrastive_jax.data.storage import Source, StorageOptions, held_out, stored
from contrastive_jax.kinds import Decay, Ge, Le
from contrastive_jax.system import limits

EXTENSIONS = (
    ".png",
    ".jpg",
    ".jpeg",
    ".jfif",
    ".bmp",
    ".gif",
    ".webp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".pbm",
)
FILES = ("folder", "webdataset", "huggingface")  # values of data.name for users' own image files
DARK = 32  # of 255; 16-bit images that are all darker have another white


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions(StorageOptions):
    """Options of sets of users' own image files.

    Args:
        test_fraction: fraction of every class for the test split if the set has none, by
            :func:`split.stratified` and in whole groups; 0: no test split. An error if ``test_split`` names
            one; ignored if "auto" finds one.
        channels: number of channels: 1 converts all images to grey, 3 to RGB; 0: grey if all images are grey,
            RGB if some are RGB, otherwise the number that all images have.
        white: value of 16-bit images that becomes 255, as do all above it (10000 for Sentinel-2's
            reflectances).
    """

    test_fraction: Decay = 0.0
    channels: Literal[0, 1, 3] = 0
    white: Annotated[int, Ge(1), Le(pixels.WHITE)] = pixels.WHITE


class Files(Protocol):
    """Encoded images with random access. Picklable; a file is opened by the process that reads it."""

    @property
    def paths(self) -> np.ndarray | None:
        """Return [n] str, paths relative to the folder of the set; None if the images have no paths."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> "Files":
        """Return the images of some rows."""

    def open(self, row: int) -> BinaryIO:
        """Open an image as a file.

        Raises Unreadable if there is no such image; an OSError is not a fault of the image.
        """

    def size(self, row: int) -> int:
        """Return the number of bytes of an image."""

    def locate(self, row: int) -> pathlib.Path:
        """Return the file on disk that contains an image."""

    def name(self, row: int) -> str:
        """Return an image's name for messages."""


class FolderFiles:
    """Image files of a folder."""

    def __init__(self, root: pathlib.Path, paths: Sequence[str] | np.ndarray):
        self._root, self.paths = root, np.asarray(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: np.ndarray) -> "FolderFiles":
        return FolderFiles(self._root, self.paths[rows])

    def open(self, row: int) -> BinaryIO:
        """Open an image, without waiting for a pipe or a device of such a name."""
        return opened(self.locate(row))

    def size(self, row: int) -> int:
        """Return the number of bytes of an image."""
        return os.stat(self.locate(row)).st_size

    def locate(self, row: int) -> pathlib.Path:
        """Return the file of an image."""
        return self._root / self.paths[row]

    def name(self, row: int) -> str:
        """Return an image's name for messages."""
        return f"the image {self.locate(row)}"


class ImageRecords:
    """Image files as records (:class:`records.Records`), converted by :func:`pixels.plain`.

    Attributes:
        files: the images.
        label: labels of all images, [n] int32 or [n, C] uint8, known without reading an image.
        group: groups of all images, [n].
    """

    chunk = 16  # phone photographs take megabytes each

    def __init__(
        self,
        files: Files,
        label: np.ndarray,
        group: np.ndarray,
        shape: tuple[int | None, int | None, int],
        white: int = pixels.WHITE,
    ):
        self.files, self.group, self._white = files, group, white
        self.paths = files.paths
        self.shape, self.label, self.label_shape = shape, label, label.shape[1:]
        self.labelled = label.ndim == 2 or bool((label >= 0).any())

    def __len__(self) -> int:
        return len(self.files)

    def read(self, rows: Indices) -> list[Record]:
        """Read the records of some rows, in that order.

        Raises:
            Unreadable: an image is damaged; the message names the first one.
            OSError: a file was removed, or the file system does not answer.
        """
        return [self._read(int(row)) for row in rows]

    def _read(self, row: int) -> Record:
        label = self.label[row]
        try:
            with self.files.open(row) as stream:
                file = stream.read()
        except OSError as error:  # an error of reading, unlike one of opening, names no file
            why = (
                f"an image of data.dir cannot be read ({error.strerror}); once it can be, repeat the"
                " command to resume"
            )
            raise OSError(error.errno, why, str(self.files.locate(row))) from error
        try:
            image = pixels.plain(file, self.shape[2], self._white)
        except Exception as error:  # Pillow's plugins raise nearly anything on damaged bytes
            raise Unreadable(f"cannot read {self.name(row)}: {pixels.reason(error)}") from error
        return Record(image, label if label.ndim else int(label), int(self.group[row]))

    def name(self, row: int) -> str:
        """Return a record's name for messages."""
        return self.files.name(row)


def source_of(
    name: str,
    files: Files,
    for_test: np.ndarray,
    label: np.ndarray,
    group: np.ndarray | None,
    classes: tuple[str, ...],
    options: ImageOptions,
) -> Source:
    """Return the data set of some image files, after reading the header of each.

    Args:
        name: name of the data set.
        files: training and test images.
        for_test: mask [n] of the test images.
        label: labels [n] int32, -1 for an image without one, or [n, C] uint8.
        group: groups [n] of all images; None: each image is its own group.
        classes: names of the classes.
        options: options of the set.

    Raises:
        ValueError: images that cannot be read or do not fit together; a test fraction that leaves a split empty.
    """
    rows, headers = headers_of(files, skip=options.corrupt == "replace")
    shape = common_shape(files, rows, headers, options.channels)
    warn_of_pages(files, rows, headers)
    warn_of_darkness(files, rows, headers, options.white)
    if options.test_fraction and not for_test.any():
        for_test = stratified(label, options.test_fraction, group)
        if not for_test.any() or for_test.all():
            raise ValueError(
                f"data.test_fraction is {options.test_fraction:g}; with {len(files)} images it leaves a split empty."
            )

    def records(rows: np.ndarray) -> ImageRecords:
        own = np.arange(rows.sum(), dtype=np.int32) if group is None else group[rows]
        return ImageRecords(files[rows], label[rows], own, shape, options.white)

    splits = stored(name, records(~for_test), records(for_test) if for_test.any() else None, options)
    return held_out(Source(name, *splits, classes), options.validation)


def root_of(dir: str, wanted: str) -> pathlib.Path:
    """Return the folder ``data.dir``; ``wanted`` says what it must be."""
    if not dir:
        raise ValueError(f"data.dir is ''; it must be {wanted}.")
    root = pathlib.Path(dir).expanduser()
    if not root.is_dir():
        place = "" if root.is_absolute() else f" in {pathlib.Path.cwd()}"
        raise FileNotFoundError(f"data.dir is {dir}; there is no such folder{place}.")
    return root


def check_fraction(options: ImageOptions, known: str) -> None:
    """Refuse ``data.test_fraction`` beside a test split that the user chose; ``known`` names it."""
    if options.test_fraction:
        raise ValueError(
            f"data.test_fraction is {options.test_fraction:g}, but {known}; set data.test_fraction=0 or"
            " data.test_split=''."
        )


def class_names(train: Sequence[Names], test: Sequence[Names]) -> tuple[str, ...]:
    """Return the labels of the training images, sorted, as numbers if all are integers."""
    known, met = ({name for names in some for name in names or ()} for some in (train, test))
    if unknown := sorted(met - known):
        raise ValueError(f"test images have classes without training images: {', '.join(unknown)}.")
    numbers = all(re.fullmatch(r"-?\d+", name) for name in known)
    return tuple(sorted(known, key=lambda name: (int(name) if numbers else 0, name)))  # "1" and "01" differ


def label_array(
    names: Sequence[Names], classes: tuple[str, ...], several: bool, paths: Sequence[str] | None = None
) -> np.ndarray:
    """Return labels [n] int32, -1 for an image without one; with ``several``, multi-hot [n, C] uint8.

    Raises:
        ValueError: with ``several``, no label at all, or an image whose labels are not known.
    """
    number = {name: i for i, name in enumerate(classes)}
    if not several:
        return np.array([number[own[0]] if own else -1 for own in names], np.int32)
    if not classes:
        raise ValueError("data.labels has no label for any image.")
    if (unknown := next((i for i, own in enumerate(names) if own is None), None)) is not None:
        image = f"row {unknown}" if paths is None else paths[unknown]
        raise ValueError(
            f"{image} has no label, while others have lists of labels. Give it an empty list if it belongs to no"
            " class, leave it out, or set data.label_key='' to train without labels."
        )
    label = np.zeros((len(names), len(classes)), np.uint8)
    for row, own in zip(label, names, strict=True):
        row[[number[name] for name in own or ()]] = 1
    return label


def matched_groups(paths: Sequence[str], group: str) -> list[str]:
    """Return the name of each path's group by a regular expression: its first group or whole match, or ""."""
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise ValueError(f"data.group is {group!r}, which is not a regular expression: {error}.") from None
    matches = [pattern.search(path) for path in paths]
    return [(match[1 if pattern.groups else 0] or "") if match else "" for match in matches]


def numbered_groups(names: Sequence[str], group: str, none: str) -> np.ndarray:
    """Return the groups [n] int32, each named by the index of its first image; "" is a group of its own.

    Args:
        names: names of the groups.
        group: the option ``data.group``, for messages.
        none: reason why there is no group, for messages.
    """
    numbers = group_numbers(names)
    if not any(names):
        raise ValueError(f"data.group is {group!r}, which forms no group: {none}.")
    if len(names) > 1 and (numbers == 0).all():
        raise ValueError(
            f"data.group is {group!r}, which puts all {len(names):,} images into one group; no image"
            " would have a negative."
        )
    return numbers


def _outside(error: Exception) -> bool:
    """Return whether an error is the file system's (with an errno, unlike Pillow's) or a missing package's."""
    return isinstance(error, ImportError) or getattr(error, "errno", None) is not None


def headers_of(files: Files, skip: bool = False) -> tuple[list[int], list[pixels.Header]]:
    """Return rows of the images and their headers, so that errors are raised before decoding.

    With ``skip``, images without a readable header are left out; decoding handles them.
    """
    from PIL import Image

    def header(row: int) -> pixels.Header | None:
        try:
            with files.open(row) as stream:
                return pixels.header(stream)
        except Unreadable:
            if skip:
                return None
            raise
        except Exception as error:  # Pillow's plugins raise nearly anything on a damaged file
            if isinstance(error, Image.DecompressionBombError):
                raise ValueError(
                    f"{files.name(row)} has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, the"
                    " limit of one file; cut it into tiles."
                ) from None
            if skip and not _outside(error):
                return None
            raise Unreadable(f"cannot read {files.name(row)}: {pixels.reason(error)}") from error

    with ThreadPoolExecutor(limits.cores()) as pool:
        met = [(row, found) for row, found in enumerate(pool.map(header, range(len(files)))) if found]
    if not met:
        raise ValueError(f"none of {len(files)} images such as {files.name(0)} can be read.")
    return [row for row, _ in met], [header for _, header in met]


def common_shape(
    files: Files, rows: Sequence[int], headers: Sequence[pixels.Header], channels: int = 0
) -> tuple[int | None, int | None, int]:
    """Return (h, w, c) of the images; h and w are None if sizes differ. ``channels`` sets c unless it is 0."""
    found = {header.channels: row for row, header in zip(rows, headers, strict=True)}  # one image of each
    kinds = ", ".join(f"{files.name(row)} has {c}" for c, row in sorted(found.items()))
    if len(found) > 1 and set(found) != {1, 3}:
        raise ValueError(f"images have different numbers of channels: {kinds}.")
    if channels and not set(found) <= {1, 3}:
        raise ValueError(
            f"data.channels is {channels}; it must be 0 unless all images are grey or RGB, and {kinds}."
        )
    sizes = {(header.height, header.width) for header in headers}
    height, width = sizes.pop() if len(sizes) == 1 else (None, None)
    return height, width, channels or max(found)


def warn_of_pages(files: Files, rows: Sequence[int], headers: Sequence[pixels.Header]) -> None:
    """Warn of TIFFs with several pages, of which only the first is read."""
    if several := [row for row, header in zip(rows, headers, strict=True) if header.pages]:
        warnings.warn(
            f"{len(several):,} TIFFs such as {files.name(several[0])} have several pages; only the first page"
            " is read. Save the channels of an image as samples of one page, and the images of a stack as"
            " separate files.",
            RuntimeWarning,
            stacklevel=4,
        )


def warn_of_darkness(files: Files, rows: Sequence[int], headers: Sequence[pixels.Header], white: int) -> None:
    """Warn if a sample of up to sixteen 16-bit images is nearly black with this ``white``."""
    deep = [pair for pair in zip(rows, headers, strict=True) if pair[1].deep]
    brightest = 0
    for row, header in deep[:: max(1, -(-len(deep) // 16))]:
        with contextlib.suppress(Exception), files.open(row) as stream:  # damaged images are reported later
            seen = pixels.decode(pixels.plain(stream.read(), header.channels, white), header.channels)
            brightest = max(brightest, int(seen.max()))
    if 0 < brightest < DARK:
        warnings.warn(
            f"{len(deep):,} images of 16 bits such as {files.name(deep[0][0])} are nearly black: no sampled value"
            f" is above {brightest * white // 255:,}, and data.white={white} becomes white. Lower"
            " data.white.",
            RuntimeWarning,
            stacklevel=4,
        )
