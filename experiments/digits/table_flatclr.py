"""FlatCLR on digits, the README's first command, over 3 seeds.

    python experiments/digits/table_flatclr.py run       # three runs of a minute; skips what is done
    python experiments/digits/table_flatclr.py render    # results/flatclr.md

Each seed is ``python -m contrastive_jax.main --config=configs/flatclr_digits.py --config.seed=SEED``: seed of the
weights, the order and the augmentation. The split and the draws of labels are fixed: raw pixels do not vary.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import over_seeds  # noqa: E402

if __name__ == "__main__":
    over_seeds.main(
        "configs/flatclr_digits.py", HERE / "results" / "flatclr.json", "360 test images, 60 epochs"
    )
