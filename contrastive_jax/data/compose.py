"""Data sets with competing features, composed from the images of ``data``.

Each function is a choice of the config's ``compose`` section. Images are composed on demand and
deterministically, from the example id, ``seed`` and the split.

Source: Intriguing Properties of Contrastive Losses (Chen, Luo and Li 2021), sections 3 and 4, appendix B.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np

from contrastive_jax.data import pixels
from contrastive_jax.data.composite_records import Overlaid
from contrastive_jax.data.composites import Bits, Canvas, Made, NinePlaces, starts
from contrastive_jax.data.order import drawn, entropy, raw, stream
from contrastive_jax.data.split import Split
from contrastive_jax.data.storage import Source
from contrastive_jax.data.stream import Streamed
from contrastive_jax.kinds import Count, CountOrZero, Ge, Le, checked

MOST_BITS = 24
LARGEST_SIDE = 10_000
Overlap = Literal["maximum", "add"]  # the keys of composites.OVERLAPS
TRAIN, TEST = 0, 1  # each split has its own random streams


def none(source: Source, another: Callable[..., Source]) -> Source:
    """The unchanged images.

    Each choice receives the data set of ``data`` and a function ``another(name, dir)`` that loads a second one.
    """
    return source


@checked("compose")
def rand_bit(
    source: Source,
    another: Callable[..., Source],
    *,
    bits: Annotated[int, Ge(0), Le(MOST_BITS)] = 8,
    seed: CountOrZero = 0,
) -> Source:
    """RandBit (section 4.1): constant binary channels appended to each image, the same in all of its views.

    Each image draws an integer from [0, 2^bits), whose bits are the values of the channels. The two views share
    the integer, so their mutual information is at least the integers' entropy, which is below ``bits`` ln 2 if
    integers collide. The run logs this lower bound as ``mi_floor``.

    Args:
        bits: number of binary channels, 0 to 24; 0 leaves the images unchanged.
        seed: random seed of the integers.
    """

    _images(source)

    def with_bits(split, number):
        return split and dataclasses.replace(
            split, made=split.made.then(_bits(len(split), bits, seed, number))
        )

    train, test = with_bits(source.train, TRAIN), with_bits(source.test, TEST)
    return dataclasses.replace(source, name=f"{source.name} + {bits} random bits", train=train, test=test)


@checked("compose")
def binary(
    source: Source,
    another: Callable[..., Source],
    *,
    bits: Annotated[int, Ge(1), Le(MOST_BITS)] = 8,
    side: Count = 32,
    examples: Count = 50_000,
    test_examples: Count = 10_000,
    seed: CountOrZero = 0,
) -> Source:
    """Square images of the binary channels of :func:`rand_bit` alone (appendix B.2).

    The images of ``data`` are not used. An image's labels are its bits.

    Args:
        bits: number of binary channels, 1 to 24.
        side: side of an image, in pixels.
        examples: number of training images.
        test_examples: number of test images.
        seed: random seed of the integers.
    """

    def split(count, number):
        composite = _bits(count, bits, seed, number)
        label = composite.tables[0][:, None] >> np.arange(bits) & 1
        return Split(np.empty((count, side, side, 0), np.uint8), label, made=composite)

    classes = tuple(f"bit {number}" for number in range(bits))
    return Source(f"{bits} random bits", split(examples, TRAIN), split(test_examples, TEST), classes)


binary.draws_all = True  # type: ignore[attr-defined]


@checked("compose")
def multi_digits(
    source: Source,
    another: Callable[..., Source],
    *,
    count: Annotated[int, Ge(1), Le(LARGEST_SIDE)] = 2,
    size: CountOrZero = 0,
    second_size: CountOrZero = 0,
    side: Annotated[int, Ge(1), Le(LARGEST_SIDE)] = 112,
    placement: Literal["random", "grid"] = "random",
    overlap: Overlap = "maximum",
    examples: CountOrZero = 0,
    seed: CountOrZero = 0,
) -> Source:
    """MultiDigits (sections 3 and 4.1): several digits of the ``data`` set on a black square.

    An image's labels are the classes of its digits; with two sizes, first those of the digit of ``size``, then
    those of the other. An encoder is evaluated on single digits on such squares: columns without a suffix on
    digits of ``size``, columns ``<column>@<second_size>`` on digits of the other size.

    Args:
        count: number of digits on a square.
        size: height and width of the digits in pixels, resized by Pillow (bicubic); 0: the stored size.
        second_size: size of the second of two digits, in pixels; 0: the same size.
        side: side of the square, in pixels.
        placement: placement of the digits: random, anywhere in the square; grid, in distinct cells of a grid.
        overlap: value of overlapping pixels: maximum, or add, their sum up to 255.
        examples: number of training images; 0: the number of training digits. The first digit of image i is
            training digit i (cyclically), the others are drawn at random.
        seed: random seed of digits and places.
    """
    for name, value in (("size", size), ("second_size", second_size)):
        if value > side:
            raise ValueError(f"compose.{name} is {value}; it must be at most compose.side, {side}.")
    parts = _digits(source, "data.name")
    if size == 0 and parts[TRAIN].shape[0] > side:
        raise ValueError(
            f"compose.side is {side}; it must be at least {parts[TRAIN].shape[0]}, the pixels of a digit."
        )
    size = size or parts[TRAIN].shape[0]
    sizes = (size, second_size) if second_size else (size,) * count
    if second_size and count != 2:
        raise ValueError(f"compose.second_size is {second_size}; it needs compose.count=2, not {count}.")
    cells = (side // size) ** 2
    if placement == "grid" and second_size not in (0, size):
        raise ValueError(
            "compose.placement is grid, whose cells have one size; with compose.second_size it must be"
            " random."
        )
    if placement == "grid" and count > cells:
        raise ValueError(
            f"compose.count is {count}; it must be at most {cells}, the cells of {size} pixels in {side}"
            " pixels."
        )

    distinct = tuple(dict.fromkeys(sizes))
    banks = {split: [pixels.resized(_all(part), s) for s in distinct] for split, part in parts.items()}
    classes = len(source.classes)

    def squares(split: int, sizes: tuple[int, ...], purpose: str, total: int) -> tuple[Split, np.ndarray]:
        """Draw squares with digits of the given sizes; return them and the digits' labels [n, k]."""
        part = parts[split]
        which = np.stack(
            [np.arange(total, dtype=np.int32) % len(part)]
            + [
                drawn(seed, stream(purpose, split, "digit", k), total, len(part))
                for k in range(1, len(sizes))
            ],
            axis=1,
        )
        place = _places(seed, (purpose, split), total, sizes, side, placement)
        numbers = tuple(distinct.index(s) for s in sizes)
        made = Made(Canvas(side, part.shape[2], numbers, overlap), (which, place), tuple(banks[split]))
        return Split(np.empty((total, 0, 0, 0), np.uint8), made=made), part.label[which]

    def several(split: int) -> Split:
        total = (examples if split == TRAIN else 0) or len(parts[split])
        made, shown = squares(split, sizes, "several", total)
        label = np.zeros((total, classes * len(distinct)), np.uint8)
        for k, s in enumerate(sizes):
            label[np.arange(total), distinct.index(s) * classes + shown[:, k]] = 1
        return dataclasses.replace(made, label=label)

    def single(split: int, s: int) -> Split:
        made, shown = squares(split, (s,), f"single {s}", len(parts[split]))
        return dataclasses.replace(made, label=shown[:, 0])

    tests = TEST in banks
    return Source(
        f"{count} digits of {source.name}",
        several(TRAIN),
        several(TEST) if tests else None,
        tuple(f"{s} px: {name}" for s in distinct for name in source.classes)
        if second_size
        else source.classes,
        {
            "" if s == size else str(s): (single(TRAIN, s), single(TEST, s) if tests else None)
            for s in distinct
        },
    )


@checked("compose")
def digit_on_image(
    source: Source,
    another: Callable[..., Source],
    *,
    digits: str = "mnist",
    dir: str = "",
    unique: CountOrZero = 0,
    size: Annotated[int, Ge(0), Le(LARGEST_SIDE)] = 0,
    side: Annotated[int, Ge(0), Le(LARGEST_SIDE)] = 0,
    overlap: Overlap = "add",
    seed: CountOrZero = 0,
) -> Source:
    """DigitOnImageNet (section 4.1): one digit per image, copied to nine fixed places before augmentation.

    Training images show one of ``unique`` training digits each, test images any test digit (section 4.2). An
    encoder is evaluated on the classes of the images (columns without a suffix) and of the digits
    (``<column>@digit``). ``unique`` restricts the training of the encoder only. Classifiers of digits train on
    images with any training digit, because all classes are tested. (The paper validates on all digits and does
    not state the training digits of its classifier; this is our assumption.)

    Args:
        digits: data set with the digits: digits, mnist, or another value of ``data.name``.
        dir: folder of that data set; "": ``data.dir``.
        unique: number of distinct training digits, drawn without replacement; 0: all.
        size: height and width of the digits in pixels, resized by Pillow (bicubic); 0: the stored size.
        side: height and width to which the images are resized likewise; 0: the stored size.
        overlap: value of overlapping pixels: add, their sum up to 255 (the paper), or maximum (the authors'
            notebook).
        seed: random seed of the digits.
    """
    _images(source)
    bank = another(digits, dir)
    shown = _digits(bank, f"compose.digits={digits!r}")
    train_digits = shown[TRAIN]
    if unique > len(train_digits):
        raise ValueError(
            f"compose.unique is {unique}; it must be at most {len(train_digits)}, the number of training"
            " digits."
        )
    if source.test is not None and TEST not in shown:
        raise ValueError(
            f"compose.digits is {digits!r}, which has no test digits; the test images of {source.name} need"
            " them."
        )
    size = size or train_digits.shape[0]
    chosen = np.argsort(raw(seed, stream("unique"), len(train_digits)), kind="stable")
    options = size, side, overlap, seed
    train, probe = _with_digits(source.train, train_digits[chosen[: unique or None]], TRAIN, *options)
    if unique:
        _, probe = _with_digits(source.train, train_digits[chosen], TRAIN, *options)
    test, test_probe = None, None
    if source.test is not None:
        test, test_probe = _with_digits(source.test, shown[TEST], TEST, *options)
    return dataclasses.replace(
        source,
        name=f"{bank.name} on {source.name}",
        train=train,
        test=test,
        probes={"digit": (probe, test_probe)},
    )


def _with_digits(part, digits: Split, number: int, size: int, side: int, overlap: str, seed: int) -> tuple:
    """Put digits on the images of a split; return it with the images' labels, and with the digits'."""
    which = drawn(seed, stream("which", number), len(part), len(digits))
    composite = Made(NinePlaces(overlap), (which,), (pixels.resized(_all(digits), size),))
    streamed = isinstance(part, Streamed)
    if streamed and not (side or part.size):
        raise ValueError(
            "compose.side is 0, but digits need images of one size; set compose.side or data.size."
        )
    height, width, channels = part.shape
    for length in (side or height, side or width):
        if not _fit(length, size):
            raise ValueError(
                f"compose.size is {size}; on {length} pixels it must be at most"
                f" {max((s for s in range(length) if _fit(length, s)), default=0)} for nine digits."
            )
    if digits.shape[2] not in (1, channels):
        raise ValueError(
            f"compose.digits has {digits.shape[2]} channels; it must have 1, or {channels} like the images."
        )
    if streamed:
        plain = Overlaid(part.records, side or part.size, composite)
        return tuple(
            dataclasses.replace(part, records=records, size=0)
            for records in (plain, dataclasses.replace(plain, label=digits.label[which]))
        )
    if side:
        part = dataclasses.replace(
            part, image=np.stack([pixels.fit(x, side) for x in _all(part)]), made=Made()
        )
    part = dataclasses.replace(part, made=part.made.then(composite))
    return part, dataclasses.replace(part, label=digits.label[which])


def _all(part: Split) -> np.ndarray:
    """Return all composed images [n, h, w, c] of a split."""
    return part.pictures(np.arange(len(part)))


def _fit(length: int, size: int) -> bool:
    first, second, last = starts(length)
    return last + size <= length and second - first >= size and last - second >= size


def _places(
    seed: int, names: tuple, total: int, sizes: tuple[int, ...], side: int, placement: str
) -> np.ndarray:
    """Draw [total, k, 2] int32: top and left pixel of each digit."""
    if placement == "random":
        places = [
            [drawn(seed, stream(*names, axis, k), total, side - s + 1) for axis in ("top", "left")]
            for k, s in enumerate(sizes)
        ]
        return np.moveaxis(np.array(places, np.int32), -1, 0)
    along = side // sizes[0]
    draw = raw(seed, stream(*names, "cells"), total * along**2).reshape(total, -1)
    cell = np.argsort(draw, axis=1, kind="stable")[:, : len(sizes)].astype(np.int32)
    margin = (side - along * sizes[0]) // 2
    return np.stack([cell // along, cell % along], axis=-1) * np.int32(sizes[0]) + np.int32(margin)


def _images(source: Source) -> None:
    """Refuse a data set whose examples are not images."""
    if not source.train.example.is_image:
        raise ValueError(
            f"compose needs images, but the examples of {source.name} are {source.train.example}."
        )


def _digits(source: Source, option: str) -> dict[int, Split]:
    """Return the splits of a data set that can supply digits: square images in memory, one label each."""
    _images(source)
    parts = {}
    for number, part in ((TRAIN, source.train), (TEST, source.test)):
        if part is None:
            continue
        if not isinstance(part, Split):
            raise ValueError(f"{option}: {source.name} is streamed; digits must be in memory.")
        height, width, _ = part.shape
        if height != width:
            raise ValueError(
                f"{option}: images of {source.name} are {height} x {width}; digits must be square."
            )
        if part.label.ndim == 2 or (part.label < 0).any():
            raise ValueError(
                f"{option}: {source.name} has images without a single label; every digit must have one label."
            )
        parts[number] = part
    return parts


def _bits(count: int, bits: int, seed: int, number: int) -> Made:
    integers = drawn(seed, stream("bits", number), count, 2**bits)
    return Made(Bits(bits), (integers,), facts={"mi_floor": entropy(integers)})
