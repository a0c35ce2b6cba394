"""Both engines are the definition: values, gradients, masks, types, devices, memory."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suite import sampled

from contrastive_jax import contrastive_loss, sharding
from contrastive_jax.contrast import similarity
from contrastive_jax.types import Negatives, Pool

SCALES = (1.0, 10.0, 20.0)


def case(queries=24, candidates=40, width=16, groups=13, seed=0, dtype=np.float32):
    """Unit embeddings, groups that occur several times, and a cotangent for the logsumexps."""
    draw = np.random.default_rng(seed)
    query, key = (draw.normal(size=(n, width)) for n in (queries, candidates))
    query, key = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (query, key))
    slope = draw.normal(size=(len(SCALES), queries))
    query, key, scale, slope = (np.asarray(x, dtype) for x in (query, key, SCALES, slope))
    return query, key, scale, slope, np.arange(queries) % groups, np.arange(candidates) % groups


@functools.cache
def program(engine, tile=None, same_group="exclude"):
    """(Negatives, gradients with respect to queries, candidates and scales), jitted."""

    def statistics(query, key, scale, query_group, group):
        pool = Pool(key, group)
        if tile:
            return similarity.tiled_statistics(
                query, query_group, pool, scale, same_group=same_group, tile=tile
            )
        return similarity.negative_statistics(
            query, query_group, pool, scale, engine=engine, same_group=same_group
        )

    @jax.jit
    def run(query, key, scale, slope, query_group, group):
        def logsumexp(query, key, scale):
            negatives = statistics(query, key, scale, query_group, group)
            return negatives.logsumexp, negatives

        _, pullback, negatives = jax.vjp(logsumexp, query, key, scale, has_aux=True)
        return negatives, pullback(slope)

    return run


def tree_close(actual, expected, tolerance):
    """Largest error at most ``tolerance`` of the largest entry; infinities in the same places."""
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert one.shape == other.shape
        finite = np.isfinite(other)
        np.testing.assert_array_equal(one[~finite], other[~finite])
        if finite.any():
            limit = tolerance * np.abs(other[finite]).max()
            np.testing.assert_allclose(one[finite], other[finite], rtol=0, atol=limit)


def results_close(actual, expected, tolerance, slope):
    """Results of a program. A scale's gradient is a sum of signed terms, each at most |slope|, which may
    cancel: its error is relative to the sum of their sizes."""
    tree_close((actual[0], actual[1][:2]), (expected[0], expected[1][:2]), tolerance)
    size = np.abs(np.asarray(slope, np.float64)).sum(axis=1)
    error = np.abs(np.asarray(actual[1][2], np.float64) - np.asarray(expected[1][2], np.float64))
    assert (error <= tolerance * size).all(), (error / size, tolerance)


def by_hand(query, key, scale, query_group, group, keep=False):
    """The definition, one pair after the other, in float64."""
    query, key = query.astype(np.float64), key.astype(np.float64)
    rows = []
    for q, own in zip(query, query_group, strict=True):
        score = np.array([q @ k for k, other in zip(key, group, strict=True) if keep or own != other])
        weight = np.exp(np.outer(scale, score))
        rows.append((len(score), np.log(weight.sum(1)), weight @ score / weight.sum(1), score.max()))
    count, logsumexp, mean, hardest = (np.array(x) for x in zip(*rows, strict=True))
    return Negatives(count, logsumexp.T, mean.T, hardest)


def on_mesh(arguments, devices=8):
    """The arguments of a program laid out on a mesh; use under ``jax.set_mesh``."""
    mesh = sharding.make_mesh(jax.devices()[:devices])
    rows, whole, wide = sharding.ROWS, sharding.REPLICATED, jax.P(None, sharding.AXIS)
    specs = (rows, whole, whole, wide, rows, whole)
    return mesh, [jax.device_put(x, sharding.named(mesh, s)) for x, s in zip(arguments, specs, strict=True)]


def test_normalize_is_a_unit_vector_and_differentiable_at_zero():
    x = jnp.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(similarity.normalize(x), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: similarity.normalize(x).sum()))(x)
    assert np.isfinite(gradient).all()
    half = similarity.normalize(jnp.array([[1e-3, 1e-3]], jnp.float16))
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, [[0.5**0.5] * 2], rtol=1e-3)


@pytest.mark.parametrize("same_group", ["exclude", "keep"])
@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_the_definition(engine, same_group):
    query, key, scale, slope, query_group, group = case()
    negatives, _ = program(engine, None, same_group)(query, key, scale, slope, query_group, group)
    expected = by_hand(query, key, scale, query_group, group, keep=same_group == "keep")
    tree_close(negatives, expected, 1e-6)
    assert negatives.count.dtype == jnp.int32


@pytest.mark.parametrize(
    "tile", sampled([pytest.param(t) for t in ((7, 13), (16, 48), (64, 100), (1000, 1000), (1, 1))], 2)
)
@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 2e-6), (np.float64, 1e-12)])
def test_tiled_is_dense(tile, dtype, tolerance):
    with jax.enable_x64(dtype == np.float64):
        arguments = list(case(dtype=dtype))
        arguments[4][3] = -1  # one query with every candidate
        dense, tiled = program("dense")(*arguments), program("tiled", tile)(*arguments)
        assert tiled[0].logsumexp.dtype == tiled[1][0].dtype == dtype
        results_close(tiled, dense, tolerance, arguments[3])


def test_scale_gradient_is_the_softmax_mean():
    arguments = case()
    negatives, (_, _, gradient) = program("dense")(*arguments)
    expected = np.sum(np.asarray(negatives.mean, np.float64) * arguments[3], axis=1)
    assert (np.abs(gradient - expected) <= 1e-6 * np.abs(arguments[3]).sum(axis=1)).all()


@pytest.mark.parametrize("dtype", sampled([jnp.bfloat16, jnp.float16], 1))
@pytest.mark.parametrize("engine, tile", [("dense", None), ("tiled", (7, 13))])
def test_half_precision_is_computed_in_float32(engine, tile, dtype):
    query, key, *rest = case()
    query, key = jnp.asarray(query, dtype), jnp.asarray(key, dtype)
    negatives, gradients = program(engine, tile)(query, key, *rest)
    exact, exact_gradients = program(engine, tile)(query.astype(jnp.float32), key.astype(jnp.float32), *rest)
    assert negatives.logsumexp.dtype == jnp.float32
    tree_close(negatives, exact, 1e-7)
    assert gradients[0].dtype == gradients[1].dtype == dtype
    tree_close(gradients[:2], [x.astype(dtype) for x in exact_gradients[:2]], 1e-2)


@pytest.mark.parametrize("engine, tile", [("dense", None), ("tiled", (7, 13))])
def test_queries_without_negatives(engine, tile):
    query, key, scale, slope, query_group, group = case()
    group[:] = 5  # every candidate is of one group, and so are some of the queries
    alone = query_group == 5
    negatives, gradients = program(engine, tile)(query, key, scale, slope, query_group, group)
    assert alone.sum() == 2
    np.testing.assert_array_equal(negatives.count, np.where(alone, 0, len(group)))
    assert (np.asarray(negatives.logsumexp)[:, alone] == -np.inf).all()
    assert (np.asarray(negatives.hardest)[alone] == -np.inf).all()
    assert (np.asarray(negatives.mean)[:, alone] == 0).all()
    assert (np.asarray(gradients[0])[alone] == 0).all()
    assert all(np.isfinite(x).all() for x in gradients)
    without = np.where(alone, 0, slope)  # their cotangent reaches nothing
    tree_close(gradients, program(engine, tile)(query, key, scale, without, query_group, group)[1], 1e-7)


@pytest.mark.parametrize("engine, tile", [("dense", None), ("tiled", (7, 13))])
def test_finite_at_zero_rows_and_low_temperature(engine, tile):
    query, key, _, slope, query_group, group = case()
    query[0] = key[7] = key[8] = 0
    key[9] = key[10] = query[1]
    scale = np.array([100, 1e4, 1e-3], np.float32)
    negatives, gradients = program(engine, tile)(query, key, scale, slope, query_group, group)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((negatives, gradients)))
    with jax.enable_x64(True):
        wide = (x.astype(np.float64) for x in (query, key, scale, slope))
        exact = program("dense")(*wide, query_group, group)
    tree_close(negatives.logsumexp[0], exact[0].logsumexp[0], 1e-6)
    tree_close(gradients[0], exact[1][0], 1e-4)  # 1e-6 / tau would be 1e-2 at the second scale


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_mean_and_hardest_carry_no_gradient(engine):
    query, key, scale, _, query_group, group = case()

    def looked_at(query, key, scale):
        negatives = similarity.negative_statistics(query, query_group, Pool(key, group), scale, engine=engine)
        return negatives.mean.sum() + negatives.hardest.sum()

    assert all((np.asarray(x) == 0).all() for x in jax.jit(jax.grad(looked_at, (0, 1, 2)))(query, key, scale))


@pytest.mark.run
@pytest.mark.parametrize("engine, tile", [("dense", None), ("tiled", None), ("tiled", (7, 13))])
def test_eight_devices_are_one(engine, tile):
    """The gradient through gathered negatives, too: the field's most repeated bug."""
    arguments = case()
    alone = program(engine, tile)(*arguments)
    for devices in (1, 8):
        mesh, laid_out = on_mesh(arguments, devices)
        with jax.set_mesh(mesh):
            together = program(engine, tile)(*laid_out)
        assert together[0].logsumexp.sharding.spec == jax.P(None, "data")
        results_close(together, alone, 1e-6, arguments[3])


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_one_all_reduce_of_the_candidates_gradient(engine):
    mesh, laid_out = on_mesh(case())
    with jax.set_mesh(mesh):
        text = program(engine).lower(*laid_out).compile().as_text()
    collectives = re.findall(
        r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text
    )
    assert collectives == ["all-reduce"]


def test_replicated_queries_are_laid_out_by_rows():
    query, key, scale, slope, query_group, group = case()
    mesh = sharding.make_mesh()
    expected = program("dense")(query, key, scale, slope, query_group, group)[0]
    for engine in ("dense", "tiled"):
        with jax.set_mesh(mesh):
            arguments = [jax.device_put(x, jax.P()) for x in (query, query_group, key, group, scale)]
            run = jax.jit(
                lambda q, g, k, m, s, e=engine: similarity.negative_statistics(q, g, Pool(k, m), s, engine=e)
            )
            tree_close(run(*arguments), expected, 1e-6)


def test_tiled_never_holds_the_score_matrix():
    rows, width = 8192, 16
    shapes = [jax.ShapeDtypeStruct((rows, width), jnp.float32)] * 2
    shapes += [jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((3, rows), jnp.float32)]
    shapes += [jax.ShapeDtypeStruct((rows,), jnp.int32)] * 2
    temporary = {
        engine: program(engine).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
        for engine in ("dense", "tiled", "auto")
    }
    matrix = rows * rows * 4
    assert temporary["dense"] >= matrix, "the measure does not see the matrix"
    assert temporary["tiled"] < matrix / 16
    assert temporary["auto"] == temporary["tiled"]


def test_a_million_rows_take_few_gigabytes():
    """Value and gradient of 524,288 pairs of width 128, both directions; their scores would take 4 TiB."""
    rows = jax.ShapeDtypeStruct((524_288, 128), jnp.float32)
    program = jax.jit(jax.value_and_grad(lambda a, b: contrastive_loss(a, b, engine="tiled").mean(), (0, 1)))
    compiled = jax.jit(program).lower(rows, rows).compile()
    assert (
        compiled.memory_analysis().temp_size_in_bytes < 4.5 * 2**30
    )  # 3.5 with the optimisations that the default tier leaves out


def test_auto_is_dense_when_small():
    arguments = case()
    assert "scan" not in str(jax.make_jaxpr(program("auto"))(*arguments))
    assert "scan" in str(jax.make_jaxpr(program("tiled"))(*arguments))


def test_the_temperatures_second_derivative_is_dense_ones_tile_by_tile():
    """It was NaN: a scale times the -inf of what is not permitted."""
    a, b = np.random.default_rng(0).normal(size=(2, 8, 4))

    def second(engine):
        def loss(tau):
            return contrastive_loss(
                a, b, "info_nce", tau, engine=engine, differentiate_temperature=True
            ).mean()

        return jax.jit(jax.grad(jax.grad(loss)))(0.1)

    with jax.enable_x64(True):
        np.testing.assert_allclose(second("tiled"), second("dense"), rtol=1e-10)


def test_tiled_under_vmap_and_scalar_scale():
    query, key, _, _, query_group, group = case()
    pool = Pool(key, group)
    at = functools.partial(similarity.tiled_statistics, query, query_group, pool, tile=(7, 13))
    many, at_once = jax.jit(lambda scales: (jax.vmap(at)(scales), at(scales)))(jnp.array(SCALES))
    tree_close(many.logsumexp[:, 0], at_once.logsumexp, 1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), engine=st.sampled_from(["dense", "tiled"]))
def test_order_does_not_matter(seed, engine):
    query, key, scale, slope, query_group, group = case(seed=seed)
    draw = np.random.default_rng(seed)
    rows, columns = draw.permutation(len(query)), draw.permutation(len(key))
    run = program(engine, (7, 13) if engine == "tiled" else None)
    negatives, (of_query, of_key, of_scale) = run(query, key, scale, slope, query_group, group)
    moved = run(query[rows], key[columns], scale, slope[:, rows], query_group[rows], group[columns])
    expected = Negatives(
        negatives.count[rows], negatives.logsumexp[:, rows], negatives.mean[:, rows], negatives.hardest[rows]
    )
    results_close(moved, (expected, (of_query[rows], of_key[columns], of_scale)), 3e-6, slope)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), engine=st.sampled_from(["dense", "tiled"]), size=st.floats(0.1, 1e3))
def test_candidates_that_are_not_permitted_change_nothing(seed, engine, size):
    query, key, scale, slope, query_group, group = case(seed=seed)
    query_group[:] = 0
    group[-15:] = 0
    run = program(engine, (7, 13) if engine == "tiled" else None)
    few = run(query, key, scale, slope, query_group, group)
    key[-15:] *= size
    many = run(query, key, scale, slope, query_group, group)
    tree_close(many, few, 1e-7)
    assert (np.asarray(many[1][1])[-15:] == 0).all()
    removed = program(engine)(query, key[:-15], scale, slope, query_group, group[:-15])
    of_query, of_key, of_scale = many[1]
    results_close((many[0], (of_query, of_key[:-15], of_scale)), removed, 3e-6, slope)


@settings(max_examples=10, deadline=None)
@given(tile=st.tuples(st.integers(1, 50), st.integers(1, 50)), seed=st.integers(0, 2**32 - 1))
def test_tiles_of_any_size(tile, seed):
    arguments = case(seed=seed)
    results_close(program("tiled", tile)(*arguments), program("dense")(*arguments), 3e-6, arguments[3])


@pytest.mark.parametrize("devices", [1, 4])
def test_selected_candidates_in_parts(devices, monkeypatch):
    random = np.random.default_rng(0)
    query, key = (jnp.asarray(random.normal(size=(n, 8)), jnp.float32) for n in (28, 20))
    index = np.argsort(random.random((28, 20)), axis=1)[:, :5].astype(np.int32)
    permitted, weight = random.random((28, 5)) < 0.8, random.normal(size=(28, 5)).astype(np.float32)

    def run():
        def total(query, key):
            query = sharding.shard_batch(query)
            own = [sharding.shard_batch(jnp.asarray(x)) for x in (index, permitted, weight)]
            return jnp.sum(own[2] * similarity.selected_scores(query, key, *own[:2]))

        with jax.set_mesh(sharding.make_mesh(jax.devices()[:devices])):
            return jax.jit(jax.value_and_grad(total, (0, 1)))(query, key)

    whole = run()
    monkeypatch.setattr(similarity, "PICKED_UP_TO", 60)  # three queries at a time
    results = zip(jax.tree.leaves(run()), jax.tree.leaves(whole), strict=True)
    for one, other in results:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    wanted = np.sum(weight * permitted * np.take_along_axis(query @ key.T, index, axis=1))
    np.testing.assert_allclose(whole[0], wanted, rtol=1e-5)


def test_selected_candidates():
    """Every candidate selected is the dense result; on a mesh the rows stay where they are."""
    query, key, scale, slope, query_group, group = case()
    index = np.broadcast_to(np.arange(len(key)), (len(query), len(key)))
    permitted = query_group[:, None] != group

    @jax.jit
    def run(query, key, scale, slope, index, permitted):
        def logsumexp(query, key, scale):
            negatives = similarity.selected_statistics(query, Pool(key, group), index, permitted, scale)
            return negatives.logsumexp, negatives

        _, pullback, negatives = jax.vjp(logsumexp, query, key, scale, has_aux=True)
        return negatives, pullback(slope)

    alone = run(query, key, scale, slope, index, permitted)
    results_close(alone, program("dense")(query, key, scale, slope, query_group, group), 2e-6, slope)
    mesh, laid_out = on_mesh((query, key, scale, slope, index, permitted))
    laid_out[5] = jax.device_put(permitted, sharding.named(mesh, sharding.ROWS))
    with jax.set_mesh(mesh):
        together = run(*laid_out)
        text = run.lower(*laid_out).compile().as_text()
    assert together[0].hardest.sharding.spec == jax.P("data")
    results_close(together, alone, 1e-6, slope)
    assert "all-gather" not in text and "all-reduce" in text


def test_bad_arguments_are_said():
    query, key, scale, _, query_group, group = case()
    pool = Pool(key, group)
    call = similarity.negative_statistics
    with pytest.raises(ValueError, match="engine is 'quick'; .*dense"):
        call(query, query_group, pool, scale, engine="quick")
    with pytest.raises(ValueError, match="same_group is 'drop'; .*keep"):
        call(query, query_group, pool, scale, same_group="drop")
    with pytest.raises(ValueError, match=r"query has shape \(24, 15\) and pool.key \(40, 16\)"):
        call(query[:, 1:], query_group, pool, scale)
    with pytest.raises(ValueError, match="query_group and pool.group"):
        call(query, query_group[1:], pool, scale)
    with pytest.raises(ValueError, match=r"scale has shape \(1, 3\)"):
        call(query, query_group, pool, scale[None])
    with pytest.raises(ValueError, match="not empty"):
        call(query, query_group, Pool(key[:0], group[:0]), scale)
    with pytest.raises(ValueError, match="two positive numbers"):
        similarity.tiled_statistics(query, query_group, pool, scale, tile=(0, 5))
    with pytest.raises(ValueError, match=r"both must be \[Q, K\]"):
        similarity.selected_statistics(query, pool, np.zeros((3, 2), int), np.ones((3, 2), bool), scale)


def test_a_reference_is_taken_off_exactly_and_both_engines_agree_on_its_gradient():
    """With the positive as reference the result is the contrast: exact at tau = 0.01, where c = LSE - s/tau is not."""
    rng = np.random.default_rng(0)
    query, key = (similarity.normalize(jnp.asarray(rng.normal(size=(n, 8)), jnp.float32)) for n in (6, 10))
    group, pool = jnp.asarray([0, 1, 2, 3, 4, 7]), Pool(key, jnp.asarray([0, 1, 2, 3, 4, 5, 6, 0, 7, 7]))
    lonely = Pool(key[:2], jnp.asarray([7, 7]))  # the last query has no negatives
    reference = jnp.sum(query * key[:6], axis=1)
    scale = jnp.asarray([10.0, 100.0])

    def total(statistics, pool, query, key, reference, scale):
        found = statistics(query, group, Pool(key, pool.group), scale, reference).logsumexp
        return jnp.sum(jnp.where(jnp.isfinite(found), found, 0.0))

    for candidates in (pool, lonely):
        arguments = (query, candidates.key, reference, scale)
        gradients = jax.jit(jax.grad(total, argnums=(2, 3, 4, 5)), static_argnums=0)
        for_dense = gradients(similarity.dense_statistics, candidates, *arguments)
        for_tiled = gradients(similarity.tiled_statistics, candidates, *arguments)
        for a, b in zip(for_dense, for_tiled, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert for_dense[2][-1] == 0 and (for_dense[2][:-1] < 0).all()

    found = jax.jit(similarity.dense_statistics)(query, group, pool, scale, reference).logsumexp
    score = (
        np.asarray(query, np.float64) @ np.asarray(key, np.float64).T
        - np.asarray(reference, np.float64)[:, None]
    )
    score = np.where(np.asarray(group)[:, None] != np.asarray(pool.group)[None], score, -np.inf)
    exact = np.log(np.exp(100.0 * (score - score.max(1, keepdims=True))).sum(1)) + 100.0 * score.max(1)
    np.testing.assert_allclose(found[1], exact, rtol=2e-6, atol=2e-5)
