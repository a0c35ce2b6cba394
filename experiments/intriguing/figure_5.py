"""Intriguing Properties (Chen, Luo and Li 2021), Figure 5: samples of the three sets with competing features.

    python -m contrastive_jax.main --config=configs/multidigits.py:size=60 --mode=preview --workdir=runs/sizes

The figure is a picture; the command writes the like of it with the training views, ``preview.png``.
"""

import sys

from experiments import harness

TABLE = harness.Table(
    __name__,
    __doc__,
    needs={
        "the pictures": "`--mode=preview` of `configs/digit_on_imagenet.py`, `configs/multidigits.py:size=60` and"
        " `configs/randbit_cifar10.py:bits=3` (of its channels the first three are shown)"
    },
)


if __name__ == "__main__":
    sys.exit(harness.main())
