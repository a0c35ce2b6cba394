"""The variational autoencoder beside the contrastive methods: its loss by hand, its images' shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax.training.run import source_of
from experiments.intriguing import vae


def test_the_divergence_is_that_of_two_normals():
    random = np.random.default_rng(0)
    mean, log_variance = random.normal(size=(2, 5, 3))
    found = vae.divergence(jnp.asarray(mean), jnp.asarray(log_variance))
    # E log q - log p under q, by Gauss-Hermite quadrature, exact for polynomials.
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    z = mean[..., None] + np.exp(log_variance / 2)[..., None] * nodes
    log_q = -0.5 * nodes**2 - 0.5 * log_variance[..., None]
    direct = ((log_q + 0.5 * z**2) * weights / weights.sum()).sum(-1).sum(-1)
    np.testing.assert_allclose(found, direct, rtol=1e-5)
    np.testing.assert_allclose(vae.divergence(jnp.zeros((1, 4)), jnp.zeros((1, 4))), 0)


def test_the_reconstruction_is_a_bernoulli_likelihood():
    random = np.random.default_rng(1)
    logits, image = random.normal(size=(2, 2, 4, 4, 3)), random.uniform(size=(2, 4, 4, 3))
    p = 1 / (1 + np.exp(-logits[0]))
    direct = -(image * np.log(p) + (1 - image) * np.log(1 - p)).sum((1, 2, 3))
    np.testing.assert_allclose(
        vae.reconstruction(jnp.asarray(logits[0]), jnp.asarray(image)), direct, rtol=1e-5
    )


@pytest.mark.parametrize("shape", [(8, 8, 5), (28, 28, 1), (7, 9, 2)])
def test_the_decoder_makes_images_of_their_shape(shape):
    decoder = vae.Decoder(shape, 4)
    made = jax.eval_shape(lambda z: decoder.init_with_output(jax.random.key(0), z)[0], jnp.zeros((2, 6)))
    assert made.shape == (2, *shape)


def test_its_images_and_encoder_are_those_of_randbit():
    config = vae.config_of(6, "cpu", seed=1)
    assert source_of(config).train.shape == (8, 8, 7) and config["seed"] == 1
    assert config["projector"]["out"] == 2 * vae.LATENTS
    assert vae.config_of(6, "smoke", 0, epochs=3)["train"]["duration"] == "3 epochs"


@pytest.mark.slow
def test_it_learns():
    said = []
    config = vae.config_of(2, "smoke", 0, epochs=8)
    vae.trained(config, source_of(config), beta=1.0, width=8, log=said.append)
    errors = [float(line.split("reconstruction ")[1].split(",")[0]) for line in said]
    assert errors[-1] < 0.9 * errors[0]
