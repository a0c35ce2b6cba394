"""Hugging Face data sets as save_to_disk writes them: rows of images, and files that are not what they seem."""

import io
import json
import os
import pickle
import re
import shutil
import types

import numpy as np
import pytest
from PIL import Image

from contrastive_jax import augment, data
from contrastive_jax.data.records import Unreadable
from contrastive_jax.training import resume

arrow = pytest.importorskip("pyarrow")
random = np.random.default_rng(0)
CLASSES = {"_type": "ClassLabel", "names": ["dog", "cat", "eel"]}
IMAGE = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])


def encoded(form="PNG", height=8, width=8):
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(file, form)
    return file.getvalue()


def table(columns, features):
    """Return a table whose schema describes the columns as the package `datasets` does."""
    schema = arrow.schema(
        [
            (name, IMAGE if name.startswith("image") else arrow.infer_type(values))
            for name, values in columns.items()
        ],
        {"huggingface": json.dumps({"info": {"features": features}})},
    )
    return arrow.table(columns, schema)


def write(path, whole, batch=2):
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=batch)


def saved(place, columns, features=None, files=1):
    """Write a split as save_to_disk does, its rows in some files."""
    place.mkdir(parents=True)
    whole = table(columns, {"image": {"_type": "Image"}, "label": CLASSES} | (features or {}))
    size, names = -(-whole.num_rows // files), [f"data-{i:05}-of-{files:05}.arrow" for i in range(files)]
    for number, name in enumerate(names):
        write(place / name, whole.slice(number * size, size))
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (place / "dataset_info.json").write_text("{}")
    return place


def rows(images):
    return [{"bytes": image, "path": None} for image in images]


@pytest.fixture
def set_of_two(tmp_path):
    """A DatasetDict of seven training images in two files and of two test images, and folders of the same images."""
    images = [encoded("JPEG" if i % 2 else "PNG", 6 + i, 9) for i in range(9)]
    label = [0, 0, 1, 1, 2, 2, 2, 0, 1]
    for split, some in {"train": range(7), "test": range(7, 9)}.items():
        columns = {"image": rows(images[i] for i in some), "label": [label[i] for i in some]}
        columns |= {
            "tags": [[0, 1][: i % 3] for i in some],
            "clip": [f"clip{i // 2}" for i in some],
            "n": [*some],
        }
        tags = {"tags": {"_type": "List", "feature": {"_type": "ClassLabel", "names": ["x", "y"]}}}
        saved(tmp_path / "set" / split, columns, tags, files=2)
        for i in some:
            path = tmp_path / "folder" / split / f"{label[i]}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(images[i])
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return tmp_path


def load(root, **options):
    return data.load(name="huggingface", dir=str(root), **{"workers": 0} | options)


@pytest.mark.parametrize("options", [{"size": 6}, {"stream": "on"}], ids=["memory", "stream"])
def test_rows_are_a_folder_in_another_container(set_of_two, options):
    of_folder = data.load(name="folder", dir=str(set_of_two / "folder"), workers=0, **options)
    source = load(set_of_two / "set", **options)
    assert source.classes == ("dog", "cat", "eel") and source.train.paths is None
    for split, other in ((source.train, of_folder.train), (source.test, of_folder.test)):
        np.testing.assert_array_equal(split.label, other.label)
        view = augment.make_eval(preset="none", size=6)
        (image, label), (expected, _) = next(split.batches(9, view)), next(other.batches(9, view))
        np.testing.assert_array_equal(image, expected)
        np.testing.assert_array_equal(label, split.label)


def test_another_process_maps_the_files_itself(set_of_two):
    records = load(set_of_two / "set", stream="on").train.records
    content = pickle.dumps(records)
    assert len(content) < 2000 and pickle.loads(content).read([5, 0, 3]) == records.read([5, 0, 3])
    file = set_of_two / "set/train/data-00001-of-00002.arrow"
    assert records.name(5) == f"the image in row 1 of {file}" and records.files.locate(5) == file


def test_columns_of_labels_and_groups(set_of_two):
    def source(**options):
        return load(set_of_two / "set", size=6, **options)

    several = source(label_key="tags")
    assert several.classes == ("x", "y") and several.train.label.tolist()[:3] == [[0, 0], [1, 0], [1, 1]]
    assert source(label_key="n", test_split="").train.label.tolist() == list(range(7))
    assert source(label_key="").train.label.tolist() == [-1] * 7
    assert source(group="clip").train.group.tolist() == [0, 0, 2, 2, 4, 4, 6]
    for options, message in {
        "label_key": "data.label_key is 'nowhere'; .*arrow has no such column. Allowed: clip, image, label, n, tags",
        "image_key": "data.image_key is 'nowhere'; .*arrow has no such column",
        "group": "data.group is 'nowhere'; .*arrow has no such column",
        "train_split": "data.train_split is 'nowhere'; the splits of .*set are train, test",
        "test_split": "data.test_split is 'nowhere'; the splits of .*set are train, test",
    }.items():
        with pytest.raises(ValueError, match=message):
            source(**{options: "nowhere"})
    with pytest.raises(
        ValueError, match="data.image_key is 'n', which is int64 in .*; it must be encoded images"
    ):
        source(image_key="n")
    with pytest.raises(ValueError, match="data.test_split is 'train', the training split"):
        source(test_split="train")
    with pytest.raises(ValueError, match="data.test_fraction is 0.1, but data.test_split is 'test'"):
        source(test_split="test", test_fraction=0.1)


def test_a_single_dataset_and_rows_without_labels(tmp_path):
    columns = {"image": rows(encoded() for _ in range(6)), "label": [0, None, -1, 1, 1, 0]}
    source = load(saved(tmp_path / "one", columns), test_fraction=0.5)
    assert len(source.train) + len(source.test) == 6
    assert load(tmp_path / "one").train.label.tolist() == [0, -1, -1, 1, 1, 0]
    (tmp_path / "all").mkdir()
    (tmp_path / "one").rename(tmp_path / "all/train")
    saved(tmp_path / "all/test", {"image": rows([encoded()]), "label": [-1]})
    (tmp_path / "all/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert load(tmp_path / "all").test is None  # as it has no labels
    assert len(load(tmp_path / "all", label_key="").test) == 1


def test_where_others_have_several_labels_a_missing_one_is_not_none_of_them(tmp_path):
    columns = {"image": rows(encoded() for _ in range(4)), "label": [[0], [], [1, None], [1]]}
    assert load(saved(tmp_path / "one", columns)).train.label.argmax(1).tolist() == [0, 0, 1, 1]
    for unknown in (None, [None], [-1]):
        columns["label"][1] = unknown
        with pytest.raises(ValueError, match="row 1 has no label, while others have lists"):
            load(saved(tmp_path / f"{unknown}", columns))


def test_rows_without_a_group_are_groups_of_their_own(tmp_path):
    columns = {
        "image": rows(encoded() for _ in range(5)),
        "clip": [1.5, None, float("nan"), float("nan"), 1.5],
    }
    assert load(saved(tmp_path / "one", columns), group="clip").train.group.tolist() == [0, 1, 2, 3, 0]


def test_columns_without_descriptions(tmp_path):
    """A table of binary images and of texts, as other programs write it."""
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    write(tmp_path / "a.arrow", arrow.table({"png": [encoded() for _ in range(3)], "kind": ["b", "a", ""]}))
    with pytest.raises(ValueError, match="a.arrow has no column of type Image; set it to .* png, kind"):
        load(tmp_path)
    source = load(tmp_path, image_key="png", label_key="kind")
    assert source.classes == ("a", "b") and source.train.label.tolist() == [1, 0, -1]


def test_other_pixels_in_a_file(set_of_two):
    place = set_of_two / "set/train/data-00000-of-00002.arrow"
    train = load(set_of_two / "set", stream="on").train
    before, second = data.contents(train), train.records.read([1])[0].image
    os.utime(place, ns=(0, 0))
    assert data.contents(train, before)["rows"] == before["rows"]
    whole = bytearray(place.read_bytes())
    whole[whole.index(second) + len(second) // 2] ^= 1
    place.write_bytes(whole)
    changed = load(set_of_two / "set", stream="on").train
    run = types.SimpleNamespace(source=types.SimpleNamespace(train=changed))
    why = resume._contents(1, {"contents": before}, run, {"contents": data.contents(changed, before)})
    assert re.search(r"other pixels.*: image 1\. ", why)


def test_messages_of_places(tmp_path):
    with pytest.raises(ValueError, match="data.dir is ''; it must be a folder that save_to_disk wrote"):
        load("")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"has neither dataset_dict.json nor state.json.*load_dataset"
    ):
        load(tmp_path)


def _state(content):
    return lambda place: (place / "state.json").write_text(content)


def _arrow(content):
    return lambda place: (place / "data-00000-of-00001.arrow").write_bytes(content)


def _features(features):
    def change(place):
        file = place / "data-00000-of-00001.arrow"
        whole = arrow.ipc.open_stream(file.read_bytes()).read_all()
        write(file, whole.replace_schema_metadata({"huggingface": features}))

    return change


def _images(images):
    def change(place):
        write(
            place / "data-00000-of-00001.arrow",
            table({"image": images, "label": [0] * len(images)}, FEATURES),
        )

    return change


def _pipe(name):
    def change(place):
        (place / name).unlink()
        os.mkfifo(place / name)

    return change


def _offsets(place):
    """Point an image outside of the file: without a check, reading it reads other memory."""
    file = place / "data-00000-of-00001.arrow"
    whole = bytearray(file.read_bytes())
    table = arrow.ipc.open_stream(bytes(whole)).read_all()
    lengths = [len(value["bytes"]) for value in table.column("image").to_pylist()]
    offsets = np.cumsum([0, *lengths[:2]], dtype=np.int32).tobytes()
    whole[whole.index(offsets) + 4 : whole.index(offsets) + 8] = (1 << 30).to_bytes(4, "little")
    file.write_bytes(whole)


FEATURES = {"image": {"_type": "Image"}, "label": CLASSES}
FILE = r"data-00000-of-00001.arrow"
HOSTILE = {
    "deep": (_state("[" * 100_000), "state.json is not the description of a data set: .*too deeply"),
    "no JSON": (_state("{"), "state.json is not the description of a data set"),
    "a list": (_state("[]"), "state.json is not the description .*: it must be an object"),
    "outside": (
        _state('{"_data_files": [{"filename": "../a.arrow"}]}'),
        "state.json must have a list '_data_files'",
    ),
    "absolute": (_state('{"_data_files": [{"filename": "/etc/passwd"}]}'), "state.json must have a list"),
    "no names": (_state('{"_data_files": [5]}'), "state.json must have a list"),
    "a number": (_state('{"_data_files": 5}'), "state.json must have a list"),
    "twice": (
        _state('{"_data_files": [{"filename": "a"}, {"filename": "a"}]}'),
        "state.json names a file twice",
    ),
    "indices": (
        _state('{"_data_files": [{"filename": "a"}], "_indices_files": [{"filename": "b"}]}'),
        "state.json selects rows by further files",
    ),
    "no Arrow": (_arrow(b"nothing" * 100), f"{FILE} is not an intact Arrow stream"),
    "empty": (_arrow(b""), f"{FILE} is not an intact Arrow stream"),
    "a pipe": (_pipe(FILE), f"{FILE} is a named pipe, not an Arrow file"),
    "a pipe of state": (_pipe("state.json"), "state.json is a named pipe, not a description"),
    "offsets": (_offsets, f"{FILE} is not an intact Arrow stream"),
    "deep features": (_features("[" * 100_000), f"the metadata of .*{FILE} is not the description"),
    "no features": (_features('{"info": 5}'), f"the metadata of .*{FILE} must describe the columns"),
    "no class names": (
        _features(json.dumps({"info": {"features": FEATURES | {"label": {"_type": "ClassLabel"}}}})),
        f"the metadata of .*{FILE} must give the names of a ClassLabel",
    ),
    "fewer classes": (
        _features(json.dumps({"info": {"features": FEATURES | {"label": CLASSES | {"names": ["one"]}}}})),
        f"row 1 of .*{FILE} has the label 1; it must be a whole number from 0 to 0",
    ),
    "another schema": (
        lambda place: write(place / FILE, arrow.table({"a": [1]})),
        f"{FILE} has no column of type Image; set it to one of its columns, a",
    ),
    "no image": (_images(rows([b"nothing"])), f"cannot read the image in row 0 of .*{FILE}: "),
    "cut image": (
        _images(rows([encoded(), encoded()[:60]])),
        f"cannot read the image in row 1 of .*{FILE}: ",
    ),
    "a path alone": (
        _images([{"bytes": None, "path": "/etc/passwd"}]),
        f"cannot read the image in row 0 of .*{FILE}: its bytes are not in the file",
    ),
    "null": (_images([None]), f"cannot read the image in row 0 of .*{FILE}: its bytes are not in the file"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_files_that_somebody_sends(case, tmp_path):
    change, message = HOSTILE[case]
    place = saved(tmp_path / "set", {"image": rows(encoded() for _ in range(3)), "label": [0, 1, 2]})
    change(place)
    with pytest.raises((ValueError, Unreadable), match=message) as caught:
        load(place)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_a_further_file_or_split_of_another_schema(set_of_two):
    second = set_of_two / "set/train/data-00001-of-00002.arrow"
    for other in ({"image": [5], "label": [0]}, {"label": [0]}, {"image": [b""], "label": [0]}):
        write(second, arrow.table(other))
        with pytest.raises(
            ValueError, match="00001-of-00002.arrow does not have the column 'image' of .*00000-of-00002"
        ):
            load(set_of_two / "set")
    test = saved(
        set_of_two / "other", {"image2": rows([encoded()]), "label": [0]}, {"image2": {"_type": "Image"}}
    )
    (set_of_two / "set/test").rename(set_of_two / "old")
    test.rename(set_of_two / "set/test")
    (set_of_two / "set/train/state.json").write_text(
        '{"_data_files": [{"filename": "data-00000-of-00002.arrow"}]}'
    )
    with pytest.raises(
        ValueError, match="set/train are in the column 'image', those of .*set/test in 'image2'"
    ):
        load(set_of_two / "set")


def test_a_file_or_split_that_is_linked_twice(set_of_two):
    root, file = set_of_two / "set", "data-00001-of-00002.arrow"
    kept = (root / "train" / file).rename(root / "train" / "kept.arrow")
    (root / "train" / file).symlink_to(root / "train" / "data-00000-of-00002.arrow")
    with pytest.raises(ValueError, match="are the same file, through a link: the image would be its own"):
        load(root)
    (root / "train" / file).unlink()
    kept.rename(root / "train" / file)
    shutil.rmtree(root / "test")
    (root / "test").symlink_to(root / "train", target_is_directory=True)
    with pytest.raises(
        ValueError, match="are the same file, through a link: training would include test images"
    ):
        load(root)
    assert len(load(root, test_split="").train) == 7


def test_files_that_are_cut_off(tmp_path):
    place = saved(tmp_path / "set", {"image": rows(encoded() for _ in range(3)), "label": [0, 1, 2]})
    file = place / FILE
    whole, lost = file.read_bytes(), 0
    for length in range(0, len(whole) - 8, 97):
        file.write_bytes(whole[:length])
        try:
            lost += len(load(place, stream="on").train) < 3
        except ValueError as error:
            assert FILE in str(error)
    assert not lost


def test_a_missing_split_and_names_of_splits(set_of_two):
    root = set_of_two / "set"
    for names in ('["../train"]', '["train", 5]', "[]", '"train"'):
        (root / "dataset_dict.json").write_text(f'{{"splits": {names}}}')
        with pytest.raises(ValueError, match="dataset_dict.json must have a list 'splits'"):
            load(root)
    (root / "dataset_dict.json").write_text('{"splits": ["train", "other"]}')
    with pytest.raises(FileNotFoundError, match="other"):
        load(root, test_split="other")
    for name in ("", "auto"):
        with pytest.raises(
            ValueError, match=f"data.train_split is '{name}'; the splits of .* are train, other"
        ):
            load(root, train_split=name)
