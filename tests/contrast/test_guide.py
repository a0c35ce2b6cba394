"""A guide's masks: the definition on every engine, one device or eight, with every choice of candidates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import one_program, sampled

from contrastive_jax import contrastive_loss, sharding
from contrastive_jax.contrast import transform
from contrastive_jax.contrast.guide import Guide

op_by_op, contrastive_loss = contrastive_loss, one_program(contrastive_loss)

ROWS, WIDTH, OWN = 16, 5, 3
A, B, *_ = np.random.default_rng(5).normal(size=(2, ROWS, WIDTH))
GUIDE_A, GUIDE_B = np.random.default_rng(6).normal(size=(2, ROWS, OWN))
QUEUE, GUIDE_QUEUE = (np.random.default_rng(7).normal(size=(8, d)) for d in (WIDTH, OWN))
IDS = np.arange(ROWS) % 6
ENGINES = ("dense", "tiled", "ring")
GUIDE = Guide(GUIDE_A, GUIDE_B, margin=-0.05)
plain = functools.partial(contrastive_loss, differentiate_temperature=True)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def with_gradients(loss, *arrays):
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(*arrays):
        values, pull = jax.vjp(loss, *arrays)
        return values, pull(sharding.shard_batch(jnp.linspace(0.5, 1.5, values.size)))

    return jax.device_get(run(*arrays))


def close(found, expected, tolerance=1e-12):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.isfinite(y).all() and np.abs(y).max() > 1e-6
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(), 1.0))


def by_definition(a, b, tau, *, margin, relative=False):
    """InfoNCE of both views beside the candidates that the guide does not score above its limit."""
    z, g = unit(jnp.concatenate([a, b])), np.concatenate([GUIDE_A, GUIDE_B])
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    here = np.arange(2 * ROWS)
    partner, scores = (here + ROWS) % (2 * ROWS), g @ g.T
    positive = scores[here, partner]
    limit = positive + margin * (abs(positive) if relative else 1)
    kept = (here[:, None] % ROWS != here[None] % ROWS) & (scores <= limit[:, None])
    assert kept.any(1).sum() < 2 * ROWS, "a query without negatives is among them"
    x = z @ z.T / tau
    above = jnp.where(kept, jnp.exp(x - x[here, partner][:, None]), 0.0)
    return jnp.log1p(above.sum(1))


@pytest.mark.parametrize("engine", ["dense", *sampled(["tiled", "ring"], 1)])
@pytest.mark.parametrize("relative", sampled([True, False], 1))
def test_info_nce_is_its_definition(engine, relative):
    guide = Guide(GUIDE_A, GUIDE_B, margin=-0.3, relative=relative)
    found = with_gradients(
        lambda a, b, tau: plain(a, b, temperature=tau, guide=guide, engine=engine), A, B, 0.3
    )
    close(
        found,
        with_gradients(functools.partial(by_definition, margin=-0.3, relative=relative), A, B, 0.3),
    )


CHOICES = {
    "several positives, transform": dict(positives=IDS, transform=transform.adnce(mu=0.3, sigma=0.5)),
    "other view, one way": dict(loss="dcl", candidates="other_view", directions="one_way"),
    "own view, gamma below 0": dict(loss="hoelder_flat_nce", gamma=-2.0, candidates="own_view"),
    "temperatures": dict(loss="dual_temperature"),
}


@pytest.mark.run
@pytest.mark.parametrize("name", CHOICES)
def test_engines_agree_on_one_device_and_eight(name):
    def loss(engine):
        return lambda a, b, ga, gb, tau: plain(
            a, b, temperature=tau, guide=Guide(ga, gb, margin=-0.1), engine=engine, **CHOICES[name]
        )

    arrays = tuple(map(jnp.asarray, (A, B, GUIDE_A, GUIDE_B)))
    tau = jnp.full(ROWS, 0.3) if name == "temperatures" else 0.3
    expected = with_gradients(loss("dense"), *arrays, tau)
    assert not np.any(expected[1][2]) and not np.any(expected[1][3]), "a guide has no gradient"
    plainly = with_gradients(lambda a, b, tau: plain(a, b, temperature=tau, **CHOICES[name]), A, B, tau)
    assert np.abs(plainly[1][0] - expected[1][0]).max() > 1e-4, "the guide masks something"
    drop = lambda found: (found[0], [x for i, x in enumerate(found[1]) if i not in (2, 3)])  # noqa: E731
    for engine in ENGINES[1:]:
        close(drop(with_gradients(loss(engine), *arrays, tau)), drop(expected))
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        arrays = [jax.device_put(x, sharding.named(mesh, sharding.ROWS)) for x in arrays]
        for engine in ENGINES:
            close(drop(with_gradients(loss(engine), *arrays, tau)), drop(expected))


def test_all_negatives_drawn_are_all():
    drawn = dict(negatives=2 * ROWS - 2, key=jax.random.key(0))
    found, expected = (
        with_gradients(lambda a, b, o=o: plain(a, b, "eqco", 0.3, alpha=64.0, guide=GUIDE, **o), A, B)
        for o in (drawn, {})
    )
    close(found, expected)


def test_a_guide_of_a_queue():
    one_way = dict(candidates="other_view", directions="one_way")
    found = plain(
        A, B, "dcl", 0.3, queue=QUEUE, guide=Guide(GUIDE_A, GUIDE_B, GUIDE_QUEUE, margin=-0.1), **one_way
    )
    g, s = (np.asarray(unit(x) @ unit(np.concatenate([y, z])).T) for x, y, z in (
        (GUIDE_A, GUIDE_B, GUIDE_QUEUE), (A, B, QUEUE)))  # fmt: skip
    kept = (g <= np.diag(g)[:, None] - 0.1) & ~np.eye(*g.shape, dtype=bool)
    total = np.where(kept, np.exp((s - np.diag(s)[:, None]) / 0.3), 0).sum(1)
    np.testing.assert_allclose(found, np.where(kept.any(1), np.log(np.where(total, total, 1)), 0), rtol=1e-12)


def test_a_guide_of_three_views():
    """Each ordered pair of views is masked by the guide's embeddings of these views."""
    views, guides = np.stack([A, B, 2 * A - B], axis=1), np.stack([GUIDE_A, GUIDE_B, -GUIDE_A], axis=1)
    loss = functools.partial(
        jax.jit(contrastive_loss, static_argnums=2, static_argnames=("candidates", "directions"))
    )
    options = dict(candidates="other_view", temperature=0.3)
    values = loss(views, views, "dcl", guide=Guide(guides, guides, margin=-0.1), **options)
    guide = Guide(guides[:, 2], guides[:, 1], margin=-0.1)
    pair = loss(views[:, 2], views[:, 1], "dcl", guide=guide, directions="one_way", **options)
    np.testing.assert_allclose(values.reshape(6, ROWS)[-1], pair, rtol=1e-12)


def test_rows_of_scores_are_masked():
    """Losses that read a query's row of scores, as ReLIC's divergence does, get -inf for masked candidates."""
    seen = []

    def loss(cross, same):
        seen.append((cross, same))
        return cross[..., 0]

    op_by_op(A, B, loss, 0.3, candidates="other_view", guide=GUIDE)
    g = unit(GUIDE_A) @ unit(GUIDE_B).T
    kept = (g <= np.diag(g)[:, None] - 0.05) & ~np.eye(ROWS, dtype=bool)
    for row in seen[0]:
        np.testing.assert_array_equal(row[:, 0, 1:] > -np.inf, kept)


def test_the_model_as_its_own_guide_is_a_margin_mask():
    close(
        plain(A, B, guide=Guide(A, B, margin=0.1)),
        plain(A, B, transform=transform.margin_mask(margin=0.1)),
    )


REFUSED = {
    "type": (dict(guide=(GUIDE_A, GUIDE_B)), "guide is a tuple"),
    "rows": (dict(guide=Guide(GUIDE_A[1:], GUIDE_B)), r"guide.a has shape \(15, 3\); it must be \[16, G\]"),
    "width": (dict(guide=Guide(GUIDE_A, B)), r"guide.b has shape \(16, 5\)"),
    "integers": (dict(guide=Guide(IDS[:, None], IDS[:, None])), "guide.a"),
    "margin": (dict(guide=Guide(GUIDE_A, GUIDE_B, margin="wide")), "guide.margin is 'wide'"),
    "relative": (dict(guide=Guide(GUIDE_A, GUIDE_B, relative=0.5)), "guide.relative is 0.5"),
    "no queue": (dict(guide=GUIDE, queue=QUEUE), "guide.queue is None"),
    "a queue": (dict(guide=Guide(GUIDE_A, GUIDE_B, GUIDE_QUEUE)), "loss.queue is None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_guide_of_other_rows_is_refused(name):
    options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        contrastive_loss(A, B, **options)
