"""Convolutions by Winograd's algorithm: near float64, of the same bits by any batch and threads, and switched off."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import lax

from contrastive_jax import native
from contrastive_jax.models.convolution import convolve
from contrastive_jax.native import library

pytestmark = pytest.mark.skipif(not native.available(), reason="switched off, or no compiler")
PADDING = ((1, 1), (1, 1))
# images, height, width, channels in and out. Tiles of 4 and of 2; channels that fill no vector; weights of which each
# is read by one task only; images smaller than a tile
SHAPES = {
    "4x4": (5, 12, 16, 16, 32),
    "2x2": (5, 6, 6, 32, 16),
    "odd": (3, 7, 13, 20, 33),
    "half vectors": (4, 9, 8, 8, 8),
    "many channels": (3, 4, 4, 192, 200),
    "3 pixels": (6, 3, 3, 17, 48),
    "2 pixels": (6, 2, 2, 24, 24),
}


@pytest.fixture(autouse=True)
def _on(monkeypatch):
    monkeypatch.setenv(library.SWITCH, "on")


def arrays(shape, dtype=np.float32):
    images, height, width, before, after = shape
    random = np.random.default_rng(before)
    sizes = (images, height, width, before), (3, 3, before, after), (images, height, width, after)
    return [random.normal(size=size).astype(dtype) for size in sizes]


def passes(images, kernel, gradient):
    """The convolution, and the gradients of images and kernel."""
    value, pull = jax.vjp(lambda x, k: convolve(x, k, (1, 1), PADDING), images, kernel)
    return value, *pull(gradient)


def run(*given):
    return [np.asarray(x) for x in native.jit(lambda *arrays: passes(*arrays))(*given)]


def exact(images, kernel, gradient):
    with jax.enable_x64(True):
        value, pull = jax.vjp(
            lambda x, k: lax.conv_general_dilated(
                x, k, (1, 1), PADDING, dimension_numbers=("NHWC", "HWIO", "NHWC")
            ),
            np.float64(images),
            np.float64(kernel),
        )
        return [np.asarray(x) for x in (value, *pull(np.float64(gradient)))]


@pytest.mark.parametrize("name", SHAPES)
def test_errors_are_a_few_times_those_of_direct_kernels(name, monkeypatch):
    given = arrays(SHAPES[name])
    wanted = exact(*given)
    found, limits = {}, {"on": 1e-5, "direct": 2e-6}
    for switch, limit in limits.items():
        monkeypatch.setenv(library.SWITCH, switch)
        found[switch] = run(*given)
        for one, other in zip(found[switch], wanted, strict=True):
            assert np.abs(one - other).max() < limit * np.abs(other).max()
    other_bits = [(one != other).any() for one, other in zip(found["on"], found["direct"], strict=True)]
    assert other_bits == [name != "2 pixels"] * 2 + [True]  # of 2 pixels only the kernel's gradient gains


@pytest.mark.parametrize("name", SHAPES)
def test_an_images_numbers_do_not_depend_on_the_others(name):
    images, kernel, gradient = arrays(SHAPES[name])
    value, of_images, _ = run(images, kernel, gradient)
    for i in (0, len(images) - 1):
        alone = run(images[i : i + 1], kernel, gradient[i : i + 1])
        np.testing.assert_array_equal(alone[0][0], value[i])
        np.testing.assert_array_equal(alone[1][0], of_images[i])


THREADS = """
import numpy as np
import test_winograd as t
np.savez("found", *(x for name in t.SHAPES for x in t.run(*t.arrays((40, *t.SHAPES[name][1:])))))
"""


@pytest.mark.run
def test_bits_do_not_depend_on_the_number_of_threads_of_xla(tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    found = []
    for cores in (1, 2):
        folder = tmp_path / str(cores)
        folder.mkdir()
        some = sorted(os.sched_getaffinity(0))[:cores]
        paths = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {some})\n{THREADS}"],
            cwd=folder, env=os.environ | {"PYTHONPATH": paths}, check=True,
        )  # fmt: skip
        found.append(np.load(folder / "found.npz"))
    for name in found[0].files:
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["4x4", "2x2", "odd", "many channels"])
def test_what_is_not_finite_reaches_what_it_reaches_by_direct_kernels(name, bad, monkeypatch):
    """And at most the other pixels of the tiles that read it: another image has its bits."""
    images, kernel, gradient = arrays(SHAPES[name])
    clean = run(images, kernel, gradient)
    for which in range(3):
        given = [x.copy() for x in (images, kernel, gradient)]
        given[which][tuple(p % n for p, n in zip((1, 2, 3, 5), given[which].shape, strict=True))] = bad
        found = run(*given)
        monkeypatch.setenv(library.SWITCH, "direct")
        direct = run(*given)
        monkeypatch.setenv(library.SWITCH, "on")
        for one, other in zip(found, direct, strict=True):
            assert not np.isfinite(one[~np.isfinite(other)]).any()
        assert not all(np.isfinite(x).all() for x in found)
        if which == 0:
            np.testing.assert_array_equal(found[0][[0, 2]], clean[0][[0, 2]])
            spread = ~np.isfinite(found[0][1]).all(-1)
            rows, columns = np.nonzero(spread)
            assert np.ptp(rows) <= 7 and np.ptp(columns) <= 7


def test_zeros_are_exact():
    images, kernel, gradient = arrays(SHAPES["4x4"])
    assert not any(x.any() for x in run(0 * images, kernel, 0 * gradient))
    kernel[..., 3] = 0
    assert not run(images, kernel, gradient)[0][..., 3].any()


def test_float64_is_xlas():
    with jax.enable_x64(True):
        given = arrays(SHAPES["4x4"], np.float64)
        assert "contrastive_" not in native.jit(lambda *a: passes(*a)).lower(*given).as_text()
        for one, other in zip(run(*given), exact(*given), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-13 * np.abs(other).max())


def test_the_switch_is_a_part_of_the_program(monkeypatch):
    """So that none of the other is taken from jax's cache of compiled programs."""
    given = arrays(SHAPES["4x4"])
    texts = []
    for switch in ("on", "direct"):
        monkeypatch.setenv(library.SWITCH, switch)
        texts.append(native.jit(lambda *a: passes(*a)).lower(*given).as_text())
    assert [text.count("winograd = true") for text in texts] == [3, 0]
    assert [text.count("winograd = false") for text in texts] == [0, 3]
