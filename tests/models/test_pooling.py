"""The maximum of the ImageNet stem is XLA's, and its gradient, which no scatter adds."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import sharding
from contrastive_jax.models.pooling import max_pool


def xla(images, padding):
    return nn.max_pool(images, (3, 3), (2, 2), padding)


def with_gradient(function, padding):
    def run(images, gradient):
        value, pull = jax.vjp(lambda images: function(images, padding), images)
        return value, *pull(gradient)

    return jax.jit(run)


@pytest.mark.parametrize("padding", ["SAME", ((1, 1), (1, 1))], ids=["same", "torchvision"])
@pytest.mark.parametrize("shape", [(8, 8, 8, 3), (8, 9, 7, 2), (8, 5, 6, 1)])
def test_the_maximum_and_its_gradient_are_xlas(shape, padding):
    random = np.random.default_rng(0)
    images = (np.round(2 * random.normal(size=shape)) / 2).astype(np.float32)  # many are equal
    gradient = random.normal(size=xla(images, padding).shape).astype(np.float32)
    wanted = with_gradient(xla, padding)(images, gradient)
    with jax.set_mesh(sharding.make_mesh(jax.devices()[:4])):
        apart = [sharding.shard_batch(jnp.asarray(a)) for a in (images, gradient)]
        found = with_gradient(max_pool, padding)(*apart)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found[0], wanted[0])
