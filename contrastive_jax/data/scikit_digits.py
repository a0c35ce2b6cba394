"""The 1,797 handwritten digits included in scikit-learn, a data set without download."""

import base64
import importlib.util
import pathlib

import numpy as np

from contrastive_jax.data.split import Split
from contrastive_jax.data.storage import Source, held_out
from contrastive_jax.kinds import Decay, checked

# The 360 test rows, a bit a row.
TEST = (
    "000DtH6#!~00uz-lR^am8UP3Z03-k?1}qW)5CD`40FW6H1R(gJ0)Y^q00;_*AVd`;NkTxN3IG5AKm^zT0D*uY07wPI01!Y3pb!8BKu7>E"
    "5C8%W#0dZbB!mEir~y16rkDx<000XJKnMh&7)SyFKtaI(fCNBBgg0t|0u}&7fB-;3prjZIPymDrg<-}B5P%2(On|^31O|=(0SJNsfdDuN"
    "1HcFw000mU0RV&$pdkP=C@BQMM8JS(4gms#0D=IBBBnqrBm^M{s9=DQfuIZmf&xMk0XU=;00"
)


@checked("data")
def digits(*, validation: Decay = 0.0) -> Source:
    """Load the UCI test digits (Alpaydin & Kaynak, 1998), [8, 8, 1], 20 % of every class held out for test.

    Values 0..16 become uint8 by round(x * 255 / 16). The split is that of scikit-learn's
    ``train_test_split(range(1797), test_size=0.2, stratify=target, random_state=0)``, sorted; tests compare it
    and pin its checksum.

    Args:
        validation: stratified share of the training images that is held out and replaces the test images, for
            choosing options; the test images are not used.
    """
    values = np.loadtxt(_file(), delimiter=",")  # [1797, 65]: the pixels and the class
    images = np.round(values[:, :-1] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    everything = Split(images, values[:, -1].astype(np.int64))
    test = np.unpackbits(np.frombuffer(base64.b85decode(TEST), np.uint8), count=len(values)).astype(bool)
    source = Source("digits", everything[~test], everything[test], tuple(str(d) for d in range(10)))
    return held_out(source, validation)


def _file() -> pathlib.Path:
    """Return scikit-learn's file of the digits, without importing scikit-learn, which takes a second."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None  # it is a requirement of this package
    return pathlib.Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
