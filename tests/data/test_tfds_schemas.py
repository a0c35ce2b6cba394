"""The sets of the papers: each by the features of TFDS's own builder, with a few images made here.

What differs between them (sizes, labels, splits without labels, several labels) is written by TFDS and read as a
prepared set is, without TensorFlow.
"""

import io
import types

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from contrastive_jax import data

TRAIN, TEST = 7, 4
SETS = {  # name: shape stored, classes, splits (False: without labels), the test split that "auto" takes
    "cifar10": ((32, 32, 3), 10, {"train": True, "test": True}, "test"),
    "cifar100": ((32, 32, 3), 100, {"train": True, "test": True}, "test"),
    "mnist": ((28, 28, 1), 10, {"train": True, "test": True}, "test"),
    "fashion_mnist": ((28, 28, 1), 10, {"train": True, "test": True}, "test"),
    "svhn_cropped": ((32, 32, 3), 10, {"train": True, "test": True, "extra": True}, "test"),
    "stl10": ((96, 96, 3), 10, {"train": True, "test": True, "unlabelled": False}, "test"),
    "oxford_flowers102": ((None, None, 3), 102, {"train": True, "test": True, "validation": True}, "test"),
    "caltech101": ((None, None, 3), 102, {"train": True, "test": True}, "test"),
    "sun397": ((None, None, 3), 397, {"train": True, "test": True, "validation": True}, "test"),
    "imagenet_resized/64x64": ((64, 64, 3), 1000, {"train": True, "validation": True}, "validation"),
    "imagenet2012": (
        (None, None, 3),
        1000,
        {"train": True, "validation": True, "test": False},
        "validation",
    ),
    "places365_small": (
        (256, 256, 3),
        365,
        {"train": True, "test": False, "validation": True},
        "validation",
    ),
    "voc/2007": ((None, None, 3), 20, {"train": True, "validation": True, "test": True}, "test"),
    "voc/2012": ((None, None, 3), 20, {"train": True, "validation": True, "test": False}, "validation"),
}


def number(split, i, labelled, classes):
    return (7 * i + len(split)) % classes if labelled else -1


def labels_of(split, i, labelled, difficult):
    """Of a voc image: two classes, of which the second is there in difficult objects only."""
    if not labelled:
        return []
    found = [(3 * i + len(split)) % 20, (3 * i + len(split) + 1 + i % 5) % 20]
    return sorted(found if difficult else found[:1])


def grey_value(split, i):
    return 10 * i + len(split)


def value(feature, key, split, i, labelled):
    if isinstance(feature, tfds.features.Image):
        height, width, channels = feature.shape
        shape = (height or 40 + 3 * i, width or 64 - i)
        picture = Image.fromarray(np.full(shape, grey_value(split, i), np.uint8))
        file = io.BytesIO()
        picture.convert("RGB" if channels == 3 else "L").save(file, "PNG" if height else "JPEG", quality=95)
        return file.getvalue()
    if isinstance(feature, tfds.features.ClassLabel):
        return number(split, i, labelled, feature.num_classes)
    if key in ("labels", "labels_no_difficult"):
        return labels_of(split, i, labelled, difficult=key == "labels")
    if key == "label":  # of chexpert: a class for each of 14 observations
        return [(i + k) % 4 for k in range(14)]
    return [] if isinstance(feature, tfds.features.Sequence) else f"{split}-{i}"


def prepare(name, dir, splits):
    original = tfds.builder(name, data_dir=dir)
    with tfds.core.registered.skip_registration():

        def split_generators(self, dl_manager):
            return {split: examples(split, labelled) for split, labelled in splits.items()}

        def examples(split, labelled):
            features = dict(original.info.features)
            for i in range(TRAIN if split == "train" else TEST):
                yield i, {k: value(f, k, split, i, labelled) for k, f in features.items()}

        methods = {"_split_generators": split_generators, "__module__": type(original).__module__}
        fabricated = type(type(original).__name__, (type(original),), methods)
        config = {"config": original.builder_config} if original.builder_config else {}
        builder = fabricated(data_dir=dir, file_format="array_record", **config)
    no_downloads = types.SimpleNamespace(downloaded_size=0, register_checksums=False)
    builder._make_download_manager = lambda **options: no_downloads
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Prepares a set when it is first asked for."""
    dir, there = str(tmp_path_factory.mktemp("tfds")), set()

    def prepared(name):
        if name not in there:
            prepare(name, dir, SETS[name][2] if name in SETS else {"train": True, "validation": True})
            there.add(name)
        return dir

    return prepared


def rows(split):
    """What a split holds, in the order of its grey values: TFDS shuffles when it writes."""
    order = np.argsort(split.image.mean((1, 2, 3)), kind="stable")
    return split.image[order], split.label[order]


@pytest.mark.parametrize("name", SETS)
def test_schema(place, name):
    stored, classes, splits, test_split = SETS[name]
    several = name.startswith("voc")
    size = 0 if stored[0] else 16
    options = {"label_key": "labels"} if several else {}
    source = data.load(name=name, dir=place(name), size=size, **options)
    assert len(source.classes) == classes
    shape = stored if stored[0] else (16, 16, 3)
    for split, got, count in (("train", source.train, TRAIN), (test_split, source.test, TEST)):
        image, label = rows(got)
        assert image.shape == (count, *shape) and image.dtype == np.uint8
        want = np.array([grey_value(split, i) for i in range(count)])
        assert abs(image.astype(int) - want[:, None, None, None]).max() <= 2
        if several:
            assert label.dtype == np.uint8 and label.shape == (count, 20)
            assert [np.flatnonzero(x).tolist() for x in label] == [
                labels_of(split, i, True, True) for i in range(count)
            ]
        else:
            assert label.tolist() == [number(split, i, True, classes) for i in range(count)]
    for split, labelled in splits.items():  # asked for by name, a split without labels is refused
        if not labelled:
            with pytest.raises(
                ValueError, match=f"data.test_split is '{split}', which has no labels in {name}"
            ):
                data.load(name=name, dir=place(name), size=size, test_split=split, **options)


def test_stl10_with_its_unlabelled_images(place):
    source = data.load(name="stl10", dir=place("stl10"), train_split="train+unlabelled")
    assert len(source.train) == TRAIN + TEST and source.train.labelled
    assert (source.train.label[TRAIN:] == -1).all() and (source.train.label[:TRAIN] >= 0).all()


def test_cifar100s_coarse_labels(place):
    source = data.load(name="cifar100", dir=place("cifar100"), label_key="coarse_label")
    assert len(source.classes) == 20
    assert rows(source.train)[1].tolist() == [number("train", i, True, 20) for i in range(TRAIN)]


def test_labels_by_position_are_no_set_of_classes(place):
    options = {"name": "chexpert", "dir": place("chexpert"), "size": 16}
    with pytest.raises(
        ValueError, match="'label', which gives every image of chexpert 14 labels by position"
    ):
        data.load(**options)
    assert not data.load(**options, label_key="").train.labelled


def test_voc_says_which_labels_there_are(place):
    message = (
        "data.label_key is 'label', which is not a label of voc/2007: it has labels, labels_no_difficult$"
    )
    with pytest.raises(ValueError, match=message):
        data.load(name="voc/2007", dir=place("voc/2007"), size=16)
    options = {"name": "voc/2007", "dir": place("voc/2007"), "size": 16}
    label = rows(data.load(**options, label_key="labels_no_difficult").train)[1]
    assert [np.flatnonzero(x).tolist() for x in label] == [
        labels_of("train", i, True, difficult=False) for i in range(TRAIN)
    ]
    source = data.load(**options, label_key="")
    assert source.classes == () and source.train.label.tolist() == [-1] * TRAIN
    both = data.load(**options, label_key="labels", train_split="train+validation")
    assert len(both.train) == TRAIN + TEST
