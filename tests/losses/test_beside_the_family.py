"""Distributions, invariance, information and labels beyond the golden numbers; and every loss on a mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_losses import unit
from suite import sampled

from contrastive_jax import losses, sharding
from contrastive_jax.losses import information

RNG = np.random.default_rng(0)


def embeddings(b=16, w=2, d=6):
    return jnp.asarray(RNG.normal(size=(b, w, d)), jnp.float32)


def test_directions_are_orthogonal_and_uniform():
    directions = jax.jit(jax.vmap(lambda key: losses.orthogonal_directions(key, 3)))(
        jax.random.split(jax.random.key(0), 4000)
    )
    np.testing.assert_allclose(
        jnp.einsum("nij,nik->njk", directions, directions),
        np.broadcast_to(np.eye(3), (4000, 3, 3)),
        atol=1e-5,
    )
    # Uniform: every entry has mean 0, square 1/3, fourth power 1/5; QR alone fails the first.
    np.testing.assert_allclose(directions.mean(0), np.zeros((3, 3)), atol=0.05)
    np.testing.assert_allclose((directions**2).mean(0), np.full((3, 3), 1 / 3), atol=0.03)
    np.testing.assert_allclose((directions**4).mean(0), np.full((3, 3), 1 / 5), atol=0.03)


def test_prior_samples():
    key, shape = jax.random.key(1), (4000, 3)
    normal, cube, sphere = (
        losses.prior_samples(key, prior, shape) for prior in ("normal", "hypercube", "hypersphere")
    )
    np.testing.assert_allclose(normal.std(0), 1, atol=0.05)
    assert np.abs(cube).max() <= 1
    np.testing.assert_allclose(cube.std(0), 1 / np.sqrt(3), atol=0.02)
    np.testing.assert_allclose(jnp.linalg.norm(sphere, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(sphere.mean(0), 0, atol=0.04)
    with pytest.raises(ValueError, match="prior is 'cube'; it must be one of normal, hypercube, hypersphere"):
        losses.prior_samples(key, "cube", shape)


def test_sliced_wasserstein_sorts_truly_among_ties():
    """[1, 1, 1, 2, 0] against [0, 1, 2, 3, 4]: the notebook's own sort would give 0.8."""
    sample, prior = jnp.asarray([[1.0], [1.0], [1.0], [2.0], [0.0]]), jnp.arange(5.0)[:, None]
    value, gradient = jax.jit(
        jax.value_and_grad(lambda x: losses.sliced_wasserstein_distance(x, prior, jnp.eye(1)).sum())
    )(sample)
    np.testing.assert_allclose(value, np.mean(np.square([0, 0, 1, 2, 2])))
    assert sorted(gradient[:3, 0].tolist()) == pytest.approx([-0.8, -0.4, 0.0])
    np.testing.assert_allclose(gradient[3:, 0], [-0.8, 0.0], atol=1e-6)


@pytest.mark.parametrize("prior", sampled(["normal", "hypercube", "hypersphere"], 1))
def test_sliced_wasserstein_is_small_at_its_prior_only(prior):
    sample = losses.prior_samples(jax.random.key(5), prior, (512, 2, 4))
    swd = jax.jit(lambda x: losses.sliced_wasserstein(x, jax.random.key(6), prior=prior))
    at_prior, collapsed = swd(sample), swd(jnp.ones_like(sample))
    assert at_prior.shape == (4,)
    assert at_prior.mean() < 0.01 < 0.1 < collapsed.mean()
    other = losses.sliced_wasserstein(sample, jax.random.key(7), prior=prior)
    assert not np.allclose(at_prior, other)  # fresh directions and samples
    np.testing.assert_allclose(
        losses.sliced_wasserstein(sample, jax.random.key(6), prior=prior, scale=3.0), 3 * at_prior, rtol=1e-5
    )


def test_nothing_is_nan_at_zero_or_equal_rows():
    z = embeddings().at[0].set(0).at[1, 1].set(embeddings()[1, 0]).at[2].set(1.0)
    for loss in (
        lambda z: losses.alignment(z, power=1.0),
        lambda z: losses.uniformity(z),
        lambda z: losses.logsumexp_distribution(z, z, 0.1),
        lambda z: losses.sliced_wasserstein(z, jax.random.key(0)),
        lambda z: losses.byol(z, z),
        lambda z: losses.relic(z, z, 0.01),
        lambda z: losses.relic(z, z, 0.01, positive="excluded"),
    ):
        value, gradient = jax.jit(jax.value_and_grad(lambda z, loss=loss: jnp.sum(loss(z))))(z)
        assert np.isfinite(value) and np.isfinite(gradient).all()


def test_logsumexp_distribution_is_that_of_the_decoupled_loss():
    """From contrasts with the query itself added, and from all scores: the same."""
    z, tau = embeddings(6), 0.3
    u = unit(z).reshape(-1, 6)
    score, rows = u @ u.T, np.arange(12)
    positive = score[rows, rows ^ 1]
    permitted = (rows[:, None] ^ 1 != rows) & (rows[:, None] != rows)
    c = jax.nn.logsumexp(jnp.where(permitted, (score - positive[:, None]) / tau, -jnp.inf), axis=1)
    decoupled = losses.decoupled_nt_xent(c, positive, tau, lambda_weight=2.0, self_pair=True)
    distribution = losses.logsumexp_distribution(z, z, tau, subtract_log_width=False, scale=2.0).ravel()
    np.testing.assert_allclose(decoupled + positive, distribution, rtol=1e-4)
    aligned = losses.alignment(z, scale=0.5)  # 1 - cos
    np.testing.assert_allclose(1 - positive[::2], aligned, atol=1e-5)


def test_byol():
    prediction, target = embeddings(), embeddings()
    loss = losses.byol(prediction, target)
    cosine = jnp.sum(unit(prediction) * unit(target)[:, ::-1], axis=-1)
    np.testing.assert_allclose(loss, 2 - 2 * cosine, rtol=1e-5)
    np.testing.assert_allclose(losses.byol(prediction, 3 * prediction[:, ::-1]), 0, atol=1e-6)
    assert not jax.jit(jax.grad(lambda t: jnp.sum(losses.byol(prediction, t))))(target).any()


def test_relic_rows_that_are_not_permitted_do_not_count():
    cross, same = (jnp.asarray(RNG.normal(size=(4, 6)), jnp.float32) for _ in range(2))
    masked = [x.at[:, 3:].set(-jnp.inf) for x in (cross, same)]

    def total(cross, same):
        return jnp.sum(losses.relic_kl(cross, same))

    (value, gradient), (short, short_gradient) = (
        jax.jit(jax.value_and_grad(total, (0, 1)))(*rows) for rows in (masked, (cross[:, :3], same[:, :3]))
    )
    np.testing.assert_allclose(value, short, rtol=1e-6)
    for ours, reference in zip(gradient, short_gradient, strict=True):
        np.testing.assert_allclose(ours[:, :3], reference, atol=1e-6)
        assert not ours[:, 3:].any()
    assert not jax.jit(jax.grad(lambda same: jnp.sum(losses.relic_kl(cross, same, stop_gradient_same=True))))(
        same
    ).any()
    for options in ({"positive": "first"}, {"score": "euclid"}):
        with pytest.raises(ValueError, match="it must be"):
            losses.relic(embeddings(), embeddings(), 0.1, **options)
    with pytest.raises(ValueError, match="population has 1 examples; relic needs at least 2"):
        losses.relic(embeddings()[:1], embeddings()[:1], 0.1)


def test_relics_negatives_are_the_rows_of_their_numbers():
    z = embeddings(6)
    others = jnp.asarray([[j for j in range(6) if j != i] for i in range(6)])
    for numbers in (others, others.astype(jnp.int8)):
        np.testing.assert_allclose(losses.relic(z, z, 0.1, numbers), losses.relic(z, z, 0.1), rtol=1e-6)
    for outside in (-1, 6):
        assert jnp.isnan(losses.relic(z, z, 0.1, others.at[:, 0].set(outside))).all()


def test_counts_whose_sum_exceeds_int32_are_counted_in_donsker_varadhan():
    count = jnp.full((4096, 1), 2**20, jnp.int32)
    c = jnp.log(count.astype(jnp.float32))  # of equal scores, whose value is 0
    np.testing.assert_allclose(losses.donsker_varadhan(c, count, 0 * c, 1.0), 0, atol=1e-5)


def test_estimates_from_the_exact_ratio():
    """Two correlated Gaussians with the log density ratio as critic: who is a bound, and who is not."""
    correlation, width, n = 0.9, 4, 128
    truth = -width / 2 * np.log(1 - correlation**2)
    x, e = (jax.random.normal(key, (100, n, width)) for key in jax.random.split(jax.random.key(3)))
    y = correlation * x + np.sqrt(1 - correlation**2) * e

    def ratio(x, y):
        variance = 1 - correlation**2
        return jnp.sum(y**2 / 2 - (y - correlation * x) ** 2 / (2 * variance) - np.log(variance) / 2, axis=-1)

    @jax.jit
    @jax.vmap
    def estimates(x, y):
        score = ratio(x[:, None], y[None])
        positive, negative, count = rows = losses.row_statistics(score)
        c = negative - positive
        return {
            "nwj": losses.nwj(positive + 1, negative + 1, count),
            "info_nce": losses.info_nce_estimate(c, count).mean(),
            "flat_nce": losses.flat_nce_estimate(c, count).mean(),
            "eqco": losses.eqco_estimate(c, count, alpha=n - 1).mean(),
            "eqco_large": losses.eqco_estimate(c, count, alpha=1e6).mean(),
            "fl": -losses.fenchel_legendre(c, count, positive * 0 - positive).mean(),
            "dv": losses.donsker_varadhan_estimate(*rows),
            "smile": losses.smile(score, clip=5.0),
        }

    mean = {name: float(value.mean()) for name, value in estimates(x, y).items()}
    assert mean["info_nce"] < truth and mean["info_nce"] < np.log(n)
    assert mean["eqco"] == pytest.approx(mean["info_nce"], abs=1e-4)  # alpha = K
    assert mean["flat_nce"] > truth and mean["eqco_large"] > truth  # not bounds
    assert mean["nwj"] == pytest.approx(truth, abs=0.3)
    assert mean["fl"] == pytest.approx(truth, abs=0.3)  # u = -log ratio is optimal
    assert mean["dv"] == pytest.approx(truth, abs=0.3)


def test_leave_one_out_does_not_cancel():
    score = jnp.asarray([[50.0, 0.0, 1.0], [1.0, 1.0, 1.0], [-80.0, 80.0, 79.0]], jnp.float32)
    expected = [
        [np.logaddexp(score[i, (j + 1) % 3], score[i, (j + 2) % 3]) for j in range(3)] for i in range(3)
    ]
    np.testing.assert_allclose(information.leave_one_out(score), expected, rtol=1e-6)


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_the_interpolated_bound_is_its_definition_from_two_rows_on(rows):
    """Poole et al. (2019), equation 13: the baseline of an entry leaves that entry out."""
    random, alpha = np.random.default_rng(rows), 0.3
    scores, log_baseline = random.normal(size=(rows, rows)), random.normal(size=rows)
    off = ~np.eye(rows, dtype=bool)
    mean = np.array([[np.exp(np.delete(row, j)).mean() for j in range(rows)] for row in scores])
    baseline = alpha * mean + (1 - alpha) * np.exp(log_baseline)[:, None]
    joint = (np.diag(scores)[:, None] - np.log(baseline))[off].mean()
    marginal = (np.exp(scores) / np.diag(baseline)[:, None])[off].mean()
    bound = functools.partial(losses.interpolated, alpha_logit=float(np.log(alpha / (1 - alpha))))
    value, gradient = jax.jit(jax.value_and_grad(bound))(
        jnp.asarray(scores, jnp.float32), jnp.asarray(log_baseline, jnp.float32)
    )
    assert value == pytest.approx(1 + joint - marginal, rel=1e-5) and np.isfinite(gradient).all()
    with pytest.raises(ValueError, match="scores are 1 x 1; .* at least 2 rows"):
        bound(jnp.zeros((1, 1)), jnp.zeros(1))


def test_cross_entropy():
    logits, label = jnp.asarray(RNG.normal(size=(5, 2, 3)), jnp.bfloat16), jnp.asarray([2, 0, -1, 1, 2])
    loss, gradient = (
        jax.jit(losses.cross_entropy)(logits, label),
        jax.jit(jax.grad(lambda x: jnp.sum(losses.cross_entropy(x, label))))(logits),
    )
    probability = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    assert loss.dtype == jnp.float32 and loss.shape == (5, 2)
    np.testing.assert_allclose(loss[0], -np.log(probability[0, :, 2]), rtol=1e-5)
    assert not loss[2].any() and not gradient[2].any() and gradient[0].any()
    assert np.isnan(losses.cross_entropy(logits, jnp.full(5, 3))).all()  # no such class
    # numbers of classes that the labels' types cannot hold
    for dtype, classes in (("uint8", 256), ("uint8", 300), ("int8", 200)):
        found = losses.cross_entropy(jnp.zeros((2, 1, classes)), jnp.array([1, 100], dtype))
        np.testing.assert_allclose(found, np.log(classes), rtol=1e-6)


def test_cross_entropy_of_parts_is_a_softmax_each():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 6)), jnp.float32)
    label = np.zeros((3, 6), np.uint8)
    answers = [(0, 2), (1, 1), (2, 0)]
    for row, (one, two) in enumerate(answers):
        label[row, [one, 3 + two]] = 1
    each = [losses.cross_entropy(logits[..., 3 * p : 3 * p + 3], jnp.asarray(answers)[:, p]) for p in (0, 1)]
    found = losses.cross_entropy_of_parts(logits, jnp.asarray(label), parts=2)
    np.testing.assert_allclose(found, (each[0] + each[1]) / 2, rtol=1e-6)
    label[0, :3] = 0  # no answer to the first question
    half = losses.cross_entropy_of_parts(logits, jnp.asarray(label), parts=2)
    np.testing.assert_allclose(half[0], each[1][0] / 2, rtol=1e-6)
    with pytest.raises(ValueError, match="parts is 4; it must divide the 6 classes"):
        losses.cross_entropy_of_parts(logits, jnp.asarray(label), parts=4)


def test_sigmoid_cross_entropy():
    logits = jnp.asarray([[[0.0, 100.0, -100.0], [2.0, -1.0, 3.0]]])
    one = losses.sigmoid_cross_entropy(logits, jnp.asarray([[1, 1, 0]]))
    np.testing.assert_allclose(
        one, [[np.log(2), np.log1p(np.exp(-2.0)) + np.log1p(np.exp(1.0)) + np.log1p(np.exp(3.0))]], rtol=1e-6
    )
    unknown = losses.sigmoid_cross_entropy(logits, jnp.asarray([[1, -1, -1]]))
    np.testing.assert_allclose(unknown, [[np.log(2), np.log1p(np.exp(-2.0))]], rtol=1e-6)


def everything(z, label, key):
    """All that an objective calls on the batch, z [B, W, D] sharded by rows."""
    population = sharding.replicate(z)
    c, positive, count = (
        4.0 * z[..., 0],
        jnp.tanh(z[..., 1]),
        jnp.full(z.shape[:2], 30, out_sharding=sharding.rows_sharding()),
    )
    return {
        "info_nce": losses.info_nce(c),
        "dcl": losses.dcl(c),
        "flat_nce": losses.flat_nce(c),
        "flat_nce_plus": losses.flat_nce_plus(c),
        "hoelder_flat_nce": losses.hoelder_flat_nce(c, gamma=2.0),
        "eqco": losses.eqco(c, count, alpha=256.0),
        "relative": losses.relative(c, count),
        "scaled": losses.scaled(c, count),
        "macl": losses.macl(c),
        "macl_w": losses.macl_w(c, positive),
        "dclw": losses.dclw(c, positive, jnp.float32(0.1)),
        "dual_temperature": losses.dual_temperature(c, c / 10),
        "decoupled_nt_xent": losses.decoupled_nt_xent(c, positive, jnp.float32(0.1), self_pair=True),
        "fenchel_legendre": losses.fenchel_legendre(c, count, z[..., 2]),
        "donsker_varadhan": losses.donsker_varadhan(c, count, positive, jnp.float32(0.1)),
        "alignment": losses.alignment(z),
        "logsumexp_distribution": losses.logsumexp_distribution(z, population, 0.2),
        "uniformity": losses.uniformity(population),
        "sliced_wasserstein": losses.sliced_wasserstein(population, key),
        "byol": losses.byol(z, z),
        "relic": losses.relic(z, population, 0.2),
        "relic_subset": losses.relic(z, population, 0.2, (label[:, None] + jnp.arange(1, 4)) % z.shape[0]),
        "cross_entropy": losses.cross_entropy(z, label % z.shape[-1]),
        "sigmoid_cross_entropy": losses.sigmoid_cross_entropy(z, (z[:, 0] > 0).astype(jnp.int32)),
    }


@pytest.mark.run
def test_eight_devices_are_one_device():
    """Values, and gradients of every loss with respect to the embeddings."""
    z, label, key = np.asarray(embeddings()), np.arange(16, dtype=np.int32), jax.random.key(2)

    @jax.jit
    def program(z, label):
        def means(z):
            return jax.tree.map(jnp.mean, everything(z, label, key))

        return everything(z, label, key), jax.jit(jax.jacrev(means))(z)

    one = jax.tree.map(np.asarray, program(z, label))
    with jax.set_mesh(sharding.make_mesh()):
        eight = program(*(jax.device_put(x, sharding.ROWS) for x in (z, label)))
        eight = jax.tree.map(np.asarray, eight)
    for a, b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(eight), strict=True):
        np.testing.assert_allclose(b, a[1], rtol=1e-5, atol=1e-6, err_msg=str(a[0]))


def test_sliced_wasserstein_does_not_communicate():
    with jax.set_mesh(sharding.make_mesh()):
        z = jax.device_put(embeddings(), sharding.REPLICATED)
        grad = jax.jit(jax.grad(lambda z: losses.sliced_wasserstein(z, jax.random.key(0)).mean()))
        text = grad.lower(z).compile().as_text()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"):
        assert collective not in text


def test_samples_of_different_sizes_are_refused():
    """One prior sample stood for all in silence."""
    with pytest.raises(ValueError, match=r"sample is \(5, 3\) and prior_sample is \(1, 3\)"):
        losses.sliced_wasserstein_distance(jnp.ones((5, 3)), jnp.ones((1, 3)), jnp.eye(3))


def test_a_bound_has_no_gradient_where_there_are_no_negatives():
    """u of a saturated positive at a low temperature would overflow e^-u."""

    def masked(u):
        return jnp.where(False, losses.fenchel_legendre(jnp.zeros(1), jnp.zeros(1, jnp.int32), u), 0.0).sum()

    assert jax.grad(masked)(jnp.full(1, -100.0)) == 0
