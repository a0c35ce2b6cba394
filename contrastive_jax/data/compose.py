"""Sets with competing features: what ``compose`` makes of the images that ``data`` names.

Each function is a choice of the config's ``compose`` section. An image is made as it is needed and is always the
same: what it is made of follows from its example id, from ``seed`` and from its split.

Source: Intriguing Properties of Contrastive Losses (Chen, Luo and Li 2021), sections 3 and 4, appendix B.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from contrastive_jax.data.made import Bits, Made
from contrastive_jax.data.split import Source, Split

MOST_BITS = 24
TRAIN, TEST = 0, 1  # splits draw from streams of their own


def none(source: Source, another: Callable[..., Source]) -> Source:
    """The images themselves.

    Every choice takes the set that ``data`` names and ``another(name, dir)``, which loads one that it needs.
    """
    return source


def rand_bit(source: Source, another: Callable[..., Source], *, bits: int = 8, seed: int = 0) -> Source:
    """RandBit (section 4.1): behind the image's own channels as many of 0 or 1, the same in all of its views.

    Every image draws an integer from [0, 2^bits); its bits are the channels, all over the image. The two views
    of an image share it, so that their mutual information is at least the integers' entropy, which falls short
    of ``bits`` ln 2 where integers collide: the floor, a metric of the run.

    Args:
        bits: binary channels, 0 to 24; 0 leaves the images as they are.
        seed: of the integers.
    """
    _whole("bits", bits, 0, MOST_BITS)
    _whole("seed", seed, 0, 2**63 - 1)

    def with_bits(split, number):
        return split and dataclasses.replace(split, made=_bits(len(split), bits, seed, number))

    train, test = with_bits(source.train, TRAIN), with_bits(source.test, TEST)
    return dataclasses.replace(source, name=f"{source.name} + {bits} random bits", train=train, test=test)


def binary(
    source: Source,
    another: Callable[..., Source],
    *,
    bits: int = 8,
    side: int = 32,
    examples: int = 50_000,
    test_examples: int = 10_000,
    seed: int = 0,
) -> Source:
    """Nothing but the bits of :func:`rand_bit` (appendix B.2): square images of binary channels.

    The images of ``data`` are not used. An image's labels are the bits that it shows.

    Args:
        bits: binary channels, 1 to 24.
        side: of an image, pixels.
        examples: training images.
        test_examples: test images.
        seed: of the integers.
    """
    _whole("bits", bits, 1, MOST_BITS)
    _whole("seed", seed, 0, 2**63 - 1)
    for name, value in (("side", side), ("examples", examples), ("test_examples", test_examples)):
        _whole(name, value, 1, 2**31 - 1)

    def split(count, number):
        made = _bits(count, bits, seed, number)
        label = made.tables[0][:, None] >> np.arange(bits) & 1
        return Split(np.empty((count, side, side, 0), np.uint8), label, made=made)

    classes = tuple(f"bit {number}" for number in range(bits))
    return Source(f"{bits} random bits", split(examples, TRAIN), split(test_examples, TEST), classes)


def entropy(integers: np.ndarray) -> float:
    """Empirical entropy of some integers, in nats."""
    share = np.unique(integers, return_counts=True)[1] / len(integers)
    return float(-np.sum(share * np.log(share)))


def drawn(seed: int, number: int, count: int, below: int) -> np.ndarray:
    """[count] int32, uniform in [0, below), the same for ever: from raw Philox bits, by multiplication.

    ``number`` tells the streams of one seed apart.
    """
    raw = np.random.Philox(key=np.array([seed, number], np.uint64)).random_raw(count)
    return ((raw >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(np.int32)


def _bits(count: int, bits: int, seed: int, number: int) -> Made:
    integers = drawn(seed, number, count, 2**bits)
    return Made(Bits(bits), (integers,), facts={"mi_floor": entropy(integers)})


def _whole(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"compose.{name}={value!r} is not a whole number from {low} to {high}")
