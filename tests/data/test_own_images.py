"""A folder of one's own images through the train step: several labels an image, several channels, groups."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from contrastive_jax import config as configs
from contrastive_jax import data, sharding
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state, make_train_step


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


def config_of(images, labels="", loss=None, **augmentation):
    config = configs.load("configs/digits.py:method=simclr,scale=smoke")
    config.data = {"name": "folder", "dir": str(images), "labels": labels, "test_split": ""}
    config.augment = {"preset": "none", "size": 8} | augmentation
    config.projector.out = 16
    config.train.batch_size = 8
    config.optimizer = {"name": "sgd"}
    config.loss, config.probe.gradient = loss or {"info_nce": 1.0}, bool(loss)
    return configs.plain(configs.complete(config))


def step(config, devices):
    run = runs.prepare(config, devices)
    with jax.set_mesh(run.mesh):
        state = runs.replicate(init_state(run.recipe, 0), run.mesh)
        feed = data.Resident(run.source.train, seed=0, batch_size=8, mesh=run.mesh)
        batch = jax.device_get(jax.jit(feed.take)(feed.feed(0), 0))
        metrics = jax.jit(make_train_step(run.recipe, feed.take))(state, feed.feed(0))[1]
    return run, batch, jax.device_get(metrics)


@pytest.mark.run
def test_contrastive_pretraining_has_no_online_probe_and_groups_reach_the_loss(images):
    config = config_of(images, "several.json")
    config["data"]["group"] = "^[ab]/"
    run, batch, metrics = step(config, jax.devices()[:1])
    assert batch.label.shape == (8, 3) and batch.label.dtype == np.uint8
    np.testing.assert_array_equal(batch.label, run.source.train.label[batch.id])
    assert run.recipe.probe_weight == 0 and "probe_accuracy" not in metrics
    assert np.isfinite(metrics["loss"]) and metrics["probe_loss"] == 0
    # of the 2 x 8 views of a batch, a query's negatives are those of other groups
    same = (batch.group[:, None] == batch.group).sum(1)
    assert 1 < same.max() < 8
    np.testing.assert_allclose(metrics["negatives"], np.mean(2 * (8 - same)))


def test_several_labels_lie_over_devices_by_row(images):
    split = data.load(**config_of(images, "several.json")["data"]).train
    mesh = sharding.make_mesh(jax.devices()[:2])
    with jax.set_mesh(mesh):
        feed = data.Resident(split, seed=0, batch_size=8, mesh=mesh)
        batch = jax.jit(feed.take)(feed.feed(0), 0)
    assert batch.label.sharding.spec[0] == "data"
    np.testing.assert_array_equal(batch.label, split.label[np.asarray(batch.id)])


def test_the_supervised_loss_for_several_labels(images):
    """Equal to the formula at the logits of the first step, which are those of the bias: zero."""
    loss = {"sigmoid_cross_entropy": 1.0}
    run, _, metrics = step(config_of(images, "several.json", loss), jax.devices()[:1])
    assert run.recipe.probe_weight == 0 and "probe_accuracy" not in metrics
    assert np.isfinite(metrics["loss"]) and 0.5 < metrics["loss"] / (3 * np.log(2)) < 2


@pytest.mark.parametrize(
    "labels, label_key, loss, message",
    [
        (
            "several.json",
            "label",
            "cross_entropy",
            "loss.cross_entropy needs one label per image, .* several",
        ),
        ("", "label", "sigmoid_cross_entropy", "loss.sigmoid_cross_entropy needs several labels per image"),
        ("", "", "cross_entropy", "loss.cross_entropy needs labels, but the data has none"),
    ],
)
def test_losses_on_other_labels_are_refused(images, labels, label_key, loss, message):
    config = config_of(images, labels, {loss: 1.0})
    config["data"]["label_key"] = label_key
    with pytest.raises(ValueError, match=message):
        runs.prepare(config, jax.devices()[:1])


@pytest.mark.run
def test_five_channels_end_to_end(tmp_path):
    """16-bit TIFFs of five channels, unlabelled: colour operations see the first three, the network all five."""
    tifffile = pytest.importorskip("tifffile")
    random = np.random.default_rng(0)
    for i in range(8):
        array = random.integers(0, 10_000, (8, 8, 5)).astype(np.uint16)
        tifffile.imwrite(tmp_path / f"{i}.tif", array, photometric="minisblack", planarconfig="contig")
    config = config_of(tmp_path, preset="simclr", sampler="continuous", quarter_turns=True, blur=0.0)
    config["data"]["white"] = 10_000
    run, batch, metrics = step(config, jax.devices()[:1])
    assert batch.image.shape == (8, 8, 8, 5) and run.recipe.view.shape == (8, 8, 5)
    assert batch.image.max() > 250  # of the 16 bits no more is used than a fifth, of the 8 bits all
    stem = [x.shape for x in jax.tree.leaves(run.recipe.init_network(0)[0]["encoder"]) if x.ndim == 4]
    assert any(shape[2] == 5 for shape in stem)
    assert np.isfinite(metrics["loss"]) and "probe_accuracy" not in metrics
