"""WebDataset's tar shards: their members are read in place, and nothing is extracted."""

import errno
import fnmatch
import io
import os
import pathlib
import re
import tarfile
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from contrastive_jax.data.image_files import (
    EXTENSIONS,
    ImageOptions,
    check_fraction,
    class_names,
    label_array,
    matched_groups,
    numbered_groups,
    root_of,
    source_of,
)
from contrastive_jax.data.image_folder import TEST, check_depth, check_links, not_listed
from contrastive_jax.data.listing import LABELS, known_label, label_names, parse_json
from contrastive_jax.data.records import opened
from contrastive_jax.data.storage import Source
from contrastive_jax.kinds import with_options

AUTO = "auto"
JSON = "json."  # prefix of a key of the JSON member
TEXT = 1 << 20  # largest number of bytes of a label or JSON member
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
BLOCK = 512  # of tar
PADDING = 16 * 1024  # bytes after the last member that are checked; tar pads to 10 KiB


@with_options(ImageOptions, "data")
def webdataset(
    options: ImageOptions,
    *,
    dir: str = "",
    train_split: str = AUTO,
    test_split: str = AUTO,
    image_key: str = AUTO,
    label_key: str = AUTO,
    group: str = "",
) -> Source:
    """Load the images of WebDataset's tar shards, in the order of the shards' paths and of their members.

    The members of a sample share their path up to the first dot of the file name: ``0001.jpg``, ``0001.cls``,
    ``0001.json``. The start of a run reads every member's header. Images are read in place, in any order, and
    converted as those of a folder (:func:`image_folder.folder`). Pickled members (``.pyd``) are never read.
    The options after ``group`` are those of :class:`image_files.ImageOptions`.

    Args:
        dir: folder of the shards (``*.tar``, in sub-folders too), or one shard; compressed shards are refused.
        train_split: pattern of the training shards' paths relative to ``dir``, such as ``part-*.tar``; "auto":
            those with the word ``train``, or all shards if no path has such a word.
        test_split: pattern of the test shards' paths; "auto": those with the word ``test``, else ``val``, else
            ``validation``, beside training shards with the word ``train``, or that ``train_split`` selects; "": none.
        image_key: extension of the images: ``jpg``, or ``left.png`` where samples have several; "auto": any image
            format, one per sample.
        label_key: extension of the labels, text such as ``cls``; or ``json.KEY``, a key of the sample's JSON, whose
            value may be a list of labels; "auto": ``cls`` if a shard has it, else ``json.label`` or ``json.labels`` if
            a JSON of the shard has one, else no labels; "": no labels. A sample without a label, or with -1, has none;
            where labels are lists, every sample needs one, which may be empty.
        group: groups of images, which are never each other's negatives: ``json.KEY``, or a regular expression
            that is searched in the path ``SHARD/MEMBER`` and whose first group, or whole match, is the group's
            name. Images without a group's name are groups of their own.

    Raises:
        ValueError: a shard that is cut off, compressed or not a tar archive; a member that is a link or a device,
            or whose path leaves the shard; a sample with several images, an unreadable label, an image that
            cannot be read. The message names the shard and the member.
        FileNotFoundError: a missing folder, or no shard that matches.
    """
    root, shards = listed(dir)
    train, test = splits_of(root, shards, train_split, test_split)
    if test and test_split != AUTO:
        check_fraction(options, f"data.test_split={test_split!r} selects {test[0]}")
    check_links(root, train, test)
    keys = Keys(image_key.lower().removeprefix("."), label_key, group if group.startswith(JSON) else "")
    chosen = [*train, *test]
    samples = [
        sample for number, shard in enumerate(chosen) for sample in samples_of(root, shard, number, keys)
    ]
    if not samples:
        raise FileNotFoundError(
            f"the shards of data.dir {dir}, such as {train[0]}, contain no image"
            f" ({image_key if image_key != AUTO else ' '.join(EXTENSIONS)})."
        )
    shard = np.array([sample.shard for sample in samples], np.int32)
    for_test = shard >= len(train)
    for option, none in {"train_split": for_test.all(), "test_split": test and not for_test.any()}.items():
        if none:
            raise ValueError(f"data.{option} selects shards of {root} that contain no image.")
    paths = [f"{chosen[sample.shard]}/{sample.image.name}" for sample in samples]
    files = ShardFiles(
        root,
        np.array(chosen),
        shard,
        np.array([sample.image.offset for sample in samples], np.int64),
        np.array([sample.image.size for sample in samples], np.int64),
        np.array(paths),
    )
    names = [sample.label for sample in samples]
    if label_key not in ("", AUTO) and all(sample.label is None for sample in samples):
        raise ValueError(
            f"data.label_key is {label_key!r}, in which no sample has a label; {files.name(0)} has"
            f" {', '.join(samples[0].keys)}."
        )
    count = int(np.sum(~for_test))
    classes = class_names(names[:count], names[count:])
    several = any(sample.several for sample in samples)
    if group.startswith(JSON):
        groups = [sample.group for sample in samples]
    else:
        groups = matched_groups(paths, group) if group else []
    why = f"it is not found in any sample (such as {paths[0]})"
    return source_of(
        "webdataset", files, for_test, label_array(names, classes, several, paths),
        numbered_groups(groups, group, why) if group else None, classes,
        options,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ shards


def listed(dir: str) -> tuple[pathlib.Path, list[str]]:
    """Return the folder of the shards and their paths relative to it, sorted."""
    root = pathlib.Path(dir).expanduser()
    if root.name.lower().endswith(".tar") and root.is_file():
        return root.parent, [root.name]
    root = root_of(dir, "the folder of the tar shards for data.name=webdataset")
    found: list[str] = []
    for place, below, names in os.walk(root, followlinks=True, onerror=not_listed):
        check_depth(place, root)
        below[:] = [name for name in below if not name.startswith(".")]
        for name in (name for name in names if not name.startswith(".")):
            path = pathlib.Path(place, name)
            if path.suffix.lower() in ("", ".tar") and not os.path.lexists(os.path.realpath(path)):
                raise FileNotFoundError(f"{path} is a broken link; remove it, or mount its target.")
            found.append(path.relative_to(root).as_posix())
    packed = sorted(name for name in found if name.lower().endswith(PACKED))
    shards = sorted(name for name in found if name.lower().endswith(".tar"))
    if packed:
        raise ValueError(
            f"data.dir contains {packed[0]}, which is compressed and has no random access; decompress it to .tar,"
            " or move it elsewhere."
        )
    if not shards:
        raise FileNotFoundError(f"data.dir is {dir}; it contains no shard (*.tar).")
    return root, shards


def splits_of(
    root: pathlib.Path, shards: list[str], train_split: str, test_split: str
) -> tuple[list[str], list[str]]:
    """Return the training shards and the test shards, by patterns or by the words of their paths."""

    def matching(option: str, pattern: str) -> list[str]:
        some = [shard for shard in shards if fnmatch.fnmatchcase(shard, pattern)]
        if not some:
            raise FileNotFoundError(
                f"data.{option} is {pattern!r}, which matches no shard of {root}; they are {_shown(shards)}."
            )
        return some

    def of_word(word: str) -> list[str]:
        return [shard for shard in shards if word in re.split("[^a-z]+", shard.lower())]

    worded, tests = of_word("train"), [some for word in TEST if (some := of_word(word))]
    chosen = matching("train_split", train_split) if train_split != AUTO else worded
    if test_split == AUTO:
        test = tests[0] if tests and chosen else []
        if train_split != AUTO:
            test = [shard for shard in test if shard not in {*chosen}]
    else:
        test = matching("test_split", test_split) if test_split else []
    train = chosen or [shard for shard in shards if shard not in {*test}]
    if train_split == test_split == AUTO:
        neither = [shard for shard in shards if shard not in {*worded}.union(*tests)]
        if (worded and neither) or (tests and not worded):
            known = worded or tests[0]
            raise ValueError(
                f"data.train_split is 'auto', and {root} contains {_shown(known)}"
                + (f" beside {_shown(neither)}" if neither else ", and no shard with the word train")
                + ": set it to a pattern of the training shards, such as '*' for all, and data.test_split to one"
                " of the test shards, or '' for none."
            )
    if both := sorted({*train} & {*test}):
        raise ValueError(
            f"data.train_split is {train_split!r} and data.test_split is {test_split!r}; {both[0]} matches both,"
            " so training would include test images. Set data.test_split='' for no test images."
        )
    return train, test


def _shown(shards: Sequence[str]) -> str:
    return shards[0] if len(shards) == 1 else f"{shards[0]} ... {shards[-1]} ({len(shards):,})"


class Member(NamedTuple):
    """A regular file of a shard."""

    name: str
    offset: int
    size: int


def members(file: pathlib.Path) -> Iterator[Member]:
    """Yield the regular files of a tar archive; only headers are read.

    Raises:
        ValueError: the archive is cut off or damaged, a member is neither a file nor a folder, or its path leaves
            the archive.
    """
    with opened(file, "a tar archive") as stream:
        length, after = os.fstat(stream.fileno()).st_size, -1
        archive: Any = None
        while True:
            try:
                archive = archive or tarfile.open(fileobj=stream, mode="r:", encoding="utf-8")
                one = archive.next()
                archive.members.clear()  # it would keep all of them
            except OSError:
                raise
            except Exception as error:  # tarfile raises nearly anything on damaged headers
                why = " ".join(str(error).split()) or type(error).__name__
                raise ValueError(f"{file} is not an intact tar archive ({why}); copy it again.") from error
            if one is None:
                break
            name = one.name.removeprefix("./")
            shown = f"{one.name!r} of {file}"
            if one.offset_data <= after or one.size < 0 or one.offset_data + one.size > length:
                raise ValueError(f"{shown} is cut off or damaged; copy the file again.")
            after = one.offset_data
            if name.startswith("/") or ".." in name.split("/") or "\0" in name:
                raise ValueError(f"{shown} has a path that leaves the archive; remove it from the archive.")
            if one.isdir():
                continue
            if not one.isreg() or one.issparse():
                raise ValueError(f"{shown} is {_kind(one)}, not a file; remove it from the archive.")
            yield Member(name, one.offset_data, one.size)
        # At a damaged header tarfile stops as if the archive ended there.
        stream.seek(archive.offset)
        rest = stream.read(PADDING)
        if not rest.startswith(b"\0" * BLOCK):
            raise ValueError(
                f"{file} is cut off or damaged at byte {archive.offset:,}: it has no end mark; copy it again."
            )
        if rest.strip(b"\0"):
            raise ValueError(
                f"{file} has data after its end mark at byte {archive.offset:,}, as archives that were joined by"
                " cat; keep them as separate files."
            )


def _kind(member: tarfile.TarInfo) -> str:
    kinds = {"issym": "a link", "islnk": "a link", "isfifo": "a named pipe", "issparse": "a sparse file"}
    return next((kind for test, kind in kinds.items() if getattr(member, test)()), "a device")


# ------------------------------------------------------------------------------------------------ samples


class Keys(NamedTuple):
    """Extensions of a sample's parts."""

    image: str  # "auto": any image format
    label: str  # "auto"; "cls"; "json.KEY"; "": none
    group: str  # "json.KEY"; "": none


class Sample(NamedTuple):
    """An image of a shard with its label and group."""

    shard: int
    image: Member
    label: tuple[str, ...] | None  # None: no member or no key of that name
    several: bool  # whether the label is a list
    group: str
    keys: tuple[str, ...]  # extensions of all members


def samples_of(root: pathlib.Path, shard: str, number: int, keys: Keys) -> list[Sample]:
    """Return the samples of a shard that have an image, in the order of their images."""
    file = root / shard
    parts: dict[str, dict[str, Member]] = {}  # a sample's path -> extension -> member
    for member in members(file):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, extension = base.partition(".")
        if not dot or not stem:  # without an extension, or hidden
            continue
        own = parts.setdefault(f"{folder}{slash}{stem}", {})
        if own.setdefault(extension.lower(), member) is not member:
            raise ValueError(
                f"{member.name!r} occurs twice in {file}; a sample has one member of an extension."
            )
    samples: list[Sample] = []
    without: list[str] = []
    with opened(file, "a tar archive") as stream:
        if keys.label == AUTO:
            keys = keys._replace(label=_usual_label(stream, parts.values(), file))
        for path, own in parts.items():
            image = _image(own, keys.image, path, file)
            if image is None:
                without.append(path)
                continue
            described: dict[str, Any] = {}
            if keys.label.startswith(JSON) or keys.group:
                described = _described(stream, own, file)
            value = _label(stream, own, described, keys.label, file)
            label = None if value == "-1" else label_names(known_label(value), f"{image.name!r} of {file}")
            group = described.get(keys.group.removeprefix(JSON)) if keys.group else None
            if not isinstance(group, str | int | None):
                raise ValueError(
                    f"the group of {image.name!r} of {file} is {group!r:.80}; it must be a name."
                )
            group = "" if group is None else str(group)
            samples.append(Sample(number, image, label, isinstance(value, list), group, tuple(own)))
    if without:
        warnings.warn(
            f"{len(without):,} samples of {file} such as {without[0]} ({', '.join(parts[without[0]])}) have no image"
            " and are ignored.",
            RuntimeWarning,
            stacklevel=3,
        )
    return sorted(samples, key=lambda sample: sample.image.offset)


def _image(own: dict[str, Member], key: str, path: str, file: pathlib.Path) -> Member | None:
    if key != AUTO:
        return own.get(key)
    images = [extension for extension in own if f".{extension}" in EXTENSIONS]
    if len(images) > 1:
        raise ValueError(
            f"data.image_key is 'auto', and the sample {path!r} of {file} has several images"
            f" ({', '.join(images)}); set it to one of these extensions."
        )
    return own[images[0]] if images else None


def _text(stream: BinaryIO, member: Member, file: pathlib.Path) -> str:
    if member.size > TEXT:
        raise ValueError(
            f"{member.name!r} of {file} has {member.size:,} bytes; a label has at most {TEXT:,}."
        )
    stream.seek(member.offset)
    try:
        return stream.read(member.size).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{member.name!r} of {file} is not a text in UTF-8.") from None


def _described(stream: BinaryIO, own: dict[str, Member], file: pathlib.Path) -> dict[str, Any]:
    """Return the object of a sample's JSON member; {} without one."""
    if "json" not in own:
        return {}
    member = own["json"]
    try:
        content = parse_json(_text(stream, member, file))
    except ValueError as error:
        raise ValueError(f"{member.name!r} of {file} is not intact JSON: {error}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{member.name!r} of {file} must be a JSON object.")
    return content


def _usual_label(stream: BinaryIO, samples: Collection[dict[str, Member]], file: pathlib.Path) -> str:
    """Return the key of a shard's labels that "auto" finds; "" without labels."""
    if any("cls" in own for own in samples):
        return "cls"
    for own in samples:
        try:
            described = _described(stream, own, file)
        except ValueError:  # JSON that no option names need not be an object
            return ""
        for name in LABELS:
            if type(described.get(name)) in (str, int, list):
                return f"{JSON}{name}"
    return ""


def _label(
    stream: BinaryIO, own: dict[str, Member], described: dict[str, Any], key: str, file: pathlib.Path
) -> Any:
    """Return a sample's label as stored; None without one."""
    if key.startswith(JSON):
        return described.get(key.removeprefix(JSON))
    member = own.get(key.removeprefix(".")) if key else None
    return None if member is None else _text(stream, member, file).strip()


# ------------------------------------------------------------------------------------------------ images


class ShardFiles:
    """Images inside tar shards (:class:`image_files.Files`).

    Attributes:
        paths: [n] str, ``SHARD/MEMBER``.
    """

    def __init__(
        self,
        root: pathlib.Path,
        shards: np.ndarray,
        shard: np.ndarray,
        offset: np.ndarray,
        length: np.ndarray,
        paths: np.ndarray,
    ):
        self._root, self._shards = root, shards
        self._shard, self._offset, self._length, self.paths = shard, offset, length, paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: np.ndarray) -> "ShardFiles":
        own = (array[rows] for array in (self._shard, self._offset, self._length, self.paths))
        return ShardFiles(self._root, self._shards, *own)

    def open(self, row: int) -> BinaryIO:
        """Open an image as a file that ends where its member ends."""
        shard = opened(self.locate(row), "a tar archive")
        return io.BufferedReader(Section(shard, int(self._offset[row]), int(self._length[row])))

    def size(self, row: int) -> int:
        """Return the number of bytes of an image."""
        return int(self._length[row])

    def locate(self, row: int) -> pathlib.Path:
        """Return the shard of an image."""
        return self._root / self._shards[self._shard[row]]

    def name(self, row: int) -> str:
        """Return an image's name for messages."""
        shard = self._shards[self._shard[row]]
        return f"the image {self.paths[row][len(shard) + 1 :]} of {self._root / shard}"


class Section(io.RawIOBase):
    """A part of an open file, read as a file of its own; closing it closes that file."""

    def __init__(self, file: BinaryIO, start: int, size: int):
        self._file, self._start, self._size, self._at = file, start, size, 0
        self.name = file.name

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a byte of the part and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the position in the part."""
        return self._at

    def readall(self) -> bytes:
        """Read to the end of the part, at once."""
        return self._read(self._size - self._at)

    def readinto(self, buffer) -> int:
        """Fill a buffer; return the number of bytes, 0 at the end of the part."""
        some = self._read(min(len(buffer), self._size - self._at))
        buffer[: len(some)] = some
        return len(some)

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._file.close()

    def _read(self, count: int) -> bytes:
        if count <= 0:
            return b""
        self._file.seek(self._start + self._at)
        some = self._file.read(count)
        if len(some) < count:
            raise OSError(errno.EIO, "it is shorter than at the start of the run", self.name)
        self._at += count
        return some
