"""Inputs of the checks: small batches with numbers of two decimals, which a message can print."""

from collections.abc import Sequence

import numpy as np

from contrastive_jax.conformance.specs import LABELS, QUEUE, VIEWS, Spec

SMALL, MIDDLE = (3, 2), (6, 4)  # rows, width


def rows(number: int, width: int, seed: int, spread: float = 0.35) -> np.ndarray:
    """Return rows near one direction, of norms near one: no softmax of their cosines is saturated at tau 0.1."""
    draw = np.random.default_rng([number, width, seed])
    x = np.full((number, width), 1.0) / np.sqrt(width) + spread * draw.standard_normal((number, width))
    x *= draw.uniform(0.85, 1.15, (number, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    return np.round(x, 2)


def arrays(spec: Spec, size: Sequence[int], seed: int = 0, unit: bool = False) -> list[np.ndarray]:
    """Return the arrays of one call, for a batch of ``size`` (rows N, width D).

    Labels come as [2N] int, two rows a class, of which the first classes have more.
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
    """Return [2N] labels; from three classes on, the first two have three rows and the third none."""
    labels = np.repeat(np.arange(number), 2)
    if number >= 3:
        labels[4], labels[5] = 0, 1
    return labels


def to_unit(x: np.ndarray) -> np.ndarray:
    """Return rows of unit length, of full precision."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def shown(given: Sequence[np.ndarray]) -> list:
    """Return arrays as lists, rounded for a message where that changes nothing that float32 holds."""
    return [np.asarray(x).tolist() if x.dtype.kind != "f" else np.round(x, 6).tolist() for x in given]
