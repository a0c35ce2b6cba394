"""Workdirs as a short run leaves them, for tests that read one."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax.workdir import checkpoint, encoder

ROOT = pathlib.Path(__file__).parent.parent


def config_of(size=8, **leaves):
    config = configs.load(str(ROOT / "configs/digits.py:method=simclr,scale=smoke"))
    config.augment = {"preset": "none", "size": size}
    with config.unlocked():
        config.update_from_flattened_dict(
            {"encoder.width": 0.125, "projector.out": 16, "log.tensorboard": False, "evaluate.final": False}
            | {"train.duration": "2 steps"}
            | leaves
        )
    return configs.plain(configs.complete(config))


def random_arrays(config, channels):
    """Parameters and statistics of which no two are alike: initial ones would hide an exchange."""
    network = encoder.network_of(config)
    params, stats = network.init(0, (config["augment"]["size"],) * 2 + (channels,))
    random = np.random.default_rng(0)

    def value(path, leaf):
        if path[-1].key == "kernel":
            return np.asarray(leaf)
        low, high = (0.5, 1.5) if path[-1].key in ("scale", "var") else (-0.5, 0.5)
        return random.uniform(low, high, leaf.shape).astype(leaf.dtype)

    return tuple(jax.tree_util.tree_map_with_path(value, tree) for tree in (params, stats))


def workdir_of(path, config, channels=1):
    """A workdir as a run leaves it, as far as its newest checkpoint goes."""
    params, stats = random_arrays(config, channels)
    with checkpoint.Checkpoints(path / "checkpoints") as saved:
        about = {"config": config, "channels": channels}
        saved.save(7, jax.tree.map(jnp.asarray, {"params": params, "stats": stats}), about)
    return params, stats
