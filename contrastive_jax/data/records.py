"""Encoded images with random access: what a data set is before anything is decoded.

``Records`` is all that the rest of the house knows of where images lie. A resident split is all of them
decoded once (:func:`decoded`); a streamed one is read by row in worker processes (:mod:`stream`).
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

from contrastive_jax.data.decode import whole
from contrastive_jax.data.split import Split


class Record(NamedTuple):
    """One example as it is stored."""

    image: bytes  # an image file: JPEG, PNG, ..., or a .npy file with the pixels [h, w, c] uint8
    label: int | np.ndarray  # -1 where there is none; of a multi-label set [C] uint8, multi-hot
    group: int  # examples of one group are never each other's negatives


class Records(Protocol):
    """Encoded images of one split with random access.

    Picklable, so that worker processes get it; files are opened by the process that reads them, when it does.

    Attributes:
        shape: (height, width, channels) once decoded; height and width are None where images differ in size.
        label_shape: () or, of a multi-label set, (C,).
        chunk: how many records are well read at once.
    """

    chunk: int
    shape: tuple[int | None, int | None, int]
    label_shape: tuple[int, ...]

    @property
    def labelled(self) -> bool:
        """Return whether any example has a label."""

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> list[Record]:
        """Read the records of some rows, in that order; raise Unreadable where one of them is damaged, naming the
        first. What else can happen to a file (OSError) is not the record's fault, and no other image stands in for
        it."""

    def name(self, row: int) -> str:
        """Return what to call a record in a message: "image 7 of cifar10/3.0.2, train", or a path."""


class Unreadable(ValueError):
    """An image that cannot be read; the message names it and says why."""

    def __init__(self, message: str):
        super().__init__(re.sub(r" <_io\.\w+ [^>]*>", "", message))  # Pillow's name for bytes

    @classmethod
    def of(cls, records: Records, row: int, error: Exception) -> "Unreadable":
        """Return the error of a record that was read, but not decoded."""
        return error if isinstance(error, cls) else cls(f"cannot read {records.name(row)}: {error}")


def decoded(records: Records, size: int, replace: bool = False) -> Split:
    """Return every record, decoded into host memory.

    Read by the chunk: several times as fast as one by one through the decoder of TFDS. Images that are not
    resized are small: there one thread is faster than several.

    Args:
        records: of one shape, unless ``size`` is given.
        size: short side resized to it (bicubic, antialiased), centre cropped; 0 leaves images as they are.
        replace: the next image of the set that can be read stands in for one that cannot, with its label and group,
            and a warning names both.

    Raises:
        Unreadable: the first image that cannot be read, by name; with ``replace``, if no image can be.
    """
    count, (height, width, channels) = len(records), records.shape
    image = np.empty((count, size or height, size or width, channels), np.uint8)
    label = np.empty((count, *records.label_shape), np.uint8 if records.label_shape else np.int32)
    group = np.empty(count, np.int32)
    corrupt: dict[int, Unreadable] = {}

    def read(rows: Sequence[int]) -> list[tuple[int, Record]]:
        try:
            return list(zip(rows, records.read(rows), strict=True))
        except Unreadable as error:
            if not replace:
                raise
            if len(rows) > 1:  # one of them
                return [pair for row in rows for pair in read([row])]
            corrupt[rows[0]] = error
            return []

    def decode(pair: tuple[int, Record]):
        row, record = pair
        try:
            pixels = whole(record.image, channels, size)
            if pixels.shape != image.shape[1:]:  # as of a PNG that says behind its pixels how they are turned
                has, had = ("x".join(map(str, shape)) for shape in (pixels.shape, image.shape[1:]))
                raise ValueError(f"it is {has} pixels, and the set {had}: set data.size")
            image[row] = pixels
        except ValueError as error:  # damaged, or of another shape than the set says
            corrupt[row] = Unreadable.of(records, row, error)
            if not replace:
                raise corrupt[row] from error
        label[row], group[row] = record.label, record.group

    with ThreadPoolExecutor(os.cpu_count()) as pool:
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
        warnings.warn(f"{error}; {records.name(stand_in)} stands in for it", RuntimeWarning, stacklevel=2)
    return Split(image, label, group, getattr(records, "paths", None))


def opened(file: str | os.PathLike) -> BinaryIO:
    """Open an image file; never wait for a pipe or a device that is named like one.

    Raises:
        Unreadable: it is no regular file.
    """
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open(os.fspath(file), "rb", opener=_at_once))  # decoders read its name
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise Unreadable(
                f"{file} is {_KINDS.get(stat.S_IFMT(mode), 'a device')}, not an image file; move it away"
            )
        stack.pop_all()
        return stream


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
