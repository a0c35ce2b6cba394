"""Every method, as narrow as it goes: what the tests of the step and of replicas train."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from contrastive_jax import config as configs
from contrastive_jax.config.methods import METHODS
from contrastive_jax.models import norm as norms

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
# Other tests read the options of the first two; two layers tie scores of MoCo v2's keys up to rounding.
NEED_RESNET = ("simclr", "flatclr", "moco_v2", "eqco_moco_v2")
ALL = [pytest.param(m, marks=pytest.mark.run if m in REPRESENTATIVE else pytest.mark.slow) for m in METHODS]


class TwoLayers(nn.Module):
    norm: norms.Norm
    dtype: type

    @nn.compact
    def __call__(self, x, members=None, *, train=False):
        x = jnp.concatenate([x[:, i::2, j::2] for i in range(2) for j in range(2)], axis=-1)
        for layer in range(2):
            x = nn.Dense(8, use_bias=False, dtype=self.dtype, param_dtype=self.dtype, name=f"dense{layer}")(x)
            x = norms.BatchNorm(self.norm, name=f"norm{layer}")(x, members, train=train, relu=True)
        return x.mean((1, 2))


def two_layers(norm, dtype):
    """Return two layers on patches of 2 x 2 pixels, with batch norm; they compile faster than a ResNet."""
    return TwoLayers(norm, dtype)


def tiny(method, **leaves):
    """The method on digits, as narrow as it goes, without augmentation: that is tested where it lives.

    The representative methods, and those of NEED_RESNET, have the ResNet of the config.
    """
    config = configs.load(f"configs/digits.py:method={method},scale=smoke")
    config.augment = {"preset": "none", "size": 8}
    config.data.name = "digits"
    if method not in (*REPRESENTATIVE, *NEED_RESNET):
        config.encoder = {"name": "tiny_methods:two_layers"}
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
