"""Noise in the place of a set, and what is known of sets that are not here."""

import zlib

import numpy as np
import pytest
import tensorflow_datasets as tfds
from suite import over
from test_compose import all_ways_give, nine

from contrastive_jax import augment, data
from contrastive_jax import config as configs
from contrastive_jax.data import compose
from contrastive_jax.data.noise import EXAMPLES, facts
from contrastive_jax.training.run import source_of

SMALL = {"like": "cifar10", "size": 6, "examples": 22, "test_examples": 9}


def philox(name, count):
    return np.random.Philox(key=[0, zlib.crc32(f"synthetic/{name}".encode())]).random_raw(count)


def noise(name, *shape):
    size = int(np.prod(shape))
    return np.frombuffer(philox(name, -(-size // 8)).astype("<u8").tobytes(), np.uint8)[:size].reshape(shape)


def image_of(part, count, channels=3, side=6):
    """The image of an id, from Philox alone."""
    bank, turned = noise("bank", 64, side, side, channels), noise(f"{part}/turned", count, channels)
    which = [int(x) >> 32 << 6 >> 32 for x in philox(f"{part}/which", count)]
    return lambda id: bank[which[id]] ^ turned[id]


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_an_image_follows_from_its_id(channels):
    source = data.synthetic(**SMALL, channels=channels)
    for part, split, count in (("train", source.train, 22), ("test", source.test, 9)):
        all_ways_give(split, image_of(part, count, channels))
        np.testing.assert_array_equal(split.label, np.arange(count) % 10)
        assert split.image.nbytes == 0
    images = source.train.pictures(np.arange(22))
    assert len(np.unique(images.reshape(22, -1), axis=0)) == 22


def test_what_compose_makes_of_other_images_it_makes_of_these():
    source = data.synthetic(**SMALL | {"size": 24})
    plain = image_of("train", 22, side=24)
    bits = compose.rand_bit(source, None, bits=2)
    (integers,) = bits.train.made.tables[2:]

    def with_bits(id):
        planes = [np.full((24, 24, 1), 255 * (integers[id] >> k & 1), np.uint8) for k in range(2)]
        return np.concatenate([plain(id), *planes], -1)

    all_ways_give(bits.train, with_bits)
    assert bits.train.made.facts["mi_floor"] > 0
    digits = data.synthetic(like="digits", size=4, examples=7, test_examples=7)
    with_digits = compose.digit_on_image(source, lambda name, dir: digits)
    tiles, (bank,) = digits.train.pictures(np.arange(7)), with_digits.train.made.bank[1:]
    np.testing.assert_array_equal(np.unique(bank, axis=0), np.unique(tiles, axis=0))
    which = with_digits.train.made.tables[2]
    all_ways_give(with_digits.train, lambda id: nine(plain(id), bank[which[id]], np.add))
    squares = compose.multi_digits(digits, None, count=2, side=9)
    assert squares.train.shape == (9, 9, 1) and squares.train.pictures(np.arange(7)).any()


def test_jpegs_for_the_worker_processes():
    source = data.synthetic(like="imagenet2012", stream="on", workers=0, examples=300, test_examples=70)
    train = source.train
    assert isinstance(train, data.Streamed) and train.shape == (None, None, 3) and len(source.test) == 70
    np.testing.assert_array_equal(train.label, np.arange(300))
    first, second = (record.image for record in train.records.read([5, 6]))
    assert first[:2] == b"\xff\xd8" and first != second and 90_000 < len(first) < 120_000
    rows = np.array([299, 3])
    drawn = train.drawn(augment.make_views(preset="simclr", size=8), rows, seed=0, epoch=1)
    assert drawn["image"].shape == (2, 2, 8, 8, 3) and drawn["label"].tolist() == [299, 3]
    assert data.synthetic(**SMALL | {"size": 0}, stream="on").train.shape == (32, 32, 3)


@over(list(EXAMPLES))
def test_what_is_known_of_a_set_is_what_it_is(name):
    """Its number of images by its prepared files, where they are here."""
    if name in data.FILES:
        return
    if name == "digits":
        source = data.load(name=name)
        assert facts(name) == (source.train.shape, source.classes)
        assert EXAMPLES[name] == {"train": len(source.train), "test": len(source.test)}
        return
    builder = tfds.builder(f"{name}/64x64" if name == "imagenet_resized" else name)
    found = {
        split: info.num_examples for split, info in builder.info.splits.items() if split in EXAMPLES[name]
    }
    assert found in ({}, EXAMPLES[name])


def test_numbers_are_those_of_the_splits_or_the_options():
    for options, train, test, classes in (
        ({"like": "stl10", "train_split": "train+unlabelled"}, 105_000, 8_000, 10),
        ({"like": "cifar10", "train_split": "train[:10%]+test", "test_split": ""}, 15_000, None, 10),
        ({"like": "imagenet2012"}, 1_281_167, 50_000, 1000),
        ({"like": "cifar100", "label_key": "coarse_label"}, 50_000, 10_000, 20),
        ({"like": "sun397", "examples": 30, "classes": 7, "label_key": "label"}, 30, None, 7),
        ({"like": "mnist", "label_key": "", "test_examples": 5}, 60_000, 5, 0),
    ):
        source = data.synthetic(**options)
        assert (len(source.train), source.test and len(source.test)) == (train, test)
        assert len(source.classes) == classes and source.train.labelled == (classes > 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"like": "cifra10"}, "data.like is 'cifra10', .* Did you mean cifar10"),
        ({"like": "imagenet_resized/65x65"}, "data.like is 'imagenet_resized/65x65': .*65x65 not found"),
        ({"like": "sun397"}, "whose number of images is unknown .* set data.examples"),
        (
            {"train_split": "trian"},
            "data.train_split is 'trian'; the splits of imagenet2012.*train, validation",
        ),
        ({"size": -1}, "data.size is -1; it must be at least 0"),
        ({"stream": "onn"}, "data.stream is 'onn'; it must be one of auto, on, off"),
        ({"stream": "on", "channels": 5}, "data.channels is 5; with data.stream='on' it must be 1 or 3"),
    ],
)
def test_what_cannot_be_is_one_sentence(options, words):
    with pytest.raises(ValueError, match=words) as error:
        data.synthetic(**options)
    assert "\n" not in str(error.value)


def resolved(spec, *overrides):
    return configs.plain(configs.resolve(spec, [("data.name", "synthetic"), *overrides]))


def test_a_config_keeps_what_it_says_of_its_set():
    section = resolved("macl_stl10", ("data.examples", "64"))["data"]
    assert (section["like"], section["train_split"], section["examples"]) == ("stl10", "train+unlabelled", 64)
    assert resolved("digit_on_imagenet")["data"]["size"] == 224
    assert "dir" not in section and "memory_limit" not in section
    assert resolved("flatclr_imagenet", ("data.like", "mnist"))["data"]["like"] == "mnist"
    source = source_of(resolved("flatclr_imagenet"))
    assert len(source.train) == 1_281_167 and source.train.shape == (256, 256, 3)
    with pytest.raises(
        ValueError, match="config.data.exampels: there is no such option. Did you mean 'data.examples'"
    ):
        resolved("flatclr_imagenet", ("data.exampels", "3"))
    with pytest.raises(ValueError, match="data.dir"):
        source_of(resolved("flatclr_imagenet", ("data.dir", "there")))


def test_a_set_that_is_not_here_is_in_memory_or_streamed_as_it_would_be():
    for options, streamed in (
        ({"name": "imagenet2012"}, True),
        ({"name": "imagenet2012", "size": 8}, False),
        ({"name": "imagenet_resized/64x64"}, True),
        ({"name": "imagenet_resized/64x64", "memory_limit": 16.0}, False),
        ({"name": "cifar10"}, False),
        ({"name": "cifar10:3.0.2", "stream": "on"}, True),
    ):
        source = data.stand_in(**options)
        assert isinstance(source.train, data.Streamed) == streamed, options
    assert len(data.stand_in(name="cifar10", validation=0.1).test) == 5_000
    assert data.stand_in(name="sun397") is None
