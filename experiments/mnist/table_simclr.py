"""SimCLR on MNIST through TFDS, on two CPU cores, over 3 seeds.

    python experiments/mnist/table_simclr.py run       # three runs of about ten minutes; skips what is done
    python experiments/mnist/table_simclr.py render    # results/simclr.md

Each seed is ``python -m contrastive_jax.main --config=configs/simclr_mnist.py:scale=cpu --config.seed=SEED``, with
MNIST prepared in $TFDS_DATA_DIR: 20,000 images seen at 14 x 14, a ResNet-18 of a quarter of the width, 10 epochs.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import over_seeds  # noqa: E402

if __name__ == "__main__":
    over_seeds.main(
        "configs/simclr_mnist.py:scale=cpu",
        HERE / "results" / "simclr.json",
        "10,000 test images, 10 epochs of 20,000 training images",
    )
