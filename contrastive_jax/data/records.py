"""Encoded images with random access, the stored form of a data set.

``Records`` is the interface between storage and the rest of the package. A resident split decodes all records
once (:func:`decoded`); a streamed split is read by row in worker processes (:mod:`stream`).
"""

import contextlib
import os
import re
import stat
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np

from contrastive_jax.data.pixels import whole
from contrastive_jax.data.split import Indices, Split
from contrastive_jax.system import limits


class Record(NamedTuple):
    """One example in its stored form."""

    image: bytes  # an image file: JPEG, PNG, ..., or a .npy file with the pixels [h, w, c] uint8
    label: int | np.ndarray  # -1: none; for a multi-label set multi-hot [C] uint8
    group: int  # examples of one group are never each other's negatives


class Records(Protocol):
    """Encoded images of one split with random access.

    Picklable for worker processes; a file is opened when it is read, by the process that reads it.
    """

    @property
    def shape(self) -> tuple[int | None, int | None, int]:
        """(height, width, channels) of a decoded image; height and width are None if images differ in size."""

    @property
    def label_shape(self) -> tuple[int, ...]:
        """() or, for a multi-label set, (C,)."""

    @property
    def chunk(self) -> int:
        """Number of records that are efficiently read at once."""

    @property
    def labelled(self) -> bool:
        """Return whether any example has a label."""

    def __len__(self) -> int: ...

    def read(self, rows: Indices) -> list[Record]:
        """Read the records of some rows, in that order.

        Raises Unreadable for damaged records, naming the first. An OSError is not a fault of the record, and no
        other image replaces it.
        """

    def name(self, row: int) -> str:
        """Return a record's name for messages: "image 7 of cifar10/3.0.2, train", or a path."""


class Unreadable(ValueError):
    """Error for an image that cannot be read; the message gives its name and the reason."""

    def __init__(self, message: str):
        super().__init__(re.sub(r" <_io\.\w+ [^>]*>", "", message))  # Pillow's name for bytes

    @classmethod
    def of(cls, records: Records, row: int, error: Exception) -> "Unreadable":
        """Return the error for a record that was read but could not be decoded."""
        return error if isinstance(error, cls) else cls(f"cannot read {records.name(row)}: {error}")


def decoded(records: Records, size: int, replace: bool = False) -> Split:
    """Decode all records into host memory.

    Reading in chunks is several times as fast as one by one with the decoder of TFDS. Images that are not
    resized are small, and one thread is faster than several for them.

    Args:
        records: records of one shape, unless ``size`` is given.
        size: size in pixels to which the short side is resized (bicubic, antialiased) before the centre is
            cropped; 0: the stored size.
        replace: whether the next readable image of the set replaces an unreadable one, with its label and
            group; a warning names both.

    Raises:
        Unreadable: an image cannot be read; the message names the first. With ``replace``: no image can be
            read.
    """
    count, (height, width, channels) = len(records), records.shape
    height, width = size or height, size or width
    assert height and width, "records of several shapes need a size"
    image = np.empty((count, height, width, channels), np.uint8)
    label = np.empty((count, *records.label_shape), np.uint8 if records.label_shape else np.int32)
    group = np.empty(count, np.int32)
    corrupt: dict[int, Unreadable] = {}

    def read(rows: Sequence[int]) -> list[tuple[int, Record]]:
        try:
            return list(zip(rows, records.read(rows), strict=True))
        except Unreadable as error:
            if not replace:
                raise
            if len(rows) > 1:  # find the damaged one
                return [pair for row in rows for pair in read([row])]
            corrupt[rows[0]] = error
            return []

    def decode(pair: tuple[int, Record]):
        row, record = pair
        try:
            pixels = whole(record.image, channels, size)
            if pixels.shape != image.shape[1:]:  # as for a PNG with EXIF rotation behind its pixels
                has, had = ("x".join(map(str, shape)) for shape in (pixels.shape, image.shape[1:]))
                raise ValueError(f"it is {has} pixels, and the set is {had}: set data.size")
            image[row] = pixels
        except ValueError as error:  # damaged, or of another shape than the set
            corrupt[row] = Unreadable.of(records, row, error)
            if not replace:
                raise corrupt[row] from error
        label[row], group[row] = record.label, record.group

    with ThreadPoolExecutor(limits.cores()) as pool:
        each = pool.map if size else map
        for first in range(0, count, records.chunk):
            rows = range(first, min(first + records.chunk, count))
            for _ in each(decode, read(rows)):
                pass
    for row, error in sorted(corrupt.items()):
        after = (other % count for other in range(row + 1, row + count))
        stand_in = next((other for other in after if other not in corrupt), None)
        if stand_in is None:
            raise Unreadable(f"no record can be read: {error}")
        image[row], label[row], group[row] = image[stand_in], label[stand_in], group[stand_in]
        warnings.warn(f"{error}; {records.name(stand_in)} replaces it", RuntimeWarning, stacklevel=2)
    return Split(image, label, group, getattr(records, "paths", None))


def opened(file: str | os.PathLike, what: str = "an image file") -> BinaryIO:
    """Open an image file, or another (``what``), without waiting for a pipe or a device of such a name.

    Raises:
        Unreadable: it is not a regular file.
    """
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open(os.fspath(file), "rb", opener=_at_once))  # decoders use its name
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise Unreadable(
                f"{file} is {_KINDS.get(stat.S_IFMT(mode), 'a device')}, not {what}; move it elsewhere"
            )
        stack.pop_all()
        return stream


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
