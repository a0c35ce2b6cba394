"""A temperature for each query: each value and gradient is that of the one query at its own scalar temperature."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import one_program, sampled

from contrastive_jax import contrastive_loss, sharding
from contrastive_jax.contrast import transform
from contrastive_jax.contrast.margin import eqco

op_by_op, contrastive_loss = contrastive_loss, one_program(contrastive_loss)

ROWS, WIDTH = 16, 3
IDS = np.array([0, 0, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 8, 9, 9, 9])
TAUS = np.array([0.15, 0.3, 0.7])
# Of functions of a query alone: not `relative`, `scaled`, `dclw` and `donsker_varadhan`, which weigh queries together.
LOSSES = {
    "info_nce": dict(),
    "dcl": dict(loss="dcl"),
    "eqco": dict(loss="eqco", alpha=64.0),
    "margin": dict(margin=eqco(alpha=64.0)),
    "flat_nce": dict(loss="flat_nce"),
    "below 0": dict(loss="hoelder_flat_nce", gamma=-2.0),
    "macl_w": dict(loss="macl_w"),
    "two scales": dict(loss="dual_temperature"),
    "decoupled": dict(loss="decoupled_nt_xent", lambda_weight=0.2, self_pair=True),
    "debiased": dict(loss="debiased", tau_plus=0.02),
    "hard_nce": dict(loss="hard_nce", tau_plus=0.02),
    "hardness_weighted": dict(loss="hardness_weighted"),
    "relic_kl": dict(loss="relic_kl", candidates="other_view"),
    "ifm": dict(loss="ifm"),
    "rince": dict(loss="rince"),
    "alpha_cl": dict(loss="alpha_cl"),
    "label_smoothing": dict(loss="label_smoothing"),
    "robust": dict(loss="robust", rho=0.3),
    "one way": dict(candidates="other_view", directions="one_way"),
    "dot": dict(score="dot"),
    "out": dict(positives=IDS),
    "in": dict(positives=IDS, summation="in"),
    "lambda out": dict(loss="decoupled_nt_xent", lambda_weight=0.2, positives=IDS),
    "two scales in": dict(loss="dual_temperature", positives=IDS, summation="in"),
    "groups": dict(group=np.arange(ROWS) // 8 * (np.arange(ROWS) // 8)),
    "temperature_free": dict(transform=transform.temperature_free()),
    "dystress out": dict(transform=transform.dystress(), positives=IDS),
    "adnce": dict(loss="hoelder_flat_nce", gamma=2.0, transform=transform.adnce(mu=0.2, sigma=0.4)),
    "margin_mask": dict(transform=transform.margin_mask(margin=0.05)),
    "kernel below 0": dict(loss="hoelder_flat_nce", gamma=-1.0, transform=transform.gaussian_kernel()),
}
DRAWN = {  # of all scores, in any engine
    "drawn": dict(negatives=4, key=jax.random.key(3)),
    "drawn, weighted": dict(negatives=4, key=jax.random.key(3), transform=transform.adnce()),
}
EVERY = [(name, engine) for name in LOSSES for engine in ("dense", "tiled", "ring")]
EVERY = [x for x in EVERY if x != ("relic_kl", "ring")] + [(name, "auto") for name in DRAWN]


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def views(dtype="float64"):
    a, noise = np.random.default_rng(0).normal(size=(2, ROWS, WIDTH))
    return jnp.asarray(a, dtype), jnp.asarray(a + 0.5 * noise, dtype)


def with_gradients(options, engine):
    """Values, and their pull-back to embeddings and temperature."""
    losing = functools.partial(contrastive_loss, differentiate_temperature=True, engine=engine, **options)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(a, b, tau, weight):
        values, pull = jax.vjp(lambda a, b, tau: losing(a, b, temperature=tau), a, b, tau)
        return values, pull(sharding.shard_batch(weight))

    return run


def by_query(options, engine="dense"):
    """One temperature each; values and gradients one after the other, at scalars. Gradient of each query's tau."""
    a, b = views()
    many = ROWS * (1 if options.get("directions") == "one_way" else 2)
    place = np.random.default_rng(1).integers(0, 3, many)
    weight = np.random.default_rng(2).uniform(0.5, 1.5, many)
    run = with_gradients(options, engine)
    values, slopes, rows = np.zeros(many), np.zeros(many), [np.zeros((ROWS, WIDTH))] * 2
    for number, tau in enumerate(TAUS):
        here = place == number
        found, (of_a, of_b, _) = run(a, b, tau, jnp.asarray(weight * here))
        values[here] = found[here]
        rows = [x + y for x, y in zip(rows, (of_a, of_b), strict=True)]
        for query in np.flatnonzero(here):
            slopes[query] = run(a, b, tau, jnp.asarray(weight * (np.arange(many) == query)))[1][2]
    return TAUS[place], weight, (values, rows[0], rows[1], slopes)


def assert_same(found, expected, tolerance=1e-11):
    values, (of_a, of_b, of_tau) = found
    for x, y in zip((values, of_a, of_b, of_tau), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(), 1.0))


@pytest.mark.parametrize(("name", "engine"), sampled(EVERY, 4))
def test_each_query_is_as_at_its_own_scalar(name, engine, x64):
    options = (LOSSES | DRAWN)[name]
    tau, weight, expected = by_query(options, "auto" if name in DRAWN else "dense")
    assert np.abs(expected[1]).max() > 1e-3
    found = with_gradients(options, engine)(*views(), jnp.asarray(tau), jnp.asarray(weight))
    assert_same(found, expected)


@pytest.mark.parametrize("tau", [0.2, np.full(1025, 0.2, np.float32)], ids=["one", "many"])
def test_the_padding_of_a_tile_has_no_gradient(tau):
    """1,025 queries are two tiles with a row of padding, whose temperature is 0."""
    a, b = np.random.default_rng(0).normal(size=(2, 1025, WIDTH)).astype(np.float32)
    curved = transform.Transform(negative=lambda s, p, tau: s + 0.01 * jnp.tanh(s / tau))
    weight = np.random.default_rng(2).uniform(0.5, 1.5, 2050).astype(np.float32)
    of_engine = [
        with_gradients({"transform": curved}, engine)(a, b, tau, weight) for engine in ("tiled", "dense")
    ]
    found, expected = map(jax.device_get, of_engine)
    assert_same(found, (expected[0], *expected[1]), 1e-5)


@pytest.mark.parametrize(
    ("name", "engine"), sampled([("out", "tiled"), ("adnce", "ring"), ("hard_nce", "dense")], 2)
)
def test_eight_devices_are_one(name, engine, x64):
    tau, weight, expected = by_query(LOSSES[name])
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        a, b, rows = (jax.device_put(x, sharding.named(mesh, sharding.ROWS)) for x in (*views(), tau))
        for given in (jnp.asarray(tau), rows):
            found = with_gradients(LOSSES[name], engine)(a, b, given, jnp.asarray(weight))
            assert_same(jax.device_get(found), expected)


@pytest.mark.parametrize(
    "loss", sampled(["relative", "scaled", "dclw", "info_nce", "mean_contrast", "donsker_varadhan"], 3)
)
def test_equal_temperatures_are_one(loss, x64):
    a, b = views()
    run = with_gradients(dict(loss=loss), "tiled")
    weight = jnp.asarray(np.random.default_rng(2).uniform(0.5, 1.5, 2 * ROWS))
    values, (of_a, of_b, slope) = run(a, b, 0.3, weight)
    for many in (ROWS, 2 * ROWS):  # of an example, of a query
        found = run(a, b, jnp.full(many, 0.3), weight)
        total = np.sum(found[1][2])
        assert found[1][2].shape == (many,)
        assert_same((found[0], (*found[1][:2], total)), (values, of_a, of_b, slope))


def test_a_temperature_of_an_example_is_that_of_both_its_queries(x64):
    a, b = views()
    tau = np.random.default_rng(4).uniform(0.1, 1.0, ROWS)
    losing = functools.partial(op_by_op, a, b, "dcl")
    np.testing.assert_array_equal(losing(tau), losing(np.tile(tau, 2)))
    other = losing(np.concatenate([tau, 2 * tau]))  # first those of a, then those of b
    np.testing.assert_array_equal(other[:ROWS], losing(tau)[:ROWS])
    assert np.all(other[ROWS:] != losing(tau)[ROWS:])


@pytest.mark.parametrize("loss", sampled(["info_nce", "dcl", "flat_nce_plus"], 2))
@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_saturated_queries_are_right_in_float32(loss, engine):
    """Contrasts from -70 to 60 at temperatures from 0.01 on: float64's on the same rows, as near as with one tau."""
    rng = np.random.default_rng(5)
    a = rng.normal(size=(32, 32)).astype(np.float32)
    b = (a + 0.02 * rng.normal(size=a.shape)).astype(np.float32)
    b[::4] = rng.normal(size=b[::4].shape)
    tau = np.geomspace(0.01, 0.05, 64).astype(np.float32)
    run = jax.jit(
        lambda a, b, tau: jax.vjp(lambda a, b: contrastive_loss(a, b, loss, tau, engine=engine), a, b)[1](
            jnp.ones(64, a.dtype)
        )
    )
    for temperature in (tau, np.float32(0.01)):
        with jax.enable_x64(True):
            c = contrastive_loss(np.float64(a), np.float64(b), "dcl", np.float64(temperature))
            exact = run(*(jnp.asarray(x, jnp.float64) for x in (a, b, temperature)))
        assert -80 < c.min() < -40 and c.max() > 20, (c.min(), c.max())
        for x, y in zip(run(a, b, temperature), exact, strict=True):
            error = np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)
            assert error.max() < 5e-5, (loss, temperature, error.max())


def test_the_tiled_engine_holds_no_matrix_of_scores():
    """One more row a query, and no [Q, M]."""
    rows, tau = 4096, jnp.full(2 * 4096, 0.2)
    x = jax.ShapeDtypeStruct((rows, 2), jnp.float32)
    loss = functools.partial(contrastive_loss, engine="tiled", differentiate_temperature=True)
    program = jax.make_jaxpr(jax.grad(lambda a, b, tau: loss(a, b, temperature=tau).mean(), (0, 2)))(
        x, x, tau
    )

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (v.aval.size for v in equation.outvars if hasattr(v.aval, "size"))
            for value in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns")):
                inner = getattr(value, "jaxpr", value)
                yield from sizes(inner) if hasattr(inner, "eqns") else ()

    assert 1024 * 512 <= max(sizes(program.jaxpr)) < rows * rows // 8


def test_a_temperature_that_is_not_positive_is_nan_and_a_wrong_shape_is_refused():
    a, b = views("float32")
    found = contrastive_loss(a, b, "dcl", np.where(np.arange(ROWS) == 3, -0.1, 0.2))
    assert np.isnan(found[3]) and np.isfinite(found[4])
    for wrong in (np.full(3, 0.1), np.full((ROWS, 1), 0.1)):
        with pytest.raises(
            ValueError, match=r"temperature has shape .*; it must be a scalar, \(16,\), one for each"
        ):
            contrastive_loss(a, b, "dcl", wrong)
    with pytest.raises(ValueError, match=r"a scalar, \(16,\), one for each example\."):
        contrastive_loss(a, b, "dcl", np.full(2 * ROWS, 0.1), directions="one_way")
    with pytest.raises(ValueError, match=r"temperature is \[0\.1\]; it must be a positive number, an array"):
        contrastive_loss(a, b, "dcl", [0.1])
