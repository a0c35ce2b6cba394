"""The one rule of order, for resident and streamed data, on any number of devices and processes.

Example number p = step * batch + row of an endless stream lies in epoch p // n and is image
permutation(seed, epoch)[p % n]. No remainder is dropped: a batch may straddle epochs. There is no
iterator state: the order of any step follows from its number.
"""

import numpy as np


def permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    """[n] int32, the order of one epoch.

    From raw Philox bits, which are fixed by the algorithm; ``numpy.random.Generator.permutation`` may
    change with numpy's version.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"data.seed={seed} is outside [0, 2**64)")
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(n)
    return np.argsort(bits, kind="stable").astype(np.int32)


def rows(seed: int, n: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Image numbers and epochs, [count] int32 each, of the stream's examples from number ``first`` on."""
    position = first + np.arange(count, dtype=np.int64)
    epoch = position // n
    index = np.empty(count, np.int32)
    for e in np.unique(epoch):
        here = epoch == e
        index[here] = permutation(seed, int(e), n)[position[here] % n]
    return index, epoch.astype(np.int32)
