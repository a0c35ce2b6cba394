"""``python -m contrastive_jax`` is ``python -m contrastive_jax.main``."""

from contrastive_jax import signals

if __name__ == "__main__":
    signals.guard()  # what follows takes seconds to import
    from contrastive_jax.main import run

    run()
