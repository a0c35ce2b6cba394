"""Sets with competing features, against direct constructions in NumPy."""

import collections
import contextlib
import math
import re
import zlib

import jax
import numpy as np
import pytest
from suite import sampled

from contrastive_jax import augment, data, sharding
from contrastive_jax import config as configs
from contrastive_jax.data import compose, order, pixels
from contrastive_jax.lookup import functions_of
from contrastive_jax.training.run import check_constant, source_of

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
    stream = zlib.crc32(f"bits/{int(test)}".encode())
    raw = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(len(split))
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
    found = {key: order.drawn(*key, 40_000, 8) for key in ((0, 0), (0, 1), (1, 0))}
    for integers in found.values():
        np.testing.assert_allclose(np.bincount(integers) / 40_000, 1 / 8, atol=0.01)
    first = found[0, 0]
    np.testing.assert_array_equal(order.drawn(0, 0, 40, 8), first[:40])  # by id, whatever the size of the set
    assert all(np.mean(first == found[key]) < 0.2 for key in ((0, 1), (1, 0)))
    assert order.drawn(0, 0, 5, 1000).tolist() == [int(x) >> 32 for x in 1000 * (
        np.random.Philox(key=[0, 0]).random_raw(5) >> np.uint64(32))]  # fmt: skip


@pytest.mark.parametrize(
    "section",
    sampled(
        [
            {"preset": "crop_only", "size": 4, "method": "bilinear", "flip": 0.5},
            {"preset": "simclr", "size": 6},
            {"preset": "moco_v2", "size": 6},
            {"preset": "byol", "size": 6},
            {"preset": "digits", "size": 6, "shift": 0.0, "slant": 0.0, "erase": 1.0},
        ],
        1,
    ),
    ids=lambda section: section["preset"],
)
def test_augmentation_leaves_bits_alone_and_views_share_them(section):
    made = compose.rand_bit(source(COLOR), None, bits=6).train
    check_constant(section, source(made))
    images, id = next(fed(made))
    keys = augment.example_keys(0, np.zeros(8, np.int32), id)
    views = np.asarray(jax.jit(jax.vmap(augment.make_views(**section)))(keys, images))
    wanted = images[:, :1, :1, 3:] / 255
    np.testing.assert_allclose(
        views[..., 3:], np.broadcast_to(wanted[:, None], views[..., 3:].shape), atol=2e-6
    )
    assert np.abs(views[:, 0, ..., :3] - views[:, 1, ..., :3]).mean() > 0.01  # colours are not left alone
    seen = np.asarray(jax.jit(jax.vmap(augment.make_eval(**section)))(images))
    np.testing.assert_allclose(seen[..., 3:], np.broadcast_to(wanted, seen[..., 3:].shape), atol=2e-6)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"color_channels": None}, "augment.color_channels is None.*use augment.color_channels=1"),
        ({"color_channels": 1}, "augment.shift is 1.0"),
        ({"color_channels": 1, "shift": 0.0}, "augment.slant is 0.3"),
    ],
)
def test_an_augmentation_that_would_change_bits_is_refused(options, words):
    made = compose.rand_bit(source(GRAY), None, bits=2)
    with pytest.raises(ValueError, match=words):
        check_constant({"preset": "digits", "size": 8, "shift": 1.0, "slant": 0.3} | options, made)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"name": "rand_bit", "bits": 25}, "compose.bits is 25; it must be from 0 to 24"),
        ({"name": "rand_bit", "bits": -1}, "compose.bits is -1"),
        ({"name": "drawn"}, "compose.name is 'drawn'; it must be one of binary, digit_on_image"),
        ({"name": "rand_bit", "seed": -1}, "compose.seed is -1"),
        ({"name": "rand_bits"}, "compose.name is 'rand_bits'; .* Did you mean 'rand_bit'"),
        ({"name": "rand_bit", "bit": 3}, "compose.bit is not an option.*'bits'"),
        ({"name": "binary", "bits": 0}, "compose.bits is 0; it must be from 1 to 24"),
        ({"name": "binary", "examples": 0}, "compose.examples is 0"),
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
    settings = configs.resolve("configs/digits.py", [("compose", "binary"), ("data.validation", 0.2)])
    nowhere = settings.only("data")["data"] | {"dir": "/nowhere", "name": "folder"}  # nothing is read
    with pytest.raises(ValueError, match="data.validation is 0.2; it must be 0 with compose.name=binary"):
        source_of(settings.replaced(data=nowhere))


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


# ------------------------------------------------------------------------------------------- MultiDigits

DIGITS = data.Split(random.integers(0, 256, (N, 4, 4, 1), np.uint8), random.integers(0, 10, N))
DIGITS_TEST = data.Split(random.integers(0, 256, (9, 4, 4, 1), np.uint8), np.arange(9))


def many(**options):
    return compose.multi_digits(source(DIGITS, DIGITS_TEST), None, **{"side": 13, "seed": SEED} | options)


def pasted(split, combine=np.maximum):
    """Images by pasting one digit after another."""
    which, place = split.made.tables
    rule = split.made.composition

    def expected(id):
        canvas = np.zeros((rule.side, rule.side, rule.channels), int)
        for digit, (top, left), number in zip(which[id], place[id], rule.banks, strict=True):
            tile = split.made.bank[number][digit]
            under = canvas[top : top + len(tile), left : left + len(tile)]
            assert under.shape == tile.shape  # inside the canvas
            under[:] = np.minimum(combine(under, tile), 255)
        return canvas.astype(np.uint8)

    return expected


@pytest.mark.parametrize(
    "options",
    [
        {"count": 1},
        {"count": 5},
        {"count": 9, "placement": "grid"},
        {"count": 3, "overlap": "add"},
        {"second_size": 9},
        {"size": 6, "second_size": 6},
    ],
    ids=str,
)
def test_digits_on_a_canvas(options):
    made = many(**options)
    combine = np.add if options.get("overlap") == "add" else np.maximum
    splits = [made.train, made.test, *(split for pair in made.probes.values() for split in pair)]
    for split in splits:
        assert split.shape == (13, 13, 1)
        for id in (0, len(split) - 1):
            np.testing.assert_array_equal(split.pictures(np.array([id]))[0], pasted(split, combine)(id))
    all_ways_give(made.train, pasted(made.train, combine))


def test_places_are_everywhere_within_the_canvas():
    made = many(count=2, second_size=9, examples=4000)
    place = made.train.made.tables[1]
    for digit, size in enumerate((4, 9)):
        assert place[:, digit].min() == 0 and place[:, digit].max() == 13 - size
        shares = np.bincount(place[:, digit].ravel()) / place[:, digit].size
        np.testing.assert_allclose(shares, 1 / (13 - size + 1), atol=0.02)
    assert abs(np.corrcoef(place.reshape(len(place), -1).T) - np.eye(4)).max() < 0.1


def test_in_a_grid_digits_have_cells_of_their_own():
    place = many(count=9, placement="grid", examples=300).train.made.tables[1]
    for squares in place:
        cells = {tuple(cell) for cell in (squares // 4).tolist()}
        assert len(cells) == 9 and set((squares % 4).ravel().tolist()) <= {0}
    few = many(count=2, placement="grid", examples=3000).train.made.tables[1] // 4
    np.testing.assert_allclose(np.bincount(few.reshape(-1, 2) @ [3, 1]) / 6000, 1 / 9, atol=0.02)


def test_labels_are_what_the_canvas_shows():
    made = many(count=3, examples=60)
    which = made.train.made.tables[0]
    assert made.train.label.shape == (60, 10) and made.classes == tuple("0123456789")
    for label, digits in zip(made.train.label, DIGITS.label[which], strict=True):
        assert set(np.flatnonzero(label)) == set(digits)
    np.testing.assert_array_equal(which[:, 0], np.arange(60) % N)  # every digit is the first of some canvas
    two = many(second_size=9, examples=60)
    assert two.train.label.shape == (60, 20) and two.classes[:2] == ("4 px: 0", "4 px: 1")
    assert two.classes[-1] == "9 px: 9"
    for label, digits in zip(two.train.label, DIGITS.label[two.train.made.tables[0]], strict=True):
        assert np.flatnonzero(label).tolist() == [digits[0], 10 + digits[1]]
    assert many(size=6, second_size=6).train.label.shape == (N, 10)


def test_an_encoder_is_judged_on_one_digit_of_each_size():
    for made, sizes in ((many(count=4), {"": 4}), (many(second_size=9), {"": 4, "9": 9})):
        assert list(made.judged) == list(sizes)
        for name, size in sizes.items():
            for split, digits in zip(made.judged[name], (DIGITS, DIGITS_TEST), strict=True):
                np.testing.assert_array_equal(split.label, digits.label)
                images = split.pictures(np.arange(len(split)))
                shown = [np.nonzero(image[..., 0]) for image in images]
                assert max(np.ptp(rows) for rows, _ in shown) < size
                tiles = pixels.resized(digits.image, size)
                np.testing.assert_array_equal(images.sum((1, 2, 3)), tiles.astype(int).sum((1, 2, 3)))


def test_a_digit_is_resized_by_pillow():
    from PIL import Image

    found = pixels.resized(DIGITS.image, 9)
    one = Image.fromarray(DIGITS.image[3, ..., 0]).resize((9, 9), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(found[3, ..., 0], np.asarray(one))
    assert pixels.resized(DIGITS.image, 4) is DIGITS.image


@pytest.mark.parametrize(
    "options, words",
    [
        ({"count": 0}, "compose.count is 0"),
        ({"count": 5, "second_size": 9}, "compose.second_size is 9; it needs compose.count=2, not 5"),
        ({"second_size": 14}, "compose.second_size is 14; it must be at most compose.side, 13"),
        ({"side": 3}, "compose.side is 3; it must be at least 4"),
        ({"placement": "in-grid"}, "compose.placement is 'in-grid'; it must be one of random, grid"),
        ({"overlap": "sum"}, "compose.overlap is 'sum'; it must be one of maximum, add"),
        ({"count": 10, "placement": "grid"}, "compose.count is 10; it must be at most 9"),
        ({"second_size": 9, "placement": "grid"}, "compose.placement is grid"),
    ],
)
def test_impossible_canvases_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        many(**options)


def test_digits_need_labels_and_squares():
    with pytest.raises(ValueError, match="images of some are 6 x 5"):
        compose.multi_digits(source(GRAY), None)
    with pytest.raises(ValueError, match="without a single label"):
        compose.multi_digits(source(data.Split(DIGITS.image)), None)
    with pytest.raises(ValueError, match="streamed"):
        from test_stream import IMAGES, Memory

        compose.multi_digits(source(data.Streamed(Memory(IMAGES))), None)


# ----------------------------------------------------------------------------------------- DigitOnImage

PICTURES = data.Split(random.integers(0, 256, (N, 24, 24, 3), np.uint8), random.integers(0, 3, N))
PICTURES_TEST = data.Split(random.integers(0, 256, (8, 24, 24, 3), np.uint8), random.integers(0, 3, 8))


def bank(name, dir):
    assert (name, dir) == ("mnist", "there")
    return source(DIGITS, DIGITS_TEST)


def on_images(images=None, **options):
    return compose.digit_on_image(
        images or source(PICTURES, PICTURES_TEST), bank, **{"dir": "there", "seed": SEED} | options
    )


def nine(image, digit, combine):
    """Pasted at the notebook's places, one after another."""
    image = image.astype(int)
    for top in (3, 10, 18):  # 0.15, 0.45 and 0.75 of 24
        for left in (3, 10, 18):
            part = image[top : top + len(digit), left : left + len(digit)]
            part[:] = np.minimum(combine(part, digit), 255)
    return image.astype(np.uint8)


@pytest.mark.parametrize("overlap, combine", [("add", np.add), ("maximum", np.maximum)])
def test_a_digit_lies_at_nine_places_of_an_image(overlap, combine):
    made = on_images(overlap=overlap, unique=5)
    for split, stored in ((made.train, PICTURES), (made.test, PICTURES_TEST)):
        (which,), (digits,) = split.made.tables, split.made.bank
        all_ways_give(split, lambda id, s=stored, w=which, d=digits: nine(s.image[id], d[w[id]], combine))
        np.testing.assert_array_equal(split.label, stored.label)


def test_training_has_few_digits_and_the_test_has_all():
    pictures = data.Split(np.zeros((400, 24, 24, 1), np.uint8), np.zeros(400, int))
    for unique in (1, 5, 0):
        made = on_images(source(pictures, pictures), unique=unique)
        (digits,), (which,) = made.train.made.bank, made.train.made.tables
        assert len(digits) == (unique or N) and set(which) == set(range(unique or N))
        rows = [np.flatnonzero((DIGITS.image == digit).all((1, 2, 3)))[0] for digit in digits]
        assert len(set(rows)) == len(rows)
        labels = DIGITS.label[np.array(rows)[which]]
        if not unique:
            np.testing.assert_array_equal(made.judged["digit"][0].label, labels)
        (digits,), (which,) = made.test.made.bank, made.test.made.tables
        np.testing.assert_array_equal(digits, DIGITS_TEST.image)
        assert set(which) == set(range(9))
        np.testing.assert_array_equal(made.judged["digit"][1].label, DIGITS_TEST.label[which])
    again = on_images(source(pictures, pictures), unique=5)
    few = on_images(source(pictures[:40], pictures), unique=5)  # by id, whatever the size of the set
    np.testing.assert_array_equal(again.train.made.tables[0][:40], few.train.made.tables[0])


@pytest.mark.parametrize("unique", [1, 5])
def test_digits_are_learnt_from_all_of_them_and_the_encoder_from_few(unique):
    """With few digits a classifier of them would know few classes, whatever the encoder saw."""
    made, whole = on_images(unique=unique), on_images()
    train, _ = made.judged["digit"]
    assert set(made.train.made.tables[0]) <= set(range(unique))
    assert len(set(train.label)) > min(unique, 4) and set(train.label) <= set(DIGITS.label)
    rows = np.arange(N)
    np.testing.assert_array_equal(train.label, whole.judged["digit"][0].label)
    np.testing.assert_array_equal(train.pictures(rows), whole.train.pictures(rows))  # each shows its label
    np.testing.assert_array_equal(made.judged[""][0].pictures(rows), made.train.pictures(rows))
    assert (made.train.pictures(rows) != train.pictures(rows)).any()


def test_both_label_sets_are_judged_on_the_same_images():
    made = on_images()
    assert list(made.judged) == ["", "digit"]
    for plain, of_digits in zip(made.judged[""], made.judged["digit"], strict=True):
        rows = np.arange(8)
        np.testing.assert_array_equal(plain.pictures(rows), of_digits.pictures(rows))
        assert (plain.label != of_digits.label).any()


def test_images_and_digits_are_resized():
    made = on_images(side=30, size=6)
    assert made.train.shape == (30, 30, 3) and made.train.made.bank[0].shape == (N, 6, 6, 1)


def test_streamed_images_get_their_digits_before_they_are_cut():
    from test_stream import Memory, png

    for label in (True, False):
        records = Memory([png(image) for image in PICTURES.image])
        if label:
            records.label = PICTURES.label
        streamed = data.Streamed(records, 24, workers=0)
        made = on_images(source(streamed, streamed), unique=5)
        resident = on_images(source(PICTURES, PICTURES), unique=5)
        view = augment.make_eval(preset="none", size=24)
        for name, pair in made.judged.items():
            images, labels = zip(*pair[0].batches(8, view), strict=True)
            wanted = resident.judged[name][0]
            np.testing.assert_array_equal(np.concatenate(images), wanted.pictures(np.arange(N)))
            if name or label:
                assert pair[0].labelled and pair[0].label_shape == ()
                np.testing.assert_array_equal(pair[0].label, wanted.label)
            if name:
                np.testing.assert_array_equal(np.concatenate(labels), wanted.label)
        chosen = made.judged["digit"][0][np.array([5, 2])]
        np.testing.assert_array_equal(chosen.label, resident.judged["digit"][0].label[[5, 2]])
    with pytest.raises(ValueError, match="cannot read image 1 of memory"):
        broken = data.Streamed(Memory([records.images[0], b"none"]), 24, workers=0)
        list(on_images(source(broken, broken)).train.batches(2, view))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"unique": 23}, "compose.unique is 23; it must be at most 22"),
        ({"overlap": "sum"}, "compose.overlap is 'sum'; it must be one of maximum, add"),
        ({"size": 8}, "compose.size is 8; on 24 pixels it must be at most 6"),
        ({"side": 12}, "compose.size is 4; on 12 pixels it must be at most 3"),
    ],
)
def test_impossible_digits_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        on_images(**options)


def test_places_need_images_of_one_size():
    from test_stream import IMAGES, Memory

    with pytest.raises(ValueError, match="set compose.side or data.size"):
        streamed = data.Streamed(Memory(IMAGES), workers=0)
        on_images(source(streamed, streamed))


# --------------------------------------------------------------------------------------------- in common


def test_the_order_of_the_examples_says_nothing_of_what_they_are_made_of():
    """The order sorts draws of the same generator, by (seed, epoch): were they the integers', it would sort these."""
    many_images = data.Split(np.zeros((2000, 1, 1, 1), np.uint8), np.zeros(2000, int))
    digits = source(data.Split(np.zeros((2000, 4, 4, 1), np.uint8), np.zeros(2000, int)))
    pictures = source(data.Split(np.zeros((2000, 24, 24, 1), np.uint8), np.zeros(2000, int)))
    for seed in (0, 1):
        bits = compose.rand_bit(source(many_images), None, bits=8, seed=seed).train.made.tables[0]
        which, place = compose.multi_digits(digits, None, count=2, side=30, seed=seed).train.made.tables
        (drawn,) = compose.digit_on_image(pictures, lambda *_: digits, seed=seed).train.made.tables
        for epoch in range(4):
            order = data.permutation(seed, epoch, 2000)
            for table in (bits, which[:, 0], which[:, 1], *place.reshape(2000, 4).T, drawn):
                assert abs(np.corrcoef(table[order], np.arange(2000))[0, 1]) < 0.1


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


def test_what_is_to_be_chosen_makes_images():
    assert set(functions_of(compose)) == {"none", "rand_bit", "binary", "multi_digits", "digit_on_image"}
    assert configs.base().compose.name == "none"


SETS = [
    compose.rand_bit(source(COLOR), None, bits=3).train,
    many(count=3).train,
    on_images().train,
]
