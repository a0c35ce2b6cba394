"""Cosines know of no scale: values and gradients over the whole range of each type, and of a zero row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import over

from contrastive_jax import contrastive_loss, losses, ntxent, sigmoid_loss
from contrastive_jax.contrast import diagnostics
from contrastive_jax.evaluators import knn
from contrastive_jax.evaluators.geometry import alignment, resolved_entropy
from contrastive_jax.losses import geometry

LABELS = np.arange(8) // 2


def views(x, y):
    return jnp.stack([x, y], axis=1)


LOSSES = {
    "info_nce": lambda x, y: contrastive_loss(x, y, "info_nce", 0.1).mean(),
    "tiled": lambda x, y: contrastive_loss(x, y, "info_nce", 0.1, engine="tiled").mean(),
    "ntxent": lambda x, y: ntxent(x, LABELS, 0.1),
    "sigmoid": lambda x, y: sigmoid_loss(x, y, 0.1, 0.0).mean(),
    "alignment": lambda x, y: losses.alignment(views(x, y)).mean(),
    "uniformity": lambda x, y: losses.uniformity(views(x, y)).mean(),
    "byol": lambda x, y: losses.byol(views(x, y), views(x, y)).mean(),
    "sliced": lambda x, y: losses.sliced_wasserstein(views(x, y), jax.random.key(0)).mean(),
    "relic": lambda x, y: losses.relic(views(x, y), views(x, y), 0.1).mean(),
}  # fmt: skip
EXPONENTS = {"float32": (-96, -40, 40, 100, 124), "float16": (-3, 10), "bfloat16": (-96, 100, 124)}


@over([(name, "float32") for name in LOSSES] + [("info_nce", "float16"), ("byol", "bfloat16")])
def test_the_whole_range(name, dtype):
    x, y = jax.random.normal(jax.random.key(0), (2, 8, 16)).astype(dtype)
    call = jax.jit(jax.value_and_grad(lambda x, y: LOSSES[name](x, y)))
    value, gradient = call(x, y)
    for exponent in EXPONENTS[dtype]:
        scale = jnp.asarray(2.0**exponent, dtype)
        found, slope = call(x * scale, y)
        np.testing.assert_allclose(found, value, rtol=2e-6, atol=1e-6, err_msg=str(exponent))
        if dtype == "float32" and abs(exponent) <= 100:  # else the gradient itself leaves the range
            expected = np.asarray(gradient)
            np.testing.assert_allclose(slope * scale, expected, rtol=1e-4, atol=1e-6 * abs(expected).max())
        assert np.isfinite(np.asarray(slope, np.float32)).all()


@over(LOSSES)
def test_a_zero_row(name):
    """0, with the gradient 0, the same below the least normal number; others are as they were."""
    x, y = jax.random.normal(jax.random.key(0), (2, 8, 16))
    call = jax.jit(jax.value_and_grad(lambda x, y: LOSSES[name](x, y)))
    for row in (0.0, 1e-40):
        value, gradient = call(x.at[0].set(row), y)
        assert np.isfinite(value) and not np.asarray(gradient)[0].any() and np.isfinite(gradient).all()
        assert np.asarray(gradient)[1:].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_both_libraries(dtype):
    rows = np.random.default_rng(0).normal(size=(5, 7)).astype(dtype)
    limits = np.finfo(dtype)
    for largest in (limits.tiny * 8, 1.0, limits.max / 8):
        scaled = rows * np.asarray(largest, dtype)
        for of in (geometry.unit, geometry.directions):
            found = of(scaled)
            assert found.dtype == dtype
            np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=4 * limits.eps)
    assert np.isnan(geometry.unit(np.array([[np.nan, 1.0]], dtype))).all()
    assert np.isnan(np.asarray(geometry.unit(jnp.array([[jnp.nan, 1.0], [jnp.inf, 1.0]])))).any(axis=1).all()


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_evaluators(scale):
    draw = np.random.default_rng(0)
    train, test = (draw.normal(size=(n, 16)).astype(np.float32) for n in (60, 20))
    labels, scale = np.arange(60) % 3, np.float32(2.0 ** np.round(np.log2(scale)))
    for options in ({}, {"standardize": True}):
        one = knn.evaluate(train, labels, test, np.arange(20) % 3, k=5, temperature=0.1, **options)
        other = knn.evaluate(
            train * scale, labels, test * scale, np.arange(20) % 3, k=5, temperature=0.1, **options
        )
        assert one == other
    rank = jax.jit(diagnostics.spectral_entropy_rank)
    np.testing.assert_allclose(rank(train[:, None] * scale), rank(train[:, None]), rtol=1e-6)
    assert alignment(test * scale, train[:20]) == pytest.approx(alignment(test, train[:20]), rel=1e-12)
    nats = [resolved_entropy(x, None, temperature=0.1, layer="")["nats"] for x in (test, test * scale)]
    assert nats[0] == pytest.approx(nats[1], rel=1e-12)
