"""State by example: what is read and written, averages u against loops, and rules that do not fit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import config as configs
from contrastive_jax import sharding
from contrastive_jax.contrast import by_example, normalizer, temperature
from contrastive_jax.training import recipe

ROWS, EXAMPLES = 16, 40


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def test_rows_are_written_by_id_and_of_an_example_that_comes_twice_the_later():
    state = {"x": jnp.arange(12.0).reshape(6, 2)}
    ids = jnp.asarray([4, 1, 4, 0, 1])
    before = by_example.read(state, ids)
    np.testing.assert_array_equal(before["x"], state["x"][ids])
    after = {"x": 100.0 + jnp.arange(10.0).reshape(5, 2)}
    found = by_example.write(state, ids, before, after, jnp.ones((5, 2), bool))
    expected = np.array(state["x"])
    expected[[0, 1, 4]] = after["x"][jnp.asarray([3, 4, 2])]
    np.testing.assert_array_equal(found["x"], expected)
    kept = by_example.write(state, ids, before, after, jnp.asarray([[True], [True], [True], [False], [True]]))
    expected[0] = state["x"][0]  # no negatives: as it was
    np.testing.assert_array_equal(kept["x"], expected)


def test_eight_devices_write_as_one():
    rng = np.random.default_rng(0)
    state = {"x": jnp.asarray(rng.normal(size=(EXAMPLES, 1)), jnp.float32)}
    ids = jnp.asarray(rng.integers(0, EXAMPLES, ROWS))

    @jax.jit
    def run(state, ids):
        rows = by_example.read(state, ids)
        return by_example.write(state, ids, rows, jax.tree.map(lambda x: x + 1, rows), ids[:, None] % 3 > 0)

    one = jax.device_get(run(state, ids))
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        lying = jax.device_put(ids, sharding.named(mesh, sharding.ROWS))
        eight = run(jax.device_put(state, sharding.named(mesh, sharding.REPLICATED)), lying)
        assert eight["x"].sharding.is_fully_replicated
        np.testing.assert_array_equal(eight["x"], one["x"])
    assert np.any(one["x"] != state["x"])


@pytest.mark.parametrize("gamma", [0.3, 1.0])
def test_averages_are_those_of_a_loop(gamma, x64):
    """u <- (1 - gamma) u + gamma v from its second visit on; of sogclr the mean over the views that have negatives."""
    values = np.random.default_rng(1).uniform(0.1, 2.0, size=(4, 3, 2))
    some = np.array([[True, True], [True, False], [True, True]])
    sogclr, clip = (rule(gamma=gamma) for rule in (normalizer.sogclr, normalizer.fast_clip))
    shared, own = (by_example.first(rule.init(), rule.per, 3, 2) for rule in (sogclr, clip))
    u, each = np.zeros((3, 1)), np.zeros((3, 2))
    for number, value in enumerate(values):
        weight = gamma if number else 1.0
        mixed, each = (1 - weight) * u + weight * value, (1 - weight) * each + weight * value
        u = np.where(some, mixed, 0).sum(1, keepdims=True) / some.sum(1, keepdims=True)
        log_u, shared = sogclr.update(shared, jnp.log(value), jnp.asarray(some))
        np.testing.assert_allclose(np.exp(log_u), mixed, rtol=1e-12)
        np.testing.assert_allclose(np.exp(shared["log_u"]), u, rtol=1e-12)
        log_u, own = clip.update(own, jnp.log(value), jnp.asarray(some))
        np.testing.assert_allclose(np.exp(log_u), each, rtol=1e-12)
        np.testing.assert_array_equal(own["log_u"], log_u)


@pytest.mark.parametrize("rule", [normalizer.sogclr(gamma=0.1), normalizer.fast_clip(gamma=0.1)])
def test_an_average_of_values_that_overflow_is_finite(rule):
    """e^(s / tau) at tau = 0.005 is 1e87: float32 has no such number, and its logarithm is exact to the last bits."""
    state = by_example.first(rule.init(), rule.per, 1, 2)
    for now in (200.0, -200.0, 199.0):
        log_u, state = rule.update(state, jnp.full((1, 2), now), jnp.ones((1, 2), bool))
        assert np.isfinite(log_u).all() and now - log_u.max() <= -np.log(0.1) + 1e-5
    expected = np.log(0.81 * 1.0 + 0.1 * np.exp(-1.0)) + 200.0
    np.testing.assert_allclose(log_u, expected, rtol=1e-6)


def test_isogclr_is_descent_by_an_average_slope_within_its_clamps():
    rule = temperature.isogclr(
        10, tau=0.2, target=0.5, rate=0.1, momentum=0.25, clip=0.3, min_tau=0.1, max_tau=0.22
    )
    assert (rule.reads, rule.per) == ("kl_uniform", "example")
    state = by_example.first(rule.init(), rule.per, 3, 2)
    divergence = jnp.asarray([[0.5], [0.4], [2.0]])  # at rest, below it, far above it
    state = rule.update(state, 0, divergence)
    np.testing.assert_allclose(state["slope"], [[0.0], [0.075], [-0.225]], atol=1e-6)
    np.testing.assert_allclose(state["tau"], [[0.2], [0.1925], [0.22]], atol=1e-6)
    state = rule.update(state, 1, divergence)
    np.testing.assert_allclose(state["slope"][1], 0.25 * 0.075 + 0.75 * 0.1, atol=1e-6)
    assert temperature.isogclr(10, per="query").per == "query"
    with pytest.raises(
        ValueError, match=r"temperature.tau is 0\.01; it must be from temperature.min_tau=0.05"
    ):
        temperature.isogclr(10, tau=0.01)


def test_fast_clip_v2_is_adam_for_each_view_within_its_clamps(x64):
    """A view's own visits are counted; one without negatives, which is not written, stays at its first."""
    options = dict(tau=0.2, target=0.5, rate=0.02, beta1=0.8, beta2=0.9, clip=0.3, min_tau=0.15, max_tau=0.21)
    rule = temperature.fast_clip_v2(10, **options)
    assert (rule.reads, rule.per) == ("kl_uniform", "query")
    state = by_example.first(rule.init(), rule.per, 2, 2)
    divergence = jnp.asarray([[0.4, 0.6], [0.1, 5.0]])
    slope = np.array([[0.1, -0.1], [0.3, -0.3]])  # clipped
    state = rule.update(state, 0, divergence)
    np.testing.assert_allclose(state["tau"], np.clip(0.2 - 0.02 * np.sign(slope), 0.15, 0.21), atol=1e-7)
    np.testing.assert_allclose(state["slope"], slope, atol=1e-12)
    state = rule.update(state, 1, 0 * divergence)  # a slope of 0.5, clipped
    first, second = 0.8 * slope + 0.2 * 0.3, 0.9 * slope**2 + 0.1 * 0.3**2
    moved = 0.02 * first / (1 - 0.8**2) / np.sqrt(second / (1 - 0.9**2))
    before = np.clip(0.2 - 0.02 * np.sign(slope), 0.15, 0.21)
    np.testing.assert_allclose(state["tau"], np.clip(before - moved, 0.15, 0.21), atol=1e-7)
    with pytest.raises(ValueError, match="temperature.tau is 2.0"):
        temperature.fast_clip_v2(10, tau=2.0)


# ------------------------------------------------------------------------------------------------- refusals


def built(method, examples=100, **sections):
    config = configs.load(f"configs/digits.py:method={method},scale=smoke")
    with config.unlocked():
        for name, value in sections.items():
            config[name] = value
    settings = configs.plain(configs.complete(config))
    settings["schedule"] |= {"warmup": 0, "milestones": ()}
    sizes = dict(image_shape=(8, 8, 1), classes=10, total_steps=9, steps_per_epoch=3)
    return recipe.build(settings, **sizes, **({"example_count": examples} if examples else {}))


def of_no_shape(total_steps):
    return temperature.isogclr(total_steps)._replace(value=lambda state, step, alignment: jnp.ones(()))


def of_no_metric(total_steps):
    return temperature.isogclr(total_steps)._replace(reads="ess")


def of_nobody(total_steps):
    return temperature.isogclr(total_steps)._replace(per="image")


def of_no_rows():
    return normalizer.sogclr()._replace(update=lambda state, now, some: (now[0], state))


def no_rule():
    return 3


OWN = functools.partial("{}:{}".format, __name__)


@pytest.mark.parametrize(
    ("method", "sections", "words"),
    [
        (
            "isogclr",
            {"examples": 0},
            "temperature.name is 'isogclr', which keeps a number for each example",
        ),
        (
            "sogclr",
            {"examples": 0},
            "normalizer.name is 'sogclr', which keeps a number for each example",
        ),
        (
            "sogclr",
            {"normalizer": {"name": "none"}},
            "loss.sogclr needs u .* set critic=pair or baseline, or norm",
        ),
        (
            "sogclr",
            {"critic": {"name": "pair"}},
            "normalizer.name is 'sogclr' and critic.name is 'pair'; both return u",
        ),
        (
            "simclr",
            {"normalizer": {"name": "sogclr"}},
            "normalizer.name is 'sogclr', but no loss uses its u",
        ),
        (
            "sogclr",
            {"normalizer": {"name": "sogclr", "gamma": 0.0}},
            "normalizer.gamma is 0.0; it must be above 0",
        ),
        ("sogclr", {"margin": {"name": "eqco", "alpha": 64.0}}, "margin.name is 'eqco', which would bias"),
        (
            "robust",
            {"temperature": {"name": OWN("of_no_shape")}},
            r"returns an array \(\); it must return an array \(.*1\)",
        ),
        (
            "robust",
            {"temperature": {"name": OWN("of_no_metric")}},
            "whose reads is 'ess'; it must be one of kl_uniform, con",
        ),
        (
            "robust",
            {"temperature": {"name": OWN("of_nobody")}},
            "whose per is 'image'; it must be one of batch, example, q",
        ),
        ("sogclr", {"normalizer": {"name": OWN("of_no_rows")}}, r"returns log u \(2,\)"),
        (
            "sogclr",
            {"normalizer": {"name": OWN("no_rule")}},
            "returned a int; it must return a contrast.normalizer",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(method, sections, words):
    with pytest.raises(ValueError, match=words):
        built(method, **sections)


def test_what_fits_is_built():
    built("isogclr", normalizer={"name": "none"}, loss={"dcl": 1.0})
    built("isogclr", loss={"info_nce": 1.0})  # u is read by the temperature alone
    built("robust", temperature={"name": "isogclr", "per": "query"}, directions="one_way")
    built("fast_clip_v2", directions="one_way")
