"""The gradient's signal at fixed weights: the estimate on numbers of known truth, and whose gradient it is."""

import jax
import numpy as np
import pytest

from contrastive_jax.training import run as runs
from contrastive_jax.training.step import make_train_step
from experiments import harness
from experiments.less_can_be_more import figure_4_fixed as fixed

SMOKE = "configs/few_negatives_cifar100.py:method=simclr,k=2,scale=smoke --config.projector.widths=(32,)"


def blocks(mean, count=20_000, n=200):
    """Moments of gradients of many parameters with one mean and variance 1."""
    gradients = np.random.default_rng(0).normal(mean, 1.0, (n // fixed.BLOCK, fixed.BLOCK, count))
    return gradients.sum(1), np.square(gradients).sum(1)


@pytest.mark.parametrize("mean", [0.0, 0.1, 0.5])
def test_the_squared_ratio_has_no_bias(mean):
    sums, squares = blocks(mean)
    spread = (
        np.sqrt(2 * (1 + 2 * 200 * mean**2)) / 200 / np.sqrt(sums.shape[1])
    )  # of one estimate, for normal numbers
    assert abs(fixed.signal(sums.sum(0), squares.sum(0), 200) - mean**2) < 5 * spread


def test_a_ratio_of_two_has_an_error():
    one, other = blocks(0.5, 500), blocks(0.4, 500)
    assert fixed.compared(one, one) == (pytest.approx(1.0), pytest.approx(0.0))
    ratio, error = fixed.compared(one, other)
    assert ratio > 1.3 and 0 < error < 0.2


@pytest.mark.run
def test_the_gradient_is_that_of_the_train_step_and_the_weights_stand_still():
    config = harness.config_of(SMOKE) | {"probe": {"weight": 0.0, "gradient": False}, "evaluators": {}}
    first, second = fixed.gradients(config, None, 2)
    (again,) = fixed.gradients(config, None, 1)
    np.testing.assert_array_equal(first, again)
    assert np.abs(second - first).max() > 0  # other images, at the same weights

    sgd = config | {"optimizer": {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "nesterov": False}}
    sgd["schedule"] = config["schedule"] | {"name": "constant", "learning_rate": 1.0, "warmup": "0 steps"}
    run = runs.prepare(sgd, jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        feed, state = runs.feed_of(run), runs.initial_state(run)
        after, _ = jax.jit(make_train_step(run.recipe, feed.take))(state, feed.feed(0))
    moved = [
        np.asarray(before - now).reshape(-1)
        for name in ("encoder", "projector")
        for before, now in zip(*(jax.tree.leaves(s.params[name]) for s in (state, after)), strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(moved), first, atol=2e-5)
