"""Folders of images, labelled by sub-folders, by a file of labels, or not at all."""

import os
import pathlib
import warnings
from collections.abc import Sequence

import numpy as np

from contrastive_jax.data.image_files import (
    EXTENSIONS,
    FolderFiles,
    ImageOptions,
    check_fraction,
    class_names,
    label_array,
    matched_groups,
    numbered_groups,
    root_of,
    source_of,
)
from contrastive_jax.data.listing import Listing, read_listing
from contrastive_jax.data.storage import Source
from contrastive_jax.kinds import with_options

TEST = ("test", "val", "validation")
LIKE_TRAIN = ("training", "trainset", "train_set")  # other common names of split folders
LIKE_TEST = ("testing", "testset", "test_set", "valid", "valset", "val_set")
NOT_READ = tuple(  # image formats that Pillow does not read, or not everywhere
    ".heic .heif .avif .jp2 .j2k .jxl .jpe .tga .exr .npy .dcm .nii .czi .nd2 .lsm .lif .svs .ndpi .dng .cr2 .nef"
    " .arw".split()
)
DEEPEST = 100  # largest depth of nested folders


@with_options(ImageOptions, "data")
def folder(
    options: ImageOptions,
    *,
    dir: str = "",
    train_split: str = "train",
    test_split: str = "auto",
    labels: str = "",
    path_key: str = "",
    label_key: str = "label",
    label_separator: str = "",
    group: str = "",
) -> Source:
    """Load the images under ``dir``, in the order of their relative paths.

    Without a file of labels, an image's label is the first folder below the root; images outside of any folder
    have no label (-1). EXIF rotation is applied, transparency is laid on white, 16 bits become 8, and of a file
    with several images the first is read. Hidden files are skipped. Warnings count files of formats that are
    not read (HEIC, DICOM, CZI and others), TIFFs with several pages, and 16-bit images that are nearly black.
    The options after ``group`` are those of :class:`image_files.ImageOptions`.

    Args:
        dir: root folder of the images.
        train_split: sub-folder of the training images, in any letter case; "", or no folder ``train``: the
            root.
        test_split: sub-folder of the test images, in any letter case; "auto": ``test``, ``val`` or
            ``validation`` beside a train folder; "": none.
        labels: file with a row for every image and paths relative to ``dir`` (:func:`listing.read_listing`);
            its path, or its name inside ``dir``; "": labels from folders.
        path_key: column of paths in that file; "": the first of the usual names.
        label_key: column of labels in that file; "": no labels, with or without a file.
        label_separator: separator of several labels in a CSV or TSV cell; "": one label.
        group: groups of images, which are never each other's negatives: a column of that file, or a regular
            expression that is searched in the path relative to ``dir`` and whose first group, or whole match,
            is the group's name. Images without a match, or with an empty cell, are groups of their own.

    Raises:
        ValueError: an image that cannot be read, with its path; a file that occurs twice, through a link; a
            folder ``train`` beside other folders of images and without a test folder; images without a row or
            rows without an image; a group that matches no image, or puts all into one.
        FileNotFoundError: a missing folder or file, or a link to one.
        OSError: a folder that cannot be listed.
    """
    root = root_of(dir, "the folder of the images for data.name=folder")
    if not labels and (path_key or label_separator or label_key not in ("label", "")):
        raise ValueError(
            "data.path_key, data.label_key and data.label_separator describe the file data.labels; set"
            " data.labels too."
        )

    train_root, test_root = split_folders(root, train_split, test_split)
    if test_root and test_split != "auto":
        check_fraction(options, f"{test_root} is the test split")
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
            if place
            for path in some
        ]
    classes = class_names(names[: len(train)], names[len(train) :])
    label = label_array(names, classes, bool(listing and listing.several), paths)
    return source_of(
        "folder", FolderFiles(root, paths), np.arange(len(paths)) >= len(train), label,
        group_array(paths, group, listing) if group else None, classes,
        options,
    )  # fmt: skip


def split_folders(
    root: pathlib.Path, train_split: str, test_split: str
) -> tuple[pathlib.Path, pathlib.Path | None]:
    """Return the folders of the training images and of the test images (None: no test images)."""
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
            raise FileNotFoundError(f"data.train_split is {train_split}; there is no folder {train}.")
        like, names = (folders.keys() & {*some} for some in (LIKE_TRAIN, (*TEST, *LIKE_TEST)))
        if test_split == "auto" and like and names:
            raise ValueError(
                f"data.dir is {root}, with the folders {folders[min(like)].name} and"
                f" {folders[min(names)].name}: set data.train_split and data.test_split if they are"
                " splits, or data.test_split='' if they are two classes."
            )
        return root, None
    if test_split == "auto":
        test_split = next((name for name in TEST if name in folders), "")
        if not test_split and (names := folders.keys() & {*LIKE_TEST}):
            raise ValueError(
                f"data.test_split is 'auto', and {folders[min(names)].name} is beside {train}, but none"
                f" of {', '.join(TEST)}: set data.test_split to the folder of test images, or to '' for"
                " none."
            )
        others = (
            [] if test_split else [path for path in folders.values() if path != train and has_images(path)]
        )
        if others and train != root:
            raise ValueError(
                f"data.dir is {root}, with images in {train.name} and also in"
                f" {others[0].name}{_and_more(others)}: set data.train_split='' to use every folder as a"
                f" class, or data.test_split='' to use {train.name} only."
            )
    if not test_split:
        return train, None
    test = folder(test_split)
    if not test.is_dir():
        raise FileNotFoundError(f"data.test_split is {test_split}; there is no folder {test}.")
    one, other = sorted((train.resolve(), test.resolve()), key=lambda path: len(path.parts))
    if other.is_relative_to(one):
        raise ValueError(
            f"data.test_split is {test_split}; {test} and the training folder {train} overlap, so"
            " training would include test images. Set data.test_split='' for no test images."
        )
    return train, test


def check_links(root: pathlib.Path, train: Sequence[str], test: Sequence[str] = ()) -> None:
    """Refuse a file that occurs twice, through a link: it would be a test image too, or its own negative.

    Raises:
        ValueError: a file occurs twice; the message gives both paths.
    """
    places: dict[str, str] = {}  # folder -> its real path
    met: dict[str, str] = {}  # real path of a file -> its path
    for number, path in enumerate((*train, *test)):
        place, _, name = path.rpartition("/")
        if place not in places:
            places[place] = os.path.realpath(root / place)
        file = os.path.join(places[place], name)
        file = os.path.realpath(file) if os.path.islink(file) else file
        if (first := met.setdefault(file, path)) is not path:
            across = number >= len(train) and first not in test
            raise ValueError(
                f"{root / path} and {root / first} are the same file, through a link: "
                + (
                    "training would include test images; set data.test_split='' for no test images."
                    if across
                    else "the image would be its own negative; remove one of them."
                )
            )


def has_images(place: pathlib.Path) -> bool:
    """Return whether a folder contains an image at any depth; hidden folders and links are skipped."""
    for here, below, names in os.walk(place):
        check_depth(here, place)
        below[:] = [name for name in below if not name.startswith(".")]
        if any(name.lower().endswith(EXTENSIONS) and not name.startswith(".") for name in names):
            return True
    return False


def check_depth(place: str, root: pathlib.Path) -> None:
    """Refuse endlessly nested folders, which a faulty file system or program creates."""
    if place.count(os.sep) - str(root).count(os.sep) > DEEPEST:
        shown = place if len(place) < 160 else f"{place[:80]}...{place[-40:]}"
        raise ValueError(
            f"folders below data.dir are nested more than {DEEPEST} deep: {shown}; move them elsewhere."
        )


def not_listed(error: OSError) -> None:
    """Raise an error for a folder that cannot be listed, since its images would silently be missing."""
    raise OSError(
        error.errno, f"a folder of data.dir cannot be listed ({error.strerror})", error.filename
    ) from error


def image_paths(root: pathlib.Path, below_root: pathlib.Path) -> list[str]:
    """List the paths of the images under ``below_root``, relative to ``root``, with / and sorted."""
    paths: list[str] = []
    not_read: list[str] = []
    above: dict[str, set[str]] = {}  # folder to be listed -> real paths of the folders that contain it
    for place, below, names in os.walk(below_root, followlinks=True, onerror=not_listed):
        check_depth(place, below_root)
        for name in names:  # broken links without a suffix, such as one to a folder that is not mounted
            if (
                not name.startswith(".")
                and not os.path.splitext(name)[1]
                and not os.path.exists(os.path.join(place, name))
            ):
                raise FileNotFoundError(
                    f"{os.path.join(place, name)} is a broken link; remove it, or mount its target."
                )
        here = pathlib.Path(place).resolve()
        circle = above.pop(place, set()) | {
            str(here),
            *map(str, here.parents),
        }  # a link to one of these is a cycle
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
        raise FileNotFoundError(f"{below_root} contains no image ({' '.join(EXTENSIONS)}).")
    if not_read:
        warnings.warn(
            (
                f"{below_root}: {len(not_read):,} files such as {not_read[0]} are ignored; images must be"
                f" {' '.join(EXTENSIONS)}."
            ),
            RuntimeWarning,
            stacklevel=2,
        )
    return sorted(paths)


def listing_file(labels: str, root: pathlib.Path) -> pathlib.Path:
    """Return the path of the file of labels, as given or inside ``data.dir``."""
    places = [pathlib.Path(labels).expanduser(), root / labels]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"data.labels is {labels}; there is no such file here or in {root}.")
    return file


def check_listing(listing: Listing, paths: list[str], labels: str, root: pathlib.Path) -> None:
    """Refuse images without a row and rows without an image."""
    lost = [path for path in paths if path not in listing.rows]
    if lost:
        foreign = next((path for path in listing.rows if not (root / path).is_file()), "")
        hint = (
            f"; it has {foreign}, which does not exist in {root}: paths must be relative to data.dir"
            if foreign
            else ""
        )
        raise ValueError(f"data.labels is {labels}; it has no row for {lost[0]}{_and_more(lost)}{hint}.")
    known = set(paths)
    missing = [path for path in listing.rows if path not in known and not (root / path).is_file()]
    if missing:
        raise ValueError(
            f"data.labels is {labels}; it lists {missing[0]}{_and_more(missing)}, which does not exist in"
            f" {root}."
        )


def _and_more(files: list) -> str:
    return f" and {len(files) - 1:,} more" if len(files) > 1 else ""


def folder_label(path: str, place: pathlib.Path, root: pathlib.Path) -> tuple[str, ...]:
    """Return the name of the first folder between the split's root and an image, or ()."""
    inside = (root / path).relative_to(place).parts[:-1][:1]
    return tuple(os.fsencode(name).decode(errors="backslashreplace") for name in inside)  # any bytes


def group_array(paths: list[str], group: str, listing: Listing | None) -> np.ndarray:
    """Return the groups [n] int32, each named by the index of its first image."""
    if listing and listing.grouped:
        names, why = [listing.rows[path].group for path in paths], "its column is empty"
    else:
        names, why = matched_groups(paths, group), "it matches no path"
    column = " and is not a column of data.labels" if listing and not listing.grouped else ""
    return numbered_groups(names, group, f"{why} (such as {paths[0]}){column}")
