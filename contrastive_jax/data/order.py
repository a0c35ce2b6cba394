"""Order of the examples, and draws for composed images, from raw Philox bits, which the algorithm fixes.

The order is the same for resident and streamed data on any number of devices and processes.

Example number p = step * batch + row of an endless stream belongs to epoch p // n and is image
permutation(seed, epoch)[p % n]. No remainder is dropped: a batch may span epochs. There is no
iterator state: the order of any step follows from its number.
"""

import functools
import zlib

import numpy as np


def permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    """Draw the order of one epoch, [n] int32.

    It is derived from raw Philox bits, which the algorithm fixes; ``numpy.random.Generator.permutation`` may
    change with NumPy's version. Raises ValueError for a seed outside [0, 2**64).
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"data.seed is {seed}; it must be from 0 to 2**64 - 1")
    return np.argsort(raw(seed, epoch, n), kind="stable").astype(np.int32)


_kept = functools.lru_cache(2)(permutation)  # parts of a batch need the same epoch, which may be long


def at(seed: int, n: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return image numbers and epochs, [b] int32 each, of the stream's examples at ``positions`` [b]."""
    epochs = positions // n
    index = np.empty(len(positions), np.int32)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        index[here] = _kept(seed, int(epoch), n)[positions[here] % n]
    return index, epochs.astype(np.int32)


def rows(seed: int, n: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return :func:`at` for ``count`` examples of the stream, from number ``first`` on."""
    return at(seed, n, first + np.arange(count, dtype=np.int64))


def raw(seed: int, number: int, count: int) -> np.ndarray:
    """Draw [count] uint64; ``number`` selects one of the seed's streams."""
    return np.random.Philox(key=np.array([seed, number], np.uint64)).random_raw(count)


def stream(*names) -> int:
    """Return the number of the stream for a purpose, a hash of ``names``.

    It is large, because (seed, epoch) draws the order of the examples from the same generator.
    """
    return zlib.crc32("/".join(map(str, names)).encode())


def drawn(seed: int, number: int, count: int, below: int) -> np.ndarray:
    """Draw [count] int32, uniform in [0, below), by multiplication of :func:`raw` bits."""
    return ((raw(seed, number, count) >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(np.int32)


def entropy(values: np.ndarray) -> float:
    """Compute the empirical entropy in nats of the rows of ``[n]`` or ``[n, C]``."""
    share = np.unique(values, axis=0, return_counts=True)[1] / len(values)
    return float(-np.sum(share * np.log(share)))
