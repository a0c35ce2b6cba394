"""The 1,797 handwritten digits included in scikit-learn, a data set without download."""

import numpy as np

from contrastive_jax.data.split import Split
from contrastive_jax.data.storage import Source, held_out
from contrastive_jax.kinds import Decay, checked


@checked("data")
def digits(*, validation: Decay = 0.0) -> Source:
    """Load the UCI test digits (Alpaydin & Kaynak, 1998), [8, 8, 1], 20 % of every class held out for test.

    Values 0..16 become uint8 by round(x * 255 / 16). The split is that of scikit-learn's
    ``train_test_split(range(1797), test_size=0.2, stratify=target, random_state=0)``, sorted; tests pin its
    checksum.

    Args:
        validation: stratified share of the training images that is held out and replaces the test images, for
            choosing options; the test images are not used.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    everything = Split(np.round(data.images * 255 / 16).astype(np.uint8)[..., None], data.target)
    rows = np.arange(len(everything))
    train, test = train_test_split(rows, test_size=0.2, stratify=data.target, random_state=0)
    source = Source(
        "digits", everything[np.sort(train)], everything[np.sort(test)], tuple(str(d) for d in range(10))
    )
    return held_out(source, validation)
