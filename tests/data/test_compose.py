"""Sets with competing features, against direct constructions in NumPy."""

import collections
import contextlib
import math
import re

import jax
import numpy as np
import pytest

from contrastive_jax import augment, data, sharding
from contrastive_jax import config as configs
from contrastive_jax.data import compose
from contrastive_jax.run import check_constant, source_of

N, SEED = 22, 3
random = np.random.default_rng(0)
GRAY = data.Split(random.integers(0, 256, (N, 6, 5, 1), np.uint8), random.integers(0, 10, N))
COLOR = data.Split(random.integers(0, 256, (N, 6, 6, 3), np.uint8), random.integers(0, 10, N))


def source(split, test=None):
    return data.Source("some", split, test or split[:7], tuple("0123456789"))


def mesh_of(devices):
    return sharding.make_mesh(jax.devices()[:devices]) if devices else None


def fed(split, devices=0, batch=8, steps=3):
    """Images and ids of some steps, as the compiled step takes them."""
    mesh = mesh_of(devices)
    resident = data.Resident(split, seed=SEED, batch_size=batch, mesh=mesh)
    take = jax.jit(resident.take)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        for step in range(steps):
            found = take(resident.feed(step), np.int32(step))
            yield np.asarray(found.image), np.asarray(found.id)


def all_ways_give(split, expected):
    """``expected(id)`` [h, w, c] is what a split shows: on the host, in a selection, on any number of devices."""
    every = np.arange(len(split))
    wanted = np.stack([expected(id) for id in every])
    assert split.shape == wanted.shape[1:]
    np.testing.assert_array_equal(split.pictures(every), wanted)
    np.testing.assert_array_equal(np.concatenate([image for image, _ in split.batches(5, None)]), wanted)
    rows = every[::-2]
    np.testing.assert_array_equal(split[rows].pictures(np.arange(len(rows))), wanted[rows])
    assert split.pictures(every[:1]).dtype == np.uint8
    for devices in (0, 8):
        for image, id in fed(split, devices):
            assert image.dtype == np.uint8
            np.testing.assert_array_equal(image, wanted[id])


# ---------------------------------------------------------------------------------------------- RandBit


def bits_of(split, bits, seed=0, test=False):
    """The integers, from Philox alone."""
    raw = np.random.Philox(key=np.array([seed, int(test)], np.uint64)).random_raw(len(split))
    return [int(x) >> 32 << bits >> 32 for x in raw]


@pytest.mark.parametrize("split", [GRAY, COLOR], ids=["gray", "color"])
@pytest.mark.parametrize("bits", [1, 5, 24])
def test_bits_lie_behind_the_channels_of_the_image(split, bits):
    made = compose.rand_bit(source(split), None, bits=bits, seed=SEED)
    for some, stored, test in ((made.train, split, False), (made.test, split[:7], True)):
        integers = bits_of(stored, bits, SEED, test)

        def expected(id, stored=stored, integers=integers):
            image = stored.image[id]
            channels = [
                np.full(image.shape[:2], 255 * (integers[id] >> k & 1), np.uint8) for k in range(bits)
            ]
            return np.concatenate([image, np.stack(channels, -1)], -1)

        all_ways_give(some, expected)
        np.testing.assert_array_equal(some.label, stored.label)


def test_no_bits_are_the_images_themselves():
    made = compose.rand_bit(source(COLOR), None, bits=0)
    all_ways_give(made.train, lambda id: COLOR.image[id])
    assert made.train.made.facts == {"mi_floor": 0.0}


def test_the_floor_is_the_entropy_of_the_integers_that_were_drawn():
    split = data.Split(np.zeros((1000, 1, 1, 1), np.uint8))
    for bits in (1, 4, 10, 24):
        (integers,) = (made := compose.rand_bit(source(split), None, bits=bits).train.made).tables
        counts = collections.Counter(integers.tolist()).values()
        floor = -sum(n / 1000 * math.log(n / 1000) for n in counts)
        assert made.facts["mi_floor"] == pytest.approx(floor, rel=1e-12)
        assert floor <= min(bits * math.log(2), math.log(1000)) + 1e-12
        assert integers.min() >= 0 and integers.max() < 2**bits
    assert made.facts["mi_floor"] == pytest.approx(math.log(1000), abs=0.01)  # of 2^24 hardly any twice
    feed = data.Resident(compose.rand_bit(source(split), None, bits=3).train, seed=0, batch_size=8)
    assert feed.metrics()["mi_floor"] == pytest.approx(3 * math.log(2), abs=0.02)


def test_the_integers_are_uniform_and_follow_the_seed_and_the_split():
    draws = {key: compose.drawn(*key, 40_000, 8) for key in ((0, 0), (0, 1), (1, 0))}
    for integers in draws.values():
        np.testing.assert_allclose(np.bincount(integers) / 40_000, 1 / 8, atol=0.01)
    first = draws[0, 0]
    np.testing.assert_array_equal(
        compose.drawn(0, 0, 40, 8), first[:40]
    )  # by id, whatever the size of the set
    assert all(np.mean(first == draws[key]) < 0.2 for key in ((0, 1), (1, 0)))
    assert compose.drawn(0, 0, 5, 1000).tolist() == [int(x) >> 32 for x in 1000 * (
        np.random.Philox(key=[0, 0]).random_raw(5) >> np.uint64(32))]  # fmt: skip


@pytest.mark.parametrize(
    "section",
    [
        {"preset": "simclr", "size": 6},
        {"preset": "moco_v2", "size": 6},
        {"preset": "byol", "size": 6},
        {"preset": "crop_only", "size": 4, "method": "bilinear", "flip": 0.5},
        {"preset": "digits", "size": 6, "shift": 0.0, "slant": 0.0, "erase": 1.0},
    ],
    ids=lambda section: section["preset"],
)
def test_augmentation_leaves_bits_alone_and_views_share_them(section):
    made = compose.rand_bit(source(COLOR), None, bits=6).train
    check_constant(section, source(made))
    images, id = next(fed(made))
    keys = augment.example_keys(0, np.zeros(8, np.int32), id)
    views = jax.vmap(augment.make_views(**section))(keys, images)
    wanted = images[:, :1, :1, 3:] / 255
    np.testing.assert_allclose(
        views[..., 3:], np.broadcast_to(wanted[:, None], views[..., 3:].shape), atol=2e-6
    )
    assert np.abs(views[:, 0, ..., :3] - views[:, 1, ..., :3]).mean() > 0.01  # colours are not left alone
    seen = jax.vmap(augment.make_eval(**section))(images)
    np.testing.assert_allclose(seen[..., 3:], np.broadcast_to(wanted, seen[..., 3:].shape), atol=2e-6)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"color_channels": None}, "augment.color_channels is None.*take augment.color_channels=1"),
        ({"color_channels": 1}, "augment.shift is 1.0"),
        ({"color_channels": 1, "shift": 0.0}, "augment.slant is 0.3"),
    ],
)
def test_an_augmentation_that_would_change_bits_is_refused(options, words):
    made = compose.rand_bit(source(GRAY), None, bits=2)
    with pytest.raises(ValueError, match=words):
        check_constant({"preset": "digits", "shift": 1.0, "slant": 0.3} | options, made)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"name": "rand_bit", "bits": 25}, "compose.bits=25 is not a whole number from 0 to 24"),
        ({"name": "rand_bit", "bits": -1}, "compose.bits=-1"),
        ({"name": "rand_bit", "bits": 2.0}, "compose.bits=2.0"),
        ({"name": "rand_bit", "seed": -1}, "compose.seed=-1"),
        ({"name": "rand_bits"}, "compose.name is 'rand_bits'. Did you mean 'rand_bit'"),
        ({"name": "rand_bit", "bit": 3}, "compose.bit: no such option.*'bits'"),
        ({"name": "binary", "bits": 0}, "compose.bits=0 is not a whole number from 1 to 24"),
        ({"name": "binary", "examples": 0}, "compose.examples=0"),
    ],
)
def test_wrong_options_are_a_sentence(options, words):
    with pytest.raises(ValueError, match=words) as error:
        source_of({"data": {"name": "digits"}, "compose": options})
    assert "\n" not in str(error.value)


def test_images_of_bits_alone():
    made = compose.binary(source(GRAY), None, bits=3, side=4, examples=50, test_examples=9, seed=SEED)
    assert len(made.test) == 9 and made.classes == ("bit 0", "bit 1", "bit 2")
    integers = bits_of(made.train, 3, SEED)
    all_ways_give(
        made.train,
        lambda id: np.full((4, 4, 3), [255 * (integers[id] >> k & 1) for k in range(3)], np.uint8),
    )
    np.testing.assert_array_equal(made.train.label, [[x >> k & 1 for k in range(3)] for x in integers])


def test_streamed_images_get_the_same_bits():
    from test_stream import IMAGES, Memory

    streamed = data.Streamed(Memory(IMAGES), workers=0)
    made = compose.rand_bit(source(streamed, streamed), None, bits=4).train
    plain, bits = streamed, np.array(bits_of(streamed, 4))
    view = augment.make_eval(preset="simclr", size=6)
    assert made.shape[2] == plain.shape[2] + 4
    rows = np.arange(len(made))[::-1]
    images = np.concatenate([image for image, _ in made.batches(4, view, rows)])
    without = np.concatenate([image for image, _ in plain.batches(4, view, rows)])
    np.testing.assert_array_equal(images[..., : plain.shape[2]], without)
    wanted = 255 * (bits[rows][:, None, None, None] >> np.arange(4) & 1)
    np.testing.assert_array_equal(
        images[..., plain.shape[2] :], np.broadcast_to(wanted, (*images.shape[:3], 4))
    )
    chosen = made[rows[:3]]
    np.testing.assert_array_equal(next(chosen.batches(3, view))[0], images[:3])
    views = augment.make_views(preset="simclr", size=6)
    stream = data.feed(made, view=views, seed=1, batch_size=4, steps=2)
    with contextlib.closing(stream):
        for step in range(2):
            batch = stream.take(stream.feed(step), step)
            wanted = 255 * (bits[np.asarray(batch.id)][:, None, None, None, None] >> np.arange(4) & 1)
            found = np.asarray(batch.image)
            np.testing.assert_array_equal(
                found[..., plain.shape[2] :], np.broadcast_to(wanted, (4, 2, 6, 6, 4))
            )
        assert stream.metrics() == {"replaced": 0, "mi_floor": made.made.facts["mi_floor"]}


# --------------------------------------------------------------------------------------------- in common


def test_a_set_that_is_made_moves_nothing_between_devices():
    from test_resident import COLLECTIVES

    mesh = mesh_of(8)
    for made in SETS:
        feed = data.Resident(made, seed=SEED, batch_size=8, mesh=mesh)
        with jax.set_mesh(mesh):
            text = jax.jit(feed.take).lower(feed.feed(0), np.int32(0)).compile().as_text()
        assert not re.findall(COLLECTIVES, text), made.made.composition


def test_equal_compositions_share_their_programs():
    made = (compose.rand_bit(source(split), None, bits=2).train for split in (GRAY, COLOR))
    one, two = (data.Resident(split, seed=0, batch_size=2) for split in made)
    assert one.take == two.take and hash(one.take) == hash(two.take)
    assert one.take != data.Resident(GRAY, seed=0, batch_size=2).take


def test_an_older_config_composes_nothing():
    assert source_of({"data": {"name": "digits"}}).name == "digits"
    assert configs.base().compose.name == "none"


SETS = [compose.rand_bit(source(COLOR), None, bits=3).train]
