"""Geometry of an embedding: alignment, uniformity, concentration of classes, effective rank, resolved entropy.

Pairs are computed in blocks of rows, in float64, without an [n, n] array. Features are L2-normalised as in
the source. Papers seldom state whether an image counts as its own pair, so that is an option.
"""

import hashlib
from collections.abc import Iterator

import numpy as np

from contrastive_jax import data
from contrastive_jax.data.order import entropy
from contrastive_jax.evaluators import features
from contrastive_jax.evaluators.evaluation_data import LabelledSubset
from contrastive_jax.evaluators.features import Rows, check
from contrastive_jax.losses import geometry as definitions
from contrastive_jax.losses.geometry import directions

BLOCK = 512  # rows of pairs in memory at once


def alignment(first: np.ndarray, second: np.ndarray, *, gamma: float = 2.0) -> float:
    """Compute the mean ``||f(x) - g(x)||^gamma`` of two views ``[n, F]`` of the same images; best 0, worst 2^gamma.

    Source: Wang & Isola (2020); MACL (Huang et al., 2022), eq. 5.
    """
    first, second = _unit(first), _unit(second)
    if first.shape != second.shape:
        raise ValueError(
            f"first is {first.shape} and second is {second.shape}; they must be views of the same images."
        )
    return float(np.mean(np.linalg.norm(first - second, axis=1) ** gamma))


def uniformity(
    first: np.ndarray, second: np.ndarray | None = None, *, t: float = 2.0, self_pairs: bool = False
) -> float:
    """Return ``log mean exp(-t ||f(x) - g(y)||^2)`` over pairs of images; lower is more uniform.

    Args:
        first: f, ``[n, F]``.
        second: g, ``[n, F]``, of the same images in the same order; default: f.
        t: inverse squared width of the kernel.
        self_pairs: whether (x, x) is a pair.

    Source: Wang & Isola (2020), distinct pairs of one view; MACL, eq. 5 (all pairs of two views).
    """
    sums, count = [], 0
    for cosine, _, wanted in _pairs(first, second, None, self_pairs):
        sums.append(definitions.kernel_sums(2 - 2 * cosine, wanted, t))
        count += wanted.sum()
    return float(definitions.uniformity(np.concatenate(sums), count))


def tolerance(
    first: np.ndarray,
    labels: np.ndarray,
    second: np.ndarray | None = None,
    *,
    self_pairs: bool = False,
    same_class_only: bool = False,
) -> float:
    """Compute the mean ``f(x).g(y)`` over pairs, with 0 for pairs of different classes: in [-1, 1].

    Args:
        first: f, ``[n, F]``.
        labels: ``[n]``.
        second: g, ``[n, F]``; default: f.
        self_pairs: whether (x, x) is a pair.
        same_class_only: whether the mean is over pairs of the same class only, independent of the number of
            classes.

    Source: Wang & Liu (2021); MACL, eq. 6.
    """
    total, count = 0.0, 0
    for cosine, same, wanted in _pairs(first, second, labels, self_pairs):
        total += cosine[wanted & same].sum()
        count += (wanted & same).sum() if same_class_only else wanted.sum()
    return float(total / count) if count else float("nan")


def semantic_sensitivity(
    first: np.ndarray, labels: np.ndarray, second: np.ndarray | None = None, *, self_pairs: bool = False
) -> float:
    """Compute the mean ``exp(-(h - f(x).g(y))^2)``, h = 1 for pairs of one class, otherwise -1: in [e^-4, 1].

    Arguments as for :func:`tolerance`. Source: MACL, eq. 7.
    """
    total, count = 0.0, 0
    for cosine, same, wanted in _pairs(first, second, labels, self_pairs):
        total += np.exp(-((np.where(same, 1.0, -1.0) - cosine)[wanted] ** 2)).sum()
        count += wanted.sum()
    return float(total / count)


def intra_class_distance(
    features: np.ndarray, labels: np.ndarray, *, normalize: bool = True
) -> dict[int, float]:
    """Compute the mean Euclidean distance of each class's distinct pairs: label -> distance, nan for one image.

    ``normalize``: whether features are L2-normalised first. Source: Less can be more (Mitrovic et al., 2020),
    section 3.
    """
    features = _unit(features) if normalize else np.asarray(features, np.float64)
    distances = {}
    for label in np.unique(labels):
        members = features[np.asarray(labels) == label]
        squared = np.sum(members**2, axis=1)
        total = 0.0
        for start in range(0, len(members), BLOCK):
            rows = slice(start, start + BLOCK)
            distance = squared[rows, None] + squared - 2 * members[rows] @ members.T
            np.fill_diagonal(distance[:, start:], 0.0)
            total += np.sqrt(np.maximum(distance, 0.0)).sum()
        pairs = len(members) * (len(members) - 1)
        distances[int(label)] = float(total / pairs) if pairs else float("nan")
    return distances


def silhouette(
    features: np.ndarray, labels: np.ndarray, *, normalize: bool = True, metric: str = "euclidean"
) -> float:
    """Compute the mean silhouette ``(b - a) / max(a, b)`` of the classes with scikit-learn: in [-1, 1].

    ``metric``: "euclidean" or "cosine". Source: Rousseeuw (1987); Less can be more, section 3.
    """
    from sklearn.metrics import silhouette_score

    if metric not in ("euclidean", "cosine"):
        raise ValueError(f"metric is {metric!r}; it must be euclidean or cosine.")
    return float(silhouette_score(_unit(features) if normalize else features, labels, metric=metric))


def effective_ranks(features: np.ndarray, eps: float = 1e-7) -> tuple[float, float]:
    """Return the spectral-entropy rank of features ``[n, F]`` and the participation ratio of centred features.

    Computed in float64 from the smaller Gram matrix. ``eps`` is RankMe's, added to each share for the first
    rank.
    """
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(_gram(features)), 0.0))
    centred = _gram(features - np.mean(features, axis=0, dtype=np.float64))
    return float(definitions.spectral_entropy_rank(values, eps)), float(
        definitions.participation_ratio(centred)
    )


def lidar(views: np.ndarray, delta: float = 1e-4, eps: float = 1e-7) -> float:
    """Compute LiDAR, the effective rank of variation between images relative to that between views.

    Each image is a class of its augmented views. LiDAR is ``exp`` of the entropy of the normalised eigenvalues
    of ``S_w^(-1/2) S_b S_w^(-1/2)``: S_b is the covariance of the images' means, S_w that of the views about
    their means plus ``delta`` times the identity. Source: Thilak et al. (2024), equations 1 to 3.

    Args:
        views: ``[n, q, F]``, q >= 2 views of n >= 2 images.
        delta: ridge of S_w, 1e-4 in the paper.
        eps: constant added to each share, 1e-7 in the paper.
    """
    views = np.asarray(views, np.float64)
    means = views.mean(axis=1)
    centred, spread = means - means.mean(axis=0), (views - means[:, None]).reshape(-1, views.shape[2])
    within = spread.T @ spread / len(spread) + delta * np.eye(views.shape[2])
    values, vectors = np.linalg.eigh(within)
    whitened = centred @ vectors / np.sqrt(values)  # its Gram matrix has the eigenvalues, times n
    shares = np.maximum(np.linalg.eigvalsh(whitened.T @ whitened), 0.0)
    return float(definitions.spectral_entropy_rank(shares, eps))


def _gram(features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, np.float64)
    return features.T @ features if features.shape[0] >= features.shape[1] else features @ features.T


def random_projections(features: np.ndarray, directions: int, seed: int) -> np.ndarray:
    """Project features ``[n, F]`` of length sqrt(F) on random orthogonal directions: ``[n, directions]``."""
    features = _unit(features) * features.shape[1] ** 0.5
    gauss = np.random.default_rng(seed).standard_normal((features.shape[1], directions))
    return features @ np.linalg.qr(gauss)[0]


def distance_to_normal(values: np.ndarray) -> np.ndarray:
    """Compute each column's Wasserstein-1 distance to N(0, 1), ``[n, ...]`` samples against n quantiles."""
    from scipy.stats import norm

    quantiles = norm.ppf((np.arange(len(values)) + 0.5) / len(values))
    return np.abs(np.sort(values, axis=0) - quantiles.reshape(-1, *[1] * (values.ndim - 1))).mean(axis=0)


def evaluate(
    features: np.ndarray,
    labels: np.ndarray,
    second: np.ndarray | None = None,
    *,
    layer: str = "pooled",
    t: float = 2.0,
    self_pairs: bool = False,
    metric: str = "euclidean",
) -> dict:
    """Compute the measures of one set of images, with their protocol.

    Args:
        features: ``[n, F]``.
        labels: ``[n]``.
        second: ``[n, F]``, another view of the same images; adds ``alignment``. Other measures use ``features``
            only.
        layer: name of the features, for the protocol.
        t: as in :func:`uniformity`.
        self_pairs: whether an image is paired with itself.
        metric: as in :func:`silhouette`.
    """
    check(features, labels, features, labels)
    distances = intra_class_distance(features, labels)
    return {
        **({} if second is None else {"alignment": alignment(features, second)}),
        "uniformity": uniformity(features, t=t, self_pairs=self_pairs),
        "tolerance": tolerance(features, labels, self_pairs=self_pairs),
        "same_class_cosine": tolerance(features, labels, same_class_only=True, self_pairs=self_pairs),
        "semantic_sensitivity": semantic_sensitivity(features, labels, self_pairs=self_pairs),
        "intra_class_distance": float(np.nanmean(list(distances.values()))),
        "intra_class_distances": distances,
        "silhouette": silhouette(features, labels, metric=metric),
        "protocol": f"geometry, L2-normalised, {'all' if self_pairs else 'distinct'} pairs of one view, t={t:g}, "
        f"{metric} silhouette, {len(labels)} images, layer {layer}",
        "settings": {
            "layer": layer, "t": t, "self_pairs": self_pairs, "metric": metric, "images": len(labels),
        },
    }  # fmt: skip


def _unit(features: np.ndarray) -> np.ndarray:
    return np.asarray(definitions.directions(np.asarray(features, np.float64)))


def _pairs(first, second, labels, self_pairs: bool) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield blocks [b, n] of all pairs: cosines, masks of pairs of the same class and of counted pairs."""
    first = _unit(first)
    second = first if second is None else _unit(second)
    labels = np.zeros(len(first), int) if labels is None else np.asarray(labels)
    number = np.arange(len(first))
    for start in range(0, len(first), BLOCK):
        rows = slice(start, start + BLOCK)
        wanted = np.full((len(number[rows]), len(number)), True)
        if not self_pairs:
            wanted = number[rows, None] != number
        yield first[rows] @ second.T, labels[rows, None] == labels, wanted


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
    without = "" if known else ", without a floor: labels do not determine the image contents"
    return {
        "nats": nats,
        **known,
        "protocol": f"similarity-sensitive entropy of {len(points)} test images, cosine / {temperature:g}{without},"
        f" layer {layer}",
        "settings": {"temperature": temperature, "layer": layer},
    }


def shown_by_labels(part: LabelledSubset) -> bool:
    """Return whether images with equal labels are equal; False for streamed images, which are not compared."""
    images = part.images()
    first: dict[bytes, bytes] = {}
    if not isinstance(images, data.Split):
        return False
    for start in range(0, len(images), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(images)))
        for label, picture in zip(images.label[rows], images.pictures(rows), strict=True):
            seen = hashlib.blake2b(picture.tobytes()).digest()
            if first.setdefault(label.tobytes(), seen) != seen:
                return False
    return True
