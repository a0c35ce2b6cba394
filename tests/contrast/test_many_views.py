"""More than two views: every ordered pair of views is a query with one positive, checked against loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import one_program, sampled

from contrastive_jax import contrastive_loss, sharding
from contrastive_jax.contrast import margin

op_by_op, contrastive_loss = contrastive_loss, one_program(contrastive_loss)

N, D, TAU = 8, 5, 0.3


def embeddings(views, seed=0, rows=N):
    return np.random.default_rng(seed).normal(size=(rows, views, D))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def loops(queries, keys, candidates="both_views", function=np.log1p, queue=()):
    """Values of all ordered pairs (q, k), each with its own sum over the candidates of other examples."""
    queries, keys, values = unit(queries), unit(keys), []
    for q in range(queries.shape[1]):
        for k in range(keys.shape[1]):
            if q == k:
                continue
            for i in range(len(queries)):
                total = 0.0
                positive = queries[i, q] @ keys[i, k] / TAU
                for j in range(len(queries)):
                    seen = {"both_views": range(keys.shape[1]), "other_view": [k], "own_view": [q]}
                    for view in seen.get(candidates, ()) if j != i else ():
                        total += np.exp(queries[i, q] @ keys[j, view] / TAU - positive)
                for row in queue:
                    total += np.exp(queries[i, q] @ unit(row) / TAU - positive)
                values.append(function(total))
    return np.array(values)


@pytest.fixture(scope="module")
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("candidates", ["both_views", "other_view", "own_view", "queue"])
def test_values_are_the_loops(candidates, x64):
    z, queue = embeddings(4), embeddings(1, seed=1, rows=7)[:, 0]
    given = {"queue": queue} if candidates == "queue" else {}
    for loss, function in (("info_nce", np.log1p), ("dcl", np.log)):
        found = contrastive_loss(z, z, loss, TAU, candidates=candidates, **given)
        np.testing.assert_allclose(found, loops(z, z, candidates, function, **given), rtol=1e-12)


def test_local_views_query_the_keys_of_the_others(x64):
    z, queue = embeddings(5), embeddings(1, seed=1, rows=7)[:, 0]
    found = contrastive_loss(z, z[:, :2], "info_nce", TAU, queue=queue)
    assert found.shape == (N * (2 + 3 * 2),)
    np.testing.assert_allclose(found, loops(z, z[:, :2], queue=queue), rtol=1e-12)
    one_way = contrastive_loss(z, z[:, :2], "info_nce", TAU, queue=queue, directions="one_way")
    np.testing.assert_array_equal(one_way, found[:N])


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_gradients_are_those_of_the_loops(engine, x64):
    """Queries and keys with gradients of their own, as of a network with a predictor and its target."""
    z, keys, step = embeddings(3), embeddings(3, seed=1), 1e-6

    def mean(z, keys):
        return contrastive_loss(z, keys, "info_nce", TAU, engine=engine).mean()

    found = jax.jit(jax.grad(mean, argnums=(0, 1)))(z, keys)
    for place in [(0, 0, 0), (3, 2, 4), (7, 1, 2)]:
        for of, gradient in enumerate(found):
            moved = [[z.copy(), keys.copy()] for _ in range(2)]
            for sign, both in zip((1, -1), moved, strict=True):
                both[of][place] += sign * step
            above, below = (loops(*both).mean() for both in moved)
            np.testing.assert_allclose(gradient[place], (above - below) / (2 * step), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "given", [{}, {"candidates": "other_view"}, {"candidates": "own_view"}, {"negatives": 3}]
)
@pytest.mark.parametrize("directions", sampled(["both", "one_way"], 1))
def test_two_views_have_the_bits_of_two_arrays(given, directions):
    a, b = jnp.asarray(embeddings(2).transpose(1, 0, 2), jnp.float32)
    if "negatives" in given:
        given = given | {"key": jax.random.key(0)}

    def pair(a, b):
        return op_by_op(a, b, "info_nce", 0.1, directions=directions, **given)

    def stacked(a, b):
        z = jnp.stack([a, b], axis=1)
        return op_by_op(z, z, "info_nce", 0.1, directions=directions, **given)

    np.testing.assert_array_equal(pair(a, b), stacked(a, b))
    gradients = (jax.grad(lambda a, b, f=f: f(a, b).mean(), argnums=(0, 1))(a, b) for f in (pair, stacked))
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("summation", ["out", "in"])
def test_positives_of_several_views_are_one_denominator(summation, x64):
    """SupCon's two forms (Khosla et al., 2020, eq. 2 and 3), by loops, with classes and with examples alone."""
    z, extra = embeddings(4), embeddings(1, seed=1, rows=3)[:, 0]
    for ids in (np.arange(N), np.arange(N) % 3):
        found = contrastive_loss(
            z,
            z,
            "info_nce",
            TAU,
            positives=ids,
            summation=summation,
            queue=extra,
            queue_group=np.array([0, 1, 9]),
        )
        rows = [(unit(z[j, v]), ids[j], (j, v)) for j in range(N) for v in range(4)]
        rows += [(unit(x), group, None) for x, group in zip(extra, [0, 1, 9], strict=True)]
        expected = []
        for q in range(4):
            for i in range(N):
                others = [
                    (unit(z[i, q]) @ x / TAU, group == ids[i]) for x, group, name in rows if name != (i, q)
                ]
                log_all = np.log(sum(np.exp(s) for s, _ in others))
                own = np.array([s for s, positive in others if positive])
                outside = np.mean(log_all - own)
                inside = log_all - np.log(np.mean(np.exp(own)))
                expected.append(outside if summation == "out" else inside)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_positives_of_views_that_are_no_keys_and_of_the_key_that_queries_nothing(x64):
    """One key view: the first query view is it, and has no value; the pools of the others were looked up by number."""
    z, ids = embeddings(3), np.arange(N) % 3
    found = contrastive_loss(z, z[:, :1], "info_nce", TAU, positives=ids)
    scores = np.einsum("iqd,jd->qij", unit(z[:, 1:]), unit(z[:, 0])) / TAU
    same = ids[:, None] == ids
    log_all = np.log(np.exp(scores).sum(-1))
    expected = log_all - (scores * same).sum(-1) / same.sum(-1)
    np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-12)


def test_drawn_negatives_and_a_margin_count_those_of_a_query():
    """EqCo with K drawn negatives: a pair's value needs its own draw, of at most W (N - 1)."""
    z = embeddings(3).astype(np.float32)
    options = {"negatives": 3 * (N - 1), "key": jax.random.key(0), "margin": margin.eqco(alpha=64.0)}
    found = contrastive_loss(z, z, "info_nce", TAU, **options)
    whole = contrastive_loss(z, z, "info_nce", TAU, margin=margin.eqco(alpha=64.0))
    np.testing.assert_allclose(found, whole, rtol=1e-5)
    with pytest.raises(ValueError, match=r"negatives is 22; it must be at most 21"):
        contrastive_loss(z, z, "info_nce", TAU, **options | {"negatives": 22})


def test_a_temperature_for_each_value(x64):
    z = embeddings(3)
    tau = np.linspace(0.1, 1.0, 6 * N)
    found = contrastive_loss(z, z, "info_nce", tau)
    for place in (0, 13, 47):
        whole = contrastive_loss(z, z, "info_nce", float(tau[place]))
        np.testing.assert_allclose(found[place], whole[place], rtol=1e-12)
    with pytest.raises(ValueError, match=r"temperature has shape \(16,\).*\(8,\).*\(48,\)"):
        contrastive_loss(z, z, "info_nce", tau[:16])


@pytest.mark.run
@pytest.mark.parametrize("engine", ["auto", "tiled", "ring"])
@pytest.mark.parametrize("ids", [None, np.arange(16) % 5])
def test_eight_devices_have_the_values_of_one(engine, ids, x64):
    z = embeddings(3, rows=16)

    def mean(z):
        return contrastive_loss(
            z, z[:, :2] if ids is None else z, "info_nce", TAU, positives=ids, engine=engine
        ).mean()

    with jax.set_mesh(sharding.make_mesh(jax.devices()[:1])):
        expected = jax.jit(jax.value_and_grad(mean))(z)
    with jax.set_mesh(mesh := sharding.make_mesh()):
        sharded = jax.device_put(z, sharding.named(mesh, sharding.ROWS))
        found = jax.jit(jax.value_and_grad(mean))(sharded)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("queries", "keys", "options", "message"),
    [
        ((8, 1, 5), (8, 1, 5), {}, "one view, the same"),
        ((8, 3, 5), (8, 1, 5), {"directions": "one_way"}, "directions is 'one_way', .* must be 'both'"),
        ((8, 2, 5), (8, 5), {}, r"a \(8, 2, 5\) and b \(8, 5\)"),
        ((8, 2, 5), (8, 2, 4), {}, r"b \(8, 2, 4\)"),
        ((8, 3, 5), (8, 2, 5), {"candidates": "own_view"}, "'own_view', and view 2 of a"),
        (
            (8, 3, 5),
            (8, 3, 5),
            {"candidates": "other_view", "positives": np.arange(8)},
            "must be 'both_views'",
        ),
    ],
)
def test_wrong_views_are_named(queries, keys, options, message):
    with pytest.raises(ValueError, match=message):
        contrastive_loss(np.ones(queries, np.float32), np.ones(keys, np.float32), **options)
