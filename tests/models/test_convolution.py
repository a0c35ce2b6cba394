"""Convolutions are XLA's: forward and both gradients, by kernels and by products, on one device and on eight."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from contrastive_jax import native, sharding
from contrastive_jax.models import convolution
from contrastive_jax.native import compiler

CLOSE = 2e-6  # of the largest number
WINOGRAD = 1e-5  # the same; seen: 5e-6. Sums of inputs, up to 20 times as large, are rounded before they are multiplied
LAYOUT = ("NHWC", "HWIO", "NHWC")
kernels = pytest.mark.skipif(not native.available(), reason="switched off, or no compiler")
# images, height, width, channels in and out, kernel, stride: tiles and slices with ends, images that share rows
SHAPES = {
    "3x3": (8, 8, 8, 5, 7, 3, 1),
    "3x3/2, odd": (8, 9, 7, 16, 33, 3, 2),
    "1x1": (8, 6, 6, 8, 40, 1, 1),
    "1x1/2": (8, 8, 8, 8, 8, 1, 2),
    "7x7/2": (8, 16, 12, 3, 64, 7, 2),
    "5x5/3": (8, 7, 8, 5, 70, 5, 3),
    "more than a slice": (24, 4, 4, 130, 70, 3, 1),
    "rows wider than a tile": (8, 5, 50, 6, 16, 3, 1),
    "one pixel": (8, 1, 1, 4, 3, 3, 1),
    "tiles of 4": (8, 8, 11, 24, 40, 3, 1),
    "tiles of 2": (8, 6, 5, 16, 20, 3, 1),
}


def arrays(shape, dtype=np.float32):
    """Images, kernel and the gradient of their convolution."""
    images, height, width, before, after, size, stride = shape
    random, around = np.random.default_rng(size), 2 * (size // 2) - size
    return (
        random.normal(size=(images, height, width, before)).astype(dtype),
        random.normal(size=(size, size, before, after)).astype(dtype),
        random.normal(
            size=(images, (height + around) // stride + 1, (width + around) // stride + 1, after)
        ).astype(dtype),
    )


def with_gradients(function, shape):
    """The value of a convolution, and the gradients of images and kernel."""
    size, stride = shape[-2:]

    def run(images, kernel, gradient):
        value, pull = jax.vjp(
            lambda x, w: function(x, w, (stride, stride), ((size // 2, size // 2),) * 2), images, kernel
        )
        return value, *pull(gradient)

    return run


def xla(images, kernel, strides, padding):
    return lax.conv_general_dilated(images, kernel, strides, padding, dimension_numbers=LAYOUT)


def exact(shape):
    with jax.enable_x64(True):
        return [np.asarray(x) for x in with_gradients(xla, shape)(*arrays(shape, np.float64))]


def assert_close(found, wanted, relative):
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == found[0].dtype
        np.testing.assert_allclose(
            np.asarray(one, np.float64), other, rtol=0, atol=relative * np.abs(other).max()
        )


def calls(text):
    return {name for name in native.library.HANDLERS if f"contrastive_{name}" in text}


@kernels
@pytest.mark.parametrize("switch", ["on", "direct"])
@pytest.mark.parametrize("name", SHAPES)
def test_kernels_equal_xla(name, switch, monkeypatch):
    monkeypatch.setenv(native.library.SWITCH, switch)
    program = native.jit(with_gradients(convolution.convolve, SHAPES[name]))
    given = arrays(SHAPES[name])
    assert calls(program.lower(*given).as_text()) == {"convolve", "image_gradient", "kernel_gradient"}
    assert_close(program(*given), exact(SHAPES[name]), {"on": WINOGRAD, "direct": CLOSE}[switch])


@kernels
@pytest.mark.parametrize("name", ["3x3/2, odd", "more than a slice"])
def test_kernels_on_eight_devices_equal_one(name):
    shape, mesh = SHAPES[name], sharding.make_mesh()
    rows, everywhere = (sharding.named(mesh, s) for s in (sharding.ROWS, sharding.REPLICATED))
    with jax.set_mesh(mesh):
        placed = jax.device_put(arrays(shape), (rows, everywhere, rows))
        found = native.jit(with_gradients(convolution.convolve, shape))(*placed)
        whole = native.jit(with_gradients(convolution.convolve, shape))(
            *jax.reshard(placed, sharding.REPLICATED)
        )
    assert found[0].sharding.spec[0] == sharding.AXIS and found[2].sharding.is_fully_replicated
    assert_close(found, exact(shape), WINOGRAD)
    assert_close(whole, exact(shape), WINOGRAD)


@kernels
def test_kernels_over_replicas():
    shape = SHAPES["3x3"]
    images, kernel, gradient = arrays(shape)
    several = np.stack([kernel, -kernel, 2 * kernel])
    run = native.jit(jax.vmap(lambda w: with_gradients(convolution.convolve, shape)(images, w, gradient)))
    one = native.jit(with_gradients(convolution.convolve, shape))
    for found, wanted in zip(
        run(several), zip(*(one(images, w, gradient) for w in several), strict=True), strict=True
    ):
        np.testing.assert_array_equal(found, np.stack(wanted))


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("name", SHAPES)
def test_products_equal_xla(name, devices):
    shape = SHAPES[name]
    size, stride = shape[-2:]
    padding = ((size // 2, size // 2),) * 2
    mesh = sharding.make_mesh(jax.devices()[:devices])
    with jax.enable_x64(True), jax.set_mesh(mesh):
        images, _, gradient = arrays(shape, np.float64)
        images, gradient = jax.device_put((images, gradient), sharding.named(mesh, sharding.ROWS))
        found = jax.jit(
            lambda x, g: convolution.kernel_gradient(x, g, (size, size), (stride, stride), padding)
        )(images, gradient)
    np.testing.assert_allclose(found, exact(shape)[2], rtol=1e-11, atol=1e-11)


def test_without_a_compiler_products_are_taken(monkeypatch):
    monkeypatch.setattr(native, "available", lambda: False)
    shape = SHAPES["3x3/2, odd"]

    def text(platform):
        with compiler.tracing_for(platform):
            return str(jax.make_jaxpr(with_gradients(convolution.convolve, shape))(*arrays(shape)))

    assert (text("cpu") != text("cuda")) == native.check_switch() and "ffi_call" not in text("cpu")
    found = native.jit(with_gradients(convolution.convolve, shape))(*arrays(shape))
    assert_close(found, exact(shape), CLOSE)


def test_bfloat16_is_summed_in_float32():
    random = np.random.default_rng(0)
    images, gradient = (jnp.asarray(random.random((256, 8, 8, 3)), jnp.bfloat16) for _ in range(2))
    found, wanted = (
        convolution.kernel_gradient(images.astype(d), gradient.astype(d), (3, 3), (1, 1), ((1, 1), (1, 1)))
        for d in (jnp.bfloat16, jnp.float32)
    )
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), wanted, rtol=2**-8)  # rounded once


def test_accelerators_sum_gradients_of_bfloat16_kernels_over_devices_in_float32():
    """One device's accumulator is float32; XLA would sum the devices' roundings, in bfloat16."""
    shape = (64, 8, 8, 3, 4, 3, 1)
    images, kernel, gradient = (jnp.asarray(a, jnp.bfloat16) for a in arrays(shape))
    run = with_gradients(convolution.convolve, shape)
    with compiler.tracing_for("cuda"), jax.set_mesh(sharding.make_mesh(jax.devices()[:8])):
        apart = sharding.shard_batch(images), kernel, sharding.shard_batch(gradient)
        program = str(jax.make_jaxpr(run)(*apart))
        found = jax.jit(run)(*apart)
    assert re.search(r"f32\[3,3,3,4\] = psum", program) and not re.search(r"bf16\S* = psum", program)
    assert [array.dtype for array in found] == [jnp.bfloat16] * 3
    assert_close([found[2].astype(jnp.float32)], [exact(shape)[2]], 2**-7)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_programs_for_accelerators_are_plain(platform):
    shape = SHAPES["3x3"]

    def text(function):
        with compiler.tracing_for(platform):
            traced = jax.jit(with_gradients(function, shape)).trace(*arrays(shape))
        return traced.lower(lowering_platforms=(platform,)).as_text()

    assert text(convolution.convolve) == text(xla)
