"""Every method, as narrow as it goes: what the tests of the step and of replicas train."""

import jax
import pytest

from contrastive_jax import config as configs
from contrastive_jax.config.methods import METHODS

# One of each choice; the rest of the zoo is slow.
REPRESENTATIVE = (
    "flatclr_ess",
    "moco_v1",
    "relic_k",
    "swd_hypersphere",
    "byol",
    "dclw",
    "fenchel_legendre",
    "isogclr",
)
ALL = [pytest.param(m, marks=pytest.mark.run if m in REPRESENTATIVE else pytest.mark.slow) for m in METHODS]


def tiny(method, **leaves):
    """The method on digits, as narrow as it goes, without augmentation: that is tested where it lives."""
    config = configs.load(f"configs/digits.py:method={method},scale=smoke")
    config.augment = {"preset": "none", "size": 8}
    config.data.name = "digits"
    config.projector.out = 16
    for head in (config.projector, config.predictor):
        head.hidden = min(head.get("hidden", 0), 16)
    config.optimizer = {"name": "sgd", "weight_decay": 1e-4}  # Adam divides by what is only rounding
    config.schedule.learning_rate = 0.03
    with config.unlocked():
        config.update_from_flattened_dict(leaves)
    return configs.plain(configs.complete(config))


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
