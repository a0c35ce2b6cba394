"""EqCo's Theorem 2: the norm of the gradient is bounded, whatever the number of negatives.

    ||dL/dq|| <= 2 / tau (1 - s0 / (s0 + alpha / K sum_i s_i)),  s_i = exp(q.k_i / tau),  keys of length 1,

is its proof's inequality 12; the theorem is the expectation over negatives, with alpha E[s] below the line.
Its right-hand side is 2 / tau sigmoid(c + log(alpha / K)).
"""

import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import losses
from contrastive_jax.contrast.similarity import negative_statistics
from contrastive_jax.types import Pool

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "eqco_bank_formula.npz")
CASES = json.loads(str(GOLDEN["index"]))


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def contrast(query, positive, keys, tau):
    """c of one query [D] with its positive [D] and negatives [K, D], by the engine."""
    pool = Pool(keys, jnp.ones(len(keys), jnp.int32))
    group = jnp.zeros(1, jnp.int32)
    found = negative_statistics(query[None], group, pool, 1 / tau, (query @ positive)[None])
    return found.logsumexp[0, 0], found.count[0]


def loss(query, positive, keys, tau, alpha):
    c, count = contrast(query, positive, keys, tau)
    return losses.eqco(c, count, alpha=alpha)


def norm_and_bound(query, positive, keys, tau, alpha):
    """Of the gradient with respect to the query as it enters the scores, and Theorem 2's bound on it."""
    c, count = contrast(query, positive, keys, tau)
    gradient = jax.grad(loss)(query, positive, keys, tau, alpha)
    bound = 2 / tau * jax.nn.sigmoid(c + jnp.log(alpha / count.astype(c.dtype)))
    return jnp.sqrt(jnp.sum(gradient**2) + 1e-300), bound


def many(alpha, *axes):
    """:func:`norm_and_bound` of many queries; ``axes`` are vmap's, of query, positive, keys and tau."""
    return jax.jit(
        jax.vmap(lambda *arguments: norm_and_bound(*arguments, alpha), axes),
        compiler_options={"xla_backend_optimization_level": 0},
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_the_published_formula(case):
    query, positive, bank = (jnp.asarray(GOLDEN[f"{case['case']}/{field}"]) for field in ("q", "k0", "bank"))
    arguments = unit(query), unit(positive), unit(bank), case["temperature"]
    norm, bound = many(case["alpha"], 0, 0, None, None)(*arguments)
    np.testing.assert_allclose(bound, GOLDEN[f"{case['case']}/thm2_bound_rhs"], rtol=1e-9)
    np.testing.assert_allclose(norm, GOLDEN[f"{case['case']}/grad_norm_wrt_unit_q"], rtol=1e-9)
    assert (norm <= bound * (1 + 1e-12)).all()


@pytest.mark.parametrize("negatives", [1, 3, 64])
def test_random_inputs(negatives):
    """Thousands of queries of any alignment, tau from 0.01 to 1, alpha from 1e-2 to 1e6."""
    rng = np.random.default_rng(negatives)
    rows, width = 3000, 4
    query, positive = unit(rng.normal(size=(2, rows, width)))
    keys = unit(rng.normal(size=(rows, negatives, width)))
    # Pull positives and negatives towards the query or away from it, by any amount.
    towards = rng.normal(size=(2, rows, 1)) * 2
    positive, keys = unit(positive + towards[0] * query), unit(keys + towards[1, :, None] * query[:, None])
    tau = jnp.asarray(10 ** rng.uniform(-2, 0, rows))
    for alpha in (1e-2, 64.0, 1e6):
        norm, bound = many(alpha, 0, 0, 0, 0)(query, positive, keys, tau)
        assert (norm <= bound * (1 + 1e-12)).all(), alpha
        assert (norm / bound).max() > 0.99 and bound.min() < 1e-3 and bound.max() > 100  # nothing trivial


def test_it_is_tight():
    """Negatives opposite to the positive attain it, whatever K, tau, alpha: no constant below 2 will do."""
    query, positive = jnp.asarray([0.6, 0.8]), jnp.asarray([1.0, 0.0])
    for negatives, alpha in itertools.product((1, 7), (1.0, 4096.0)):
        keys, taus = jnp.tile(-positive, (negatives, 1)), jnp.asarray([0.05, 0.5])
        norm, bound = many(alpha, None, None, None, 0)(query, positive, keys, taus)
        np.testing.assert_allclose(norm, bound, rtol=1e-12)


def test_an_adversary_cannot_pass_it():
    """Gradient ascent on norm / bound over the directions of query, positive and negatives."""

    def ratio(directions):
        query, positive, keys = unit(directions[0]), unit(directions[1]), unit(directions[2:])
        norm, bound = norm_and_bound(query, positive, keys, 0.2, 64.0)
        return norm / bound

    start = jnp.asarray(np.random.default_rng(0).normal(size=(16, 2 + 5, 3)))

    def climb(directions, _):
        value, slope = jax.vmap(jax.value_and_grad(ratio))(directions)
        return directions + 0.3 * slope, value

    _, values = jax.jit(lambda start: jax.lax.scan(climb, start, None, 400))(start)
    assert values[0].mean() < 0.9 and values[-1].max() > 0.999  # it came close
    assert values.max() <= 1 + 1e-12


@pytest.mark.parametrize("negatives", [1, 2, 4])
def test_the_expectation_does_not_depend_on_the_number_of_negatives(negatives):
    """Theorem 2 itself, over all draws of K from four keys: one bound for every K."""
    rng = np.random.default_rng(5)
    query, positive, keys = unit(rng.normal(size=3)), unit(rng.normal(size=3)), unit(rng.normal(size=(4, 3)))
    tau, alpha = 0.1, 16.0
    draws = jnp.asarray(list(itertools.product(range(4), repeat=negatives)))
    norm, _ = many(alpha, None, None, 0, None)(query, positive, keys[draws], tau)
    own, others = np.exp(query @ positive / tau), np.exp(keys @ query / tau)
    bound = 2 / tau * (1 - own / (own + alpha * others.mean()))
    assert 0.01 * bound < norm.mean() <= bound
