"""Intriguing Properties (Chen, Luo and Li 2021), Table A.3: five losses on ImageNet, a head of 3 layers.

    python -m experiments.intriguing.table_a3 run       # --scale=paper|gpu|small; skips what is done
    python -m experiments.intriguing.table_a3 render

The discrepancies of Table A.2 disappear with a head of 3 layers. Both at digits: Table A.1's page.
"""

import sys

from experiments import harness
from experiments.intriguing import losses_on_imagenet

TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Prediction for scale small (CIFAR-10, three losses, each tuned), written before any run: the spread over losses is
between that of 2 and of 4 layers in Table A.1, under 1.5 points. A surprise would be one larger than with 2 layers.
""",
    runs=losses_on_imagenet.runs(layers=3),
    metric=losses_on_imagenet.METRIC,
    also=losses_on_imagenet.ALSO,
    sweep=losses_on_imagenet.SWEEP,
    reported=losses_on_imagenet.reported(
        """66.6 68.4 70.0 71.0  66.8 68.9 70.1 70.9  66.8 69.1 70.4 71.3
    66.8 68.4 69.6 70.6  66.6 68.9 69.9 70.8  66.6 69.0 70.1 70.8
    66.5 68.4 69.8 70.8  66.6 68.8 70.1 71.1  66.7 69.1 70.2 71.1
    66.1 68.3 69.7 70.7  66.3 68.5 70.0 71.3  65.8 68.2 70.1 71.1
    66.5 68.3 69.5 70.5  66.6 68.6 69.8 70.8  66.5 68.7 70.2 70.9"""
    ),
    assumed=losses_on_imagenet.ASSUMED,
)


if __name__ == "__main__":
    sys.exit(harness.main())
