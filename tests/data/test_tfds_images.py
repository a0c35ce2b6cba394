"""Prepared TFDS sets, written here by TFDS's own builders and read without TensorFlow."""

import io
import json
import sys
import types

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from contrastive_jax import data
from contrastive_jax.data.records import Unreadable
from contrastive_jax.data.tfds_images import TfdsRecords
from contrastive_jax.evaluators.evaluation_data import labelled

random = np.random.default_rng(0)
PIXELS = {
    "train": random.integers(0, 256, (20, 5, 4, 3), np.uint8),
    "test": random.integers(0, 256, (6, 5, 4, 3), np.uint8),
    "validation": random.integers(0, 256, (3, 5, 4, 3), np.uint8),
    "unlabelled": random.integers(0, 256, (7, 5, 4, 3), np.uint8),
}
WIDE = np.full((6, 10, 3), 90, np.uint8)


def encoded(array, format="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(buffer, format)
    return buffer.getvalue()


with tfds.core.registered.skip_registration():

    class Tiny(tfds.core.GeneratorBasedBuilder):
        """Examples are given by ``content``: split -> [(encoded image, label)]."""

        VERSION = tfds.core.Version("1.0.0")
        content: dict
        shape: tuple

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(shape=self.shape),
                        "label": tfds.features.ClassLabel(names=["ant", "bee", "cow"]),
                        "coarse": tfds.features.ClassLabel(names=["insect", "mammal"]),
                        "id": tfds.features.Text(),
                    }
                ),
                supervised_keys=("image", "label"),
            )

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(rows) for split, rows in self.content.items()}

        def _generate_examples(self, rows):
            for i, (image, label) in enumerate(rows):
                coarse = label // 2 if label >= 0 else -1
                yield i, {"image": image, "label": label, "coarse": coarse, "id": str(i)}


def prepare(dir, class_name, content, shape):
    with tfds.core.registered.skip_registration():
        builder = type(class_name, (Tiny,), {"content": content, "shape": shape})
        builder = builder(data_dir=dir, file_format="array_record")
    # There is nothing to download, and TFDS's own manager would need TensorFlow.
    no_downloads = types.SimpleNamespace(downloaded_size=0, register_checksums=False)
    builder._make_download_manager = lambda **options: no_downloads
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))


@pytest.fixture(scope="module")
def dir(tmp_path_factory):
    """A TFDS folder with the sets tiny, grey, wide (of different sizes) and broken."""
    dir = str(tmp_path_factory.mktemp("tfds"))
    content = {
        split: [(encoded(x), -1 if split == "unlabelled" else i % 3) for i, x in enumerate(images)]
        for split, images in PIXELS.items()
    }
    prepare(dir, "Tiny", content, (5, 4, 3))
    grey = [(encoded(x[..., :1]), 0) for x in PIXELS["train"]]
    prepare(dir, "Grey", {"train": grey, "validation": grey[:3]}, (5, 4, 1))
    wide = [(encoded(WIDE), 0), (encoded(WIDE[:, :5], "JPEG"), 1), (encoded(WIDE[:4, :3, :1]), 2)]
    prepare(dir, "Wide", {"train": wide}, (None, None, 3))
    prepare(dir, "Broken", {"train": [*content["train"][:3], (b"no image", 0)]}, (5, 4, 3))
    return dir


class NoTensorFlow:
    """An importer that refuses to."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        assert name != "tensorflow"


def sorted_rows(image, label):
    return sorted((x.tobytes(), int(y)) for x, y in zip(image, label, strict=True))


def test_pixels_and_labels_are_those_of_the_source(dir, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [NoTensorFlow, *sys.meta_path])
    source = data.load(name="tiny", dir=dir)
    assert source.classes == ("ant", "bee", "cow")
    for split, got in (("train", source.train), ("test", source.test)):
        want = PIXELS[split]
        assert sorted_rows(got.image, got.label) == sorted_rows(want, np.arange(len(want)) % 3)
        assert got.image.dtype == np.uint8 and got.label.dtype == np.int32


def test_order_is_that_of_the_files(dir):
    builder = tfds.builder_from_directory(f"{dir}/tiny/1.0.0")
    ids = [int(x["id"]) for x in builder.as_data_source("train")]
    assert ids != sorted(ids)  # TFDS shuffles by key when it writes
    np.testing.assert_array_equal(data.load(name="tiny", dir=dir).train.image, PIXELS["train"][ids])


@pytest.mark.parametrize("chunk", [1, 7, 20])
def test_records_are_read_by_the_chunk(dir, monkeypatch, chunk):
    whole = data.load(name="tiny", dir=dir).train
    monkeypatch.setattr("contrastive_jax.data.tfds_images.TfdsRecords.chunk", chunk)
    for size in (0, 5):
        split = data.load(name="tiny", dir=dir, size=size).train
        np.testing.assert_array_equal(split.label, whole.label)
        assert split.image.any((1, 2, 3)).all()
    np.testing.assert_array_equal(data.load(name="tiny", dir=dir).train.image, whole.image)


def test_splits_in_tfds_language(dir):
    source = data.load(name="tiny", dir=dir, train_split="train[4:]+unlabelled", test_split="train[:4]")
    assert len(source.train) == 23 and (source.train.label[16:] == -1).all()
    whole = data.load(name="tiny", dir=dir).train
    np.testing.assert_array_equal(source.test.image, whole.image[:4])
    np.testing.assert_array_equal(source.train.image[:16], whole.image[4:])
    for train_split, test_split in (
        ("train", "train[:4]"),
        ("train+test", "auto"),
        ("train[:5]", "train[4:]"),
    ):
        with pytest.raises(ValueError, match="share images of tiny, so training would include test images"):
            data.load(name="tiny", dir=dir, train_split=train_split, test_split=test_split)
    with pytest.raises(
        ValueError,
        match=r"data.train_split is 'train\[:5\]\+train\[4:\]', which contains images of tiny twice",
    ):
        data.load(name="tiny", dir=dir, train_split="train[:5]+train[4:]")
    with pytest.raises(ValueError, match=r"data.train_split is 'train\[:0\]', which has no images in tiny"):
        data.load(name="tiny", dir=dir, train_split="train[:0]", stream="on")
    assert data.load(name="tiny", dir=dir, test_split="").test is None
    assert len(data.load(name="grey", dir=dir).test) == 3  # validation, where there is no test
    assert data.load(name="wide", dir=dir, size=4).test is None
    with pytest.raises(ValueError, match="data.test_split is 'tset'; the splits of tiny are"):
        data.load(name="tiny", dir=dir, test_split="tset")
    with pytest.raises(ValueError, match="'unlabelled', which has no labels in tiny"):
        data.load(name="tiny", dir=dir, test_split="unlabelled")


@pytest.mark.parametrize(
    "train_split", ["train+unlabelled", "unlabelled[2:]+train[:50%]", "unlabelled+train"]
)
def test_a_streamed_set_labelled_in_part_is_judged_by_what_has_labels(dir, train_split):
    """As the resident one: the labels are only in the records, and all of a stored split have one, or none."""
    streamed, resident = (
        data.load(name="tiny", dir=dir, train_split=train_split, test_split="test", stream=stream)
        for stream in ("on", "off")
    )
    for one in (streamed.train, streamed.train[::-1], streamed.train[resident.train.labelled_rows]):
        assert one.labelled and (one.label[one.labelled_rows] >= 0).all()
        assert len(one.labelled_rows) == len(resident.train.labelled_rows) < len(streamed.train)
    found = labelled(streamed.train)
    np.testing.assert_array_equal(found.rows, labelled(resident.train).rows)
    assert (found.images().label >= 0).all()
    assert streamed.test.labelled_rows is None and labelled(streamed.test).rows is None


def test_label_key(dir):
    source = data.load(name="tiny", dir=dir, label_key="coarse")
    fine = data.load(name="tiny", dir=dir).train.label
    assert source.classes == ("insect", "mammal")
    np.testing.assert_array_equal(source.train.label, fine // 2)
    source = data.load(name="tiny", dir=dir, label_key="")
    assert source.classes == () and (source.train.label == -1).all() and len(source.test) == 6
    with pytest.raises(
        ValueError, match="data.label_key is 'id', which is not a label of tiny: it has .*coarse"
    ):
        data.load(name="tiny", dir=dir, label_key="id")


def test_grey_sets_have_one_channel(dir):
    image = data.load(name="grey", dir=dir).train.image
    assert image.shape == (20, 5, 4, 1)
    assert sorted_rows(image, np.zeros(20)) == sorted_rows(PIXELS["train"][..., :1], np.zeros(20))


def test_images_of_different_sizes_need_a_size(dir):
    with pytest.raises(ValueError, match="images of wide differ in size: set data.size"):
        data.load(name="wide", dir=dir, stream="off")
    assert data.load(name="wide", dir=dir).train.shape == (None, None, 3)  # streamed
    image = data.load(name="wide", dir=dir, size=4).train.image
    assert image.shape == (3, 4, 4, 3) and abs(image.astype(int) - 90).max() <= 2


def test_memory_limit(dir):
    with pytest.raises(
        ValueError, match="data.memory_limit is 0.5; the 3 images 9000x9000x3 of wide take 0.679 GiB"
    ):
        data.load(name="wide", dir=dir, size=9000, memory_limit=0.5, stream="off")
    assert isinstance(data.load(name="wide", dir=dir, size=9000, memory_limit=0.5).train, data.Streamed)


def test_a_broken_image_is_named(dir):
    with pytest.raises(ValueError, match=r"cannot read image \d of broken/1.0.0, train: "):
        data.load(name="broken", dir=dir)


@pytest.mark.parametrize(
    "reason, error",
    [
        ("Corrupted Riegeli/records file: chunk data hash mismatch", Unreadable),
        ("pread() failed: Stale file handle; reading x.array_record", OSError),
    ],
)
def test_a_damaged_record_is_told_from_a_file_system_that_went_away(dir, monkeypatch, reason, error):
    """array_record raises a RuntimeError for both."""
    records = data.load(name="tiny", dir=dir, stream="on").train.records
    real = type(records._source).__getitems__

    def getitems(source, rows):
        if 3 in rows:
            raise RuntimeError(reason)
        return real(source, rows)

    monkeypatch.setattr(type(records._source), "__getitems__", getitems)
    assert len(records.read([0, 1, 2])) == 3
    name = "image 3 of tiny" if error is Unreadable else "tiny/1.0.0, train"
    with pytest.raises(error, match=f"cannot read {name}.*{reason[:5]}"):
        records.read([1, 3])


def test_the_folder_comes_from_the_environment(dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", dir)
    assert len(data.load(name="tiny").train) == 20
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", dir)
    with pytest.raises(FileNotFoundError, match=f"cifar10 is not prepared in {dir}/tensorflow_datasets"):
        data.load(name="cifar10")


def test_a_missing_set_says_the_command(tmp_path):
    dir = tmp_path / "a place"
    command = f"tfds build cifar10 --data_dir='{dir}' --file_format=array_record`"
    with pytest.raises(FileNotFoundError) as error:
        data.load(name="cifar10", dir=str(dir))
    assert command in str(error.value) and "contrastive_jax[tf]" in str(error.value)
    with pytest.raises(FileNotFoundError, match="put the archives .* into .*downloads/manual, then run"):
        data.load(name="imagenet2012", dir=str(dir))


def test_a_version_is_part_of_a_name(dir):
    from contrastive_jax import lookup

    assert not lookup.is_own("tiny:1.0.0")
    assert len(data.load(name="tiny:1.0.0", dir=dir).train) == len(data.load(name="tiny", dir=dir).train)
    with pytest.raises(ValueError, match="data.name is 'tiny:2.0.0', .* Did you mean tiny"):
        data.load(name="tiny:2.0.0", dir=dir)


def test_an_unknown_name_says_the_nearest(dir):
    for name, near in (
        ("cifra10", "cifar10"),
        ("digit", "digits"),
        ("folders", "folder"),
        ("tinny", "tiny"),
        ("imagenet", "imagenet2012"),
    ):
        with pytest.raises(ValueError, match=f"data.name is '{name}', .* Did you mean .*{near}"):
            data.load(name=name, dir=dir)
    for name in ("/some/folder", "é", "1tiny", "tiny:1"):
        with pytest.raises(ValueError, match="it must be digits, folder, .*, synthetic or a name of TFDS"):
            data.load(name=name, dir=dir)
    with pytest.raises(ValueError, match="data.test_fraction is not an option of tiny"):
        data.load(name="tiny", dir=dir, test_fraction=0.1)


def test_a_tfrecord_copy_says_how_to_convert_it(dir, tmp_path):
    """Only the metadata is read before this is said, so metadata is what the copy here consists of."""
    copy = tmp_path / "tiny" / "1.0.0"
    copy.mkdir(parents=True)
    original = f"{dir}/tiny/1.0.0"
    for name in ("features.json", "dataset_info.json"):
        content = json.load(open(f"{original}/{name}"))
        if name == "dataset_info.json":
            content["fileFormat"] = "tfrecord"
        (copy / name).write_text(json.dumps(content))
    command = (
        f"tfds convert_format --dataset_version_dir={copy} --out_file_format=array_record --num_workers=1`"
    )
    with pytest.raises(FileNotFoundError) as error:
        data.load(name="tiny", dir=str(tmp_path))
    assert command in str(error.value)


def test_minus_one_among_several_labels_is_none_of_them():
    records = object.__new__(TfdsRecords)
    records.label_shape, records._label_key = (3,), "labels"
    assert records._label({"labels": [0, -1]}).tolist() == [1, 0, 0]
