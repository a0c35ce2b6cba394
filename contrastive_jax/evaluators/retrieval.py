"""Retrieval metrics of embeddings: recall@k and MAP@R within a set, recall@k between the arrays of pairs."""

from collections.abc import Sequence
from typing import Any

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


def cross_retrieval(
    first: np.ndarray,
    second: np.ndarray,
    first_item: np.ndarray,
    second_item: np.ndarray,
    group: np.ndarray,
    at: Sequence[int] = (1, 5, 10),
) -> dict[str, float]:
    """Compute recall@k between the two arrays of pairs, by cosine, both ways.

    Queries and candidates are the distinct arrays: an image with five captions is one query, whose candidates are all
    captions. Candidates are right if they are in a pair with the query, or in a pair of the same group. Recall@k is
    the share of queries with a right candidate among the k nearest; among equal cosines the earlier candidate is
    nearer. Chance is the expected recall@k of a random order: 1 - C(M - r, k) / C(M, k) for r right ones of M.

    Args:
        first, second: embeddings ``[n, D]`` of the pairs' arrays.
        first_item, second_item: ``[n]`` integers, equal for equal arrays.
        group: ``[n]`` integers.
        at: values of k; those that are not below the number of candidates are left out.

    Returns:
        ``{"to_second_at_1": recall of second arrays by first ones, "to_second_chance_at_1": ..., "to_first_at_1":
        ..., "first_items": number of distinct first arrays, "second_items": ...}``.
    """
    sides = []
    for features, item in ((first, first_item), (second, second_item)):
        _, rows, number = np.unique(item, return_index=True, return_inverse=True)
        sides.append((directions(np.asarray(features, np.float64)[rows]), number, len(rows)))
    (one, one_of, _), (other, other_of, _) = sides
    found: dict[str, float] = {}
    for name, queries, query_of, candidates, candidate_of in (
        ("to_second", one, one_of, other, other_of),
        ("to_first", other, other_of, one, one_of),
    ):
        rank, right = _ranks(queries, candidates, _members(query_of, group), _members(candidate_of, group))
        for k in (k for k in at if k < len(candidates)):
            found[f"{name}_at_{k}"] = float(np.mean(rank < k))
            wrong = len(candidates) - right[:, None] - np.arange(k)
            missed = np.prod(np.maximum(wrong, 0) / (len(candidates) - np.arange(k)), axis=1)
            found[f"{name}_chance_at_{k}"] = float(np.mean(1 - missed))
    return found | {"first_items": len(one), "second_items": len(other)}


def _members(item: np.ndarray, group: np.ndarray) -> Any:
    """Return the sparse matrix [items, groups] with an entry for each group of an item's pairs."""
    from scipy.sparse import csr_array

    _, group = np.unique(group, return_inverse=True)
    return csr_array((np.ones(len(item)), (item, group)))


def _ranks(
    queries: np.ndarray, candidates: np.ndarray, of_queries: Any, of_candidates: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return each query's number of candidates before the nearest right one, and its number of right ones."""
    ranks, counts = [], []
    for start in range(0, len(queries), BLOCK):
        rows = slice(start, start + BLOCK)
        cosine = queries[rows] @ candidates.T
        right = (of_queries[rows] @ of_candidates.T).toarray() > 0
        among = np.where(right, cosine, -np.inf)
        place = np.argmax(among, axis=1)[:, None]
        best = np.take_along_axis(among, place, axis=1)
        before = (cosine > best) | ((cosine == best) & (np.arange(len(candidates)) < place))
        ranks.append(before.sum(axis=1))
        counts.append(right.sum(axis=1))
    return np.concatenate(ranks), np.concatenate(counts)
