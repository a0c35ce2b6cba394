"""The one call: the family by name for two arrays, against published numbers and by its properties."""

import doctest
import functools
import inspect
import json
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive_jax import contrastive_loss, losses, macl_temperature, ntxent, sharding, sigmoid_loss
from contrastive_jax.contrast import margin
from contrastive_jax.contrast.contrastive_loss import CANDIDATES

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
FAST_COMPILE = {"xla_backend_optimization_level": 0}
# Every contrastive loss with options other than its defaults.
FAMILY = {
    "info_nce": {},
    "flat_nce": {},
    "flat_nce_plus": {},
    "hoelder_flat_nce": {"gamma": 2.0},
    "dcl": {},
    "dclw": {"sigma": 0.7},
    "eqco": {"alpha": 64.0},
    "relative": {},
    "scaled": {},
    "macl": {},
    "macl_w": {},
    "dual_temperature": {"factor": 5.0},
    "decoupled_nt_xent": {"lambda_weight": 0.3},
    "debiased": {"tau_plus": 0.02},
    "hard_nce": {"beta": 0.5, "tau_plus": 0.02},
    "hardness_weighted": {"alpha": 0.5},
    "relic_kl": {"stop_gradient_same": True},
}
SYMMETRIC = [name for name in FAMILY if name != "relic_kl"]  # all queries play the same part
ROWS, WIDTH = 8, 3


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def views(seed=0, rows=ROWS, width=WIDTH, dtype="float64"):
    a, noise = np.random.default_rng(seed).normal(size=(2, rows, width))
    return jnp.asarray(a, dtype), jnp.asarray(a + 0.5 * noise, dtype)


def compiled(function, **options):
    return jax.jit(function, compiler_options=FAST_COMPILE, **options)


def with_gradients(losses):
    """``losses(a, b) -> {name: values}`` with the gradients of their means, as one program."""

    def run(a, b):
        found = {}
        for name, loss in losses.items():
            values, pull = jax.vjp(loss, a, b)
            found[name] = values, pull(jnp.full_like(values, 1 / values.size))
        return found

    return compiled(run)


def family(**options):
    """The whole family as functions of two views."""
    return {
        name: functools.partial(contrastive_loss, loss=name, temperature=0.3, **own, **options)
        for name, own in FAMILY.items()
    }


def assert_close(ours, expected, tolerance):
    """Leaf by leaf, relative to the largest entry."""
    for (path, x), y in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(expected), strict=True):
        scale = max(np.abs(y).max(), 1e-3)
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path))


# Published numbers


def golden(file, name):
    arrays = np.load(GOLDEN / f"{file}.npz")
    case = next(c for c in json.loads(str(arrays["index"])) if c["case"] == name)
    return case, lambda field: arrays[f"{name}/{field}"]


@pytest.mark.parametrize("name", ["n8_d16_t0.5", "nonorm_n6_d10_t0.5", "n1_d4_t0.5"])
def test_simclrs_code_is_twice_the_mean(x64, name):
    case, field = golden("ntxent_simclr_tf2", name)
    score = "cosine" if case["hidden_norm"] else "dot"
    loss = functools.partial(contrastive_loss, loss="info_nce", temperature=case["temperature"], score=score)
    values, gradients = with_gradients({"it": loss})(*jnp.split(jnp.asarray(field("z")), 2))["it"]
    np.testing.assert_allclose(values, np.concatenate([field("loss_a"), field("loss_b")]), rtol=1e-9)
    np.testing.assert_allclose(2 * values.mean(), field("loss"), rtol=1e-9)
    np.testing.assert_allclose(2 * np.concatenate(gradients), field("grad"), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["n8_d16_t0.5", "same_n9_d7_t0.2"])
def test_dcls_code_is_twice_the_mean_and_lightlys_is_the_mean(x64, name):
    case, field = golden("dcl", name)
    tau = case["temperature"]
    found = with_gradients(
        {
            "dcl": lambda a, b: contrastive_loss(a, b, "dcl", tau),
            "dclw0.5": lambda a, b: contrastive_loss(a, b, "dclw", tau, sigma=0.5, detach=False),
            "lightly_dcl": lambda a, b: contrastive_loss(a, b, "dcl", tau),
            "lightly_dclw0.5": lambda a, b: contrastive_loss(a, b, "dclw", tau, sigma=0.5),
        }
    )(jnp.asarray(field("z1")), jnp.asarray(field("z2")))
    for loss, (values, gradients) in found.items():
        factor = 1 if loss.startswith("lightly") else 2
        np.testing.assert_allclose(factor * values.mean(), field(f"{loss}.loss"), rtol=1e-9)
        for gradient, which in zip(gradients, ("g1", "g2"), strict=True):
            expected = field(f"{loss}.{which}")
            assert np.linalg.norm(factor * gradient - expected) <= 1e-9 * np.linalg.norm(expected), loss
    np.testing.assert_allclose(found["dcl"][0], field("exact_per_sample"), rtol=1e-9)


@pytest.mark.parametrize("name", ["n8_d16_t0.5", "n10_d8_t0.15"])
def test_macls_code_is_one_way(x64, name):
    case, field = golden("macl", name)
    tau = {
        "a": macl_temperature(case["tau_0"], case["alpha"]),
        "b": macl_temperature(case["tau_0"], case["beta"], form="linear"),
        "number": float(field("tau_a")),
    }
    one_way = dict(candidates="other_view", directions="one_way")
    found = with_gradients(
        {
            form: functools.partial(contrastive_loss, loss="macl", temperature=tau[form], **one_way)
            for form in tau
        }
    )(jnp.asarray(field("z1")), jnp.asarray(field("z2")))
    for form, (values, gradients) in found.items():
        published = "a" if form == "number" else form
        assert values.shape == (case["N"],)
        np.testing.assert_allclose(values, field(f"eq14_{published}_per_sample"), rtol=1e-9)
        for i in range(2):
            expected = field(f"eq14_{published}_g{i + 1}")
            np.testing.assert_allclose(gradients[i], expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", ["n8_d16_t0.5", "n3_d4_t0.2"])
def test_dual_temperature(x64, name):
    case, field = golden("dual_temperature", name)
    dual = dict(
        loss="dual_temperature",
        temperature=case["temperature"],
        factor=float(case["dt_m"]),
        candidates="other_view",
    )
    found = with_gradients(
        {
            "one_way": functools.partial(contrastive_loss, directions="one_way", **dual),
            "sym": functools.partial(contrastive_loss, **dual),
        }
    )(jnp.asarray(field("z1")), jnp.asarray(field("z2")))
    np.testing.assert_allclose(found["one_way"][0], field("exact_per_sample_one_way"), rtol=1e-9)
    for way, (values, gradients) in found.items():
        np.testing.assert_allclose(values.mean(), field(f"{way}.loss"), rtol=1e-9)
        for i in range(2):
            np.testing.assert_allclose(gradients[i], field(f"{way}.g{i + 1}"), rtol=1e-8, atol=1e-11)


# One result: whatever the engine, the devices, the batching or the type


@pytest.fixture(scope="module")
def one_device():
    """The family in float64 on one device, by the dense engine."""
    with jax.enable_x64(True):
        return jax.device_get(with_gradients(family(engine="dense"))(*views()))


def test_the_family_is_the_whole_module():
    from contrastive_jax.losses import contrastive

    helpers = {
        "at_least_float32",
        "check_option",
        "plus",
        "positive_option",
        "softplus_over_sigmoid",
        "value_with_gradient_of",
    }
    defined = {
        n
        for n, f in vars(contrastive).items()
        if getattr(f, "__module__", "") == contrastive.__name__ and not n.startswith("_")
    }
    assert defined - helpers == set(FAMILY) - {"relic_kl"}


def test_every_loss_has_a_gradient_and_unreduced_values(one_device):
    for name, (values, gradients) in one_device.items():
        assert values.shape == (2 * ROWS,) and values.dtype == np.float64, name
        assert all(np.abs(g).max() > 1e-4 and np.isfinite(g).all() for g in gradients), name


@pytest.mark.run
def test_tiled_is_dense(x64, one_device):
    assert_close(with_gradients(family(engine="tiled"))(*views()), one_device, 1e-12)


@pytest.mark.run
@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_eight_devices_are_one(x64, one_device, engine):
    """The gradient through the gathered negatives included: each device's rows pull on everybody's."""
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        rows = sharding.named(mesh, sharding.ROWS)
        found = with_gradients(family(engine=engine))(*(jax.device_put(x, rows) for x in views()))
        assert found["info_nce"][0].sharding.spec == sharding.ROWS
        assert found["info_nce"][1][0].sharding.spec[0] == sharding.AXIS
        assert_close(found, one_device, 1e-12)


@pytest.mark.run
def test_subsets_and_queues_on_eight_devices(x64):
    queue = jnp.asarray(np.random.default_rng(1).normal(size=(16, WIDTH)))
    own = jnp.arange(16) // 2  # of the queue: two of every example's group

    def losses():
        key = jax.random.key(3)
        few = functools.partial(contrastive_loss, loss="dcl", temperature=0.3)
        return {
            "subset": functools.partial(few, negatives=3, key=key),
            "shared": functools.partial(few, negatives=3, key=key, shared=True, candidates="other_view"),
            "queue": functools.partial(
                few, queue=queue, queue_group=own, group=jnp.arange(ROWS), candidates="queue"
            ),
            "all": functools.partial(few, queue=queue, group=jnp.arange(ROWS) // 2),
        }

    one = jax.device_get(with_gradients(losses())(*views()))
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        assert_close(with_gradients(losses())(*views()), one, 1e-12)  # inputs replicated: spread inside
        with pytest.raises(ValueError, match="N=6 rows; N must be a multiple of the 8 devices"):
            contrastive_loss(*views(rows=6))


@pytest.mark.run
@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_vmap_is_a_loop(engine):
    loss = functools.partial(contrastive_loss, loss="info_nce", temperature=0.3, engine=engine)
    a, b = (jnp.stack(x) for x in zip(*(views(seed, dtype="float32") for seed in range(3)), strict=True))
    gradient = jax.value_and_grad(lambda a, b: loss(a, b).sum())
    looped = compiled(lambda a, b: [gradient(a[i], b[i]) for i in range(3)])(a, b)
    assert_close(compiled(jax.vmap(gradient))(a, b), jax.tree.map(lambda *x: jnp.stack(x), *looped), 1e-6)


@pytest.mark.run
@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_half_precision_is_computed_in_true_float32(engine):
    losses = {name: loss for name, loss in family(engine=engine).items() if name in ("info_nce", "dclw")}
    exact_of = with_gradients(losses)
    for dtype in ("bfloat16", "float16"):
        a, b = views(dtype=dtype)
        found, exact = with_gradients(losses)(a, b), exact_of(a.astype("float32"), b.astype("float32"))
        for name, (values, gradients) in found.items():
            assert values.dtype == jnp.float32 and all(g.dtype == dtype for g in gradients), name
            np.testing.assert_allclose(values, exact[name][0], rtol=1e-6, err_msg=name)
            for ours, full in zip(gradients, exact[name][1], strict=True):  # rounded at the very end
                np.testing.assert_allclose(ours.astype("float32"), full, rtol=2**-7, atol=2e-3, err_msg=name)


def test_float32_stays_float32_where_float64_exists(x64):
    for dtype in ("float32", "float64"):
        shapes = jax.eval_shape(lambda a, b: [f(a, b) for f in family().values()], *views(dtype=dtype))
        assert {str(s.dtype) for s in shapes} == {dtype}
    shape = jax.eval_shape(
        lambda a, b: contrastive_loss(a, b, "macl", macl_temperature(0.1, 2.0)), *views(dtype="float32")
    )
    assert shape.dtype == jnp.float32


# The arguments mean what they say


def test_all_negatives_are_the_plain_loss(x64):
    a, b = views()
    key = jax.random.key(0)
    for candidates, most in (("both_views", 2 * (ROWS - 1)), ("other_view", ROWS - 1)):
        loss = functools.partial(contrastive_loss, loss="info_nce", temperature=0.3, candidates=candidates)
        drawn = compiled(functools.partial(loss, negatives=np.int64(most), key=key))(a, b)
        np.testing.assert_allclose(drawn, compiled(loss)(a, b), rtol=1e-12)


def test_candidates_and_groups_by_hand(x64):
    """Against a loop over rows that is written from the definition."""
    a, b = views()
    queue = np.random.default_rng(2).normal(size=(5, WIDTH))
    group, queue_group = np.array([0, 0, 1, 2, 3, 4, 5, 6]), np.array([0, 1, 9, 9, 7])

    def by_hand(pool):
        u, v, w = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in map(np.asarray, (a, b, queue)))
        rows = []
        for query, key in ((u, v), (v, u)):
            candidates = {"both_views": [u, v], "other_view": [key], "own_view": [query], "queue": []}[pool]
            candidates = [*candidates, w]
            groups = np.concatenate([group] * (len(candidates) - 1) + [queue_group])
            score = query @ np.concatenate(candidates).T
            for i in range(ROWS):
                above = (score[i, groups != group[i]] - query[i] @ key[i]) / 0.3
                rows.append(np.log(np.exp(above).sum()))
        return np.array(rows)

    for pool in CANDIDATES:
        further = dict(candidates=pool, queue=jnp.asarray(queue), queue_group=queue_group, group=group)
        ours = compiled(functools.partial(contrastive_loss, loss="dcl", temperature=0.3, **further))(a, b)
        np.testing.assert_allclose(ours, by_hand(pool), rtol=1e-9, err_msg=pool)


def test_the_queue_is_everybodys_unless_it_says_so(x64):
    a, b = views()
    queue = jnp.ones((1, WIDTH))
    at_infinity = functools.partial(contrastive_loss, a, b, "info_nce", 1e9, queue=queue)  # log(1 + K)
    np.testing.assert_allclose(at_infinity(), np.log(1 + 2 * ROWS - 2 + 1), rtol=1e-6)
    same = jnp.full(ROWS, -1)
    np.testing.assert_allclose(at_infinity(group=same), np.log(1 + 1), rtol=1e-6)
    np.testing.assert_array_equal(at_infinity(group=same, queue_group=same[:1]), 0)  # no negatives
    ends = np.arange(ROWS, dtype=np.uint8)
    ends[-1] = 255  # below 0 comes 255
    np.testing.assert_allclose(at_infinity(group=ends), np.log(1 + 2 * ROWS - 2 + 1), rtol=1e-6)
    several = at_infinity(positives=ends, summation="in")
    np.testing.assert_allclose(several, np.log(1 + 2 * ROWS - 2 + 1), rtol=1e-6)


def test_margin_is_eqco(x64):
    a, b = views()
    margined = contrastive_loss(a, b, "info_nce", 0.3, margin=margin.eqco(alpha=64))
    np.testing.assert_allclose(margined, contrastive_loss(a, b, "eqco", 0.3, alpha=64.0), rtol=1e-12)


@pytest.mark.parametrize("gamma", [-2.0, 0.0, 3.0])
@pytest.mark.parametrize("engine", ["dense", "tiled", "ring"])
def test_hoelder_is_the_gradient_of_the_power_mean(x64, gamma, engine):
    """Against log M_gamma of e^x by its definition, x = (s - s+) / tau; at 0 that of the geometric mean."""

    def mean_of_logs(a, b):
        u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        x = (u @ v.T - jnp.sum(u * v, axis=1, keepdims=True)) / 0.3
        others = ~np.eye(ROWS, dtype=bool)
        if gamma:
            return jnp.mean(jax.nn.logsumexp(gamma * x, axis=1, where=others) / gamma)
        return jnp.mean(x, where=others)

    def ours(a, b):
        way = dict(candidates="other_view", directions="one_way", engine=engine)
        return contrastive_loss(a, b, "hoelder_flat_nce", 0.3, gamma=gamma, **way).mean()

    found, expected = (compiled(jax.value_and_grad(loss, (0, 1)))(*views()) for loss in (ours, mean_of_logs))
    assert found[0] == 1
    assert_close(found[1], expected[1], 1e-12)


def test_temperature_may_be_traced_and_carries_no_gradient():
    a, b = views(dtype="float32")
    loss = compiled(jax.value_and_grad(lambda tau: contrastive_loss(a, b, "info_nce", tau).mean()))
    value, slope = loss(jnp.float32(0.3))
    np.testing.assert_allclose(value, contrastive_loss(a, b, "info_nce", 0.3).mean(), rtol=1e-6)
    assert slope == 0 and value != loss(jnp.float32(0.2))[0]


# Properties

FEW = settings(max_examples=8, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)


@functools.cache
def family_values():
    return compiled(lambda a, b: {name: f(a, b) for name, f in family().items()})


@FEW
@given(seeds)
def test_permuting_the_batch_permutes_the_values(seed):
    with jax.enable_x64(True):
        a, b = views(seed)
        order = np.random.default_rng(seed).permutation(ROWS)
        twice = np.concatenate([order, order + ROWS])
        expected = {name: v[twice] for name, v in family_values()(a, b).items()}
        assert_close(family_values()(a[order], b[order]), expected, 1e-11)


@FEW
@given(seeds)
def test_the_cosine_does_not_see_the_scale(seed):
    with jax.enable_x64(True):
        a, b = views(seed)
        size = np.exp(np.random.default_rng(seed).uniform(-4, 4, size=(2, ROWS, 1)))
        assert_close(family_values()(a * size[0], b * size[1]), family_values()(a, b), 1e-11)


@FEW
@given(seeds)
def test_swapping_the_views_swaps_the_halves(seed):
    with jax.enable_x64(True):
        a, b = views(seed)
        expected = {name: jnp.roll(v, ROWS) for name, v in family_values()(a, b).items()}
        assert_close(family_values()(b, a), expected, 1e-11)


@functools.cache
def family_with_a_queue():
    def run(a, b, queue, queue_group, group):
        options = dict(queue=queue, queue_group=queue_group, group=group)
        return {name: f(a, b) for name, f in family(**options).items()}

    return compiled(run)


@FEW
@given(seeds, st.sampled_from([1e-3, 1.0, 1e6]))
def test_candidates_that_are_not_permitted_change_nothing(seed, size):
    """Half of the queries share their group with the further candidates, whatever these are."""
    with jax.enable_x64(True):
        a, b = views(seed)
        run = family_with_a_queue()
        group = jnp.asarray([0, 0, 0, 0, 1, 2, 3, 4])
        queue = size * jnp.asarray(np.random.default_rng(seed).normal(size=(4, WIDTH)))
        first, second = (run(a, b, queue * factor, jnp.zeros(4, jnp.int32), group) for factor in (1, -3))
        closed = np.tile(np.asarray(group) == 0, 2)
        for name in FAMILY:
            np.testing.assert_allclose(first[name][closed], second[name][closed], rtol=1e-12, err_msg=name)
        assert np.abs(first["dcl"][~closed] - second["dcl"][~closed]).max() > 1e-3  # the others did meet them


# Errors

A, B = jnp.ones((4, 2)), jnp.ones((4, 2))


def test_a_loss_may_be_a_function_too():
    """In a notebook there is no module to name it by."""

    def squared(c, *, power=2.0):
        return jnp.maximum(c, 0.0) ** power

    c = contrastive_loss(A, B, "dcl", 0.2)
    np.testing.assert_array_equal(contrastive_loss(A, B, losses.dcl, 0.2), c)
    found = jax.jit(lambda a, b: contrastive_loss(a, b, squared, 0.2, power=3.0))(A, B)
    np.testing.assert_allclose(found, np.maximum(c, 0) ** 3, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(loss="flat_nec"), "loss 'flat_nec' does not exist. Did you mean 'flat_nce'"),
        (
            dict(loss="hoelder_flat_nce", gama=2.0),
            r"no option 'gama'; its signature is hoelder_flat_nce\(c_gamma, surplus=None, \*, gamma=1.0\)",
        ),
        (dict(loss="hoelder_flat_nce", gamma=np.inf), "hoelder_flat_nce.gamma is inf; it must be in"),
        (dict(loss="eqco"), r"the option 'alpha' is missing; its signature is eqco\(c"),
        (dict(engin="tiled"), "no option 'engin'.*Did you mean the argument 'engine'"),
        (dict(weight=2.0), "has no option weight"),
        (dict(tau=2.0), "Did you mean the argument 'temperature'"),
        (dict(reduction="mean"), "apply jnp.mean"),
        (
            dict(loss="uniformity"),
            "needs 'population', .* call contrastive_jax.losses.unif",
        ),
        (dict(loss="fenchel_legendre"), r"needs 'u', .*: call contrastive_jax.losses.fenchel_legendre\(c"),
        (dict(score="euclid"), "score is 'euclid'; allowed: cosine, dot"),
        (dict(candidates="batch"), "candidates is 'batch'; allowed: both_views, other_view, own_view, queue"),
        (dict(directions="two"), "directions is 'two'; allowed: both, one_way"),
        (dict(engine="sparse", negatives=3, key=jax.random.key(0)), "engine is 'sparse'; allowed"),
        (dict(engine="tiled", negatives=3, key=jax.random.key(0)), "engine is 'tiled'; it must be 'auto'"),
        (dict(shared=True), "shared is True without negatives"),
        (dict(temperature=0.0), "contrastive_loss.temperature is 0.0; a temperature must be positive"),
        (dict(temperature=float("nan")), "contrastive_loss.temperature is nan"),
        (dict(temperature=True), "contrastive_loss.temperature is True; it must be a positive number"),
        (dict(loss="hard_nce", beta=None), "loss.hard_nce: beta is None; it must be a number"),
        (dict(loss="hard_nce", beta=float("inf")), "hard_nce.beta is inf; it must be positive and finite"),
        (
            dict(loss="hardness_weighted", alpha=float("inf")),
            "alpha is inf; it must be at least 0 and finite",
        ),
        (dict(loss="eqco", alpha=[3.0, 4.0]), r"eqco.alpha is \[3.0, 4.0\]; it must be positive"),
        (dict(negatives=3, key=0), "contrastive_loss.key is 0; it must be a jax random key"),
        (
            dict(temperature=jnp.ones(3)),
            r"temperature has shape \(3,\); it must be a scalar, \(4,\), one for each",
        ),
        (dict(temperature="0.1"), "temperature is '0.1'; it must be a positive number"),
        (dict(negatives=3), "negatives is 3; it needs the argument key"),
        (dict(key=jax.random.key(0)), "key is given without negatives"),
        (dict(loss="eqco", alpha="64"), "eqco.alpha is '64'; it must be a number"),
        (dict(loss="dual_temperature", factor="10"), "dual_temperature.factor is '10'; it must be a number"),
        (dict(loss="decoupled_nt_xent", self_pair="no"), "self_pair is 'no'; it must be True or False"),
        (dict(score=["cosine"]), r"score is \['cosine'\]; allowed: cosine, dot"),
        *(
            (
                dict(negatives=wrong, key=jax.random.key(0)),
                f"contrastive_loss.negatives is {wrong!r}; it must be a whole",
            )
            for wrong in (0, 2.5, "3", True)
        ),
        (dict(negatives=7, key=jax.random.key(0)), "negatives is 7; it must be at most 6"),
        (
            dict(negatives=4, key=jax.random.key(0), candidates="other_view"),
            "negatives is 4; it must be at most 3",
        ),
        (dict(candidates="queue"), "it needs the argument queue, an array"),
        (dict(queue=jnp.ones((5, 3))), r"queue has shape \(5, 3\); it must be \[M, 2\]"),
        (dict(queue_group=jnp.ones(5)), "it needs the argument queue"),
        (dict(queue=jnp.ones((5, 2)), queue_group=jnp.ones(4, int)), r"it must be \(5,\)"),
        (dict(queue=jnp.ones((5, 2)), queue_group=jnp.ones(5, int)), "queue_group is given without ids"),
        (dict(group=jnp.ones(8)), r"group has shape \(8,\); it must be \(4,\)"),
        (dict(positives=jnp.ones(3)), r"positives has shape \(3,\); it must be \(4,\)"),
        (
            dict(positives=jnp.ones(4, int), group=jnp.ones(4, int)),
            "positives and contrastive_loss.group are both given",
        ),
        (dict(positives=jnp.ones(4, int), summation="mean"), "summation is 'mean'; allowed: out, in"),
        (dict(loss="macl", positives=jnp.ones(4, int)), "'macl'.*summation='in'"),
        (dict(loss="macl_w", positives=jnp.ones(4, int), summation="in"), "'macl_w', which uses 'positive'"),
        (
            dict(loss="relic_kl", positives=jnp.ones(4, int)),
            "'relic_kl', which uses 'cross'",
        ),
        (
            dict(loss="hard_nce", margin=margin.eqco(alpha=64.0)),
            "margin cancels in the gradient of 'hard_nce'",
        ),
        (
            dict(loss="relic_kl", margin=margin.eqco(alpha=64.0)),
            "margin has no effect on 'relic_kl'",
        ),
        (
            dict(loss=functools.partial(losses.eqco, alpha=64.0), margin=margin.eqco(alpha=64.0)),
            "eqco",
        ),
        (
            dict(loss=functools.partial(losses.debiased, tau_plus=0.1), score="dot"),
            "'cosine' with loss 'debiased'",
        ),
        (
            dict(loss="eqco", alpha=64.0, margin=margin.eqco(alpha=64.0)),
            "margin would be added to the margin that is part of 'eqco'",
        ),
        (
            dict(temperature=macl_temperature(0.1), score="dot"),
            "score is 'dot'; it must be 'cosine' with macl_temperature",
        ),
        (dict(temperature=lambda a: jnp.full(4, 0.1)), r"temperature returns an array of shape \(4,\)"),
        (
            dict(loss="macl_w", score="dot"),
            "score is 'dot'; it must be 'cosine' with loss 'macl_w'",
        ),
        (dict(loss="debiased", score="dot"), "with loss 'debiased'"),
        (dict(loss="hard_nce", tau_plus=0.1, score="dot"), "with loss 'hard_nce'"),
        (dict(loss="decoupled_nt_xent", self_pair=True, score="dot"), "with loss 'decoupled_nt_xent'"),
        (dict(group=np.array([0.0, 1, 2, 3])), "group is float64; it must be integer ids"),
        (dict(positives=np.array(list("aabc"))), "positives is <U1; it must be integer ids"),
        (dict(loss="hard_nce", beta=0.0), "hard_nce.beta is 0.0; it must be positive"),
        (dict(loss="debiased", tau_plus=1.0), r"debiased.tau_plus is 1.0; it must be in \[0, 1\)"),
        (
            dict(loss="hardness_weighted", alpha=-1.0),
            "hardness_weighted.alpha is -1.0; it must be at least 0",
        ),
        (dict(margin=64.0), r"margin is 64.0; it must be a rule of contrast.margin"),
        (dict(a=[[1.0, 2.0]]), "contrastive_loss.a is a list; it must be a NumPy or JAX array"),
        (dict(a=lambda x: x), "contrastive_loss.a is a function; it must be a NumPy or JAX array"),
        (dict(b=np.ones((4, 2), int)), "contrastive_loss.b is int64; it must be floating"),
        (dict(loss=3), "contrastive_loss.loss is a int; it must be the name of"),
        (dict(loss=lambda x: x), "loss.<lambda> has the argument 'x'; allowed arguments: c"),
        (dict(b=jnp.ones((4, 3))), r"a \(4, 2\) and b \(4, 3\) must both be \[N, D\]"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        contrastive_loss(**{"a": A, "b": B} | arguments)


@pytest.mark.parametrize(
    "wide", [np.array([0, 2**32, 1, 1 + 2**32]), np.array([2**32 - 1, 0, 1, 2], np.uint32)]
)
def test_ids_of_more_than_32_bits_stay_apart(wide):
    """JAX cuts them: ids that differ by 2^32 were one group, and the largest of 32 bits was -1."""
    few = np.array([0, 1, 2, 3])
    a, b, further = jax.random.normal(jax.random.key(1), (3, 4, 2))
    for name in ("group", "positives"):

        def read(ids, *queue_group, name=name):
            found = {"queue": further, "queue_group": np.array(queue_group), name: ids}
            return contrastive_loss(a, b, "info_nce", **found)

        np.testing.assert_array_equal(read(wide, -1, wide[1], wide[1], -1), read(few, -1, 1, 1, -1))
    np.testing.assert_array_equal(ntxent(a, wide), ntxent(a, few))
    np.testing.assert_array_equal(sigmoid_loss(a, b, positives=wide), sigmoid_loss(a, b, positives=few))
    with pytest.raises(ValueError, match="queue_group has ids of more than 32 bits, and group is traced"):
        jax.jit(lambda g: contrastive_loss(a, b, group=g, queue=further, queue_group=[2**40, 1, 2, 3]))(few)


def test_traced_ids_of_both_signs_are_refused():
    """2^32 - 1 and -1 were one group under jit."""
    queue, group = jnp.ones((2, 2)), np.arange(4, dtype=np.uint32)
    of = jax.jit(lambda group, other: contrastive_loss(A, B, group=group, queue=queue, queue_group=other))
    with pytest.raises(ValueError, match="group uint32, queue_group int32, and group is traced"):
        of(group, np.array([-1, 0], np.int32))
    assert of(group, np.array([7, 0], np.uint32)).shape == (8,)


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (
            lambda x: contrastive_loss(A, B, "eqco", alpha=x),
            "eqco.alpha is .* finite, and a constant under jit",
        ),
        (lambda x: contrastive_loss(A, B, "hard_nce", beta=x), "hard_nce: beta is .* a constant under jit"),
        (lambda x: contrastive_loss(A, B, "debiased", tau_plus=x), "tau_plus is .* a constant under jit"),
        (lambda x: contrastive_loss(A, B, margin=margin.eqco(alpha=x)), "alpha is .* a constant under jit"),
        (lambda x: contrastive_loss(A, B, "macl", macl_temperature(x)), r"lambda A: tau0 \* alpha\*\*A"),
    ],
)
def test_options_are_constants_under_jit(of, message):
    with pytest.raises(ValueError, match=message):
        jax.jit(of)(0.5)


def test_a_queue_of_numpy_is_one_of_jax():
    queue, key = np.arange(12.0, dtype=np.float32).reshape(6, 2), jax.random.key(0)
    options = {"score": "dot", "candidates": "queue", "negatives": 3, "key": key}
    found, expected = (contrastive_loss(A, B, queue=of, **options) for of in (queue, jnp.asarray(queue)))
    np.testing.assert_array_equal(found, expected)


def test_a_score_of_its_own_range_is_allowed_where_no_cosine_is_read():
    for options in (
        dict(loss="hard_nce"),
        dict(loss="decoupled_nt_xent"),
        dict(loss="debiased", tau_plus=0.0),
    ):
        assert np.isfinite(contrastive_loss(A, B, score="dot", **options)).all()


def test_a_traced_temperature_that_is_not_positive_is_nan():
    of = jax.jit(lambda tau: contrastive_loss(A, B, "info_nce", tau))
    assert np.isfinite(of(0.1)).all() and np.isnan(of(-0.1)).all() and np.isnan(of(0.0)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(tau0=0.0), "macl_temperature.tau0 is 0.0"),
        (dict(tau0="0.1"), "macl_temperature.tau0 is '0.1'; it must be a number"),
        (dict(alpha=None), "macl_temperature.alpha is None; it must be a number"),
        (dict(alpha=-1.0), "macl_temperature.alpha is -1.0"),
        (dict(form="linear"), "macl_temperature.alpha is 2.0; .* above -1 and below 1"),
        (dict(form="icml"), "form is 'icml'; allowed: exponential, linear"),
    ],
)
def test_macls_temperature_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        macl_temperature(**arguments)


@pytest.mark.run
def test_the_examples_of_the_documentation():
    assert doctest.testmod(inspect.getmodule(contrastive_loss)).failed == 0
    page = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "contrastive_loss.md"
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", page.read_text(), re.DOTALL))
    test = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner().run(test).failed == 0
    assert all(f'"{name}"' in examples for name in FAMILY)


@pytest.mark.run
def test_importing_the_package_is_light():
    code = "import sys, contrastive_jax; print('jax' in sys.modules); contrastive_jax.contrastive_loss"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_default_is_info_nce():
    np.testing.assert_array_equal(contrastive_loss(A, B), contrastive_loss(A, B, "info_nce", 0.1))
