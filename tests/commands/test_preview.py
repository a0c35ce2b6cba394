"""The contact sheet: what lies where, for grey, colour, normalized and many-channelled images."""

import jax
import numpy as np
import pytest
from PIL import Image

from contrastive_jax import augment, data, models
from contrastive_jax import config as configs
from contrastive_jax.commands.preview import GAP, LINE, TILE, caption, contact_sheet, preview, without_bits

random = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr(models, "network", None)


def config_of(folder="", **augmentation):
    config = configs.load("configs/digits.py:scale=smoke")
    if folder:
        config.data = {"name": "folder", "dir": str(folder), "memory_limit": 1.0}
    config.augment = {"size": 8} | augmentation
    config.preview.update({"images": 3, "draws": 2})
    return configs.plain(configs.complete(config))


def tile_of(sheet, row, column, size=8):
    """The pixels [size, size, 3] of a tile of three rows, each of which must be one colour."""
    factor = TILE // size
    head = sheet.height - 3 * (TILE + 2 * LINE + GAP)
    left, top = GAP + column * (TILE + GAP), head + row * (TILE + 2 * LINE + GAP)
    part = np.asarray(sheet)[top : top + TILE, left : left + TILE]
    blocks = part.reshape(size, factor, size, factor, 3)
    assert (blocks == blocks[:, :1, :, :1]).all()
    return blocks[:, 0, :, 0]


def check(config, path):
    """Every tile against the views of the run, by the rule of its keys."""
    sheet = Image.open(path)
    source = data.load(**{k: v for k, v in config["data"].items()})
    ids, _ = data.rows(config["seed"], len(source.train), 0, 3)
    evaluate, views = augment.make_eval(**config["augment"]), augment.make_views(**config["augment"])
    mean, std = (np.array(config["augment"].get(k) or d) for k, d in (("mean", [0.0]), ("std", [1.0])))
    assert sheet.width == GAP + 5 * (TILE + GAP)

    def shown(image):
        image = np.asarray(image)[..., :3]
        return np.broadcast_to(255 * (image * std + mean), (8, 8, 3))

    image = source.train.image[ids]
    seen = jax.vmap(evaluate)(image)
    views = jax.jit(jax.vmap(views))
    for epoch in range(2):
        keys = augment.example_keys(np.uint32(config["seed"]), np.full(3, epoch), ids)
        drawn = views(keys, image)
        for row in range(3):
            np.testing.assert_allclose(tile_of(sheet, row, 0), shown(seen[row]), rtol=0, atol=0.6)
            for v in range(2):
                tile = tile_of(sheet, row, 1 + 2 * epoch + v)
                np.testing.assert_allclose(tile, shown(drawn[row, v]), rtol=0, atol=0.6)
    return sheet


def test_local_views_are_shown_after_the_others_and_smaller(tmp_path):
    section = dict(preset="crop_only", size=16, views=3, local_views=2, local_size=4)
    config = config_of(**section)
    sheet = np.asarray(Image.open(preview(config, str(tmp_path))))
    factor, side = TILE // 16, 16 * (TILE // 16)
    assert sheet.shape[1] == GAP + (1 + 2 * 5) * (side + GAP)
    ids, _ = data.rows(config["seed"], 1437, 0, 3)
    image = data.load(name="digits").train.image[ids]
    views = augment.make_views(**config["augment"])
    drawn = jax.vmap(views.local)(augment.example_keys(np.uint32(0), np.ones(3, np.int32), ids), image)
    head = sheet.shape[0] - 3 * (side + 2 * LINE + GAP)
    for v in range(2):  # of the second epoch
        left = GAP + (1 + 5 + 3 + v) * (side + GAP)
        tile = sheet[head : head + side, left : left + side, 0]
        assert (tile[4 * factor :] == 255).all() and (tile[:, 4 * factor :] == 255).all()
        pixels = tile[: 4 * factor : factor, : 4 * factor : factor]
        np.testing.assert_allclose(pixels, 255 * np.asarray(drawn[0, v, ..., 0]), rtol=0, atol=0.6)


def test_digits(tmp_path, capsys):
    config = config_of(preset="crop_only")
    path = preview(config, str(tmp_path / "run"))
    assert path == str(tmp_path / "run" / "preview.png") and path in capsys.readouterr().out.replace("\n", "")
    check(config, path)
    config["preview"]["images"] = 1438
    with pytest.raises(ValueError, match="preview.images is 1438; it must be at most 1437"):
        preview(config, str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.run
def test_normalized_colour(tmp_path):
    for i in range(4):
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / f"{i}.png")
    config = config_of(tmp_path, preset="moco_v2", jitter=0.0, gray=0.0, blur=0.0)
    assert config["augment"]["mean"] == [0.485, 0.456, 0.406]
    check(config, preview(config, f"{tmp_path}-run", quiet=True))


@pytest.mark.run
def test_the_first_three_of_five_channels(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    for i in range(3):
        array = random.integers(0, 256, (8, 8, 5), np.uint8)
        tifffile.imwrite(tmp_path / f"{i}.tif", array, photometric="minisblack", planarconfig="contig")
    config = config_of(tmp_path, preset="crop_only", flip=0.5)
    check(config, preview(config, f"{tmp_path}-run", quiet=True))


@pytest.mark.run
def test_a_streamed_folder_of_odd_sizes(tmp_path):
    """The views of a stream and those of its images alone on the device agree up to the stream's rounding."""
    for i in range(3):
        smooth = np.linspace(0, 255, (12 + i) * 16 * 3).reshape(12 + i, 16, 3).astype(np.uint8)
        Image.fromarray(smooth).save(tmp_path / f"{i}.png")
    config = config_of(tmp_path, preset="crop_only", flip=0.5)
    sheet = Image.open(preview(config, f"{tmp_path}-run", quiet=True))
    source = data.load(**config["data"])
    assert isinstance(source.train, data.Streamed)
    ids, _ = data.rows(config["seed"], 3, 0, 3)
    views = augment.make_views(**config["augment"])
    for row, i in enumerate(ids):
        image = np.asarray(Image.open(tmp_path / f"{i}.png"))
        for epoch in range(2):
            key = augment.example_keys(np.uint32(config["seed"]), np.full(1, epoch), ids[row : row + 1])[0]
            for v, view in enumerate(255 * np.asarray(views(key, image))):
                np.testing.assert_allclose(tile_of(sheet, row, 1 + 2 * epoch + v), view, rtol=0, atol=1.6)


def test_captions():
    classes = ("cat", "dog")
    assert caption(0, 0, np.int32(1), classes) == ("id 0", "dog")
    assert caption(2, 0, np.int32(-1), classes) == ("id 2, group 0", "no label")
    assert caption(1, 1, np.array([1, 1], np.uint8), classes)[1] == "cat, dog"
    assert caption(1, 1, np.array([0, 0], np.uint8), classes)[1] == "no label"


def test_captions_have_letters_of_other_languages():
    """One box stood for each of them."""
    picture = np.zeros((1, 8, 8, 3), np.float32)
    sheets = [
        np.asarray(contact_sheet("", [("id 0", name)], picture, picture[:, None, None])) for name in "éüЖ"
    ]
    assert not any(np.array_equal(sheets[i], sheets[i - 1]) for i in range(3))


def test_bits_are_written_out_and_not_painted():
    """Of grey images with bits the grey is shown; of bits alone, bits."""
    seen = np.zeros((2, 4, 4, 4), np.float32)
    seen[..., 0], seen[1, ..., 2] = 0.5, 1.0
    views = np.repeat(np.repeat(seen[:, None, None], 3, 1), 2, 2)
    captions = [("id 4", "7"), ("id 9", "no label")]
    found = without_bits(seen, views, captions, 3)
    assert found[0].shape == (2, 4, 4, 1) and found[1].shape == (2, 3, 2, 4, 4, 1)
    assert found[2] == [("id 4, bits 000", "7"), ("id 9, bits 010", "no label")]
    assert without_bits(seen, views, captions, 4)[0].shape == seen.shape
    assert without_bits(seen, views, captions, 0)[2] is captions
