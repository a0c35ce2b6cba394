"""Subsets are exactly uniform, never the own group, the same on any devices, and never an [N, M] array."""

import functools
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from suite import sampled

from contrastive_jax import sharding
from contrastive_jax.contrast import candidates, negatives, similarity, subsets
from contrastive_jax.types import Pool

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


@functools.cache
def drawer(k, shared=False, same_group="exclude"):
    """random_subset for one key, jitted."""

    @jax.jit
    def draw(key, query_group, group):
        pool = Pool(jnp.zeros((len(group), 1)), group)
        return subsets.random_subset(key, query_group, pool, k, shared=shared, same_group=same_group)

    return draw


def many(draw, draws, *arguments, seed=0):
    """[draws, Q, K] indices and whether they are permitted."""
    keys = jax.random.split(jax.random.key(seed), draws)
    batched = jax.jit(jax.vmap(draw, in_axes=(0, None, None)))
    return tuple(np.asarray(x) for x in batched(keys, *arguments))


@pytest.mark.parametrize("places, k", [(4, 1), (4, 3), (4, 4), (5, 3), (6, 6), (7, 4)])
def test_every_ordered_choice_comes_from_one_swap_sequence(places, k):
    """Swap sequences are equally likely, so this is uniformity itself, not a statistic of it."""
    swaps = np.array(list(itertools.product(*(range(i, places) for i in range(k)))), np.int32)
    drawn = np.asarray(jax.jit(jax.vmap(subsets.shuffle))(swaps))
    assert sorted(map(tuple, drawn)) == sorted(itertools.permutations(range(places), k))


@pytest.mark.parametrize("source", [candidates.both_views, candidates.other_view])
def test_one_choice_for_both_views_of_an_example(source):
    keys, group = jnp.zeros((8, 2, 3)), jnp.arange(8)
    pools, _ = source(8, 2).apply((), keys, keys, group, jax.random.key(0))
    drawn = {
        per_example: [s.index for s in negatives.random(k=3, per_example=per_example)(
            jax.random.key(1), group, pools, "exclude"
        )]
        for per_example in (False, True)
    }  # fmt: skip
    np.testing.assert_array_equal(*drawn[True])
    np.testing.assert_array_equal(drawn[True][0], drawn[False][0])
    assert (drawn[False][0] != drawn[False][1]).any()


def test_shuffle_is_fisher_and_yates():
    draw = np.random.default_rng(0)
    for places, k in ((300, 300), (300, 17), (40, 33)):
        swaps = np.array([[draw.integers(i, places) for i in range(k)] for _ in range(20)], np.int32)
        swaps[0] = np.minimum(np.arange(k) + 1, places - 1)  # the longest chain
        for swap, drawn in zip(swaps, np.asarray(jax.jit(jax.vmap(subsets.shuffle))(swaps)), strict=True):
            line = np.arange(places)
            for i, other in enumerate(swap):
                line[[i, other]] = line[[other, i]]
            np.testing.assert_array_equal(drawn, line[:k])


@pytest.mark.parametrize("m, k", sampled([(4, 2), (5, 3), (3, 5)], 1))
def test_ranks_are_uniform(m, k):
    """Chi-square over every ordered outcome, m traced; m < k is a full permutation."""
    draws = 20000
    keys = jax.random.split(jax.random.key(m), draws)
    ranks = np.asarray(jax.jit(jax.vmap(lambda key, m: subsets.uniform_ranks(key, m, k), (0, None)))(keys, m))
    assert (ranks[:, m:] >= m).all()
    outcomes, counts = np.unique(ranks[:, :m], axis=0, return_counts=True)
    assert len(outcomes) == len(list(itertools.permutations(range(m), min(k, m))))
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("k", sampled([5, 1, 40], 1))
def test_distinct_permitted_and_as_many_as_there_are(k, shared):
    """Groups of one, several and nine, in no order; queries of a group without candidates."""
    draw = np.random.default_rng(k)
    group = draw.permutation(np.repeat([3, -1, 7, 100, 12, 5, 6], [1, 2, 9, 4, 4, 10, 10]))
    query_group = np.array([3, -1, 7, 7, 100, 5, 8, 2**30])
    index, permitted = many(drawer(k, shared), 50, query_group, group)
    assert index.shape == permitted.shape == (50, 8, k) and index.dtype == np.int32
    assert (index >= 0).all() and (index < 40).all()
    assert (group[index] != query_group[:, None])[permitted].all()
    available = (group != query_group[:, None]).sum(axis=1)
    np.testing.assert_array_equal(permitted.sum(axis=-1), np.broadcast_to(np.minimum(k, available), (50, 8)))
    for row, mask in zip(index.reshape(-1, k), permitted.reshape(-1, k), strict=True):
        assert len(set(row[mask])) == mask.sum()


@pytest.mark.parametrize(
    "shared, same_group", sampled([(False, "exclude"), (True, "exclude"), (False, "keep")], 1)
)
def test_inclusion_probability(shared, same_group):
    """Every permitted candidate is drawn with probability K/m: chi-square of every query's counts."""
    draws, k = 3000, 5
    query_group, group = np.arange(6) % 4, np.array([2, 0, 1, 3, 3, 1, 0, 2, 2, 9, 9, 9])
    index, permitted = many(drawer(k, shared, same_group), draws, query_group, group)
    assert permitted.all()
    for query, own in enumerate(query_group):
        allowed = (group != own) | (same_group == "keep")
        m = allowed.sum()
        counts = np.bincount(index[:, query].ravel(), minlength=len(group))
        assert (counts[~allowed] == 0).all()
        expected = draws * k / m  # covariance of the counts: expected * (1 - k/m) * (I - 1/m) * m/(m-1)
        statistic = np.sum((counts[allowed] - expected) ** 2) / (expected * (1 - k / m)) * (m - 1) / m
        assert 1e-4 < stats.chi2(m - 1).sf(statistic) < 1 - 1e-4


def test_queries_draw_independently_unless_shared():
    query_group = group = np.arange(64)
    apart = np.asarray(drawer(4)(jax.random.key(0), query_group, group)[0])
    assert len({tuple(row) for row in apart}) == 64
    again = np.asarray(drawer(4)(jax.random.key(1), query_group, group)[0])
    assert (apart != again).any(axis=1).all()
    # shared: one choice of places; only own groups step aside
    together = np.asarray(drawer(4, True)(jax.random.key(0), query_group, group)[0])
    ranks = together - (together > query_group[:, None])
    assert (ranks == ranks[0]).all()


def test_pairs_of_queries_are_independent():
    """Two queries with the same candidates agree as often as chance says."""
    draws = 4000
    index, _ = many(drawer(1), draws, np.array([9, 9]), np.arange(5))
    table = np.zeros((5, 5), int)
    np.add.at(table, (index[:, 0, 0], index[:, 1, 0]), 1)
    assert stats.chisquare(table.ravel()).pvalue > 1e-3


@pytest.mark.parametrize("shared", [False, True])
def test_mean_over_draws_is_mean_over_all_subsets(shared):
    """Four images, two views: the InfoNCE of K = 2 out of six negatives, against all fifteen subsets."""
    draws, k, scale = 4000, 2, 5.0
    draw = np.random.default_rng(0)
    embedding = similarity.normalize(jnp.asarray(draw.normal(size=(8, 6)), jnp.float32))
    group = np.arange(8) % 4
    score = scale * np.asarray(embedding @ embedding.T)
    positive = score[np.arange(8), (np.arange(8) + 4) % 8]
    expected = np.zeros(8)
    for query in range(8):
        allowed = np.flatnonzero(group != group[query])
        losses = [
            np.log1p(np.sum(np.exp(score[query, list(subset)] - positive[query])))
            for subset in itertools.combinations(allowed, k)
        ]
        assert len(losses) == 15
        expected[query] = np.mean(losses)

    @jax.jit
    @jax.vmap
    def loss(key):
        pool = Pool(embedding, jnp.asarray(group))
        index, permitted = subsets.random_subset(key, jnp.asarray(group), pool, k, shared=shared)
        chosen = similarity.selected_statistics(embedding, pool, index, permitted, scale)
        return jax.nn.softplus(chosen.logsumexp[0] - positive)

    values = np.asarray(loss(jax.random.split(jax.random.key(5), draws)), np.float64)
    error = values.std(axis=0, ddof=1) / draws**0.5
    assert (np.abs(values.mean(axis=0) - expected) < 4 * error).all()
    assert (error < 0.02 * expected).all()


@pytest.mark.parametrize("shared", [False, True])
def test_all_of_them_is_the_plain_loss(shared):
    draw = np.random.default_rng(1)
    embedding = similarity.normalize(jnp.asarray(draw.normal(size=(24, 8)), jnp.float32))
    group = jnp.arange(24) // 2 % 7  # groups of four and of two: m differs
    scale = jnp.array([1.0, 10.0])

    def chosen(embedding):
        pool = Pool(embedding, group)
        index, permitted = subsets.random_subset(jax.random.key(0), group, pool, 22, shared=shared)
        result = similarity.selected_statistics(embedding, pool, index, permitted, scale)
        return jnp.sum(jnp.sin(result.logsumexp)), result

    def plain(embedding):
        result = similarity.dense_statistics(embedding, group, Pool(embedding, group), scale)
        return jnp.sum(jnp.sin(result.logsumexp)), result

    (_, some), gradient = jax.jit(jax.value_and_grad(chosen, has_aux=True))(embedding)
    (_, every), expected = jax.jit(jax.value_and_grad(plain, has_aux=True))(embedding)
    assert len(set(np.asarray(every.count))) == 2
    np.testing.assert_array_equal(some.count, every.count)
    np.testing.assert_allclose(some.hardest, every.hardest, rtol=2e-6)
    np.testing.assert_allclose(some.logsumexp, every.logsumexp, rtol=2e-6)
    np.testing.assert_allclose(some.mean, every.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=5e-6 * np.abs(expected).max())


@pytest.mark.run
@pytest.mark.parametrize("shared", [False, True])
def test_devices_do_not_change_a_bit(shared):
    key, query_group, group = jax.random.key(7), np.arange(24) % 13, np.arange(40) % 13
    alone = drawer(5, shared)(key, query_group, group)
    for devices in (1, 8):
        mesh = sharding.make_mesh(jax.devices()[:devices])
        rows, whole = (sharding.named(mesh, s) for s in (sharding.ROWS, sharding.REPLICATED))
        arguments = key, jax.device_put(query_group, rows), jax.device_put(group, whole)
        with jax.set_mesh(mesh):
            together = drawer(5, shared)(*arguments)
            text = drawer(5, shared).lower(*arguments).compile().as_text()
        assert [x.sharding.spec[0] for x in together] == ["data", "data"]
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_array_equal(one, other)
        assert not any(name in text for name in ("all-gather", "all-reduce", "all-to-all", "permute("))


def largest(jaxpr):
    """The largest array of a jaxpr and all that it calls."""
    size = 0
    for equation in jaxpr.eqns:
        size = max([size, *(v.aval.size for v in equation.outvars if hasattr(v.aval, "size"))])
        for inner in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(inner, "jaxpr", inner)
            size = max(size, largest(inner)) if hasattr(inner, "eqns") else size
    return size


@pytest.mark.parametrize("shared", [False, True])
def test_no_array_of_queries_by_candidates(shared):
    queries, candidates, k = 2048, 4096, 8
    shapes = jax.eval_shape(lambda: (jax.random.key(0), jnp.arange(queries), jnp.arange(candidates)))
    closed = jax.make_jaxpr(drawer(k, shared))(*shapes)
    assert queries * k <= largest(closed.jaxpr) <= 4 * queries * k
    temporary = drawer(k, shared).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert temporary < queries * candidates / 4  # bytes: a quarter of a mask


def golden():
    with np.load(GOLDEN / "eqco_simo.npz") as file:
        return json.loads(str(file["index"])), dict(file)


@pytest.mark.parametrize("case", golden()[0], ids=lambda case: case["case"])
def test_simo(case):
    """SiMo's code: its choice of places, made in every query's list, is its choice of keys; and its loss."""
    fields = {name: golden()[1][f"{case['case']}/{name}"] for name in case["fields"]}
    own = np.arange(case["N"])[:, None]
    ranks = fields["neg_index"][0] - (fields["neg_index"][0] > 0)  # of query 0
    np.testing.assert_array_equal(subsets.place_of_rank(ranks, own, own + 1), fields["neg_index"])

    @jax.jit
    def loss(query, key, index):
        query, key = similarity.normalize(query), similarity.normalize(key)
        pool, scale = Pool(key, jnp.arange(case["N"])), 1 / case["temperature"]
        chosen = similarity.selected_statistics(query, pool, index, jnp.ones_like(index, bool), scale)
        contrast = chosen.logsumexp[0] - scale * jnp.sum(query * key, axis=1)
        return jax.nn.softplus(contrast + np.log(case["alpha"] / case["K"]))

    with jax.enable_x64(True):
        per_sample = loss(fields["q"], fields["k"], fields["neg_index"])
    np.testing.assert_allclose(per_sample, fields["per_sample_eq1"], rtol=1e-10)


def test_bad_arguments_are_said():
    pool = Pool(jnp.zeros((5, 1)), jnp.arange(5))
    for k in (0, 6):
        with pytest.raises(ValueError, match=f"k is {k}; it must be from 1 to 5"):
            subsets.random_subset(jax.random.key(0), jnp.arange(2), pool, k)
    with pytest.raises(ValueError, match="same_group is 'drop'; .*keep"):
        subsets.random_subset(jax.random.key(0), jnp.arange(2), pool, 2, same_group="drop")
