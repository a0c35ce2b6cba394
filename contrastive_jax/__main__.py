"""``python -m contrastive_jax`` is ``python -m contrastive_jax.main``."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    sys.path.pop(0)  # the current folder: see main.py

from contrastive_jax.system import signals  # noqa: E402

if __name__ == "__main__":
    signals.guard()  # what follows takes seconds to import
    from contrastive_jax.main import run

    run()
