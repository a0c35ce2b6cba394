"""Decoding of image files: to uint8 arrays, or to cropped views at no higher resolution than these need.

For views, JPEGs are decoded by libjpeg-turbo (simplejpeg). It reads an image's size from the header, so that boxes
are drawn before decoding, and decodes at half, quarter or eighth resolution if every box is large enough and its
pixels are smoothed anyway. Any other file, and any JPEG that it refuses (CMYK, damaged), is decoded by Pillow.
"""

import io
import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's mode for c channels of 8 bits
GREY = ("1", "L", "LA", "La")
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
PNG = b"\x89PNG\r\n\x1a\n"
NUMPY = b"\x93NUMPY"
WHITE = 65535
# What Pillow may read, by content: of others it calls programs, as Ghostscript for PostScript in a .png.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "ICO", "TGA")


class Header(NamedTuple):
    """Properties of a decoded image, from the header of its file."""

    height: int
    width: int
    channels: int  # 1: grey, 3: any kind of colour; otherwise the samples of a TIFF
    deep: bool = False  # whether it has more than 8 bits
    pages: bool = False  # whether it is a TIFF with several pages


def gibibytes(count: int, shape: tuple[int, ...]) -> float:
    """Return the memory of decoded images in GiB."""
    return count * int(np.prod(shape, dtype=np.int64)) / 2**30


def check_memory(name: str, count: int, shape: tuple[int, ...], memory_limit: float):
    """Refuse images that take more than ``memory_limit`` GiB, before the first is decoded."""
    need = gibibytes(count, shape)
    if need > memory_limit:
        raise ValueError(
            f"data.memory_limit is {memory_limit:g}; the {count:,} images"
            f" {shape[0]}x{shape[1]}x{shape[2]} of {name} take {need:.3g} GiB of host and device memory:"
            " lower data.size, raise data.memory_limit or set data.stream=auto."
        )


def header(file) -> Header:
    """Read the header of an image file, without decoding it."""
    from PIL import Image

    begin = file.read(26)
    file.seek(0)
    if begin.startswith(TIFF) and (page := _samples(file)) is not None:
        channels = 3 if _has_alpha(page) else page.samplesperpixel
        pages = page.parent.pages.is_multipage
        return Header(page.imagelength, page.imagewidth, channels, page.dtype != np.uint8, pages)
    with Image.open(file, formats=FORMATS) as image:
        width, height = image.size
        if image.format == "TIFF":  # as stored: some versions of Pillow rotate the size
            width, height = image.tag_v2[256], image.tag_v2[257]  # type: ignore[attr-defined]
        # EXIF behind the pixels of a PNG is left to decoding: reading it here would decode them.
        if _orientation(image, late=False) in (5, 6, 7, 8):  # rotated by 90 degrees
            width, height = height, width
        deep = image.mode.startswith("I") or _png_of_16_bits(begin) is not None
        grey = image.mode in GREY or image.mode.startswith("I") or _png_of_16_bits(begin) == 4
        pages = image.format == "TIFF" and image.is_animated  # type: ignore[attr-defined]
        return Header(height, width, 1 if grey else 3, deep, pages)


def reason(error: Exception) -> str:
    """Return the reason why an image cannot be read: the decoder's message if it is informative."""
    text = " ".join(str(error).split())
    if getattr(error, "errno", None) is not None or isinstance(error, ImportError):
        return text
    if isinstance(error, OSError | ValueError) and len(text.split()) > 2:
        return text
    return f"the file is cut off or damaged ({type(error).__name__}{f': {text}' if text else ''})"


def plain(image: bytes, channels: int, white: int = WHITE) -> bytes:
    """Return the same image as a file that every decoder reads alike.

    An upright 8-bit grey or RGB file, except TIFF, is returned unchanged. Otherwise the pixels are returned as
    a ``.npy`` file, [h, w, channels] uint8: EXIF rotation is applied, transparency is laid on white, and a
    16-bit value x becomes round(255 x / white), at most 255. 16-bit colour that is not TIFF keeps its high
    byte.
    """
    from PIL import Image, ImageOps

    if image.startswith(TIFF) and (page := _samples(io.BytesIO(image))) is not None:
        array = _samples_array(page, white)
        convert = array.shape[2] != channels and {array.shape[2], channels} <= {1, 3}
        return _npy(to_array(Image.fromarray(array), channels, 0) if convert else array)
    with Image.open(io.BytesIO(image), formats=FORMATS) as picture:
        upright = _orientation(picture, late=b"eXIf" in image) in (None, 1)
        simple = picture.mode in ("L", "RGB") and not picture.has_transparency_data
        if white != WHITE and _png_of_16_bits(image) in (2, 4, 6):
            raise ValueError(
                "data.white applies to grey 16-bit images and TIFFs only; convert 16-bit colour, or"
                " grey with alpha, to TIFF"
            )
        if upright and simple and not image.startswith(TIFF):
            return image
        # Pillow inverts TIFFs whose 0 is white if they have 8 bits, but not if they have 16.
        white_is_0 = getattr(picture, "tag_v2", {}).get(262) == 0
        seen = eight_bits(ImageOps.exif_transpose(picture), white, inverted=white_is_0)
        return _npy(to_array(opaque(seen), channels, 0))


def decode(image: bytes, channels: int, size: int = 0) -> np.ndarray:
    """Decode an image file, or a result of :func:`plain`, to [h, w, channels] uint8.

    With ``size`` the short side is resized to it (bicubic, antialiased) and the centre cropped. EXIF is
    ignored, as in TensorFlow and torchvision.
    """
    from PIL import Image

    if image.startswith(NUMPY):
        return fit(np.load(io.BytesIO(image)), size)
    with Image.open(io.BytesIO(image), formats=FORMATS) as picture:
        picture = eight_bits(picture)
        return to_array(opaque(picture) if channels in (1, 3) else picture, channels, size)


def _png_of_16_bits(begin: bytes) -> int | None:
    """Return the colour type of a PNG with 16 bits per sample, from its first bytes; None for other files."""
    return begin[25] if begin.startswith(PNG) and begin[24:25] == b"\x10" else None


def eight_bits(image, white: int = WHITE, inverted: bool = False):
    """Convert a 16-bit grey image to 8 bits, round(255 x / white); ``inverted`` replaces x by 65535 - x.

    Images of 8 bits are returned unchanged. Raises ValueError for pixels that are floating-point or exceed 16
    bits.
    """
    from PIL import Image

    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    if not image.mode.startswith("I"):
        return image
    value = np.asarray(image).astype(np.int64)
    if value.min() < 0 or value.max() > 65535:
        raise ValueError(f"grey values {value.min()}..{value.max()} are outside 16 bits")
    return Image.fromarray(_scaled(65535 - value if inverted else value, white))


def opaque(image):
    """Lay a transparent image on white; return any other unchanged."""
    from PIL import Image

    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def to_array(image, channels: int, size: int) -> np.ndarray:
    """Return [h, w, channels] uint8; with ``size`` the short side is resized to it and the centre cropped."""
    if image.mode != MODES[channels]:
        image = image.convert(MODES[channels])
    array = np.asarray(_fit(image, size))
    return array[..., None] if channels == 1 else array


def fit(array: np.ndarray, size: int) -> np.ndarray:
    """Resize the short side of [h, w, c] uint8, with any c, to ``size`` and crop the centre; 0: no change."""
    from PIL import Image

    if not size:
        return array
    if array.shape[-1] == 3:
        return np.asarray(_fit(Image.fromarray(array), size))
    return np.stack(
        [np.asarray(_fit(Image.fromarray(channel), size)) for channel in np.moveaxis(array, -1, 0)], -1
    )


def resized(image: np.ndarray, size: int) -> np.ndarray:
    """Resize square images [n, s, s, c] uint8, each by :func:`fit`."""
    return image if image.shape[1] == size else np.stack([fit(x, size) for x in image])


def _fit(image, size: int):
    from PIL import Image, ImageOps

    if not size or image.size == (size, size):
        return image
    return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)


def _orientation(image, late: bool) -> int | None:
    """Return EXIF's orientation or None; ``late`` also reads it behind a PNG's pixels, which decodes them."""
    from PIL import ExifTags

    if image.format == "PNG" and not late and "exif" not in image.info:
        return None
    return image.getexif().get(ExifTags.Base.Orientation)


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _scaled(value: np.ndarray, white: int) -> np.ndarray:
    """Return round(255 x / white) for integers x >= 0, with halves rounded up, at most 255."""
    return np.minimum((value.astype(np.int64) * 510 + white) // (2 * white), 255).astype(np.uint8)


def _samples(file):
    """Return the first page of a TIFF whose channels or 16-bit colour Pillow would truncate, or None."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file, formats=FORMATS) as image:
            tags = image.tag_v2
            samples, bits = tags.get(277, 1), max(np.atleast_1d(tags.get(258, 1)))
            if samples == 1 or bits <= 8 and samples == len(image.getbands()):
                return None
    except UnidentifiedImageError:
        pass
    file.seek(0)
    try:
        import tifffile
    except ImportError:
        raise ImportError(
            "TIFFs with several channels need tifffile: pip install 'contrastive_jax[tiff]'"
        ) from None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # damaged files raise an error
    return tifffile.TiffFile(file).pages.first


def _has_alpha(page) -> bool:
    return page.samplesperpixel == 4 and tuple(page.extrasamples)[-1:] in ((1,), (2,))


def _samples_array(page, white: int) -> np.ndarray:
    """Return the pixels [h, w, c] uint8 of a TIFF page with several samples."""
    from PIL import Image

    if page.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"its pixels are {page.dtype}; they must be unsigned, of 8 or 16 bits")
    orientation = page.tags[274].value if 274 in page.tags else 1
    if orientation != 1:
        raise ValueError(
            f"its orientation is {int(orientation)}; a TIFF with several channels must be upright"
        )
    array = page.asarray()
    array = np.moveaxis(array, 0, -1) if page.axes == "SYX" else array
    array = array if array.dtype == np.uint8 else _scaled(array, white)
    if _has_alpha(page):
        return np.asarray(opaque(Image.fromarray(np.ascontiguousarray(array))).convert("RGB"))
    return np.ascontiguousarray(array)


COLOR = {1: "GRAY", 3: "RGB"}
MARGIN = 2  # least ratio of the side of a reduced box to that of its view


class Damaged(ValueError):
    """Error for bytes that are not a complete image."""


def whole(image: bytes, channels: int, size: int = 0) -> np.ndarray:
    """Decode by :func:`decode`; raise Damaged for any of its errors but MemoryError."""
    try:
        return decode(image, channels, size)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise nearly anything on damaged bytes
        raise Damaged(str(error)) from error


class Jpeg:
    """JPEG of which only the header was read."""

    def __init__(self, image: bytes, channels: int):
        import simplejpeg

        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(image)
        if colorspace not in ("YCbCr", "Gray", "RGB"):
            raise ValueError(f"{colorspace} is left to Pillow")
        self.size, self._image, self._channels = (height, width), image, channels

    def cut(self, cut, boxes: np.ndarray, out: np.ndarray) -> None:
        """Write the views of some boxes [W, 4] to ``out``, [W, s, s, c]."""
        # Decoding at lower resolution smooths, so resizing without smoothing needs full resolution.
        pixels, factor = self._decoded(boxes, cut.size, reduce=cut.antialias)
        for box, view in zip(boxes, out, strict=True):
            cut.resize(pixels, box / factor, view)

    def _decoded(self, boxes: np.ndarray, size: int, reduce: bool) -> tuple[np.ndarray, int]:
        import simplejpeg

        color, (height, width) = COLOR[self._channels], self.size
        shortest = boxes[:, 2:].min()
        factor = next((f for f in (8, 4, 2) if reduce and shortest >= MARGIN * f * size), 1)
        least = {"min_height": -(-height // factor), "min_width": -(-width // factor), "min_factor": factor}
        try:
            buffer = _buffer(height * width * self._channels)
            array = simplejpeg.decode_jpeg(self._image, color, buffer=buffer, **least if factor > 1 else {})
        except ValueError:
            return whole(self._image, self._channels), 1
        if factor > 1 and array.shape[:2] != (least["min_height"], least["min_width"]):
            raise RuntimeError(f"simplejpeg decoded {height}x{width} at 1/{factor} to {array.shape[:2]}")
        return array, factor


_scratch = threading.local()


def _buffer(size: int) -> np.ndarray:
    """Return this thread's decoding buffer; reuse saves a fifth of the time, the cost of new memory pages."""
    if getattr(_scratch, "buffer", np.empty(0)).size < size:
        _scratch.buffer = np.empty(size, np.uint8)
    return _scratch.buffer


class Decoded:
    """Image that is decoded at once, to know its size or to resize it before cropping."""

    def __init__(self, image: bytes, channels: int, size: int):
        self._array = whole(image, channels, size)
        self.size = self._array.shape[:2]

    def cut(self, cut, boxes: np.ndarray, out: np.ndarray) -> None:
        """Write the views of some boxes [W, 4] to ``out``, [W, s, s, c]."""
        for box, view in zip(boxes, out, strict=True):
            cut.resize(self._array, box, view)


def opened(image: bytes, channels: int, size: int = 0) -> Jpeg | Decoded:
    """Open an encoded image, decoding it only if its size (height, width) requires that.

    Args:
        image: a file's bytes.
        channels: number of channels of the data set; a JPEG with another number is converted.
        size: size in pixels to which the short side is resized, with the centre cropped, before anything else;
            0: the stored size.

    Raises:
        Damaged: the bytes are not an image. A damaged JPEG may raise this only when it is cut.
    """
    if image[:2] == b"\xff\xd8" and channels in COLOR and not size:
        try:
            return Jpeg(image, channels)
        except ValueError:
            pass
    return Decoded(image, channels, size)


def views(pictures: Sequence[Jpeg | Decoded], cut, boxes: np.ndarray, channels: int) -> np.ndarray:
    """Cut the views [B, W, s, s, channels] uint8 of B images by their boxes [B, W, 4]."""
    out = np.empty((*boxes.shape[:2], cut.size, cut.size, channels), np.uint8)
    for picture, own, views in zip(pictures, boxes, out, strict=True):
        picture.cut(cut, own, views)
    return out
