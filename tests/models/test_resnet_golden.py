"""SimCLR's ResNet (TF2 code) and torchvision's: counts, outputs, statistics and gradients as published."""

import json
import pathlib
import re

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import sampled

from contrastive_jax import models, native
from contrastive_jax.models import torchvision_names

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
SIMCLR, TORCH = (np.load(GOLDEN / f"{name}.npz") for name in ("resnet_simclr_tf2", "resnet_torchvision"))
TOLERANCE = {"float64": 1e-8, "float32": 1e-4}


def cases(file):
    return {case["case"]: case for case in json.loads(str(file["index"]))}


# TensorFlow rounds 1 - momentum = 0.1 to float32 also where all else is float64.
TENSORFLOW = {"momentum": 1 - float(np.float32(0.1))}
PYTORCH = {"unbiased": True}


def encoder(depth, width, stem, variant, dtype="float32", norm=None):
    return models.network(
        encoder={"depth": depth, "width": width, "stem": stem, "variant": variant},
        projector={"layers": 0},
        predictor={},
        classes=0,
        norm=norm or {},
        dtype=dtype,
    )


def close(ours, theirs, tolerance):
    """Relative to the largest entry: entries of one array are sums of terms of that size."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max())


def run(network, params, stats, image, cotangent):
    """Evaluation and training features, new statistics, and the gradient of sum(features * cotangent).

    Gradients are given in float64 only: float32 does without, which spares compilation.
    """

    def loss(params, image):
        outputs, new = network.apply(params, stats, image[:, None], train=True)
        features = outputs.features[:, 0]
        return jnp.sum(features * cotangent), (features, new["encoder"])

    @native.jit
    def everything(params, image):
        if image.dtype == np.float64:
            (_, (features, new)), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, image)
        else:
            (_, (features, new)), gradients = loss(params, image), (None, None)
        return network.encode(params, stats, image)["pooled"], features, new, gradients

    with jax.default_matmul_precision("float32"):
        return everything(params, image)


def modules(params, stats, dtype):
    """Encoder arrays as a network's params and stats."""
    empty = {"projector": {}, "predictor": {}, "probe": {}}
    cast = lambda tree: jax.tree.map(lambda x: np.asarray(x, dtype), tree)  # noqa: E731
    return {"encoder": cast(params)} | empty, {"encoder": cast(stats)} | empty


def from_simclr(state):
    """``group1.block0.conv1.kernel`` and so on to our tree: the layout is ours already."""
    leaves = {"gamma": "scale", "beta": "bias", "moving_mean": "mean", "moving_variance": "var"}
    params, stats = {}, {}
    for name, array in state.items():
        name = re.sub(r"(group\d)\.block", r"\1_block", name)
        name = re.sub(r"(stem|shortcut)\.", r"\1_", name).replace("bn", "norm")
        *layer, leaf = name.split(".")
        leaf = leaves.get(leaf, leaf)
        node = stats if leaf in ("mean", "var") else params
        for part in layer:
            node = node.setdefault(part, {})
        node[leaf] = array
    return params, stats


def norms(gradients):
    return jax.tree.map(np.linalg.norm, gradients["encoder"])


@pytest.mark.golden("resnet_simclr_tf2", "param_counts")
@pytest.mark.parametrize("row", SIMCLR["param_counts/table"].tolist(), ids=str)
def test_simclr_parameter_counts(row):
    depth, width, cifar, trainable, moving, kernels, features = row
    network = encoder(depth, width, "cifar" if cifar else "imagenet", "simclr")
    rows, totals = network.describe((32, 32, 3))
    assert totals == {"encoder": trainable, "projector": 0, "predictor": 0, "probe": 0}
    assert sum(size for _, path, _, size in rows if path.endswith("kernel")) == kernels
    assert network.width((32, 32, 3)) == features
    _, stats = network.init(0, (32, 32, 3)) if depth < 50 else (None, None)
    assert stats is None or sum(x.size for x in jax.tree.leaves(stats)) == moving


# torchvision's table has ResNet-18, 50 and 18 with the CIFAR stem in rows 0, 1 and 3; row 2 is another net.
# ResNet-34 is the 21,797,672 of torchvision's documentation without its classifier of 513,000.
@pytest.mark.golden("resnet_torchvision", "param_counts")
@pytest.mark.parametrize(
    ("depth", "stem", "count"),
    [
        (18, "imagenet", TORCH["param_counts/table"][0, 1]),
        (50, "imagenet", TORCH["param_counts/table"][1, 1]),
        (18, "cifar", TORCH["param_counts/table"][3, 1]),
        (34, "imagenet", 21_797_672 - 513_000),
    ],
)
def test_torchvision_parameter_counts(depth, stem, count):
    _, totals = encoder(depth, 1.0, stem, "torchvision").describe((32, 32, 3))
    assert totals["encoder"] == count


@pytest.mark.parametrize("dtype", sampled(["float64", "float32"], 1))
@pytest.mark.parametrize(
    "case", sampled(golden_cases.marked("resnet_simclr_tf2", ["tiny18_cifar", "tiny50_imagenet"]), 1)
)
def test_simclr(case, dtype):
    about, tolerance = cases(SIMCLR)[case], TOLERANCE[dtype]
    get = lambda name: SIMCLR[f"{case}/{name}"]  # noqa: E731
    stem = "cifar" if about["cifar_stem"] else "imagenet"
    with jax.enable_x64(dtype == "float64"):
        network = encoder(about["depth"], about["width_multiplier"], stem, "simclr", dtype, TENSORFLOW)
        params, stats = from_simclr({name: get(f"w.{name}") for name in about["variable_names"]})
        params, stats = modules(params, stats, dtype)
        expected = jax.tree.map(np.shape, network.init(0, get("x").shape[1:]))
        assert jax.tree.map(np.shape, (params, stats)) == expected
        evaluated, trained, new, (gradients, gradient) = run(
            network, params, stats, get("x").astype(dtype), get("cot").astype(dtype)
        )
    suffix = "" if dtype == "float64" else "_f32"
    close(evaluated, get("out_eval" + suffix), tolerance)
    close(trained, get("out_train" + suffix), tolerance)
    if dtype == "float64":
        moved = [name for name in about["variable_names"] if "moving" in name]
        _, after = from_simclr({name: get(f"after.{name}") for name in moved})
        jax.tree.map(lambda ours, theirs: close(ours, theirs, tolerance), new, after)
        close(gradient, get("grad_x"), 1e-6)  # stored as float32
        theirs, _ = from_simclr(dict(zip(about["trainable_names"], get("trainable_grad_norms"), strict=True)))
        jax.tree.map(lambda ours, theirs: close(ours, theirs, tolerance), norms(gradients), theirs)


def torch_state(case):
    """The stored arrays, or those regenerated by the case's rule, which its checksums verify."""
    about = cases(TORCH)[case]
    random, state = np.random.RandomState(about["seed"]), {}
    for name, shape in zip(about["names"], about["shapes"], strict=True):
        if len(shape) == 4:
            array = random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        elif name.endswith("running_var"):
            array = random.uniform(0.5, 2, shape)
        elif name.endswith("weight"):
            array = random.uniform(0.5, 1.5, shape)
        else:
            array = random.standard_normal(shape) * 0.3
        state[name] = array.astype(np.float32)
    for array, checksum in zip(state.values(), TORCH[f"{case}/w_checksums"], strict=True):
        wide = array.astype(np.float64)
        np.testing.assert_allclose([wide.sum(), np.square(wide).sum()], checksum, rtol=1e-9, atol=1e-9)
    return state


def torchvision_case(name, dtype, *marks):
    return pytest.param(name, dtype, marks=[pytest.mark.golden("resnet_torchvision", name), *marks])


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        torchvision_case("tiny18_base4_cifar", "float64"),
        torchvision_case("tiny18_base4_cifar", "float32", pytest.mark.run),
        torchvision_case("tiny50_base2_imagenet", "float64", pytest.mark.run),
        torchvision_case("tiny50_base2_imagenet", "float32", pytest.mark.run),
        torchvision_case("full_resnet18_cifar_seeded", "float64", pytest.mark.run),
        torchvision_case("full_resnet50_seeded", "float64", pytest.mark.slow),
    ],
)
def test_torchvision(case, dtype):
    about, tolerance = cases(TORCH)[case], TOLERANCE[dtype]
    get = lambda name: TORCH[f"{case}/{name}"]  # noqa: E731
    state = torch_state(case)
    if about["weights_saved"]:
        assert all((get(f"w.{name}") == array).all() for name, array in state.items())
    out = get("out_train").shape
    seed, shape = about["seed"], tuple(get("x_shape")) if f"{case}/x_shape" in TORCH else get("x").shape
    image = np.random.RandomState(seed + 1).standard_normal(shape).astype(np.float32)
    cotangent = np.random.RandomState(seed + 2).standard_normal(out)
    channels, depth = state["conv1.weight"].shape[0], 18 if "18" in case else 50
    stem = "cifar" if "cifar" in case else "imagenet"
    with jax.enable_x64(dtype == "float64"):
        network = encoder(depth, channels / 64, stem, "torchvision", dtype, PYTORCH)
        params, stats = modules(*torchvision_names.from_torchvision(state), dtype)
        evaluated, trained, new, (gradients, gradient) = run(
            network, params, stats, image.transpose(0, 2, 3, 1).astype(dtype), cotangent.astype(dtype)
        )
    suffix = "" if dtype == "float64" else "_f32"
    close(evaluated, get("out_eval" + suffix), tolerance)
    close(trained, get("out_train" + suffix), tolerance)
    if dtype == "float64":
        # The tiny cases' ``after.*`` are bit for bit their ``w.*``, the statistics before: nothing to meet.
        if f"{case}/after_checksums" in TORCH:
            ours = torchvision_names.to_torchvision({}, new)
            running = [name for name in about["names"] if "running" in name]
            for name, checksum in zip(running, get("after_checksums"), strict=True):
                close([ours[name].sum(), np.square(ours[name]).sum()], checksum, tolerance)
        if f"{case}/grad_x" in TORCH:
            close(np.asarray(gradient).transpose(0, 3, 1, 2), get("grad_x"), 1e-6)  # stored as float32
        ours = torchvision_names.to_torchvision(gradients["encoder"], {})
        ours = [np.linalg.norm(ours[name]) for name in about["param_names"]]
        np.testing.assert_allclose(ours, get("grad_norms"), rtol=tolerance)
