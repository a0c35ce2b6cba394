"""Five papers, one family: the identities between the losses, exact also where the usual forms break."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_losses import contrast
from suite import sampled

from contrastive_jax import losses

QUERIES, NEGATIVES = 6, 5
EXTREME = np.concatenate([np.linspace(-200, 200, 81), [-87.5, -17.0, -1e-3, 0.0, 1e-3, 17.0, 88.5, 104.0]])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def score_matrix(kind):
    """Scores over tau [Q, 1 + K], the positive in column 0."""
    score = np.random.default_rng(0).normal(size=(QUERIES, 1 + NEGATIVES))
    if kind == "saturated":
        score[:, 0] += np.array([60, -60, 200, -200, 20, -20])
    if kind == "equal":
        score[:] = 0.7
    if kind == "duplicates":
        score[:, 2:] = score[:, 1:2]
    if kind == "one negative":
        score = score[:, :2]
    return jnp.asarray(score)


def contrast_of(score, scale=1.0):
    return contrast(score[:, 1:], score[:, 0], np.ones(score[:, 1:].shape, bool), 1.0, scale)


def usual_info_nce(score):
    return -jax.nn.log_softmax(score, axis=1)[:, 0]


GAMMA, FACTOR, TAU, LAMBDA = 3.0, 10.0, 0.2, 0.07
COUNT = jnp.full(QUERIES, NEGATIVES)


def tables(score):
    """Left and right of every identity between gradients, as rows of losses to differentiate."""
    c, count = contrast_of(score), jnp.full(QUERIES, score.shape[1] - 1)
    positive = TAU * score[:, 0]
    weight = 2.0 - jax.lax.stop_gradient(positive)
    above = score[:, 1:] - score[:, :1]
    mean = jax.lax.stop_gradient(jnp.mean(jax.nn.sigmoid(c)))
    share = jax.lax.stop_gradient(jax.nn.sigmoid(contrast_of(score, 1 / FACTOR)))
    all_candidates = TAU * jax.nn.logsumexp(score, axis=1)
    best = jax.lax.stop_gradient(c - jnp.log(count))
    with_positive = jax.nn.softplus(c)  # the contrast with all candidates, K + 1 of them
    return {
        "InfoNCE is the cross-entropy": (losses.info_nce(c), usual_info_nce(score)),
        "FlatNCE = DCL": (losses.flat_nce(c), losses.dcl(c)),
        "MACL = DCL": (losses.macl(c), losses.dcl(c)),
        "FlatNCE+ = InfoNCE": (losses.flat_nce_plus(c), losses.info_nce(c)),
        "EqCo(K) = InfoNCE": (losses.eqco(c, count, alpha=score.shape[1] - 1), losses.info_nce(c)),
        "EqCo(large) -> DCL": (losses.eqco(c, count, alpha=1e300), losses.dcl(c)),
        "Hoelder(1) = FlatNCE": (losses.hoelder_flat_nce(c), losses.flat_nce(c)),
        "Hoelder(gamma) = FlatNCE at tau / gamma, over gamma": (
            losses.hoelder_flat_nce(contrast_of(score, GAMMA), gamma=GAMMA),
            losses.flat_nce(contrast_of(GAMMA * score)) / GAMMA,
        ),
        "mean(W) times relative = InfoNCE": (mean * losses.relative(c, count), losses.info_nce(c)),
        "scaled = mean(W) times FlatNCE": (losses.scaled(c, count), mean * losses.flat_nce(c)),
        "Hoelder(-gamma), its definition": (
            losses.hoelder_flat_nce(contrast_of(score, -GAMMA), gamma=-GAMMA),
            jax.nn.logsumexp(-GAMMA * above, axis=1) / -GAMMA,
        ),
        "Hoelder(0) = the geometric mean": (
            losses.hoelder_flat_nce(
                contrast_of(score, *losses.hoelder_flat_nce.declared.multiples(gamma=0.0)), gamma=0.0
            ),
            jnp.mean(above, axis=1),
        ),
        "Hoelder(large) -> the maximum": (
            losses.hoelder_flat_nce(contrast_of(score, 1e5), gamma=1e5),
            jnp.max(above, axis=1),
        ),
        "Hoelder(-large) -> the minimum": (
            losses.hoelder_flat_nce(contrast_of(score, -1e5), gamma=-1e5),
            jnp.min(above, axis=1),
        ),
        "Fenchel-Legendre at the best u = FlatNCE": (
            losses.fenchel_legendre(c, count, best),
            losses.flat_nce(c),
        ),
        "Fenchel-Legendre over all candidates at the best u = InfoNCE": (
            losses.fenchel_legendre(
                with_positive, count + 1, jax.lax.stop_gradient(with_positive - jnp.log(count + 1))
            ),
            losses.info_nce(c),
        ),
        "Fenchel-Legendre with u = c - log K, no constant, = FlatNCE": (
            losses.fenchel_legendre(c, count, c - jnp.log(count)),
            losses.flat_nce(c),
        ),
        "Donsker-Varadhan of each query alone = DCL": (
            jax.vmap(lambda *one: losses.donsker_varadhan(*one, TAU))(
                c[:, None], count[:, None], positive[:, None]
            )[:, 0],
            losses.dcl(c),
        ),
        "hardness-weighted, its definition": (
            losses.hardness_weighted(contrast_of(score, 1.5), positive, TAU, alpha=0.5),
            jax.nn.softplus(
                jax.nn.logsumexp(score[:, 1:] + 0.5 * jax.lax.stop_gradient(score[:, 1:]), axis=1)
                - score[:, 0]
            ),
        ),
        "MACL-w = (2 - s+) DCL": (losses.macl_w(c, positive), weight * losses.dcl(c)),
        "Dual = sigmoid(c_beta) DCL": (
            losses.dual_temperature(c, contrast_of(score, 1 / FACTOR), factor=FACTOR),
            share * losses.dcl(c),
        ),
        "decoupled(tau) = tau InfoNCE": (
            losses.decoupled_nt_xent(c, positive, TAU),
            TAU * losses.info_nce(c),
        ),
        "decoupled(lambda)": (
            losses.decoupled_nt_xent(c, positive, TAU, lambda_weight=LAMBDA),
            LAMBDA / TAU * all_candidates - positive,
        ),
        "decoupled(lambda), with the query itself": (
            losses.decoupled_nt_xent(c, positive, TAU, lambda_weight=LAMBDA, self_pair=True),
            LAMBDA * jnp.logaddexp(all_candidates / TAU, 1 / TAU) - positive,
        ),
    }


@jax.jit
def pairs_and_gradients(score):
    def sums(score):
        pairs = tables(score)
        return jax.tree.map(jnp.sum, pairs), pairs

    gradients, pairs = jax.jacrev(sums, has_aux=True)(score)
    return pairs, gradients


@pytest.mark.parametrize("kind", sampled(["random", "equal", "duplicates", "one negative", "saturated"], 2))
def test_gradients_with_respect_to_scores(kind):
    pairs, gradients = pairs_and_gradients(score_matrix(kind))
    for name, (left, right) in gradients.items():
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-15, err_msg=name)
        assert np.abs(left).max() > 1e-9, name
    for name in (
        "InfoNCE is the cross-entropy",
        "EqCo(K) = InfoNCE",
        "decoupled(tau) = tau InfoNCE",
        "decoupled(lambda)",
        "decoupled(lambda), with the query itself",
    ):
        np.testing.assert_allclose(*pairs[name], rtol=1e-9, atol=1e-14, err_msg=name)


def family(c):
    """Every function of the contrast alone, or with fixed other quantities."""
    return {
        "info_nce": losses.info_nce(c),
        "dcl": losses.dcl(c),
        "flat_nce": losses.flat_nce(c),
        "flat_nce_plus": losses.flat_nce_plus(c),
        "hoelder": losses.hoelder_flat_nce(c, gamma=2.0),
        "eqco": losses.eqco(c, jnp.full(c.shape, 16), alpha=256.0),
        "macl": losses.macl(c),
        "macl_w": losses.macl_w(c, jnp.full(c.shape, 0.5, c.dtype)),
        "dual": losses.dual_temperature(c, c.astype(jnp.promote_types(c.dtype, jnp.float32)) / 10),
        "decoupled": losses.decoupled_nt_xent(c, jnp.full(c.shape, 0.5, c.dtype), 0.5),
    }


def exact(c):
    """Values and gradients of :func:`family` from the definitions, c in NumPy's long double."""
    c = c.astype(np.longdouble)
    softplus, sigmoid = np.logaddexp(0, c), 1 / (1 + np.exp(-c))
    shifted, share, one = c + np.log(np.longdouble(16)), 1 / (1 + np.exp(-c / 10)), np.ones_like(c)
    return {
        "info_nce": (softplus, sigmoid),
        "dcl": (c, one),
        "flat_nce": (one, one),
        "flat_nce_plus": (one, sigmoid),
        "hoelder": (one, one / 2),
        "eqco": (np.logaddexp(0, shifted), 1 / (1 + np.exp(-shifted))),
        "macl": (softplus / sigmoid, one),
        "macl_w": (1.5 * softplus / sigmoid, 1.5 * one),
        "dual": (share * softplus / sigmoid, share),
        "decoupled": (0.5 * softplus, 0.5 * sigmoid),
    }


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_exact_at_any_contrast(dtype):
    """c from -200 to 200: finite everywhere, and right wherever the exact number is one of float32's."""
    c = jnp.asarray(EXTREME, dtype)
    values = jax.jit(family)(c)
    gradients = jax.jit(jax.jacrev(lambda c: jax.tree.map(jnp.sum, family(c))))(c.astype(values["dcl"].dtype))
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    for name, (value, gradient) in exact(np.asarray(c.astype(jnp.float64))).items():
        assert values[name].dtype == (jnp.float64 if dtype == "float64" else jnp.float32), name
        assert np.isfinite(values[name]).all() and np.isfinite(gradients[name]).all(), name
        floor = 0 if dtype == "float64" else 1e-30  # below it float32 ends
        np.testing.assert_allclose(
            values[name], value.astype(float), rtol=tolerance, atol=floor, err_msg=name
        )
        np.testing.assert_allclose(
            gradients[name], gradient.astype(float), rtol=tolerance, atol=floor, err_msg=name
        )


def test_the_papers_formulas_break_where_ours_do_not():
    c = jnp.asarray([-100.0, 100.0], jnp.float32)
    stop = jax.lax.stop_gradient

    def flat_plus(c):
        return (1 + jnp.exp(c)) / stop(1 + jnp.exp(c))

    def macl(c):
        return stop(1 / jax.nn.sigmoid(c)) * jax.nn.softplus(c)

    assert np.isnan(flat_plus(c)[1]) and np.isfinite(losses.flat_nce_plus(c)).all()
    assert not np.isfinite(macl(c)[0]) and np.isfinite(losses.macl(c)).all()
    assert losses.macl(c)[0] == 1
    assert not np.isfinite(jax.vmap(jax.jit(jax.grad(macl)))(c)[0])
    np.testing.assert_array_equal(jax.vmap(jax.jit(jax.grad(losses.macl)))(c), [1.0, 1.0])


def test_a_query_without_negatives():
    c = jnp.asarray([-jnp.inf, 0.0], jnp.float32)
    limits = {
        "info_nce": 0,
        "eqco": 0,
        "decoupled": 0,
        "dual": 0,
        "flat_nce": 1,
        "flat_nce_plus": 1,
        "hoelder": 1,
    }
    values = jax.jit(family)(c)
    gradients = jax.jit(jax.jacrev(lambda c: jax.tree.map(jnp.sum, family(c))))(c)
    for name, limit in (limits | {"macl": 1, "macl_w": 1.5}).items():
        assert values[name][0] == limit, name
        assert gradients[name][0] == 0 and gradients[name][1] > 0, name
    assert values["dcl"][0] == -jnp.inf


def test_a_contrast_that_is_not_a_number_is_not_hidden():
    for name, value in jax.jit(family)(jnp.asarray([jnp.nan])).items():
        assert np.isnan(value).all(), name


def test_eqco_tends_to_dcl_in_the_gradient_and_diverges_in_the_value():
    c = jnp.linspace(-5, 5, 11)
    count = jnp.full(11, 64)
    at = {alpha: losses.eqco(c, count, alpha=alpha) for alpha in (64, 1e4, 1e8)}
    errors = [
        np.abs(1 - jax.jit(jax.grad(lambda c, a=alpha: jnp.sum(losses.eqco(c, count, alpha=a))))(c)).max()
        for alpha in at
    ]
    assert errors[0] > 0.99 and errors[1] < 0.5 and errors[2] < 2e-4
    np.testing.assert_allclose(at[1e8][5:], c[5:] + np.log(1e8 / 64), rtol=1e-6)


def test_attention_and_scale_of_info_nce_apart():
    """Where all contrasts are equal relative is FlatNCE; its weights are 1 on average, also where each W is 0."""
    count, lone = jnp.full(6, 5), jnp.array([0, 5, 5, 5, 5, 5])

    def slope(loss, c, count):
        return jax.jit(jax.grad(lambda c: jnp.sum(loss(c, count))))(jnp.asarray(c, jnp.float32))

    ramp = np.linspace(-3, 3, 6)
    w = 1 / (1 + np.exp(-ramp))
    for loss, weight in ((losses.relative, w / w.mean()), (losses.scaled, np.full(6, w.mean()))):
        np.testing.assert_allclose(slope(loss, ramp, count), weight, rtol=1e-6)
        np.testing.assert_array_equal(loss(jnp.asarray(ramp), count), losses.info_nce(jnp.asarray(ramp)))
    np.testing.assert_allclose(slope(losses.relative, np.full(6, -1.5), count), 1.0, rtol=1e-6)
    np.testing.assert_allclose(slope(losses.relative, ramp - 150, count).sum(), 6, rtol=1e-5)
    # A query without negatives is in no mean.
    for loss, weight in ((losses.relative, w[1:] / w[1:].mean()), (losses.scaled, np.full(5, w[1:].mean()))):
        np.testing.assert_allclose(slope(loss, ramp, lone)[1:], weight, rtol=1e-6)
        assert not slope(loss, ramp, 0 * count).any()


def test_dclw_weights():
    rng = np.random.default_rng(1)
    c, positive = jnp.asarray(rng.normal(size=(7, 2))), jnp.asarray(rng.uniform(-1, 1, size=(7, 2)))
    softmax = np.exp(positive / 0.3) / np.exp(positive / 0.3).sum(0)
    weight = 2 - 7 * softmax
    np.testing.assert_allclose(weight.mean(0), 1)
    value = losses.dclw(c, positive, 0.2, sigma=0.3)
    np.testing.assert_allclose(value, c + positive / 0.2 - weight * positive / 0.2)
    # Equal positives weigh 1: it is DCL.
    np.testing.assert_allclose(losses.dclw(c, jnp.full((7, 2), 0.4), 0.2), losses.dcl(c))
    slope = jax.jit(jax.grad(lambda p: jnp.sum(losses.dclw(c, p, 0.2, sigma=0.3))))(positive)
    np.testing.assert_allclose(slope, (1 - weight) / 0.2)


def test_fenchel_legendre_bounds_what_the_best_u_reaches():
    """Its least value over u is -flat_nce_estimate; including the positive, -info_nce_estimate (corollary 3.4)."""
    c, count = jnp.linspace(-30.0, 30.0, 7), jnp.full(7, 64)
    found = losses.fenchel_legendre(c, count, c - jnp.log(64.0))
    np.testing.assert_allclose(found, -losses.flat_nce_estimate(c, count), rtol=1e-12, atol=1e-12)
    everyone = jax.nn.softplus(c)
    found = losses.fenchel_legendre(everyone, count + 1, everyone - jnp.log(65.0))
    np.testing.assert_allclose(found, -losses.info_nce_estimate(c, count), rtol=1e-12, atol=1e-12)
    for shift in (-2.0, 1e-3, 3.0):
        off = losses.fenchel_legendre(c, count, c - jnp.log(64.0) + shift)
        np.testing.assert_allclose(
            off + losses.flat_nce_estimate(c, count), shift + np.expm1(-shift), rtol=1e-6
        )


def test_donsker_varadhan_takes_one_mean_a_direction_and_leaves_out_who_has_no_negatives():
    score = np.random.default_rng(3).normal(size=(4, 2, 5))  # [B, V, 1 + K]
    count = jnp.asarray([[4, 4], [4, 0], [0, 0], [4, 4]])
    c = jnp.where(count > 0, jax.nn.logsumexp(score[..., 1:] - score[..., :1], axis=-1), 0.0)

    def loss(positive):
        value = losses.donsker_varadhan(c, count, positive, TAU)
        return jnp.sum(jnp.where(count > 0, value, 0.0)), value

    gradient, value = jax.jit(jax.grad(loss, has_aux=True))(jnp.asarray(TAU * score[..., 0]))
    for v, queries in enumerate(([0, 1, 3], [0, 3])):
        mean = np.log(np.mean(np.exp(score[queries, v, 1:])))
        np.testing.assert_allclose(value[np.array(queries), v], mean - score[queries, v, 0], rtol=1e-12)
    assert np.isfinite(gradient).all() and (gradient[count == 0] == 0).all()
    none = jax.jit(
        jax.grad(lambda p: jnp.sum(jnp.where(count < 0, losses.donsker_varadhan(c, 0 * count, p, TAU), 0.0)))
    )
    assert (none(c) == 0).all()  # nobody has negatives: no gradient, and no NaN


def test_scales_take_the_options_of_their_loss():
    assert losses.hoelder_flat_nce.declared.multiples() == (1.0,)
    assert losses.hoelder_flat_nce.declared.multiples(gamma=0.5) == (0.5,)
    assert losses.dual_temperature.declared.multiples() == (1.0, 0.1)
    assert losses.dual_temperature.declared.multiples(factor=4.0) == (1.0, 0.25)


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("eqco", 2, {"alpha": -1.0}),
        ("eqco_estimate", 2, {"alpha": -2.0}),
        ("dclw", 3, {"sigma": 0.0}),
        ("dual_temperature", 2, {"factor": float("nan")}),
        ("decoupled_nt_xent", 3, {"lambda_weight": -0.1}),
    ],
)
def test_an_option_that_is_not_positive_is_refused_by_name(name, arguments, options):
    (option,) = options
    with pytest.raises(ValueError, match=f"{name}.{option} is .*; it must be positive"):
        jax.eval_shape(lambda *a: getattr(losses, name)(*a, **options), *[jnp.ones((4, 2))] * arguments)


@pytest.mark.parametrize("loss", [losses.relative, losses.scaled], ids=lambda loss: loss.__name__)
def test_one_count_for_all_queries_is_one_for_each(loss):
    c = contrast_of(score_matrix("plain"))
    found, expected = (
        jax.jit(jax.grad(lambda c, count=count: loss(c, count).sum()))(c) for count in (NEGATIVES, COUNT)
    )
    np.testing.assert_array_equal(found, expected)


def test_one_count_is_that_of_each_in_donsker_varadhan():
    c, positive = contrast_of(score_matrix("plain")), jnp.zeros(QUERIES)
    found, expected = (
        losses.donsker_varadhan(c, jnp.asarray(count), positive, 1.0) for count in (NEGATIVES, COUNT)
    )
    np.testing.assert_array_equal(found, expected)
