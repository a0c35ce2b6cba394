"""``python -m contrastive_jax.config`` is ``contrastive-jax config``."""

import sys

from contrastive_jax.commands.config import main
from contrastive_jax.system import console

if __name__ == "__main__":
    incomplete = console.protect()
    sys.exit(main(sys.argv[1:]) or (1 if incomplete() else 0))
