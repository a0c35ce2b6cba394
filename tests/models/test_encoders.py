"""Encoders beside the ResNet, and encoders of one's own: values, what is refused, one device equals eight."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from contrastive_jax import models, native, sharding
from contrastive_jax.models import vit

IMAGE = (8, 8, 3)
VIT = {"name": "vit", "patch": 2, "dim": 16, "layers": 2, "heads": 2}


class Normed(nn.Module):
    """A layer with batch norm of its own."""

    @nn.compact
    def __call__(self, images, train):
        y = nn.BatchNorm(use_running_average=not train)(images.reshape(len(images), -1))
        return nn.Dense(8)(y)


def normed(norm, dtype):
    return Normed()


class Layers(nnx.Module):
    """Layers in a list, with batch norm, and dropout if asked for."""

    def __init__(self, rngs, drop):
        self.norm = nnx.BatchNorm(192, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(size, 8, rngs=rngs) for size in (192, 8)])
        self.drop = nnx.Dropout(0.5, rngs=rngs) if drop else None

    def __call__(self, images):
        y = self.norm(images.reshape(len(images), -1))
        for layer in self.layers:
            y = nnx.gelu(layer(y))
        return y if self.drop is None else self.drop(y)


def in_nnx(norm, dtype, *, drop: bool = False):
    return models.from_nnx(lambda rngs: Layers(rngs, drop))


def built_already(norm, dtype):
    return Layers(nnx.Rngs(0), False)


def scoped(norm, dtype):
    class Scoped(nn.Module):
        @nn.compact
        def __call__(self, images, members, train):
            return models.BatchNorm(norm)(images.reshape(len(images), -1), members, train=train)

    return Scoped()


def plain(norm, dtype):
    def init(key, images):
        return {"w": jax.random.normal(key, (images[0].size, 8))}, {}

    return models.Encoder(
        init, lambda params, stats, x, *, train: (x.reshape(len(x), -1) @ params["w"], stats)
    )


def nothing(norm, dtype):
    return 3


def maps(norm, dtype):
    return models.Encoder(lambda key, x: ({}, {}), lambda params, stats, x, *, train: (x, stats))


def listed(norm, dtype):
    return models.Encoder(lambda key, x: ([x], {}), lambda params, stats, x, *, train: (x[:, 0, 0], stats))


def dropped(norm, dtype):
    class Dropped(nn.Module):
        @nn.compact
        def __call__(self, images, train):
            return nn.Dropout(0.5, deterministic=not train)(images[:, 0, 0])

    return Dropped()


class Untold(nn.Module):
    """Batch norm that nobody tells when it trains."""

    @nn.compact
    def __call__(self, images, training=False):
        return nn.BatchNorm(use_running_average=not training)(images[:, 0, 0])


def untold(norm, dtype):
    return Untold()


def numbered(norm, dtype):
    return models.Encoder(
        lambda key, x: ({0: x[0]}, {}), lambda params, stats, x, *, train: (x[:, 0, 0], stats)
    )


def whole(norm, dtype):
    return models.Encoder(
        lambda key, x: ({"w": jnp.zeros(3, jnp.int32)}, {}),
        lambda params, stats, x, *, train: (x[:, 0, 0] + params["w"], stats),
    )


def drawing(norm, dtype):
    """A statistic that is a random key."""
    return models.Encoder(
        lambda key, x: ({}, {"noise": key}), lambda params, stats, x, *, train: (x[:, 0, 0], stats)
    )


def counting(norm, dtype, *, kind: str = "int32"):
    """Statistics of a type of their own, which a step makes whole numbers."""
    return models.Encoder(
        lambda key, x: ({}, {"count": jnp.zeros((), kind)}),
        lambda params, stats, x, *, train: (
            x[:, 0, 0],
            {"count": jnp.asarray(stats["count"] + 1, jnp.int32)},
        ),
    )


def staged(norm, dtype, *, stages: tuple[tuple[int, int], ...] = ((4, 2),), widths: tuple = (4, 8)):
    assert all(isinstance(value, tuple) for value in (stages, *stages, widths))
    return plain(norm, dtype)


class Wide(nn.Module):
    """A field by a name that the package's ResNet has for another thing."""

    features: int

    @nn.compact
    def __call__(self, images):
        return nn.Dense(2 * self.features)(images.mean((1, 2)))


def wide(norm, dtype):
    return Wide(3)


def dotted(norm, dtype):
    return models.Encoder(
        lambda key, x: ({"layer.0": jnp.ones(2), "layer": {"0": jnp.ones(2)}}, {}),
        lambda params, stats, x, *, train: (x[:, 0, 0], stats),
    )


def empty(norm, dtype):
    return models.Encoder(
        lambda key, x: ({"w": jnp.ones((0, 3))}, {}),
        lambda params, stats, x, *, train: (x[:, 0, 0], stats),
    )


class Digits(nnx.Module):
    """Layers by names that are digits, and a list of them."""

    def __init__(self, rngs):
        self.named = nnx.Dict({"10": nnx.Linear(192, 8, rngs=rngs)})
        self.listed = nnx.List([nnx.Linear(8, 8, rngs=rngs)])

    def __call__(self, images):
        return self.listed[0](self.named["10"](images.reshape(len(images), -1)))


@pytest.fixture(scope="module")
def build():
    """A network with an encoder of this module by its name, or with a whole section."""

    def make(encoder, **sections):
        section = {"name": f"test_encoders:{encoder}"} if isinstance(encoder, str) else encoder
        heads = {"projector": {"out": 4}, "predictor": {}, "classes": 3, "norm": {}}
        return models.network(encoder=section, **heads | sections)

    return make


def step(network, params, stats, views):
    """Outputs, statistics and the gradient of a loss, compiled."""

    def loss(params):
        outputs, new = network.apply(params, stats, views, train=True)
        return jnp.sin(3 * outputs.projection).mean() + outputs.logits.mean(), (outputs.features, new)

    return native.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.run
@pytest.mark.parametrize("encoder", [VIT, "normed", "in_nnx", "scoped", "plain"], ids=str)
def test_one_device_equals_eight_and_weights_are_of_the_seed(build, encoder):
    network = build(encoder)
    params, stats = network.init(0, IMAGE)
    assert jax.tree.map(np.shape, network.shapes(IMAGE)) == jax.tree.map(np.shape, (params, stats))
    jax.tree.map(np.testing.assert_array_equal, network.init(0, IMAGE), (params, stats))
    views = np.random.default_rng(0).random((16, 2, *IMAGE), np.float32)
    one = step(network, params, stats, jnp.asarray(views))
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        everywhere = jax.device_put((params, stats), sharding.named(mesh, P()))
        eight = step(network, *everywhere, jax.device_put(views, sharding.named(mesh, P("data"))))
        encoded = network.encode(*everywhere, jax.device_put(views[:, 0], sharding.named(mesh, P("data"))))
    assert eight[0][1][0].shape == (16, 2, network.shapes(IMAGE)[0]["probe"]["kernel"].shape[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), eight, one)
    assert all(np.abs(y).max() > 0 for y in jax.tree.leaves(eight[1]["encoder"])) or encoder == "scoped"
    assert set(encoded) == {"pooled", "projection_1", "projection_2"}
    if encoder in ("normed", "in_nnx", "scoped"):  # statistics of both views together
        (mean,) = (
            y for path, y in jax.tree.leaves_with_path(eight[0][1][1]["encoder"]) if path[-1].key == "mean"
        )
        share = 0.1 if encoder == "scoped" else 0.01
        np.testing.assert_allclose(mean, share * views.reshape(32, -1).mean(0), rtol=1e-4)


def test_a_scope_is_read_or_refused(build):
    groups = {"scope": "groups", "groups": 2}
    build("scoped", norm=groups).init(0, IMAGE)
    build("plain", norm=groups).init(0, IMAGE)
    with pytest.raises(
        ValueError, match="norm.scope is 'groups', which has no effect on the encoder's own batch norm"
    ):
        build("normed", norm=groups).init(0, IMAGE)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("nothing", "returned a int; it must return a contrastive_jax.models.Encoder"),
        (
            "built_already",
            "returned a Layers; it must return a contrastive_jax.models.Encoder (models.from_nnx",
        ),
        (
            {"name": "test_encoders:in_nnx", "drop": True},
            "its variables include RngCount, RngKey; they must be",
        ),
        ("maps", "for 2 images it returns [2, 8, 8, 3]; features must be [n, F]"),
        ("listed", "its arrays are in a list; they must be in nested dictionaries"),
        ("dropped", "encoder.name='test_encoders:dropped': InvalidRngError"),
        ("untold", "it has batch_stats, so its __call__ needs an argument train"),
        ("numbered", "the name of an array, or of a dictionary of arrays, is 0"),
        ("drawing", "its statistic noise is key<fry>; it must be numbers"),
        ("whole", "its parameter w is int32; parameters must be floating"),
        ("dotted", "its arrays layer/0 and layer.0 would have the same path in a checkpoint"),
        ("empty", "its array w is [0, 3]; empty arrays cannot be saved"),
        (
            {"name": "test_encoders:counting", "kind": "float32"},
            "its statistic count is float32[] before and int32[] after a training step",
        ),
        (VIT | {"patch": 3}, "encoder.patch is 3; it must divide the image size, 8 x 8"),
    ],
)
def test_what_is_no_encoder_is_one_sentence(build, encoder, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(encoder).init(0, IMAGE)


def test_statistics_keep_their_type_and_lists_of_lists_are_tuples(build):
    assert build("counting").init(0, IMAGE)[1]["encoder"]["count"].dtype == np.int32
    lists = build({"name": "test_encoders:staged", "stages": [[4, 2], [8, 2]], "widths": [4]})
    assert lists is build({"name": "test_encoders:staged", "stages": ((4, 2), (8, 2)), "widths": (4,)})


def test_a_count_of_steps_goes_through_micro_batches(build):
    network = build("counting", microbatches=2)
    params, stats = network.init(0, IMAGE)
    for steps in (1, 2):
        (_, (_, stats)), _ = step(network, params, stats, jnp.ones((4, 2, *IMAGE)))
        assert stats["encoder"]["count"].dtype == jnp.int32 and stats["encoder"]["count"] == steps


def test_a_field_features_of_a_linen_module_is_its_own(build):
    network = build("wide")
    params, stats = network.init(0, IMAGE)
    assert network.encode(params, stats, jnp.ones((5, *IMAGE)))["pooled"].shape == (5, 6)


def test_names_of_nnx_that_are_digits_stay_names():
    encoder, images = models.from_nnx(Digits), jnp.ones((2, *IMAGE))
    params, stats = encoder.init(jax.random.key(0), images)
    features, _ = encoder.apply(params, stats, images, train=True)
    expected = images.reshape(2, -1)
    for layer in (params["named"]["10"], params["listed"]["0"]):
        expected = expected @ layer["kernel"] + layer["bias"]
    np.testing.assert_allclose(features, expected, rtol=1e-5)


def test_remat_needs_an_argument_of_that_name_and_changes_no_number(build):
    with pytest.raises(
        ValueError, match="train.remat is True; it must be False for encoder.name='test_encoders:plain'"
    ):
        build("plain", remat=True)
    views = jnp.asarray(np.random.default_rng(0).random((4, 2, *IMAGE), np.float32))
    network, again = build(VIT), build(VIT, remat=True)
    params, stats = network.init(1, IMAGE)
    found = [step(n, params, stats, views) for n in (network, again)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *found)


def test_equal_sections_give_the_same_functions(build):
    assert build(VIT).encode is build(dict(VIT)).encode and build("plain").apply is build("plain").apply


def test_vit_positions_tell_patches_apart_and_its_parameters_are_counted(build):
    table = vit.positions(3, 5, 16)
    assert table.shape == (15, 16)
    distances = np.linalg.norm(table[:, None] - table, axis=-1) + 9 * np.eye(15)
    assert distances.min() > 0.1
    d, hidden, patches = 16, 64, 2 * 2 * 3
    block = 4 * (d * d + d) + (d * hidden + hidden) + (hidden * d + d) + 2 * 2 * d
    _, totals = build(VIT).describe(IMAGE)
    assert totals["encoder"] == (patches * d + d) + 2 * block + 2 * d


def test_frozen_patches_are_no_parameter_and_stay_as_they_are(build):
    network = build(VIT | {"frozen_patches": True})
    params, stats = network.init(1, IMAGE)
    kernel = stats["encoder"]["patches"]
    assert "patches" not in params["encoder"] and kernel.shape == (2 * 2 * 3, 16)
    assert np.abs(kernel).max() == pytest.approx((6 / (12 + 16)) ** 0.5, rel=0.05)  # MoCo v3's uniform
    views = jnp.asarray(np.random.default_rng(0).random((4, 2, *IMAGE), np.float32))
    _, after = jax.jit(functools.partial(network.apply, train=True))(params, stats, views)
    np.testing.assert_array_equal(after["encoder"]["patches"], kernel)
    pooled = jax.jit(network.encode)(params, stats, views[:, 0])["pooled"]
    assert np.ptp(pooled, axis=0).max() > 0.1


def test_kernel_inits_have_their_variance(build):
    for name, factor in (("fan_in", 1 / (9 * 16)), ("fan_out", 2 / (9 * 32))):
        network = build({"depth": 18, "width": 0.25, "kernel_init": name})
        kernel = network.init(0, IMAGE)[0]["encoder"]["group2_block0"]["conv1"]["kernel"]
        assert kernel.shape == (3, 3, 16, 32) and np.var(kernel) == pytest.approx(factor, rel=0.06)
