"""Folders of images as people have them."""

import errno
import functools
import io
import os
import pathlib
import pickle
import struct
import sys
import warnings
import zlib

import numpy as np
import pytest
import tifffile
from PIL import Image

from contrastive_jax import augment, data, main
from contrastive_jax.data import pixels
from contrastive_jax.data.image_files import FolderFiles, ImageRecords, class_names
from contrastive_jax.data.records import Unreadable
from contrastive_jax.data.split import stratified

random = np.random.default_rng(0)


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return array


def rgb(height=6, width=6):
    return random.integers(0, 256, (height, width, 3), np.uint8)


def test_a_folder_is_known_by_its_files_streamed_or_not(tmp_path):
    folder = tmp_path / "here"
    names = ["a.png", os.fsdecode(b"\xff.png")]  # no UTF-8
    for name in names:
        save(folder / name, rgb())

    def digest(place=folder, **options):
        train = data.load(name="folder", dir=str(place), **options).train
        return data.files_digest(train.paths)

    before = digest()
    assert before == digest(stream="on") and data.files_digest(None) is None
    assert before == digest(folder.rename(tmp_path / "moved"))
    (tmp_path / "moved/a.png").rename(tmp_path / "moved/b.png")
    assert digest(tmp_path / "moved") != before


def test_labels_are_first_folders_and_pixels_are_kept(tmp_path):
    dog = save(tmp_path / "dog/b.png", rgb())
    cat = [save(tmp_path / "cat/z.png", rgb()), save(tmp_path / "cat/deep/er/a.PNG", rgb())]
    loose = save(tmp_path / "loose.png", rgb())
    save(tmp_path / ".thumbnails/0.png", rgb())
    (tmp_path / "cat/notes.txt").write_text("not an image")
    (tmp_path / "cat/._z.png").write_bytes(b"not an image either")
    source = data.load(name="folder", dir=str(tmp_path))
    assert source.classes == ("cat", "dog") and source.test is None
    assert source.train.label.tolist() == [0, 0, 1, -1]
    np.testing.assert_array_equal(source.train.image, [cat[1], cat[0], dog, loose])


def test_flat_folder_has_no_labels(tmp_path):
    images = [save(tmp_path / f"{i}.png", rgb()) for i in range(3)]
    source = data.load(name="folder", dir=str(tmp_path))
    assert source.classes == () and source.train.label.tolist() == [-1] * 3
    np.testing.assert_array_equal(source.train.image, images)


@pytest.mark.parametrize(
    ("folder", "test_folder"), [("train", "test"), ("Train", "VAL"), ("train", "validation")]
)
def test_train_and_test_folders(tmp_path, folder, test_folder):
    for split in (folder, test_folder):
        for name in "ab":
            save(tmp_path / split / name / "0.png", rgb())
    save(tmp_path / test_folder / "b" / "1.png", rgb())
    source = data.load(name="folder", dir=str(tmp_path))
    assert source.train.label.tolist() == [0, 1] and source.test.label.tolist() == [0, 1, 1]
    assert data.load(name="folder", dir=str(tmp_path), test_split="").test is None
    assert (
        len(data.load(name="folder", dir=str(tmp_path), test_fraction=0.5).test) == 3
    )  # no further fraction
    with pytest.raises(ValueError, match="data.test_fraction is 0.5"):
        data.load(name="folder", dir=str(tmp_path), test_split=test_folder, test_fraction=0.5)
    save(tmp_path / test_folder / "c" / "1.png", rgb())
    with pytest.raises(ValueError, match="classes without training images: c"):
        data.load(name="folder", dir=str(tmp_path))


def test_stratified_fraction(tmp_path):
    for name in "ab":
        for i in range(10):
            save(tmp_path / name / f"{i}.png", rgb())
    whole = data.load(name="folder", dir=str(tmp_path)).train
    unlabelled = data.load(name="folder", dir=str(tmp_path / "a"), test_fraction=0.2)
    assert len(unlabelled.train) == 8 and len(unlabelled.test) == 2 and not unlabelled.test.labelled
    source = data.load(name="folder", dir=str(tmp_path), test_fraction=0.2)
    assert np.bincount(source.train.label).tolist() == [8, 8]
    assert np.bincount(source.test.label).tolist() == [2, 2]
    parts = np.concatenate([source.train.image, source.test.image])
    assert sorted(i.tobytes() for i in parts) == sorted(i.tobytes() for i in whole.image)
    with pytest.raises(ValueError, match="leaves a split empty"):
        data.load(name="folder", dir=str(tmp_path), test_fraction=0.001)
    with pytest.raises(ValueError, match="data.test_fraction is 1.0; it must be at least 0 and below 1"):
        data.load(name="folder", dir=str(tmp_path), test_fraction=1.0)


def test_one_colour_image_makes_the_set_rgb(tmp_path):
    grey = save(tmp_path / "0.png", random.integers(0, 256, (6, 6), np.uint8))
    assert data.load(name="folder", dir=str(tmp_path)).train.image.shape == (1, 6, 6, 1)
    colour = save(tmp_path / "1.png", rgb())
    image = data.load(name="folder", dir=str(tmp_path)).train.image
    np.testing.assert_array_equal(image, [np.repeat(grey[..., None], 3, -1), colour])


def test_transparency_is_laid_on_white(tmp_path):
    array = np.zeros((1, 3, 4), np.uint8)
    array[0, :, 3] = 255, 0, 51  # opaque, transparent, a fifth
    save(tmp_path / "rgba.png", array)
    save(tmp_path / "la.png", array[..., 2:])
    image = data.load(name="folder", dir=str(tmp_path)).train.image
    expected = [[0, 0, 0], [255, 255, 255], [204, 204, 204]]
    np.testing.assert_array_equal(image, [[expected], [expected]])


def test_a_palette_with_a_transparent_colour(tmp_path):
    picture = Image.fromarray(np.array([[0, 1]], np.uint8))
    picture.putpalette([10, 20, 30, 40, 50, 60])
    picture.save(tmp_path / "p.png", transparency=1)
    image = data.load(name="folder", dir=str(tmp_path)).train.image
    np.testing.assert_array_equal(image, [[[[10, 20, 30], [255, 255, 255]]]])


@pytest.mark.parametrize("extension", ["png", "tiff"])
def test_sixteen_bits_become_eight(tmp_path, extension):
    values = np.array([[0, 128, 129, 257 * 77, 65535 - 129, 65535]], np.uint16)
    save(tmp_path / f"deep.{extension}", values)
    image = data.load(name="folder", dir=str(tmp_path)).train.image
    np.testing.assert_array_equal(image[0, ..., 0], [[0, 0, 1, 77, 254, 255]])


def test_grey_of_sixteen_bits_is_grey_with_alpha_too_and_white_where_a_tiff_says_0_is(tmp_path):
    def chunk(kind, content):
        sum32 = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", sum32)

    row = b"\0" + struct.pack(">HH", 257 * 77, 65535) * 2  # Pillow opens such a file as RGBA, and writes none
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 4, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * 2)),
        (b"IEND", b""),
    )
    (tmp_path / "0.png").write_bytes(pixels.PNG + b"".join(chunk(*part) for part in parts))
    save(tmp_path / "1.tif", np.full((2, 2), 65535 - 257 * 77, np.uint16), tiffinfo={262: 0})
    image = data.load(name="folder", dir=str(tmp_path)).train.image
    np.testing.assert_array_equal(image, np.full((2, 2, 2, 1), 77))
    with pytest.raises(ValueError, match="0.png: data.white applies to"):
        data.load(name="folder", dir=str(tmp_path), white=10_000)


@pytest.mark.parametrize("kind", ["png", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path, orientation, kind):
    """The eight orientations of the EXIF standard, each by its definition: where row 0, column 0 are seen."""
    upright = random.integers(0, 256, (4, 7), np.uint8)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),
        7: upright[::-1, ::-1].T,
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(tmp_path / f"0.{kind}", np.ascontiguousarray(stored), exif=exif)
    save(tmp_path / "1.png", upright)  # of the same size only once both are upright
    image = data.load(name="folder", dir=str(tmp_path)).train.image
    np.testing.assert_array_equal(image[..., 0], [upright, upright])


def test_odd_sizes_need_a_size_and_are_cropped_at_the_centre(tmp_path):
    wide = np.zeros((8, 21, 3), np.uint8)
    wide[:, 4:17] = 200  # the centre 8 columns, and those around them that the filter looks at
    save(tmp_path / "wide.png", wide)
    save(tmp_path / "tall.png", np.ascontiguousarray(wide.transpose(1, 0, 2)))
    save(tmp_path / "tiny.png", np.full((1, 1, 3), 9, np.uint8))
    with pytest.raises(ValueError, match="images of folder differ in size: set data.size"):
        data.load(name="folder", dir=str(tmp_path), stream="off")
    assert data.load(name="folder", dir=str(tmp_path)).train.shape == (None, None, 3)  # streamed
    tall, tiny, other = data.load(name="folder", dir=str(tmp_path), size=8).train.image
    assert (tall == 200).all() and (other == 200).all() and (tiny == 9).all() and tiny.shape == (8, 8, 3)
    assert data.load(name="folder", dir=str(tmp_path), size=5).train.image.shape == (3, 5, 5, 3)


def test_jpeg_gif_and_cmyk(tmp_path):
    flat = np.full((8, 8, 3), 120, np.uint8)
    save(tmp_path / "0.jpg", flat, quality=95)
    save(tmp_path / "1.gif", flat)
    Image.fromarray(flat).convert("CMYK").save(tmp_path / "2.jpeg", quality=95)
    image = data.load(name="folder", dir=str(tmp_path)).train.image.astype(int)
    assert image.shape == (3, 8, 8, 3) and abs(image - 120).max() <= 2


def png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"text", png(rgb(40, 40))[:-900], png(rgb())[:20]],
    ids=["empty", "text", "cut", "header"],
)
@pytest.mark.parametrize("size", [0, 4])
def test_a_broken_image_is_named(tmp_path, content, size):
    save(tmp_path / "a.png", rgb(40, 40))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "broken.png").write_bytes(content)
    with pytest.raises(ValueError, match="cannot read the image .*sub/broken.png"):
        data.load(name="folder", dir=str(tmp_path), size=size)


def test_floating_point_pixels_are_refused(tmp_path):
    save(tmp_path / "float.tiff", np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="float.tiff: floating-point"):
        data.load(name="folder", dir=str(tmp_path))


@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("channels", [2, 5, 13])
def test_several_channels(tmp_path, channels, planar):
    tifffile = pytest.importorskip("tifffile")
    array = random.integers(0, 256, (6, 7, channels), np.uint8)
    stored = array if planar == "contig" else np.moveaxis(array, -1, 0)
    tifffile.imwrite(tmp_path / "0.tif", stored, photometric="minisblack", planarconfig=planar)
    image = data.load(name="folder", dir=str(tmp_path)).train.image
    np.testing.assert_array_equal(image, array[None])
    resized = data.load(name="folder", dir=str(tmp_path), size=4).train.image
    for c in range(channels):  # every channel as if it were a grey image of its own
        save(tmp_path / "channels" / f"{c:02}.png", array[..., c])
    each = data.load(name="folder", dir=str(tmp_path / "channels"), size=4).train.image[..., 0]
    np.testing.assert_array_equal(resized[0], np.moveaxis(each, 0, -1))


def test_no_sample_of_a_tiff_is_dropped(tmp_path):
    """Pillow would give RGB of the first and the third of these, and grey of the second."""
    tifffile = pytest.importorskip("tifffile")
    for name, channels, photometric in (("rgbx", 4, "rgb"), ("la", 2, "minisblack"), ("rgbxy", 5, "rgb")):
        array = random.integers(0, 256, (6, 7, channels), np.uint8)
        options = {"extrasamples": ["unspecified"]} if name == "rgbx" else {}
        (tmp_path / name).mkdir()
        tifffile.imwrite(
            tmp_path / name / "0.tif", array, photometric=photometric, planarconfig="contig", **options
        )
        np.testing.assert_array_equal(data.load(name="folder", dir=str(tmp_path / name)).train.image, [array])
    with pytest.raises(
        ValueError, match="different numbers of channels: .*la/0.tif has 2, .*rgbx/0.tif has 4"
    ):
        data.load(name="folder", dir=str(tmp_path))
    alpha = np.zeros((1, 2, 4), np.uint8)
    alpha[0, :, 3] = 255, 0
    (tmp_path / "alpha").mkdir()
    tifffile.imwrite(tmp_path / "alpha" / "0.tif", alpha, photometric="rgb", extrasamples=["unassalpha"])
    tifffile.imwrite(
        tmp_path / "alpha" / "1.tif",
        alpha.astype(np.uint16) * 257,
        photometric="rgb",
        extrasamples=["unassalpha"],
    )
    image = data.load(name="folder", dir=str(tmp_path / "alpha")).train.image
    np.testing.assert_array_equal(image, [[[[0, 0, 0], [255, 255, 255]]]] * 2)


def test_sixteen_bits_of_several_channels_and_what_is_white(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    values = np.array([0, 128, 129, 257 * 77, 65535], np.uint16)
    array = np.broadcast_to(values[:, None, None], (5, 2, 5))
    tifffile.imwrite(tmp_path / "0.tif", array, photometric="minisblack", planarconfig="contig")
    image = data.load(name="folder", dir=str(tmp_path)).train.image
    np.testing.assert_array_equal(image[0, :, 0, 0], [0, 0, 1, 77, 255])
    image = data.load(name="folder", dir=str(tmp_path), white=510).train.image
    np.testing.assert_array_equal(image[0, :, 1, 4], [0, 64, 65, 255, 255])  # 129 / 2, halves up
    (tmp_path / "grey").mkdir()
    save(tmp_path / "grey" / "0.png", np.ascontiguousarray(array[..., 0]))
    grey = data.load(name="folder", dir=str(tmp_path / "grey"), white=510).train.image
    np.testing.assert_array_equal(grey[0, :, 0, 0], [0, 64, 65, 255, 255])
    with pytest.raises(ValueError, match="data.white is 0; it must be from 1 to 65535"):
        data.load(name="folder", dir=str(tmp_path), white=0)
    (tmp_path / "float").mkdir()
    tifffile.imwrite(
        tmp_path / "float" / "0.tif",
        array.astype(np.float32),
        photometric="minisblack",
        planarconfig="contig",
    )
    with pytest.raises(ValueError, match="float/0.tif: its pixels are float32; they must be unsigned"):
        data.load(name="folder", dir=str(tmp_path / "float"))


def test_several_channels_without_tifffile(tmp_path, monkeypatch):
    tifffile = pytest.importorskip("tifffile")
    array = np.zeros((6, 7, 5), np.uint8)
    tifffile.imwrite(tmp_path / "0.tif", array, photometric="minisblack", planarconfig="contig")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(
        ValueError, match=r"0.tif: .*several channels need tifffile: .*contrastive_jax\[tiff\]"
    ):
        data.load(name="folder", dir=str(tmp_path))


def test_records_are_upright_and_of_eight_bits_for_any_decoder(tmp_path, monkeypatch):
    """Plain files go as they are; the others as pixels, so that no decoder needs to know of them."""
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "0.jpg", rgb(8, 5))
    save(tmp_path / "1.jpg", rgb(8, 5), exif=exif)
    save(tmp_path / "2.png", rgb(8, 5))
    save(tmp_path / "3.png", np.zeros((8, 5), np.uint16))
    paths = [f"{i}.{e}" for i, e in enumerate(("jpg", "jpg", "png", "png"))]
    label, group = np.array([3, 1, 2, 0], np.int32), np.array([0, 0, 2, 3], np.int32)
    files = FolderFiles(tmp_path, paths)
    records = pickle.loads(pickle.dumps(ImageRecords(files, label, group, (None, None, 3))))
    found = records.read([2, 0, 1, 3])
    assert [record.label for record in found] == [2, 3, 1, 0] and [r.group for r in found] == [2, 0, 0, 3]
    assert found[0].image == (tmp_path / "2.png").read_bytes()
    assert found[1].image == (tmp_path / "0.jpg").read_bytes()
    turned, deep = (np.load(io.BytesIO(found[i].image)) for i in (2, 3))
    assert turned.shape == (5, 8, 3) and deep.shape == (8, 5, 3) and deep.dtype == np.uint8
    (tmp_path / "3.png").write_bytes(b"nothing")
    with pytest.raises(Unreadable, match="cannot read the image .*3.png"):
        records.read([3])
    (tmp_path / "3.png").unlink()  # gone is not damaged: nothing may stand in for it
    with pytest.raises(FileNotFoundError, match="3.png"):
        records.read([3])

    def stale(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("contrastive_jax.data.image_files.opened", stale)
    with pytest.raises(OSError, match="Stale file handle.*; once it can be, .*0.jpg"):
        records.read([0])


def test_a_folder_that_does_not_answer_is_no_folder_of_damaged_images(tmp_path, monkeypatch):
    for name in ("0.png", "1.png"):
        save(tmp_path / name, rgb(8, 8))
    real = pixels.header

    def header(file):
        if file.name.endswith("1.png"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(file)

    monkeypatch.setattr(pixels, "header", header)
    with pytest.raises(ValueError, match="cannot read the image .*1.png: .*Stale file handle"):
        data.load(name="folder", dir=str(tmp_path), corrupt="replace", stream="on")


@pytest.mark.parametrize("kind", ["turned", "grey16", "five"])
def test_a_stream_sees_the_pixels_that_memory_has(tmp_path, kind):
    for i in range(3):
        if kind == "turned":
            exif = Image.Exif()
            exif[0x0112] = 6
            save(tmp_path / f"{i}.jpg", rgb(8, 8), exif=exif)
        elif kind == "grey16":
            save(tmp_path / f"{i}.png", random.integers(0, 65536, (8, 8)).astype(np.uint16))
        else:
            tifffile = pytest.importorskip("tifffile")
            array = random.integers(0, 65536, (8, 8, 5)).astype(np.uint16)
            tifffile.imwrite(tmp_path / f"{i}.tif", array, photometric="minisblack", planarconfig="contig")
    resident, streamed = (data.load(name="folder", dir=str(tmp_path), stream=s).train for s in ("off", "on"))
    view = augment.make_eval(preset="none", size=8)
    image, label = next(streamed.batches(3, view))
    np.testing.assert_array_equal(image, resident.image)
    np.testing.assert_array_equal(label, resident.label)
    group = {"rows": np.array([2, 0]), "seed": 0, "epoch": 0}
    views = augment.make_views(preset="none", size=8)
    assert streamed.drawn(views, **group)["image"].shape == (2, 2, 8, 8, resident.shape[2])
    np.testing.assert_array_equal(streamed.drawn(views, **group)["image"][:, 1], resident.image[[2, 0]])


def test_a_part_of_a_stream_keeps_its_groups(tmp_path):
    for i in range(4):
        save(tmp_path / f"clip{i // 2}-{i}.png", rgb())
    train = data.load(name="folder", dir=str(tmp_path), group="clip.", stream="on").train
    view = augment.make_views(preset="none", size=6)
    found = train[[3, 0, 2]].drawn(view, np.arange(3), seed=0, epoch=0)
    assert found["group"].tolist() == [2, 0, 2]


def test_messages_for_folders_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match="data.dir is ''; it must be the folder"):
        data.load(name="folder")
    with pytest.raises(FileNotFoundError, match="data.dir is .*nowhere; there is no such folder"):
        data.load(name="folder", dir=str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="contains no image"):
        data.load(name="folder", dir=str(tmp_path))
    save(tmp_path / "train/0.png", rgb())
    with pytest.raises(FileNotFoundError, match="data.test_split is holdout"):
        data.load(name="folder", dir=str(tmp_path), test_split="holdout")
    with pytest.raises(FileNotFoundError, match="data.train_split is tarin"):
        data.load(name="folder", dir=str(tmp_path), train_split="tarin")


def test_what_would_be_missing_or_a_class_in_silence_is_refused(tmp_path):
    for place in ("training/a", "training/b", "testing/a", "testing/b"):
        save(tmp_path / place / "0.png", rgb())
    load = functools.partial(data.load, name="folder", dir=str(tmp_path))
    with pytest.raises(
        ValueError, match="the folders training and testing: set data.train_split and data.test_split"
    ):
        load()
    with pytest.raises(ValueError, match="data.test_split is 'auto', and testing is beside"):
        load(train_split="training")
    assert len(load(train_split="training", test_split="testing").test) == 2
    assert load(test_split="").classes == ("testing", "training")
    (tmp_path / "training/c").symlink_to(tmp_path / "not_mounted")
    with pytest.raises(FileNotFoundError, match="training/c is a broken link"):
        load(train_split="training", test_split="")


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    save(tmp_path / "a/0.png", rgb())
    scandir = os.scandir

    def fails(place):
        if str(place).endswith("a"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(PermissionError, match="a folder of data.dir cannot be listed .*a'"):
        data.load(name="folder", dir=str(tmp_path))


def test_test_images_are_no_training_images(tmp_path):
    for place in ("train", "train/held", "validation"):
        save(tmp_path / place / "0.png", rgb())
    load = functools.partial(data.load, name="folder", dir=str(tmp_path))
    for options in (
        dict(test_split="train"),
        dict(test_split="train/held"),
        dict(train_split=".", test_split="validation"),
    ):
        with pytest.raises(ValueError, match="training would include test images"):
            load(**options)
    assert len(load(test_split="validation").train) == 2
    (tmp_path / ".linked").mkdir()
    for name in ("train", "test"):  # links to one folder; train_split="" does not look into it
        (tmp_path / ".linked" / name).symlink_to(tmp_path / "train")
    for options in (dict(train_split=""), dict(dir=str(tmp_path / ".linked"))):
        with pytest.raises(ValueError, match="training would include test images. Set data.test_split=''"):
            load(**options)
    assert len(load(train_split="", test_split="").train) == 3
    (tmp_path / "test").mkdir()
    (tmp_path / "test/cats").symlink_to(tmp_path / "train/held")
    with pytest.raises(
        ValueError, match="are the same file, through a link: training would include test images"
    ):
        load()


def test_classes_have_one_order_where_names_are_one_number():
    """A set of "1" and "01" has another order in every process."""
    labels = [(name,) for name in ("01", "1", "-0", "0", "2", "001", "02")]
    assert class_names(labels, []) == ("-0", "0", "001", "01", "1", "02", "2")


def test_every_class_keeps_an_image_to_learn_from():
    labels = np.array([0, 0, 0, 0, 1, -1])
    assert stratified(labels, 0.5).tolist()[4:] == [False, True]
    assert stratified(labels, 0.9)[:4].sum() == 3
    assert not stratified(labels, 0.5, np.array([0, 1, 2, 3, 4, 5]))[4]


def test_a_link_that_closes_a_circle_multiplies_no_image(tmp_path):
    save(tmp_path / "photos/a/0.png", rgb())
    save(tmp_path / "elsewhere/1.png", rgb())
    (tmp_path / "photos/a/loop").symlink_to(tmp_path / "photos")
    (tmp_path / "photos/b").symlink_to(tmp_path / "elsewhere")
    source = data.load(name="folder", dir=str(tmp_path / "photos"))
    assert len(source.train) == 2 and source.classes == ("a", "b")
    (tmp_path / "elsewhere/a").symlink_to(tmp_path / "photos/a")  # b, which leads to a, which leads to photos
    with pytest.raises(
        ValueError,
        match="b/a/0.png and .*a/0.png are the same file, through a link: the image would be its own",
    ):
        data.load(name="folder", dir=str(tmp_path / "photos"))


def test_an_image_is_met_once(tmp_path):
    load = functools.partial(data.load, name="folder", dir=str(tmp_path))
    for name in ("train/a/0.png", "train/a/1.png", "test/a/2.png"):
        save(tmp_path / name, rgb())
    link = tmp_path / "train/a/3.png"
    link.symlink_to(tmp_path / "test/a/2.png")
    with pytest.raises(
        ValueError, match="test/a/2.png and .*train/a/3.png are the same file, through a link: training would"
    ):
        load()
    assert len(load(test_split="").train) == 3
    link.unlink()
    link.symlink_to("0.png")
    with pytest.raises(
        ValueError, match="train/a/3.png and .*train/a/0.png .* the image would be its own negative"
    ):
        load()


def test_a_class_called_train_is_no_split(tmp_path):
    for name in ("bus/0.png", "bus/1.png", "train/0.png", "notes/0.txt"):
        save(tmp_path / name, rgb()) if name.endswith("png") else (tmp_path / "notes").mkdir()
    load = functools.partial(data.load, name="folder", dir=str(tmp_path))
    with pytest.raises(ValueError, match="images in train and also in bus: set data.train_split=''"):
        load()
    assert load(train_split="").classes == ("bus", "train") and len(load(test_split="").train) == 1
    (tmp_path / "bus").rename(tmp_path / "val")
    assert len(load().test) == 2
    (tmp_path / "train").rename(tmp_path / "trainset")
    with pytest.raises(
        ValueError, match="the folders trainset and val: set data.train_split and data.test_split"
    ):
        load()


def test_images_of_kinds_that_are_not_read_are_counted(tmp_path):
    save(tmp_path / "0.png", rgb())
    for name in ("1.heic", "2.AVIF"):
        (tmp_path / name).write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="2 files such as .* are ignored"):
        assert len(data.load(name="folder", dir=str(tmp_path)).train) == 1


def test_channels_of_a_folder_are_those_that_are_asked_for(tmp_path):
    grey = save(tmp_path / "grey" / "0.png", rgb()[..., 0])
    load = functools.partial(data.load, name="folder")
    assert load(dir=str(tmp_path / "grey")).train.shape == (6, 6, 1)
    (found,) = load(dir=str(tmp_path / "grey"), channels=3).train.image
    np.testing.assert_array_equal(found, np.repeat(grey[..., None], 3, -1))
    save(tmp_path / "color.png", rgb())
    assert load(dir=str(tmp_path), channels=1).train.image.shape == (2, 6, 6, 1)
    tifffile.imwrite(tmp_path / "color.tif", rgb().astype(np.uint16) * 257, photometric="rgb")
    assert load(dir=str(tmp_path), channels=1).train.image.shape == (3, 6, 6, 1)
    with pytest.raises(ValueError, match="data.channels is 2; it must be one of 0, 1, 3"):
        load(dir=str(tmp_path), channels=2)
    (tmp_path / "five").mkdir()
    tifffile.imwrite(tmp_path / "five" / "0.tif", np.zeros((6, 6, 5), np.uint8), planarconfig="contig")
    with pytest.raises(ValueError, match="data.channels is 3; it must be 0 .*0.tif has 5"):
        load(dir=str(tmp_path / "five"), channels=3)


def test_tiffs_of_several_pages_are_counted(tmp_path):
    first, second = (Image.fromarray(rgb()) for _ in range(2))
    first.save(tmp_path / "0.tif", save_all=True, append_images=[second])
    tifffile.imwrite(tmp_path / "1.tif", np.zeros((2, 6, 6, 3), np.uint16), photometric="rgb")
    first.save(tmp_path / "2.tif")
    with pytest.warns(RuntimeWarning, match="2 TIFFs such as .*0.tif have several pages"):
        source = data.load(name="folder", dir=str(tmp_path))
    np.testing.assert_array_equal(source.train.image[0], np.asarray(first))


def test_images_of_16_bits_that_are_nearly_black_are_said_to_be(tmp_path):
    for name in "01":
        save(tmp_path / f"{name}.png", random.integers(1000, 4061, (16, 16)).astype(np.uint16))
    load = functools.partial(data.load, name="folder", dir=str(tmp_path))
    with pytest.warns(
        RuntimeWarning, match="2 images of 16 bits .* nearly black: no .* above 4,1.., and data.white"
    ):
        assert load().train.image.max() == 16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(white=4095).train.image.max() > 200


def test_folders_of_classes_are_called_by_any_bytes(tmp_path):
    save(pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9/0.png")), rgb())
    assert data.load(name="folder", dir=str(tmp_path)).classes == ("caf\\xe9",)


def test_without_groups_an_image_is_its_own_in_each_split(tmp_path):
    for number in range(10):
        save(tmp_path / f"{number}.png", rgb())
    source = data.load(name="folder", dir=str(tmp_path), test_fraction=0.2)
    assert source.train.group.tolist() == [*range(8)] and source.test.group.tolist() == [0, 1]


def test_an_image_of_too_many_pixels_is_no_damaged_one(tmp_path, monkeypatch):
    save(tmp_path / "scene.png", rgb())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ValueError, match="scene.png has more than 20 pixels, .* cut it into tiles"):
        data.load(name="folder", dir=str(tmp_path), corrupt="replace")


def test_memory_limit_is_checked_before_decoding(tmp_path):
    (tmp_path / "0.png").write_bytes(png(rgb(40, 40))[:-900])  # would fail if it were decoded
    with pytest.raises(
        ValueError, match="data.memory_limit is .*; the 1 images 1000x1000x3 of .* take 0.00279 GiB"
    ):
        data.load(name="folder", dir=str(tmp_path), size=1000, memory_limit=0.001, stream="off")


@pytest.mark.parametrize("stream", ["off", "on"])
def test_a_damaged_file_is_named_and_another_stands_in_for_it(tmp_path, stream):
    images = [save(tmp_path / f"{i}.png", rgb(8, 8)) for i in range(3)]
    file = tmp_path / "1.png"
    file.write_bytes(file.read_bytes()[:60])
    options = {"name": "folder", "dir": str(tmp_path), "stream": stream, "workers": 0}
    view = augment.make_eval(preset="none", size=8)
    with pytest.raises(Unreadable, match=f"cannot read the image {file}: "):
        list(data.load(**options).train.batches(3, view))
    with pytest.raises(ValueError) as error:
        list(data.load(**options).train.batches(3, view))
    assert main.replaceable(error.value, "train") and not main.replaceable(error.value, "embed")
    with pytest.warns(RuntimeWarning, match=f"cannot read the image {file}: .*replaces it"):
        ((found, _),) = data.load(**options, corrupt="replace").train.batches(3, view)
    np.testing.assert_array_equal(found, [images[0], images[2], images[2]])
