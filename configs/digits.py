"""Any method on scikit-learn's handwritten digits: 1,797 real 8x8 images that need no download.

    contrastive-jax --config=configs/digits.py:method=moco_v2

Not a replication: the small laboratory in which every method of the library trains in a minute on two
CPU cores (``contrastive_jax.config.on_digits`` says what is scaled).

Arguments: ``method`` (any of ``contrastive_jax/config/methods.py``), ``scale`` (cpu or smoke; all others are cpu).
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``method`` at ``scale``."""
    options = configs.parse(arg, method="flatclr", scale="cpu")
    config = configs.base()
    config.name = f"digits_{options.method}"
    config.projector.out = 64
    configs.use_method(config, options.method)
    return configs.complete(configs.on_digits(config, smoke=options.scale == "smoke"))
