"""The gradient with respect to the temperature: that of the value, or of the surrogate, and never NaN."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import one_program, sampled

from contrastive_jax import contrastive_loss, macl_temperature

contrastive_loss = one_program(contrastive_loss)

ROWS, WIDTH, TAU = 8, 3, 0.3
IDS = np.array([0, 0, 1, 2, 3, 3, 3, 4])
OWN_VALUE = {  # those whose gradient is the derivative of their value
    "info_nce": dict(loss="info_nce"),
    "dcl": dict(loss="dcl"),
    "eqco": dict(loss="eqco", alpha=64.0),
    "dclw": dict(loss="dclw"),
    "lambda is tau": dict(loss="decoupled_nt_xent"),
    "lambda": dict(loss="decoupled_nt_xent", lambda_weight=0.2),
    "with itself": dict(loss="decoupled_nt_xent", self_pair=True),
    "debiased": dict(loss="debiased", tau_plus=0.02),
    "hard_nce": dict(loss="hard_nce", tau_plus=0.02),
    "donsker_varadhan": dict(loss="donsker_varadhan"),
    "relic_kl": dict(loss="relic_kl"),
    "out": dict(loss="info_nce", positives=IDS),
    "in": dict(loss="info_nce", positives=IDS, summation="in"),
    "decoupled out": dict(loss="decoupled_nt_xent", lambda_weight=0.2, positives=IDS),
    "decoupled in": dict(loss="decoupled_nt_xent", lambda_weight=0.2, positives=IDS, summation="in"),
}
AS = {  # surrogates: the gradient of another loss
    "flat_nce": (dict(loss="flat_nce"), "dcl"),
    "macl": (dict(loss="macl"), "dcl"),
    "flat_nce_plus": (dict(loss="flat_nce_plus"), "info_nce"),
    "flat_nce_plus out": (dict(loss="flat_nce_plus", positives=IDS), "out"),
    "hardness_weighted at 0": (dict(loss="hardness_weighted", alpha=0.0), "info_nce"),
}
losing = functools.partial(contrastive_loss, differentiate_temperature=True)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def views(rows=ROWS, dtype="float64"):
    a, noise = np.random.default_rng(0).normal(size=(2, rows, WIDTH))
    return jnp.asarray(a, dtype), jnp.asarray(a + 0.5 * noise, dtype)


@functools.cache
def slopes(engine):
    """Mean and its derivative in tau of every loss, as one program."""
    losses = OWN_VALUE | {name: options for name, (options, _) in AS.items()}

    def run(a, b, tau):
        return {
            name: jax.jit(
                jax.value_and_grad(
                    lambda tau, o=options: losing(a, b, temperature=tau, engine=engine, **o).mean()
                )
            )(tau)
            for name, options in losses.items()
        }

    return jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})


@pytest.mark.parametrize("engine", sampled(["tiled", "dense"], 1))
def test_finite_differences(x64, engine):
    a, b = views()
    found, step = slopes(engine)(a, b, TAU), 1e-5
    above, below = (slopes(engine)(a, b, TAU + s) for s in (step, -step))
    for name in OWN_VALUE:
        difference = (above[name][0] - below[name][0]) / (2 * step)
        assert abs(difference) > 1e-3, name
        np.testing.assert_allclose(found[name][1], difference, rtol=1e-7, err_msg=name)
    for name, (_, other) in AS.items():
        np.testing.assert_allclose(found[name][1], found[other][1], rtol=1e-10, err_msg=name)


@pytest.mark.run
def test_weighted_surrogates_are_the_weighted_slopes_of_the_contrast(x64):
    """Query by query: dc/dtau times the weight that the documentation names."""
    a, b = views()

    def of_queries(**options):
        return jax.jacobian(lambda tau: losing(a, b, temperature=tau, engine="dense", **options))(TAU)

    dc = of_queries(loss="dcl")
    c_beta = contrastive_loss(a, b, "dcl", TAU * 5.0)
    np.testing.assert_allclose(
        of_queries(loss="dual_temperature", factor=5.0), jax.nn.sigmoid(c_beta) * dc, rtol=1e-10
    )
    u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    positive = jnp.tile(jnp.sum(u * v, axis=1), 2)
    np.testing.assert_allclose(of_queries(loss="macl_w"), (2 - positive) * dc, rtol=1e-10)
    at_gamma = jax.jacobian(lambda tau: losing(a, b, "dcl", tau / 2.0, engine="dense"))(TAU)
    np.testing.assert_allclose(of_queries(loss="hoelder_flat_nce", gamma=2.0), at_gamma / 2.0, rtol=1e-10)

    score = jnp.concatenate([u, v]) @ jnp.concatenate([u, v]).T
    other = np.arange(2 * ROWS) % ROWS != (np.arange(2 * ROWS) % ROWS)[:, None]

    def by_hand(tau):
        held = 0.5 * jax.lax.stop_gradient(score / tau)
        return jax.nn.softplus(jax.nn.logsumexp(score / tau + held, axis=1, where=other) - positive / tau)

    ours = losing(a, b, "hardness_weighted", TAU, alpha=0.5)
    np.testing.assert_allclose(ours, by_hand(TAU), rtol=1e-10)
    np.testing.assert_allclose(
        of_queries(loss="hardness_weighted", alpha=0.5), jax.jacobian(by_hand)(TAU), rtol=1e-10
    )


def test_held_unless_asked_for(x64):
    a, b = views()
    held = jax.jit(
        jax.grad(lambda tau: contrastive_loss(a, b, "decoupled_nt_xent", tau, lambda_weight=0.2).mean())
    )(TAU)
    assert held == 0


def test_a_rule_may_be_learnt(x64):
    """Parameters that a function of the alignment closes over; the alignment itself is held."""
    a, b = views()
    macl = lambda tau0: losing(a, b, "info_nce", lambda mean: tau0 * 2.0**mean).mean()  # noqa: E731
    rule = macl_temperature(1.0, 2.0)
    u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    power = rule(jnp.mean(jnp.sum(u * v, axis=1)))
    at_tau = jax.jit(jax.grad(lambda tau: losing(a, b, "info_nce", tau).mean()))(TAU * power)
    np.testing.assert_allclose(jax.jit(jax.grad(macl))(TAU), power * at_tau, rtol=1e-10)


@pytest.mark.parametrize("engine", sampled(["tiled", "dense"], 1))
@pytest.mark.parametrize(
    "loss", sampled(["info_nce", "relic_kl", "debiased", "decoupled_nt_xent", "macl"], 1)
)
def test_no_nan_where_candidates_are_masked(loss, engine):
    """Queries with fewer negatives than others, with none, zero rows, and a low temperature."""
    a, b = views(dtype="float32")
    a = a.at[2].set(0.0)
    for group in (np.array([0, 0, 0, 0, 0, 0, 0, 1]), np.zeros(ROWS, int)):
        for tau in (0.1, 0.005):
            value, found = jax.jit(
                jax.value_and_grad(
                    lambda a, tau, g=group: losing(a, b, loss, tau, group=g, engine=engine).mean(), (0, 1)
                )
            )(a, tau)
            assert np.isfinite(value) and all(np.isfinite(x).all() for x in found), (group, tau)


def test_clips_log_scale_with_a_bound():
    """exp(min(log_scale, log 100)): learnt below the bound, held at it, and training drives tau down."""
    a, b = views(dtype="float32")

    def loss(log_scale, b):
        tau = jnp.exp(-jnp.minimum(log_scale, jnp.log(100.0)))
        return losing(a, b, "info_nce", tau, candidates="other_view").mean()

    slope = jax.jit(jax.grad(loss))
    assert slope(jnp.log(1 / 0.07), a) < 0 < abs(slope(jnp.log(99.0), b))  # equal views: sharper is better
    assert slope(jnp.log(101.0), b) == 0
