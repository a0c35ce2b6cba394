"""Inputs of the checks: small batches with two decimals, short enough for a message."""

from collections.abc import Sequence

import numpy as np

from contrastive_jax.conformance.specs import LABELS, QUEUE, VIEWS, Spec

SMALL, MIDDLE = (3, 2), (6, 4)  # rows, width


def rows(number: int, width: int, seed: int, spread: float = 0.35) -> np.ndarray:
    """Return rows of similar direction and norm near 1, so that softmax does not saturate at tau 0.1."""
    draw = np.random.default_rng([number, width, seed])
    x = np.full((number, width), 1.0) / np.sqrt(width) + spread * draw.standard_normal((number, width))
    x *= draw.uniform(0.85, 1.15, (number, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    return np.round(x, 2)


def arrays(spec: Spec, size: Sequence[int], seed: int = 0, unit: bool = False) -> list[np.ndarray]:
    """Return the arrays of one call, for a batch of ``size`` (rows N, width D).

    Labels are int: [2N], see :func:`classes`, or [N] beside two views.
    """
    number, width = size
    if spec.kind == LABELS:
        found = [rows(2 * number, width, seed), classes(number)]
    else:
        found = [rows(number, width, seed), rows(number, width, seed + 1)]
        if spec.kind == QUEUE:
            found.append(rows(number + 2, width, seed + 2))
        if spec.kind == VIEWS:
            found.append(np.arange(number) // (2 if number > 2 else 1))
    return [to_unit(x) if unit and x.dtype.kind == "f" else x for x in found]


def classes(number: int) -> np.ndarray:
    """Return [2N] labels, two per class; if N >= 3, those of class 2 are replaced by 0 and 1."""
    labels = np.repeat(np.arange(number), 2)
    if number >= 3:
        labels[4], labels[5] = 0, 1
    return labels


def to_unit(x: np.ndarray) -> np.ndarray:
    """Scale rows to unit length in full precision."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def shown(given: Sequence[np.ndarray]) -> list:
    """Return arrays as lists for a message, with floats rounded to six significant digits."""
    six = np.vectorize(lambda x: float(f"{x:.6g}"), otypes=[float])
    return [six(x).tolist() if x.dtype.kind == "f" and x.size else x.tolist() for x in map(np.asarray, given)]
