"""Who is who, as equations: losses since 2021 against the five papers', values and gradients to 1e-12 in float64.

The derivations are in ``docs/hooks/who_is_who.py``, of which the page ``docs/who_is_who.md`` is made.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp

from contrastive_jax import contrastive_loss, losses, ntxent, sigmoid_loss, sincere, soft_target_loss
from contrastive_jax.contrast import margin, transform
from contrastive_jax.contrast.guide import Guide
from contrastive_jax.contrast.scores import Transform

TAU, N, D = 0.3, 8, 5
K = 2 * N - 2
VIEWS = np.random.default_rng(7).normal(size=(2, N, D)) + 0.8 * np.random.default_rng(8).normal(size=(N, D))
IDENTITIES = {}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def identity(*, gradient_only=False):
    """Mark a function of two views that returns both sides, arrays of one shape."""

    def mark(sides):
        IDENTITIES[sides.__name__] = sides, gradient_only
        return sides

    return mark


loss = functools.partial(contrastive_loss, temperature=TAU)


ACROSS = dict(candidates="other_view", directions="one_way")


def own_view(a, b, name, temperature=TAU, **options):
    """``a`` queries ``b`` with the other rows of ``a`` as negatives."""
    options |= dict(candidates="own_view", directions="one_way")
    return contrastive_loss(a, b, name, temperature, **options)


def of_row(logit):
    """A loss of the positive's logit [...] and the negatives' [..., M], -inf where there is none."""

    def reads(cross):
        return logit(cross[..., 0], cross[..., 1:])

    return reads


def mean_over(negative, values):
    """Mean over the permitted negatives."""
    permitted = negative > -jnp.inf
    return jnp.sum(jnp.where(permitted, values, 0.0), axis=-1) / jnp.sum(permitted, axis=-1)


def held(negative):
    """The negatives' logits as finite numbers."""
    return jnp.where(negative > -jnp.inf, negative, 0.0)


def share(negative):
    """The softmax over a query's negatives."""
    return jax.nn.softmax(negative, axis=-1)


def divergence(positive, negative):
    """KL(p || uniform) of a query's softmax over negatives."""
    p = share(negative)
    x = held(negative)
    number = jnp.sum(negative > -jnp.inf, axis=-1)
    return jnp.sum(p * x, axis=-1) - logsumexp(negative, axis=-1) + jnp.log(number.astype(x.dtype))


def scores(negative):
    """Cosines from logits; 0 where there is none."""
    return TAU * held(negative)


# ------------------------------------------------------------------------------- functions of the contrast


@identity()
def sincere_two_views(a, b):
    z = jnp.concatenate([a, b])
    return sincere(z, jnp.tile(jnp.arange(N), 2), TAU), loss(a, b, "info_nce").mean()


@identity()
def sincere_balanced(a, b):
    ids = jnp.tile(jnp.repeat(jnp.arange(N // 2), 2), 2)
    z = jnp.concatenate([a, b])
    return sincere(z, ids, TAU), ntxent(z, ids, TAU)


@identity()
def ifm_second_term(a, b):
    eps = 0.1
    shifted = of_row(
        lambda positive, negative: (
            -jax.nn.log_softmax(
                jnp.concatenate([positive[..., None] - eps / TAU, negative + eps / TAU], axis=-1), axis=-1
            )[..., 0]
        )
    )
    ifm = 2 * loss(a, b, "ifm", epsilon=eps)
    right = loss(a, b, "eqco", alpha=K * np.exp(2 * eps / TAU)), loss(a, b, "info_nce")
    return jnp.stack([loss(a, b, shifted), ifm]), jnp.stack([right[0], sum(right)])


@identity()
def ifm_is_a_margin(a, b):
    alpha = K * np.exp(2 * 0.1 / TAU)
    return loss(a, b, "eqco", alpha=alpha), loss(a, b, "info_nce", margin=margin.eqco(alpha=alpha))


@identity()
def eps_sup_info_nce(a, b):
    eps = 0.4
    theirs = of_row(
        lambda positive, negative: jnp.logaddexp(positive - eps, logsumexp(negative, axis=-1)) - positive
    )
    return loss(a, b, theirs), loss(a, b, "eqco", alpha=K * np.exp(eps)) - eps


@identity()
def rince_at_q_0(a, b):
    return loss(a, b, "rince", q=0.0, lam=0.05), loss(a, b, "info_nce") + np.log(0.05)


@identity()
def rince_at_q_1(a, b):
    lam = 0.05
    exponentials = of_row(
        lambda positive, negative: lam * jnp.sum(jnp.exp(negative), axis=-1) - (1 - lam) * jnp.exp(positive)
    )
    return loss(a, b, "rince", q=1.0, lam=lam), loss(a, b, exponentials)


@identity(gradient_only=True)
def alpha_cl_exponent_1(a, b):
    theirs = of_row(
        lambda positive, negative: jnp.sum(
            stop_gradient(share(negative)) * (scores(negative) - TAU * positive[..., None]), axis=-1
        )
    )
    left = jnp.stack([loss(a, b, theirs), TAU * loss(a, b, "alpha_cl")])
    return left, TAU * jnp.stack([loss(a, b, "dcl")] * 2)


@identity()
def label_smoothing(a, b):
    eps = 0.1

    def smoothed(positive, negative):
        """Cross-entropy with 1 - eps on the positive and eps spread over all candidates."""
        logits = jnp.concatenate([positive[..., None], negative], axis=-1)
        target = jnp.where(logits > -jnp.inf, eps / (K + 1), 0.0).at[..., 0].add(1 - eps)
        log_p = held(logits) - logsumexp(logits, axis=-1, keepdims=True)
        return -jnp.sum(target * log_p, axis=-1)

    mean_gap = of_row(
        lambda positive, negative: jnp.sum(
            jnp.where(negative > -jnp.inf, positive[..., None] - negative, 0), -1
        )
    )
    sides = loss(a, b, of_row(smoothed)), loss(a, b, "info_nce") + eps / (K + 1) * loss(a, b, mean_gap)
    return jnp.stack(sides), jnp.stack([loss(a, b, "label_smoothing", smoothing=eps)] * 2)


@identity()
def soft_targets_mix_keys(a, b):
    targets = np.random.default_rng(2).dirichlet(np.ones(N), size=N)
    u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    cross_entropy = -jnp.sum(targets * jax.nn.log_softmax(u @ v.T / TAU, axis=1), axis=1)
    return cross_entropy, soft_target_loss(a, b, targets, TAU)


@identity()
def smoothed_labels_are_soft_targets(a, b):
    eps, one_way = 0.1, dict(candidates="other_view", directions="one_way")
    targets = (1 - eps) * np.eye(N) + eps / N
    return soft_target_loss(a, b, targets, TAU), loss(a, b, "label_smoothing", smoothing=eps, **one_way)


# -------------------------------------------------------------------------------------- rules for u and tau


@identity(gradient_only=True)
def sogclr_at_its_own_u(a, b):
    def at_own(c, count, positive, temperature):
        log_u = stop_gradient(c + positive / temperature - jnp.log(count.astype(c.dtype)))
        return losses.fenchel_legendre(c, count, log_u - positive / temperature)

    return loss(a, b, at_own), loss(a, b, "flat_nce")


@identity(gradient_only=True)
def fast_clip_at_its_own_u(a, b):
    def at_own(c, count):
        return losses.fenchel_legendre(c, count, stop_gradient(c - jnp.log(count.astype(c.dtype))))

    return loss(a, b, at_own), loss(a, b, "flat_nce")


@identity()
def sogclr_is_minus_tuba(a, b):
    log_u = jnp.linspace(-1.0, 2.0, N)[:, None]

    def legendre(c, count, positive, temperature):
        return losses.fenchel_legendre(c, count, log_u - positive / temperature)

    def minus_tuba(c, count, positive, temperature):
        """TUBA of one query at a time: critic s / tau, baseline log u."""
        x = positive / temperature
        one = lambda x, c, count, u: losses.tuba(x[None], (x + c)[None], count[None], u[None])  # noqa: E731
        return -jax.vmap(jax.vmap(one))(x, c, count, jnp.broadcast_to(log_u, c.shape))

    return loss(a, b, legendre), loss(a, b, minus_tuba)


@identity()
def slope_of_the_robust_objective(a, b):
    """Both sides are derivatives in tau; their gradients are compared too."""
    rho = 0.7

    def robust(temperature):
        log_mean = lambda c, count: c - jnp.log(count.astype(c.dtype))  # noqa: E731
        values = contrastive_loss(a, b, log_mean, temperature, differentiate_temperature=True)
        return temperature * (values + rho)

    return jax.jvp(robust, (jnp.asarray(TAU),), (jnp.ones(()),))[1], rho - loss(a, b, of_row(divergence))


@identity()
def robust_objective_is_a_lagrangian(a, b):
    def lagrangian(positive, negative):
        mean = jnp.sum(share(negative) * scores(negative), axis=-1)
        return mean - TAU * positive - TAU * divergence(positive, negative)

    log_mean = lambda c, count: TAU * (c - jnp.log(count.astype(c.dtype)))  # noqa: E731
    return loss(a, b, log_mean), loss(a, b, of_row(lagrangian))


@identity()
def ess_is_the_share_of_order_2(a, b):
    """The ESS from the library's logsumexps at 1 / tau and 2 / tau, and Renyi's divergence of order 2."""

    @losses.loss(multiples=lambda: (1.0, 2.0))
    def effective_share(c, c_2, count):
        return 2 * c - c_2 - jnp.log(count.astype(c.dtype))

    def renyi_2(positive, negative):
        number = jnp.sum(negative > -jnp.inf, axis=-1).astype(negative.dtype)
        return -jnp.log(number * jnp.sum(share(negative) ** 2, axis=-1))

    return loss(a, b, effective_share), loss(a, b, of_row(renyi_2))


@identity()
def kl_share_is_perplexity(a, b):
    """exp(-KL(p || uniform)) = exp(H(p)) / K, which FastCLIP-v3 holds at e^-rho."""

    def entropy(positive, negative):
        p = share(negative)
        return -jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1.0)), 0.0), axis=-1)

    shares = jnp.exp(-loss(a, b, of_row(divergence)))
    return shares, jnp.exp(loss(a, b, of_row(entropy))) / K


# ------------------------------------------------------------------------------------- transforms of scores


@identity()
def temperature_free_is_a_ratio(a, b):
    def ratio(positive, negative):
        """The cross-entropy of odds (1 + s) / (1 - s), which no exponential forms."""
        odds = lambda s: (1 + s) / (1 - s)  # noqa: E731
        rest = jnp.sum(jnp.where(negative > -jnp.inf, odds(scores(negative)), 0.0), axis=-1)
        return jnp.log1p(rest / odds(TAU * positive))

    return loss(a, b, "info_nce", transform=transform.temperature_free()), loss(a, b, of_row(ratio))


@identity()
def dystress_of_equal_temperatures(a, b):
    rule = transform.dystress(min_tau=TAU, max_tau=TAU)
    return loss(a, b, "info_nce", transform=rule), loss(a, b, "info_nce")


@identity()
def adnce_of_wide_sigma(a, b):
    return loss(a, b, "info_nce", transform=transform.adnce(mu=0.4, sigma=1e8)), loss(a, b, "info_nce")


@identity()
def adnce_is_a_tilt_and_a_gaussian(a, b):
    """The part of its exponent that is linear in s is a weight as hardness has it, of mean 1."""
    mu, sigma = 0.6, 0.5

    def tilted(score, positive, tau):
        tilt = (tau * mu / sigma**2) * score / tau
        return tilt - score**2 / (2 * sigma**2)

    rules = transform.adnce(mu=mu, sigma=sigma), Transform(log_weight=tilted)
    return tuple(loss(a, b, "info_nce", transform=rule) for rule in rules)


@identity()
def hardness_weight_is_a_transform(a, b):
    alpha = 0.7
    left = loss(a, b, "info_nce", transform=transform.hardness(alpha=alpha))
    return left, loss(a, b, "hardness_weighted", alpha=alpha)


@identity()
def margin_mask_drops_terms(a, b):
    most = 0.1

    def kept_only(positive, negative):
        kept = held(negative) <= stop_gradient(positive[..., None]) + most / TAU
        kept &= negative > -jnp.inf
        return jnp.log1p(
            jnp.sum(jnp.where(kept, jnp.exp(held(negative) - positive[..., None]), 0.0), axis=-1)
        )

    rule = transform.margin_mask(margin=most)
    return loss(a, b, "info_nce", transform=rule), loss(a, b, of_row(kept_only))


@identity()
def gist_adds_the_positives_pairs(a, b):
    guides = jnp.asarray(np.random.default_rng(4).normal(size=(2, N, 3)))
    row = gist(a, b, guides)
    options = dict(directions="one_way")
    one = loss(a, b, "info_nce", guide=Guide(*guides, margin=-0.1), **options)
    two = loss(b, a, "info_nce", guide=Guide(*guides[::-1], margin=-0.1), candidates="own_view", **options)
    return row, one + jnp.log1p(jnp.exp(two - one) - jnp.exp(-one))


def gist(a, b, guides):
    """The row of an anchor: the other anchors and positives, and its positive beside the other positives."""
    u, v, g, h = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b, *guides))
    limit, others = jnp.sum(g * h, axis=1, keepdims=True) - 0.1, ~np.eye(N, dtype=bool)
    positive = jnp.sum(u * v, axis=1, keepdims=True)
    total = 1.0
    for score, guide in ((u @ v.T, g @ h.T), (u @ u.T, g @ g.T), (v @ v.T, h @ h.T)):
        kept = others & (guide <= limit)
        total += jnp.where(kept, jnp.exp((score - positive) / TAU), 0.0).sum(1)
    return jnp.log(total)


# ---------------------------------------------------------------------------------- candidates, and means of g


@identity()
def dhel_is_dcl_of_the_own_view(a, b):
    u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    energy = jnp.where(np.eye(N, dtype=bool), 0.0, jnp.exp(u @ u.T / TAU)).sum(1)
    return -jnp.log(jnp.exp(jnp.sum(u * v, axis=1) / TAU) / energy), own_view(a, b, "dcl")


@identity()
def dhels_energy_is_a_gaussian_kernels(a, b):
    """e^(s / tau) is e^(1 / tau) times a Gaussian of the distance with t = 1 / (2 tau)."""

    def mean_energy(c, count, positive, temperature):
        return jnp.exp(c + positive / temperature - 1 / temperature) / count.astype(c.dtype)

    uniform = jnp.exp(losses.uniformity(jnp.stack([a, b], axis=1), t=1 / (2 * TAU)))
    return own_view(a, b, mean_energy).mean(), uniform[0]


@identity()
def gaussian_kcl_is_alignment_and_uniformity(a, b):
    t, gamma = 2.0, 16.0
    options = dict(gamma=gamma, candidates="own_view", transform=transform.gaussian_kernel(t=t))
    u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    both = 2 * loss(a, b, "mean_contrast", **options).mean()
    energy = jnp.exp(losses.uniformity(jnp.stack([a, b], axis=1), t=t)).sum()
    return both, gamma * energy - 2 * jnp.exp(-t * jnp.sum((u - v) ** 2, axis=1)).mean()


@identity()
def spectral_is_a_second_moment(a, b):
    """The mean square is the squared mean plus the variance."""

    def moments(positive, negative):
        mean = mean_over(negative, scores(negative))
        variance = mean_over(negative, (scores(negative) - mean[..., None]) ** 2)
        return mean**2 + variance - 2 * TAU * positive

    ours = loss(a, b, "mean_contrast", transform=transform.spectral())
    return ours, loss(a, b, of_row(moments))


@identity()
def vrns_is_a_variance_and_a_mean(a, b):
    target = -0.2

    def moments(positive, negative):
        mean = mean_over(negative, scores(negative))
        return mean_over(negative, (scores(negative) - mean[..., None]) ** 2) + (mean - target) ** 2

    squares = Transform(lambda s, positive, tau: (s - target) ** 2, lambda s, tau: 0.0 * s)
    streamed = loss(a, b, "mean_contrast", transform=squares)
    return jnp.stack([loss(a, b, of_row(moments)), streamed]), jnp.stack(
        [loss(a, b, "vrns", target=target)] * 2
    )


@identity()
def f_micl_of_kl_is_nwj(a, b):
    t = 1.5
    u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    critic = 1 - 2 * t * (1 - u @ v.T)
    negative = logsumexp(jnp.where(np.eye(N, dtype=bool), -jnp.inf, critic), axis=1)
    count = jnp.full(N, N - 1)
    ours = loss(a, b, "mean_contrast", transform=transform.f_micl(divergence="kl", t=t), **ACROSS)
    return ours.mean(), -losses.nwj(jnp.diag(critic), negative, count)


@identity()
def f_micl_of_jensen_shannon_is_siglip(a, b):
    t = 1.5
    ours = loss(a, b, "mean_contrast", gamma=N - 1.0, transform=transform.f_micl(t=t), **ACROSS)
    return ours, sigmoid_loss(a, b, 1 / (2 * t), -2 * t) - N * np.log(2)


@identity()
def relative_bias_is_a_bias_over_tau(a, b):
    relative = 0.2
    u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    sign = 2 * np.eye(N) - 1
    pairs = -jax.nn.log_sigmoid(sign * (u @ v.T - relative) / TAU)
    ours = sigmoid_loss(a, b, TAU, relative_bias=relative), sigmoid_loss(a, b, TAU, -relative / TAU)
    return jnp.stack([pairs.sum(1)] * 2), jnp.stack(ours)


@pytest.mark.parametrize("name", IDENTITIES)
def test_both_sides_are_equal(name):
    sides, gradient_only = IDENTITIES[name]
    left, right = jax.jit(sides)(*VIEWS)
    assert left.shape == right.shape and left.dtype == jnp.float64
    if not gradient_only:
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-13)
        assert np.abs(left).max() > 1e-3
    direction = jnp.asarray(np.random.default_rng(9).uniform(0.5, 1.5, size=left.shape))

    def along(a, b):
        return jnp.stack([jnp.sum(direction * side) for side in sides(a, b)])

    by_view = jax.jit(jax.jacrev(along, (0, 1)))(*VIEWS)
    left, right = (np.concatenate([slopes[side] for slopes in by_view]) for side in (0, 1))
    scale = np.linalg.norm(right)
    assert scale > 1e-4, name
    assert np.linalg.norm(left - right) <= 1e-12 * scale, (name, scale)
