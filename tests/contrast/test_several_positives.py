"""Several positives a query: the definition, one pass, one result on any engine and number of devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import one_program, sampled

from contrastive_jax import contrastive_loss, sharding
from contrastive_jax.contrast import similarity
from contrastive_jax.types import Pool

contrastive_loss = one_program(contrastive_loss)

ROWS, WIDTH, TAU = 16, 5, 0.3
IDS = np.array([0, 0, 0, 1, 1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 7, 2])
BOTH = {
    "info_nce": {},
    "dcl": {},
    "flat_nce": {},
    "flat_nce_plus": {},
    "hoelder_flat_nce": {"gamma": 2.0},
    "eqco": {"alpha": 64.0},
    "decoupled_nt_xent": {"lambda_weight": 0.2},
}
INSIDE = BOTH | {"relative": {}, "scaled": {}, "macl": {}, "dual_temperature": {"factor": 5.0}}
DEFINED = {"out": BOTH, "in": INSIDE}
FAST_COMPILE = {"xla_backend_optimization_level": 0}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def views(seed=0, dtype="float64"):
    a, noise = np.random.default_rng(seed).normal(size=(2, ROWS, WIDTH))
    return jnp.asarray(a, dtype), jnp.asarray(a + 0.5 * noise, dtype)


def losses(**more):
    return {
        (name, summation): functools.partial(
            contrastive_loss, loss=name, temperature=TAU, summation=summation, **own, **more
        )
        for summation, defined in DEFINED.items()
        for name, own in defined.items()
    }


def with_gradients(functions):
    def run(a, b):
        found = {}
        for name, loss in functions.items():
            values, pull = jax.vjp(loss, a, b)
            found[name] = values, pull(jnp.full_like(values, 1 / values.size))
        return found

    return jax.jit(run, compiler_options=FAST_COMPILE)


def assert_close(ours, expected, tolerance):
    for name in expected:
        for x, y in zip(jax.tree.leaves(ours[name]), jax.tree.leaves(expected[name]), strict=True):
            limit = tolerance * max(np.abs(y).max(), 1e-3)
            np.testing.assert_allclose(x, y, rtol=0, atol=limit, err_msg=str(name))


@pytest.fixture(scope="module")
def reference():
    with jax.enable_x64(True):
        return jax.device_get(with_gradients(losses(positives=IDS, engine="dense"))(*views()))


def logits(a, b, queue, candidates, directions):
    """Logits of every query's positives and negatives, pair by pair: [(positives, negatives)] by hand."""
    u, v, w = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b, queue))
    found = []
    for d, (query, key) in enumerate(((u, v), (v, u))[:directions]):
        pool = {"both_views": [(u, 0), (v, 1)], "other_view": [(key, 1 - d)], "queue": []}[candidates]
        for i in range(ROWS):
            positives, negatives = [query[i] @ key[i]], []
            for keys, view in pool:
                for j in range(ROWS):
                    own = (view, j) in ((d, i), (1 - d, i))  # itself, and its positive, which is counted
                    if not own:
                        (positives if IDS[j] == IDS[i] else negatives).append(query[i] @ keys[j])
            for j in range(len(w)):
                (positives if QUEUE_IDS[j] == IDS[i] else negatives).append(query[i] @ w[j])
            found.append((np.array(positives) / TAU, np.array(negatives) / TAU))
    return found


QUEUE_IDS = np.array([0, 1, 9, 9, 7])
EQUATIONS = {  # SupCon's eq. 2 and 3, and what DCL takes out of the denominator
    ("info_nce", "out"): lambda p, n: np.mean(np.log(np.exp(p).sum() + np.exp(n).sum()) - p),
    ("info_nce", "in"): lambda p, n: -np.log(np.mean(np.exp(p) / (np.exp(p).sum() + np.exp(n).sum()))),
    ("dcl", "out"): lambda p, n: np.mean(np.log(np.exp(n).sum()) - p),
    ("dcl", "in"): lambda p, n: -np.log(np.mean(np.exp(p) / np.exp(n).sum())),
}


@pytest.mark.parametrize(
    ("candidates", "directions"),
    sampled([("both_views", 2), ("other_view", 2), ("other_view", 1), ("queue", 1)], 2),
)
def test_the_equations_pair_by_pair(x64, candidates, directions):
    a, b = views()
    queue = np.random.default_rng(2).normal(size=(5, WIDTH))
    further = dict(queue=jnp.asarray(queue), queue_group=QUEUE_IDS, candidates=candidates, positives=IDS)
    further["directions"] = {1: "one_way", 2: "both"}[directions]
    functions = {key: loss for key, loss in losses(**further).items() if key in EQUATIONS}
    found = with_gradients(functions)(a, b)
    pairs = logits(np.asarray(a), np.asarray(b), queue, candidates, directions)
    assert any(len(p) > 1 for p, _ in pairs)
    for key, equation in EQUATIONS.items():
        np.testing.assert_allclose(
            found[key][0], [equation(*pair) for pair in pairs], rtol=1e-10, err_msg=key
        )


def test_the_family_with_several_positives(reference):
    """The identities of the table hold: one gradient for FlatNCE and DCL, EqCo at alpha = K, lambda = tau."""
    for summation in ("out", "in"):
        gradient = {name: np.stack(found[1]) for (name, s), found in reference.items() if s == summation}
        value = {name: found[0] for (name, s), found in reference.items() if s == summation}
        np.testing.assert_allclose(gradient["flat_nce"], gradient["dcl"], atol=1e-12)
        np.testing.assert_allclose(gradient["flat_nce_plus"], gradient["info_nce"], atol=1e-12)
        np.testing.assert_array_equal(value["flat_nce"], 1.0)
    inside = {name: np.stack(found[1]) for (name, s), found in reference.items() if s == "in"}
    np.testing.assert_allclose(inside["macl"], inside["dcl"], atol=1e-12)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(reference))


def test_decoupled_at_lambda_tau_is_tau_times_info_nce(x64, reference):
    for summation in ("out", "in"):
        ours = contrastive_loss(*views(), "decoupled_nt_xent", TAU, positives=IDS, summation=summation)
        np.testing.assert_allclose(ours, TAU * reference["info_nce", summation][0], rtol=1e-12)


@pytest.mark.run
def test_one_positive_is_the_plain_loss(x64):
    alone = np.arange(ROWS)
    plain = {
        (name, s): functools.partial(contrastive_loss, loss=name, temperature=TAU, **INSIDE[name])
        for s, defined in DEFINED.items()
        for name in defined
    }
    assert_close(with_gradients(losses(positives=alone))(*views()), with_gradients(plain)(*views()), 1e-12)


@pytest.mark.run
def test_tiled_is_dense(x64, reference):
    assert_close(with_gradients(losses(positives=IDS, engine="tiled"))(*views()), reference, 1e-12)


@pytest.mark.run
@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_eight_devices_are_one(x64, reference, engine):
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        rows = sharding.named(mesh, sharding.ROWS)
        found = with_gradients(losses(positives=IDS, engine=engine))(
            *(jax.device_put(x, rows) for x in views())
        )
        assert found["info_nce", "out"][0].sharding.spec == sharding.ROWS
        assert_close(found, reference, 1e-12)


@pytest.mark.run
def test_drawn_negatives_leave_all_positives(x64, reference):
    """K of the negatives: as many as there are is the plain loss, and fewer leave the positives' part."""
    ids = np.arange(ROWS) // 2  # 28 negatives each
    key = jax.random.key(0)
    plain = losses(positives=ids)["info_nce", "out"]
    all_of_them = functools.partial(plain, negatives=28, key=key)
    few = functools.partial(plain, negatives=1, key=key)
    found = with_gradients({"plain": plain, "all": all_of_them, "few": few})(*views())
    assert_close({"it": found["all"]}, {"it": found["plain"]}, 1e-11)
    assert (found["few"][0] < found["plain"][0]).all()


@pytest.mark.run
def test_float32_is_exact_at_a_low_temperature():
    """Differences are divided by tau, not scores: 1e-6 of the value where scores over tau are 1,000."""
    a, b = views(dtype="float32")
    with jax.enable_x64(True):
        exact = contrastive_loss(
            jnp.asarray(a, "float64"), jnp.asarray(b, "float64"), "dcl", 1e-3, positives=IDS
        )
    for engine in ("dense", "tiled"):
        ours = contrastive_loss(a, b, "dcl", 1e-3, positives=IDS, engine=engine)
        np.testing.assert_allclose(ours, exact, rtol=2e-6, atol=3e-4)  # eps * 1000 of the score itself
        gradients = jax.jit(
            jax.grad(
                lambda a, b, e=engine: contrastive_loss(
                    a, b, "info_nce", 1e-3, positives=IDS, engine=e
                ).mean(),
                (0, 1),
            )
        )(a, b)
        assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.run
def test_queries_without_negatives_are_0():
    a, b = views(dtype="float32")
    for engine in ("dense", "tiled"):
        loss = lambda a, t, e=engine: contrastive_loss(  # noqa: E731
            a, b, "info_nce", t, positives=np.zeros(ROWS, int), engine=e, differentiate_temperature=True
        ).sum()
        value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(a, 0.1)
        assert value == 0 and all((np.asarray(g) == 0).all() for g in gradients)


@pytest.mark.run
def test_memory_grows_with_the_rows_only():
    rows, width = 4096, 16
    shape = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    ids = jax.ShapeDtypeStruct((rows,), jnp.int32)

    def bytes_of(engine):
        loss = lambda a, b, ids: contrastive_loss(  # noqa: E731
            a, b, "info_nce", positives=ids, candidates="other_view", engine=engine
        ).mean()
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(shape, shape, ids).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    matrix = rows * rows * 4
    assert bytes_of("dense") > matrix and bytes_of("tiled") < matrix / 4


@pytest.mark.run
@pytest.mark.parametrize("tile", [(7, 13), (1, 1), (1000, 1000)])
def test_tiles_of_any_size(x64, tile):
    """The primitive: both sides from one pass, against the definition, with all gradients."""
    draw = np.random.default_rng(0)
    query, key = (similarity.normalize(jnp.asarray(draw.normal(size=(n, 4)))) for n in (24, 40))
    group, pool_group, row = np.arange(24) % 5, np.arange(40) % 5, np.arange(40) % 24
    group[3] = 9  # no positives
    slope = draw.normal(size=(6, 24))

    def results(statistics):
        def some(query, key, scale, reference):
            pool = Pool(key, jnp.asarray(pool_group), jnp.asarray(row))
            negatives, positives = statistics(query, group, np.arange(24), pool, scale, reference)
            found = [*negatives.logsumexp, *positives.logsumexp, positives.total]
            total = sum(
                jnp.sum(jnp.where(jnp.isfinite(x), x, 0) * s) for x, s in zip(found, slope, strict=False)
            )
            return total, (negatives, positives)

        arguments = query, key, jnp.array([2.0, 10.0]), jnp.asarray(draw.normal(size=24))
        return jax.jit(jax.value_and_grad(some, (0, 1, 2, 3), has_aux=True))(*arguments)

    draw = np.random.default_rng(1)
    dense = results(functools.partial(similarity.several_statistics, engine="dense"))
    draw = np.random.default_rng(1)
    tiled = results(functools.partial(similarity.several_statistics, engine="tiled", tile=tile))
    assert dense[0][1][1].count[3] == 0 and dense[0][1][1].total[3] == 0
    for x, y in zip(jax.tree.leaves(tiled), jax.tree.leaves(dense), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)
