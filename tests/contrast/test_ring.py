"""Candidates that go round the devices: one result, and memory that does not grow with devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import sampled

from contrastive_jax import contrastive_loss, sharding, sigmoid_loss

ROWS, WIDTH = 32, 5
IDS = np.arange(ROWS) % 11
plain = functools.partial(contrastive_loss, differentiate_temperature=True)
LOSSES = {
    "clip": functools.partial(plain, loss="info_nce", candidates="other_view"),
    "one way": functools.partial(plain, loss="dcl", candidates="other_view", directions="one_way"),
    "both views": functools.partial(plain, loss="flat_nce"),
    "two scales": functools.partial(plain, loss="dual_temperature"),
    "out": functools.partial(plain, loss="info_nce", positives=IDS),
    "in": functools.partial(
        plain, loss="eqco", alpha=64.0, positives=IDS, summation="in", candidates="other_view"
    ),
    "below 0": functools.partial(plain, loss="hoelder_flat_nce", gamma=-2.0, positives=IDS),
    "groups": functools.partial(plain, loss="info_nce", group=np.zeros(ROWS, int)),
    "sigmoid": lambda a, b, temperature, engine: sigmoid_loss(a, b, temperature, -3.0, engine=engine),
    "sigmoid, several": lambda a, b, temperature, engine: sigmoid_loss(
        a, b, temperature, -3.0, positives=IDS, engine=engine
    ),
}


def with_gradients(loss, engine):
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(a, b, tau):
        values, pull = jax.vjp(lambda a, b, tau: loss(a, b, temperature=tau, engine=engine), a, b, tau)
        return values, pull(jnp.full_like(values, 1 / values.size))

    return run


@pytest.mark.parametrize("name", sampled(LOSSES, 1))
def test_ring_on_eight_devices_is_dense_on_one(name):
    with jax.enable_x64(True):
        a, b = jnp.asarray(np.random.default_rng(0).normal(size=(2, ROWS, WIDTH)))
        one = jax.device_get(with_gradients(LOSSES[name], "dense")(a, b, 0.3))
        alone = with_gradients(LOSSES[name], "ring")(a, b, 0.3)
        mesh = sharding.make_mesh()
        with jax.set_mesh(mesh):
            a, b = (jax.device_put(x, sharding.named(mesh, sharding.ROWS)) for x in (a, b))
            eight = jax.device_get(with_gradients(LOSSES[name], "ring")(a, b, 0.3))
        for found in (alone, eight):
            for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(one), strict=True):
                np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * max(np.abs(y).max(), 1e-3))


@pytest.mark.run
@pytest.mark.parametrize("name", ["clip", "out", "sigmoid"])
def test_memory_does_not_grow_with_devices(name):
    """1,024 rows a device: on 8 devices each holds what it holds on 2, where gathered rows are four times as many."""

    def held(engine, devices):
        rows = 1024 * devices
        loss = LOSSES[name]
        if name == "out":
            loss = functools.partial(plain, loss="info_nce", positives=np.arange(rows) % 1000)
        mesh = sharding.make_mesh(jax.devices()[:devices])
        with jax.set_mesh(mesh):
            shape = jax.ShapeDtypeStruct((rows, 256), "float32", sharding=sharding.named(mesh, sharding.ROWS))
            mean = lambda a, b: loss(a, b, temperature=0.1, engine=engine).mean()  # noqa: E731
            compiled = jax.jit(jax.grad(mean, (0, 1))).lower(shape, shape).compile()
        assert ("collective-permute" in compiled.as_text()) == (engine == "ring")
        return compiled.memory_analysis().temp_size_in_bytes

    assert held("tiled", 8) > 1.6 * held("tiled", 2), "the measure does not see the gathered rows"
    assert held("ring", 8) < 1.1 * held("ring", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(negatives=3, key=jax.random.key(0)), "engine is 'ring'.*does not support negatives=3"),
        (dict(queue=jnp.ones((4, 2))), "engine is 'ring'.*does not support a queue"),
        (dict(loss="relic_kl"), "engine is 'ring'.*does not support 'relic_kl'"),
    ],
)
def test_what_a_ring_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        contrastive_loss(jnp.ones((8, 2)), jnp.ones((8, 2)), engine="ring", **options)
