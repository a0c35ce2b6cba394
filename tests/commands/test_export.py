"""Encoders in files: bit for bit there and back, used alike by PyTorch, refused where they could not be."""

import json
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from saved_runs import config_of, random_arrays, workdir_of

import contrastive_jax
from contrastive_jax import augment, models, sharding
from contrastive_jax.augment import presets
from contrastive_jax.augment.crops import Chain
from contrastive_jax.commands import evaluate
from contrastive_jax.commands.export import export, preprocessing
from contrastive_jax.config import approval
from contrastive_jax.lookup import functions_of
from contrastive_jax.models import torchvision_names
from contrastive_jax.training import initial, program
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import checkpoint, weights

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = dict(
    re.findall(r"```python\n# (\w+)\.py\n(.*?)```", (ROOT / "docs/export.md").read_text(), re.DOTALL)
)


def assert_same(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def inside(size, views, *, scale: float = 1.0):
    """A preset of one's own: its crop and normalization are no options."""
    found = presets.moco_v2(size, views)
    if scale == 1.0:
        return found
    return found._replace(evaluate=Chain(*found.evaluate.steps, lambda key, image: scale * image))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path, config = tmp_path_factory.mktemp("run"), config_of()
    params, stats = workdir_of(path, config)
    about = export(config, path, quiet=True)
    return path, config, params, stats, about


def images(channels=1, count=5, size=8):
    return np.random.default_rng(1).integers(0, 256, (count, size, size, channels), np.uint8)


def test_a_checkpoint_that_does_not_say_its_channels_is_a_resnets(tmp_path):
    params, stats = random_arrays(config_of(), 3)
    with checkpoint.Checkpoints(tmp_path / "checkpoints") as saved:
        saved.save(1, jax.tree.map(jnp.asarray, {"params": params, "stats": stats}), {"config": config_of()})
    loaded = contrastive_jax.load_encoder(tmp_path)
    assert loaded.channels == 3 and re.match(r"LoadedEncoder\(resnet, step \w+, images of 3 ch", repr(loaded))


def test_replicas_are_refused_by_what_reads_one_run(tmp_path):
    params, stats = random_arrays(config_of(), 1)
    with checkpoint.Checkpoints(tmp_path / "checkpoints") as saved:
        state = jax.tree.map(lambda x: jnp.stack([x, x]), {"params": params, "stats": stats})
        saved.save(1, state, {"config": config_of(), "channels": 1, "replicas": [{"seed": 0}, {"seed": 1}]})
    for read in (contrastive_jax.load_encoder, lambda path: export(config_of(), path, quiet=True)):
        with pytest.raises(ValueError, match="holds 2 replicas; .*replica_0"):
            read(tmp_path)
    assert not (tmp_path / "encoder.safetensors").exists()


@pytest.mark.parametrize("of", ["run", "command", "run alone"])
def test_the_size_of_evaluation_is_in_the_file(of, tmp_path):
    """A command that names the run's config file, and no size, had written another one than the run's table has."""
    config, larger = config_of(), config_of(**{"evaluate.size": 16})
    workdir_of(tmp_path, config if of == "command" else larger)
    about = export(config if of == "run alone" else larger, tmp_path, quiet=True)
    assert about["preprocessing"]["size"] == 16
    seen = contrastive_jax.load_encoder(tmp_path / "encoder.safetensors").prepare(images()[0])
    assert seen.shape == (16, 16, 1)
    assert contrastive_jax.load_encoder(tmp_path).prepare(images()[0]).shape[0] == (
        8 if of == "command" else 16
    )


def test_there_and_back_bit_for_bit(trained):
    path, config, params, stats, about = trained
    found = weights.load(path / "encoder.safetensors")
    assert_same((found.params, found.stats), (params["encoder"], stats["encoder"]))
    assert found.about == json.loads(json.dumps(about))
    assert found.about["step"] == 7 and found.about["config"] == config
    assert {
        **config["encoder"],
        "epsilon": 1e-5,
        "channels": 1,
        "features": 64,
        "dtype": "float32",
    } == found.about["encoder"]
    state = torchvision_names.to_torchvision(found.params, found.stats)
    assert state["layer2.0.downsample.0.weight"].shape == (16, 8, 1, 1) and "fc.weight" not in state


@pytest.mark.run
def test_a_workdir_and_its_file_give_the_same_features(trained):
    path, _, params, stats, _ = trained
    run, file = (contrastive_jax.load_encoder(p) for p in (path, path / "encoder.safetensors"))
    assert run.layers == ("pooled", "projection_1", "projection_2") and file.layers == ("pooled",)
    assert run.step == file.step == 7 and run.channels == 1
    found = run(images())
    assert found.shape == (5, 64) and found.dtype == np.float32
    np.testing.assert_array_equal(found, file(images()))
    with jax.set_mesh(sharding.make_mesh()):
        np.testing.assert_array_equal(found, file(images()))
    two_by_two = file(images(), batch_size=2)  # other bits on some CPUs
    np.testing.assert_allclose(found, two_by_two, rtol=1e-5, atol=1e-5)
    views = images().astype(np.float32) / 255
    expected = run.network.encode(params, stats, views)
    np.testing.assert_allclose(found, expected["pooled"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        run(images(), layer="projection_2"), expected["projection_2"], rtol=1e-4, atol=1e-4
    )


def test_an_encoder_refuses_what_it_cannot_read(trained):
    file = contrastive_jax.load_encoder(trained[0] / "encoder.safetensors")
    with pytest.raises(
        ValueError, match=r"float32 of shape \[5, 8, 8, 1\]; this encoder reads uint8 \[n, h, w, 1\]"
    ):
        file(images().astype(np.float32))
    with pytest.raises(ValueError, match=r"shape \[5, 8, 8, 3\]; this encoder reads"):
        file(images(3))
    with pytest.raises(ValueError, match="layer is 'projection_1'; this encoder has pooled"):
        file(images(), layer="projection_1")


def test_a_run_starts_from_a_file(trained, tmp_path):
    path, config, params, stats, _ = trained
    config = config | {"init": config["init"] | {"checkpoint": str(path / "encoder.safetensors")}}
    run, said = runs.prepare(config, jax.devices()[:1]), []
    with jax.set_mesh(run.mesh):
        state = initial.first_state(program.single(run), said.append)
    assert_same(
        jax.device_get((state.params["encoder"], state.stats["encoder"])),
        (params["encoder"], stats["encoder"]),
    )
    assert said == [f"encoder: from step 7 of {path / 'encoder.safetensors'}"]
    images = config["augment"] | {"mean": [0.5], "std": [0.25]}
    other = config | {"norm": config["norm"] | {"epsilon": 1e-3}, "augment": images}
    run = runs.prepare(other, jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        initial.first_state(program.single(run), said.append)
    assert re.search("change its output: .*norm.epsilon was 1e-05, is 0.001", said[-1])
    assert "augment.std was None, is (0.25,)" in said[-1]
    wider = config_of(**{"encoder.width": 0.25}) | {"init": config["init"]}
    run = runs.prepare(wider, jax.devices()[:1])
    with (
        jax.set_mesh(run.mesh),
        pytest.raises(ValueError, match=r"stem_conv/kernel is 3x3x1x8, not 3x3x1x16"),
    ):
        initial.first_state(program.single(run), said.append)


def test_an_own_encoders_variant_is_its_own_affair(tmp_path, monkeypatch):
    def linear(norm, dtype, *, variant: str = "a"):
        return models.Encoder(
            lambda key, x: ({"w": jnp.ones((1, 4))}, {}),
            lambda params, stats, x, *, train: (x.mean((1, 2)) @ params["w"], stats),
        )

    linear.__module__ = "own_linear"
    approval.allow("own_linear:linear")
    monkeypatch.setitem(sys.modules, "own_linear", types.SimpleNamespace(linear=linear))
    config = config_of() | {"encoder": {"name": "own_linear:linear", "variant": "a"}}
    workdir_of(tmp_path, config)
    new = config | {
        "encoder": config["encoder"] | {"variant": "b"},
        "init": config["init"] | {"checkpoint": str(tmp_path)},
    }
    said = []
    initial.pretrained(runs.prepare(new, jax.devices()[:1]), said.append)
    assert "encoder.variant was a, is b" in said[-1]


@pytest.mark.parametrize(
    ("saved", "leaves", "message"),
    [
        (
            {},
            {"encoder.variant": "torchvision"},
            "has encoder.variant=simclr, .* torchvision",
        ),
        (
            {"of": "statistics"},
            {},
            "does not match the encoder of this config: its more/mean is 1, not absent",
        ),
    ],
)
def test_a_run_refuses_weights_that_it_would_use_otherwise(saved, leaves, message, tmp_path):
    imagenet = {"encoder.depth": 50, "encoder.stem": "imagenet", "encoder.width": 1 / 64}
    config = config_of(32, **imagenet | {"encoder.variant": "simclr"})
    params, stats = random_arrays(config, 1)
    stats["encoder"] |= {"more": {"mean": np.zeros(1, np.float32)}} if saved else {}
    with checkpoint.Checkpoints(tmp_path / "checkpoints") as book:
        state = jax.tree.map(jnp.asarray, {"params": params, "stats": stats})
        book.save(7, state, {"config": config, "channels": 1})
    new = config_of(32, **imagenet | {"encoder.variant": "simclr"} | leaves)
    run = runs.prepare(new | {"init": new["init"] | {"checkpoint": str(tmp_path)}}, jax.devices()[:1])
    with pytest.raises(ValueError, match=message):
        initial.check(run, str(tmp_path / "new"))


def test_a_run_reads_another_librarys_file_as_that_library_does(tmp_path):
    imagenet = {"encoder.depth": 50, "encoder.stem": "imagenet", "encoder.width": 1 / 64}
    params, stats = random_arrays(config_of(32, **imagenet | {"encoder.variant": "torchvision"}), 1)
    state = torchvision_names.to_torchvision(params["encoder"], stats["encoder"])
    path = tmp_path / "theirs.safetensors"
    save_file({name: np.ascontiguousarray(array) for name, array in state.items()}, path)

    def said(**leaves):
        new = config_of(32, **imagenet | leaves)
        lines = []
        initial.pretrained(
            runs.prepare(new | {"init": new["init"] | {"checkpoint": str(path)}}, jax.devices()[:1]),
            lines.append,
        )
        return lines

    torchvision = {"encoder.variant": "torchvision"}
    assert len(said(**torchvision)) == len(said(**torchvision | {"encoder.zero_init": True})) == 1
    assert "norm.epsilon was 1e-05, is 0.001" in said(**torchvision | {"norm.epsilon": 1e-3})[-1]
    with pytest.raises(ValueError, match="has encoder.variant=torchvision, and this config has simclr"):
        said(**{"encoder.variant": "simclr"})


@pytest.mark.run
def test_a_file_is_judged_as_its_run_is(trained, tmp_path):
    path, config, *_ = trained
    config = config | {"evaluators": {"knn": config["evaluators"]["knn"]}}
    found = []
    for checkpoint_path in (path, path / "encoder.safetensors"):
        settings = config["evaluate"] | {"checkpoint": str(checkpoint_path), "rows": ["trained"]}
        found.append(evaluate.evaluate(config | {"evaluate": settings}, tmp_path, quiet=True))
    assert found[0]["results"] == found[1]["results"] and found[1]["step"] == 7
    assert 0 < found[0]["results"]["trained"]["knn"]["top1"] < 1
    assert json.loads((tmp_path / "evaluation.json").read_text())["checkpoint"].endswith(".safetensors")


@pytest.mark.parametrize(
    ("leaves", "sentence"),
    [
        ({"encoder.variant": "simclr"}, "projection shortcut in the first block"),
        (
            {"encoder.variant": "simclr", "encoder.depth": 50, "encoder.stem": "imagenet"},
            "pads its max-pooling",
        ),
        ({"norm.epsilon": 1e-3}, "norm.epsilon is 0.001, PyTorch's is 1e-05"),
    ],
)
def test_what_torchvision_computes_otherwise_is_refused_or_marked(leaves, sentence, tmp_path):
    leaves = {"encoder.width": 1 / 64} | leaves
    config = config_of(size=32 if "encoder.stem" in leaves else 8)
    with_epsilon = {"norm": config["norm"] | {"epsilon": leaves.pop("norm.epsilon", 1e-5)}}
    config["encoder"] |= {name.removeprefix("encoder."): value for name, value in leaves.items()}
    config |= with_epsilon
    params, stats = workdir_of(tmp_path, config)
    with pytest.raises(ValueError, match=rf"{sentence}.* export\.architecture=own"):
        export(config, tmp_path, quiet=True)
    assert not (tmp_path / "encoder.safetensors").exists()
    export(config | {"export": config["export"] | {"architecture": "own"}}, tmp_path, quiet=True)
    found = weights.load(tmp_path / "encoder.safetensors")
    assert_same((found.params, found.stats), (params["encoder"], stats["encoder"]))
    assert found.about["encoder"]["variant"] == config["encoder"]["variant"]
    if config["encoder"]["depth"] < 50:
        assert weights.architecture(found.params)["variant"] == config["encoder"]["variant"]


def test_simclr_variant_that_torchvision_computes_alike_is_not_refused(tmp_path):
    config = config_of(**{"encoder.variant": "simclr", "encoder.depth": 50, "encoder.width": 1 / 64})
    workdir_of(tmp_path, config)
    assert export(config, tmp_path, quiet=True)["encoder"]["depth"] == 50


def test_wrong_choices_and_files_end_in_a_sentence(trained, tmp_path):
    from safetensors.numpy import save_file

    config = trained[1]
    with pytest.raises(ValueError, match="export.architecture is 'onnx'; it must be one of torchvision, own"):
        export(config | {"export": config["export"] | {"architecture": "onnx"}}, tmp_path, quiet=True)
    with pytest.raises(
        FileNotFoundError,
        match="there is no checkpoint directory .*; give the workdir",
    ):
        export(config, tmp_path / "nowhere", quiet=True)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(FileNotFoundError, match="there is no file .*none.safetensors"):
        weights.load(tmp_path / "none.safetensors")
    whole = (trained[0] / "encoder.safetensors").read_bytes()
    for name, data in (("cut", whole[:-100]), ("text", b"not a file of arrays"), ("empty", b"")):
        (tmp_path / f"{name}.safetensors").write_bytes(data)
        with pytest.raises(ValueError, match=f"{name}.safetensors cannot be read as safetensors"):
            weights.load(tmp_path / f"{name}.safetensors")
    state = torchvision_names.to_torchvision(*weights.load(trained[0] / "encoder.safetensors")[:2])
    for wrong, sentence in (
        ({"transformer.h.0.weight": np.zeros(3, np.float32)}, "'transformer.h.0.weight' is not the name"),
        ({name: state[name] for name in state if "layer4" not in name}, r"\(2, 2, 2\) residual blocks"),
        (
            {name: state[name] for name in state if name != "layer1.0.bn1.running_var"},
            "layer1.0.bn1 has no running_var",
        ),
        ({"fc.weight": np.zeros((3, 3), np.float32)}, "no residual blocks"),
        (
            state
            | {
                "layer1.0.conv2.weight": np.zeros((16, 8, 3, 3), np.float32)
            },  # as in torchvision's wide ResNets
            "group1_block0/conv2/kernel is 3x3x8x16, not 3x3x8x8",
        ),
        (state | {"conv1.weight": np.zeros((8, 9), np.float32)}, "its conv1.weight has 2 axes, not 4"),
        (
            state | {"layer1.0.bn1.weight": np.zeros(8, np.int32)},
            "its layer1.0.bn1.weight is int32; weights must be floating",
        ),
    ):
        save_file(wrong, tmp_path / "wrong.safetensors")
        with pytest.raises(ValueError, match=f"is not a ResNet with torchvision's names: .*{sentence}"):
            weights.load(tmp_path / "wrong.safetensors")


@pytest.mark.run
def test_a_state_dict_of_torchvision_needs_only_a_view(trained, tmp_path):
    from safetensors.numpy import save_file

    ours = contrastive_jax.load_encoder(trained[0])
    state = torchvision_names.to_torchvision(ours.params["encoder"], ours.stats["encoder"])
    state = {name: np.ascontiguousarray(array) for name, array in state.items()}
    more = {"fc.weight": np.zeros((10, 64), np.float32), "bn1.num_batches_tracked": np.array(3)}
    save_file(state | more, tmp_path / "foreign.safetensors")
    with pytest.raises(ValueError, match="does not contain the preparation of images; pass view"):
        contrastive_jax.load_encoder(tmp_path / "foreign.safetensors")
    foreign = contrastive_jax.load_encoder(tmp_path / "foreign.safetensors", view=dict(preset="none", size=8))
    np.testing.assert_array_equal(foreign(images()), ours(images()))
    assert foreign.step is None
    halves = {name: array.astype(np.float16) for name, array in state.items()}
    save_file(halves, tmp_path / "half.safetensors")
    half = contrastive_jax.load_encoder(tmp_path / "half.safetensors", view=dict(preset="none", size=8))
    assert {x.dtype for x in jax.tree.leaves((half.params, half.stats))} == {np.dtype("float32")}
    config = trained[1]
    judged = config["evaluate"] | {"checkpoint": str(tmp_path / "half.safetensors")}
    assert export(config | {"evaluate": judged}, tmp_path, quiet=True)["preprocessing"]["size"] == 8


@pytest.mark.parametrize(
    ("depth", "stem"), [(d, s) for d in (18, 34, 50, 101, 152) for s in ("cifar", "imagenet")]
)
def test_architecture_is_read_off_the_arrays(depth, stem):
    options = {"depth": depth, "width": 0.125, "stem": stem}
    network = models.network(encoder=options, projector={"layers": 0}, predictor={}, classes=0, norm={})
    rows, _ = network.describe((32, 32, 3))
    params = {}
    for _, path, shape, _ in rows:
        *layers, leaf = path.split("/")
        node = params
        for layer in layers:
            node = node.setdefault(layer, {})
        node[leaf] = np.broadcast_to(np.float32(0), shape)
    assert weights.architecture(params) == options | {"variant": "torchvision"}


@pytest.mark.parametrize("preset", functions_of(presets))
@pytest.mark.parametrize("size", [8, 40])
def test_preprocessing_says_what_evaluation_does(preset, size):
    """At sizes where nothing is resized: crop, range, mean and deviation."""
    side = size if size <= 32 or preset in ("none", "digits", "crop_only") else round(size / 0.875)
    for section in (
        {"preset": preset, "size": size},
        {"preset": preset, "size": size, "mean": (0.5,), "std": (0.2,)},
    ):
        channels = 1 if "mean" in section else 3
        said = preprocessing(section, channels)
        image = images(channels, 1, side)[0]
        cut = round(said["crop"] * side)
        assert cut == size
        first = (side - cut + 1) // 2
        ours = image[first : first + cut, first : first + cut] / 255
        ours = (ours - np.array(said["mean"])) / np.array(said["std"])
        np.testing.assert_allclose(augment.make_eval(**section)(image), ours, rtol=1e-5, atol=1e-5)


def test_preprocessing_of_a_preset_of_ones_own_is_what_it_does():
    own = {"preset": f"{__name__}:inside", "size": 40}
    assert preprocessing(own, 4) == preprocessing({"preset": "moco_v2", "size": 40}, 4)
    with pytest.raises(ValueError, match="augment.preset is '.*:inside'; an exported file"):
        preprocessing(own | {"scale": 0.5}, 3)


# ---------------------------------------------------------------- PyTorch (pip install 'contrastive_jax[torch]')


def execute(names, where, monkeypatch, **known):
    monkeypatch.chdir(where)
    for name in names:
        exec(compile(BLOCKS[name], f"docs/export.md, {name}.py", "exec"), known)
    return known


@pytest.mark.parametrize(
    ("depth", "stem", "width"),
    [
        (18, "cifar", 0.25),
        (18, "imagenet", 1.0),
        (34, "cifar", 0.125),
        (50, "cifar", 0.25),
        (50, "imagenet", 1.0),
    ],
)
def test_pytorch_computes_the_same(depth, stem, width, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    leaves = {"encoder.depth": depth, "encoder.stem": stem, "encoder.width": width}
    config = config_of(size=64, **leaves)
    workdir_of(tmp_path, config, channels=3)
    export(config, tmp_path, quiet=True)
    model = execute(["load"], tmp_path, monkeypatch)["model"]
    picture = images(3, 2, 64)
    ours = contrastive_jax.load_encoder(tmp_path / "encoder.safetensors")(picture)
    with torch.no_grad():
        theirs = model(torch.from_numpy(picture).permute(0, 3, 1, 2) / 255).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    # And back: PyTorch's state dict, saved by PyTorch.
    from safetensors.torch import save_file

    save_file(model.state_dict(), tmp_path / "back.safetensors")
    first, second = (weights.load(tmp_path / f"{name}.safetensors") for name in ("encoder", "back"))
    assert_same(first[:2], second[:2])


@pytest.mark.parametrize(("depth", "stem"), [(18, "cifar"), (50, "imagenet")])
def test_pytorch_changed_alike_computes_simclrs_variant(depth, stem, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    config = config_of(
        size=64,
        **{"encoder.depth": depth, "encoder.stem": stem, "encoder.width": 1.0, "encoder.variant": "simclr"},
    )
    config["norm"]["epsilon"] = 1e-3
    config["export"]["architecture"] = "own"
    workdir_of(tmp_path, config, channels=3)
    export(config, tmp_path, quiet=True)
    before, after = BLOCKS["load"].split("model.load_state_dict")
    monkeypatch.setitem(BLOCKS, "load", f"{before}\n{BLOCKS['simclr']}\nmodel.load_state_dict{after}")
    model = execute(["load"], tmp_path, monkeypatch)["model"]
    picture = images(3, 2, 64)
    ours = contrastive_jax.load_encoder(tmp_path / "encoder.safetensors")(picture)
    with torch.no_grad():
        theirs = model(torch.from_numpy(picture).permute(0, 3, 1, 2) / 255).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("section", "shape"),
    [
        ({"preset": "moco_v2", "size": 32, "eval_crop": 0.875}, (61, 50)),  # bilinear, antialiased
        ({"preset": "simclr", "size": 64}, (40, 45)),  # bicubic, enlarged
    ],
)
def test_pytorch_sees_the_same_view(section, shape, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from PIL import Image

    picture = np.random.default_rng(2).integers(0, 256, (*shape, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "photo.png")
    known = {"about": {"preprocessing": preprocessing(section, 3)}, "torch": torch}
    theirs = execute(["prepare"], tmp_path, monkeypatch, **known)["image"]
    ours = augment.make_eval(**section)(picture)
    np.testing.assert_allclose(ours, theirs[0].permute(1, 2, 0).numpy(), atol=2e-5)


def test_timm_loads_the_file(tmp_path):
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    config = config_of(size=64, **{"encoder.depth": 50, "encoder.stem": "imagenet", "encoder.width": 1.0})
    workdir_of(tmp_path, config, channels=3)
    export(config, tmp_path, quiet=True)
    path = str(tmp_path / "encoder.safetensors")
    model = timm.create_model("resnet50", num_classes=0, checkpoint_path=path).eval()
    picture = images(3, 2, 64)
    with torch.no_grad():
        theirs = model(torch.from_numpy(picture).permute(0, 3, 1, 2) / 255).numpy()
    ours = contrastive_jax.load_encoder(path)(picture)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def test_detectron2s_names(tmp_path, monkeypatch):
    import pickle

    config = config_of(size=32, **{"encoder.depth": 50, "encoder.stem": "imagenet", "encoder.width": 1 / 64})
    params, _ = workdir_of(tmp_path, config)
    export(config, tmp_path, quiet=True)
    execute(["detectron2"], tmp_path, monkeypatch)
    found = pickle.loads((tmp_path / "encoder.pkl").read_bytes())["model"]
    layers = {name.rpartition(".")[0] for name in found}
    blocks = {2: 3, 3: 4, 4: 6, 5: 3}
    expected = {f"res{r}.{b}.conv{c}" for r, n in blocks.items() for b in range(n) for c in (1, 2, 3)}
    expected |= {f"res{r}.0.shortcut" for r in blocks} | {"stem.conv1"}
    assert layers == expected | {f"{layer}.norm" for layer in expected}
    kernel = params["encoder"]["group2_block0"]["shortcut_conv"]["kernel"]
    np.testing.assert_array_equal(found["res3.0.shortcut.weight"], kernel.transpose(3, 2, 0, 1))


@pytest.mark.run
def test_the_pages_fine_tuning_learns(trained):
    path, *_ = trained
    names = {}
    exec(compile(BLOCKS["finetune"], "docs/export.md, finetune.py", "exec"), names)
    encoder, labels = contrastive_jax.load_encoder(path), np.arange(16) % 2
    pictures = np.uint8(
        np.random.default_rng(0).integers(0, 200, (16, 8, 8, 1)) + 50 * labels[:, None, None, None]
    )
    (params, _), stats, loss = names["fine_tuned"](encoder, pictures, labels, 2, steps=20)
    assert loss < 0.5 * np.log(2)
    for new, old in ((params, encoder.params), (stats, encoder.stats)):
        assert not all(np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (new, old)), strict=True))


def test_the_notebooks_door(trained, monkeypatch):
    known = execute(["features_of"], trained[0], monkeypatch, images=images())
    assert known["features"].shape == (5, 64)
