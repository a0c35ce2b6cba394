"""Resizing by ``resize.cc`` beside SciPy's sparse products, which take its place without a compiler."""

import functools
import platform

import numpy as np
import pytest

from contrastive_jax.augment import crops
from contrastive_jax.native import library, resize

DRAW = np.random.default_rng(0)
X86 = platform.machine() in ("x86_64", "AMD64")
compiled = pytest.mark.skipif(resize.resizer() is None, reason="switched off, or no compiler")


def cut(size, method, antialias):
    return crops.Cut(((crops.CenterCrop(size, 1.0, method, antialias), 0, 1),))


def resized(monkeypatch, switch, how, image, box):
    monkeypatch.setenv(library.SWITCH, switch)
    return how.resize(image, box)


@compiled
def test_both_ways_give_the_same_bits(monkeypatch):
    """Elsewhere SciPy's compiler may have joined products and sums, and a level of grey may differ."""
    for _ in range(150):
        h, w, c, size = (int(DRAW.integers(low, high)) for low, high in ((1, 90), (1, 90), (1, 6), (1, 40)))
        how = cut(size, *DRAW.choice(["bicubic", "bilinear"], 1), bool(DRAW.integers(2)))
        image = DRAW.integers(0, 256, (h, w, c), np.uint8)
        low, high = np.sort(DRAW.uniform(0, (h, w), (2, 2)), axis=0)
        box = np.float32([*low, *np.maximum(high - low, 0.5)])
        if DRAW.integers(2):
            box = np.array([*np.floor(low), *np.ceil(high - np.floor(low))], np.float32)
        ours, scipys = (resized(monkeypatch, switch, how, image, box) for switch in ("on", "off"))
        if X86:
            np.testing.assert_array_equal(ours, scipys, err_msg=f"{image.shape}, {box}, {how}")
        else:
            np.testing.assert_allclose(ours.astype(int), scipys, rtol=0, atol=1)


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_view_is_written_where_it_belongs(monkeypatch, switch):
    """Of any part of an array, and nowhere else."""
    how = cut(7, "bicubic", False)
    image = DRAW.integers(0, 256, (20, 30, 3), np.uint8)
    wanted = resized(monkeypatch, switch, how, np.ascontiguousarray(image[::-1, 4:20]), (2, 3, 9, 8))
    out = np.full((3, 7, 7, 3), 77, np.uint8)
    assert how.resize(image[::-1, 4:20], (2, 3, 9, 8), out[1]).base is out
    np.testing.assert_array_equal(out[1], wanted)
    np.testing.assert_array_equal(
        how.resize(image[::-1].transpose(1, 0, 2)[4:20], (3, 2, 8, 9)), wanted.transpose(1, 0, 2)
    )
    assert (out[0] == 77).all() and (out[2] == 77).all()


@compiled
def test_another_shape_or_type_is_refused():
    how, image = cut(7, "bicubic", False), np.zeros((20, 30, 3), np.uint8)
    for view, given in (
        (np.zeros((7, 7, 1), np.uint8), image),
        (np.zeros((7, 7, 3), np.uint8)[:, ::-1], image),
    ):
        with pytest.raises(ValueError, match="3 channels cannot be resized into an array"):
            how.resize(given, (0, 0, 20, 30), view)
    with pytest.raises(ValueError, match="float32 cannot be resized into uint8; both must be uint8"):
        how.resize(image.astype(np.float32), (0, 0, 20, 30))


@pytest.mark.parametrize("compiler", ["nowhere", "g++ '"])
def test_without_a_compiler_there_is_a_line(compiler, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", str(tmp_path / compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(resize, "_loaded", functools.cache(resize._loaded.__wrapped__))
    monkeypatch.setenv(library.SWITCH, "off")
    assert resize.resizer() is None and not capsys.readouterr().err
    monkeypatch.setenv(library.SWITCH, "on")
    assert resize.resizer() is None and resize.resizer() is None
    said = capsys.readouterr().err
    assert said.count("resizing is not compiled") == 1 and ("nowhere" in said or "quotation" in said)
