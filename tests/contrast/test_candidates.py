"""A queue: what it starts with, who meets it, and which keys of a step a short one holds."""

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.contrast import candidates

KEYS = jnp.arange(8.0).reshape(4, 1, 2)
GROUP = jnp.asarray([-1, 0, 1, 2])  # a data set may have -1


def test_its_first_keys_are_unit_and_of_no_group_and_are_met_before_those_of_the_step():
    queue = candidates.queue(4, 1, size=8)
    state = queue.init(jax.random.key(0), 2)
    np.testing.assert_allclose(np.linalg.norm(state["key"], axis=1), 1.0, rtol=1e-6)
    (pool,), after = queue.apply(state, KEYS, KEYS, GROUP, jax.random.key(1))
    assert not np.isin(pool.group, GROUP).any()
    np.testing.assert_array_equal(pool.key, state["key"])
    np.testing.assert_array_equal(after["key"][:4], KEYS[:, 0])
    np.testing.assert_array_equal(after["group"], [*GROUP, *pool.group[4:]])
    assert after["next"] == 4


def test_a_short_one_holds_some_keys_of_the_step_drawn_anew():
    queue, held = candidates.queue(4, 1, size=2), set()
    for number in range(20):
        _, after = queue.apply(queue.init(jax.random.key(0), 2), KEYS, KEYS, GROUP, jax.random.key(number))
        group = np.asarray(after["group"])
        np.testing.assert_array_equal(after["key"], KEYS[group + 1, 0])
        held |= {tuple(sorted(group.tolist()))}
    assert len(held) == 6  # every pair of four
