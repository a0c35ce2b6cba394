"""Exact where the usual form breaks: errors of the gradient in float32 and half precision."""

import functools
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import sampled

from contrastive_jax import contrastive_loss, losses

FIGURE = pathlib.Path(__file__).parents[2] / "experiments" / "flatnce" / "figure_precision.py"
FAMILY = {
    "info_nce": {},
    "flat_nce": {},
    "flat_nce_plus": {},
    "hoelder_flat_nce": {"gamma": 2.0},
    "dcl": {},
    "dclw": {},
    "eqco": {"alpha": 64.0},
    "relative": {},
    "scaled": {},
    "macl": {},
    "macl_w": {},
    "dual_temperature": {},
    "decoupled_nt_xent": {"lambda_weight": 0.3},
    "relic_kl": {},
}
MEASURED = ("info_nce", "flat_nce", "dcl", "macl", "dual_temperature")


@pytest.fixture(scope="module")
def figure():
    spec = importlib.util.spec_from_file_location("figure_precision", FIGURE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def measured(request, figure):
    return request.param, figure.measure(request.param)


def test_ours_from_given_scores(measured, figure):
    """1e-5 wherever the exact norm is above 1e-30; in half precision the rounding of what is returned."""
    dtype, results = measured
    kind = jnp.finfo(dtype)
    for name, (error, norm) in results.items():
        if not name.endswith("ours"):
            continue
        assert np.isfinite(error).all(), name
        flushed = (float(kind.tiny) if dtype != "float32" else 0) * np.sqrt(1 + figure.NEGATIVES) / norm
        rounded = float(kind.eps) if dtype != "float32" else 0
        inside = norm > figure.SMALLEST
        assert (error <= 1e-5 + rounded + flushed)[inside].all(), (name, error[inside].max())
        if name.split("\n")[0] in ("FlatNCE", "DCL", "MACL"):
            assert inside.all() and error.max() <= 1e-6 + rounded, name  # at every point


def test_the_usual_forms_break(measured, figure):
    """What the figure shows, so that it cannot become true by a change of the measure."""
    dtype, results = measured
    for usual, exact in (("cross-entropy", "ours"), ("exp / sum", "ours")):
        error, norm = results[f"InfoNCE\n{usual}"]
        inside = norm > figure.SMALLEST
        assert error[inside].max() > 0.5, usual
        if dtype == "float32":
            assert (error > 1e-2)[inside].mean() > 0.2 and (results[f"InfoNCE\n{exact}"][0] < 1e-5)[
                inside
            ].all()
    for name in ("MACL", "Dual"):
        error, _ = results[f"{name}\nas published"]
        assert np.isinf(error).mean() > 0.2, name
    # Where the temperature is high nothing is saturated and all agree.
    warm = figure.TEMPERATURES > 0.9
    for name, (error, _) in results.items():
        assert error[warm].max() < 20 * float(jnp.finfo(dtype).eps), name


def test_infonce_at_any_temperature(figure, monkeypatch):
    """No accident of the grid: 200 temperatures where e^c is near the end of float32, by both engines."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(figure, "TEMPERATURES", np.exp(rng.uniform(-4.6, -3.4, 200)).astype(np.float32))
    for engine in ("dense", "tiled"):
        monkeypatch.setitem(figure.LOSSES, engine, (figure.ours("info_nce", engine), "sigmoid(c)"))
        error, norm = figure.measure("float32", (engine,))[engine]
        assert (norm > figure.SMALLEST).sum() > 10_000
        assert error[norm > figure.SMALLEST].max() <= 1e-5, engine


def with_gap(gaps, rows, seed=0):
    """Views [gaps, rows, 16] whose positives score about 1 and whose negatives about 1 - gap."""
    rng = np.random.default_rng(seed)
    direction = np.linalg.qr(rng.normal(size=(16, 16)))[0][: rows + 1]
    views = []
    for gap in gaps:
        if gap <= 1:
            mean = np.sqrt(1 - gap) * direction[0] + np.sqrt(gap) * direction[1 : rows + 1]
        else:  # two examples, almost opposite
            angle = np.arccos(1 - gap) * np.arange(2)[:, None]
            mean = np.cos(angle) * direction[0] + np.sin(angle) * direction[1]
        size = rng.uniform(0.5, 2, size=(2, len(mean), 1))
        views.append(size * (mean + 0.05 * rng.normal(size=(2, *mean.shape))))
    a, b = np.moveaxis(np.array(views), 1, 0)
    return a.astype(np.float32), b.astype(np.float32)


@pytest.mark.parametrize(("gaps", "rows"), sampled([((1.2, 1.5, 1.8), 2), ((0.2, 0.5, 0.8, 1.0), 8)], 1))
def test_ours_from_given_embeddings(gaps, rows):
    """float32 embeddings: 1e-6 / tau, which is the rounding of a score of 1."""
    a, b = with_gap(gaps, rows)
    taus = np.geomspace(0.01, 1, 9).astype(np.float32)

    def gradients(a, b, tau):
        def of(name):
            return jax.grad(lambda a, b: contrastive_loss(a, b, name, tau).sum(), (0, 1))(a, b)

        return {name: jnp.stack(of(name)) for name in MEASURED}

    over = jax.jit(jax.vmap(jax.vmap(gradients, (None, None, 0)), (0, 0, None)))
    ours = jax.device_get(over(a, b, taus))
    with jax.enable_x64(True):
        exact = jax.device_get(over(a.astype(float), b.astype(float), taus.astype(float)))
    for name in MEASURED:
        assert ours[name].dtype == np.float32 and exact[name].dtype == np.float64
        norm = np.linalg.norm(exact[name].reshape(len(gaps), len(taus), -1), axis=-1)
        difference = (ours[name] - exact[name]).reshape(*norm.shape, -1)
        error = np.linalg.norm(difference, axis=-1) / norm
        inside = norm > 1e-30
        assert inside.all() or name == "info_nce"
        assert (error * taus)[inside].max() <= 1e-6, (name, (error * taus)[inside].max())


def degenerate():
    """Pairs of views in which something that should never happen does."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 6, 4))
    zero = a.copy()
    zero[[0, 3]] = 0
    return {
        "zero rows": (zero, zero * [[0], [1], [1], [1], [1], [1]]),
        "all zero": (0 * a, 0 * b),
        "duplicate rows": (np.repeat(a[:1], 6, axis=0), np.repeat(a[:1], 6, axis=0)),
        "anti-aligned positives": (a, -a),
        "identical views": (a, a),
        "tiny rows": (1e-4 * a, 1e-4 * b),
    }


@pytest.mark.run
@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_finite_everywhere(engine):
    """Values and gradients, at tau 0.01 and 1, in every type, also with one negative."""

    def run(a, b, tau):
        found = {}
        every, one = (FAMILY, MEASURED) if engine == "dense" else (MEASURED, ())
        for name, k in (*((name, None) for name in every), *((name, 1) for name in one)):
            few = {"negatives": k, "key": jax.random.key(0)} if k else {"engine": engine}
            loss = functools.partial(contrastive_loss, loss=name, temperature=tau, **FAMILY[name], **few)
            values, pull = jax.vjp(loss, a, b)
            found[f"{name}, K={k or 'all'}"] = values, pull(jnp.ones_like(values))
        return found

    every = jax.vmap(jax.vmap(run, (None, None, 0)), (0, 0, None))
    compiled = jax.jit(every, compiler_options={"xla_backend_optimization_level": 0})
    a, b = (np.stack(views) for views in zip(*degenerate().values(), strict=True))
    for dtype in ("float32", "bfloat16", "float16"):
        found = compiled(jnp.asarray(a, dtype), jnp.asarray(b, dtype), jnp.asarray([0.01, 1.0]))
        for name, (values, gradients) in found.items():
            for i, kind in enumerate(degenerate()):
                # Rows of 1e-4 and of 0 have gradients beyond float16's 65504: an infinity there says so.
                overflows = dtype == "float16" and kind in ("zero rows", "all zero", "tiny rows")
                right = (lambda x: ~np.isnan(x)) if overflows else np.isfinite
                assert np.isfinite(values[i]).all(), (name, kind, dtype)
                for gradient in gradients:
                    assert right(gradient[i].astype(jnp.float32)).all(), (name, kind, dtype)


def test_one_negative_and_huge_contrasts(figure):
    """c from -200 to 200 with K = 1 from scores: finite, and the gradient is the definition's."""
    gap = np.linspace(-2, 2, 81, dtype=np.float32)
    score, tau = jnp.stack([jnp.zeros(81), jnp.asarray(gap)], axis=1), jnp.float32(0.01)

    def gradient(loss):
        return jax.jit(jax.grad(lambda score: jnp.sum(loss(score, tau))))

    for name, own in FAMILY.items():
        if name in ("dclw", "macl_w", "decoupled_nt_xent", "relic_kl", "eqco", "relative", "scaled"):
            continue  # they read more than contrasts: above
        slope = gradient(figure.ours(name, **own))(score)
        assert np.isfinite(slope).all() and np.abs(slope[-1]).max() > 1, name
    slope = gradient(figure.ours("info_nce"))(score)
    exact = np.exp(-np.logaddexp(0, -gap.astype(float) / float(tau))) / float(tau)
    representable = exact > 1e-30
    assert 10 < representable.sum() < 81  # both sides of the boundary are there
    np.testing.assert_allclose(slope[representable, 1], exact[representable], rtol=1e-5)
    np.testing.assert_array_equal(slope[:, 0], -slope[:, 1])
    assert losses.info_nce(jnp.asarray([-jnp.inf]))[0] == 0


@pytest.mark.parametrize("weight", [None, 0.3])
@pytest.mark.parametrize("tau", sampled([1e-3, 1e-2, 1.0], 1))
@pytest.mark.parametrize("positive", [1.0, -1.0])
def test_decoupled_nt_xent_with_the_query_in_the_sum(weight, tau, positive):
    """Against float64 with the positive or the negatives near the query: c is rounded to 6e-8 of its 2 / tau."""
    rng = np.random.default_rng(0)
    near, far = 1 - 1e-3 * rng.random((6, 17)), -1 + 1e-2 * rng.random((6, 17))
    first, others = (near, far) if positive > 0 else (far, near)
    scores = np.concatenate([first[:, :1], others[:, 1:]], axis=1).astype(np.float32)

    def values(scores, tau):
        c = jax.nn.logsumexp((scores[:, 1:] - scores[:, :1]) / tau, axis=1)
        return losses.decoupled_nt_xent(c, scores[:, 0], tau, lambda_weight=weight, self_pair=True)

    def measured(dtype):
        arguments = jnp.asarray(scores, dtype), jnp.asarray(np.float32(tau), dtype)
        return jax.device_get((values(*arguments), *jax.jit(jax.jacrev(values, (0, 1)))(*arguments)))

    ours = measured(np.float32)
    with jax.enable_x64(True):
        exact = measured(np.float64)
    for found, right, bound in zip(ours, exact, (1e-6, 5e-7 / tau, 5e-7 / tau + 1e-5), strict=True):
        assert found.dtype == np.float32 and right.dtype == np.float64
        assert np.abs(found - right).max() <= bound * np.abs(right).max()
