"""Whole runs on one device and on eight: in float64 the same numbers, in the log, the evaluations and the weights."""

import jax
import numpy as np
import pytest

from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import loop
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import checkpoint


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def narrow(method):
    """30 steps with augmentation, looks and checkpoints; SGD: Adam divides by what is only rounding."""
    config = configs.load(f"configs/digits.py:method={method},scale=smoke")
    config.optimizer = {"name": "sgd", "weight_decay": 1e-4}
    if method.startswith("moco"):  # groups of four examples multiply every rounding, from step to step
        config.norm, config.target.shuffle = {"scope": "joint", "groups": 1}, False
    changes = {
        "dtype": "float64",
        "projector.out": 16,
        "schedule.learning_rate": 0.001,
        "schedule.warmup": "3 steps",
    }
    changes |= {
        "train.duration": "30 steps",
        "log.every": 5,
        "evaluate.every": "15 steps",
        "evaluate.final": False,
    }
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return configs.plain(configs.complete(config))


def trained(config, workdir, devices):
    """The log without the clock, and the last checkpoint."""
    loop.train(config, str(workdir), quiet=True, devices=devices)
    run = runs.prepare(config, devices)
    with jax.set_mesh(run.mesh), checkpoint.Checkpoints(workdir / "checkpoints", read_only=True) as saved:
        state, step, _ = saved.restore(runs.initial_state(run))
    assert step == 30
    return [{k: v for k, v in row.items() if k != "timing"} for row in workdirs.read_metrics(workdir)], state


@pytest.mark.slow
@pytest.mark.parametrize("method", ["simclr", "moco_v1"])
def test_a_whole_run_on_eight_devices_is_that_on_one(method, x64, tmp_path):
    """MoCo carries a queue and an average of the weights."""
    config = narrow(method)
    one, state = trained(config, tmp_path / "one", jax.devices()[:1])
    eight, other = trained(config, tmp_path / "eight", jax.devices())
    assert len(one) == len(eight) and any("eval/knn_top1" in row for row in one)
    for a, b in zip(one, eight, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(
                b[name], a[name], rtol=1e-9, atol=1e-9, err_msg=f"step {a['step']}: {name}"
            )
    moved = jax.device_get((state, other))
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(moved[0]), jax.tree.leaves(moved[1]), strict=True
    ):
        largest = np.abs(a).max(initial=0.0)
        np.testing.assert_allclose(
            b, a, rtol=0, atol=1e-9 * max(largest, 1e-2), err_msg=jax.tree_util.keystr(path)
        )
