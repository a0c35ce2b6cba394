"""Draws of made images: raw Philox bits, fixed by the algorithm, so that a draw is the same for ever."""

import zlib

import numpy as np


def raw(seed: int, number: int, count: int) -> np.ndarray:
    """Draw [count] uint64; ``number`` tells the streams of one seed apart."""
    return np.random.Philox(key=np.array([seed, number], np.uint64)).random_raw(count)


def stream(*names) -> int:
    """Return the number of what is drawn, by what it is for. Not a small one: by (seed, epoch) the order of the
    examples (:mod:`order`) is drawn, from the same generator."""
    return zlib.crc32("/".join(map(str, names)).encode())


def drawn(seed: int, number: int, count: int, below: int) -> np.ndarray:
    """Draw [count] int32, uniform in [0, below), by multiplication of :func:`raw` bits."""
    return ((raw(seed, number, count) >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(np.int32)


def entropy(values: np.ndarray) -> float:
    """Compute the empirical entropy in nats of the rows of ``[n]`` or ``[n, C]``."""
    share = np.unique(values, axis=0, return_counts=True)[1] / len(values)
    return float(-np.sum(share * np.log(share)))
