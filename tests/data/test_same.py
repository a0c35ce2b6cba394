"""What a run began with is told from other pixels under the same names; files that were touched are the same."""

import json
import os
import re
import types

import numpy as np
import pytest
from PIL import Image

from contrastive_jax import data
from contrastive_jax.data import image_folder as folders
from contrastive_jax.data import same
from contrastive_jax.data.same import PARTS
from contrastive_jax.training import resume


def differs(train, now, had):
    """Why a run may not go on with these images; "" where it may."""
    run = types.SimpleNamespace(source=types.SimpleNamespace(train=train))
    return resume._contents(1, {"contents": had}, run, {"contents": now})


def folder(root, stream):
    return folders.folder(dir=str(root), stream=stream, workers=0).train


@pytest.fixture
def images(tmp_path):
    draw = np.random.default_rng(0)
    for name in "abcde":
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / f"{name}.bmp")
    return tmp_path


@pytest.mark.parametrize("stream", ["on", "off"])
def test_other_pixels_under_the_same_names(images, stream):
    before = data.contents(folder(images, stream))
    pixels = bytearray((images / "c.bmp").read_bytes())
    pixels[-5] ^= 1  # of the same size
    os.utime(images / "a.bmp", ns=(0, 0))  # touched: other time, same contents
    touched = folder(images, stream)
    now = data.contents(touched, before)
    assert now["rows"] == before["rows"]
    assert not differs(touched, now, before)
    (images / "c.bmp").write_bytes(pixels)
    changed = folder(images, stream)
    now = data.contents(changed, now)
    assert re.search(r"other pixels.*: c\.bmp\. ", differs(changed, now, before))


@pytest.mark.parametrize("stream", ["on", "off"])
@pytest.mark.parametrize("column, same, changed", [("label", "x", "y"), ("group", "2", "1")])
def test_other_labels_or_groups_of_the_same_files(images, stream, column, same, changed):
    def split(value):
        rows = [{"path": f"{n}.bmp", "label": "xy"[i % 2], "group": f"{i}"} for i, n in enumerate("abcde")]
        rows[2][column] = value
        (images.parent / "listing.json").write_text(json.dumps(rows))
        return folders.folder(
            dir=str(images),
            labels=str(images.parent / "listing.json"),
            group="group",
            stream=stream,
            workers=0,
        ).train

    had, other = data.contents(split(same)), split(changed)
    where = "" if stream == "on" else r".*: c\.bmp\. "
    assert re.search(f"labels or groups{where}", differs(other, data.contents(other, had), had))
    again = split(same)
    assert not differs(again, data.contents(again, had), had)


def test_files_of_the_same_size_and_time_are_not_read_again(images, monkeypatch):
    train = folder(images, "on")
    before = data.contents(train)
    read = []
    monkeypatch.setattr(
        "contrastive_jax.data.same._content", lambda files, row: read.append(files.locate(row).name) or b""
    )
    assert data.contents(train, before) == before and not read
    os.utime(images / "b.bmp", ns=(0, 0))
    data.contents(train, before)
    assert read == ["b.bmp"]


def test_a_large_set_takes_little_room_and_names_a_group():
    image = np.zeros((2 * PARTS + 1, 1, 1, 1), np.uint8)
    before = data.contents(data.Split(image))
    assert len(before["rows"]) <= PARTS
    other = image.copy()
    other[7] = 1
    now = data.contents(data.Split(other))
    assert data.differing(data.Split(other), now, before) == ["some of image 6 to image 8"]
    label = np.zeros(len(image), int)
    assert data.contents(data.Split(image, label)) != before


def test_of_old_checkpoints_nothing_is_known(images):
    train = folder(images, "off")
    assert not differs(train, data.contents(train), None)


def test_arrays_of_any_shape_have_a_digest():
    empty, none = np.zeros((3, 0), np.uint8), np.zeros((0, 8), np.int32)
    assert same._of_arrays(empty, none) == same._of_arrays(none) != same._of_arrays(np.zeros(1, np.uint8))
    assert same._of_arrays(np.array(["a", "b"])) != same._of_arrays(np.array(["a", "c"]))
