"""Similarity-sensitive entropy of embeddings."""

import hashlib

import numpy as np

from contrastive_jax import data
from contrastive_jax.data.philox import entropy
from contrastive_jax.evaluators import features
from contrastive_jax.evaluators.evaluation_data import LabelledSubset
from contrastive_jax.evaluators.features import Rows
from contrastive_jax.losses.geometry import directions

CHUNK = 1024  # rows whose similarities with all others are in memory at once


def resolved_entropy(
    test_features: np.ndarray | Rows,
    test_labels: np.ndarray | None,
    *,
    temperature: float,
    layer: str,
) -> dict:
    """Compute the similarity-sensitive entropy of embeddings, in nats (Leinster and Cobbold, 2012, of order 1).

    ``-mean_i log mean_j exp((s_ij - 1) / tau)`` with cosines s: InfoNCE's estimate with every image as its own
    positive. Images that coincide count as one, images further apart than the scale of tau as different. So it
    is at most the entropy of the embeddings as a discrete variable, which is at most the entropy of the image
    contents. If labels determine the contents (``binary``; see :func:`shown_by_labels`), the latter is the
    entropy of the rows of labels, ``floor``. Otherwise it is unknown, at most log m.

    Args:
        test_features: ``[m, F]``.
        test_labels: ``[m]``, or ``[m, C]``, if they determine the image contents, otherwise None.
        temperature: tau.
        layer: name of the features, for the protocol.

    Returns:
        ``{"nats", "floor", "recovered", "protocol", "settings"}``; ``recovered`` is nats / floor, in [0, 1], 0
        for a floor of 0. Without labels, ``floor`` and ``recovered`` are missing, as stated in the protocol.
    """
    points = directions(np.asarray(features.host(test_features), np.float64))
    entropies = []
    for first in range(0, len(points), CHUNK):
        kernel = np.exp((np.minimum(points[first : first + CHUNK] @ points.T, 1.0) - 1.0) / temperature)
        entropies.append(-np.log(kernel.mean(axis=1)))
    nats, known = float(np.concatenate(entropies).mean()), {}
    if test_labels is not None:
        floor = entropy(test_labels)
        known = {"floor": floor, "recovered": nats / floor if floor else 0.0}
    without = "" if known else ", without a floor: labels do not say all that these images show"
    return {
        "nats": nats,
        **known,
        "protocol": f"similarity-sensitive entropy of {len(points)} test images, cosine / {temperature:g}{without},"
        f" layer {layer}",
        "settings": {"temperature": temperature, "layer": layer},
    }


def shown_by_labels(part: LabelledSubset) -> bool:
    """Return whether images with equal labels are equal; False for streamed images, which are not compared."""
    images, first = part.images(), {}
    if not isinstance(images, data.Split):
        return False
    for start in range(0, len(images), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(images)))
        for label, picture in zip(images.label[rows], images.pictures(rows), strict=True):
            seen = hashlib.blake2b(picture.tobytes()).digest()
            if first.setdefault(label.tobytes(), seen) != seen:
                return False
    return True
