"""The data set that needs no download: 1,797 handwritten digits inside scikit-learn."""

import numpy as np

from contrastive_jax.data.split import Source, Split, stratified


def digits() -> Source:
    """The UCI test digits (Alpaydin & Kaynak, 1998), [8, 8, 1], 20 % of every class held out for test.

    Values 0..16 become uint8 by round(x * 255 / 16). The split is
    :func:`split.stratified` at 0.2 and never changes.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    everything = Split(np.round(data.images * 255 / 16).astype(np.uint8)[..., None], data.target)
    test = stratified(everything.label, 0.2)
    return Source("digits", everything[~test], everything[test], tuple(str(d) for d in range(10)))
