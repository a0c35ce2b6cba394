"""One's own images, from a folder to a file that other programs load: every mode in a row."""

import pathlib

import jax
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import contrastive_jax
from contrastive_jax import config as configs
from contrastive_jax.commands import embed, evaluate, export, preview
from contrastive_jax.training import loop

ROOT = pathlib.Path(__file__).parent.parent


def config_of(folder, **leaves):
    config = configs.load(str(ROOT / "configs/digits.py:method=simclr,scale=smoke"))
    config.data = {"name": "folder", "dir": str(folder)}
    config.augment = {"preset": "crop_only", "size": 8}
    config.evaluators = {"linear": {"name": "lbfgs"}, "knn": {"name": "knn", "k": 3}}
    with config.unlocked():
        config.update_from_flattened_dict({"train.batch_size": 8, "train.duration": "2 steps"} | leaves)
    return configs.plain(configs.complete(config))


def pictures(root, labelled):
    """24 images of odd sizes, grey ones and one with transparency among them."""
    draw = np.random.default_rng(0)
    for i in range(24):
        shape = (int(draw.integers(9, 30)), int(draw.integers(9, 30)))
        pixels = draw.integers(0, 256, shape if i % 5 == 0 else (*shape, 4 if i == 7 else 3), np.uint8)
        path = root / (("cat", "dog")[i % 2] if labelled else "") / f"{i}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "unlabelled"])
def test_from_a_folder_to_an_export(labelled, tmp_path, capsys):
    pictures(tmp_path / "images", labelled)
    held_out = {"data.test_fraction": 0.25} if labelled else {}
    config = config_of(tmp_path / "images", **{"data.size": 10, **held_out})
    run = str(tmp_path / "run")
    preview.preview(config, run)
    result = loop.train(config, run, devices=jax.devices()[:1])
    assert (tmp_path / "run/preview.png").exists()
    if labelled:
        assert set(result["evaluations"]) == {"trained", "untrained", "raw pixels"}
        again = evaluate.evaluate(config, run, quiet=True)
        assert again["results"]["trained"] == result["evaluations"]["trained"]
    else:
        assert result["evaluations"] == {} and "evaluations are left out" in capsys.readouterr().out
        with pytest.raises(ValueError, match="no labelled test images"):
            evaluate.evaluate(config, run, quiet=True)
    embed.embed(config, run, quiet=True)
    export.export(config, run, quiet=True)
    with np.load(tmp_path / "run/embeddings_train.npz") as found:
        assert len(found["pooled"]) == len(found["path"]) == (18 if labelled else 24)
        expected, path = found["pooled"][0], str(found["path"][0])
    state = load_file(tmp_path / "run/encoder.safetensors")
    assert {"conv1.weight", "layer4.1.bn2.running_var"} <= set(state)
    encoder = contrastive_jax.load_encoder(str(tmp_path / "run/encoder.safetensors"))
    with Image.open(tmp_path / "images" / path) as image:
        from contrastive_jax.data.pixels import opaque, to_array

        pixels = to_array(opaque(image), 3, 10)
    np.testing.assert_allclose(encoder(pixels[None])[0], expected, rtol=1e-4, atol=1e-5)
