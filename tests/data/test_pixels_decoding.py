"""From encoded images to views, against Pillow."""

import dataclasses
import importlib.util
import io

import numpy as np
import pytest
from PIL import Image

from contrastive_jax import augment
from contrastive_jax.data import pixels


def smooth(height, width, channels=3):
    """Waves, which JPEG keeps."""
    y, x = np.mgrid[:height, :width]
    waves = [128 + 100 * np.sin(x / (9 + 3 * c) + y / (14 - 2 * c)) for c in range(channels)]
    return np.stack(waves, -1).astype(np.uint8)


def encoded(array, format="JPEG", **options):
    buffer = io.BytesIO()
    image = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array, options.pop("mode", None))
    image.save(buffer, format, **options)
    return buffer.getvalue()


def cut(size, **options):
    return augment.make_views(preset="crop_only", size=size, **options).cut


BOX = np.array([[5, 8, 40, 48], [0, 0, 60, 80]], np.float32)


def views_of(image, channels=3, size=16, boxes=BOX, **options):
    picture = pixels.opened(image, channels)
    (views,) = pixels.views([picture], cut(size, **options), boxes[None], channels)
    return picture, views.astype(int)


@pytest.mark.parametrize(
    "format, options", [("JPEG", {"quality": 95}), ("JPEG", {"progressive": True}), ("PNG", {})]
)
def test_an_image_of_any_format_is_what_pillow_reads(format, options):
    image = encoded(smooth(60, 80), format, **options)
    picture, views = views_of(image)
    assert picture.size == (60, 80) and isinstance(picture, pixels.Jpeg) == (format == "JPEG")
    pillow = np.asarray(Image.open(io.BytesIO(image)))
    want = np.stack([cut(16).resize(pillow, box) for box in BOX])
    assert np.abs(views - want).max() <= (2 if format == "JPEG" else 0)  # libjpeg-turbo of two builds


def test_grey_and_colour_become_what_the_set_is():
    grey, color = encoded(smooth(60, 80, 1)), encoded(smooth(60, 80))
    _, views = views_of(grey)
    assert views.shape == (2, 16, 16, 3) and (views == views[..., :1]).all()
    _, views = views_of(color, channels=1)
    luma = np.asarray(Image.open(io.BytesIO(color)).convert("L"))[..., None]
    assert np.abs(views - np.stack([cut(16).resize(luma, box) for box in BOX])).max() <= 2


def test_cmyk_is_left_to_pillow():
    image = encoded(np.full((60, 80, 4), 40, np.uint8), mode="CMYK")
    picture, views = views_of(image)
    assert isinstance(picture, pixels.Decoded) and views.shape == (2, 16, 16, 3)
    assert np.abs(views - np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))[0, 0]).max() <= 2


def test_damaged_bytes_are_told_from_a_decoders_own_mistake(monkeypatch):
    """Half a JPEG shows only when it is cut."""
    half = encoded(smooth(60, 80))[:900]
    picture = pixels.opened(half, 3)
    assert isinstance(picture, pixels.Jpeg)
    with pytest.raises(pixels.Damaged, match="truncated"):
        pixels.views([picture], cut(16), BOX[None], 3)
    with pytest.raises(pixels.Damaged):
        pixels.opened(b"none", 3)

    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(pixels, "decode", no_memory)
    with pytest.raises(MemoryError):
        pixels.opened(b"none", 3)


def test_no_more_is_decoded_than_the_views_need(monkeypatch):
    import simplejpeg

    image, seen = encoded(smooth(600, 803), quality=95), []
    real = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    whole = np.array([[30, 50, 400, 500], [0, 0, 600, 803]], np.float32)
    pillow = np.asarray(Image.open(io.BytesIO(image)))
    for size, factor in ((300, 1), (100, 2), (50, 4), (24, 8)):
        _, views = views_of(image, size=size, boxes=whole, antialias=True)
        assert seen[-1].shape[:2] == (-(-600 // factor), -(-803 // factor))
        want = np.stack([cut(size, antialias=True).resize(pillow, box) for box in whole]).astype(int)
        # measured: 1, 6, 9 and 20 grey levels at most, of waves of 200
        assert np.abs(views - want).max() <= 4 * factor and np.abs(views - want).mean() < 0.4 * factor
    shifted = np.stack(
        [cut(24, antialias=True).resize(pillow, box + [8, 0, 0, 0]) for box in whole - [0, 0, 8, 0]]
    )
    assert np.abs(views - shifted).mean() > 5  # a box in the wrong place is seen
    _, views = views_of(image, size=24, boxes=whole)  # a kernel that does not smooth sees single pixels
    assert np.abs(views - np.stack([cut(24).resize(pillow, box) for box in whole]).astype(int)).max() <= 2
    if importlib.util.find_spec("cv2"):
        faster = dataclasses.replace(cut(24), opencv=True)
        pixels.views([pixels.opened(image, 3)], faster, whole[None], 3)
        assert seen[-1].shape[:2] == (600, 803)


def test_a_set_of_one_size_is_resized_first():
    image = encoded(smooth(60, 80))
    picture = pixels.opened(image, 3, size=20)
    assert picture.size == (20, 20)


@pytest.mark.parametrize(
    "image", [b"", b"no image", encoded(smooth(60, 80))[:700], encoded(smooth(60, 80), "PNG")[:400]]
)
def test_what_is_no_image_raises(image):
    with pytest.raises(Exception, match=r"identify|truncated|broken|Truncated"):
        views_of(image)
