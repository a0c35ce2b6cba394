"""Near-duplicates: images of one group are never each other's negatives."""

import json
import types

import numpy as np
import pytest
from PIL import Image

from contrastive_jax import data
from contrastive_jax.contrast.similarity import negative_statistics
from contrastive_jax.data.composite_records import Overlaid
from contrastive_jax.data.split import stratified
from contrastive_jax.data.stream import Chosen
from contrastive_jax.types import Pool

PATHS = [
    *("clip1/f0.png", "clip1/f1.png", "clip1/f2.png", "clip2/f0.png"),
    *("clip2/f1.png", "still_0.png", "still_1.png", "still_2.png"),
]
CLIPS = [0, 0, 0, 3, 3, 5, 6, 7]  # the first image of each one's group


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for i, path in enumerate(PATHS):
        (root / path).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(root / path)
    return root


def load(images, **options):
    return data.load(name="folder", dir=str(images), **options)


def test_groups_by_regular_expression(images):
    assert load(images).train.group.tolist() == list(range(8))
    assert load(images, group="clip[0-9]+/").train.group.tolist() == CLIPS  # the whole match
    by_frame = load(images, group="f([0-9])").train.group.tolist()  # the first group
    assert by_frame == [0, 1, 2, 0, 1, 5, 6, 7]  # stills, in which it is not found, are alone
    with pytest.raises(
        ValueError, match=r"data.group is 'clip\(', which is not a regular expression: missing \)"
    ):
        load(images, group="clip(")
    with pytest.raises(
        ValueError, match=r"'klip', which forms no group: it matches no path \(such as clip1/f0.png"
    ):
        load(images, group="klip")
    with pytest.raises(ValueError, match="'png', which puts all 8 images into one group"):
        load(images, group="png")


def test_groups_by_column(images, tmp_path):
    file = tmp_path / "table.csv"
    rows = [f"{p},{'x' if i < 4 else 'y'},{i // 3 or ''}" for i, p in enumerate(PATHS)]
    file.write_text("\n".join(["path,label,video", *rows]))
    source = load(images, labels=str(file), group="video")
    assert source.train.group.tolist() == [0, 1, 2, 3, 3, 3, 6, 6]  # an empty cell is alone
    assert load(images, labels=str(file), group="clip.").train.group.tolist() == CLIPS  # no column: a pattern
    with pytest.raises(ValueError, match="'Video', which forms no group: .* is not a column of data.labels"):
        load(images, labels=str(file), group="Video")
    file = tmp_path / "table.json"
    entries = [{"path": p, "label": "x", "video": 0 if i < 4 else None} for i, p in enumerate(PATHS)]
    file.write_text(json.dumps(entries))
    assert load(images, labels=str(file), group="video").train.group.tolist() == [0, 0, 0, 0, 4, 5, 6, 7]


def test_groups_are_held_out_whole():
    group = np.repeat(np.arange(20), 5)
    label = np.repeat(np.arange(2), 50)
    test = stratified(label, 0.3, group)
    assert test.reshape(20, 5).all(1).sum() == test.reshape(20, 5).any(1).sum() == 6
    assert np.bincount(label[test]).tolist() == [15, 15]
    alone = np.arange(100)
    np.testing.assert_array_equal(stratified(label, 0.3, alone), stratified(label, 0.3))
    label = np.array([0, 1, 1, *[0] * 9])  # the one group with a class counts as another's
    group = np.array([0, 0, 0, *range(1, 10)])
    for fraction in (0.1, 0.5, 0.9):
        assert not stratified(label, fraction, group)[:3].any()


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_images_of_a_group_are_left_out_of_the_similarity_statistics(images, engine):
    """From the folder through the batch of a step: what remains are the negatives of other groups, no more."""
    split = load(images, group="clip[0-9]+/").train
    feed = data.Resident(split, seed=3, batch_size=8)
    batch = feed.take(feed.feed(0), 0)
    ids = np.asarray(batch.id)
    np.testing.assert_array_equal(batch.group, np.array(CLIPS)[ids])
    np.testing.assert_array_equal(batch.image[:, 0, 0, 0], ids)
    draw = np.random.default_rng(0)
    query, key = (draw.standard_normal((8, 4)).astype(np.float32) for _ in range(2))
    found = negative_statistics(query, batch.group, Pool(key, batch.group), np.float32(2.0), engine=engine)
    score = query @ key.T
    for i in range(8):
        others = [j for j in range(8) if CLIPS[ids[j]] != CLIPS[ids[i]]]
        assert int(found.count[i]) == len(others) == {0: 5, 3: 6}.get(CLIPS[ids[i]], 7)
        want = np.log(np.exp(2.0 * score[i, others]).sum())
        np.testing.assert_allclose(found.logsumexp[0, i], want, rtol=1e-5)
        np.testing.assert_allclose(found.hardest[i], score[i, others].max(), rtol=1e-5)


def test_parts_and_compositions_of_streamed_images_keep_their_groups(images):
    records = load(images, group="clip[0-9]+/", stream="on", workers=0).train.records
    made = types.SimpleNamespace(composition=types.SimpleNamespace(shape=lambda shape: shape))
    composed = Overlaid(records, 4, made)
    for known in (records, composed, Chosen(composed, np.arange(8))):
        assert known.group.tolist() == CLIPS
    assert Chosen(composed, np.array([7, 4])).group.tolist() == [7, 3]
