"""The network as a whole: modules, options, initial values, devices, dtypes, what is communicated."""

import functools
import math
import re
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from contrastive_jax import models, native, sharding
from contrastive_jax.models import torchvision_names

B, W, IMAGE = 16, 2, (8, 8, 3)
IDS = np.random.RandomState(7).permutation(B).astype(np.int32) % 2
SCOPES = {
    "joint": ({"scope": "joint"}, None),
    "per_view": ({"scope": "per_view"}, None),
    "groups": ({"scope": "groups", "groups": 2}, None),
    "given": ({"scope": "groups", "groups": 2}, IDS),
}


def build(**sections):
    """A ResNet-18 of width 1/16 with every module, or with the sections given."""
    return models.network(
        **{
            "encoder": {"depth": 18, "width": 1 / 16},
            "projector": {"out": 16},
            "predictor": {"layers": 2, "hidden": 8},
            "classes": 5,
            "norm": {},
        }
        | sections
    )


def views(dtype=np.float32):
    return np.random.RandomState(0).rand(B, W, *IMAGE).astype(dtype)


@native.jit(static_argnames="network")
def gradient(network, params, stats, views, groups):
    """((loss, (outputs, stats)), gradient of parameters and views) of a loss that reads every output."""

    def loss(params, views):
        outputs, new = network.apply(params, stats, views, train=True, groups=groups)
        readings = (outputs.features, outputs.projection, outputs.prediction, outputs.logits)
        return sum(jnp.mean(jnp.sin(3 * y)) for y in readings), (outputs, new)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, views)


def relative(ours, theirs):
    """Largest difference of any array, relative to the largest entry of the whole tree."""
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(theirs) if x.size)
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs if a.size) / scale


@pytest.mark.run
@pytest.mark.parametrize("scope", SCOPES)
def test_devices(scope):
    """One device = eight, forward, backward and statistics; and no image, or anything, is gathered."""
    norm, ids = SCOPES[scope]
    network = build(norm=norm)
    params, stats = network.init(0, IMAGE)
    one = gradient(network, params, stats, views(), ids)
    with jax.set_mesh(sharding.make_mesh()):
        rows = jax.device_put((views(), ids), P(sharding.AXIS))
        compiled = gradient.lower(network, *jax.device_put((params, stats), P()), *rows).compile()
        eight = compiled(*jax.device_put((params, stats), P()), *rows)
    (_, (outputs, new)), (weights, pixels) = eight
    assert outputs.projection.sharding.spec[0] == pixels.sharding.spec[0] == sharding.AXIS
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves((new, weights)))
    collectives = re.findall(r" (all-\w+|reduce-scatter|collective-\w+)(?:-start)?\(", compiled.as_text())
    assert set(collectives) == {"all-reduce"}
    for ours, theirs in zip(
        jax.tree.leaves(eight, is_leaf=lambda x: isinstance(x, dict)),
        jax.tree.leaves(one, is_leaf=lambda x: isinstance(x, dict)),
        strict=True,
    ):
        assert relative(ours, theirs) < 1e-5


@pytest.mark.run
def test_devices_float64():
    """In float64, where rounding cannot hide it, nothing depends on the number of devices."""
    with jax.enable_x64(True):
        network = build(norm=SCOPES["given"][0], dtype="float64")
        params, stats = jax.tree.map(np.float64, network.init(0, IMAGE))
        one = gradient(network, params, stats, views(np.float64), IDS)
        with jax.set_mesh(sharding.make_mesh()):
            rows = jax.device_put((views(np.float64), IDS), P(sharding.AXIS))
            eight = gradient(network, *jax.device_put((params, stats), P()), *rows)
        assert all(x.dtype == np.float64 for x in jax.tree.leaves(one))
    assert relative(eight, one) < 1e-12


def test_rooms_and_shapes():
    network = build()
    params, stats = network.init(0, IMAGE)
    assert set(params) == set(stats) == {"encoder", "projector", "predictor", "probe"}
    assert stats["probe"] == {}
    assert all(type(x) is np.ndarray and x.dtype == np.float32 for x in jax.tree.leaves((params, stats)))
    (_, (outputs, new)), _ = gradient(network, params, stats, views(), None)
    shapes = [y.shape for y in (outputs.features, outputs.projection, outputs.prediction, outputs.logits)]
    assert shapes == [(B, W, 32), (B, W, 16), (B, W, 16), (B, W, 5)]
    assert jax.tree.structure(new) == jax.tree.structure(stats)
    assert all(
        np.abs(a - b).max() > 0 for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(stats), strict=True)
    )
    assert network.width(IMAGE) == 16


def test_a_bare_encoder():
    """No projector, predictor or probe: one array three times, and logits of width 0."""
    network = build(projector={"layers": 0}, predictor={}, classes=0)
    params, stats = network.init(0, IMAGE)
    assert params["projector"] == params["predictor"] == params["probe"] == {}
    outputs, new = native.jit(functools.partial(network.apply, train=False))(params, stats, views())
    assert outputs.logits.shape == (B, W, 0)
    np.testing.assert_array_equal(outputs.features, outputs.projection)
    np.testing.assert_array_equal(outputs.features, outputs.prediction)
    jax.tree.map(np.testing.assert_array_equal, new, stats)
    assert network.width(IMAGE) == 32
    assert list(network.encode(params, stats, views()[:, 0])) == ["pooled"]


@pytest.mark.parametrize("name", ["pair", "baseline"])
def test_a_second_critic_is_a_perceptron_on_what_is_compared(name):
    network = build(critic={"name": name, "hidden": 8})
    params, stats = network.init(0, IMAGE)
    assert network.describe(IMAGE)[1]["critic"] == {"pair": 32, "baseline": 16}[name] * 8 + 8 + 8 + 1
    assert {k: v for k, v in params.items() if k != "critic"}.keys() == build().init(0, IMAGE)[0].keys()
    assert stats["critic"] == {} and build().critic(params, None, None, None) is None
    query, key = np.random.RandomState(1).randn(2, B, W, 16).astype(np.float32)
    score = np.sum(query * key, axis=-1)
    first, second = params["critic"]["perceptron"].values()
    seen = np.concatenate([query, key], axis=-1) if name == "pair" else query
    expected = (np.maximum(seen @ first["kernel"], 0) @ second["kernel"])[..., 0]
    expected = expected - (score if name == "baseline" else 0)
    np.testing.assert_allclose(network.critic(params, query, key, score), expected, rtol=1e-4, atol=1e-4)


class OfTheScore(nn.Module):
    @nn.compact
    def __call__(self, query, key, score):
        return nn.Dense(1)(score[..., None])[..., 0]


def of_the_score(dtype):
    return OfTheScore()


def test_a_second_critic_of_ones_own():
    network = build(critic={"name": f"{__name__}:of_the_score"})
    params, _ = network.init(0, IMAGE)
    z, score = np.zeros((B, W, 16), np.float32), np.random.RandomState(1).randn(B, W).astype(np.float32)
    kernel = params["critic"]["Dense_0"]["kernel"].item()
    np.testing.assert_allclose(network.critic(params, z, z, score), score * kernel, rtol=1e-6)


def test_encode_is_apply_in_evaluation():
    network = build(projector={"layers": 3, "hidden": 24, "out": 16})
    params, stats = network.init(0, IMAGE)
    stats = jax.tree.map(lambda x: x + np.float32(0.1), stats)
    layers = native.jit(network.encode)(params, stats, views()[:, 1])
    outputs, _ = native.jit(functools.partial(network.apply, train=False))(params, stats, views())
    assert {k: v.shape for k, v in layers.items()} == {
        "pooled": (B, 32),
        "projection_1": (B, 24),
        "projection_2": (B, 24),
        "projection_3": (B, 16),
    }
    np.testing.assert_allclose(layers["pooled"], outputs.features[:, 1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layers["projection_3"], outputs.projection[:, 1], rtol=1e-4, atol=1e-5)
    assert (layers["projection_2"] >= 0).all() and (layers["projection_3"] < 0).any()


@pytest.mark.parametrize("through", [False, True])
def test_the_probe_stops_its_gradient_unless_asked(through):
    network = build(probe_gradient=through)
    params, stats = network.init(0, IMAGE)
    loss = lambda params: network.apply(params, stats, views(), train=False)[0].logits.std()  # noqa: E731
    slopes = native.jit(jax.grad(loss))(params)
    assert np.abs(slopes["probe"]["kernel"]).max() > 0
    assert any(np.abs(x).max() > 0 for x in jax.tree.leaves(slopes["encoder"])) == through
    assert all((x == 0).all() for x in jax.tree.leaves(slopes["projector"]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {},
            [
                "dense1/kernel 32x32",
                "dense2/kernel 32x128",
                "norm1/bias 32",
                "norm1/scale 32",
                "norm2/scale 128",
            ],
        ),
        (
            {"norm": "none", "out": 9},
            ["dense1/bias 32", "dense1/kernel 32x32", "dense2/bias 9", "dense2/kernel 32x9"],
        ),
        (
            {"norm": "hidden", "hidden": 7, "out": 0},
            ["dense1/kernel 32x7", "dense2/bias 32", "dense2/kernel 7x32", "norm1/bias 7", "norm1/scale 7"],
        ),
        (
            {"norm": "all_with_bias", "layers": 1, "out": 4},
            ["dense1/kernel 32x4", "norm1/bias 4", "norm1/scale 4"],
        ),
        (
            {"norm": "all_without_scale", "hidden": 5, "out": 4},
            ["dense1/kernel 32x5", "dense2/kernel 5x4", "norm1/bias 5", "norm1/scale 5"],
        ),
        ({"norm": "none", "layers": 1}, ["dense1/bias 128", "dense1/kernel 32x128"]),
        (
            {"norm": "none", "layers": 9, "widths": (8, 4)},
            ["dense1/bias 8", "dense1/kernel 32x8", "dense2/bias 4", "dense2/kernel 8x4"],
        ),
        ({"layers": 0}, []),
    ],
)
def test_projectors(options, expected):
    rows, totals = build(projector=options).describe(IMAGE)
    found = [
        f"{path} {'x'.join(map(str, shape))}" for module, path, shape, _ in rows if module == "projector"
    ]
    assert found == expected
    assert totals["projector"] == sum(math.prod(map(int, line.split()[1].split("x"))) for line in expected)


def test_describe_is_in_order():
    rows, totals = build(encoder={"depth": 101, "width": 1 / 16}).describe(IMAGE)
    blocks = list(dict.fromkeys(path.split("/")[0] for module, path, *_ in rows if module == "encoder"))
    assert blocks[:3] == ["stem_conv", "stem_norm", "group1_block0"]
    assert blocks[2:] == [f"group{g}_block{b}" for g, n in enumerate((3, 4, 23, 3), 1) for b in range(n)]
    assert sum(totals.values()) == sum(size for *_, size in rows)


def test_initial_values():
    network = build(encoder={"depth": 18, "width": 0.25}, projector={"norm": "none", "out": 64})
    params, stats = network.init(3, IMAGE)
    kernel = params["encoder"]["group4_block1"]["conv1"]["kernel"]  # 3x3x128x128
    assert abs(kernel.std() * np.sqrt(9 * 128) - 1) < 0.01 and abs(kernel.mean()) < 1e-3
    assert abs(params["projector"]["dense1"]["kernel"].std() * np.sqrt(128) - 1) < 0.03
    assert abs(params["probe"]["kernel"].std() / 0.01 - 1) < 0.1
    assert (params["probe"]["bias"] == 0).all() and (params["projector"]["dense1"]["bias"] == 0).all()
    for name, block in params["encoder"].items():
        if name.startswith("group"):
            assert (block["norm1"]["scale"] == 1).all() and (block["norm2"]["scale"] == 0).all()
            assert "shortcut_norm" not in block or (block["shortcut_norm"]["scale"] == 1).all()
    statistics = stats["encoder"]["stem_norm"]
    assert (statistics["mean"] == 0).all() and (statistics["var"] == 1).all()


def test_zero_init_of_bottlenecks_and_without():
    scales = lambda **o: {  # noqa: E731
        name: float(block[name]["scale"].max())
        for block in [build(encoder={"width": 1 / 16, **o}).init(0, IMAGE)[0]["encoder"]["group2_block1"]]
        for name in block
        if "norm" in name
    }
    assert scales(depth=50) == {"norm1": 1, "norm2": 1, "norm3": 0}
    assert scales(depth=18, zero_init=False) == {"norm1": 1, "norm2": 1}


def test_initialisation_is_a_function_of_seed_and_path():
    small, large = build(), build(classes=7, predictor={})
    a, b, c = small.init(1, IMAGE)[0], large.init(1, IMAGE)[0], small.init(2, IMAGE)[0]
    jax.tree.map(np.testing.assert_array_equal, a["encoder"], b["encoder"])
    kernels = lambda tree: [x for x in jax.tree.leaves(tree) if x.ndim > 1]  # noqa: E731
    assert all((x != y).all() for x, y in zip(kernels(a), kernels(c), strict=True))
    firsts = [x.ravel()[0] / x.std() for x in kernels(a)]
    assert len(np.unique(firsts)) == len(firsts)
    # Written down from this code: a change here changes what every seed means.
    first = a["encoder"]["stem_conv"]["kernel"].ravel()[:3]
    np.testing.assert_allclose(first, [0.26527518, 0.03890289, 0.08063137], rtol=1e-6)


def test_initialisation_is_quick():
    network = build(encoder={"depth": 18, "width": 0.25})
    network.init(0, (32, 32, 3))
    start = time.process_time()
    network.init(1, (32, 32, 3))
    assert time.process_time() - start < 0.1


def test_equal_sections_are_one_network():
    """So that a function compiled for the one serves the other."""
    assert build() is not build(classes=6)
    assert build().apply is build().apply


@pytest.mark.run
def test_bfloat16():
    """Convolutions and linear layers alone are bfloat16; what they feed stays float32, near to float32's."""
    exact, half = build(), build(dtype="bfloat16")
    params, stats = exact.init(0, IMAGE)
    (_, (outputs, new)), (slopes, _) = gradient(half, params, stats, views(), None)
    assert all(x.dtype == np.float32 for x in jax.tree.leaves((outputs, new, slopes)))
    (_, (expected, statistics)), _ = gradient(exact, params, stats, views(), None)
    assert 1e-5 < relative(outputs.features, expected.features) < 0.05
    assert relative(new["encoder"], statistics["encoder"]) < 0.02
    text = str(jax.make_jaxpr(functools.partial(half.apply, train=True))(params, stats, views()))
    assert set(re.findall(r"(\w+)\[[\d,]*\] = conv_general_dilated", text)) == {"bf16"}
    # Projections are not multiples of bfloat16's spacing: linear layers return their sums unrounded.
    plain = build(dtype="bfloat16", projector={"norm": "none"}, norm={})
    projected = plain.encode(*plain.init(0, IMAGE), views()[:, 0])["projection_2"]
    assert projected.dtype == np.float32 and (projected.astype(jnp.bfloat16) != projected).mean() > 0.5


def test_one_view_at_a_time():
    """Per view, the online network on view 0 and the target on view 1 see what both saw together."""
    network = build(norm={"scope": "per_view"})
    params, stats = network.init(0, IMAGE)
    call = native.jit(functools.partial(network.apply, train=True))
    both, _ = call(params, stats, views())
    for view in (0, 1):
        alone, _ = call(params, stats, views()[:, view : view + 1])
        assert relative(alone.features[:, 0], both.features[:, view]) < 1e-5


def test_torchvision_names_round_trip():
    params, stats = build(encoder={"depth": 50, "width": 1 / 16}).init(0, IMAGE)
    state = torchvision_names.to_torchvision(params["encoder"], stats["encoder"])
    assert state["layer3.0.downsample.0.weight"].shape == (256 // 4, 128 // 4, 1, 1)
    assert state["conv1.weight"].shape == (4, 3, 3, 3) and "layer4.2.bn3.running_var" in state
    tracked = {"bn1.num_batches_tracked": np.int64(3), "fc.weight": np.zeros((10, 128))}
    back = torchvision_names.from_torchvision(state | tracked)
    jax.tree.map(np.testing.assert_array_equal, back, (params["encoder"], stats["encoder"]))
    with pytest.raises(ValueError, match="'layer9.conv.weight' is not the name"):
        torchvision_names.from_torchvision({"layer9.conv.weight": np.zeros((1, 1, 1, 1))})


@pytest.mark.parametrize(
    ("sections", "match"),
    [
        ({"encoder": {"depth": 20}}, "encoder.depth is 20; it must be one of 18, 34, 50, 101, 152"),
        ({"encoder": {"width": 0.01}}, "encoder.width is 0.01; it must be at least 0.015625"),
        ({"encoder": {"stem": "mnist"}}, "encoder.stem is 'mnist'; it must be one of cifar, imagenet"),
        ({"encoder": {"variant": "v2"}}, "encoder.variant is 'v2'"),
        (
            {"encoder": {"kernel_init": "he"}},
            "encoder.kernel_init is 'he'; it must be one of fan_in, fan_out",
        ),
        ({"encoder": {"name": "resnt"}}, "encoder.name is 'resnt', which is unknown. Did you mean 'resnet'?"),
        (
            {"encoder": {"name": "ResNet-50"}},
            "encoder.name is 'ResNet-50', which is unknown. Set encoder.depth=50.",
        ),
        ({"encoder": {"name": "vit", "dim": 30}}, "encoder.dim is 30; it must be a multiple of 4"),
        ({"encoder": {"name": "vit", "heads": 0}}, "encoder.heads is 0; it must be at least 1"),
        ({"projector": {"layers": -1}}, "projector.layers is -1"),
        ({"projector": {"norm": "some"}}, "projector.norm is 'some'; it must be one of all, all_with_bias"),
        ({"projector": {"hidden": -5}}, "projector.hidden is -5"),
        ({"predictor": {"layers": -1}}, "predictor.layers is -1"),
        ({"predictor": {"widths": (4, -4)}}, "predictor.widths is (4, -4); it must be"),
        ({"classes": -1}, "classes is -1"),
        ({"critic": {"name": "pairs"}}, "critic.name is 'pairs', which is unknown. Did you mean 'pair'"),
        ({"critic": {"name": "pair", "hidden": 0}}, "critic.hidden is 0; it must be at least 1"),
        ({"critic": {"name": "none", "hidden": 8}}, "critic.hidden is not an option of none"),
        ({"critic": {"name": "numpy:shape"}}, "returned a tuple; it must return a Flax linen module"),
        ({"dtype": "float16"}, "dtype is 'float16'; it must be one of float32, bfloat16, float64"),
        ({"dtype": "float64"}, "needs JAX_ENABLE_X64"),
    ],
)
def test_bad_options(sections, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        build(**sections)


def test_bad_inputs():
    with pytest.raises(ValueError, match="encoder.dept is not an option of resnet.*Did you mean 'depth'"):
        build(encoder={"dept": 18})
    network = build(encoder={"stem": "imagenet", "width": 1 / 16})
    with pytest.raises(ValueError, match="28 x 28 pixels, too small for encoder.stem='imagenet'.* 32 x 32"):
        network.init(0, (28, 28, 1))
    with pytest.raises(ValueError, match="7 x 9 pixels, too small for encoder.stem='cifar'.* 8 x 8"):
        build().init(0, (7, 9, 3))
    network = build(norm={"scope": "groups", "groups": 3})
    params, stats = network.init(0, IMAGE)
    with pytest.raises(ValueError, match="norm.groups is 3; it must divide the batch of 16 examples"):
        network.apply(params, stats, views(), train=True)
    with pytest.raises(ValueError, match="this encoder reads images, float .n, h, w, c., not uint8"):
        build().apply(params, stats, views().astype(np.uint8), train=True)
    with pytest.raises(ValueError, match="this encoder reads images, .* not float32"):
        network.encode(params, stats, views())
