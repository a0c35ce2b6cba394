"""How much of what there is to tell apart an embedding tells apart: entropy at a resolution."""

import numpy as np

from contrastive_jax.evaluators import features
from contrastive_jax.evaluators.features import Rows

CHUNK = 1024  # rows whose similarities with all others are held at once


def resolved_entropy(
    test_features: np.ndarray | Rows, test_labels: np.ndarray, *, temperature: float, layer: str
) -> dict:
    """Similarity-sensitive entropy of embeddings, in nats (Leinster and Cobbold, 2012, of order 1).

    ``-mean_i log mean_j exp((s_ij - 1) / tau)`` with cosines s: what InfoNCE's estimate with every image for its own
    positive says of their entropy. Images that coincide count as one, those further apart than tau's reach as
    different; so it is at most the entropy of the embeddings as a discrete variable, and that at most the one of
    what the images show: the floor here, of the labels' rows.

    Args:
        test_features: ``[m, F]``.
        test_labels: ``[m]``, or ``[m, C]``: what an image shows.
        temperature: tau.
        layer: name of the features, for the protocol.

    Returns:
        ``{"nats", "floor", "recovered", "protocol", "settings"}``; ``recovered`` is nats over floor, in [0, 1], 0
        where the floor is.
    """
    points = np.asarray(features.host(test_features), np.float64)
    points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    found = []
    for first in range(0, len(points), CHUNK):
        kernel = np.exp((np.minimum(points[first : first + CHUNK] @ points.T, 1.0) - 1.0) / temperature)
        found.append(-np.log(kernel.mean(axis=1)))
    nats, floor = float(np.concatenate(found).mean()), entropy_of_rows(test_labels)
    return {
        "nats": nats,
        "floor": floor,
        "recovered": nats / floor if floor else 0.0,
        "protocol": f"similarity-sensitive entropy of {len(points)} test images, cosine / {temperature:g},"
        f" layer {layer}",
        "settings": {"temperature": temperature, "layer": layer},
    }


def entropy_of_rows(labels: np.ndarray) -> float:
    """Empirical entropy of labels ``[m]`` or ``[m, C]``, in nats."""
    share = np.unique(labels, axis=0, return_counts=True)[1] / len(labels)
    return float(-np.sum(share * np.log(share)))
