"""Losses over pairs: NT-Xent against the installed optax, the sigmoid loss against its definition."""

import doctest
import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suite import sampled

from contrastive_jax import contrastive_loss, ntxent, sharding, sigmoid_loss
from contrastive_jax.contrast import microbatch, pairwise
from contrastive_jax.types import Pool

ROWS, WIDTH = 16, 5
ENGINES = ("dense", "tiled")
LABELS = {
    "pairs": np.arange(ROWS) % (ROWS // 2),
    "neighbours": np.arange(ROWS) // 2,
    "groups of any size": np.array([0, 0, 0, 1, 1, 2, 3, 4, 4, 4, 4, 5, -6, 7, 7, 2]),
    "one group": np.zeros(ROWS, int),
    "one pair": np.r_[0, 0, np.arange(ROWS - 2) + 1],
    "all but one": np.r_[np.zeros(ROWS - 1, int), 1],
}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def embeddings(seed=0, rows=ROWS, dtype="float64"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(rows, WIDTH)), dtype)


@functools.cache
def with_gradients(engine):
    loss = optax.losses.ntxent if engine == "optax" else functools.partial(ntxent, engine=engine)
    return jax.jit(
        lambda x, labels, tau: jax.value_and_grad(loss, (0, 2))(x, labels, tau),
        compiler_options={"xla_backend_optimization_level": 0},
    )


def assert_close(ours, expected, tolerance):
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(), 1e-3))


# NT-Xent


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_ntxent_is_optaxs(x64, engine, labels):
    for tau in (0.07, 1.0):
        ours, theirs = (with_gradients(e)(embeddings(), labels, tau) for e in (engine, "optax"))
        assert_close(ours, theirs, 1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31 - 1),
    st.lists(st.integers(0, 6), min_size=ROWS, max_size=ROWS),
    st.sampled_from(ENGINES),
)
def test_ntxent_is_optaxs_on_random_groups(seed, labels, engine):
    with jax.enable_x64(True):
        labels = np.array(labels)
        ours, theirs = (with_gradients(e)(embeddings(seed), labels, 0.3) for e in (engine, "optax"))
        assert_close(ours, theirs, 1e-11)


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_rows_and_zero_rows_as_optax(x64, engine):
    x = embeddings().at[3].set(0.0).at[5].set(2 * embeddings()[4])
    ours, theirs = (with_gradients(e)(x, LABELS["pairs"], 0.1) for e in (engine, "optax"))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)
    assert all(np.isfinite(g).all() for g in ours[1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", sampled(["float32", "float16", "bfloat16"], 1))
def test_finite_and_right_where_the_positive_is_far_ahead_or_behind(engine, dtype):
    """(s+ - hardest) / tau up to 20,000; float64 of the definition beside it."""
    x = jnp.asarray([[1.0, 0.0], [1.0, 0.001], [-1.0, 0.0], [-1.0, 0.001]], dtype)
    loss = jax.jit(jax.value_and_grad(functools.partial(ntxent, engine=engine), (0, 2)))
    for labels in (np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])):
        for tau in (1.0, 0.07, 0.01, 1e-4):
            value, gradients = loss(x, labels, tau)
            z = np.asarray(x, np.float64)
            z = z / np.linalg.norm(z, axis=1, keepdims=True)
            score = z @ z.T
            same = labels[:, None] == labels
            pairs = [
                np.logaddexp.reduce([0.0, *((score[i][~same[i]] - score[i, p]) / tau)])
                for i in range(4)
                for p in range(4)
                if same[i, p] and i != p
            ]
            np.testing.assert_allclose(value, np.mean(pairs), rtol=1e-5, atol=1e-30)
            assert value.dtype == jnp.float32 and all(np.isfinite(g).all() for g in gradients), tau


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_without_pairs_or_without_negatives_is_0(engine):
    for labels in (np.arange(ROWS), np.zeros(ROWS, int)):
        value, gradients = with_gradients(engine)(embeddings(dtype="float32"), labels, jnp.float32(0.1))
        assert value == 0 and all((np.asarray(g) == 0).all() for g in gradients)


def test_the_patch_for_optax_has_its_values_and_is_finite(x64):
    page = pathlib.Path(__file__).parents[2] / "docs" / "how_to" / "own_loop.md"
    code = next(
        c for c in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "for optax" in c
    )
    space = {}
    exec(code, space)
    patched = jax.jit(jax.value_and_grad(space["ntxent"], (0, 2)))
    for labels in LABELS.values():
        assert_close(
            patched(embeddings(), labels, 0.3), with_gradients("optax")(embeddings(), labels, 0.3), 1e-12
        )
    x = jnp.asarray([[1.0, 0.0], [1.0, 0.001], [-1.0, 0.0], [-1.0, 0.001]])
    for labels in (np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.arange(4), np.zeros(4, int)):
        for dtype in ("float32", "float16"):
            found = patched(x.astype(dtype), labels, jnp.asarray(0.01, dtype))
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_pairs_are_info_nce_over_both_views(x64):
    a, b = embeddings(1), embeddings(2)
    loss = ntxent(jnp.concatenate([a, b]), np.tile(np.arange(ROWS), 2), 0.2)
    np.testing.assert_allclose(loss, contrastive_loss(a, b, "info_nce", 0.2).mean(), rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_two_types(x64, engine):
    x, y = embeddings(1), embeddings(2)
    found = sigmoid_loss(x.astype(np.float32), y, 0.1, -3.0, engine=engine)
    np.testing.assert_allclose(found, sigmoid_loss(x, y, 0.1, -3.0), rtol=1e-5)


@pytest.mark.run
@pytest.mark.parametrize("engine", ENGINES)
def test_eight_devices_are_one(x64, engine):
    sigmoid = jax.jit(
        jax.value_and_grad(lambda a, b, t, c: sigmoid_loss(a, b, t, c, engine=engine).mean(), (0, 1, 2, 3))
    )
    x, y, labels = embeddings(1), embeddings(2), LABELS["groups of any size"]
    one = with_gradients(engine)(x, labels, 0.1), sigmoid(x, y, 0.1, -3.0)
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        rows = sharding.named(mesh, sharding.ROWS)
        x, y, ids = (jax.device_put(z, rows) for z in (x, y, labels))
        for labels in (ids, jax.device_put(ids, sharding.named(mesh, sharding.REPLICATED))):
            assert_close(with_gradients(engine)(x, labels, 0.1), one[0], 1e-12)
        found = sigmoid(x, y, 0.1, -3.0)
        assert found[1][1].sharding.spec[0] == sharding.AXIS
        assert_close(found, one[1], 1e-12)
        with pytest.raises(ValueError, match="N=12 must be a multiple of the 8 devices"):
            ntxent(embeddings(rows=12), np.arange(12))
        with pytest.raises(
            ValueError, match="parts is 4; the rows of a part, 4, must be a multiple of the 8 devices"
        ):
            microbatch.in_microbatches(lambda p, x: x, 4)((), jnp.ones((16, 2)))


@pytest.mark.run
@pytest.mark.parametrize("engine", ENGINES)
def test_vmap_is_a_loop(engine):
    many = jnp.stack([embeddings(seed, dtype="float32") for seed in range(3)])
    gradient = jax.jit(jax.grad(functools.partial(ntxent, labels=LABELS["pairs"], engine=engine)))
    for one, row in zip(jax.vmap(gradient)(many), many, strict=True):
        np.testing.assert_allclose(one, gradient(row), rtol=1e-5, atol=1e-7)


@pytest.mark.run
def test_tiled_never_holds_the_scores():
    rows = 4096
    x = jax.ShapeDtypeStruct((rows, 16), jnp.float32)
    ids = jax.ShapeDtypeStruct((rows,), jnp.int32)

    def bytes_of(loss, *arguments):
        compiled = jax.jit(jax.grad(loss)).lower(*arguments).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    matrix = rows * rows * 4
    for loss, arguments in (
        (lambda x, ids, engine: ntxent(x, ids, engine=engine), (x, ids)),
        (lambda x, y, engine: sigmoid_loss(x, y, engine=engine).mean(), (x, x)),
    ):
        dense, tiled, auto = (
            bytes_of(functools.partial(loss, engine=engine), *arguments)
            for engine in ("dense", "tiled", "auto")
        )
        assert dense > matrix and tiled == auto < matrix / 4


# The sigmoid loss


def test_sigmoid_loss_with_several_positives_by_hand(x64):
    a, b, ids = embeddings(1), embeddings(2), LABELS["groups of any size"]
    u, v = (np.asarray(x / jnp.linalg.norm(x, axis=1, keepdims=True)) for x in (a, b))
    sign = np.where(ids[:, None] == ids, 1.0, -1.0)
    for score, matrix in (("cosine", u @ v.T), ("dot", np.asarray(a @ b.T))):
        expected = np.sum(np.logaddexp(0, -sign * (matrix / 0.2 - 3.0)), axis=1)
        for engine in ENGINES:
            ours = sigmoid_loss(a, b, 0.2, -3.0, positives=ids, score=score, engine=engine)
            np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_either_encoder_may_ask(x64):
    a, b = embeddings(1), embeddings(2)
    np.testing.assert_allclose(sigmoid_loss(a, b).sum(), sigmoid_loss(b, a).sum(), rtol=1e-12)


@pytest.mark.parametrize("tile", sampled([pytest.param(tile) for tile in ((3, 7), (1, 1), (100, 100))], 1))
@pytest.mark.parametrize("sides", pairwise.SIDES)
def test_tiles_of_any_size(x64, tile, sides):
    """The primitive with all its gradients, against autodiff of the definition."""
    query, key, slope = embeddings(1), embeddings(2, rows=24), np.random.default_rng(3).normal(size=ROWS)
    group, other, row = np.arange(ROWS) % 5, np.arange(24) % 7, np.arange(24) % ROWS

    def total(query, key, scale, level, reference, **engine):
        pool = Pool(key, jnp.asarray(other), jnp.asarray(row))
        found, count = pairwise.pair_sums(
            query, group, np.arange(ROWS), pool, scale, level, reference, sides=sides, **engine
        )
        return jnp.sum(found * slope), count

    arguments = query, key, jnp.asarray(3.0), embeddings(4)[:, 0], embeddings(5)[:, 0]
    dense, tiled = (
        jax.jit(jax.value_and_grad(functools.partial(total, **engine), range(5), has_aux=True))(*arguments)
        for engine in (dict(engine="dense"), dict(engine="tiled", tile=tile))
    )
    for x, y in zip(jax.tree.leaves(tiled), jax.tree.leaves(dense), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


# Errors

X = jnp.ones((4, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ntxent(jnp.ones(4), np.arange(4)),
            r"ntxent.embeddings is float32\[4\]; it must be floating",
        ),
        (lambda: ntxent(jnp.ones((4, 2), int), np.arange(4)), r"embeddings is int32; it must be floating"),
        (lambda: ntxent(X, np.arange(3)), r"ntxent.labels is int32\[3\]; it must be integers, \[4\]"),
        (lambda: ntxent(X, np.ones(4)), "ntxent.labels is float64; it must be integer ids"),
        (lambda: ntxent(X, np.arange(4), 0.0), "ntxent.temperature is 0.0; a temperature must be positive"),
        (
            lambda: ntxent(X, np.arange(4), jnp.ones(2)),
            r"temperature has shape \(2,\); it must be a number or a scalar",
        ),
        (lambda: ntxent(X, np.arange(4), [0.1]), r"ntxent.temperature is \[0.1\]; it must be a number"),
        (lambda: ntxent(X, np.arange(4), None), "ntxent.temperature is None; it must be a number"),
        (
            lambda: ntxent(X, np.arange(4), engine="fast"),
            "ntxent.engine is 'fast'; allowed: auto, dense, tiled",
        ),
        (lambda: sigmoid_loss(X, jnp.ones((4, 3))), r"a \(4, 2\) and b \(4, 3\) must both be"),
        (lambda: sigmoid_loss(X, X, -1.0), "sigmoid_loss.temperature is -1.0"),
        (
            lambda: sigmoid_loss(X, X, 0.1, jnp.ones(4)),
            r"sigmoid_loss.bias has shape \(4,\)",
        ),
        (lambda: sigmoid_loss(X, X, 0.1, "no"), "sigmoid_loss.bias is 'no'; it must be a number or a scalar"),
        (
            lambda: sigmoid_loss(X, X, positives=np.arange(5)),
            r"positives is int32\[5\]; it must be integers, \[4\]",
        ),
        (lambda: sigmoid_loss(X, X, score="l2"), "sigmoid_loss.score is 'l2'; allowed: cosine, dot"),
        (lambda: pairwise.pair_sums(X, 0, None, None, 1, 0, 0, sides="none"), "sides is 'none'; allowed"),
        (lambda: microbatch.in_microbatches(None, 0), "parts is 0; it must be a whole number"),
        (lambda: microbatch.in_microbatches(None, True), "parts is True; it must be a whole number"),
        (
            lambda: microbatch.in_microbatches(lambda p, x: x, 3)((), X),
            "parts is 3; it must divide the number of rows",
        ),
        (
            lambda: microbatch.in_microbatches(lambda p, x: x, 2)((), (X, X[:2])),
            "parts is 2; it must divide the number of rows",
        ),
    ],
)
def test_invalid_arguments_raise_one_line_errors(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.run
@pytest.mark.parametrize("module", [pairwise, microbatch], ids=lambda m: m.__name__)
def test_the_examples_of_the_documentation(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
