"""Soft targets: InfoNCE where the target is one example; both forms of targets, engines and devices agree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import one_program

from contrastive_jax import contrastive_loss, sharding, soft_target_loss
from contrastive_jax.contrast.arguments import row_numbers

contrastive_loss, soft_target_loss = map(one_program, (contrastive_loss, soft_target_loss))

ROWS, WIDTH, TAU = 16, 5, 0.3
RNG = np.random.default_rng(11)
A, B = RNG.normal(size=(2, ROWS, WIDTH))
PARTNER, SHARE = RNG.permutation(ROWS), RNG.uniform(0.5, 1, size=ROWS)
PAIR = np.stack([np.arange(ROWS), PARTNER], axis=1), np.stack([SHARE, 1 - SHARE], axis=1)
MATRIX = np.zeros((ROWS, ROWS))
np.add.at(MATRIX, (np.arange(ROWS)[:, None], PAIR[0]), PAIR[1])


def with_gradients(*arrays, **options):
    """Values and gradients in both views, the shares and tau; ``arrays``: views, targets."""
    static = {name: options.pop(name) for name in list(options)}

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(a, b, places, shares, tau):
        def loss(a, b, shares, tau):
            targets = shares if places is None else (places, shares)
            return soft_target_loss(a, b, targets, tau, differentiate_temperature=True, **static)

        values, pull = jax.vjp(loss, a, b, shares, tau)
        return values, pull(sharding.shard_batch(jnp.linspace(0.5, 1.5, values.size)))

    return jax.device_get(run(*arrays, jnp.asarray(TAU)))


def close(found, expected):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.isfinite(y).all() and np.abs(y).max() > 1e-3
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * max(np.abs(y).max(), 1.0))


def test_pairs_are_a_matrix_and_eight_devices_are_one():
    with jax.enable_x64(True):
        options = dict(directions="both", candidates="both_views", engine="dense")
        expected = with_gradients(A, B, None, MATRIX, **options)
        pairs = with_gradients(A, B, *PAIR, **options)
        close((pairs[0], pairs[1][:2], pairs[1][3]), (expected[0], expected[1][:2], expected[1][3]))
        mesh = sharding.make_mesh()
        with jax.set_mesh(mesh):
            rows = [jax.device_put(x, sharding.named(mesh, sharding.ROWS)) for x in (A, B, MATRIX, *PAIR)]
            close(with_gradients(*rows[:2], None, rows[2], **options), expected)
            close(with_gradients(*rows[:2], *rows[3:], **options), pairs)
            close(with_gradients(*rows[:2], None, rows[2], **options | {"engine": "ring"}), expected)


def test_one_target_is_info_nce_of_that_positive():
    """A partner alone is InfoNCE with its row as the positive: the candidates are all rows of the other view."""
    with jax.enable_x64(True):
        options = dict(candidates="other_view", directions="one_way")
        own = soft_target_loss(A, B, np.eye(ROWS), TAU)
        np.testing.assert_allclose(own, contrastive_loss(A, B, "info_nce", TAU, **options), rtol=1e-12)
        other = soft_target_loss(A, B, (PARTNER[:, None], np.ones((ROWS, 1))), TAU)
        found = contrastive_loss(A, B[PARTNER], "info_nce", TAU, **options)
        np.testing.assert_allclose(other, found, rtol=1e-12)


def test_both_directions_are_each_alone():
    found = soft_target_loss(A, B, MATRIX, TAU, directions="both")
    expected = [soft_target_loss(*views, MATRIX, TAU) for views in ((A, B), (B, A))]
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-5)


def test_float32_is_float64s_at_a_small_temperature():
    """The linear term is a product with a difference of keys, not a difference of two logits of hundreds."""
    b = A + 1e-3 * B
    nearly = (PAIR[0], np.stack([1 - 1e-3 * SHARE, 1e-3 * SHARE], axis=1))
    found = soft_target_loss(*(jnp.float32(x) for x in (A, b)), (nearly[0], jnp.float32(nearly[1])), 0.01)
    with jax.enable_x64(True):
        expected = soft_target_loss(A, b, nearly, 0.01)
    np.testing.assert_allclose(found, expected, rtol=2e-4)


@pytest.mark.parametrize("place", [ROWS, -1])
def test_a_target_outside_of_the_batch_is_nan(place):
    places = PAIR[0].copy()
    places[3, 1] = place
    found = jax.jit(lambda places: soft_target_loss(A, B, (places, jnp.asarray(PAIR[1])), TAU))(places)
    np.testing.assert_array_equal(np.isnan(found), np.arange(ROWS) == 3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("rows", [100, 256, 300])
def test_row_numbers_are_no_ids(dtype, rows):
    """As ids outside of int32 they were renumbered, so that all moved; a narrow type could not be compared."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    places = np.array([0, 99, least, most], dtype)
    expected = [place if 0 <= place < rows else rows for place in places.tolist()]
    assert np.asarray(row_numbers(places, rows)).tolist() == expected
    if places.itemsize <= 4:
        assert np.asarray(jax.jit(lambda p: row_numbers(p, rows))(places)).tolist() == expected


REFUSED = {
    "candidates": (dict(candidates="own_view"), "candidates is 'own_view'"),
    "directions": (dict(directions="two"), "directions is 'two'"),
    "rows": (dict(b=B[1:]), r"b \(15, 5\) must both be"),
    "shape": (dict(targets=MATRIX[:, 1:]), r"targets has shape \(16, 15\)"),
    "none": (dict(targets=None), "targets has shape None"),
    "one array": (dict(targets=(PAIR[0],)), "targets has 1 arrays"),
    "numbers": (dict(targets=PAIR[::-1]), "targets"),
    "pair": (dict(targets=(PARTNER, SHARE)), r"shapes \(16,\) and \(16,\)"),
    "temperature": (dict(temperature=-1.0), "temperature is -1.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_target_is_refused(name):
    options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        soft_target_loss(**dict(a=A, b=B, targets=MATRIX) | options)
