"""Transforms of the scores: each is its definition, on every engine, with its gradients; none changes no bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import one_program, sampled

from contrastive_jax import config as configs
from contrastive_jax import contrastive_loss, sharding
from contrastive_jax.contrast import transform as transforms
from contrastive_jax.contrast.scores import Transform
from contrastive_jax.training import recipe

contrastive_loss = one_program(contrastive_loss)

ROWS, WIDTH = 16, 5
IDS = np.arange(ROWS) % 6
# One that reads all that it may.
ODD = Transform(
    lambda s, p, tau: s + 0.3 * s * p * tau, lambda s, tau: s - 0.1 * s * s * tau, lambda s, p, tau: s * p
)
TRANSFORMS = {
    "temperature_free": transforms.temperature_free(),
    "dystress": transforms.dystress(),
    "adnce": transforms.adnce(mu=0.3, sigma=0.5),
    "hardness": transforms.hardness(alpha=0.7),
    "margin_mask": transforms.margin_mask(margin=0.1),
    "odd": ODD,
}


def views(rows=ROWS, dtype=np.float64):
    return np.random.default_rng(0).normal(size=(2, rows, WIDTH)).astype(dtype)


# ------------------------------------------------------------------------------------- the definitions


def scores_by_definition(a, b):
    """Scores [2N, 2N] of both views' rows, and the column of each row's positive."""
    z = jnp.concatenate([a, b])
    z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    return z @ z.T, (jnp.arange(len(z)) + len(a)) % len(z)


def by_definition(name, s, p, tau):
    """Logits of negatives [n, n] and of the positive [n], from scores and the positive's [n, 1]."""
    hold, positive = jax.lax.stop_gradient, p[:, 0] / tau
    if name == "temperature_free":
        return jnp.log((1 + s) / (1 - s)), jnp.log((1 + p) / (1 - p))[:, 0]
    if name == "dystress":

        def own(s):
            return hold(0.1 + 0.1 * (1 + jnp.cos(jnp.pi * (1 + s))) / 2)

        return s / own(s), (p / own(p))[:, 0]
    if name == "hardness":
        return s / tau + 0.7 * hold(s) / tau, positive
    if name == "margin_mask":
        return jnp.where(s > p + 0.1, -jnp.inf, s / tau), positive
    if name == "odd":
        return s / tau + 0.3 * s * p, positive - 0.1 * p[:, 0] ** 2
    return s / tau, positive


def weights_by_definition(name, s, p, counted):
    weight = {"adnce": jnp.exp(-((s - 0.3) ** 2) / 0.5), "odd": jnp.exp(s * p)}.get(name)
    if weight is None:
        return 1.0
    weight = jnp.where(counted, weight, 0)
    return jax.lax.stop_gradient(weight * counted.sum(1, keepdims=True) / weight.sum(1, keepdims=True))


def info_nce_by_definition(name, a, b, tau):
    s, partner = scores_by_definition(a, b)
    n = len(s)
    counted = (jnp.arange(n)[:, None] % len(a)) != (jnp.arange(n)[None] % len(a))
    p = s[jnp.arange(n), partner][:, None]
    s = jnp.where(counted, s, 0.0)  # a score with itself is 1, where artanh has no derivative
    negative, positive = by_definition(name, s, p, tau)
    weight = weights_by_definition(name, s, p, counted)
    kept = counted & (negative > -jnp.inf)
    total = jnp.sum(jnp.where(kept, weight * jnp.exp(jnp.where(kept, negative, 0)), 0), axis=1)
    return jnp.log1p(total * jnp.exp(-positive))


def with_gradients(loss, a, b, tau):
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(a, b, tau):
        values, pull = jax.vjp(loss, a, b, tau)
        return values, pull(sharding.shard_batch(jnp.linspace(0.5, 1.5, values.size)))

    return run(a, b, tau)


def close(found, expected, tolerance):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert np.isfinite(y).all()
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(), 1.0))


@pytest.mark.parametrize("engine", ["dense", *sampled(["tiled", "ring"], 1)])
@pytest.mark.parametrize("name", sampled(TRANSFORMS, 4))
def test_info_nce_is_its_definition(name, engine):
    loss = functools.partial(
        contrastive_loss, transform=TRANSFORMS[name], engine=engine, differentiate_temperature=True
    )
    with jax.enable_x64(True):
        a, b = map(jnp.asarray, views())
        found = with_gradients(lambda a, b, tau: loss(a, b, temperature=tau), a, b, 0.3)
        close(found, with_gradients(functools.partial(info_nce_by_definition, name), a, b, 0.3), 1e-12)


OTHERS = {
    "several": functools.partial(contrastive_loss, loss="info_nce", positives=IDS),
    "in": functools.partial(contrastive_loss, loss="eqco", alpha=9.0, positives=IDS, summation="in"),
    "multiples without 1": functools.partial(contrastive_loss, loss="hard_nce", beta=0.5),
    "other view": functools.partial(contrastive_loss, loss="dcl", candidates="other_view"),
}


@pytest.mark.run
@pytest.mark.parametrize("name", ["odd", "margin_mask"])
@pytest.mark.parametrize("other", OTHERS)
def test_engines_agree_on_one_device_and_eight(name, other):
    def loss(engine):
        options = {"transform": TRANSFORMS[name], "engine": engine, "differentiate_temperature": True}
        return lambda a, b, tau: OTHERS[other](a, b, temperature=tau, **options)

    with jax.enable_x64(True):
        a, b = map(jnp.asarray, views())
        expected = with_gradients(loss("dense"), a, b, 0.3)
        for engine in ("tiled", "ring"):
            close(with_gradients(loss(engine), a, b, 0.3), expected, 1e-12)
        mesh = sharding.make_mesh()
        with jax.set_mesh(mesh):
            a, b = (jax.device_put(x, sharding.named(mesh, sharding.ROWS)) for x in (a, b))
            for engine in ("dense", "tiled", "ring"):
                found = jax.device_get(with_gradients(loss(engine), a, b, 0.3))
                close(found, jax.device_get(expected), 1e-12)


def test_several_positives_are_transformed_too():
    """SupCon of logits f(s): all of one class, and a transform alike for positives and negatives."""
    alike = Transform(lambda s, p, tau: s**3, lambda s, tau: s**3)
    with jax.enable_x64(True):
        a, b = views()
        s = np.asarray(scores_by_definition(a, b)[0]) ** 3 / 0.3
        own, ids = np.eye(2 * ROWS, dtype=bool), np.tile(IDS, 2)
        positive = (ids[:, None] == ids[None]) & ~own
        logsumexp = np.log(np.where(own, 0, np.exp(s)).sum(1, keepdims=True))
        expected = np.where(positive, logsumexp - s, 0).sum(1) / positive.sum(1)
        found = contrastive_loss(jnp.asarray(a), b, "info_nce", 0.3, positives=IDS, transform=alike)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_multiples_below_zero_are_of_transformed_scores():
    """The harmonic mean, gamma = -1, of e^t(s) over the negatives that are not masked."""
    cubed = Transform(lambda s, p, tau: jnp.where(s > 0.5, -jnp.inf, s**3), lambda s, tau: s**3)
    with jax.enable_x64(True):
        a, b = map(jnp.asarray, views())

        def by_hand(a, b):
            s, partner = scores_by_definition(a, b)
            n = len(s)
            counted = (jnp.arange(n)[:, None] % ROWS) != (jnp.arange(n)[None] % ROWS)
            x = (s**3 - s[jnp.arange(n), partner][:, None] ** 3) / 0.3
            return -jnp.log(jnp.where(counted & (s <= 0.5), jnp.exp(-x), 0).sum(1)).sum()

        expected = jax.jit(jax.grad(by_hand, argnums=(0, 1)))(a, b)
        options = {"temperature": 0.3, "transform": cubed, "gamma": -1.0}
        found = jax.jit(
            jax.grad(lambda a, b: contrastive_loss(a, b, "hoelder_flat_nce", **options).sum(), argnums=(0, 1))
        )
        close(found(a, b), expected, 1e-11)


def test_drawn_negatives_are_transformed():
    options = {"negatives": 2 * ROWS - 2, "key": jax.random.key(0)}
    with jax.enable_x64(True):
        a, b = map(jnp.asarray, views())
        for transform in (ODD, TRANSFORMS["margin_mask"]):  # all that there are, drawn
            found, expected = (
                with_gradients(
                    lambda a, b, tau, o=o, t=transform: contrastive_loss(
                        a, b, "info_nce", tau, transform=t, differentiate_temperature=True, **o
                    ),
                    *(a, b, 0.3),
                )
                for o in (options, {})
            )
            close(found, expected, 1e-12)


# ------------------------------------------------------------------------------------------ identities


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_none_is_the_same_program(engine):
    def text(**options):
        loss = functools.partial(contrastive_loss, engine=engine, **options)
        return str(jax.make_jaxpr(jax.grad(lambda a, b: loss(a, b).mean()))(*views(dtype=np.float32)))

    assert text(transform=transforms.none()) == text()


def both(one, other, tolerance=1e-12):
    """Value and gradient of two ways to write one loss."""
    with jax.enable_x64(True):
        a, b = map(jnp.asarray, views())
        options = {"temperature": 0.3}
        found, expected = (
            with_gradients(lambda a, b, tau, o=o: contrastive_loss(a, b, **options, **o), a, b, 0.3)
            for o in (one, other)
        )
        close(found, expected, tolerance)


def test_adnce_of_a_wide_gaussian_is_info_nce():
    both({"transform": transforms.adnce(sigma=1e7)}, {})


def test_hardness_is_the_loss_hardness_weighted():
    both(
        {"transform": transforms.hardness(alpha=0.7)},
        {"loss": "hardness_weighted", "alpha": 0.7},
    )


def test_dystress_of_equal_limits_is_info_nce():
    both({"transform": transforms.dystress(min_tau=0.3, max_tau=0.3)}, {})


def test_a_wide_margin_masks_nothing():
    both({"transform": transforms.margin_mask(margin=1.99)}, {})


def test_the_temperature_free_logit_knows_no_temperature():
    with jax.enable_x64(True):
        a, b = map(jnp.asarray, views())
        free = {"transform": TRANSFORMS["temperature_free"]}
        one, other = (contrastive_loss(a, b, "dcl", tau, **free) for tau in (0.1, 1.7))
        np.testing.assert_allclose(one, other, rtol=1e-12)


# ------------------------------------------------------------------------------------ degenerate inputs


def test_masked_negatives_are_not_counted():
    """EqCo's alpha / K is of the K that are left; a query that loses all has the value 0 and no gradient."""
    a = jnp.eye(4, dtype=jnp.float32)
    b = -a  # positives score -1, all others 0
    gone = transforms.margin_mask(margin=0.1)
    values, pull = jax.vjp(lambda a: contrastive_loss(a, b, "info_nce", 0.1, transform=gone), a)
    assert not np.any(values) and not np.any(pull(jnp.ones(8))[0])
    some = Transform(lambda s, p, tau: jnp.where(s > 0.5, -jnp.inf, s))
    a, b = views(dtype=np.float32)
    s, partner = map(np.asarray, scores_by_definition(a, b))
    counted = (np.arange(2 * ROWS)[:, None] % ROWS != np.arange(2 * ROWS)[None] % ROWS) & (s <= 0.5)
    x = np.where(counted, (s - s[np.arange(2 * ROWS), partner][:, None]) / 0.2, -np.inf)
    c = np.log(np.exp(x).sum(1) * 64.0 / counted.sum(1))
    for engine in ("dense", "tiled"):
        loss = jax.jit(
            functools.partial(contrastive_loss, loss="eqco", alpha=64.0, transform=some, engine=engine)
        )
        found = loss(a, b, temperature=0.2)
        np.testing.assert_allclose(found, np.log1p(np.exp(c)), rtol=2e-5)


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_equal_views_and_repeated_rows_stay_finite(engine):
    """Cosines of 1 and -1, of queries with positives and negatives, and with candidates that are masked."""
    a = jnp.repeat(jnp.asarray(views(dtype=np.float32)[0][:4]), 4, axis=0)
    a = a.at[1].multiply(-1.0)
    for transform in TRANSFORMS.values():
        loss = functools.partial(contrastive_loss, transform=transform, engine=engine)
        results = with_gradients(lambda a, _, tau, f=loss: f(a, a, temperature=tau), a, a, 0.01)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(results))


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_nan_is_not_dropped_as_if_masked(engine):
    a, b = views(dtype=np.float32)
    a[3, 0] = np.nan
    assert np.isnan(contrastive_loss(a, b, transform=ODD, engine=engine)).all()


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_float32_keeps_a_saturated_gradient(engine):
    """Masked scores are the family's own: subtracted before tau divides, so that e^c is right to rounding."""
    a, b = views(dtype=np.float32)
    b = (a + 0.05 * b).astype(np.float32)
    mask = {"transform": transforms.margin_mask(margin=0.1), "temperature": 0.02}
    found = jax.jit(jax.grad(lambda a: contrastive_loss(a, b, engine=engine, **mask).sum()))(a)
    with jax.enable_x64(True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        expected = jax.jit(jax.grad(lambda a: info_nce_by_definition("margin_mask", a, b, 0.02).sum()))(
            jnp.asarray(a)
        )
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


# --------------------------------------------------------------------------------------------- refusals


REFUSED = {
    "macl_w": ({"loss": "macl_w"}, "cosines required by"),
    "relic_kl": ({"loss": "relic_kl", "candidates": "other_view"}, "no effect"),
    "dot": ({"score": "dot"}, "score is 'dot'"),
    "number": ({"transform": 3}, "transform is a int"),
    "arguments": ({"transform": Transform(lambda s: s)}, "negative"),
    "shape": ({"transform": Transform(positive=lambda s, tau: jnp.stack([s, s]))}, "positive"),
    "gamma": (
        {"loss": "hoelder_flat_nce", "gamma": -1.0, "transform": transforms.adnce()},
        "hoelder_flat_nce",
    ),
    "geometric": (
        {"loss": "hoelder_flat_nce", "gamma": 0.0, "transform": transforms.adnce()},
        "weights of mean 1, which are undefined",
    ),
    "mean": ({"loss": "mean_contrast", "transform": transforms.adnce()}, "weights of mean 1"),
    "alpha_cl": (
        {"loss": "alpha_cl", "transform": transforms.adnce()},
        "for which the mean score is undefined",
    ),
    "estimate": (
        {"loss": "info_nce_estimate", "transform": transforms.hardness()},
        "changes negatives alone",
    ),
    "estimate's margin": (
        {"loss": "info_nce_estimate", "transform": None, "margin": lambda k: k},
        "would bias",
    ),
    "estimate's positives": (
        {
            "loss": "info_nce_estimate",
            "transform": None,
            "positives": jnp.arange(ROWS) // 2,
            "summation": "in",
        },
        "an estimate with one positive",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_defined_is_refused(name):
    options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        contrastive_loss(*views(dtype=np.float32), **{"transform": transforms.temperature_free()} | options)


@pytest.mark.parametrize(
    ("rule", "options", "words"),
    [
        ("dystress", {"min_tau": 0.3}, "min_tau is 0.3"),
        ("adnce", {"sigma": 0.0}, "sigma is 0.0"),
        ("margin_mask", {"margin": float("nan")}, "margin is nan"),
        ("hardness", {"alpha": -1.0}, "alpha is -1.0"),
    ],
)
def test_options_out_of_range_are_refused(rule, options, words):
    with pytest.raises(ValueError, match=f"transform.{words}"):
        getattr(transforms, rule)(**options)


def built(*overrides, method="simclr"):
    config = configs.load(f"configs/digits.py:method={method},scale=smoke")
    for name, value in overrides:
        with config.unlocked():
            config.update_from_flattened_dict({name: value})
    settings = configs.plain(configs.complete(config)) | {"name": "t"}
    settings["schedule"] |= {"warmup": 0, "milestones": ()}
    return recipe.build(settings, image_shape=(8, 8, 1), classes=10, total_steps=9, steps_per_epoch=3)


def test_a_config_names_a_transform():
    assert built().compare.transform == Transform()
    assert built(method="temperature_free").compare.transform.cosine_only
    for overrides, words in (
        ([("transform", {"name": "adnce"}), ("loss", {"macl_w": 1.0})], "cosines required by"),
        ([("transform", {"name": "adnce"}), ("loss", {"byol": 1.0})], "no loss uses a contrast"),
        ([("transform", {"name": "dystress"}), ("score", "dot")], "score is 'dot'"),
        (
            [("transform", {"name": "adnce"}), ("temperature", {"name": "kl"})],
            "weights are not in the divergence",
        ),
        ([("transform", {"name": "dystress"}), ("temperature", {"name": "ess"})], "the temperature cancels"),
        (
            [("transform", {"name": "adnce"}), ("loss", {"dcl": 1.0, "alpha_cl": 0.0})],
            "mean score is undefined",
        ),
        ([("transform", {"name": "margin_mask"}), ("loss", {"info_nce_estimate": -1.0})], "negatives alone"),
        (
            [("temperature", {"name": "learnt"}), ("loss", {"byol": 1.0})],
            "no loss depends on the temperature",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            built(*overrides)
