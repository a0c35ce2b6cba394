"""Crops of a view out of its image: on the device, or on the host before the image is decoded.

A preset is a chain of steps, one of which is a crop. On the host only the box is drawn
(:meth:`Cut.boxes`), from the very keys that the device would draw it from, so that whoever decodes the
image decodes no more than the view needs; the device then takes the other steps.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import native
from contrastive_jax.augment import geometry


def example_keys(seed, epoch, id):
    """Derive one augmentation key an example, [B], wherever it lies in a batch; ``epoch`` and ``id`` are [B]."""
    root = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"augment"))
    return jax.vmap(lambda epoch, id: jax.random.fold_in(jax.random.fold_in(root, epoch), id))(epoch, id)


class Touch(NamedTuple):
    """Effects of a step on an image besides moving its pixels, and by which option."""

    option: str
    value: Any
    channels: int  # how many of the leading channels it changes

    def instead(self, channels: int) -> str:
        """Return what to take instead where it may touch so many channels."""
        if self.option not in ("preset", "color_channels"):
            return f"augment.{self.option}=0"
        possible = [count for count in (1, 3) if self.option == "color_channels" and count <= channels]
        return (
            f"augment.color_channels={possible[-1]}"
            if possible
            else "a preset that only moves pixels, crop_only or none"
        )


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, ``(key, image) -> image``, that says what it touches; a plain function may touch everything.

    Attributes:
        apply: the step.
        option: of its preset, that makes it touch anything; "" where it only moves pixels, or maps every channel by
            numbers of its own.
        value: of that option.
        channels: of an image of so many, how many leading ones it touches.
    """

    apply: Callable
    option: str = ""
    value: Any = None
    channels: Callable[[int], int] = int  # all

    def __call__(self, key, image):
        """Apply the step."""
        return self.apply(key, image)

    def touches(self, channels: int) -> list[Touch]:
        """Return its effects on an image of so many channels."""
        return [Touch(self.option, self.value, self.channels(channels))] if self.option else []


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """:func:`geometry.random_resized_crop` as a step, ``(key, image) -> image``."""

    size: int
    area: tuple[float, float]
    ratio: tuple[float, float]
    sampler: str
    method: str
    antialias: bool
    shift: float = 0.0

    def __call__(self, key, image):
        """Crop the image."""
        return geometry.random_resized_crop(key, image, **dataclasses.asdict(self))

    def touches(self, channels: int) -> list[Touch]:
        """Return its effect: where the box is shifted, black comes in."""
        return [Touch("shift", self.shift, channels)] if self.shift else []

    def frame(self, height: int, width: int) -> np.ndarray:
        """Return all that :meth:`box` has to know of an image's size."""
        return geometry.frame(height, width, area=self.area, ratio=self.ratio, sampler=self.sampler)

    def box(self, key, frame):
        """Return the box that a call with this key cuts out."""
        box_key, _ = jax.random.split(key)
        return geometry.draw_box_in(box_key, frame, area=self.area, ratio=self.ratio, sampler=self.sampler)


@dataclasses.dataclass(frozen=True)
class CenterCrop:
    """:func:`geometry.center_crop` to a square as a step, ``(key, image) -> image``; the key is not used."""

    size: int
    proportion: float
    method: str
    antialias: bool
    shift = 0.0

    def __call__(self, key, image):
        """Crop the image."""
        return geometry.center_crop(image, **dataclasses.asdict(self))

    def touches(self, channels: int) -> list[Touch]:
        """Return no effect: it moves pixels."""
        return []

    def frame(self, height: int, width: int) -> np.ndarray:
        """Return the box itself."""
        box = geometry.center_box(height, width, (self.size, self.size), self.proportion)
        return np.array(box, np.float32)

    def box(self, key, frame):
        """Return the box."""
        return frame


class Chain:
    """Steps one after another, ``(key, image) -> image``, each with a key of its own."""

    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, key, image):
        """Apply every step."""
        for step, step_key in zip(self.steps, self.keys(key), strict=True):
            image = step(step_key, image)
        return image

    def keys(self, key):
        """Derive the steps' keys; evaluation has none."""
        return jax.random.split(key, len(self.steps)) if key is not None else [None] * len(self.steps)

    def touches(self, channels: int) -> list[Touch]:
        """Return the effects of its steps on an image of so many channels, besides moving pixels."""
        touches = []
        for step in self.steps:
            if isinstance(step, Step | RandomCrop | CenterCrop | Chain):
                touches += step.touches(channels)
            elif step is not same:
                touches.append(Touch("preset", getattr(step, "__name__", repr(step)), channels))
        return touches

    @property
    def crop(self) -> int:
        """The place of the crop among the steps."""
        return next(i for i, step in enumerate(self.steps) if isinstance(step, RandomCrop | CenterCrop))

    def finish(self, key, image):
        """Take the steps that follow the crop, for an image that is already cut out."""
        for step, step_key in list(zip(self.steps, self.keys(key), strict=True))[self.crop + 1 :]:
            image = step(step_key, image)
        return image


@dataclasses.dataclass(frozen=True)
class Cut:
    """The host's half of views: which boxes of an image they show, and how these are resized. Picklable.

    Attributes:
        crops: of each view, with its place among the steps of the view and their number.
        opencv: whether OpenCV resizes boxes of whole pixels that are not to be antialiased; see :meth:`resize`.
    """

    crops: tuple[tuple[RandomCrop | CenterCrop, int, int], ...]
    opencv: bool = False

    @property
    def size(self) -> int:
        """Side of a view, pixels."""
        return self.crops[0][0].size

    @property
    def method(self) -> str:
        """Kernel, ``bilinear`` or ``bicubic``."""
        return self.crops[0][0].method

    @property
    def antialias(self) -> bool:
        """Return whether the kernel widens when shrinking."""
        return self.crops[0][0].antialias

    def resize(self, image: np.ndarray, box: Sequence[float]) -> np.ndarray:
        """Resize a box of a uint8 image [h, w, c] to [size, size, c] by :func:`geometry.crop_and_resize`, rounded.

        On the host: the weights are the same, but of each row only the few that are not zero are reckoned with.
        OpenCV takes a fifth of the time and has its own ways: its cubic kernel is a = -0.75, not -0.5, so that
        views are sharper, and pixels beyond the box are those at its edge.
        """
        top, left, height, width = (float(x) for x in box)
        image = image[_reach(top, height), _reach(left, width)]
        smooth = self.antialias and max(height, width) > self.size
        if self.opencv and not smooth and image.shape[:2] == (height, width):
            view = opencv().resize(image, (self.size, self.size), interpolation=OPENCV[self.method])
            return view.reshape(self.size, self.size, -1)
        h, w, c = image.shape
        rows, columns = self._weights(
            np.array([h, w]), np.array([top % 1, left % 1]), np.array([height, width])
        )
        half = rows @ image.reshape(h, w * c).astype(np.float32)  # [size, w, c]
        view = columns @ half.T.reshape(w, c * self.size)  # [size, c, size], columns in front
        view += np.float32(0.5)
        view = np.clip(view, 0, 255, out=view).astype(np.uint8)
        return view.reshape(self.size * c, self.size).T.reshape(self.size, self.size, c)

    def _weights(self, size_in: np.ndarray, start: np.ndarray, extent: np.ndarray) -> list:
        """Return the share of each input pixel in each output pixel, of two axes [2]: two sparse [size, size_in]."""
        from scipy import sparse

        step = extent / self.size
        scale = np.maximum(step, 1.0) if self.antialias else np.ones(2)
        reach = geometry.REACH[self.method] * scale
        centre = np.arange(0.5, self.size) * step[:, None] + (start - 0.5)[:, None]  # [2, size]
        first = np.ceil(centre - reach[:, None]).astype(np.int32)
        taps = math.floor(2 * reach.max()) + 1
        pixel = first[..., None] + np.arange(taps, dtype=np.int32)  # [2, size, taps]
        start, extent, scale, size_in = (x[:, None, None] for x in (start, extent, scale, size_in))
        distance = np.abs((centre[..., None] - pixel) / scale)
        inside = (pixel > start - 1) & (pixel < start + extent) & (pixel >= 0) & (pixel < size_in)
        weights = geometry.KERNELS[self.method](distance.astype(np.float32), np) * inside
        weights /= weights.sum(-1, keepdims=True)
        pixel = np.clip(pixel, 0, size_in - 1)
        places = np.arange(0, self.size * taps + 1, taps, dtype=np.int32)
        return [
            sparse.csr_array((own.reshape(-1), at.reshape(-1), places), (self.size, int(size[0, 0])))
            for own, at, size in zip(weights, pixel, size_in, strict=True)
        ]

    def boxes(self, seed: int, epoch: np.ndarray, id: np.ndarray, sizes: Sequence[tuple[int, int]]):
        """Draw float32 [B, W, 4], (top, left, height, width): what the device would draw for these examples.

        Args:
            seed: of the run.
            epoch: [B].
            id: [B].
            sizes: B pairs (height, width).
        """
        frames = np.array([[crop.frame(*size) for crop, _, _ in self.crops] for size in sizes])
        if all(isinstance(crop, CenterCrop) for crop, _, _ in self.crops):
            return frames
        # A mesh in context would have them on its devices.
        with jax.set_mesh(None), jax.default_device(_host()):
            return np.asarray(_draw(self, np.uint32(seed), np.int32(epoch), np.int32(id), frames))


OPENCV = {"bilinear": 1, "bicubic": 2}  # cv2.INTER_LINEAR, cv2.INTER_CUBIC


@functools.cache
def opencv():
    """Import OpenCV, with one thread: cores are shared out by whoever calls it."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


def _reach(start: float, extent: float) -> slice:
    """Return the pixels of which a box holds something."""
    return slice(math.floor(start), math.ceil(start + extent))


@native.jit(static_argnums=0)
def _draw(cut, seed, epoch, id, frames):
    def of_example(key, frames):
        boxes = []
        for view, ((crop, place, steps), frame) in enumerate(zip(cut.crops, frames, strict=True)):
            boxes.append(crop.box(jax.random.split(jax.random.fold_in(key, view), steps)[place], frame))
        return jnp.stack(boxes)

    return jax.vmap(of_example)(example_keys(seed, epoch, id), frames)


@functools.cache
def _host():
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS=cuda leaves no CPU
        return jax.local_devices()[0]


def cut_of(chains: Sequence[Chain]) -> Cut:
    """Return the host's half of views.

    Raises:
        ValueError: views that are moved or bent before they are cut out, or show what lies outside the image.
    """
    for chain in chains:
        before, crop = chain.steps[: chain.crop], chain.steps[chain.crop]
        if any(step is not same for step in before) or crop.shift:
            raise ValueError(
                "a streamed data set is cropped on the host, before any other step, and within the image: "
                "set augment.slant=0 and augment.shift=0, or data.stream=off"
            )
    return Cut(tuple((chain.steps[chain.crop], chain.crop, len(chain.steps)) for chain in chains))


def same(key, image):
    """Return the image: the step that does nothing."""
    return image
