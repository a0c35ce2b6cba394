"""A folder of images: labelled by its sub-folders, or not at all."""

import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from contrastive_jax.data.pixels import GREY, check_memory, eight_bits, opaque, to_array
from contrastive_jax.data.split import Source, Split, stratified

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


def folder(
    *,
    dir: str,
    train_split: str = "train",
    test_split: str = "auto",
    test_fraction: float = 0.0,
    size: int = 0,
    memory_limit: float = 8.0,
) -> Source:
    """Images under ``dir``, in the order of their relative paths; hidden files are not looked at.

    Labels are the first folder below the root; images that lie in no folder have none (-1). EXIF rotation
    is honoured, transparency is laid on white, 16 bits become 8. The set is grey if every image is,
    else RGB. Raises ValueError with the path of an image that cannot be read.

    Args:
        dir: the root.
        train_split: this sub-folder is the root of the training images, where there is one.
        test_split: the sub-folder of the test images; "auto" takes ``test``, ``val`` or ``validation`` where
            there is a train folder beside it; "" takes none.
        test_fraction: without a test folder, this fraction of every class by the rule of
            :func:`split.stratified`; 0 is no test split.
        size: short side resized to it (bicubic, antialiased), centre cropped; 0 leaves images of one size.
        memory_limit: GiB that the decoded images may take.
    """
    if not dir:
        raise ValueError("data.name=folder needs data.dir, the folder with the images")
    root = pathlib.Path(dir).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"data.dir={dir} is not a folder")
    if not 0 <= test_fraction < 1:
        raise ValueError(f"data.test_fraction={test_fraction} is outside [0, 1)")

    train_root, test_root = split_folders(root, train_split, test_split)
    if test_root and test_fraction:
        raise ValueError(
            f"{test_root} is the test split, so data.test_fraction={test_fraction:g} cannot be: "
            "set data.test_fraction=0 or data.test_split="
        )
    train_paths = image_paths(train_root)
    test_paths = image_paths(test_root) if test_root else []
    classes = sorted({path.parts[0] for path in train_paths if len(path.parts) > 1})
    train_label = labels(train_paths, classes, train_root)
    test_label = labels(test_paths, classes, test_root)

    files = [train_root / path for path in train_paths] + [test_root / path for path in test_paths]
    image = read_images(files, size, memory_limit)
    train = Split(image[: len(train_paths)], train_label)
    if test_root:
        test = Split(image[len(train_paths) :], test_label)
    elif test_fraction:
        held_out = stratified(train_label, test_fraction)
        if not held_out.any() or held_out.all():
            raise ValueError(
                f"data.test_fraction={test_fraction:g} of {len(train)} images leaves a split empty"
            )
        train, test = train[~held_out], train[held_out]
    else:
        test = None
    return Source("folder", train, test, tuple(classes))


def split_folders(
    root: pathlib.Path, train_split: str, test_split: str
) -> tuple[pathlib.Path, pathlib.Path | None]:
    """Where the training and the test images lie."""
    train = root / train_split
    if not train.is_dir():
        if train_split != "train" or test_split not in ("auto", ""):
            raise FileNotFoundError(f"data.train_split={train_split}: there is no folder {train}")
        return root, None
    if test_split == "auto":
        return train, next((root / t for t in ("test", "val", "validation") if (root / t).is_dir()), None)
    if test_split and not (root / test_split).is_dir():
        raise FileNotFoundError(f"data.test_split={test_split}: there is no folder {root / test_split}")
    return train, root / test_split if test_split else None


def image_paths(root: pathlib.Path) -> list[pathlib.PurePath]:
    """Paths of the images under ``root``, relative to it and sorted."""
    found = []
    for place, below, names in os.walk(root, followlinks=True):
        below[:] = [name for name in below if not name.startswith(".")]
        found += [
            pathlib.Path(place, name).relative_to(root)
            for name in names
            if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
        ]
    if not found:
        raise FileNotFoundError(f"no image under {root} (looked for {' '.join(EXTENSIONS)})")
    return sorted(found, key=lambda path: path.as_posix())


def labels(paths: list[pathlib.PurePath], classes: list[str], root: pathlib.Path | None) -> np.ndarray:
    """[n] int32: the number of each image's class, -1 for an image in no folder."""
    number = {name: i for i, name in enumerate(classes)}
    unknown = sorted({path.parts[0] for path in paths if len(path.parts) > 1} - set(classes))
    if unknown:
        raise ValueError(f"{root} has the classes {', '.join(unknown)}, of which there is no training image")
    return np.array([number[path.parts[0]] if len(path.parts) > 1 else -1 for path in paths], np.int32)


def read_images(files: list[pathlib.Path], size: int, memory_limit: float) -> np.ndarray:
    """[n, h, w, c] uint8. Headers are read first, so that what cannot work is said before any decoding."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        headers = list(pool.map(header, files))
        channels = 1 if all(grey for _, _, grey in headers) else 3
        height, width, _ = headers[0]
        if not size:
            for file, (h, w, _) in zip(files, headers, strict=True):
                if (h, w) != (height, width):
                    raise ValueError(
                        f"images of different sizes ({files[0]} is {width}x{height}, {file} is {w}x{h}): set "
                        "data.size, to which the short side is resized before the centre is cropped"
                    )
        shape = (size or height, size or width, channels)
        check_memory("folder", len(files), shape, memory_limit)
        image = np.empty((len(files), *shape), np.uint8)

        def read(row: int):
            array = read_image(files[row], channels, size)
            if array.shape != shape:
                raise ValueError(
                    f"{files[row]} has another size than {files[0]} once it is upright: set data.size"
                )
            image[row] = array

        for _ in pool.map(read, range(len(files))):
            pass
    return image


def header(path: pathlib.Path) -> tuple[int, int, bool]:
    """Height and width as they will be seen, and whether the image is grey."""
    from PIL import ExifTags, Image

    try:
        with Image.open(path) as image:
            width, height = image.size
            # Asked for EXIF that may lie behind its pixels, a PNG would decode them: such a one is met later.
            exif = image.getexif() if image.format != "PNG" or "exif" in image.info else {}
            if exif.get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8):  # turned by a quarter
                width, height = height, width
            return height, width, image.mode in GREY or image.mode.startswith("I")
    except Exception as error:  # Pillow's plugins raise nearly anything on a damaged file
        raise ValueError(f"cannot read the image {path}: {error}") from error


def read_image(path: pathlib.Path, channels: int, size: int) -> np.ndarray:
    """[h, w, channels] uint8, upright and opaque."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            return to_array(opaque(eight_bits(ImageOps.exif_transpose(image))), channels, size)
    except Exception as error:
        raise ValueError(f"cannot read the image {path}: {error}") from error
