"""Every deterministic operation against SimCLR's TF2 code, and what those golden arrays do not show."""

import itertools
import json
import pathlib

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax.augment import color, geometry

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "augment_simclr_tf2.npz")
CASES = [case for case in json.loads(str(GOLDEN["index"])) if "input" in case]
KEY = jax.random.key(0)


def run(case, image):
    """The case with our functions; the name of the case says which."""
    name = case["case"].split("_", 1)[1]
    if name.startswith("brightness_v2"):
        return color.brightness(image, case["factor"])
    if name.startswith("brightness_v1"):
        return color.brightness_additive(image, case["delta"])
    if name.startswith("contrast"):
        return color.contrast(image, case["factor"])
    if name.startswith("saturation"):
        return color.saturation(image, case["factor"])
    if name.startswith("hue"):
        return color.hue(image, case["delta"])
    if name == "gray":
        return color.grayscale(image)
    if name.startswith("blur"):
        edges = {"SAME": "zero", "VALID": "valid"}[case["padding"]]
        taps = 2 * (case["kernel_size"] // 2) + 1
        return color.gaussian_blur(image, case["sigma"], taps=taps, edges=edges)
    if name.startswith("jitter"):
        order = jnp.array(case.get("order", [0, 1, 2, 3]))
        factors = [case[k] for k in ("brightness", "contrast", "saturation", "hue")]
        return color.jitter(image, order, factors, additive=case["impl"] == "simclrv1")
    if name.startswith("center_crop"):
        return geometry.center_crop(
            image, (case["height"], case["width"]), proportion=case["crop_proportion"]
        )
    if name.startswith("crop_y"):
        return geometry.crop_and_resize(image, case["box_yxhw"], (case["height"], case["width"]))
    if name == "eval_preproc":
        return color.clip(geometry.center_crop(image, (case["height"], case["width"])))
    raise AssertionError(f"no function for {name}")


@pytest.mark.parametrize("case", golden_cases.marked("augment_simclr_tf2", CASES, "input"))
def test_golden(case):
    image = jnp.asarray(GOLDEN[f"{case['input']}/image"])
    ours = np.asarray(jax.jit(lambda image: run(case, image))(image))  # one program, not one an operation
    theirs = GOLDEN[f"{case['case']}/out"]
    exact = f"{case['case']}/out_exact_keys"
    if exact in GOLDEN.files:  # TF reads its cubic kernel from a table
        np.testing.assert_allclose(ours, GOLDEN[exact], rtol=0, atol=2e-6)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    else:
        colorful = any(word in case["case"] for word in ("hue", "saturation", "jitter"))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 if colorful else 2e-5)


def test_golden_is_complete():
    assert len(CASES) == 50
    assert {f"{case['case']}/{field}" for case in CASES for field in case["fields"]} <= set(GOLDEN.files)


RGB = jnp.asarray(np.random.default_rng(0).random((12, 10, 3), np.float32))


def test_torchvision_style_blends_with_the_luminance():
    grey = np.asarray(RGB) @ np.array([0.2989, 0.587, 0.114], np.float32)
    contrast = 0.6 * np.asarray(RGB) + 0.4 * grey.mean()
    saturation = 1.5 * np.asarray(RGB) - 0.5 * grey[..., None]
    np.testing.assert_allclose(color.contrast(RGB, 0.6, style="torchvision"), contrast, atol=1e-6)
    np.testing.assert_allclose(color.saturation(RGB, 1.5, style="torchvision"), saturation, atol=1e-6)
    order, factors = jnp.array([1, 2, 3, 0]), (1.2, 0.6, 1.5, 0.0)
    expected = np.clip(contrast, 0, 1)
    grey = expected @ np.array([0.2989, 0.587, 0.114], np.float32)
    expected = np.clip(1.2 * np.clip(1.5 * expected - 0.5 * grey[..., None], 0, 1), 0, 1)
    found = jax.jit(lambda image: color.jitter(image, order, factors, style="torchvision"))(RGB)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@jax.jit
@jax.vmap
def jitter_in(order):
    return color.jitter(RGB, order, (1.4, 0.6, 1.5, 0.1))


def test_jitter_equals_the_operations_one_after_another_in_all_orders():
    orders = list(itertools.permutations(range(4)))
    operations = [
        jax.jit(lambda x: color.clip(color.brightness(x, 1.4))),
        jax.jit(lambda x: color.clip(color.contrast(x, 0.6))),
        jax.jit(lambda x: color.clip(color.saturation(x, 1.5))),
        jax.jit(lambda x: color.clip(color.hue(x, 0.1))),
    ]
    results = np.asarray(jitter_in(jnp.array(orders)))
    for order, result in zip(orders, results, strict=True):
        expected = RGB
        for code in order:
            expected = operations[code](expected)
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)
    distinct = np.unique(results.round(4).reshape(24, -1), axis=0)
    assert len(distinct) > 12  # the order is not ignored


def test_all_orders_are_drawn_equally_often():
    orders = np.asarray(jax.vmap(color.draw_order)(geometry.uniform(KEY, (24 * 500, 4))))
    drawn, count = np.unique(orders, axis=0, return_counts=True)
    assert len(drawn) == 24 and np.all(np.sort(drawn, axis=1) == np.arange(4))
    assert np.all(np.abs(count - 500) < 5 * np.sqrt(500))


def test_grey_images_have_no_hue():
    grey = RGB[..., :1]
    for unchanged in (color.saturation(grey, 0.3), color.hue(grey, 0.2), color.grayscale(grey)):
        np.testing.assert_array_equal(unchanged, grey)
    assert not np.array_equal(color.brightness(grey, 0.5), grey)
    assert not np.array_equal(color.contrast(grey, 0.5), grey)


def test_grey_and_its_three_equal_channels_are_jittered_alike_in_every_order():
    orders = jnp.array(list(itertools.permutations(range(4))))
    three = jnp.repeat(RGB[..., :1], 3, axis=-1)
    one, same = (
        jax.jit(jax.vmap(lambda order, image=image: color.jitter(image, order, (1.4, 0.6, 1.5, 0.1))))(orders)
        for image in (RGB[..., :1], three)
    )
    np.testing.assert_allclose(one, same[..., :1], atol=1e-5)
    assert len(np.unique(np.round(one, 4).reshape(24, -1), axis=0)) == 2  # brightness or contrast first


def test_no_factor_is_negative():
    image = jnp.full((2, 2, 3), 0.1)
    strengths = dict(brightness=3.0, contrast=0.0, saturation=0.0, hue=0.0)
    draw = jax.jit(jax.vmap(lambda key: color.color_jitter(key, image, **strengths)))
    drawn = draw(jax.random.split(KEY, 100))
    assert np.all(drawn > 0)  # a negative brightness would be clipped to 0


def test_degenerate_colors_are_finite():
    image = jnp.array([[[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [-0.1, -0.1, 0.0], [1, 0, 0]]], jnp.float32)
    for result in (color.hue(image, 0.3), color.saturation(image, 1.7), color.saturation(image, 0.0)):
        assert np.isfinite(result).all()
    np.testing.assert_array_equal(color.hue(image, 0.3)[0, :3], image[0, :3])


@pytest.mark.parametrize("edges, mode", [("reflect", "mirror"), ("edge", "nearest"), ("zero", "constant")])
def test_blur_edges_against_scipy(edges, mode):
    from scipy.ndimage import correlate1d

    taps = np.exp(-(np.arange(-4, 5) ** 2) / (2 * 1.3**2))
    expected = correlate1d(np.asarray(RGB, np.float64), taps / taps.sum(), axis=0, mode=mode)
    expected = correlate1d(expected, taps / taps.sum(), axis=1, mode=mode)
    np.testing.assert_allclose(color.gaussian_blur(RGB, 1.3, taps=9, edges=edges), expected, atol=1e-6)


def test_a_blur_of_one_tap_is_the_image_and_a_wide_one_of_a_point_is_the_point():
    for edges in ("reflect", "edge", "zero", "valid"):
        np.testing.assert_array_equal(color.gaussian_blur(RGB, 1.3, taps=1, edges=edges), RGB)
    point = jnp.full((1, 1, 3), 0.4)
    for edges in ("reflect", "edge"):
        np.testing.assert_allclose(color.gaussian_blur(point, 1.3, taps=13, edges=edges), point, rtol=1e-6)


def test_simclr_kernel_is_a_tenth_of_the_height_made_odd():
    assert [color.simclr_taps(height) for height in (8, 19, 20, 32, 96, 224)] == [1, 1, 3, 3, 9, 23]


def test_solarize():
    np.testing.assert_allclose(color.solarize(jnp.array([0.2, 0.5, 0.9])), [0.2, 0.5, 0.1], atol=1e-7)


def test_noise_has_its_scale_and_stays_in_range():
    image = jnp.full((64, 64, 1), 0.5)
    noisy = np.asarray(color.gaussian_noise(KEY, image, 0.05))
    assert abs(noisy.std() - 0.05) < 0.002 and abs(noisy.mean() - 0.5) < 0.005
    assert np.asarray(color.gaussian_noise(KEY, image, 5.0)).min() == 0


def test_erase_blackens_one_rectangle_anywhere():
    erase = jax.jit(jax.vmap(lambda key: color.erase(key, jnp.ones((8, 6, 2)), smallest=2, largest=3)))
    erased = np.asarray(erase(jax.random.split(KEY, 500)))[..., 0] == 0
    heights, widths = erased.any(2).sum(1), erased.any(1).sum(1)
    assert np.array_equal(erased.sum((1, 2)), heights * widths)
    assert set(heights) == set(widths) == {2, 3}
    assert abs((heights == 2).mean() - 0.5) < 0.1
    assert erased.any(0).all()


def test_normalize():
    np.testing.assert_allclose(
        color.normalize(RGB, (0.1, 0.2, 0.3), (1, 2, 4)),
        (np.asarray(RGB) - np.float32([0.1, 0.2, 0.3])) / np.float32([1, 2, 4]),
        atol=1e-6,
    )


def test_the_mean_does_not_depend_on_the_batch():
    images = np.random.default_rng(0).random((16, 20, 20, 3), np.float32)
    function = jax.jit(jax.vmap(lambda image: color.contrast(image, 1.3)))
    pairs = np.concatenate([function(images[i : i + 2]) for i in range(0, 16, 2)])
    np.testing.assert_array_equal(pairs, function(images))
