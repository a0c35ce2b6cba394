"""Decoding of images to cropped views on the host, at no higher resolution than the views need.

JPEGs are decoded by libjpeg-turbo (simplejpeg). It reads an image's size from the header, so that boxes are
drawn before decoding, and decodes at half, quarter or eighth resolution if every box is large enough and its
pixels are smoothed anyway. Any other file, and any JPEG that it refuses (CMYK, damaged), is decoded by Pillow.
"""

import threading
from collections.abc import Sequence

import numpy as np

from contrastive_jax.data import pixels

COLOR = {1: "GRAY", 3: "RGB"}
MARGIN = 2  # least ratio of the side of a reduced box to that of its view


class Damaged(ValueError):
    """Error for bytes that are not a complete image."""


def whole(image: bytes, channels: int, size: int = 0) -> np.ndarray:
    """Decode by :func:`pixels.decode`; raise Damaged for any of its errors but MemoryError."""
    try:
        return pixels.decode(image, channels, size)
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

    def cut(self, cut, boxes: np.ndarray) -> np.ndarray:
        """Cut the views [W, s, s, c] of some boxes [W, 4]."""
        # Decoding at lower resolution smooths, so resizing without smoothing needs full resolution.
        pixels, factor = self._decoded(boxes, cut.size, reduce=cut.antialias or cut.opencv)
        return np.stack([cut.resize(pixels, box / factor) for box in boxes])

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

    def cut(self, cut, boxes: np.ndarray) -> np.ndarray:
        """Cut the views [W, s, s, c] of some boxes [W, 4]."""
        return np.stack([cut.resize(self._array, box) for box in boxes])


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


def views(pictures: Sequence[Jpeg | Decoded], cut, boxes: np.ndarray) -> np.ndarray:
    """Cut the views [B, W, s, s, c] uint8 of B images by their boxes [B, W, 4]."""
    return np.stack([picture.cut(cut, own) for picture, own in zip(pictures, boxes, strict=True)])
