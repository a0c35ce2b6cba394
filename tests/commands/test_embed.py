"""Embeddings of a set and of a folder, in files that need nothing of ours to be read."""

import json

import jax
import numpy as np
import pytest
import tifffile
from PIL import Image
from saved_runs import config_of, workdir_of

import contrastive_jax
from contrastive_jax import data
from contrastive_jax.commands import embed as embed_command
from contrastive_jax.commands.embed import embed
from contrastive_jax.commands.export import export


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path, config = tmp_path_factory.mktemp("run"), config_of()
    workdir_of(path, config)
    return path, config


def read(path):
    with np.load(path) as file:  # allow_pickle is False
        return {name: file[name] for name in file.files}


def test_embeddings_of_a_set(trained, tmp_path):
    path, config = trained
    layers = ("projection_2", "pooled")
    settings = {
        "evaluate": config["evaluate"] | {"checkpoint": str(path)},
        "embed": {"layers": layers, "splits": ("train", "test")},
    }
    written = embed(config | settings, tmp_path, quiet=True)
    source = data.load(name="digits")
    encoder = contrastive_jax.load_encoder(path)
    assert set(written) == {"train", "test"}
    for name, file in written.items():
        found, split = read(file), getattr(source, name)
        assert file == tmp_path / f"embeddings_{name}.npz"
        np.testing.assert_array_equal(found["label"], split.label)
        np.testing.assert_array_equal(found["id"], np.arange(len(split)))
        for layer, features in encoder.all_layers(split.image).items():
            if layer in layers:
                np.testing.assert_allclose(found[layer], features, rtol=1e-5, atol=1e-5)
        assert found["pooled"].dtype == np.float32 and found["step"] == 7 and found["checkpoint"] == str(path)
        assert found["classes"].tolist() == list(source.classes) and "path" not in found
        assert json.loads(str(found["config"]))["encoder"] == config["encoder"]


def test_a_folder_without_labels_by_a_file(trained, tmp_path):
    path, config = trained
    export(config, path, quiet=True)
    random = np.random.default_rng(0)
    for name in ("b.png", "a.png", "below/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (9, 12), np.uint8)).save(tmp_path / name)
    settings = {
        "data": {"name": "folder", "dir": str(tmp_path), "size": 8, "label_key": ""},
        "compose": {"name": "rand_bit", "bits": 0, "seed": 0},
        "evaluate": config["evaluate"] | {"checkpoint": str(path / "encoder.safetensors")},
    }
    written = embed(config | settings, tmp_path / "out", quiet=True)
    assert list(written) == ["train"]
    found = read(written["train"])
    assert found["path"].tolist() == ["a.png", "b.png", "below/c.png"]
    assert (found["label"] == -1).all() and found["pooled"].shape == (3, 64)
    split = data.load(**settings["data"]).train
    encoder = contrastive_jax.load_encoder(path / "encoder.safetensors")
    np.testing.assert_allclose(found["pooled"], encoder(split.image), rtol=1e-5, atol=1e-5)
    said = json.loads(str(found["config"]))  # what these images are, not those of the training
    assert {name: said[name] for name in ("data", "compose")} == {
        name: settings[name] for name in ("data", "compose")
    }
    assert said["encoder"] == config["encoder"] and config["compose"] == {"name": "none"}


def test_an_encoder_opens_files_as_its_run_did(trained, tmp_path):
    _, config = trained
    random = np.random.default_rng(0)
    (tmp_path / "files").mkdir()
    Image.fromarray(random.integers(0, 4096, (9, 12)).astype(np.uint16)).save(tmp_path / "files/deep.png")
    Image.fromarray(random.integers(0, 256, (30, 20, 4), np.uint8)).save(tmp_path / "files/clear.png")
    folder = {"name": "folder", "dir": str(tmp_path / "files"), "size": 8, "white": 4095, "channels": 1}
    workdir_of(tmp_path / "run", config | {"data": config["data"] | folder})
    split = data.load(**folder).train
    encoder = contrastive_jax.load_encoder(tmp_path / "run")
    found = encoder.open(*(tmp_path / "files" / path for path in split.paths))
    np.testing.assert_array_equal(found, split.image)
    tifffile.imwrite(tmp_path / "five.tif", np.zeros((9, 9, 5), np.uint8), planarconfig="contig")
    (tmp_path / "text.png").write_text("none")
    for name, message in (
        ("five.tif", r"has shape \[8, 8, 5\]; it must have \[8, 8, 1\]"),
        ("text.png", "cannot be read as an image"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder.open(tmp_path / name)


def test_what_is_unlike_the_encoders_run_or_an_earlier_call_is_said(trained, tmp_path, capsys):
    path, config = trained
    checkpoint = {"evaluate": config["evaluate"] | {"checkpoint": str(path)}}
    embed(config | checkpoint, tmp_path / "out")
    train = {"embed": {"layers": ["pooled"], "splits": ["train"]}}
    embed(config | checkpoint | train, tmp_path / "out")
    said = capsys.readouterr().out
    assert "data.size" not in said and "other images" not in said
    Image.fromarray(np.zeros((9, 12), np.uint8)).save(tmp_path / "0.png")
    folder = {"data": {"name": "folder", "dir": str(tmp_path), "size": 8}}
    embed(config | checkpoint | folder, tmp_path / "out")
    said = capsys.readouterr().out
    assert "data.size is 8, and was 0 in the encoder's run" in said
    assert (
        "embeddings_test.npz holds embeddings of other images" in said
        and "embeddings_train.npz holds" not in said
    )


def test_what_cannot_be_embedded_is_refused_before_anything_is_written(trained, tmp_path):
    path, config = trained
    for name in ("train/a.png", "train/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8) + np.arange(3, dtype=np.uint8)).save(tmp_path / name)
    folder = {"name": "folder", "dir": str(tmp_path)}
    out = tmp_path / "out"
    checkpoint = {"evaluate": config["evaluate"] | {"checkpoint": str(path)}}
    for layers, splits, change, sentence in (
        (
            ["projection_3"],
            ["train"],
            {},
            "contains 'projection_3'; the layers of this encoder are pooled, projection_1, projection_2",
        ),
        ([], ["train"], {}, "embed.layers contains ''"),
        (["pooled"], ["val"], {}, r"embed.splits is \['val'\]; it must be .* train, test"),
        (["pooled"], ["test"], {"data": folder}, r"embed.splits is \['test'\]; .*'folder'"),
        (
            ["pooled"],
            ["train"],
            {"data": folder},
            "3 channels; .* reads 1.* data.channels=1",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            embed(
                config | checkpoint | change | {"embed": {"layers": layers, "splits": splits}},
                out,
                quiet=True,
            )
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        embed(config, out, quiet=True)
    assert not out.exists()


@pytest.mark.run
def test_one_device_writes_what_eight_write(trained, tmp_path, monkeypatch):
    path, config = trained
    config = config | {"evaluate": config["evaluate"] | {"checkpoint": str(path)}}
    eight = read(embed(config, tmp_path / "eight", quiet=True)["test"])
    one = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *a: one)
    single = read(embed(config, tmp_path / "one", quiet=True)["test"])
    np.testing.assert_allclose(single["pooled"], eight["pooled"], rtol=1e-5, atol=1e-5)


def test_any_other_file_is_not_of_these_images(tmp_path):
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "array.npy", np.ones(3))
    for file in ("empty.npz", "array.npy", "absent.npz"):
        assert not embed_command._is_of(tmp_path / file, config_of())
