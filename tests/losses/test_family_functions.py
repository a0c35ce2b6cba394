"""Later losses of the contrast: their definitions in float64, identities, saturated and degenerate inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from suite import one_program, sampled

from contrastive_jax import contrastive_loss, losses, ntxent, sigmoid_loss, sincere
from contrastive_jax.contrast import transform
from contrastive_jax.losses.variants import FLAT

contrastive_loss, ntxent, sigmoid_loss, sincere = map(
    one_program, (contrastive_loss, ntxent, sigmoid_loss, sincere)
)

ROWS, WIDTH, TAU = 12, 5, 0.3


def views(rows=ROWS):
    return np.random.default_rng(0).normal(size=(2, rows, WIDTH))


def logits(a, b):
    """Scores over tau [2N, 2N] with -inf for a row itself, and the place of its positive."""
    z = jnp.concatenate([a, b])
    z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    number = jnp.arange(len(z))
    return jnp.where(number[:, None] == number[None], -jnp.inf, z @ z.T / TAU), (number + len(a)) % len(z)


def definition(name, a, b):
    x, place = logits(a, b)
    own = jax.nn.one_hot(place, len(x), dtype=x.dtype)
    positive = jnp.take_along_axis(x, place[:, None], 1)[:, 0]
    negative = jnp.where((own > 0) | (x == -jnp.inf), -jnp.inf, x)
    pos, neg = jnp.exp(positive), jnp.exp(negative).sum(1)
    if name == "ifm":
        pos_moved, neg_moved = jnp.exp(positive - 0.2 / TAU), jnp.exp(negative + 0.2 / TAU).sum(1)
        return -0.5 * (jnp.log(pos / (pos + neg)) + jnp.log(pos_moved / (pos_moved + neg_moved)))
    if name == "rince":
        return -(pos**0.4) / 0.4 + (0.3 * (pos + neg)) ** 0.4 / 0.4
    if name == "alpha_cl":
        weight = jax.lax.stop_gradient(jax.nn.softmax(negative, axis=1))
        some = negative > -jnp.inf
        return jnp.sum(jnp.where(some, weight * (jnp.where(some, x, 0) - positive[:, None]), 0), axis=1)
    finite = jnp.where(x == -jnp.inf, -1e9, x)
    label = 0.8 * own + 0.2 * (x > -jnp.inf) / (len(x) - 1)
    return optax.softmax_cross_entropy(finite, label)


OPTIONS = {
    "ifm": {"epsilon": 0.2},
    "rince": {"q": 0.4, "lam": 0.3},
    "alpha_cl": {},
    "label_smoothing": {"smoothing": 0.2},
}


@pytest.mark.parametrize("engine", sampled(["tiled", "dense"], 1))
@pytest.mark.parametrize("name", OPTIONS)
def test_each_is_its_definition(name, engine):
    with jax.enable_x64(True):
        a, b = map(jnp.asarray, views())
        loss = functools.partial(contrastive_loss, loss=name, temperature=TAU, engine=engine, **OPTIONS[name])
        found, expected = (jax.jit(jax.value_and_grad(lambda a, b, f=f: f(a, b).sum(), (0, 1)))(a, b)
            for f in (loss, functools.partial(definition, name)))  # fmt: skip
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


C = np.linspace(-300.0, 300.0, 25)


def rince_of(c, x, q, lam):
    """By mpmath-free means: logarithms of both powers, float64."""
    log_ratio = np.log(lam) + np.logaddexp(0, c)
    return (np.exp(q * (x + log_ratio)) - np.exp(q * x)) / q


@pytest.mark.parametrize("q", [1e-6, 0.1, 0.5, 1.0])
def test_rince_is_stable_wherever_it_is_in_range(q):
    """c and s+ / tau as far as a temperature of 0.01 brings them, value and gradient in float32."""
    c, x = (v.reshape(-1) for v in np.meshgrid(C, np.linspace(-100, 80, 7)))
    with np.errstate(over="ignore"):
        expected = rince_of(c, x, q, 0.025)
    kept = np.abs(expected) < 1e37  # else float32 has no such loss
    c, x, expected = c[kept], x[kept], expected[kept]
    loss = functools.partial(losses.rince, q=q, lam=0.025)
    value, pull = jax.vjp(lambda c, x: loss(c, x, 1.0), *map(jnp.float32, (c, x)))
    of_c, of_x = pull(jnp.ones_like(value))
    larger = np.exp(q * (x + np.log(0.025) + np.logaddexp(0, c)))
    slope = larger / (1 + np.exp(-np.clip(c, -700, 700)))
    kind = {"rtol": 2e-4, "atol": 1e-36}  # exponents of 80 carry an error of 80 times eps
    if q >= 0.1:  # at 1e-6 the two powers of the float64 reference cancel to nine digits
        np.testing.assert_allclose(value, expected, **kind)
    np.testing.assert_allclose(of_c, slope, **kind)
    np.testing.assert_allclose(of_x, q * np.where(np.isfinite(expected), value, 0), rtol=1e-3, atol=1e-36)


def test_rince_of_small_q_is_info_nce():
    c = jnp.asarray(C, jnp.float32)
    expected = losses.info_nce(c) + np.log(0.025)
    for q, tolerance in ((0.0, 1e-6), (1e-7, 1e-4)):
        np.testing.assert_allclose(losses.rince(c, 0 * c, 1.0, q=q, lam=0.025), expected, rtol=tolerance)


def test_ifm_is_the_mean_of_info_nce_and_eqco():
    c, count = jnp.asarray(C, jnp.float32), jnp.full(C.shape, 20)
    eqco = losses.eqco(c, count, alpha=float(20 * np.exp(0.4 / 0.1)))
    expected = 0.5 * (losses.info_nce(c) + eqco)
    np.testing.assert_allclose(losses.ifm(c, 0.1, epsilon=0.2), expected, rtol=2e-6, atol=1e-30)
    np.testing.assert_array_equal(losses.ifm(c, 0.1, epsilon=0.0), losses.info_nce(c))


def test_alpha_cl_has_the_gradient_of_dcl():
    a, b = map(jnp.float32, views())
    one, other = (
        jax.jit(jax.grad(lambda a, n=n: contrastive_loss(a, b, n, 0.05).sum()))(a)
        for n in ("alpha_cl", "dcl")
    )
    np.testing.assert_array_equal(one, other)


def test_label_smoothing_of_nothing_is_info_nce_and_is_exact_where_that_is_saturated():
    with jax.enable_x64(True):
        a, _ = map(jnp.asarray, views())
        b = a + 1e-3
        exact = jax.jit(
            jax.grad(lambda a: contrastive_loss(a, b, "label_smoothing", 0.01, smoothing=0.1).sum())
        )(a)
    a, b = np.float32(a), np.float32(b)
    found = jax.jit(jax.grad(lambda a: contrastive_loss(a, b, "label_smoothing", 0.01, smoothing=0.1).sum()))(
        a
    )
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    c = jnp.asarray(C, jnp.float32)
    value = losses.label_smoothing(c, c * FLAT, 0 * c, jnp.full(C.shape, 9), 0 * c, 0.1, smoothing=0.0)
    np.testing.assert_array_equal(value, losses.info_nce(c))


# --------------------------------------------------------------------------------------------- of pairs


def sincere_by_definition(z, ids, tau):
    z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    x, number = z @ z.T / tau, np.arange(len(z))
    alike = (ids[:, None] == ids[None]) & (number[:, None] != number[None])
    total = jnp.where(ids[:, None] == ids[None], 0, jnp.exp(x)).sum(1, keepdims=True)
    of_pair = jnp.where(alike, jnp.log1p(total * jnp.exp(-x)), 0)
    some = alike.any(1)
    return (of_pair.sum(1)[some] / alike.sum(1)[some]).mean()


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_sincere_is_its_definition_and_ntxent_where_classes_are_equal(engine):
    z = np.concatenate(views())
    with jax.enable_x64(True):
        for ids in (
            np.arange(24) % 6,
            np.r_[
                np.zeros(9, int),
                np.arange(15) % 4,
            ][:24],
        ):
            found = jax.jit(jax.value_and_grad(lambda z, i=ids: sincere(z, i, TAU, engine=engine)))(
                jnp.asarray(z)
            )
            expected = jax.jit(jax.value_and_grad(lambda z, i=ids: sincere_by_definition(z, i, TAU)))(
                jnp.asarray(z)
            )
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)
        balanced = np.arange(24) % 6
        np.testing.assert_allclose(sincere(z, balanced, TAU), ntxent(z, balanced, TAU), rtol=1e-13)
        assert not np.isclose(sincere(z, ids, TAU), ntxent(z, ids, TAU), rtol=1e-3)


def test_sincere_without_pairs_or_negatives_is_zero():
    z = np.float32(np.concatenate(views()))
    for ids in (np.arange(24), np.zeros(24, int)):
        value, slope = jax.jit(jax.value_and_grad(lambda z, i=ids: sincere(z, i)))(z)
        assert value == 0 and not np.any(slope)


def test_a_relative_bias_is_a_bias_over_tau():
    a, b = views()
    with jax.enable_x64(True):
        found = sigmoid_loss(a, b, 0.05, relative_bias=0.4)
        np.testing.assert_allclose(found, sigmoid_loss(a, b, 0.05, -0.4 / 0.05), rtol=1e-12)

        def slopes(tau, relative):
            return sigmoid_loss(a, b, tau, relative_bias=relative).mean()

        def chained(tau, relative):
            return sigmoid_loss(a, b, tau, -relative / tau).mean()

        for one, other in zip(
            *(jax.jit(jax.grad(f, (0, 1)))(0.2, 0.4) for f in (slopes, chained)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("rince", {"q": 1.5}, "rince.q is 1.5"),
        ("rince", {"lam": 0.0}, "rince.lam is 0.0"),
        ("ifm", {"epsilon": -0.1}, "ifm.epsilon is -0.1"),
        ("label_smoothing", {"smoothing": 2.0}, "label_smoothing.smoothing is 2.0"),
        ("rince", {"positives": np.zeros(ROWS, int)}, "positives"),
        ("alpha_cl", {"positives": np.zeros(ROWS, int)}, "positives"),
        ("label_smoothing", {"margin": lambda count: 0.0 * count}, "margin is not defined for"),
        ("vrns", {"target": 1.5}, "vrns.target is 1.5"),
        ("vrns", {"transform": transform.spectral()}, "transform has no effect on 'vrns'"),
        ("vrns", {"margin": lambda count: 0.0 * count}, "margin has no effect on 'vrns'"),
        ("vrns", {"engine": "ring"}, "engine is 'ring'"),
        ("vrns", {"positives": np.zeros(ROWS, int)}, "positives"),
    ],
)
def test_bad_input_is_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        contrastive_loss(*np.float32(views()), name, 0.1, **options)
    with pytest.raises(ValueError, match="relative_bias"):
        sigmoid_loss(*np.float32(views()), 0.1, -3.0, relative_bias=0.3)


def test_vrns_counts_the_drawn_negatives_at_any_temperature():
    """Examples of one group are no negatives; one that has none is 0 without a gradient; NaN stays."""
    a, b = np.float32(views())
    group = np.where(np.arange(ROWS) < 2, 0, 1)
    options = dict(loss="vrns", target=-0.1, group=group, candidates="other_view", directions="one_way")
    for tau in (0.01, np.linspace(0.1, 0.5, ROWS, dtype=np.float32)):
        found = contrastive_loss(a, b, temperature=tau, **options)
        u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        other = group[:, None] != group[None]
        expected = np.where(other, (u @ v.T + 0.1) ** 2, 0).sum(1) / other.sum(1)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    learnt = functools.partial(contrastive_loss, a, b, differentiate_temperature=True, **options)
    for tau in (0.1, jnp.linspace(0.1, 0.5, ROWS)):
        of_tau = jax.jit(jax.grad(lambda tau: learnt(temperature=tau).mean()))(tau)
        np.testing.assert_allclose(of_tau, 0.0, atol=1e-6)
    lonely = functools.partial(contrastive_loss, **options | {"group": np.zeros(ROWS, int)})
    value, slope = jax.jit(jax.value_and_grad(lambda a: lonely(a, b).sum()))(a)
    assert value == 0 and not np.any(slope)
    assert np.isnan(contrastive_loss(np.full_like(a, np.nan), b, **options)).all()


# ------------------------------------------------------------------------------------------- mean scores


def mean_by_definition(name, a, b):
    """Spectral: the other view's negatives; KCL, gamma 3: the own view's."""
    a, b = (z / jnp.linalg.norm(z, axis=1, keepdims=True) for z in (a, b))
    off = 1 - jnp.eye(ROWS)
    positive = jnp.sum(a * b, axis=1)
    if name == "spectral":
        squares = 0.7 * (a @ b.T) ** 2 * off / (ROWS - 1)
        return jnp.concatenate([squares.sum(1), squares.sum(0)]) - 2 * jnp.tile(positive, 2)

    def kernel(z):
        distance = jnp.sum((z[:, None] - z[None]) ** 2, axis=-1)
        return jnp.sum(jnp.exp(-2.0 * distance) * off, axis=1) / (ROWS - 1)

    aligned = jnp.exp(-2.0 * jnp.sum((a - b) ** 2, axis=1))
    return 3.0 * jnp.concatenate([kernel(a), kernel(b)]) - jnp.tile(aligned, 2)


CONVEX = {
    "kl": lambda u: u * np.log(u),
    "jensen_shannon": lambda u: u * np.log(u) - (u + 1) * np.log((u + 1) / 2),
    "pearson": lambda u: (u - 1) ** 2,
    "hellinger": lambda u: (np.sqrt(u) - 1) ** 2,
    "vincze_le_cam": lambda u: (u - 1) ** 2 / (u + 1),
}


@pytest.mark.parametrize("name", CONVEX)
def test_f_micl_is_a_slope_and_its_conjugate(name):
    """f' by complex steps, and f* at f'(u) as the largest t u' - f(u') over a grid around u."""
    score, t, f = np.linspace(-1.0, 1.0, 9), 0.7, CONVEX[name]
    u = np.exp(-2 * t * (1 - score))
    slope = np.imag(f(u + 1e-30j)) / 1e-30
    grid = u[:, None] * np.exp(np.linspace(-1, 1, 2001))
    conjugate = np.max(slope[:, None] * grid - f(grid), axis=1)
    with jax.enable_x64(True):
        rule = transform.f_micl(divergence=name, t=t)
        np.testing.assert_allclose(rule.positive(jnp.asarray(score), 1.0), slope, rtol=1e-12, atol=1e-12)
        found = rule.negative(jnp.asarray(score), 0.0, 1.0)
        np.testing.assert_allclose(found, conjugate, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["dense", "tiled"])
@pytest.mark.parametrize("name", ["spectral", "kcl"])
def test_means_over_pairs_are_their_definition_at_any_temperature(name, engine):
    options = {
        "spectral": {"transform": transform.spectral(mu=0.7), "candidates": "other_view"},
        "kcl": {"transform": transform.gaussian_kernel(), "candidates": "own_view", "gamma": 3.0},
    }[name]
    with jax.enable_x64(True):
        a, b = map(jnp.asarray, views())
        loss = functools.partial(contrastive_loss, loss="mean_contrast", engine=engine, **options)

        @jax.jit
        def found(a, b, tau):
            of_tau = {"temperature": tau, "differentiate_temperature": True}
            return jax.value_and_grad(
                lambda a, b, tau: loss(a, b, **of_tau | {"temperature": tau}).sum(), (0, 1, 2)
            )(a, b, tau)

        expected = jax.jit(jax.value_and_grad(lambda a, b: mean_by_definition(name, a, b).sum(), (0, 1)))(
            a, b
        )
        for tau in (1.0, 0.13):
            value, (*slopes, of_tau) = found(a, b, tau)
            assert abs(of_tau) < 1e-12 * len(a)
            for x, y in zip((value, *slopes), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)
