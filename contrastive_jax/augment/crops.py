"""Crops of views, on the device or on the host before the image is decoded.

A preset is a chain of steps, one of which is a crop. The host draws only the box (:meth:`Cut.boxes`),
with the same keys as the device, so that only the pixels of the view are decoded; the device then
applies the other steps.
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
from contrastive_jax.native import resize


def example_keys(seed, epoch, id):
    """Derive augmentation keys [B] from ``epoch`` and ``id``, [B] each, at any place in the batch."""
    root = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"augment"))
    return jax.vmap(lambda epoch, id: jax.random.fold_in(jax.random.fold_in(root, epoch), id))(epoch, id)


class Touch(NamedTuple):
    """Effect of a step other than moving pixels, and the option that causes it."""

    option: str
    value: Any
    channels: int  # number of leading channels that the step changes

    def instead(self, channels: int) -> str:
        """Return the setting to use if only ``channels`` leading channels may change."""
        if self.option not in ("preset", "color_channels"):
            return f"augment.{self.option}=0"
        possible = [count for count in (1, 3) if self.option == "color_channels" and count <= channels]
        return (
            f"augment.color_channels={possible[-1]}"
            if possible
            else "preset=crop_only or none, which only move pixels"
        )


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, ``(key, image) -> image``, with its declared effects; a plain function may change all channels.

    Attributes:
        apply: the step.
        option: option of the preset that causes the effect; "" for steps that only move pixels, or map every
            channel on its own.
        value: value of that option.
        channels: function from an image's number of channels to the number of leading channels that change.
    """

    apply: Callable
    option: str = ""
    value: Any = None
    channels: Callable[[int], int] = int  # all

    def __call__(self, key, image):
        """Apply the step."""
        return self.apply(key, image)

    def touches(self, channels: int) -> list[Touch]:
        """Return the step's effects on an image with ``channels`` channels."""
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
        """Return the effect of a shifted box, which may show black beyond the image."""
        return [Touch("shift", self.shift, channels)] if self.shift else []

    def frame(self, height: int, width: int) -> np.ndarray:
        """Return the values that :meth:`box` needs for an image of this size."""
        return geometry.frame(height, width, area=self.area, ratio=self.ratio, sampler=self.sampler)

    def box(self, key, frame):
        """Return the box of a call with this key."""
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
        """Return no effect, since it only moves pixels."""
        return []

    def frame(self, height: int, width: int) -> np.ndarray:
        """Return the box of an image of this size."""
        box = geometry.center_box(height, width, (self.size, self.size), self.proportion)
        return np.array(box, np.float32)

    def box(self, key, frame):
        """Return ``frame``, which is the box."""
        return frame


class Chain:
    """Steps in sequence, ``(key, image) -> image``, each with its own key."""

    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, key, image):
        """Apply every step."""
        for step, step_key in zip(self.steps, self.keys(key), strict=True):
            image = step(step_key, image)
        return image

    def keys(self, key):
        """Derive the steps' keys; all None for evaluation, whose key is None."""
        return jax.random.split(key, len(self.steps)) if key is not None else [None] * len(self.steps)

    def touches(self, channels: int) -> list[Touch]:
        """Return the steps' effects on an image with ``channels`` channels."""
        touches = []
        for step in self.steps:
            if isinstance(step, Step | RandomCrop | CenterCrop | Chain):
                touches += step.touches(channels)
            elif step is not same:
                touches.append(Touch("preset", getattr(step, "__name__", repr(step)), channels))
        return touches

    @property
    def crop(self) -> int:
        """Index of the crop among the steps."""
        return next(i for i, step in enumerate(self.steps) if isinstance(step, RandomCrop | CenterCrop))

    def finish(self, key, image):
        """Apply the steps after the crop to an image that is already cropped."""
        for step, step_key in list(zip(self.steps, self.keys(key), strict=True))[self.crop + 1 :]:
            image = step(step_key, image)
        return image


@dataclasses.dataclass(frozen=True)
class Cut:
    """The views' crops on the host: boxes and resizing. Picklable.

    Attributes:
        crops: for each view its crop, the crop's index among the view's steps, and the number of steps.
        opencv: whether OpenCV resizes boxes of whole pixels without antialiasing; see :meth:`resize`.
    """

    crops: tuple[tuple[RandomCrop | CenterCrop, int, int], ...]
    opencv: bool = False

    @property
    def size(self) -> int:
        """Side of a view in pixels."""
        return self.crops[0][0].size

    @property
    def method(self) -> str:
        """Kernel, ``bilinear`` or ``bicubic``."""
        return self.crops[0][0].method

    @property
    def antialias(self) -> bool:
        """Return whether images are smoothed before they are made smaller."""
        return self.crops[0][0].antialias

    def resize(self, image: np.ndarray, box: Sequence[float], out: np.ndarray | None = None) -> np.ndarray:
        """Resize a box of a uint8 image [h, w, c] by :func:`geometry.crop_and_resize`, rounded.

        The weights are those of the device. OpenCV differs: its cubic kernel has a = -0.75, not -0.5, so views
        are sharper, and it repeats edge pixels beyond the box.

        Args:
            image: the image.
            box: top, left, height and width in pixels.
            out: contiguous uint8 array [size, size, c] for the result; None: a new one.

        Returns:
            The view [size, size, c] uint8, ``out`` if it is given.
        """
        top, left, height, width = (float(x) for x in box)
        image = image[_reach(top, height), _reach(left, width)]
        h, w, c = image.shape
        if out is None:
            out = np.empty((self.size, self.size, c), np.uint8)
        smooth = self.antialias and max(height, width) > self.size
        if self.opencv and not smooth and image.shape[:2] == (height, width):
            resized = opencv().resize(image, out.shape[:2], dst=out, interpolation=OPENCV[self.method])
            if resized is not out:  # OpenCV leaves out the axis of one channel
                out[...] = resized.reshape(out.shape)
            return out
        rows = _axis_weights(self.method, self.antialias, self.size, h, top % 1, height)
        columns = _axis_weights(self.method, self.antialias, self.size, w, left % 1, width)
        if resizer := resize.resizer():
            resize.resize(resizer, image, rows, columns, out)
        else:
            _sparse_resize(image, rows, columns, out)
        return out

    def boxes(self, seed: int, epoch: np.ndarray, id: np.ndarray, sizes: Sequence[tuple[int, int]]):
        """Draw boxes (top, left, height, width), float32 [B, W, 4], the same as on the device.

        Args:
            seed: random seed of the run.
            epoch: [B] epochs of the examples.
            id: [B] ids of the examples.
            sizes: B pairs (height, width) of the images.
        """
        frames = np.array([[crop.frame(*size) for crop, _, _ in self.crops] for size in sizes])
        if all(isinstance(crop, CenterCrop) for crop, _, _ in self.crops):
            return frames
        # An active mesh would compute on its devices.
        with jax.set_mesh(None), jax.default_device(_host()):
            return np.asarray(_draw(self, np.uint32(seed), np.int32(epoch), np.int32(id), frames))


OPENCV = {"bilinear": 1, "bicubic": 2}  # cv2.INTER_LINEAR, cv2.INTER_CUBIC


@functools.cache
def opencv():
    """Import OpenCV with one thread, since callers distribute the cores."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


@functools.lru_cache(
    256
)  # boxes of whole pixels have few sizes; an entry takes 8 kB, of a photograph's side 200 kB
def _axis_weights(
    method: str, antialias: bool, size: int, size_in: int, start: float, extent: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return an axis's input pixels of each output pixel, int32 [size, taps], and their weights, float32."""
    step = extent / size
    scale = max(step, 1.0) if antialias else 1.0
    reach = geometry.REACH[method] * scale
    centre = np.arange(0.5, size) * step + (start - 0.5)
    first = np.ceil(centre - reach).astype(np.int32)
    pixel = first[:, None] + np.arange(math.floor(2 * reach) + 1, dtype=np.int32)  # [size, taps]
    distance = np.abs((centre[:, None] - pixel) / scale)
    inside = (pixel > start - 1) & (pixel < start + extent) & (pixel >= 0) & (pixel < size_in)
    weights = geometry.KERNELS[method](distance.astype(np.float32), np) * inside
    weights /= weights.sum(-1, keepdims=True)
    return np.clip(pixel, 0, size_in - 1), weights


def _sparse_resize(image: np.ndarray, rows: tuple, columns: tuple, out: np.ndarray) -> None:
    """Do what :func:`resize.resize` does, in the same order of additions, by products of sparse matrices."""
    from scipy import sparse

    def matrix(axis: tuple, size_in: int):
        pixel, weights = axis
        size, taps = pixel.shape
        places = np.arange(0, size * taps + 1, taps, dtype=np.int32)
        return sparse.csr_array((weights.reshape(-1), pixel.reshape(-1), places), (size, size_in))

    (h, w, c), size = image.shape, len(out)
    half = matrix(rows, h) @ image.reshape(h, w * c).astype(np.float32)  # [size, w, c]
    view = matrix(columns, w) @ half.T.reshape(w, c * size)  # [size, c, size], columns in front
    view += np.float32(0.5)
    view = np.clip(view, 0, 255, out=view).astype(np.uint8)
    out[...] = view.reshape(size * c, size).T.reshape(size, size, c)


def _reach(start: float, extent: float) -> slice:
    """Return the range of pixels that a box touches."""
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
    """Return the views' crops for the host.

    Raises:
        ValueError: a step before the crop, or a crop that is shifted beyond the image.
    """
    for chain in chains:
        before, crop = chain.steps[: chain.crop], chain.steps[chain.crop]
        if any(step is not same for step in before) or crop.shift:
            raise ValueError(
                "data is streamed, so the host crops inside the image before all other steps: set"
                " augment.slant=0 and augment.shift=0, or data.stream=off."
            )
    return Cut(tuple((chain.steps[chain.crop], chain.crop, len(chain.steps)) for chain in chains))


def same(key, image):
    """Return the image unchanged."""
    return image
