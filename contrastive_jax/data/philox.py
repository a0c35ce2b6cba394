"""Random draws for composed images from raw Philox bits, which the algorithm fixes for all versions."""

import zlib

import numpy as np


def raw(seed: int, number: int, count: int) -> np.ndarray:
    """Draw [count] uint64; ``number`` selects one of the seed's streams."""
    return np.random.Philox(key=np.array([seed, number], np.uint64)).random_raw(count)


def stream(*names) -> int:
    """Return the number of the stream for a purpose, a hash of ``names``.

    It is large, because (seed, epoch) draws the order of the examples (:mod:`order`) from the same generator.
    """
    return zlib.crc32("/".join(map(str, names)).encode())


def drawn(seed: int, number: int, count: int, below: int) -> np.ndarray:
    """Draw [count] int32, uniform in [0, below), by multiplication of :func:`raw` bits."""
    return ((raw(seed, number, count) >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(np.int32)


def entropy(values: np.ndarray) -> float:
    """Compute the empirical entropy in nats of the rows of ``[n]`` or ``[n, C]``."""
    share = np.unique(values, axis=0, return_counts=True)[1] / len(values)
    return float(-np.sum(share * np.log(share)))
