"""Batch norm of every scope against NumPy, and where its statistics are poor."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import sampled

from contrastive_jax import native, sharding
from contrastive_jax.models.norm import BatchNorm, members, norm

B, W, H, C = 8, 2, 3, 4
IDS = np.array([2, 0, 1, 3, 1, 2, 0, 3], np.int32)
SCOPES = {
    "joint": ({"scope": "joint"}, None),
    "per_view": ({"scope": "per_view"}, None),
    "groups": ({"scope": "groups", "groups": 4}, None),
    "given": ({"scope": "groups", "groups": 4}, IDS),
}


def inputs(views=W, space=(H, H)):
    random = np.random.RandomState(0)
    x = random.standard_normal((B, views, *space, C)) * [1, 2, 3, 4] + [0, 1, -2, 30]
    params = {"scale": random.uniform(0.5, 2, C), "bias": random.standard_normal(C)}
    stats = {"mean": random.standard_normal(C), "var": random.uniform(0.5, 2, C)}
    return jax.tree.map(np.float32, (x, params, stats))


def reference(x, params, stats, options, ids):
    """Loops over views and groups in float64."""
    x = x.astype(np.float64)
    batch, views = x.shape[:2]
    options = {"momentum": 0.9, "epsilon": 1e-5, "unbiased": False, "groups": 1} | options
    if options["scope"] == "joint":
        groups = [(slice(None), slice(None))]
    else:
        ids = np.arange(batch) // (batch // options["groups"]) if ids is None else ids
        groups = [(ids == g, slice(v, v + 1)) for v in range(views) for g in range(options["groups"])]
    y, means, variances = np.empty_like(x), [], []
    for rows in groups:
        part = x[rows].reshape(-1, C)
        means.append(part.mean(0))
        variances.append(part.var(0, ddof=1 if options["unbiased"] else 0))
        y[rows] = (x[rows] - part.mean(0)) / np.sqrt(part.var(0) + options["epsilon"])
    keep = options["momentum"]
    new = {
        name: keep * stats[name] + (1 - keep) * np.mean(v, 0)
        for name, v in (("mean", means), ("var", variances))
    }
    return y * params["scale"] + params["bias"], new


@native.jit(static_argnames=("options", "train"))
def ours(x, params, stats, ids, *, options, train=True):
    options = norm(**dict(options))
    share = members(options, x.shape[0], x.shape[1], ids, jnp.float32)
    rows = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    variables = {"params": params, "batch_stats": stats}
    y, new = BatchNorm(options).apply(variables, rows, share, train=train, mutable=["batch_stats"])
    return y.reshape(x.shape), new["batch_stats"]


def frozen(options):
    return tuple(options.items())


@pytest.mark.parametrize("space", [(H, H), ()], ids=["images", "vectors"])
@pytest.mark.parametrize("scope", SCOPES)
def test_scope(scope, space):
    options, ids = SCOPES[scope]
    x, params, stats = inputs(space=space)
    expected, statistics = reference(x, params, stats, options, ids)
    y, new = ours(x, params, stats, ids, options=frozen(options))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), new, statistics)


def test_options():
    options = {"scope": "groups", "groups": 2, "momentum": 0.5, "epsilon": 0.1, "unbiased": True}
    x, params, stats = inputs()
    expected, statistics = reference(x, params, stats, options, None)
    y, new = ours(x, params, stats, None, options=frozen(options))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), new, statistics)


def test_scopes_differ_and_one_group_is_per_view():
    x, params, stats = inputs()
    y = {name: ours(x, params, stats, ids, options=frozen(o))[0] for name, (o, ids) in SCOPES.items()}
    names = list(y)
    assert all(np.abs(y[a] - y[b]).max() > 0.1 for a in names for b in names if a < b)
    one, _ = ours(x, params, stats, None, options=frozen({"scope": "groups", "groups": 1}))
    np.testing.assert_array_equal(one, y["per_view"])


def test_a_view_alone_is_as_among_others_per_view():
    x, params, stats = inputs()
    options = frozen({"scope": "per_view"})
    both, _ = ours(x, params, stats, None, options=options)
    alone, _ = ours(x[:, 1:], params, stats, None, options=options)
    np.testing.assert_allclose(alone, both[:, 1:], rtol=1e-5, atol=1e-5)


def test_permuted_ids_are_permuted_examples():
    """Shuffling batch norm: to give ids is to permute the batch, normalise runs, and permute back."""
    x, params, stats = inputs()
    options = frozen({"scope": "groups", "groups": 4})
    order = np.argsort(IDS, kind="stable")
    given, stats_given = ours(x, params, stats, IDS, options=options)
    runs, stats_runs = ours(x[order], params, stats, None, options=options)
    np.testing.assert_allclose(given[order], runs, rtol=1e-5, atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), stats_given, stats_runs)


def test_uneven_and_empty_groups():
    """Unequal groups weigh in the running statistics by their rows; a group without rows weighs nothing."""
    x, params, stats = inputs(views=1)
    ids = np.array([0, 0, 0, 0, 0, 0, 3, 3], np.int32)
    y, new = ours(x, params, stats, ids, options=frozen({"scope": "groups", "groups": 4}))
    assert np.isfinite(y).all()
    rows = x[:, 0].astype(np.float64)
    mean = rows.reshape(-1, C).mean(0)  # of means weighted by rows: the mean of all
    var = (6 * rows[:6].reshape(-1, C).var(0) + 2 * rows[6:].reshape(-1, C).var(0)) / 8
    np.testing.assert_allclose(new["mean"], 0.9 * stats["mean"] + 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(new["var"], 0.9 * stats["var"] + 0.1 * var, rtol=1e-5)


def test_evaluation_uses_running_statistics_and_keeps_them():
    x, params, stats = inputs()
    y, new = ours(x, params, stats, None, options=frozen({"scope": "joint"}), train=False)
    expected = (x - stats["mean"]) / np.sqrt(stats["var"] + 1e-5) * params["scale"] + params["bias"]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, new, stats)


@pytest.mark.parametrize("ids", [None, IDS % 2], ids=["joint", "groups"])
def test_first_and_second_derivatives(ids):
    """Holding the shift of the second moment constant must not change a derivative of any order."""
    options = {"scope": "joint"} if ids is None else {"scope": "groups", "groups": 2}
    x, params, stats = inputs(space=())
    with jax.enable_x64(True):
        x, params, stats = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (x, params, stats))
        settings = norm(**options)
        weights = jnp.cos(jnp.arange(x.size, dtype=jnp.float64)).reshape(x.shape)

        def module(x):
            share = members(settings, B, W, ids, jnp.float64)
            variables = {"params": params, "batch_stats": stats}
            rows = x.reshape(B * W, C)
            y, _ = BatchNorm(settings).apply(variables, rows, share, train=True, mutable=["batch_stats"])
            return jnp.sum(weights * y.reshape(x.shape) ** 2)

        def plain(x):
            one_hot = np.eye(2)[ids] if ids is not None else np.ones((B, 1))
            views = [x] if ids is None else [x[:, :1], x[:, 1:]]
            out = []
            for v in views:
                count = one_hot.sum(0)[:, None] * v.shape[1]
                mean = one_hot.T @ v.sum(1) / count
                centred = v - (one_hot @ mean)[:, None]
                var = one_hot.T @ jnp.square(centred).sum(1) / count
                out.append(centred / jnp.sqrt(one_hot @ var + 1e-5)[:, None])
            y = jnp.concatenate(out, 1) * params["scale"] + params["bias"]
            return jnp.sum(weights * y**2)

        direction = jnp.sin(jnp.arange(x.size, dtype=jnp.float64) ** 2).reshape(x.shape)
        for f in (jax.grad, lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (direction,))[1]):
            mine, theirs = native.jit(f(module))(x), jax.jit(f(plain))(x)
            assert np.abs(theirs).max() > 1e-2
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9 * float(np.abs(theirs).max()))


def test_a_large_mean_costs_no_digits():
    x = (1000 + np.random.RandomState(0).standard_normal((B, W, H, H, C))).astype(np.float32)
    _, params, stats = inputs()
    expected, _ = reference(x, params, stats, {"scope": "joint"}, None)
    y, _ = ours(x, params, stats, None, options=frozen({"scope": "joint"}))
    np.testing.assert_allclose(y, expected, atol=2e-3)  # x itself is rounded to 6e-5


def test_bfloat16_is_normalised_in_float32():
    x, params, stats = inputs()
    half = jnp.asarray(x, jnp.bfloat16)
    y, new = ours(half, params, stats, None, options=frozen({"scope": "joint"}))
    assert y.dtype == jnp.float32 and all(s.dtype == jnp.float32 for s in new.values())
    expected, _ = ours(half.astype(jnp.float32), params, stats, None, options=frozen({"scope": "joint"}))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"scope": "view"}, "norm.scope is 'view'"),
        ({"scope": "groups", "groups": 0}, "norm.groups is 0"),
        ({"groups": 2}, "needs norm.scope='groups'"),
        ({"momentum": 1.0}, "norm.momentum is 1.0"),
        ({"epsilon": 0.0}, "norm.epsilon is 0.0"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        norm(**options)


def test_bad_batches():
    with pytest.raises(ValueError, match="norm.groups is 3; it must divide the batch of 8 examples"):
        members(norm(scope="groups", groups=3), 8, 2, None, jnp.float32)
    with pytest.raises(ValueError, match="norm.scope is 'joint'; group ids need"):
        members(norm(), 8, 2, IDS, jnp.float32)
    x, params, stats = inputs(space=())
    with pytest.raises(ValueError, match="one value per channel"):
        ours(x, params, stats, None, options=frozen({"scope": "groups", "groups": 8}))


@pytest.mark.skipif(not native.available(), reason="switched off, or no compiler")
@pytest.mark.parametrize("channels", sampled([4, 8, 40], 1))
@pytest.mark.parametrize("scope", sampled(SCOPES, 2))
def test_kernels_give_the_gradients_of_plain_jax(scope, channels):
    """With a residual and a ReLU, and without; on one device and on eight."""
    options, ids = SCOPES[scope]
    settings, random = norm(**options), np.random.RandomState(1)
    shape = (B * W, H, H, channels)
    x, residual, weights = ((3 + random.standard_normal(shape)).astype(np.float32) for _ in range(3))
    params = {"scale": random.uniform(0.5, 2, channels), "bias": random.standard_normal(channels)}
    stats = {"mean": np.zeros(channels, np.float32), "var": np.ones(channels, np.float32)}

    def total(inputs, weights, relu):
        x, residual, params = inputs
        y, new = BatchNorm(settings).apply(
            {"params": params, "batch_stats": stats}, x,
            members(settings, B, W, None if ids is None else jnp.asarray(ids), np.float32),
            train=True, mutable=["batch_stats"], residual=residual if relu else None, relu=relu,
        )  # fmt: skip
        return jnp.sum(weights * y), (y, new)

    inputs = jax.tree.map(np.float32, (x, residual, params))
    for relu in (True, False):
        gradients = jax.value_and_grad(functools.partial(total, relu=relu), has_aux=True)
        program = native.jit(lambda *a, f=gradients: f(*a))
        assert all(name in program.lower(inputs, weights).as_text() for name in ("moments", "sums"))
        wanted = jax.jit(lambda *a, f=gradients: f(*a))(inputs, weights)
        found = [program(inputs, weights)]
        with jax.set_mesh(sharding.make_mesh()):
            rows, everywhere = sharding.ROWS, sharding.REPLICATED
            placed = jax.device_put((inputs, weights), ((rows, rows, everywhere), rows))
            found.append(program(*placed))
        for one in found:
            for mine, theirs in zip(*map(jax.tree.leaves, (one, wanted)), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-5 * np.abs(theirs).max())
