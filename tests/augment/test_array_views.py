"""Views of tables, time series and tokens: what they change, what they leave, and where they come from."""

import jax
import numpy as np
import pytest

from contrastive_jax import augment, sharding
from contrastive_jax.types import Example

TABLE = np.random.default_rng(0).normal(size=(50, 10)).astype(np.float32)
SERIES = np.random.default_rng(1).normal(size=(16, 24, 2)).astype(np.float32)
IDS = np.random.default_rng(2).integers(1, 50, (16, 12)).astype(np.int32)
KEYS = jax.random.split(jax.random.key(0), 16)


def views(preset, examples, **options):
    made = augment.make_views(examples, preset=preset, **options)
    return np.asarray(jax.jit(jax.vmap(made))(KEYS, examples[:16]))


@pytest.mark.parametrize("corruption, count", [(0.6, 6), (0.0, 0), (1.0, 10), (0.39, 3)])
def test_scarf_replaces_a_share_of_the_features_by_those_of_other_rows(corruption, count):
    clean, corrupted = np.moveaxis(views("scarf", TABLE, corruption=corruption), 1, 0)
    np.testing.assert_array_equal(clean, TABLE[:16])
    changed = corrupted != clean
    assert changed.sum(1).max() <= count and changed.sum() >= 0.9 * count * 16  # a row may be its own donor
    for feature in range(10):
        assert set(corrupted[:, feature].tolist()) <= set(TABLE[:, feature].tolist())


def test_scarf_draws_from_the_marginal_of_each_feature():
    """Every training row is a donor as often as any other, of each feature apart: chi-squared of 50 cells."""
    keys = jax.random.split(jax.random.key(1), 4000)
    table = np.tile(np.arange(50, dtype=np.float32)[:, None], (1, 2))
    made = augment.make_views(table, preset="scarf", corruption=1.0)
    drawn = np.asarray(jax.vmap(made, (0, None))(keys, table[0])[:, 1]).astype(int)
    for feature in range(2):
        counts = np.bincount(drawn[:, feature], minlength=50)
        assert np.square(counts - 80).sum() / 80 < 95  # 49 degrees of freedom: p < 1e-4
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.07  # 4 deviations
    few = augment.make_views(table, preset="scarf", corruption=1.0, bank=2)
    assert set(np.asarray(jax.vmap(few, (0, None))(keys[:50], table[3])[:, 1]).reshape(-1).tolist()) == {
        0,
        49,
    }


def test_a_series_without_noise_is_itself_and_each_option_does_what_it_says():
    off = dict(jitter=0.0, scaling=0.0, crop_min=1.0, mask=0.0)
    np.testing.assert_array_equal(views("time_series", SERIES, **off)[:, 1], SERIES)
    both = views("time_series", SERIES, **off | {"jitter": 0.5})
    assert np.std(both[:, 0] - SERIES) == pytest.approx(0.5, rel=0.1) and (both[:, 0] != both[:, 1]).all()
    factor = views("time_series", SERIES, **off | {"scaling": 0.3})[:, 0] / SERIES
    np.testing.assert_allclose(factor, np.broadcast_to(factor[:, :1], factor.shape), rtol=1e-5)
    assert np.std(factor[:, 0]) == pytest.approx(0.3, rel=0.5)
    masked = views("time_series", SERIES, **off | {"mask": 0.25}) == 0
    assert (masked.all(-1) == masked.any(-1)).all() and masked.mean() == pytest.approx(0.25, abs=0.05)
    ramp = np.tile(np.arange(24, dtype=np.float32), (16, 1))
    window = views("time_series", ramp, **off | {"crop_min": 0.5})
    step = np.diff(window, axis=-1)
    np.testing.assert_allclose(
        step, np.broadcast_to(step[..., :1], step.shape), atol=1e-4
    )  # a stretched ramp
    assert 0.5 <= step.min() + 1e-4 and step.max() <= 1.0 and window.min() >= 0 and window.max() <= 23


def test_tokens_are_masked_and_deleted_in_order():
    padded = np.where(np.arange(12) < 9, IDS, 0)
    masked = views("tokens", padded, mask=0.3, mask_id=99, delete=0.0)
    assert (masked[:, :, 9:] == 0).all()  # padding is neither masked nor deleted
    assert np.isin(masked[:, :, :9] == 99, (True, False)).all() and (masked == 99).mean() > 0.1
    assert ((masked == 99) | (masked == padded[:, None])).all()
    shorter = views("tokens", padded, mask=0.0, delete=0.4)
    for row, pair in zip(padded, shorter, strict=True):
        for view in pair:
            left = view[view != 0].tolist()
            assert view[: len(left)].tolist() == left and len(left) <= 9
            rest = iter(row.tolist())
            assert all(token in rest for token in left)  # a subsequence


@pytest.mark.parametrize("preset, examples", [("scarf", TABLE), ("time_series", SERIES), ("tokens", IDS)])
def test_views_of_eight_devices_are_those_of_one(preset, examples):
    one = views(preset, examples)
    with jax.set_mesh(sharding.make_mesh(jax.devices()[:8])) as mesh:
        rows = sharding.named(jax.sharding.get_mesh(), sharding.ROWS)
        made = augment.make_views(examples, preset=preset)
        eight = jax.jit(jax.vmap(made))(jax.device_put(KEYS, rows), jax.device_put(examples[:16], rows))
        assert eight.sharding.spec[0] == sharding.AXIS, mesh
    np.testing.assert_array_equal(one, np.asarray(eight))


@pytest.mark.parametrize(
    "preset, examples, says",
    [
        ("scarf", SERIES, "'scarf', for tables, float32 .F.; these examples are float32 .24, 2."),
        ("scarf", IDS, "'scarf', for tables"),
        ("scarf", None, "'scarf'; it needs training examples"),
        ("scarf", TABLE[:, :1], "augment.corruption is 0.6, which replaces none of 1 features"),
        ("time_series", IDS, "for time series"),
        ("tokens", TABLE, "for token ids"),
    ],
)
def test_examples_of_another_kind_are_refused(preset, examples, says):
    with pytest.raises(ValueError, match=says):
        augment.make_views(examples, preset=preset)


def test_what_the_network_reads():
    assert augment.seen({"preset": "scarf"}, Example((5,), "float32")).shape == (5,)
    assert augment.seen({"preset": "tokens"}, Example((5,), "int32")).dtype == np.int32
    assert augment.seen({"preset": "simclr", "size": 8}, Example((None, None, 3), "uint8")).shape == (8, 8, 3)
    with pytest.raises(ValueError, match="augment.preset is 'simclr', for images, .* float32 .5."):
        augment.seen({"preset": "simclr", "size": 8}, Example((5,), "float32"))


def one_view(examples):
    return lambda key, example: example


def no_function(examples):
    return 3


def test_a_function_of_ones_own_that_returns_no_views_is_a_sentence():
    with pytest.raises(ValueError, match=r"which returned \[10\]; views must be \[2, ...\]"):
        augment.make_views(preset=f"{__name__}:one_view")(KEYS[0], TABLE[0])
    with pytest.raises(ValueError, match="which returned a int; it must return a function"):
        augment.make_views(preset=f"{__name__}:no_function")
    with pytest.raises(ValueError, match="augment.size"):
        augment.make_views(TABLE, preset="scarf", size=8)
    with pytest.raises(ValueError, match="only images can be cropped"):
        augment.make_eval(preset="scarf").cropped(0.5)
