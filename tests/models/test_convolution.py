"""The convolution's own weight gradient is XLA's, on one device and on eight, and only a CPU's program has it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from contrastive_jax import sharding
from contrastive_jax.models import convolution

LAYOUT = ("NHWC", "HWIO", "NHWC")


def arrays(size, stride, side, dtype):
    """Images, kernel and the gradient of their convolution."""
    random = np.random.default_rng(size)
    images = jnp.asarray(random.normal(size=(16, side, side, 5)), dtype)
    kernel = jnp.asarray(random.normal(size=(size, size, 5, 7)), dtype)
    places = (side + 2 * (size // 2) - size) // stride + 1
    return images, kernel, jnp.asarray(random.normal(size=(16, places, places, 7)), dtype)


def options(size, stride):
    """Strides and padding."""
    return (stride, stride), ((size // 2, size // 2),) * 2


def gradients(function, images, kernel, gradient):
    """The value, and the gradients of images and kernel."""
    value, pull = jax.vjp(function, images, kernel)
    return value, *pull(gradient)


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2), (7, 2)])
@pytest.mark.parametrize("devices", [1, 8])
def test_equals_that_of_xla(size, stride, side, devices, monkeypatch):
    monkeypatch.setattr(convolution, "LARGE", 0)
    monkeypatch.setattr(convolution, "PIECE", 4096)
    with jax.enable_x64(True):
        given = arrays(size, stride, side, jnp.float64)
        wanted = gradients(
            lambda x, w: lax.conv_general_dilated(x, w, *options(size, stride), dimension_numbers=LAYOUT),
            *given,
        )
        mesh = sharding.make_mesh(jax.devices()[:devices])
        rows, everywhere = (sharding.named(mesh, s) for s in (sharding.ROWS, sharding.REPLICATED))
        with jax.set_mesh(mesh):
            placed = jax.device_put(given, (rows, everywhere, rows))
            program = jax.jit(
                lambda *x: gradients(lambda a, b: convolution.convolve(a, b, *options(size, stride)), *x)
            )
            assert "while" in program.lower(*placed).as_text()  # in pieces, as it should be
            found = program(*placed)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_without_a_mesh_and_for_images_that_every_device_has_whole(monkeypatch):
    monkeypatch.setattr(convolution, "LARGE", 0)
    given = arrays(3, 1, 8, jnp.float32)

    def function(*x):
        return gradients(lambda a, b: convolution.convolve(a, b, *options(3, 1)), *x)

    plain = function(*given)
    with jax.set_mesh(sharding.make_mesh()):
        whole = jax.jit(function)(*jax.reshard(given, sharding.REPLICATED))
    for one, other in zip(plain, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("platform", "loops"), [("cpu", True), ("cuda", False), ("tpu", False)])
def test_only_large_ones_on_a_cpu_are_made_so(platform, loops):
    def text(batch):
        images, kernel = jnp.zeros((batch, 32, 32, 64)), jnp.zeros((3, 3, 64, 64))
        program = jax.jit(
            lambda *x: jax.grad(lambda x, w: convolution.convolve(x, w, *options(3, 1)).sum(), 1)(*x)
        )
        return program.trace(images, kernel).lower(lowering_platforms=(platform,)).as_text()

    assert ("while" in text(64)) == loops and "while" not in text(16)


def test_over_kernels_at_once(monkeypatch):
    monkeypatch.setattr(convolution, "LARGE", 0)
    images, kernel, gradient = arrays(3, 1, 8, jnp.float32)
    kernels = jnp.stack([kernel, -kernel, 2 * kernel])

    def function(kernel):
        return gradients(lambda a, b: convolution.convolve(a, b, *options(3, 1)), images, kernel, gradient)

    for one, other in zip(
        jax.vmap(function)(kernels), zip(*map(function, kernels), strict=True), strict=True
    ):
        np.testing.assert_allclose(one, jnp.stack(other), rtol=1e-4, atol=1e-4)


def test_bfloat16_is_summed_in_float32_over_many_pieces(monkeypatch):
    monkeypatch.setattr(convolution, "PIECE", 1)
    random = np.random.default_rng(0)
    images, gradient = (jnp.asarray(random.random((256, 8, 8, 3)), jnp.bfloat16) for _ in range(2))
    found, exact = (
        convolution.weight_gradient(images.astype(d), gradient.astype(d), (3, 3), (1, 1), ((1, 1), (1, 1)))
        for d in (jnp.bfloat16, jnp.float32)
    )
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), exact, rtol=2**-8)  # rounded once


def test_pieces_are_bounded_whatever_the_batch():
    rows = convolution.in_pieces(jnp.ones((125, 2)), 4)
    assert rows.shape == (32, 4, 2) and rows.sum() == 250
