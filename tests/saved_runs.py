"""Workdirs as a short run leaves them, for tests that read one; runs that are stopped and compared."""

import os
import pathlib
import signal

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import encoder
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parent.parent


def config_of(size=8, method="simclr", **leaves):
    config = configs.load(str(ROOT / f"configs/digits.py:method={method},scale=smoke"))
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


def stop_at(monkeypatch, step, number=signal.SIGTERM):
    """A signal arrives while ``step`` is under way."""
    feed, asked = data.Resident.feed, []

    def feed_and_ask(self, at):
        asked.append(at)
        if at == step and len(asked) > 1:  # the first is compilation's
            os.kill(os.getpid(), number)
        return feed(self, at)

    monkeypatch.setattr(data.Resident, "feed", feed_and_ask)


def left_behind(workdir, config):
    """The last state, and the metrics without the clock."""
    run = runs.prepare(config, jax.devices()[:1])
    like = runs.replicate(init_state(run.recipe, config["seed"]), run.mesh)
    with checkpoint.Checkpoints(workdir / "checkpoints", read_only=True) as saved:
        state, step, _ = saved.restore(like)
    lines = [{k: v for k, v in line.items() if k != "timing"} for line in workdirs.read_metrics(workdir)]
    return jax.device_get(state), step, lines


def assert_same(first, second):
    """Bit for bit."""
    (state, step, lines), (other, other_step, other_lines) = first, second
    assert step == other_step
    np.testing.assert_equal(lines, other_lines)  # nan is nan
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))
