"""Terms of a loss: their weights, and which queries count."""

import contextlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import contrastive_loss, losses, sharding
from contrastive_jax.contrast.terms import known_losses, make_term, make_terms, total_loss
from contrastive_jax.losses.declaration import CANCELS


def test_terms_are_added_by_their_weights():
    z = jnp.asarray(np.random.default_rng(0).standard_normal((6, 2, 3)), jnp.float32)
    terms = make_terms({"alignment": 2.0, "uniformity": {"weight": 0.5, "t": 3.0}})
    loss, values = total_loss(terms, None, {"projection": z})
    np.testing.assert_allclose(values["alignment"], losses.alignment(z).mean(), rtol=1e-6)
    np.testing.assert_allclose(values["uniformity"], losses.uniformity(z, t=3.0).mean(), rtol=1e-6)
    np.testing.assert_allclose(loss, 2.0 * values["alignment"] + 0.5 * values["uniformity"], rtol=1e-6)


def test_a_loss_of_weight_0_is_logged_and_no_part_of_the_sum():
    z = jnp.ones((6, 2, 3))
    infinite = lambda projection: jnp.log(projection - 1.0)  # noqa: E731
    terms = make_terms(
        {"alignment": 1.0, "own:metric": 0.0, "sum": 0.0},
        lambda name: losses.alignment if name == "alignment" else infinite,
    )
    run = lambda z: total_loss(terms, types.SimpleNamespace(count=jnp.ones((6, 2))), {"projection": z})  # noqa: E731
    (loss, values), gradient = jax.value_and_grad(run, has_aux=True)(z)
    assert loss == values["alignment"] and values["sum"] == -jnp.inf and np.isfinite(gradient).all()


def correlation(projection):
    """Multiply over the batch, as losses without negatives do."""
    return jnp.square(projection[:, 0].T @ projection[:, 1] / len(projection)).sum()


def test_a_loss_of_ones_own_knows_of_no_devices():
    """Barlow Twins ended in a stack trace on one device: rows that lie over devices cannot be multiplied over."""
    z = jnp.asarray(np.random.default_rng(0).standard_normal((16, 2, 3)), jnp.float32)
    term, found = (
        make_term("own:correlation", {}, correlation),
        types.SimpleNamespace(count=jnp.ones((16, 2))),
    )
    value, gradient = jax.value_and_grad(lambda z: term(found, {"projection": z}))(z)
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        spread = jax.device_put(z, sharding.named(mesh, sharding.ROWS))
        count = types.SimpleNamespace(count=jax.device_put(found.count, sharding.named(mesh, sharding.ROWS)))
        step = jax.jit(jax.value_and_grad(lambda z: term(count, {"projection": z})))
        on_eight, gradient_on_eight = step(spread)
        assert gradient_on_eight.sharding.spec[0] == sharding.AXIS
    np.testing.assert_allclose(on_eight, value, rtol=1e-5)
    np.testing.assert_allclose(gradient_on_eight, gradient, rtol=1e-5, atol=1e-6)


def test_a_query_without_negatives_is_0():
    found = types.SimpleNamespace(
        count=jnp.asarray([[3, 0]]),
        contrast=lambda multiple: jnp.asarray([[0.5, 0.0]]),
        surplus=lambda m: None,
    )
    (term,) = make_terms({"info_nce": 1.0})
    np.testing.assert_allclose(term.values(found, {}), [[np.log1p(np.exp(0.5)), 0.0]], rtol=1e-6)


def test_losses_say_whether_a_margin_cancels_in_their_gradients():
    """A margin differs from query to query, as numbers of negatives do."""
    found = []
    for name in known_losses():
        with contextlib.suppress(ValueError):  # a helper, or an estimate of quantities that a step has not
            found.append(make_term(name, {"alpha": 8.0} if "eqco" in name else {}))
    known = {"positive": 0.5, "count": 8.0, "temperature": 0.2, "u": 0.1, "mean": 0.3}

    def gradient(term, margin):
        given = [jnp.full(4, known[q]) for q in term.quantities if q != "surplus"]
        contrasts = [jnp.asarray([-2.0, -0.5, 0.5, 1.0]) * multiple for multiple in term.multiples]
        return jax.grad(lambda cs: jnp.sum(term.function(*(c + margin for c in cs), *given, **term.options)))(
            contrasts
        )

    family = [term for term in found if term.multiples]
    gradients = jax.jit(lambda margin: {term.name: gradient(term, margin) for term in family})
    without, beside = gradients(jnp.zeros(4)), gradients(jnp.asarray([0.0, 0.5, 1.0, 2.0]))
    cancels = {term.name for term in family if term.declared.no_margin == CANCELS}
    assert cancels == {name for name in without if np.allclose(without[name], beside[name], rtol=1e-5)}
    others = {term.name for term in family if term.declared.no_margin not in ("", CANCELS)}
    assert others == {"eqco", "eqco_estimate", "debiased", "donsker_varadhan", "fenchel_legendre"} | {
        *("info_nce_estimate", "label_smoothing", "sogclr")
    }


@pytest.mark.parametrize("wrong", [lambda c: "a", lambda c: None, lambda c: {}, lambda c: 1j * c])
def test_ones_own_loss_or_margin_that_returns_no_numbers(wrong):
    x = jax.random.normal(jax.random.key(0), (4, 3))
    with pytest.raises(ValueError, match=r"loss.* returned .*real numbers"):
        contrastive_loss(x, x, wrong)
    with pytest.raises(ValueError, match=r"margin returned .*real numbers"):
        contrastive_loss(x, x, "info_nce", margin=wrong)


@pytest.mark.parametrize("wrong", [lambda: 3, lambda a, b: a])
def test_a_margin_of_another_signature(wrong):
    x = jax.random.normal(jax.random.key(0), (4, 3))
    with pytest.raises(ValueError, match=r"contrastive_loss\.margin is .*one array"):
        contrastive_loss(x, x, "info_nce", margin=wrong)
