"""The slow network: how much of it stays at each step, whose keys they are, and who shares statistics with whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax.contrast import target
from contrastive_jax.types import Outputs

KEY = jax.random.key(0)


def network(params, stats, views, *, train, groups=None):
    """Keys that are the weights; statistics that count calls; the groups are handed out."""
    z = jnp.broadcast_to(params["w"], (*views.shape[:2], 1))
    return Outputs(z, z, z, groups), {"calls": stats["calls"] + 1}


def after(step, **options):
    rule = target.ema(network, 100, 1, **options)
    state = rule.init({"w": jnp.float32(1.0)}, {"calls": 0})
    return rule.apply(state, None, {"w": jnp.float32(0.0)}, jnp.zeros((4, 2)), step, KEY)


@pytest.mark.parametrize(
    ("schedule", "kept"), [("constant", [0.9, 0.9, 0.9, 0.9]), ("cosine", [0.9, 0.95, 1.0, 1.0])]
)
def test_what_is_kept_of_the_average(schedule, kept):
    """BYOL's decay rises from m to 1 along half a cosine, and stays there."""
    for step, share in zip((0, 50, 100, 200), kept, strict=True):
        keys, state = after(step, decay=0.9, schedule=schedule)
        np.testing.assert_allclose(state["params"]["w"], share, rtol=1e-6)
        np.testing.assert_allclose(keys, share, rtol=1e-6)  # of the average after this step
        assert state["stats"]["calls"] == 1


def test_shuffled_groups_are_equally_large_and_others_at_each_draw():
    seen = []

    def spy(params, stats, views, *, train, groups=None):
        seen.append(groups)
        return network(params, stats, views, train=train)

    rule = target.ema(spy, 100, 4, shuffle=True)
    state = rule.init({"w": jnp.float32(1.0)}, {"calls": 0})
    for key in jax.random.split(KEY, 3):
        rule.apply(state, None, {"w": jnp.float32(0.0)}, jnp.zeros((16, 2)), 0, key)
    assert all((np.bincount(groups) == 4).all() for groups in seen)
    assert len({tuple(groups.tolist()) for groups in seen} | {tuple(np.arange(16) // 4)}) == 4
