"""Crop boxes by their distributions; crops, flips, turns and slants by what they do to known images."""

import functools
import json
import math
import pathlib

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from contrastive_jax.augment import geometry

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "crop_box_samples_tf.npz")
TF_CASES = json.loads(str(GOLDEN["index"]))
TORCHVISION = np.load(pathlib.Path(__file__).parents[1] / "golden" / "crop_box_samples_torchvision.npz")
TORCHVISION_CASES = json.loads(str(TORCHVISION["index"]))
KEY = jax.random.key(1)
COUNT = 12_000
# two samples of 12,000 differ by more with probability 1e-4; ties make the test only more forgiving
THRESHOLD = math.sqrt(-math.log(1e-4 / 2) / COUNT)


@functools.lru_cache
def draw(sampler, height, width, **options):
    one = functools.partial(geometry.draw_box, height=height, width=width, sampler=sampler, **options)
    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(KEY, COUNT)))


def statistics(boxes, height, width):
    top, left, h, w = np.asarray(boxes, np.float64).T
    return {
        "area": h * w / (height * width),
        "ratio": w / h,
        "height": h,
        "width": w,
        "top": top,
        "left": left,
        "bottom": height - top - h,
        "right": width - left - w,
    }


def distances(ours, theirs, height, width):
    a, b = statistics(ours, height, width), statistics(theirs, height, width)
    return {name: stats.ks_2samp(a[name], b[name], method="asymp").statistic for name in a}


def torchvision_boxes(height, width, area=(0.08, 1.0), ratio=(3 / 4, 4 / 3), rounded=round):
    """RandomResizedCrop's rule, written down in NumPy; ``rounded=float`` is what the continuous sampler draws."""
    generator = np.random.default_rng(0)

    def box():
        for _ in range(10):
            target = height * width * generator.uniform(*area)
            shape = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
            w, h = rounded(math.sqrt(target * shape)), rounded(math.sqrt(target / shape))
            if 0 < w <= width and 0 < h <= height:
                places = round(height - h), round(width - w)  # matters for whole pixels only
                return *(generator.integers(0, n + 1) for n in places), h, w
        h, w = height, width
        if width / height < min(ratio):
            h = round(width / min(ratio))
        elif width / height > max(ratio):
            w = round(height * max(ratio))
        return (height - h) // 2, (width - w) // 2, h, w

    return np.array([box() for _ in range(COUNT)])


@pytest.mark.parametrize("case", golden_cases.marked("crop_box_samples_tf", TF_CASES))
def test_tf_boxes(case):
    height, width = case["image_h"], case["image_w"]
    boxes, theirs = draw("tf", height, width), GOLDEN[f"{case['case']}/boxes_yxhw"]
    assert max(distances(boxes, theirs, height, width).values()) < THRESHOLD
    for name, values in statistics(boxes, height, width).items():
        golden = statistics(theirs, height, width)[name]
        assert abs(values.mean() - golden.mean()) < 5 * golden.std() * math.sqrt(2 / COUNT), name
    quantiles = np.quantile(statistics(boxes, height, width)["area"], np.linspace(0, 1, 21))
    np.testing.assert_allclose(quantiles, GOLDEN[f"{case['case']}/area_quantiles"], atol=0.03)
    # the quirks: a tenth of the image at least; the last row and column only in boxes as long as the image
    assert statistics(boxes, height, width)["area"].min() >= 0.1
    assert not np.any((boxes[:, 0] + boxes[:, 2] == height) & (boxes[:, 2] < height))


# 12 x 60: most attempts fail and the fallback is used; 60 x 12: the other fallback
@pytest.mark.parametrize("case", golden_cases.marked("crop_box_samples_torchvision", TORCHVISION_CASES))
def test_torchvision_boxes(case):
    height, width, area = case["image_h"], case["image_w"], tuple(case["area"])
    ours = draw("torchvision", height, width, area=area)
    theirs = TORCHVISION[f"{case['case']}/boxes_yxhw"]
    assert max(distances(ours, theirs, height, width).values()) < THRESHOLD
    assert max(distances(torchvision_boxes(height, width, area), theirs, height, width).values()) < THRESHOLD
    assert np.all(ours == np.round(ours)) and np.all(ours[:, :2] >= 0)
    assert np.all(ours[:, 0] + ours[:, 2] <= height) and np.all(ours[:, 1] + ours[:, 3] <= width)


def test_the_fallback_is_the_largest_centred_box():
    boxes = draw("torchvision", 12, 60, area=(0.9, 1.0))
    assert np.all(boxes == [0, 22, 12, 16])


def test_tf_falls_back_to_the_image():
    assert np.all(draw("tf", 12, 60, area=(0.9, 1.0)) == [0, 0, 12, 60])


def test_the_samplers_differ_and_the_test_sees_it():
    tf, torchvision = draw("tf", 32, 32), draw("torchvision", 32, 32)
    assert distances(tf, torchvision, 32, 32)["area"] > 3 * THRESHOLD


def test_continuous_boxes():
    boxes = draw("continuous", 32, 32)
    values = statistics(boxes, 32, 32)
    assert np.mean(boxes == np.round(boxes)) < 0.01
    assert min(values[name].min() for name in ("top", "left", "bottom", "right")) > -1e-4
    expected = distances(boxes, torchvision_boxes(32, 32, rounded=float), 32, 32)
    assert max(expected[name] for name in ("area", "ratio", "height", "width")) < THRESHOLD
    # given its height, a box lies anywhere
    free = boxes[:, 2] < 31
    place = boxes[free, 0] / (32 - boxes[free, 2])
    assert stats.kstest(place, "uniform").pvalue > 1e-4


def test_an_unknown_sampler_is_an_error():
    with pytest.raises(ValueError, match="sampler is 'torch'; it must be one of torchvision, tf, continuous"):
        geometry.draw_box(KEY, 8, 8, sampler="torch")


IMAGE = jnp.asarray(np.random.default_rng(0).random((16, 16, 5), np.float32))


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_a_confined_crop_is_cut_out_first(method, antialias):
    options = dict(method=method, antialias=antialias)
    crop = jax.jit(lambda image, box: geometry.crop_and_resize(image, box, 8, **options))
    for top, left, h, w in [(2, 3, 11, 12), (0, 0, 16, 16), (12, 1, 4, 3)]:
        cut = IMAGE[top : top + h, left : left + w]
        expected = jax.image.resize(cut, (8, 8, 5), method, antialias=antialias)
        ours = crop(IMAGE, jnp.array([top, left, h, w]))
        np.testing.assert_allclose(ours, expected, rtol=0, atol=3e-6)


def test_an_open_crop_is_black_outside_the_image():
    moved = geometry.crop_and_resize(IMAGE, (-2, 3, 16, 16), 16, method="bilinear", confined=False)
    np.testing.assert_array_equal(moved[:2], 0)
    np.testing.assert_array_equal(moved[:, 13:], 0)
    np.testing.assert_allclose(moved[2:, :13], IMAGE[:14, 3:], atol=1e-6)


def test_center_crop_of_the_whole_is_the_image():
    assert np.array_equal(geometry.center_crop(IMAGE, 16, proportion=1.0), IMAGE)
    tall = jnp.concatenate([IMAGE, IMAGE])
    np.testing.assert_array_equal(geometry.center_crop(tall, 16, proportion=1.0), tall[8:24])


def test_flip_mirrors_all_channels_half_of_the_time():
    flips = np.asarray(
        jax.jit(jax.vmap(geometry.horizontal_flip, (0, None)))(jax.random.split(KEY, 400), IMAGE)
    )
    mirrored = np.all(flips == np.asarray(IMAGE)[:, ::-1], axis=(1, 2, 3))
    assert np.all(mirrored | np.all(flips == np.asarray(IMAGE), axis=(1, 2, 3)))
    assert abs(mirrored.mean() - 0.5) < 4 * 0.5 / 20


def test_quarter_turns_are_equally_likely():
    turns = np.asarray(jax.jit(jax.vmap(geometry.quarter_turn, (0, None)))(jax.random.split(KEY, 400), IMAGE))
    counts = [np.all(turns == np.rot90(IMAGE, k), axis=(1, 2, 3)).sum() for k in range(4)]
    assert sum(counts) == 400 and min(counts) > 60
    with pytest.raises(ValueError, match="square"):
        geometry.quarter_turn(KEY, IMAGE[:8])


def test_slant_moves_rows_in_proportion_to_their_height():
    line = jnp.zeros((9, 9, 1)).at[:, 4].set(1)
    slanted = np.asarray(geometry.slant(line, 0.5))[..., 0]
    np.testing.assert_allclose(slanted.sum(1), 1, atol=1e-6)
    centre = slanted @ np.arange(9)
    np.testing.assert_allclose(centre, 4 - 0.5 * (np.arange(9) - 4), atol=1e-5)
    np.testing.assert_allclose(geometry.slant(IMAGE, 0.0), IMAGE, atol=1e-6)


@pytest.mark.parametrize("length", [1, 20, 500])
def test_order_free_sum_is_the_sum(length):
    values = np.random.default_rng(0).uniform(-2, 2, (length, 3)).astype(np.float32)
    ours = geometry.order_free_sum(jnp.asarray(values), axis=0)
    np.testing.assert_allclose(ours, values.sum(0, dtype=np.float64), rtol=0, atol=1e-6 * max(length, 4))
    most = geometry.order_free_sum(jnp.full((length,), 1.999), axis=0)  # no overflow
    np.testing.assert_allclose(most, 1.999 * length, rtol=1e-5)
