"""Micro-batches: the full batch's gradient with a part for a norm group, on one device and on four."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import models, native, sharding

PARTS, BATCH = 4, 16


def network(scope="per_view", groups=1, **options):
    return models.network(
        encoder={"depth": 18, "width": 1 / 8},
        projector={"layers": 2, "out": 8},
        predictor={},
        classes=3,
        norm={"scope": scope, "groups": groups},
        dtype="float64",
        **options,
    )


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def gradient(net, mesh=None, **options):
    """Loss over all embeddings, new statistics, gradient; and the compiled program."""
    return _gradient(net, mesh, tuple(options.items()))


@functools.cache  # equal options give the same network: a program is compiled once
def _gradient(net, mesh, options):
    options = {name: jnp.array(value) for name, value in options}
    params, stats = jax.tree.map(lambda x: np.asarray(x, np.float64), net.init(0, (8, 8, 3)))
    views = np.asarray(jax.random.normal(jax.random.key(0), (BATCH, 2, 8, 8, 3), jnp.float64))
    if mesh is not None:
        params, stats = jax.device_put((params, stats), sharding.named(mesh, sharding.REPLICATED))
        views = jax.device_put(views, sharding.named(mesh, sharding.ROWS))

    def loss(params, stats, views):
        outputs, new = net.apply(params, stats, views, train=True, **options)
        z = sharding.replicate(outputs.projection).reshape(-1, 8)
        z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
        return jnp.sum(jax.nn.logsumexp(z @ z.T / 0.1, axis=1)) + jnp.sum(outputs.logits**2), new

    program = native.jit(jax.value_and_grad(loss, has_aux=True)).lower(params, stats, views).compile()
    return jax.device_get(program(params, stats, views)), program


def assert_equal(ours, theirs):
    scale = max(np.abs(x).max() for x in jax.tree.leaves(theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12 * scale), ours, theirs)


@pytest.mark.run
def test_parts_are_norm_groups_and_nothing_else(x64):
    parts, _ = gradient(network(microbatches=PARTS))
    grouped, _ = gradient(network("groups", PARTS), groups=tuple(range(PARTS)) * (BATCH // PARTS))
    assert_equal(parts, grouped)
    whole, _ = gradient(network())
    assert abs(parts[0][0] - whole[0][0]) > 1e-3  # not the full batch's statistics, and the docs say so


@pytest.mark.run
def test_four_devices_are_one_and_gather_embeddings_only(x64):
    one, _ = gradient(network(microbatches=PARTS))
    mesh = sharding.make_mesh(jax.devices()[:4])
    with jax.set_mesh(mesh):
        four, program = gradient(network(microbatches=PARTS), mesh)
    assert_equal(four, one)
    gathers = [line for line in program.as_text().splitlines() if " all-gather(" in line]
    assert len(gathers) == 1 and f"f64[{BATCH},2,8]" in gathers[0]


@pytest.mark.run
def test_memory_is_a_parts(x64):
    def temporary(**options):
        return gradient(network(**options))[1].memory_analysis().temp_size_in_bytes

    assert temporary(microbatches=PARTS) < 0.8 * temporary()  # the rest is parameters and embeddings


@pytest.mark.run
def test_rematerialisation_changes_nothing(x64):
    assert_equal(gradient(network(remat=True))[0], gradient(network())[0])


def test_what_cannot_be_is_refused(x64):
    with pytest.raises(ValueError, match="train.microbatches is 0; it must be at least 1"):
        network(microbatches=0)
    with pytest.raises(ValueError, match="norm.scope is 'groups'"):
        network("groups", 2, microbatches=2)
