"""Intriguing Properties (Chen, Luo and Li 2021), Figure 2: samples of MultiDigits.

    python -m contrastive_jax.main --config=configs/multidigits.py:count=8 --mode=preview --workdir=runs/multidigits

The figure is a picture; the command writes the like of it with the training views, ``preview.png``.
"""

import sys

from experiments import harness

TABLE = harness.Table(
    __name__,
    __doc__,
    needs={
        "the picture": "`--mode=preview` of `configs/multidigits.py:count=8,placement=random` and `placement=grid`"
    },
)


if __name__ == "__main__":
    sys.exit(harness.main())
