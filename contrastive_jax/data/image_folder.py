"""A folder of images: labelled by its sub-folders, by a file that lists them, or not at all."""

import contextlib
import os
import pathlib
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from contrastive_jax.data import pixels
from contrastive_jax.data.listing import Listing, read_listing
from contrastive_jax.data.records import Record, Unreadable, opened
from contrastive_jax.data.split import Source, held_out, stratified
from contrastive_jax.data.storage import Corrupt, NumWorkers, Resize, Streaming, White, stored
from contrastive_jax.kinds import CountOrZero, Decay, Positive, checked

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

TEST = ("test", "val", "validation")
LIKE_TRAIN = ("training", "trainset", "train_set")  # and what else folders of splits are called
LIKE_TEST = ("testing", "testset", "test_set", "valid", "valset", "val_set")
NOT_READ = tuple(  # images that Pillow does not read, or not everywhere
    ".heic .heif .avif .jp2 .j2k .jxl .jpe .tga .exr .npy .dcm .nii .czi .nd2 .lsm .lif .svs .ndpi .dng .cr2 .nef"
    " .arw".split()
)
DEEPEST = 100  # folders within folders
DARK = 32  # of 255; images of 16 bits that are darker throughout have another white


@checked("data")
def folder(
    *,
    dir: str = "",
    train_split: str = "train",
    test_split: str = "auto",
    test_fraction: Decay = 0.0,
    validation: Decay = 0.0,
    labels: str = "",
    path_key: str = "",
    label_key: str = "label",
    label_separator: str = "",
    group: str = "",
    size: CountOrZero = 0,
    channels: Literal[0, 1, 3] = 0,
    white: White = pixels.WHITE,
    memory_limit: Positive = 8.0,
    stream: Streaming = "auto",
    workers: NumWorkers = -1,
    corrupt: Corrupt = "raise",
    resize: Resize = "exact",
) -> Source:
    """Load images under ``dir``, in the order of their relative paths.

    Hidden files are not looked at; a warning counts images of kinds that are not read (HEIC, DICOM, CZI and the like).

    Without a file of labels, an image's label is the first folder below the root; images that lie in no
    folder have none (-1). EXIF rotation is honoured, transparency is laid on white, 16 bits become 8, a file
    of several images is its first. Warnings count TIFFs of several pages, and 16-bit images that are nearly black.

    Args:
        dir: root folder of the images.
        train_split: sub-folder of the training images, if it exists; letter case is ignored.
        test_split: sub-folder of the test images; "auto": test, val or validation beside a train folder; "": no
            test images.
        test_fraction: without a test folder, this fraction of every class by the rule of
            :func:`split.stratified`, groups whole; 0 is no test split. An error beside a folder that ``test_split``
            names; where "auto" finds one, the folder is the test split.
        validation: stratified share of the training images that is held out and replaces the test images, for
            choosing options; the test images are not used. Images in memory only.
        labels: a file with a row for every image, paths relative to ``dir`` (:func:`listing.read_listing`), by
            its path or by its name inside ``dir``; "" takes labels from folders.
        path_key: column of paths in that file; "": the usual names.
        label_key: column of labels in that file; "": no labels, with or without such a file.
        label_separator: separator of several labels of one image in a CSV file.
        group: images of one group are never each other's negatives: a column of the file, or else a regular
            expression that is searched in the path relative to ``dir``; the group is its first group, or the
            whole match. An image where it is not found, or whose cell is empty, is alone.
        size: resize the short side to this many pixels (bicubic, antialiased) and crop the centre; 0: images of
            one size stay as they are.
        channels: number of channels: 1 converts to grey, 3 to RGB; 0: grey if all images are grey, otherwise
            RGB, or the common number of channels.
        white: value of 16-bit images that is mapped to 255, like all values above it (10000 for Sentinel-2
            reflectances).
        memory_limit: maximum memory of the decoded images of both splits, in GiB.
        stream: whether images stay encoded and are decoded when needed: "auto" if they differ in size (without
            ``size``) or exceed ``memory_limit``; "on" always; "off" never.
        workers: number of worker processes that decode a stream; 0: threads of the training process; -1: one
            per core, at most 32.
        corrupt: handling of unreadable images: "raise" ends the run with the image's name; "replace" uses the
            next image and its label; --mode=embed allows "raise" only.
        resize: resizing of training views in a stream: "exact" equals the device's; "opencv" is faster and has
            a sharper cubic kernel.

    Raises:
        ValueError: an image that cannot be read, by its path; a file that is met twice, by a link; a folder ``train``
            beside other folders of images, none of them a test folder; images without a row or rows without an image;
            a group that fits no image, or all.
        FileNotFoundError: a folder or file that is not there, or a link to one.
        OSError: a folder that cannot be listed.
    """
    if not dir:
        raise ValueError("data.name=folder needs data.dir, the folder with the images")
    root = pathlib.Path(dir).expanduser()
    if not root.is_dir():
        place = "" if root.is_absolute() else f", looked for in {pathlib.Path.cwd()}"
        raise FileNotFoundError(f"data.dir={dir} is not a folder{place}")
    if not labels and (path_key or label_separator or label_key not in ("label", "")):
        raise ValueError(
            "data.path_key, data.label_key and data.label_separator are for the file that data.labels names"
        )

    train_root, test_root = split_folders(root, train_split, test_split)
    if test_root and test_fraction and test_split != "auto":
        raise ValueError(
            f"{test_root} is the test split, so data.test_fraction={test_fraction:g} cannot be: "
            "set data.test_fraction=0 or data.test_split="
        )
    train = image_paths(root, train_root)
    test = image_paths(root, test_root) if test_root else []
    paths = train + test
    check_links(root, train, test)
    if labels:
        listing = read_listing(
            listing_file(labels, root),
            path_key=path_key, label_key=label_key, label_separator=label_separator, group=group,
            root=root, known=paths,
        )  # fmt: skip
        check_listing(listing, paths, labels, root)
        names = [listing.rows[path].labels for path in paths]
    else:
        listing = None
        names = [
            folder_label(path, place, root) if label_key else ()
            for some, place in ((train, train_root), (test, test_root))
            for path in some
        ]
    several = bool(listing and listing.several)
    classes = class_names(names[: len(train)], names[len(train) :])
    label = label_array(names, classes, several)
    groups = group_array(paths, group, listing)
    files, headers = headers_of([root / path for path in paths], skip=corrupt == "replace")
    shape = common_shape(files, headers, channels)
    warn_of_pages(files, headers)
    warn_of_darkness(files, headers, white)

    for_test = np.arange(len(paths)) >= len(train)
    if test_fraction and not test_root:
        for_test = stratified(label, test_fraction, groups)
        if not for_test.any() or for_test.all():
            raise ValueError(
                f"data.test_fraction={test_fraction:g} of {len(train)} images leaves a split empty"
            )

    def records(rows: np.ndarray) -> FolderRecords:
        some = [paths[row] for row in np.flatnonzero(rows)]
        own = groups[rows] if group else np.arange(len(some), dtype=np.int32)
        return FolderRecords(root, some, label[rows], own, shape, white)

    options = {
        "size": size,
        "memory_limit": memory_limit,
        "stream": stream,
        "workers": workers,
        "corrupt": corrupt,
        "resize": resize,
    }
    train, test = stored(
        "folder", (records(~for_test), records(for_test) if for_test.any() else None), **options
    )
    return held_out(Source("folder", train, test, classes), validation)


class FolderRecords:
    """The records of some images (:class:`records.Records`), each as :func:`pixels.plain` makes it.

    Attributes:
        label: of every image, [n] int32 or [n, C] uint8: known without reading any.
        group: of every image, [n].
        paths: [n] str, relative to the root.
    """

    chunk = 16  # photographs of phones take megabytes each

    def __init__(
        self,
        root: pathlib.Path,
        paths: list[str],
        label: np.ndarray,
        group: np.ndarray,
        shape: tuple[int | None, int | None, int],
        white: int = pixels.WHITE,
    ):
        self._root, self.group, self._white = root, group, white
        self.paths = np.array(paths)
        self.shape, self.label, self.label_shape = shape, label, label.shape[1:]
        self.labelled = label.ndim == 2 or bool((label >= 0).any())

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Sequence[int]) -> list[Record]:
        """Read the records of some rows, in that order.

        Raises:
            Unreadable: the first damaged image, by its path.
            OSError: a file that is there no more, or a file system that does not answer.
        """
        return [self._read(int(row)) for row in rows]

    def _read(self, row: int) -> Record:
        label, path = self.label[row], self._root / self.paths[row]
        try:
            with opened(path) as stream:
                file = stream.read()
        except OSError as error:  # one that reading raises, not opening, does not say of what
            why = f"an image of data.dir cannot be read ({error.strerror}); once it can, the same command goes on"
            raise OSError(error.errno, why, str(path)) from error
        try:
            image = pixels.plain(file, self.shape[2], self._white)
        except Exception as error:  # Pillow's plugins raise nearly anything on damaged bytes
            raise Unreadable(f"cannot read {self.name(row)}: {pixels.reason(error)}") from error
        return Record(image, label if label.ndim else int(label), int(self.group[row]))

    def locate(self, row: int) -> pathlib.Path:
        """Return the file of a record."""
        return self._root / self.paths[row]

    def name(self, row: int) -> str:
        """Return what to call a record in a message."""
        return f"the image {self._root / self.paths[row]}"


def split_folders(
    root: pathlib.Path, train_split: str, test_split: str
) -> tuple[pathlib.Path, pathlib.Path | None]:
    """Return where the training and the test images lie."""
    with os.scandir(root) as entries:
        folders = {
            name.lower(): root / name for name in sorted(entry.name for entry in entries if entry.is_dir())
        }

    def folder(name: str) -> pathlib.Path:
        exact = root / name
        return exact if exact.is_dir() else folders.get(name.lower(), exact)

    train = folder(train_split)
    if not train.is_dir():
        if train_split != "train" or test_split not in ("auto", ""):
            raise FileNotFoundError(f"data.train_split={train_split}: there is no folder {train}")
        like, names = (folders.keys() & {*some} for some in (LIKE_TRAIN, (*TEST, *LIKE_TEST)))
        if test_split == "auto" and like and names:
            raise ValueError(
                f"data.dir={root} has the folders {folders[min(like)].name} and {folders[min(names)].name}, which"
                " would be two classes: name them, data.train_split and data.test_split, or set data.test_split='' if"
                " they are"
            )
        return root, None
    if test_split == "auto":
        test_split = next((name for name in TEST if name in folders), "")
        if not test_split and (names := folders.keys() & {*LIKE_TEST}):
            raise ValueError(
                f"data.test_split='auto' looks for {', '.join(TEST)} beside {train}, and there is"
                f" {folders[min(names)].name}: name it, or data.test_split='' for no test images"
            )
        others = (
            [] if test_split else [path for path in folders.values() if path != train and has_images(path)]
        )
        if others and train != root:
            raise ValueError(
                f"data.dir={root} has images in the folder {train.name}, which would be all, and in {others[0].name}"
                f"{_and_more(others)}: data.train_split='' takes every folder, as a class, data.test_split='' the"
                f" images of {train.name} alone"
            )
    if not test_split:
        return train, None
    test = folder(test_split)
    if not test.is_dir():
        raise FileNotFoundError(f"data.test_split={test_split}: there is no folder {test}")
    one, other = sorted((train.resolve(), test.resolve()), key=lambda path: len(path.parts))
    if other.is_relative_to(one):
        raise ValueError(
            f"data.test_split={test_split}: {test} and the training images' {train} are one folder, or one"
            " inside the other: test images would be trained on; data.test_split='' takes no test images"
        )
    return train, test


def check_links(root: pathlib.Path, train: Sequence[str], test: Sequence[str]) -> None:
    """Refuse a file that is there twice, by a link: among test images, or as its own negative.

    Raises:
        ValueError: both paths.
    """
    places: dict[str, str] = {}  # folder -> where it lies, links followed
    met: dict[str, str] = {}  # file -> its path
    for number, path in enumerate((*train, *test)):
        place, _, name = path.rpartition("/")
        if place not in places:
            places[place] = os.path.realpath(root / place)
        file = os.path.join(places[place], name)
        file = os.path.realpath(file) if os.path.islink(file) else file
        if (first := met.setdefault(file, path)) is not path:
            across = number >= len(train) and first not in test
            raise ValueError(
                f"{root / path} and {root / first} are one file, by a link: "
                + (
                    "test images would be trained on; data.test_split='' takes no test images"
                    if across
                    else "the image would be its own negative; remove one"
                )
            )


def has_images(place: pathlib.Path) -> bool:
    """Return whether some image lies under a folder; folders that are hidden or links are not looked at."""
    for here, below, names in os.walk(place):
        _check_depth(here, place)
        below[:] = [name for name in below if not name.startswith(".")]
        if any(name.lower().endswith(EXTENSIONS) and not name.startswith(".") for name in names):
            return True
    return False


def _check_depth(place: str, root: pathlib.Path) -> None:
    """Refuse folders within folders without end, as a fault of a file system or of a program makes them."""
    if place.count(os.sep) - str(root).count(os.sep) > DEEPEST:
        shown = place if len(place) < 160 else f"{place[:80]}...{place[-40:]}"
        raise ValueError(
            f"folders below data.dir are nested more than {DEEPEST} deep: {shown}; move them out"
        )


def _not_listed(error: OSError) -> None:
    """Fail where a folder cannot be listed: its images would be missing in silence."""
    raise OSError(
        error.errno, f"a folder of data.dir cannot be listed ({error.strerror})", error.filename
    ) from error


def image_paths(root: pathlib.Path, below_root: pathlib.Path) -> list[str]:
    """List paths of the images under ``below_root``, relative to ``root``, with / and sorted."""
    paths: list[str] = []
    not_read: list[str] = []
    above: dict[
        str, set[str]
    ] = {}  # a folder that is still to be listed -> those that it lies in, links followed
    for place, below, names in os.walk(below_root, followlinks=True, onerror=_not_listed):
        _check_depth(place, below_root)
        for name in names:  # not a file that anything needs: a link to a folder that is not mounted, say
            if (
                not name.startswith(".")
                and not os.path.splitext(name)[1]
                and not os.path.exists(os.path.join(place, name))
            ):
                raise FileNotFoundError(
                    f"{os.path.join(place, name)} is a link to what is not there; remove it, or mount it"
                )
        here = pathlib.Path(place).resolve()
        circle = above.pop(place, set()) | {
            str(here),
            *map(str, here.parents),
        }  # what a link must not lead to
        below[:] = [
            name
            for name in below
            if not name.startswith(".") and os.path.realpath(os.path.join(place, name)) not in circle
        ]
        above |= {os.path.join(place, name): circle for name in below}
        not_read += [name for name in names if name.lower().endswith(NOT_READ) and not name.startswith(".")]
        paths += [
            pathlib.Path(place, name).relative_to(root).as_posix()
            for name in names
            if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
        ]
    if not paths:
        raise FileNotFoundError(f"no image under {below_root} (looked for {' '.join(EXTENSIONS)})")
    if not_read:
        warnings.warn(
            f"{below_root}: {len(not_read):,} files such as {not_read[0]} are not read (only {' '.join(EXTENSIONS)})",
            RuntimeWarning,
            stacklevel=2,
        )
    return sorted(paths)


def listing_file(labels: str, root: pathlib.Path) -> pathlib.Path:
    """Return where the file of labels is: at its path, or inside ``data.dir``."""
    places = [pathlib.Path(labels).expanduser(), root / labels]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"data.labels={labels}: there is no such file, neither here nor in {root}")
    return file


def check_listing(listing: Listing, paths: list[str], labels: str, root: pathlib.Path) -> None:
    """Refuse images without a row and rows without an image."""
    lost = [path for path in paths if path not in listing.rows]
    if lost:
        foreign = next((path for path in listing.rows if not (root / path).is_file()), "")
        hint = (
            f"; it has {foreign}, which is not there in {root}: paths are relative to data.dir"
            if foreign
            else ""
        )
        raise ValueError(f"data.labels={labels} has no row for {lost[0]}{_and_more(lost)}{hint}")
    known = set(paths)
    missing = [path for path in listing.rows if path not in known and not (root / path).is_file()]
    if missing:
        raise ValueError(f"data.labels={labels} lists {missing[0]}{_and_more(missing)}, not there in {root}")


def _and_more(files: list) -> str:
    return f" and {len(files) - 1:,} more" if len(files) > 1 else ""


def folder_label(path: str, place: pathlib.Path, root: pathlib.Path) -> tuple[str, ...]:
    """Return the first folder below the root of the split, where the image lies in one."""
    inside = (root / path).relative_to(place).parts[:-1][:1]
    return tuple(os.fsencode(name).decode(errors="backslashreplace") for name in inside)  # named by any bytes


def class_names(train: list[tuple[str, ...]], test: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the labels of the training images, sorted; as numbers where they all are."""
    known, met = ({name for names in some for name in names} for some in (train, test))
    if unknown := sorted(met - known):
        raise ValueError(
            f"test images have the classes {', '.join(unknown)}, of which there is no training image"
        )
    numbers = all(re.fullmatch(r"-?\d+", name) for name in known)
    return tuple(sorted(known, key=lambda name: (int(name) if numbers else 0, name)))  # "1" and "01" are two


def label_array(names: list[tuple[str, ...]], classes: tuple[str, ...], several: bool) -> np.ndarray:
    """Return [n] int32, -1 for an image without a label; with ``several`` [n, C] uint8."""
    number = {name: i for i, name in enumerate(classes)}
    if not several:
        return np.array([number[own[0]] if own else -1 for own in names], np.int32)
    if not classes:
        raise ValueError("data.labels: no image has a label")
    label = np.zeros((len(names), len(classes)), np.uint8)
    for row, own in zip(label, names, strict=True):
        row[[number[name] for name in own]] = 1
    return label


def group_array(paths: list[str], group: str, listing: Listing | None) -> np.ndarray:
    """Return [n] int32: the number of the first image of an image's group."""
    alone = np.arange(len(paths), dtype=np.int32)
    if not group:
        return alone
    if listing and listing.grouped:
        names = [listing.rows[path].group for path in paths]
    else:
        try:
            pattern = re.compile(group)
        except re.error as error:
            raise ValueError(f"data.group={group!r} is no regular expression: {error}") from None
        matches = [pattern.search(path) for path in paths]
        names = [(match[1 if pattern.groups else 0] or "") if match else "" for match in matches]
    first = {}
    numbers = np.array([first.setdefault(name, i) if name else i for i, name in enumerate(names)], np.int32)
    if not first:
        where = "no cell of its column is filled" if listing and listing.grouped else "it is found in no path"
        column = " and no column of data.labels" if listing and not listing.grouped else ""
        raise ValueError(f"data.group={group!r} groups nothing: {where} (such as {paths[0]}){column}")
    if len(paths) > 1 and (numbers == 0).all():
        raise ValueError(
            f"data.group={group!r} puts all {len(paths):,} images into one group: none would have a negative"
        )
    return numbers


def _outside(error: Exception) -> bool:
    """Return whether an error is the file system's (it has a number, Pillow's has none) or of what is not installed."""
    return isinstance(error, ImportError) or getattr(error, "errno", None) is not None


def headers_of(
    files: Sequence[pathlib.Path], skip: bool = False
) -> tuple[list[pathlib.Path], list[pixels.Header]]:
    """Return the images and their headers, so that what cannot work is said before decoding; with ``skip`` an image
    without a header is left out, to be met later."""
    from PIL import Image

    def header(file: pathlib.Path) -> pixels.Header | None:
        try:
            with opened(file) as stream:
                return pixels.header(stream)
        except Unreadable:
            if skip:
                return None
            raise
        except Exception as error:  # Pillow's plugins raise nearly anything on a damaged file
            if isinstance(error, Image.DecompressionBombError):
                raise ValueError(
                    f"the image {file} has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, which are not read"
                    " from one file: cut it into tiles"
                ) from None
            if skip and not _outside(error):
                return None
            raise Unreadable(f"cannot read the image {file}: {pixels.reason(error)}") from error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        met = [(file, shape) for file, shape in zip(files, pool.map(header, files), strict=True) if shape]
    if not met:
        raise ValueError(f"none of {len(files)} images can be read, such as {files[0]}")
    return [file for file, _ in met], [header for _, header in met]


def common_shape(
    files: Sequence[pathlib.Path], headers: Sequence[pixels.Header], channels: int = 0
) -> tuple[int | None, int | None, int]:
    """Return (h, w, c) of the images; h and w are None where they differ. ``channels``: what c has to be; 0: any."""
    found = {header.channels: file for file, header in zip(files, headers, strict=True)}  # a file of each
    kinds = ", ".join(f"{file} has {c}" for c, file in sorted(found.items()))
    if len(found) > 1 and set(found) != {1, 3}:
        raise ValueError(f"images of different numbers of channels: {kinds}")
    if channels and not set(found) <= {1, 3}:
        raise ValueError(f"data.channels={channels} is for grey and RGB images, and {kinds}")
    sizes = {(header.height, header.width) for header in headers}
    height, width = sizes.pop() if len(sizes) == 1 else (None, None)
    return height, width, channels or max(found)


def warn_of_pages(files: Sequence[pathlib.Path], headers: Sequence[pixels.Header]) -> None:
    """Warn of TIFFs of which all pages but the first are left out."""
    if several := [file for file, header in zip(files, headers, strict=True) if header.pages]:
        warnings.warn(
            f"{len(several):,} TIFFs such as {several[0]} have several pages, and the first of each is read: save the"
            " channels of an image as the samples of one page, and the images of a stack as files",
            RuntimeWarning,
            stacklevel=3,
        )


def warn_of_darkness(files: Sequence[pathlib.Path], headers: Sequence[pixels.Header], white: int) -> None:
    """Warn where images of 16 bits, sixteen of them looked at, are nearly black with this white."""
    deep = [pair for pair in zip(files, headers, strict=True) if pair[1].deep]
    brightest = 0
    for file, header in deep[:: max(1, -(-len(deep) // 16))]:
        with contextlib.suppress(Exception), opened(file) as stream:  # a damaged image is found later
            seen = pixels.decode(pixels.plain(stream.read(), header.channels, white), header.channels)
            brightest = max(brightest, int(seen.max()))
    if 0 < brightest < DARK:
        warnings.warn(
            f"{len(deep):,} images of 16 bits such as {deep[0][0]} are nearly black: none that was looked at has a"
            f" value above {brightest * white // 255:,}, and data.white={white} is what becomes white",
            RuntimeWarning,
            stacklevel=3,
        )
