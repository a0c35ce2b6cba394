"""The losses in loops of others: Flax NNX, Equinox, plain JAX; under JAX's transformations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from suite import sampled

from contrastive_jax import contrastive_loss, in_microbatches, ntxent, sharding, sigmoid_loss

ROWS, IN, OUT = 16, 6, 4
IDS = np.arange(ROWS) // 3
LOSSES = {
    "info_nce": lambda a, b: contrastive_loss(a, b, "info_nce", 0.2).mean(),
    "supervised": lambda a, b: contrastive_loss(a, b, "info_nce", 0.2, positives=IDS).mean(),
    "tiled": lambda a, b: contrastive_loss(a, b, "flat_nce", 0.2, engine="tiled").mean(),
    "ntxent": lambda a, b: ntxent(jnp.concatenate([a, b]), jnp.tile(IDS, 2), 0.2, engine="tiled"),
    "sigmoid": lambda a, b: sigmoid_loss(a, b, engine="tiled").mean(),
}
with_loss = pytest.mark.parametrize(
    "loss", sampled([pytest.param(loss, id=name) for name, loss in LOSSES.items()], 2)
)


@pytest.fixture(scope="module")
def data():
    images = jax.random.normal(jax.random.key(0), (2, ROWS, IN))
    return images, jax.random.normal(jax.random.key(1), (IN, OUT))


def plain(weight, images, loss):
    return loss(*(jnp.tanh(images @ weight)))


@functools.cache
def gradient(loss):
    return jax.jit(jax.value_and_grad(plain), static_argnums=2)


def assert_close(ours, expected, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(), 1e-3))


@pytest.mark.run
@with_loss
def test_flax_nnx(data, loss):
    images, weight = data
    model = nnx.Linear(IN, OUT, use_bias=False, rngs=nnx.Rngs(0))
    model.kernel[...] = weight
    value, found = nnx.jit(nnx.value_and_grad(lambda model: loss(*jnp.tanh(model(images)))))(model)
    assert_close((value, found["kernel"][...]), gradient(loss)(weight, images, loss))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    optimizer.update(model, found)
    assert loss(*jnp.tanh(model(images))) != value or loss is LOSSES["tiled"]  # FlatNCE is always 1


@with_loss
def test_equinox(data, loss):
    equinox = pytest.importorskip("equinox")
    images, weight = data
    model = equinox.nn.Linear(IN, OUT, use_bias=False, key=jax.random.key(0))
    model = equinox.tree_at(lambda model: model.weight, model, weight.T)

    @equinox.filter_jit
    @equinox.filter_value_and_grad
    def run(model):
        return loss(*jnp.tanh(jax.vmap(jax.vmap(model))(images)))

    value, found = run(model)
    assert_close((value, found.weight.T), gradient(loss)(weight, images, loss))


@with_loss
def test_checkpoint_changes_nothing(data, loss):
    images, weight = data
    again = jax.jit(
        jax.value_and_grad(lambda weight: jax.checkpoint(plain, static_argnums=2)(weight, images, loss))
    )
    assert_close(again(weight), gradient(loss)(weight, images, loss))


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_own_shard_map_gathers_the_candidates_as_a_queue(data, engine):
    """Inside of shard_map a device has its rows only: the others' come as a queue, by ``all_gather``."""
    images, weight = data
    mesh = jax.make_mesh((8,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(jax.P(), jax.P(None, "devices")), out_specs=jax.P()
    )
    def of_all(weight, images):
        a, b = jnp.tanh(images @ weight)
        rows = len(a)
        own = jax.lax.axis_index("devices") * rows + jnp.arange(rows)
        everyone = jax.lax.all_gather(jnp.concatenate([a, b]), "devices", tiled=True)
        group = jax.lax.all_gather(jnp.concatenate([own, own]), "devices", tiled=True)
        others = dict(candidates="queue", queue=everyone, queue_group=group, group=own)
        values = contrastive_loss(a, b, "info_nce", 0.2, engine=engine, **others)
        return jax.lax.pmean(values.mean(), "devices")

    loss = LOSSES["info_nce"]
    assert_close(jax.jit(jax.value_and_grad(of_all))(weight, images), gradient(loss)(weight, images, loss))


# Micro-batches


def encode(weight, batch):
    return jnp.tanh(
        batch["image"] @ weight + 0.1 * jax.vmap(lambda k: jax.random.normal(k, (OUT,)))(batch["key"])
    )


def with_encoder(weight, images, encode, loss):
    keys = jax.random.split(jax.random.key(2), (2, ROWS))
    return loss(*(encode(weight, {"image": images[v], "key": keys[v]}) for v in (0, 1)))


@with_loss
@pytest.mark.parametrize("parts", sampled([4, 1, ROWS], 1))
def test_micro_batches_have_the_gradient_of_the_whole(data, loss, parts):
    """Gradients of parts alone, summed, are another loss's: their negatives are a part's."""
    images, weight = data
    run = jax.jit(jax.value_and_grad(with_encoder), static_argnums=(2, 3))
    whole = run(weight, images, encode, loss)
    assert_close(run(weight, images, in_microbatches(encode, parts), loss), whole)


@pytest.mark.run
def test_micro_batches_on_eight_devices(data):
    images, weight = data
    run = jax.jit(jax.value_and_grad(with_encoder), static_argnums=(2, 3))
    loss, parts = LOSSES["info_nce"], in_microbatches(encode, 2)
    whole = jax.device_get(run(weight, images, encode, loss))
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        images = jax.device_put(images, jax.P(None, sharding.AXIS))
        keys = jax.device_put(jax.random.split(jax.random.key(2), (2, ROWS)), jax.P(None, sharding.AXIS))

        def of_all(weight, images, keys):
            return loss(*(parts(weight, {"image": images[v], "key": keys[v]}) for v in (0, 1)))

        compiled = jax.jit(jax.value_and_grad(of_all)).lower(weight, images, keys).compile()
        assert_close(jax.device_get(compiled(weight, images, keys)), whole)
        assert "all-to-all" not in compiled.as_text()


@pytest.mark.run
def test_micro_batches_hold_one_part():
    def deep(weights, image):
        for weight in weights:
            image = jnp.tanh(image @ weight)
        return image

    def loss(weights, images, encode):
        return contrastive_loss(
            *(encode(weights, image) for image in images), "info_nce", engine="tiled"
        ).mean()

    shapes = [jax.ShapeDtypeStruct((64, 64), "float32")] * 48, jax.ShapeDtypeStruct((2, 2048, 64), "float32")
    held = [
        jax.jit(jax.grad(loss), static_argnums=2)
        .lower(*shapes, e)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
        for e in (deep, in_microbatches(deep, 16))
    ]
    assert held[1] < held[0] / 3, held


def test_micro_batches_of_nnx(data):
    """The graph is split outside, merged in every part."""
    images, weight = data
    model = nnx.Linear(IN, OUT, use_bias=False, rngs=nnx.Rngs(0))
    model.kernel[...] = weight
    graph, state = nnx.split(model)
    parts = in_microbatches(lambda state, image: jnp.tanh(nnx.merge(graph, state)(image)), 4)
    loss = LOSSES["info_nce"]
    found = jax.jit(jax.value_and_grad(lambda state: loss(*(parts(state, image) for image in images))))(state)
    assert_close(found, gradient(loss)(weight, images, loss))


def test_micro_batches_refuse_what_they_would_lose_or_cannot_cut():
    images = jnp.ones((6, 3))
    model = nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
    parts = in_microbatches(lambda model, image: model(image), 3)
    with pytest.raises(ValueError, match="encode changes its parameters"):
        nnx.jit(lambda model: parts(model, images))(model)
    model.eval()  # running statistics are read, and not changed
    assert nnx.jit(lambda model: parts(model, images))(model).shape == (6, 2)
    with pytest.raises(ValueError, match="encode changes its parameters"):
        in_microbatches(lambda params, image: params.setdefault("new", image), 3)(
            {"weight": jnp.ones(3)}, images
        )
    with pytest.raises(ValueError, match="the parameters contain True, which is not an array"):
        in_microbatches(lambda params, image: image, 3)({"weight": jnp.ones(3), "flag": True}, images)
    with pytest.raises(ValueError, match=r"an array of shape \(3,\) for 2 rows"):
        in_microbatches(lambda params, image: (image, image.sum(0)), 3)(jnp.ones(3), images)
