"""Digests of images, kept in checkpoints to detect that a resumed run has other images.

Rows are in at most ``PARTS`` groups, of one row each up to that many, so that the digests of any set take some
100 KB. For images in memory the arrays are digested. For streamed files, a group has a stamp (names, sizes and
times of the files on disk, one ``stat`` per image) and a digest of contents: the sizes of all its images, and
blocks of the first. The digest is computed again only if the stamp differs, so that copied or touched files count
as the same. A set of up to ``PARTS`` images is thus compared image by image. For a larger set at most ``PARTS``
images are read; changes of the others are detected by their sizes, which differ for compressed images. Labels and
groups, which may come from another file, have one digest.
"""

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from contrastive_jax.data.image_files import Files
from contrastive_jax.data.records import Unreadable
from contrastive_jax.data.split import Split
from contrastive_jax.data.stream import Streamed

PARTS = 4096
BLOCKS, BLOCK = 4, 16 * 1024  # number and bytes of a file's digested blocks; smaller files are digested whole
THREADS = 16


def contents(train: Split | Streamed, known: Mapping[str, Any] | None = None) -> dict[str, list[str]] | None:
    """Return the digests of a split's rows, by group: ``{"rows"}`` in memory, else ``{"rows", "stamps", "labels"}``.

    Args:
      train: the split.
      known: an earlier result, so that files of the same name, size and time are not read again.

    Returns:
      The digests, or None if rows are not files and would have to be decoded.
    """
    if isinstance(train, Split):
        second = train.made.tables if train.paired else ()
        held = (train.image, train.label, train.group, *second)
        rows = _mapped(lambda part: _of_arrays(*(array[part] for array in held)), len(train))
        return {"rows": rows}
    files = getattr(train.records, "files", None)
    if files is None:
        return None
    stamps = _mapped(
        lambda part: _digest(_stamp(files.locate(row)) for row in range(part.start, part.stop)), len(train)
    )
    before: dict[int, tuple[str, str]] = {}
    if known is not None and len(known.get("stamps", ())) == len(stamps):
        before = dict(enumerate(zip(known["stamps"], known["rows"], strict=True)))
    size = _groups(len(train))[0].stop

    def of_files(part: slice) -> str:
        stamp, rows = before.get(number := part.start // size, ("", ""))
        if stamp == stamps[number]:
            return rows
        sizes = (b"%d " % files.size(row) for row in range(part.start, part.stop))
        return _digest([*sizes, _content(files, part.start)])

    known_of = (getattr(train.records, name, None) for name in ("label", "group"))
    labels = _of_arrays(*(array for array in known_of if array is not None))
    return {"rows": _mapped(of_files, len(train)), "stamps": stamps, "labels": [labels]}


def differing(train: Split | Streamed, now: Mapping[str, Any], had: Mapping[str, Any]) -> list[str]:
    """Return names of the rows, or groups of rows, that changed; [] also if the number of groups differs."""
    groups = _groups(len(train))
    if len(now["rows"]) != len(had["rows"]):
        return []
    others = [
        group for group, one, other in zip(groups, now["rows"], had["rows"], strict=True) if one != other
    ]

    def name(row: int) -> str:
        return f"image {row}" if train.paths is None else str(train.paths[row])

    return [
        name(group.start)
        if group.stop == group.start + 1
        else f"some of {name(group.start)} to {name(group.stop - 1)}"
        for group in others
    ]


def _groups(count: int) -> list[slice]:
    size = -(-count // PARTS)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _mapped(function, count: int) -> list[str]:
    with ThreadPoolExecutor(THREADS) as pool:  # hashing and reading release the GIL
        return list(pool.map(function, _groups(count)))


def _digest(parts: Sequence[bytes] | Any) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _of_arrays(*arrays: np.ndarray) -> str:
    return _digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays)


def _stamp(path: os.PathLike) -> bytes:
    status = os.stat(path)
    return f"{os.path.basename(path)}\0{status.st_size} {status.st_mtime_ns}\0".encode(
        "utf-8", "surrogateescape"
    )


def _content(files: Files, row: int) -> bytes:
    """Return a digest of an image's size and contents; zeros for a pipe or a device."""
    with contextlib.suppress(Unreadable), files.open(row) as file:  # which refuses pipes and devices
        size = files.size(row)
        digest = hashlib.blake2b(f"{size}\0".encode(), digest_size=16)
        if size <= BLOCKS * BLOCK:
            digest.update(file.read())
        else:
            for number in range(BLOCKS):
                file.seek((size - BLOCK) * number // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
        return digest.digest()
    return b"\0" * 16
