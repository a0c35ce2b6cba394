"""A folder that timm and the Hub read: its network is the encoder, its card has the run's numbers and no others."""

import json
import os

import jax
import numpy as np
import pytest
from saved_runs import config_of, workdir_of

import contrastive_jax
from contrastive_jax.commands import timm_folder
from contrastive_jax.commands.export import export
from contrastive_jax.workdir import weights

VIT = {"name": "vit", "variant": "class_token", "patch": 4, "dim": 64, "layers": 2, "heads": 1, "hidden": 0}
TIMM = {"export": {"architecture": "torchvision", "format": "timm"}}


def config(**encoder):
    found = config_of()
    return found | TIMM | {"encoder": VIT | {"frozen_patches": False} | encoder}


def about(channels=3, size=224, **encoder):
    options = {"name": "resnet", "depth": 50, "stem": "imagenet", "width": 1.0} | encoder
    view = {
        "size": size,
        "crop": 0.875,
        "interpolation": "bicubic",
        "mean": [0.5] * channels,
        "std": [0.25] * channels,
    }
    return {"encoder": options | {"channels": channels, "features": 2048}, "preprocessing": view}


@pytest.mark.parametrize(
    ("encoder", "name", "arguments"),
    [
        ({"depth": 18}, "resnet18", None),
        ({"channels": 1}, "resnet50", {"in_chans": 1}),
        (VIT | {"patch": 16, "dim": 384, "layers": 12}, "vit_small_patch16_224", None),
        (VIT | {"patch": 8, "dim": 768, "layers": 12, "size": 96}, "vit_base_patch8_224", {"img_size": 96}),
        (
            VIT | {"patch": 4, "dim": 192, "layers": 12, "size": 32},
            "vit_tiny_patch16_224",
            {"patch_size": 4, "img_size": 32},
        ),
        (
            VIT | {"dim": 256, "patch": 16, "hidden": 512},
            "vit_small_patch16_224",
            {"embed_dim": 256, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0},
        ),
        ({"channels": 4}, "resnet50", {"in_chans": 4}),
    ],
)
def test_names_of_timms_networks(encoder, name, arguments):
    found = timm_folder.config_of(about(**encoder))
    assert found["architecture"] == name and found.get("model_args") == arguments
    seen, channels = found["pretrained_cfg"], encoder.get("channels", 3)
    assert seen["input_size"] == [channels, encoder.get("size", 224), encoder.get("size", 224)]
    assert seen["crop_pct"] == 0.875 and seen["mean"] == [0.5] * channels
    assert ("first_conv" in seen) == (channels in (1, 3))  # others cannot be converted, and need not be


@pytest.mark.parametrize("hidden", [960, 61, 704])
def test_timm_computes_the_hidden_width_that_the_encoder_has(hidden):
    found = timm_folder.config_of(about(**VIT | {"dim": 704, "patch": 16, "hidden": hidden}))
    assert int(704 * found["model_args"]["mlp_ratio"]) == hidden


@pytest.mark.parametrize("option", [{"stem": "cifar"}, {"width": 0.25}])
def test_networks_that_timm_does_not_have(option):
    with pytest.raises(ValueError, match=r"encoder.(stem|width) is .*; set export.format=file"):
        timm_folder.config_of(about(**option))


def test_a_network_that_timm_computes_otherwise(tmp_path):
    other = config_of(**{"encoder.width": 1 / 64, "encoder.variant": "simclr"}) | TIMM
    workdir_of(tmp_path, other)
    with pytest.raises(ValueError, match="timm computes another function .* projection shortcut"):
        export(other, tmp_path, quiet=True)
    assert not (tmp_path / "timm").exists()


RESULT = {
    "step": 7,
    "evaluations": {
        "trained": {
            "knn": {"top1": 0.123456, "converged": True, "protocol": "kNN, k=5 | bank", "settings": {"k": 5}}
        },
        "untrained": {"knn": {"top1": 0.1, "protocol": "kNN, k=5 | bank"}},
    },
    "notes": ["read /home/somebody/photos <b>"],
}


def test_the_folder_and_its_card(tmp_path):
    run = config() | {"init": config_of()["init"] | {"checkpoint": "/home/somebody/secret/run"}}
    run["data"] = {"name": "folder", "dir": "/home/somebody/photos", "size": 16}
    params, _ = workdir_of(tmp_path, run)
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    export(run, tmp_path, quiet=True)
    folder = tmp_path / "timm"
    assert sorted(os.listdir(folder)) == ["README.md", "config.json", "model.safetensors"]
    for a, b in zip(
        jax.tree.leaves(weights.load(folder / "model.safetensors").params),
        jax.tree.leaves(params["encoder"]),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    text = (folder / "README.md").read_text()
    assert "| trained | knn | top1 | 0.1235 | kNN, k=5 \\| bank |" in text and "at step 7, seed 0" in text
    assert "| untrained | knn | top1 | 0.1 |" in text and "- read photos &lt;b>" in text
    assert "| data set (`data.name`) | folder |" in text and "| `loss` | info_nce (weight=1.0) |" in text
    for file in folder.iterdir():
        assert b"somebody" not in file.read_bytes() and str(tmp_path).encode() not in file.read_bytes()
    again = config() | {"evaluate": run["evaluate"] | {"checkpoint": str(folder / "model.safetensors")}}
    export(again, tmp_path / "again", quiet=True)  # a file has no measured numbers
    assert "The run holds no evaluation of this step." in (tmp_path / "again/timm/README.md").read_text()
    assert (tmp_path / "again/timm/config.json").read_text() == (folder / "config.json").read_text()


def test_a_card_without_measurements_of_its_step(tmp_path):
    workdir_of(tmp_path, config())
    for result in ("", json.dumps(RESULT | {"step": 6}), '{"step": 7, "evaluations": {}}', "["):
        if result:
            (tmp_path / "result.json").write_text(result)
        export(config(), tmp_path, quiet=True)
        text = (tmp_path / "timm/README.md").read_text()
        assert "The run holds no evaluation of this step." in text and "0.1235" not in text


@pytest.mark.parametrize("network", ["vit", "resnet"])
def test_timm_builds_the_encoder(network, tmp_path):
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    options = {"encoder.depth": 18, "encoder.stem": "imagenet", "encoder.width": 1.0}
    size, channels = (8, 1) if network == "vit" else (64, 3)
    run = config() if network == "vit" else config_of(size=64, **options) | TIMM
    workdir_of(tmp_path, run, channels=channels)
    export(run, tmp_path, quiet=True)
    model = timm.create_model(f"local-dir:{tmp_path}/timm", pretrained=True).eval()
    images = np.random.default_rng(0).integers(0, 256, (3, size, size, channels), np.uint8)
    with torch.no_grad():
        theirs = model(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).numpy()
    ours = contrastive_jax.load_encoder(tmp_path / "timm/model.safetensors")(images)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    seen = timm.data.resolve_model_data_config(model)
    assert tuple(seen["input_size"]) == (channels, size, size) and tuple(seen["mean"]) == (0.0,) * channels
    assert model.num_classes == 0 and model.num_features == ours.shape[1]
