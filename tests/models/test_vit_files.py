"""Vision transformers of timm and torchvision, read from files: features as they compute them, other files refused."""

import json
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from saved_runs import config_of
from tiny_methods import x64  # noqa: F401

from contrastive_jax import config as configs
from contrastive_jax import load_encoder, models
from contrastive_jax.commands import export
from contrastive_jax.models import vit_names
from contrastive_jax.training import encoder, initial, program
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import checkpoint, weights

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "vit_timm.npz")
(CASE,) = json.loads(str(GOLDEN["index"]))
STATE = {
    name.removeprefix("narrow/state/"): GOLDEN[name]
    for name in GOLDEN.files
    if name.startswith("narrow/state/")
}
OF_TORCHVISION = dict(zip(GOLDEN["narrow/torchvision"].tolist(), STATE.values(), strict=True))
OPTIONS = {"name": "vit", "frozen_patches": False} | {
    name: CASE[name] for name in ("patch", "dim", "layers", "heads", "hidden", "variant")
}


def network(dtype):
    none = {"layers": 0}
    return models.network(encoder=OPTIONS, projector=none, predictor=none, classes=0, norm={}, dtype=dtype)


def saved(path, state, name="vit.safetensors"):
    save_file({key: np.ascontiguousarray(array) for key, array in state.items()}, path / name)
    return path / name


@pytest.mark.golden("vit_timm", "narrow")
def test_features_are_those_of_timm_in_float64(tmp_path, x64):  # noqa: F811
    for state in (STATE | {"head.weight": np.zeros((5, 128), np.float32)}, OF_TORCHVISION):
        found = weights.load(saved(tmp_path, state))
        assert (
            found.encoder | {"frozen_patches": False} == OPTIONS and found.channels == 3 and found.stats == {}
        )
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), found.params)
        empty = {"projector": {}, "predictor": {}}
        features = network("float64").encode(
            {"encoder": params, **empty}, {"encoder": {}, **empty}, GOLDEN["narrow/image"]
        )
        np.testing.assert_allclose(features["pooled"], GOLDEN["narrow/features"], rtol=1e-10, atol=1e-10)


def test_a_run_starts_from_the_file_and_refuses_another_networks(tmp_path):
    path = saved(tmp_path, STATE)

    def run(**changes):
        config = config_of(size=8)
        config |= {"encoder": OPTIONS | changes, "init": config["init"] | {"checkpoint": str(path)}}
        config |= {"data": {"name": "synthetic", "like": "cifar10", "examples": 64, "test_examples": 32}}
        config["evaluators"] = {"knn": {"name": "knn", "k": 3}}
        return runs.prepare(config, jax.devices()[:1])

    said = []
    made = run()
    with jax.set_mesh(made.mesh):
        state = initial.first_state(program.single(made), said.append)
    np.testing.assert_array_equal(
        state.params["encoder"]["class_token"], np.float32(STATE["cls_token"][0, 0])
    )
    assert said == [f"encoder: from {path}"]
    for changes, message in (
        (
            {"heads": 4},
            r"does not match the encoder of this config: its block0/.*/key/bias is 2x64, not 4x32",
        ),
        ({"variant": "mean"}, "its class_token is 128, not absent"),
        ({"patch": 2}, "its patches/kernel is 48x128, not 12x128"),
    ):
        with pytest.raises(ValueError, match=message):
            initial.pretrained(run(**changes), said.append)


def test_a_loaded_encoder_reads_images_of_the_size_of_its_positions(tmp_path):
    path = saved(tmp_path, STATE)
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    loaded = load_encoder(path, view={"preset": "none", "size": 8})
    assert loaded(images).shape == (3, 128) and loaded.channels == 3
    with pytest.raises(ValueError, match="learned positions of 4 patches; images of 16 x 16 pixels have 16"):
        load_encoder(path, view={"preset": "none", "size": 16})


def test_an_exported_encoder_is_the_file_that_it_started_from(tmp_path):
    config = config_of(size=8) | {"encoder": OPTIONS}
    whole = STATE | {"pos_embed": STATE["pos_embed"].astype(np.float32)}
    params = weights.load(saved(tmp_path, whole)).params
    state = {"params": {"encoder": params}, "stats": {"encoder": {}}}
    with checkpoint.Checkpoints(tmp_path / "run" / "checkpoints") as book:
        for kind in state.values():
            kind.update(projector={}, predictor={})
        book.save(7, jax.tree.map(jnp.asarray, state), {"config": config, "channels": 3})
    about = export.export(config, tmp_path / "run", quiet=True)
    assert about["encoder"] == OPTIONS | {"epsilon": 1e-6, "channels": 3, "dtype": "float32", "features": 128}
    exported = load_file(tmp_path / "run" / "encoder.safetensors")
    assert exported.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(exported[name], array, err_msg=name)
        assert exported[name].dtype == array.dtype
    again = encoder.read(tmp_path / "run" / "encoder.safetensors")
    assert again.settings.encoder.options["variant"] == "class_token" and again.step == 7


@pytest.mark.parametrize("changes", [{"variant": "mean"}, {"heads": 4}, {"frozen_patches": True}])
def test_a_vit_that_timm_lacks_is_not_exported(changes, tmp_path, monkeypatch):
    settings = configs.as_settings(config_of(size=8) | {"encoder": OPTIONS | changes})
    monkeypatch.setattr(encoder, "read_settings", lambda path: settings)
    with pytest.raises(
        ValueError, match="is 'vit'; --mode=export writes ResNets, and ViTs of encoder.variant=class_token"
    ):
        export.export(config_of(size=8), tmp_path, quiet=True)


def without(name):
    return {key: array for key, array in STATE.items() if key != name}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (STATE | {"blocks.0.ls1.gamma": np.ones(128, np.float32)}, "'blocks.0.ls1.gamma' is not the name"),
        (STATE | {"reg_token": np.ones((1, 4, 128), np.float32)}, "'reg_token' is not the name"),
        (without("cls_token"), "it lacks cls_token"),
        (without("blocks.0.attn.qkv.bias"), "it lacks blocks.0.attn.qkv.bias"),
        (STATE | {"norm.bias": np.ones(64, np.float32)}, "its norm.bias is 64, not 128"),
        (STATE | {"pos_embed": np.ones((1, 5, 64), np.float32)}, "its pos_embed is 1x5x64, not 1x5x128"),
        (STATE | {"norm.bias": np.ones(128, np.int32)}, "its norm.bias is int32; weights must be floating"),
        (STATE | {"norm.bias": np.ones((1, 128), np.float32)}, "its norm.bias has 2 axes, not 1"),
        (
            STATE | {"patch_embed.proj.weight": np.ones((96, 3, 4, 4), np.float32)},
            "width 96; .* a multiple of 64",
        ),
        ({"patch_embed.proj.weight": np.ones((64, 3, 4, 4), np.float32)}, "it lacks cls_token"),
    ],
)
def test_what_no_such_vit_has_is_one_sentence(state, message, tmp_path):
    path = saved(tmp_path, state)
    with pytest.raises(
        ValueError, match=f"{re.escape(str(path))} is not a ViT with a class token .*: .*{message}"
    ):
        weights.load(path)


@pytest.mark.parametrize(("dim", "name"), [(1280, "ViT-H"), (1408, "ViT-g"), (1664, "ViT-G")])
def test_a_foreign_width_with_other_heads_is_refused(dim, name, tmp_path):
    shapes = {"cls_token": (1, 1, dim), "pos_embed": (1, 2, dim), "patch_embed.proj.weight": (dim, 1, 1, 1)}
    per_block = {
        "attn.qkv.weight": (3 * dim, dim),
        "attn.qkv.bias": (3 * dim,),
        "attn.proj.weight": (dim, dim),
    }
    per_block |= {"mlp.fc1.weight": (8, dim), "mlp.fc1.bias": (8,), "mlp.fc2.weight": (dim, 8)}
    wide = {"patch_embed.proj.bias", "norm.weight", "norm.bias"} | {
        f"blocks.0.{one}" for one in vit_names.BLOCK
    }
    shapes |= {f"blocks.0.{one}": shape for one, shape in per_block.items()}
    state = {one: np.zeros(shapes.get(one, (dim,)), np.float16) for one in wide | set(shapes)}
    with pytest.raises(ValueError, match=f"its width is {dim}, that of {name} with heads of .* as 64 wide"):
        weights.load(saved(tmp_path, state))
    assert vit_names.from_state(state)[1]["heads"] == dim // 64  # of a file of this package's


def test_a_file_of_pytorch_needs_torch(tmp_path, monkeypatch):
    (tmp_path / "vit.pth").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ValueError, match=r"vit.pth is a file of PyTorch, which needs torch: pip install .*\[torch\]"
    ):
        encoder.read_settings(tmp_path / "vit.pth")
    for version, refused in {"2.5.1+cu124": True, "2.9.1": True, "2.10.0": False, "3.0.0a1": False}.items():
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
        with pytest.raises(ValueError, match="must be 2.10 or later" if refused else "cannot be read"):
            weights.load(tmp_path / "vit.pth")


# ---------------------------------------------------------------- PyTorch (pip install 'contrastive_jax[torch]')


class Runs:
    """An object whose reading would run code."""

    def __reduce__(self):
        return print, ("this must not run",)


def test_a_file_of_pytorch_is_read_and_other_objects_in_it_are_not(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    state = {name: torch.from_numpy(array) for name, array in STATE.items()}
    for number, held in enumerate((state, {"state_dict": state, "epoch": 3}, {"model": state})):
        torch.save(held, tmp_path / f"{number}.pth")
        found = weights.load(tmp_path / f"{number}.pth")
        np.testing.assert_array_equal(found.params["class_token"], STATE["cls_token"][0, 0])
    torch.save({name: tensor.bfloat16() for name, tensor in state.items()}, tmp_path / "half.pt")
    assert weights.load(tmp_path / "half.pt").params["class_token"].dtype == np.float32
    torch.save({"state_dict": state, "more": Runs()}, tmp_path / "code.pth")
    torch.save({"epoch": 3}, tmp_path / "other.pth")
    torch.save(state | {"pos_embed": state["pos_embed"].to_sparse()}, tmp_path / "sparse.pth")
    torch.save({name: one.to(torch.float8_e4m3fn) for name, one in state.items()}, tmp_path / "eight.pth")
    assert weights.load(tmp_path / "eight.pth").params["class_token"].dtype == np.float32
    (tmp_path / "damaged.pth").write_bytes((tmp_path / "0.pth").read_bytes()[:-100])
    for name, message in (
        ("code", "cannot be read as a file of tensors"),
        ("damaged", "cannot be read as a file of tensors"),
        ("other", "does not hold a state dict"),
        ("sparse", "cannot be read as a file of tensors: its pos_embed is a torch.sparse_coo"),
    ):
        with pytest.raises(ValueError, match=f"{name}.pth {message}"):
            weights.load(tmp_path / f"{name}.pth")
    assert "must not run" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["vit_small_patch16_224", "vit_base_patch16_224", "resnet18", "resnet34", "resnet50"]
)
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_features_of_published_architectures(library, name, tmp_path):
    """Random weights: what is compared is the network, at its full width."""
    torch, theirs = pytest.importorskip("torch"), pytest.importorskip(library)
    from safetensors.torch import save_file as save

    torch.manual_seed(0)
    if library == "timm":
        model = theirs.create_model(name, num_classes=0).eval()
    elif "vit" in name:
        if "small" in name:
            pytest.skip("torchvision has no ViT-S")
        model = theirs.models.vit_b_16().eval()
        model.heads = torch.nn.Identity()
    else:
        model = getattr(theirs.models, name)().eval()
        model.fc = torch.nn.Identity()
    with torch.no_grad():
        for array in model.parameters():
            array.add_(0.02 * torch.randn_like(array))
        image = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), np.uint8)
        features = model(torch.from_numpy(image).permute(0, 3, 1, 2) / 255).numpy()
    save(
        {key: value.contiguous() for key, value in model.state_dict().items()}, tmp_path / "file.safetensors"
    )
    ours = load_encoder(tmp_path / "file.safetensors", view={"preset": "none", "size": 224})(image)
    np.testing.assert_allclose(ours, features, rtol=0, atol=1e-5 * np.abs(features).max())


def test_torchvisions_names_are_all_translated():
    assert [vit_names._timm(name) for name in OF_TORCHVISION] == list(STATE)
    assert vit_names.is_vit(OF_TORCHVISION) and not vit_names.is_vit({"conv1.weight": 0})
