"""Order of the examples, the same for resident and streamed data on any number of devices and processes.

Example number p = step * batch + row of an endless stream belongs to epoch p // n and is image
permutation(seed, epoch)[p % n]. No remainder is dropped: a batch may span epochs. There is no
iterator state: the order of any step follows from its number.
"""

import functools

import numpy as np


def permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    """Draw the order of one epoch, [n] int32.

    It is derived from raw Philox bits, which the algorithm fixes; ``numpy.random.Generator.permutation`` may
    change with NumPy's version. Raises ValueError for a seed outside [0, 2**64).
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"data.seed={seed} is outside [0, 2**64)")
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(n)
    return np.argsort(bits, kind="stable").astype(np.int32)


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
