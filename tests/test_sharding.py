"""Devices, and what each does with its own rows."""

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import sharding


def test_what_is_picked_and_its_gradient():
    random = np.random.default_rng(0)
    array = random.normal(size=(3, 2, 7)).astype(np.float32)
    index = np.argsort(random.random((3, 2, 7)), axis=-1)[..., :4]
    weight = random.normal(size=index.shape).astype(np.float32)
    known = index.copy()
    known[1, 0, 1:3] = 7  # twice, and no entry

    def wanted(array):
        picked = jnp.take_along_axis(array, index, axis=-1)
        return jnp.where(known < 7, picked, 0.0)

    found = jax.value_and_grad(lambda a: jnp.sum(weight * sharding.pick(a, known)))(array)
    right = jax.value_and_grad(lambda a: jnp.sum(weight * wanted(a)))(array)
    np.testing.assert_array_equal(sharding.pick(array, known), wanted(array))
    np.testing.assert_array_equal(found[1], right[1])
