"""What a step says of itself, each number against a direct computation on the score matrix."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from contrastive_jax import losses, types
from contrastive_jax.contrast import candidates, diagnostics, margin, negatives, temperature
from contrastive_jax.contrast.comparison import Compare, cosine
from contrastive_jax.contrast.terms import make_terms, total_loss
from contrastive_jax.evaluators import geometry

B, D, TAU = 12, 5, 0.2


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def random(seed=0, spread=1.0):
    """Two views [B, 2, D] of B examples, the second near the first."""
    first = np.random.default_rng(seed).normal(size=(B, 1, D))
    return first + spread * np.random.default_rng(seed + 1).normal(size=(B, 2, D))


def compare(alpha=0.0, k=0):
    return Compare(
        embed=cosine,
        candidates=candidates.both_views(B, 2),
        negatives=negatives.random(k=k) if k else negatives.all(),
        temperature=temperature.fixed(1, tau=TAU),
        margin=margin.eqco(alpha=alpha) if alpha else margin.none(),
        multiples=(1.0, 2.0),
    )


def compared(z, query_offset=0.0, rule=None, keys=None):
    z = jnp.asarray(z, jnp.float32)
    keys = z if keys is None else jnp.asarray(keys, jnp.float32)
    rule, state, rng = rule or compare(), ((), ()), jax.random.key(3)

    @jax.jit
    def run(z, keys, offset):
        return rule(z, keys, jnp.arange(B), state, jnp.int32(0), rng, offset)[0]

    return run(z, keys, query_offset)


def logits(z):
    """[2 B, 1 + K] of view-major queries: the positive first, then the 2 (B - 1) negatives."""
    z = unit(z.astype(np.float64))
    rows = []
    for v in range(2):
        for i in range(B):
            others = z[np.arange(B) != i].reshape(-1, D)
            rows.append(np.concatenate([[z[i, v] @ z[i, 1 - v]], others @ z[i, v]]) / TAU)
    return np.array(rows)


def test_entropy_percentiles_and_quantiles_are_those_of_the_score_matrix():
    z = random()
    outputs = types.Outputs(*[jnp.asarray(z, jnp.float32)] * 3, jnp.zeros((B, 2, 0)))
    diagnose = diagnostics.diagnostics("float32", quantiles=8)
    found = jax.jit(diagnose)(compared(z), outputs, jnp.zeros(B, int))
    rows = logits(z)
    c = special.logsumexp(rows[:, 1:] - rows[:, :1], axis=1)
    np.testing.assert_allclose(
        found["contrast_entropy"], stats.entropy(special.softmax(rows, axis=1), axis=1).mean(), rtol=1e-5
    )
    for name, values in (("c", c), ("w", special.expit(c))):
        ours = [found[f"{name}_p{p}"] for p in ("05", "50", "95")]
        np.testing.assert_allclose(ours, np.percentile(values, [5, 50, 95]), rtol=1e-4)
    np.testing.assert_allclose(found["c_quantiles"], np.quantile(c, np.linspace(0, 1, 9)), rtol=1e-4)
    ess = 1 / np.sum(special.softmax(rows[:, 1:], axis=1) ** 2, axis=1) / (rows.shape[1] - 1)
    np.testing.assert_allclose(found["ess"], ess.mean(), rtol=1e-5)
    w = special.expit(c)
    np.testing.assert_allclose(found["query_ess"], w.sum() ** 2 / (w.size * (w**2).sum()), rtol=1e-5)
    np.testing.assert_allclose(found["contrast_accuracy"], np.mean(rows[:, 0] > rows[:, 1:].max(axis=1)))
    others = jax.eval_shape(diagnostics.diagnostics("float32"), compared(z), outputs, jnp.zeros(B, int))
    assert "rankme" not in found and "c_quantiles" not in others


def test_the_scalars_of_a_step_are_those_of_the_score_matrix_whatever_the_margin():
    z, rows = random(), logits(random())
    c, count = special.logsumexp(rows[:, 1:] - rows[:, :1], axis=1), rows.shape[1] - 1
    label = jnp.where(jnp.arange(B) % 3 == 0, -1, jnp.arange(B) % 2)
    guess = np.random.default_rng(4).normal(size=(B, 2, 2))
    outputs = types.Outputs(*[jnp.asarray(z, jnp.float32)] * 3, jnp.asarray(guess))
    diagnose = jax.jit(diagnostics.diagnostics("float32"))
    least = np.log(diagnostics.rounds_to_zero("float32"))
    rounding = count * np.exp(least - np.median(c))  # a margin that lets half of the weights round to 0
    ess = np.mean(1 / np.sum(special.softmax(rows[:, 1:], axis=1) ** 2, axis=1)) / count  # no margin moves it
    for alpha in (0.0, 4.0 * count, rounding):
        margin = np.log(alpha / count) if alpha else 0.0
        found = diagnose(compared(z, rule=compare(alpha)), outputs, label)
        moved = rows + margin * (np.arange(rows.shape[1]) > 0)
        squares = np.sum(special.softmax(moved, axis=1) ** 2, axis=1)
        np.testing.assert_allclose(found["ess"], ess, rtol=1e-4)
        np.testing.assert_allclose(found["ess_with_positive"], np.mean(1 / squares) / (count + 1), rtol=1e-5)
        np.testing.assert_allclose(found["saturated"], np.mean(c + margin <= least))
        np.testing.assert_allclose(
            found["mi_estimate"], np.mean(np.log1p(count) - np.logaddexp(0, c)), rtol=1e-5
        )
    assert found["saturated"] == 0.5
    np.testing.assert_allclose(
        found["embedding_std"], unit(z).std(axis=(0, 1)).mean() * np.sqrt(D), rtol=1e-5
    )
    right = guess.argmax(-1) == np.asarray(label)[:, None]
    np.testing.assert_allclose(found["probe_accuracy"], right[np.asarray(label) >= 0].mean(), rtol=1e-6)


def test_a_query_without_negatives_has_a_contrast_of_0_and_no_gradient():
    def total(z):
        same = jnp.zeros(B, jnp.int32)  # one group: nobody is a negative
        found, _ = compare()(z, z, same, ((), ()), jnp.int32(0), jax.random.key(3))
        return jnp.sum(found.contrast()), found

    (value, found), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(
        jnp.asarray(random(), jnp.float32)
    )
    assert not np.any(found.count) and value == 0 and not np.any(gradient)


def test_queries_without_negatives_are_left_out_of_percentiles_as_of_means():
    """Of one group with all others: they have nothing to be compared with, and c = 0 would be a number."""
    z, outputs = random(), types.Outputs(*[jnp.asarray(random(), jnp.float32)] * 3, jnp.zeros((B, 2, 0)))
    whole = compared(z)
    diagnose = jax.jit(diagnostics.diagnostics("float32", quantiles=4))
    lone = jnp.zeros((B, 2), bool).at[3].set(True).at[5, 0].set(True)

    def without(lone):
        count = jnp.where(lone, 0, whole.count)
        changed = dataclasses.replace(whole, negatives=dataclasses.replace(whole.negatives, count=count))
        return diagnose(changed, outputs, jnp.zeros(B, int))

    found, c = without(lone), np.asarray(whole.contrast(margin=False))[~np.asarray(lone)]
    for name, values in (("c", c), ("w", special.expit(c))):
        ours = [found[f"{name}_p{p}"] for p in ("05", "50", "95")]
        np.testing.assert_allclose(ours, np.percentile(values, [5, 50, 95]), rtol=1e-5)
    np.testing.assert_allclose(found["c_quantiles"], np.quantile(c, np.linspace(0, 1, 5)), rtol=1e-5)
    np.testing.assert_allclose(found["info_nce"], np.logaddexp(0, c).mean(), rtol=1e-5)
    w = special.expit(c)
    np.testing.assert_allclose(found["query_ess"], w.sum() ** 2 / (w.size * (w**2).sum()), rtol=1e-5)
    none = without(jnp.ones((B, 2), bool))
    assert none["c_p50"] == none["w_p50"] == none["info_nce"] == none["query_ess"] == 0
    assert not np.any(none["c_quantiles"])


def test_the_queries_effective_sample_size_where_every_weight_rounds_to_0():
    some = jnp.arange(8).reshape(4, 2) < 6
    for c, share in ((jnp.full((4, 2), -200.0), 1.0), (jnp.full((4, 2), -300.0).at[1, 1].set(-200.0), 1 / 6)):
        np.testing.assert_allclose(diagnostics.query_effective_sample_size(c, some), share, rtol=1e-6)


def test_entropy_at_its_ends():
    same = compared(np.ones((B, 2, D)))
    np.testing.assert_allclose(diagnostics.contrast_entropy(same), np.log(1 + 2 * (B - 1)), rtol=1e-6)
    apart = compared(np.repeat(np.eye(B)[:, None], 2, axis=1) * 1.0)
    alone = np.log1p(2 * (B - 1) * np.exp(-1 / TAU))
    expected = alone + 2 * (B - 1) * np.exp(-1 / TAU - alone) / TAU
    np.testing.assert_allclose(diagnostics.contrast_entropy(apart), expected, rtol=1e-5)


def test_uniformity_is_the_evaluators_and_the_losses():
    z = random()
    ours = jax.jit(diagnostics.uniformity)(jnp.asarray(unit(z[:, 0]), jnp.float32))
    np.testing.assert_allclose(ours, geometry.uniformity(z[:, 0]), rtol=1e-5)
    np.testing.assert_allclose(ours, jax.jit(losses.uniformity)(jnp.asarray(z, jnp.float32))[0], rtol=1e-5)


def test_rankme_is_the_entropy_of_the_singular_values_and_effective_rank_another_number():
    z = random() * np.geomspace(1, 0.01, D)
    values = np.linalg.svd(z.reshape(-1, D), compute_uv=False)
    rank_of = jax.jit(diagnostics.spectral_entropy_rank)
    ours = float(rank_of(jnp.asarray(z, jnp.float32)))
    assert ours == pytest.approx(np.exp(stats.entropy(values / values.sum())), rel=1e-4)
    participation = float(diagnostics.effective_rank(jnp.asarray(z, jnp.float32)))
    assert (ours, participation) == pytest.approx(geometry.effective_ranks(z.reshape(-1, D), eps=0), rel=1e-4)
    assert ours > 1.3 * participation
    for rank in (1, 3, 5):
        axes = jnp.repeat(jnp.eye(D)[:rank], 2, axis=0)[:, None]
        assert float(rank_of(axes)) == pytest.approx(rank, rel=1e-3)
    assert float(rank_of(jnp.zeros((4, 2, D)))) == 0


@pytest.mark.parametrize("alpha", [0.0, 256.0])
def test_query_gradients_are_eqcos_closed_form(alpha):
    """EqCo, appendix A.1: dL/dq of -log(s0 / (s0 + alpha / K sum s_i)), by the score matrix in float64."""
    z = random()
    terms = make_terms({"info_nce": 1.0})

    def loss(query_offset):
        return total_loss(terms, compared(z, query_offset, compare(alpha)), {})[0]

    found = diagnostics.of_query_gradients(jax.jit(jax.grad(loss))(jnp.zeros((B, 2, D))))
    u, norms, count = unit(z), [], 2 * (B - 1)
    for v in range(2):
        for i in range(B):
            others, positive = u[np.arange(B) != i].reshape(-1, D), u[i, 1 - v]
            s0, s = np.exp(u[i, v] @ positive / TAU), np.exp(others @ u[i, v] / TAU)
            weigh = (alpha or count) / count
            total = s0 + weigh * s.sum()
            gradient = -(1 - s0 / total) / TAU * positive + weigh / TAU * (s / total) @ others
            norms.append(np.linalg.norm(gradient))
    np.testing.assert_allclose(found["query_gradient_norm"], np.mean(norms), rtol=1e-4)
    np.testing.assert_allclose(found["query_gradient_norm_std"], np.std(norms), rtol=1e-3)


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="diagnostics.quantiles is -1"):
        diagnostics.diagnostics("float32", quantiles=-1)
