"""Temperatures by KL and by a periodic cosine, candidates from the query's own view, nested widths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import one_program

from contrastive_jax import config as configs
from contrastive_jax import contrastive_loss, matryoshka_loss, sharding
from contrastive_jax.contrast import candidates, diagnostics, temperature, transform
from contrastive_jax.contrast.comparison import Compare, cosine
from contrastive_jax.contrast.margin import eqco, none
from contrastive_jax.contrast.negatives import all as every
from contrastive_jax.training import recipe

contrastive_loss, matryoshka_loss = map(one_program, (contrastive_loss, matryoshka_loss))

ROWS, WIDTH = 16, 5


def views(dtype=np.float64):
    return np.random.default_rng(0).normal(size=(2, ROWS, WIDTH)).astype(dtype)


def negatives_of(a, b, tau, own=False):
    """Logits [2N, K] of each query's negatives: of both views, or of its own."""
    z = np.concatenate([a, b])
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    number = np.arange(2 * ROWS)
    kept = number[:, None] % ROWS != number[None] % ROWS
    kept &= (number[:, None] // ROWS == number[None] // ROWS) | (not own)
    x = z @ z.T / tau
    return np.stack([row[keep] for row, keep in zip(x, kept, strict=True)]), x[
        number, (number + ROWS) % len(z)
    ]


def compared(a, b, tau=0.2, margin=None, change=None):
    """Compare two views at a temperature, which may be traced."""
    compare = Compare(
        embed=cosine,
        candidates=candidates.both_views(ROWS, 2),
        negatives=every(engine="dense"),
        temperature=temperature.fixed(1)._replace(value=lambda state, step, alignment: tau),
        margin=margin or none(),
        multiples=(1.0, 2.0),
        transform=change or transform.none(),
    )

    @jax.jit
    def run(z):
        return compare(z, z, jnp.arange(ROWS), ((), ()), jnp.zeros((), jnp.int32), jax.random.key(0))[0]

    return run(jnp.stack([jnp.asarray(a), jnp.asarray(b)], 1))


# ---------------------------------------------------------------------------------------- temperature


def test_kl_is_log_k_minus_the_entropy_of_the_weights():
    with jax.enable_x64(True):
        a, b = views()
        x, _ = negatives_of(a, b, 0.2)
        p = np.exp(x - x.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        expected = np.mean(np.sum(p * np.log(p * p.shape[1]), axis=1))
        for margin in (None, eqco(alpha=1000.0)):
            found = diagnostics.kl_from_uniform(compared(a, b, margin=margin))
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        weighted = compared(a, b, change=transform.adnce(mu=0.2, sigma=0.3))
        w = np.exp(x - 0.5 * ((x * 0.2 - 0.2) / 0.3) ** 2)
        w /= w.sum(1, keepdims=True)
        expected = np.mean(np.sum(w * np.log(w * w.shape[1]), axis=1))
        np.testing.assert_allclose(diagnostics.kl_from_uniform(weighted), expected, rtol=1e-12)


def test_kl_is_zero_where_all_negatives_score_alike_and_log_k_where_one_takes_all():
    alike = np.ones((2, ROWS, WIDTH), np.float32)
    assert diagnostics.kl_from_uniform(compared(*alike)) == 0.0
    a = np.eye(ROWS, dtype=np.float32)
    a[1] = a[0] + 0.01 * a[1]
    one = diagnostics.kl_from_uniform(compared(a[:, :], a, tau=1e-4))
    assert 0 < one < np.log(2 * ROWS - 2) + 1e-5


def test_the_rule_is_descent_on_its_objective():
    """rate (KL - target) is minus the derivative of tau (log mean e^(d / tau) + target)."""
    with jax.enable_x64(True):
        a, b = views()
        x, positive = negatives_of(a, b, 1.0)
        above = jnp.asarray(x - positive[:, None])

        def objective(tau):
            means = jax.nn.logsumexp(above / tau, axis=1) - jnp.log(above.shape[1])
            return jnp.mean(tau * (means + 0.4))

        rule = temperature.kl(10, tau=0.2, target=0.4, rate=0.01)
        divergence = diagnostics.kl_from_uniform(compared(a, b, tau=0.2))
        moved = rule.update(rule.init(), 0, divergence)["tau"] - 0.2
        np.testing.assert_allclose(moved, -0.01 * jax.jit(jax.grad(objective))(0.2), rtol=1e-9)
        assert rule.reads == "kl_uniform"


def test_the_rule_comes_to_rest_at_its_target_within_its_clamps():
    a, b = views(np.float32)
    rule = temperature.kl(10, tau=0.2, target=0.4, rate=0.02)
    state = rule.init()
    found = jax.jit(lambda tau: diagnostics.kl_from_uniform(compared(a, b, tau=tau)))
    for _ in range(400):
        divergence = found(state["tau"])
        state = rule.update(state, 0, divergence)
    np.testing.assert_allclose(divergence, 0.4, atol=1e-3)
    least = temperature.kl(10, tau=0.2, rate=1e3, min_tau=0.1, max_tau=0.3)
    assert least.update(least.init(), 0, jnp.asarray(0.0))["tau"] == np.float32(0.1)
    assert least.update(least.init(), 0, jnp.asarray(9.0))["tau"] == np.float32(0.3)
    with pytest.raises(ValueError, match=r"temperature.tau is 0\.2"):
        temperature.kl(10, tau=0.2, min_tau=0.3)


def test_periodic_begins_each_period_at_tau():
    rule = temperature.periodic(100, tau=0.5, end=0.1, periods=4.0)
    found = [float(rule.value((), jnp.asarray(step), jnp.zeros(()))) for step in (0, 12.5, 25, 50, 6.25)]
    np.testing.assert_allclose(found, [0.5, 0.1, 0.5, 0.5, 0.3], atol=1e-6)


# ---------------------------------------------------------------------------------------------- own view


def test_dhel_is_dcl_of_the_own_view():
    """-s+ / tau + log sum over the rows of the query's own view, with its gradient, on one device and eight."""
    with jax.enable_x64(True):
        a, b = views()
        x, positive = negatives_of(a, b, 0.3, own=True)
        expected = np.log(np.exp(x).sum(1)) - positive
        queue = [contrastive_loss(a, b, "dcl", 0.3, candidates="queue", directions="one_way", queue=a,
                                  group=np.arange(ROWS), queue_group=np.arange(ROWS))]  # fmt: skip
        np.testing.assert_allclose(queue[0], expected[:ROWS], rtol=1e-12)

        @functools.partial(jax.jit, static_argnums=2)
        def run(a, b, engine):
            loss = functools.partial(contrastive_loss, loss="dcl", candidates="own_view", engine=engine)
            values, pull = jax.vjp(lambda a, b: loss(a, b, temperature=0.3), a, b)
            return values, pull(jnp.ones_like(values))

        one = jax.device_get(run(a, b, "dense"))
        np.testing.assert_allclose(one[0], expected, rtol=1e-12)
        mesh = sharding.make_mesh()
        with jax.set_mesh(mesh):
            a, b = (jax.device_put(x, sharding.named(mesh, sharding.ROWS)) for x in (a, b))
            for engine in ("tiled", "ring"):
                found = jax.device_get(run(a, b, engine))
                for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(one), strict=True):
                    np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)


def built(method="dhel", **sections):
    config = configs.load(f"configs/digits.py:method={method},scale=smoke")
    with config.unlocked():
        for name, value in sections.items():
            config[name] = value
    settings = configs.plain(configs.complete(config))
    settings["schedule"] |= {"warmup": 0, "milestones": ()}
    sizes = {"image_shape": (8, 8, 1), "classes": 10, "example_count": 1000}
    return recipe.build(settings, total_steps=9, steps_per_epoch=3, **sizes)


def test_a_config_takes_the_own_view_where_the_target_sees_it():
    built()
    built(directions="one_way")
    built(target={"name": "ema", "decay": 0.9})
    with pytest.raises(ValueError, match="candidates.name is 'own_view'"):
        built(target={"name": "ema", "decay": 0.9}, directions="one_way")
    with pytest.raises(ValueError, match="candidates.name is 'own_view', but the target"):
        augment = {"preset": "digits", "size": 8, "views": 3}
        built(target={"name": "ema", "decay": 0.9}, directions="one_way", augment=augment)
    with pytest.raises(ValueError, match="candidates.name is 'own_view'; .* with loss.relic_kl"):
        built(loss={"relic_kl": 1.0})
    with pytest.raises(ValueError, match="candidates is 'own_view'; .* with loss 'relic_kl'"):
        contrastive_loss(*views(), "relic_kl", 0.3, candidates="own_view")
    with pytest.raises(ValueError, match="negatives.k is"):
        built(negatives={"name": "random", "k": 10**6})


def test_a_loss_of_both_directions_is_refused_one_way():
    with pytest.raises(ValueError, match="directions is 'one_way', but loss.byol"):
        built("simclr", loss={"byol": 1.0}, directions="one_way")


def test_a_loss_of_contrasts_has_a_value_for_each_query():
    with pytest.raises(
        ValueError, match=r"own_mean: it returns shape \(64,\); it must return one value per query"
    ):
        built(
            "simclr",
            train={"batch_size": 64, "duration": "4 steps"},
            loss={"test_family_rules:own_mean": 1.0},
        )


def own_mean(c):
    return c.mean(-1)


def test_one_temperature_for_a_loss_of_the_whole_batch():
    with pytest.raises(ValueError, match="temperature has the shape .* logsumexp_distribution needs one"):
        built("isogclr", loss={"info_nce": 1.0, "logsumexp_distribution": 1.0})


# ------------------------------------------------------------------------------------------------ widths


def test_nested_widths_are_losses_of_cut_embeddings():
    with jax.enable_x64(True):
        a, b = views()
        queue = np.random.default_rng(1).normal(size=(7, WIDTH))
        found = matryoshka_loss(a, b, "eqco", 0.2, alpha=9.0, widths=(2, 5), weights=(0.5, 2.0), queue=queue)
        parts = [
            contrastive_loss(a[:, :d], b[:, :d], "eqco", 0.2, alpha=9.0, queue=queue[:, :d]) for d in (2, 5)
        ]
        np.testing.assert_allclose(found, 0.5 * parts[0] + 2.0 * parts[1], rtol=1e-13)
        np.testing.assert_array_equal(matryoshka_loss(a, b, widths=[5]), contrastive_loss(a, b))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widths": ()}, r"widths is \(\)"),
        ({"widths": (2, 6)}, "widths contains 6"),
        ({"widths": (0,)}, "widths is 0"),
        ({"widths": 3}, "widths is 3"),
        ({"widths": (2, 3), "weights": (1.0,)}, "weights is"),
        ({"widths": (2,), "weights": ("1",)}, "weights is '1'"),
    ],
)
def test_widths_that_do_not_fit_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        matryoshka_loss(*views(np.float32), **options)


def test_a_rule_reads_a_scalar_that_every_step_has():
    embeddings = jnp.asarray(views(np.float32)).swapaxes(0, 1)
    pool = candidates.both_views(ROWS, 2)
    compare = Compare(cosine, pool, every(), temperature.fixed(1), none(), (1.0, 2.0))
    step, key = jnp.zeros((), jnp.int32), jax.random.key(1)

    @jax.jit
    def run(z):
        return diagnostics.of_comparison(compare(z, z, jnp.arange(ROWS), ((), ()), step, key)[0])

    found = run(embeddings)
    assert all(found[name].shape == () for name in diagnostics.OUTCOMES)
    assert configs.resolve("digits:method=kl_tau").temperature(1).reads in diagnostics.OUTCOMES
    odd = temperature.fixed(1)._replace(reads="nosuch")
    with pytest.raises(
        ValueError, match="temperature.name is 'm:odd', whose reads is 'nosuch'; it must be one of ess"
    ):
        recipe._check_temperature(odd, "m:odd", 0, (ROWS, 2))
