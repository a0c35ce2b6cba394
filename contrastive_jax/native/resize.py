"""Resizing of uint8 images on the host by ``resize.cc``, compiled at first use, without XLA."""

import ctypes
import functools
import multiprocessing
import pathlib
import subprocess
import threading

import numpy as np

from contrastive_jax.native import library
from contrastive_jax.system import console

SOURCE = pathlib.Path(__file__).with_name("resize.cc")
FLAGS = (*library.COMMON_FLAGS, "-ffp-contract=off")
_ONCE = threading.Lock()
_scratch = threading.local()


def resizer():
    """Return ``resize.cc``'s function, or None if kernels are off or there is no compiler (one line)."""
    if not library.check_switch():
        return None
    with _ONCE:
        return _loaded()


@functools.cache
def _loaded():
    try:
        return library.built("resize", [SOURCE], FLAGS, _open)
    except (OSError, ValueError, subprocess.SubprocessError) as error:  # ValueError: of CXX
        if multiprocessing.parent_process() is None:  # which also speaks for its workers
            console.warn(
                f"resizing is not compiled ({library.reason(error)}); SciPy's slower products are used."
            )
        return None


def _open(path: pathlib.Path):
    try:
        function = ctypes.CDLL(str(path)).contrastive_resize
    except AttributeError:
        raise OSError(f"{path} has no function contrastive_resize") from None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.restype = None
    axis = (pointer, pointer, number)
    function.argtypes = [pointer, number, number, number, number, *axis, *axis, pointer, pointer]
    return function


def resize(function, image: np.ndarray, rows: tuple, columns: tuple, out: np.ndarray) -> None:
    """Resize an image by the weights of its rows and columns.

    Args:
      function: the result of :func:`resizer`.
      image: uint8 ``[h, w, c]``, any part of an array whose pixels are adjacent in memory.
      rows: for each of ``size`` rows of the result, ``[size, taps]`` int32 rows of the image, below h, and their
        float32 weights.
      columns: the same of columns, below w.
      out: uint8 ``[size, size, c]``, contiguous, written.

    Raises:
      ValueError: the image or ``out`` is not as described.
    """
    _, width, channels = image.shape
    if out.shape != (len(out), len(out), channels) or not out.flags.c_contiguous:
        raise ValueError(f"an image with {channels} channels cannot be resized into an array {out.shape}")
    if {image.dtype, out.dtype} != {np.dtype(np.uint8)}:
        raise ValueError(f"an image of {image.dtype} cannot be resized into {out.dtype}; both must be uint8")
    if image.strides[1] != channels or channels > 1 and image.strides[2] != 1:
        image = np.ascontiguousarray(image)
    size = len(out)
    need = 8 * (max(width, size) * channels + 1)
    if getattr(_scratch, "floats", np.empty(0)).size < need:
        _scratch.floats = np.empty(need, np.float32)
    weights = [x for axis in (rows, columns) for x in (*(a.ctypes.data for a in axis), axis[0].shape[1])]
    function(
        image.ctypes.data, image.strides[0], width, channels, size, *weights,
        _scratch.floats.ctypes.data, out.ctypes.data,
    )  # fmt: skip
