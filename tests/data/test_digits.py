"""The digits and their split never change."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from contrastive_jax import data
from contrastive_jax.data.split import stratified


def digest(split):
    return hashlib.sha256(split.image.tobytes() + split.label.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def source():
    return data.load(name="digits")


def test_shapes_types_and_names(source):
    assert source.train.image.shape == (1437, 8, 8, 1) and source.test.image.shape == (360, 8, 8, 1)
    for split in (source.train, source.test):
        assert split.image.dtype == np.uint8 and split.image.min() == 0 and split.image.max() == 255
        assert split.label.dtype == split.group.dtype == np.int32
        assert len(set(split.group.tolist())) == len(split)
    assert source.classes == tuple("0123456789")


def test_the_split_is_the_one_of_all_published_numbers(source):
    assert digest(source.train) == "f99e8203e2a0e30020cc67c03d513886532591f0d431ac016a99f687a0981f18"
    assert digest(source.test) == "e9f6989af7d2850e8703bd29983329fdb74161498acf8c3dc5f39312c06675c7"


def test_images_and_split_are_scikit_learns(source):
    known = load_digits()
    images, label = np.floor(known.images * 255 / 16 + 0.5).astype(np.uint8)[..., None], known.target
    parts = train_test_split(np.arange(len(label)), test_size=0.2, stratify=label, random_state=0)
    for split, rows in zip((source.train, source.test), map(np.sort, parts), strict=True):
        np.testing.assert_array_equal(split.image, images[rows])
        np.testing.assert_array_equal(split.label, label[rows])


def test_scikit_learn_is_not_imported():
    code = "import sys; from contrastive_jax import data; data.load(name='digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_stratified_rule():
    label = np.repeat([-1, 0, 1], [10, 7, 3])
    test = stratified(label, 0.25)
    assert [int(test[label == c].sum()) for c in (-1, 0, 1)] == [3, 2, 1]  # round half up
    draw = np.random.Philox(key=[0, 0]).random_raw(20)
    for c in (-1, 0, 1):
        assert draw[(label == c) & test].max() < draw[(label == c) & ~test].min()


def test_options_that_do_not_apply_are_refused():
    with pytest.raises(ValueError, match="data.size is not an option of digits"):
        data.load(name="digits", size=16)
    with pytest.raises(ValueError, match="data.size is -1"):
        data.load(name="folder", size=-1)
    with pytest.raises(ValueError, match="data.memory_limit is 0"):
        data.load(name="cifar10", memory_limit=0)


def test_a_split_checks_what_it_is_given():
    image = np.zeros((3, 2, 2, 1), np.uint8)
    with pytest.raises(ValueError, match=r"examples are float64 \[3, 2, 2, 1\]; they must be"):
        data.Split(image.astype(np.float64))
    with pytest.raises(ValueError, match=r"3 examples need \[3\]"):
        data.Split(image, np.zeros(2))
    split = data.Split(image, group=np.array([4, 4, 5]))
    assert split.label.tolist() == [-1, -1, -1]
    assert split[1:].group.tolist() == [4, 5] and len(split[1:]) == 2
