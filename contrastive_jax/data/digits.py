"""The data set that needs no download: 1,797 handwritten digits inside scikit-learn."""

import gzip
import importlib.util
import pathlib

import numpy as np

from contrastive_jax.data.split import Source, Split

# Rows of the test set as bits: train_test_split(range(1797), test_size=0.2, stratify=target, random_state=0).
TEST = bytes.fromhex(
    "000004883524104000064100934205001a00080100240028062c12001000940a009019120420f8a0028110a000080a882044"
    "1524494240a00a0000004004d80000818020004805c400104008a0100005404800301000020ec409000224840083a8013c20"
    "a6980a0000000b08400804a0184802024041c1008004404684376a810216004480004042a0a4180a5000840b8561c6081080"
    "08004c80c02004068e00010882008100380803c008190000100e01008410a0210033282904c044c080680e01028300820088"
    "22a6402c24042108a860809081a00c02820242120138a41500"
)


def digits() -> Source:
    """The UCI test digits (Alpaydin & Kaynak, 1998), [8, 8, 1], 20 % of every class held out for test.

    Values 0..16 become uint8 by round(x * 255 / 16). The split is the one that anybody can make in one
    line of scikit-learn, ``train_test_split(range(1797), test_size=0.2, stratify=target, random_state=0)``,
    sorted; tests pin its checksum.
    """
    values, label = _table()
    everything = Split(np.round(values * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1), label)
    test = np.unpackbits(np.frombuffer(TEST, np.uint8), count=len(everything)).astype(bool)
    return Source("digits", everything[~test], everything[test], tuple(str(d) for d in range(10)))


def _table() -> tuple[np.ndarray, np.ndarray]:
    """``sklearn.datasets.load_digits(return_X_y=True)``, without the seconds that importing it takes."""
    package = pathlib.Path(importlib.util.find_spec("sklearn").origin).parent
    with gzip.open(package / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)
