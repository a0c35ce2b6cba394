"""Initial weights, drawn on the host; an array depends only on the seed and its own path."""

import math
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from contrastive_jax.types import PyTree

Path = tuple[str, ...]


def fan_in(path: Path, shape: tuple[int, ...]) -> float:
    """Return the standard deviation with which a layer keeps its input's variance: 1 / sqrt(fan-in)."""
    return math.prod(shape[:-1]) ** -0.5


def draw(
    seed: int,
    shapes: PyTree,
    *,
    deviation: Callable[[Path, tuple[int, ...]], float] = fan_in,
    zero: Callable[[Path], bool] = lambda path: False,
) -> PyTree:
    """Return initial arrays: normal kernels; scales and variances 1, or 0 by ``zero``; biases and means 0.

    Args:
      seed: random seed.
      shapes: tree of objects with a shape.
      deviation: (path, shape of a kernel) -> its standard deviation.
      zero: path of a scale or variance -> whether it starts at 0.

    Raises:
      ValueError: an array has another name, for which there is no initial value.
    """

    def value(keys: Any, leaf: Any) -> np.ndarray:
        path = tuple(key.key for key in keys)
        if path[-1] == "kernel":
            bits = np.random.Philox(key=[seed, zlib.crc32("/".join(path).encode())])
            normal = np.random.Generator(bits).standard_normal(leaf.shape, np.float32)
            return normal * np.float32(deviation(path, leaf.shape))
        if path[-1] not in ("scale", "var", "bias", "mean"):
            raise ValueError(
                f"the parameter {'/'.join(path)} has no initial value: its name is {path[-1]!r}; it"
                " must be kernel (normal), scale or var (1), bias or mean (0)."
            )
        one = path[-1] in ("scale", "var") and not zero(path)
        return (np.ones if one else np.zeros)(leaf.shape, np.float32)

    return jax.tree_util.tree_map_with_path(value, shapes)
