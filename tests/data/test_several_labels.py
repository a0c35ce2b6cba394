"""Pretraining on images of several labels: no online probe, and losses on labels only where they fit."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import run as runs
from contrastive_jax.step import init_state, make_train_step


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Sixteen images, with one label each by their folders or with several by a file."""
    root = tmp_path_factory.mktemp("images")
    random, rows = np.random.default_rng(0), {}
    for i in range(16):
        path = f"{'ab'[i % 2]}/{i:02}.png"
        (root / path).parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(root / path)
        rows[path] = [name for bit, name in enumerate(("sea", "sky", "sand")) if i >> bit & 1]
    (root / "several.json").write_text(json.dumps(rows))
    return root


def config_of(images, labels, loss):
    config = configs.load("configs/digits.py:method=simclr,scale=smoke")
    config.data = {"name": "folder", "dir": str(images), "labels": labels, "test_split": ""}
    config.augment = {"preset": "none", "size": 8}
    config.projector.out = 16
    config.train.batch_size = 8
    config.optimizer = {"name": "sgd"}
    config.loss = loss
    return configs.plain(configs.complete(config))


def step(config, devices):
    run = runs.prepare(config, devices)
    with jax.set_mesh(run.mesh):
        state = runs.replicate(init_state(run.recipe, 0), run.mesh)
        feed = data.Resident(run.source.train, seed=0, batch_size=8, mesh=run.mesh)
        batch = jax.device_get(jax.jit(feed.take)(feed.feed(0), 0))
        metrics = jax.jit(make_train_step(run.recipe, feed.take))(state, feed.feed(0))[1]
    return run, batch, jax.device_get(metrics)


def test_contrastive_pretraining_has_no_online_probe(images):
    run, batch, metrics = step(config_of(images, "several.json", {"info_nce": 1.0}), jax.devices()[:2])
    assert batch.label.shape == (8, 3) and batch.label.dtype == np.uint8
    np.testing.assert_array_equal(batch.label, run.source.train.label[batch.id])
    assert run.recipe.probe_weight == 0 and "probe_accuracy" not in metrics
    assert np.isfinite(metrics["loss"]) and metrics["probe_loss"] == 0


def test_the_supervised_loss_for_several_labels(images):
    """Equal to the formula at the logits of the first step, which are those of the bias: zero."""
    loss = {"sigmoid_cross_entropy": 1.0}
    run, _, metrics = step(config_of(images, "several.json", loss), jax.devices()[:1])
    assert run.recipe.probe_weight == 0 and "probe_accuracy" not in metrics
    assert np.isfinite(metrics["loss"]) and 0.5 < metrics["loss"] / (3 * np.log(2)) < 2


@pytest.mark.parametrize(
    "labels, label_key, loss, message",
    [
        ("several.json", "label", "cross_entropy", "loss.cross_entropy reads one label an image, .* several"),
        ("", "label", "sigmoid_cross_entropy", "loss.sigmoid_cross_entropy reads several labels an image"),
        ("", "", "cross_entropy", "loss.cross_entropy reads labels, and the data has none"),
    ],
)
def test_losses_on_other_labels_are_refused(images, labels, label_key, loss, message):
    config = config_of(images, labels, {loss: 1.0})
    config["data"]["label_key"] = label_key
    with pytest.raises(ValueError, match=message):
        runs.prepare(config, jax.devices()[:1])
