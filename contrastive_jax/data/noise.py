"""Synthetic images in place of a missing data set, for compiling, timing and profiling a run."""

import dataclasses
import functools
import io

import numpy as np

from contrastive_jax.data.composites import Made, Noise
from contrastive_jax.data.image_files import FILES
from contrastive_jax.data.order import drawn, raw
from contrastive_jax.data.order import stream as number_of
from contrastive_jax.data.records import Record
from contrastive_jax.data.split import Indices, Split
from contrastive_jax.data.storage import Source, Streaming
from contrastive_jax.data.stream import NumWorkers, Resize, Streamed
from contrastive_jax.data.tfds_images import registered
from contrastive_jax.kinds import CountOrZero, checked

# Number of images per split: TFDS's registry has the shape and the classes of a set, but not this number.
EXAMPLES = {
    "digits": {"train": 1_437, "test": 360},
    **dict.fromkeys(FILES, {"train": 1_000, "test": 100}),  # a guess
    "mnist": {"train": 60_000, "test": 10_000},
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "stl10": {"train": 5_000, "test": 8_000, "unlabelled": 100_000},
    "imagenet2012": {"train": 1_281_167, "validation": 50_000},
    "imagenet_resized": {"train": 1_281_167, "validation": 50_000},
}
# Shape and classes of sets outside TFDS.
OTHERS = {"digits": ((8, 8, 1), 10), **dict.fromkeys(FILES, ((None, None, 3), 2))}
NOTE = "synthetic data: accuracies are meaningless"
BANK = 64  # number of images; each example is one of them with its own flipped bits
PHOTOGRAPH = (375, 500)  # height and width for sets whose images differ in size: ImageNet's most frequent
SQUARE = 256  # default height and width of such a set's images in memory


@checked("data")
def synthetic(
    *,
    like: str = "imagenet2012",
    train_split: str = "train",
    test_split: str = "auto",
    label_key: str = "label",
    size: CountOrZero = 0,
    channels: CountOrZero = 0,
    classes: CountOrZero = 0,
    examples: CountOrZero = 0,
    test_examples: CountOrZero = 0,
    stream: Streaming = "auto",
    workers: NumWorkers = -1,
    resize: Resize = "exact",
) -> Source:
    """Noise images with the shape, classes and number of those of another data set; accuracies mean nothing.

    Images are generated on the device from small tables, so that any number of them takes little memory.
    Example i has label i modulo the number of classes, which does not depend on its image. Test images are
    other draws of the same kind.

    Args:
        like: data set to imitate: ``digits``, ``folder`` (1,000 photographs of 2 classes; ``webdataset`` and
            ``huggingface`` likewise) or a TFDS name; with
            ``--config.data.name=synthetic`` the data set of the config.
        train_split: training split of that set in TFDS's syntax; every image has a label.
        test_split: test split likewise; "auto": its labelled test or validation split; "": none.
        label_key: feature of that set with the labels; "": no labels.
        size: height and width of the images in pixels; 0: the set's stored size, or 256 if sizes differ.
        channels: number of channels; 0: that of the set.
        classes: number of classes; 0: that of the set.
        examples: number of training images; 0: that of the set.
        test_examples: number of test images; 0: that of the set.
        stream: "on": worker processes decode 64 JPEGs over and over (375 x 500 pixels, 105 kB, if the set's
            images differ in size); "auto" and "off": images are generated on the device.
        workers: number of processes that decode a stream; 0: threads of the training process; -1: one per core,
            up to 32.
        resize: how a stream resizes training views: "exact", as on the device, or "opencv", which is faster and
            whose cubic kernel is sharper.

    Raises:
        ValueError: an unknown data set without numbers, or an invalid split or value.
    """
    shape, names = facts(like, label_key)
    shape = (*shape[:2], channels or shape[2])
    names = tuple(map(str, range(classes))) if classes else names
    make = _streamed if stream == "on" else _resident
    given = (len(names), shape, size, workers, resize)
    train, test = _counts(like, train_split, test_split, examples, test_examples)
    return Source(
        f"synthetic images like {like}",
        make("train", train, *given),
        make("test", test, *given) if test else None,
        names,
    )


@functools.cache
def facts(like: str, label_key: str = "label") -> tuple[tuple[int | None, int | None, int], tuple[str, ...]]:
    """Return the shape (h, w, c) of a set's images, with h and w None if sizes differ, and its class names.

    Raises:
        ValueError: the set is neither in TFDS nor in ``OTHERS``.
    """
    if like not in OTHERS:
        return registered(like, label_key)
    shape, classes = OTHERS[like]
    return shape, tuple(map(str, range(classes))) if label_key else ()


def _counts(
    like: str, train_split: str, test_split: str, examples: int, test_examples: int
) -> tuple[int, int]:
    """Return the numbers of training and test images."""
    if test_split == "auto":
        test_split = next((split for split in ("test", "validation") if split in _splits(like)), "")
    train = examples or count(like, train_split)
    return train, test_examples or (count(like, test_split, "test_split") if test_split else 0)


def _splits(like: str) -> dict[str, int]:
    return EXAMPLES.get(like.split(":")[0].split("/")[0], {})


def count(like: str, split: str, option: str = "train_split") -> int:
    """Return the number of images in a split of a set, in TFDS's syntax: ``train[:10%]+test``.

    Raises:
        ValueError: the set has no such split, or is not in ``EXAMPLES``.
    """
    known = _splits(like)
    if not known:
        raise ValueError(
            f"data.like is {like!r}, whose number of images is unknown (known: {', '.join(EXAMPLES)});"
            " set data.examples and data.test_examples"
        )
    if split in known:
        return known[split]
    import tensorflow_datasets as tfds

    sizes = {
        name: tfds.core.splits.SplitInfo(name=name, shard_lengths=[count], num_bytes=0)
        for name, count in known.items()
    }
    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(sizes)
    except (AssertionError, KeyError, ValueError) as error:
        raise ValueError(
            f"data.{option} is {split!r}; the splits of {like} are {', '.join(known)}"
        ) from error
    return sum(len(range(known[part.splitname])[part.from_ : part.to]) for part in parts)


def _noise(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw uint8 noise from Philox; ``name`` selects the stream."""
    count = int(np.prod(shape))
    bits = raw(0, number_of("synthetic", name), -(-count // 8))
    return bits.astype("<u8").view(np.uint8)[:count].reshape(shape)


def _which(part: str, count: int) -> np.ndarray:
    """Return each example's index into the bank."""
    return drawn(0, number_of("synthetic", part, "which"), count, BANK)


def _resident(part: str, count: int, classes: int, shape: tuple, size: int, *stream: object) -> Split:
    """Return a split whose images are generated on the device."""
    height, width = (size or side or SQUARE for side in shape[:2])
    turned = _noise(f"{part}/turned", (count, shape[2]))
    noise = Made(
        Noise(shape[2]), (_which(part, count), turned), (_noise("bank", (BANK, height, width, shape[2])),)
    )
    return Split(
        np.empty((count, height, width, 0), np.uint8), _labels(np.arange(count), classes), made=noise
    )


def _streamed(
    part: str, count: int, classes: int, shape: tuple, size: int, workers: int, resize: Resize
) -> Streamed:
    """Return a streamed split, whose files worker processes decode."""
    if shape[2] not in (1, 3):
        raise ValueError(
            f"data.channels is {shape[2]}; with data.stream='on' it must be 1 or 3, the channels of JPEGs"
        )
    height, width = (side or usual for side, usual in zip(shape[:2], PHOTOGRAPH, strict=True))
    records = Repeated(_jpegs(height, width, shape[2]), part, _which(part, count), classes, shape)
    return Streamed(records, size, workers, resize=resize)


@functools.lru_cache(1)  # shared by training and test
def _jpegs(height: int, width: int, channels: int) -> tuple[bytes, ...]:
    from PIL import Image

    files = [io.BytesIO() for _ in range(BANK)]
    for image, file in zip(_noise("bank", (BANK, height, width, channels)), files, strict=True):
        Image.fromarray(image[..., 0] if channels == 1 else image).save(file, "JPEG")
    return tuple(file.getvalue() for file in files)


def _labels(rows: np.ndarray, classes: int) -> np.ndarray:
    return (rows % classes if classes else np.full(len(rows), -1)).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A few repeated files as records (:class:`records.Records`).

    Attributes:
        files: encoded images.
        part: name of the split.
        which: [n] int32, index of each record's file.
        classes: number of classes; 0: no labels.
        shape: (h, w, c) of the imitated set; h and w are None if its images differ in size.
    """

    files: tuple[bytes, ...]
    part: str
    which: np.ndarray
    classes: int
    shape: tuple[int | None, int | None, int]
    label_shape: tuple[int, ...] = ()
    chunk: int = 4096

    @property
    def label(self) -> np.ndarray:
        """Labels [n] int32."""
        return _labels(np.arange(len(self)), self.classes)

    @property
    def labelled(self) -> bool:
        """Return whether the images have labels."""
        return self.classes > 0

    def __len__(self) -> int:
        return len(self.which)

    def read(self, rows: Indices) -> list[Record]:
        """Read the records of some rows, in that order."""
        labels = _labels(np.asarray(rows), self.classes).tolist()
        return [
            Record(self.files[self.which[row]], label, int(row))
            for row, label in zip(rows, labels, strict=True)
        ]

    def name(self, row: int) -> str:
        """Return a record's name for messages."""
        return f"synthetic image {row}, {self.part}"
