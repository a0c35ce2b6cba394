"""``python -m contrastive_jax`` is ``python -m contrastive_jax.main``."""

from contrastive_jax.main import run

if __name__ == "__main__":
    run()
