"""FlatNCE (Chen et al. 2021), Figure 3: training time by parallelism, with the learning rate that a batch allows.

    python -m experiments.flatnce.figure_3 render

The paper trains on up to four V100s; its values are only drawn.
"""

import sys

from experiments import harness

TABLE = harness.Table(
    __name__,
    __doc__,
    runs={"paper": {}},
    metric={"speed-up": None},
    needs={
        "the figure": "one host with 1, 2 and 4 equal GPUs: `--config=configs/flatclr_cifar10.py` at batch 256 a"
        " device, images a second from each run's result.json",
    },
    claims=(
        harness.Claim(
            "More devices, and the larger batches that they allow, greatly reduce the training time",
            "time of a training on 1 GPU over that on 4",
            needs="1, 2 and 4 equal GPUs",
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
