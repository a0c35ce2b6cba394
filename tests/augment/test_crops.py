"""The host's half of views: the boxes that the device draws, and its resampling."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import sampled

from contrastive_jax import augment, sharding
from contrastive_jax.augment import color, crops, geometry, presets

BOXES = [
    pytest.param(box)
    for box in (
        *((0, 0, 37, 50), (3, 7, 30, 21), (5, 6, 9, 8)),
        *((11, 2, 16, 16), (36, 49, 1, 1), (2.3, 4.6, 20.2, 31.7)),
    )
]
GENERATOR = np.random.default_rng(0)
SIZES = ((375, 500), (500, 333), (33, 47))


@pytest.mark.run
@pytest.mark.parametrize("sampler", ["torchvision", "tf"])
def test_the_host_draws_the_boxes_of_the_device(sampler):
    chain = presets.crop_only(16, 2, sampler=sampler).views[0]
    crop, steps, seed = chain.steps[0], len(chain.steps), 7
    views = augment.make_views(preset="crop_only", size=16, sampler=sampler)
    id, epoch = np.arange(48, dtype=np.int32), np.arange(48, dtype=np.int32) % 5
    for height, width in SIZES:
        keys = crops.example_keys(seed, epoch, id)

        def draw(key, height=height, width=width):  # as random_resized_crop does, of view 0 and 1
            return jnp.stack(
                [
                    geometry.draw_box(
                        jax.random.split(jax.random.split(jax.random.fold_in(key, v), steps)[0])[0],
                        height, width, area=crop.area, ratio=crop.ratio, sampler=sampler,
                    )
                    for v in (0, 1)
                ]
            )  # fmt: skip

        want = jax.jit(jax.vmap(draw))(keys)
        cut = pickle.loads(pickle.dumps(views.cut))
        got = cut.boxes(seed, epoch, id, [(height, width)] * 48)
        np.testing.assert_array_equal(got, want)
        assert len(np.unique(got.reshape(96, 4), axis=0)) > 80  # examples, epochs and views differ


@pytest.mark.parametrize("method", ["bicubic", "bilinear"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("box", sampled(BOXES, 2))
def test_resampling_is_that_of_the_device(method, antialias, box):
    image = GENERATOR.integers(0, 256, (37, 50, 3), dtype=np.uint8)
    want = geometry.crop_and_resize(
        jnp.asarray(image, jnp.float32) / 255, box, 16, method=method, antialias=antialias
    )
    got = augment.make_views(preset="crop_only", size=16, method=method, antialias=antialias).cut.resize(
        image, box
    )
    assert got.shape == (16, 16, 3) and got.dtype == np.uint8
    np.testing.assert_allclose(
        got, np.asarray(color.clip(want)) * 255, rtol=0, atol=0.501
    )  # half a grey level


def test_every_epoch_and_example_has_a_key_of_its_own():
    epoch, id = np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3)
    keys = np.concatenate([jax.random.key_data(crops.example_keys(seed, epoch, id)) for seed in (7, 8)])
    assert len(np.unique(keys, axis=0)) == 24


def test_a_crop_behind_another_step_is_the_same_on_the_host():
    whole = {"shift": 0.0, "slant": 0.0}  # the slant, which is none, comes first
    views, chain = (
        augment.make_views(preset="digits", size=8, **whole),
        presets.digits(8, 2, **whole).views[0],
    )
    id = np.arange(6, dtype=np.int32)
    assert chain.crop == 1
    boxes = views.cut.boxes(3, id, id, [(20, 24)] * 6)
    crop = chain.steps[chain.crop]
    for number, key in enumerate(crops.example_keys(3, id, id)):
        for view in (0, 1):
            own = jax.random.split(jax.random.fold_in(key, view), len(chain.steps))[chain.crop]
            np.testing.assert_allclose(boxes[number, view], crop.box(own, crop.frame(20, 24)), atol=1e-5)


@pytest.mark.run
def test_the_two_halves_are_the_whole():
    """Flip, colour and blur draw from the same keys, whether or not the host has cropped."""
    images = GENERATOR.integers(0, 256, (4, 32, 40, 3), dtype=np.uint8)
    views = augment.make_views(preset="moco_v2", size=16)
    id = epoch = np.arange(4, dtype=np.int32)
    boxes = views.cut.boxes(3, epoch, id, [(32, 40)] * 4)
    cut = np.array(
        [[views.cut.resize(image, box) for box in two] for image, two in zip(images, boxes, strict=True)]
    )
    keys = crops.example_keys(3, epoch, id)
    whole, finished = jax.jit(lambda: (jax.vmap(views)(keys, images), jax.vmap(views.finish)(keys, cut)))()
    # a level of grey, times contrast and saturation up to 1.4 each, over a standard deviation of 0.22
    assert np.abs(whole - finished).max() < 2 * 1.4**2 / 255 / 0.22
    assert np.abs(whole - finished).mean() < 0.01


def test_evaluation_in_two_halves():
    image = GENERATOR.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    view = augment.make_eval(preset="moco_v2", size=40)
    (box,) = view.cut.boxes(0, [0], [0], [(60, 80)])[0]
    np.testing.assert_allclose(view.finish(view.cut.resize(image, box)), view(image), rtol=0, atol=0.01)


def test_boxes_are_the_hosts_whatever_devices_are_in_context(monkeypatch):
    """Also where jax is left no CPU, ``JAX_PLATFORMS=cuda``."""
    cut = augment.make_views(preset="moco_v2", size=16).cut
    arguments = 3, np.zeros(4, np.int32), np.arange(4, dtype=np.int32), [(32, 40)] * 4
    wanted, draw, seen = cut.boxes(*arguments), crops._draw, []

    def drawn(*given):
        boxes = draw(*given)
        seen.append(boxes.devices())
        return boxes

    monkeypatch.setattr(crops, "_draw", drawn)
    with jax.set_mesh(sharding.make_mesh(jax.devices()[1:3])):
        np.testing.assert_array_equal(cut.boxes(*arguments), wanted)
    crops._host.cache_clear()
    here = jax.local_devices

    def no_cpu(*given, backend=None):
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return here(*given)

    monkeypatch.setattr(jax, "local_devices", no_cpu)
    np.testing.assert_array_equal(cut.boxes(*arguments), wanted)
    crops._host.cache_clear()
    assert seen == [{jax.devices()[0]}] * 2


def test_steps_before_the_crop_stay_on_the_device():
    for options in ({"shift": 1.0, "slant": 0.0}, {"shift": 0.0, "slant": 0.3}):
        with pytest.raises(ValueError, match="set augment.slant=0 and augment.shift=0, or data.stream=off"):
            _ = augment.make_views(preset="digits", size=8, **options).cut
    assert augment.make_views(preset="digits", size=8, shift=0.0, slant=0.0).cut.size == 8
