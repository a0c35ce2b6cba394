"""data.validation: part of the training images in the place of the test images."""

import numpy as np
import pytest

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax.training import run as runs


def test_parts_the_training_images_by_class_and_never_shows_the_test_images():
    whole, held = data.load(name="digits"), data.load(name="digits", validation=0.25)
    rows = {image.tobytes() for image in whole.test.image}
    assert len(held.train) + len(held.test) == len(whole.train)
    again = np.concatenate([held.train.image, held.test.image])
    assert sorted(image.tobytes() for image in again) == sorted(
        image.tobytes() for image in whole.train.image
    )
    assert len({image.tobytes() for image in held.test.image} - rows) == len(held.test)
    share = np.bincount(held.test.label) / np.bincount(whole.train.label)
    np.testing.assert_allclose(share, 0.25, atol=0.01)


def test_digits_on_the_validation_images_are_no_test_digits():
    config = configs.load("configs/digit_on_imagenet.py:unique=5,scale=smoke")
    config.data.validation = 0.2
    source = runs.source_of(configs.plain(config))
    test = {image.tobytes() for image in data.load(name="digits").test.image}
    used = {image.tobytes() for image in source.test.made.bank[0]}
    assert used and not used & test


def test_labels_are_not_rounded():
    images = np.zeros((2, 4, 4, 1), np.uint8)
    for labels in ([0.9, 1.0], [[0.5, 0.5], [0.0, 1.0]]):
        with pytest.raises(ValueError, match="labels are float64; they must be whole numbers"):
            data.Split(images, np.array(labels))
    with pytest.raises(ValueError, match="must be 0 or 1"):
        data.Split(images, np.array([[256, 0], [0, 1]]))
    assert data.Split(images, np.array([0.0, 1.0])).label.dtype == np.int32


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_refuses_what_is_no_fraction(fraction):
    with pytest.raises(ValueError, match=f"data.validation is {fraction}"):
        data.load(name="digits", validation=fraction)


def test_refuses_a_fraction_that_leaves_nothing():
    with pytest.raises(ValueError, match="leaves 0 for evaluation"):
        data.load(name="digits", validation=0.0001)
