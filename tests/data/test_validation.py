"""data.validation: part of the training images in the place of the test images."""

import numpy as np
import pytest

from contrastive_jax import data


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


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_refuses_what_is_no_fraction(fraction):
    with pytest.raises(ValueError, match=f"data.validation={fraction}"):
        data.load(name="digits", validation=fraction)


def test_refuses_a_fraction_that_leaves_nothing():
    with pytest.raises(ValueError, match="leaves 0 to judge by"):
        data.load(name="digits", validation=0.0001)
