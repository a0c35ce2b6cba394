"""Retrieval metrics of embeddings: recall@k and MAP@R."""

from collections.abc import Sequence

import numpy as np

from contrastive_jax.losses.geometry import directions

BLOCK = 256  # queries per block


def retrieval(features: np.ndarray, labels: np.ndarray, at: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """Compute recall@k and MAP@R of ``[n, F]`` embeddings, each a query among all others, by cosine.

    Recall@k is the share of queries with an image of their class among the k nearest. MAP@R (Musgrave, Belongie and
    Lim, 2020, section 3.2) is the mean over queries of ``sum_i P(i) r(i) / R`` over the R nearest: R is the
    number of other images of the query's class, r(i) is 1 if the i-th neighbour has that class, otherwise 0,
    and P(i) is the share of the class among the first i. Queries whose class has no other image are left out.
    Among equal cosines, the earlier image is nearer.

    Args:
        features: ``[n, F]``, n above the largest k.
        labels: ``[n]``, integers.
        at: values of k for recall@k.

    Returns:
        ``{"recall_at_1": ..., "map_at_r": ..., "queries": number of queries}``.
    """
    labels = np.asarray(labels)
    _, member, count = np.unique(labels, return_inverse=True, return_counts=True)
    wanted = count[member] - 1  # R
    queries = np.flatnonzero(wanted)
    unit = directions(np.asarray(features, np.float64))
    most = min(max(*at, int(wanted.max())), len(labels) - 1)
    found, precision = np.zeros((len(at), len(queries))), np.zeros(len(queries))
    for first in range(0, len(queries), BLOCK):
        rows = queries[first : first + BLOCK]
        cosine = unit[rows] @ unit.T
        cosine[np.arange(len(rows)), rows] = -np.inf
        same = labels[_nearest(cosine, most)] == labels[rows, None]  # [rows, most]
        part = slice(first, first + len(rows))
        for i, k in enumerate(at):
            found[i, part] = same[:, :k].any(axis=1)
        within = same & (np.arange(most) < wanted[rows, None])
        share = np.cumsum(same, axis=1) / np.arange(1, most + 1)
        precision[part] = (share * within).sum(axis=1) / wanted[rows]
    recalls = {f"recall_at_{k}": float(of.mean()) for k, of in zip(at, found, strict=True)}
    return {**recalls, "map_at_r": float(precision.mean()), "queries": len(queries)}


def _nearest(cosine: np.ndarray, most: int) -> np.ndarray:
    """Return the columns of each row's ``most`` largest entries, largest first, with ties in column order."""
    least = np.partition(cosine, -most, axis=1)[:, -most, None]
    kept = [np.flatnonzero(row) for row in cosine >= least]  # including ties with the last one
    ordered = [
        columns[np.argsort(-row[columns], kind="stable")] for row, columns in zip(cosine, kept, strict=True)
    ]
    return np.stack([columns[:most] for columns in ordered])
