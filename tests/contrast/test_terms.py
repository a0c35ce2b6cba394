"""Terms of a loss: their weights, and which queries count."""

import types

import jax.numpy as jnp
import numpy as np

from contrastive_jax import losses
from contrastive_jax.contrast.terms import make_terms, total_loss


def test_terms_are_added_by_their_weights():
    z = jnp.asarray(np.random.default_rng(0).standard_normal((6, 2, 3)), jnp.float32)
    terms = make_terms({"alignment": 2.0, "uniformity": {"weight": 0.5, "t": 3.0}})
    loss, values = total_loss(terms, None, {"projection": z})
    np.testing.assert_allclose(values["alignment"], losses.alignment(z).mean(), rtol=1e-6)
    np.testing.assert_allclose(values["uniformity"], losses.uniformity(z, t=3.0).mean(), rtol=1e-6)
    np.testing.assert_allclose(loss, 2.0 * values["alignment"] + 0.5 * values["uniformity"], rtol=1e-6)


def test_a_query_without_negatives_is_0():
    found = types.SimpleNamespace(
        count=jnp.asarray([[3, 0]]),
        contrast=lambda multiple: jnp.asarray([[0.5, 0.0]]),
        surplus=lambda m: None,
    )
    (term,) = make_terms({"info_nce": 1.0})
    np.testing.assert_allclose(term.values(found, {}), [[np.log1p(np.exp(0.5)), 0.0]], rtol=1e-6)
