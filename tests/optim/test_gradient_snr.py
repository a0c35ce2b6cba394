"""The gradient's signal-to-noise ratio: by its definition, on gradients of known mean and noise, and in a run."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax.optim.gradient_snr import gradient_snr


def params(values):
    """Values in the modules of a network; the probe has its own."""
    return {
        "encoder": {"kernel": values[:3]},
        "projector": {"bias": values[3:]},
        "probe": {"kernel": 7 * values},
    }


def run(gradients, decay):
    """Metrics of the steps, one a gradient [P]."""
    part = gradient_snr(decay=decay)
    state, apply, history = part.init(params(jnp.asarray(gradients[0]))), jax.jit(part.apply), []
    for gradient in gradients:
        metrics, state = apply(state, params(jnp.asarray(gradient)))
        history.append({name: float(value) for name, value in metrics.items()})
    return history, state


@pytest.mark.parametrize("decay", [0.5, 0.99])
def test_it_is_the_ratio_of_the_bias_corrected_moments(decay):
    gradients = np.random.default_rng(0).normal([3.0, -0.1, 0.0, 1e-3, 1e3], [1, 1, 1, 1e-4, 1], (12, 5))
    history, _ = run(gradients.astype(np.float32), decay)
    assert math.isnan(history[0]["gradient_snr"]) and math.isnan(history[0]["gradient_snr_std"])
    gradients = gradients.astype(np.float32).astype(np.float64)
    first, second = np.zeros(5), np.zeros(5)
    for t, g in enumerate(gradients, start=1):
        first, second = decay * first + (1 - decay) * g, decay * second + (1 - decay) * g**2
        if t > 1:
            mean, square = first / (1 - decay**t), second / (1 - decay**t)
            ratio = np.abs(mean) / np.sqrt(square - mean**2)
            np.testing.assert_allclose(history[t - 1]["gradient_snr"], ratio.mean(), rtol=2e-4)
            np.testing.assert_allclose(history[t - 1]["gradient_snr_std"], ratio.std(), rtol=2e-4)


def test_a_known_signal_in_known_noise():
    signal = np.array([2.0, 1.0, 0.5, 2.0, 4.0])
    gradients = np.random.default_rng(1).normal(signal, 1.0, (3000, 5)).astype(np.float32)
    history, _ = run(gradients, 0.998)
    assert history[-1]["gradient_snr"] == pytest.approx(signal.mean(), rel=0.05)
    assert history[-1]["gradient_snr_std"] == pytest.approx(signal.std(), rel=0.05)


def test_noise_alone_has_the_ratio_that_the_docstring_says():
    noise = np.random.default_rng(2).normal(size=(400, 4000)).astype(np.float32)
    history, _ = run(noise, 0.9)
    assert history[-1]["gradient_snr"] == pytest.approx(np.sqrt(2 * 0.1 / (np.pi * 1.9)), rel=0.1)


def test_half_precision_has_moments_in_single():
    gradients = jnp.asarray(np.random.default_rng(4).normal(1e-4, 1e-4, (200, 5)), jnp.float16)
    found, expected = (run(g, 0.99)[0][-1] for g in (gradients, gradients.astype(jnp.float32)))
    assert found == pytest.approx(expected, rel=1e-6)


def test_parameters_may_be_any_tree():
    part = gradient_snr(decay=0.9)
    state = part.init([jnp.ones(3)])
    metrics, _ = part.apply(state, [jnp.ones(3)])
    assert set(metrics) == {"gradient_snr", "gradient_snr_std"}


def test_what_never_varies_has_no_ratio_and_the_probe_does_not_count():
    gradients = np.random.default_rng(3).normal(1.0, 1.0, (20, 5)).astype(np.float32)
    gradients[:, 4], gradients[:, 3] = 0.0, 0.25
    part, other = (run(g, 0.9)[0][-1] for g in (gradients, np.concatenate([gradients[:, :3]] * 2, axis=1)))
    assert part == pytest.approx(other, rel=1e-5)
    _, state = run(gradients, 0.9)
    assert set(state["mean"]) == {"encoder", "projector"}


def test_off_there_is_nothing_and_options_are_checked():
    off = gradient_snr()
    assert off.init(params(jnp.ones(5))) == () and off.apply((), params(jnp.ones(5))) == ({}, ())
    with pytest.raises(ValueError, match="gradient_snr.decay is 1.0; it must be at least 0 and below 1"):
        gradient_snr(decay=1.0)
