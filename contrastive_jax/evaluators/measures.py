"""Evaluation metrics other than accuracy.

Like the protocols, these functions are found by name, take :class:`~.evaluation_data.EvalSpec` and return
``evaluate(subject)``, which returns named numbers, their protocol and settings.

Args:
  layer: layer whose features are evaluated: pooled, projection_1, ...
  images: number of test images, drawn at random; 0: all.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np

from contrastive_jax.evaluators import geometry as _geometry
from contrastive_jax.evaluators import mutual_information as _information
from contrastive_jax.evaluators import retrieval as _retrieval
from contrastive_jax.evaluators.evaluation_data import EvalSpec, EvaluationData, Seed, check_seed, left_out
from contrastive_jax.evaluators.features import NotFinite as _NotFinite
from contrastive_jax.kinds import Count, CountOrZero, Ge, Positive, checked

Evaluate = Callable[[EvaluationData], dict]


@checked()
def geometry(
    facts: EvalSpec,
    *,
    t: Positive = 2.0,
    self_pairs: bool = False,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    images: Literal[0] | Annotated[int, Ge(3)] = 10_000,
    seed: Seed = 0,
    layer: str = "pooled",
) -> Evaluate:
    """Alignment, uniformity, tolerance, semantic sensitivity S, intra-class distance, silhouette of test images.

    Features are L2-normalised. All metrics use clean test images, except ``alignment``, the mean squared
    distance between two views augmented as in pretraining. Definitions and sources are in
    :mod:`evaluators.geometry` (Wang & Isola, 2020; MACL, Huang et al., 2022, equations 5 to 7; Less can be
    more, Mitrovic et al., 2020, section 3).

    Args:
      t: t of uniformity, the inverse squared width of its kernel.
      self_pairs: whether uniformity, tolerance, ``same_class_cosine`` and S include each image's pair with itself.
      metric: distance of the silhouette: euclidean or cosine.
      seed: random seed of the images and their augmentation.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        features, labels, number = _test(subject, layer, images, seed)
        if labels.ndim == 2:
            return left_out("images have several labels; pairs of one class need one label per image")
        if not 2 <= len(np.unique(labels)) < len(labels):
            return left_out(
                "there are too few images: it needs at least two classes, and two images in a class"
            )
        seen = None if subject.unaugmented else subject.two_views(layer, number, seed)
        measured = _geometry.evaluate(
            features, labels, layer=subject.layer(layer), t=t, self_pairs=self_pairs, metric=metric
        )
        alignment = {} if seen is None else {"alignment": _geometry.alignment(seen[:, 0], seen[:, 1])}
        return alignment | measured

    return evaluate


@checked()
def rankme(facts: EvalSpec, *, images: CountOrZero = 0, seed: Seed = 0, layer: str = "pooled") -> Evaluate:
    """Effective rank of test embeddings from the entropy of singular values (RankMe, Garrido et al., 2023).

    ``rankme`` is exp of the entropy of the singular values divided by their sum, plus 1e-7 each as in the
    paper: the shares then sum to slightly more than 1, and a flat spectrum of 512 values has rank 512.1.
    Embeddings are neither centred nor normalised. ``participation_ratio`` is (tr C)^2 / tr(C^2) of their
    covariance C, like ``effective_rank`` of a batch: embeddings are centred, and strong directions have more
    weight. Except for the 1e-7, neither exceeds ``largest``.

    Args:
      seed: random seed of the images.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        features, _, _ = _test(subject, layer, images, seed)
        entropy_rank, participation = _geometry.effective_ranks(features)
        return {
            "rankme": entropy_rank,
            "participation_ratio": participation,
            "largest": float(min(features.shape)),
            "protocol": f"RankMe of {len(features)} test images, not centred, not normalised,"
            f" layer {subject.layer(layer)}",
            "settings": {"layer": subject.layer(layer), "images": len(features), "seed": seed},
        }

    return evaluate


@checked()
def lidar(
    facts: EvalSpec,
    *,
    views: Annotated[int, Ge(2)] = 50,
    images: Literal[0] | Annotated[int, Ge(2)] = 1_000,
    seed: Seed = 0,
    layer: str = "pooled",
) -> Evaluate:
    """Effective rank of variation between test images relative to augmentation (LiDAR, Thilak et al., 2024).

    Each image is a class of views that are augmented as in pretraining: see :func:`geometry.lidar`. Defaults
    are the paper's 1,000 images and 50 views. ``largest`` is the smaller of the features' width and the number
    of images minus one.

    Args:
      views: number of augmented views per image; an odd number is rounded up.
      seed: random seed of the images and their augmentation.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        if subject.unaugmented:
            return left_out(subject.unaugmented)
        number = subject.some(images, seed)
        pairs = [subject.two_views(layer, number, seed + i) for i in range((views + 1) // 2)]
        seen = np.concatenate(pairs, axis=1)
        if not np.isfinite(seen).all():
            raise _NotFinite("the features contain values that are not finite: the encoder has diverged.")
        return {
            "lidar": _geometry.lidar(seen),
            "largest": float(min(seen.shape[2], len(seen) - 1)),
            "protocol": f"LiDAR of {len(seen)} test images, {seen.shape[1]} views each as in the pretraining, layer"
            f" {subject.layer(layer)}",
            "settings": {
                "layer": subject.layer(layer), "images": len(seen), "views": seen.shape[1], "seed": seed,
            },
        }  # fmt: skip

    return evaluate


@checked()
def retrieval(facts: EvalSpec, *, images: CountOrZero = 0, seed: Seed = 0, layer: str = "pooled") -> Evaluate:
    """Recall@1, 5 and 10 and MAP@R of test images, each a query among all others, by cosine.

    See :func:`retrieval.retrieval` (Musgrave, Belongie and Lim, 2020).

    Args:
      seed: random seed of the images.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        features, labels, _ = _test(subject, layer, images, seed)
        if labels.ndim == 2:
            return left_out("images have several labels; neighbours of one class need one label per image")
        if len(features) < 11 or len(np.unique(labels)) == len(labels):
            return left_out("there are too few images: it needs at least 11, with two in a class")
        return _retrieval.retrieval(features, labels) | {
            "protocol": f"each of {len(features)} test images among the others, cosine, layer {subject.layer(layer)}",
            "settings": {"layer": subject.layer(layer), "images": len(features), "seed": seed},
        }

    return evaluate


@checked()
def mutual_information(
    facts: EvalSpec,
    *,
    pool: Literal[0] | Annotated[int, Ge(2)] = 0,
    batch_size: Annotated[int, Ge(2)] = 256,
    score: Literal["cosine", "dot"] = "cosine",
    temperature: Positive = 0.1,
    temperatures: tuple[Positive, ...] = (),
    images: Literal[0] | Annotated[int, Ge(2)] = 10_000,
    seed: Seed = 0,
    layer: str = "pooled",
) -> Evaluate:
    """Mutual information of two augmented views of an image, from mini-batches and from a large pool, in nats.

    ``large_pool`` is the InfoNCE estimate with the views of all other images as negatives, the paper's ground
    truth (FlatNCE, Chen et al., 2021, section 4, footnote 6); ``mini_batch`` is the InfoNCE estimate from
    batches. ``flat_nce``, ``donsker_varadhan`` and ``nwj`` are other estimates from the same batches; the first
    two are no bounds. ``largest`` and ``largest_mini_batch``, log(1 + K), are upper limits for any critic. See
    :mod:`evaluators.mutual_information`.

    Args:
      pool: number of second views in the large pool, drawn from all images; 0: all. If a query's own view is
        drawn, it is not a negative, so the query has one negative fewer; ``largest`` includes this.
      batch_size: number of pairs in a mini-batch.
      score: score of the critic: cosine or dot.
      temperature: temperature that scores are divided by.
      temperatures: candidate temperatures; the one with the largest ``large_pool`` estimate is used; (): use
          ``temperature``.
      seed: random seed of images, augmentation, pool and batches.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        if subject.unaugmented:
            return left_out(subject.unaugmented)
        number = subject.some(images, seed)
        if len(number) < 2:
            return left_out("there is one image only; a negative needs another")
        views = subject.two_views(layer, number, seed)
        query, key, size = views[:, 0], views[:, 1], min(batch_size, len(number))
        drawn = np.random.default_rng(seed).permutation(len(number))[: pool or None]
        candidates = dict(negatives=key[drawn], negatives_group=drawn)
        estimates = [
            _information.pool_estimate(query, key, score=score, temperature=tau, **candidates)
            for tau in temperatures or (temperature,)
        ]
        large = max(estimates, key=lambda estimate: estimate["info_nce"])
        tau = large["settings"]["temperature"]
        small = _information.batch_estimates(
            query, key, batch_size=size, score=score, temperature=tau, seed=seed
        )
        others = {name: value["mean"] for name, value in small["estimates"].items()}
        return {
            "large_pool": large["info_nce"],
            "large_pool_standard_error": large["standard_error"],
            "mini_batch": others.pop("info_nce"),
            "mini_batch_standard_error": small["estimates"]["info_nce"]["standard_error"],
            **others,
            "largest": large["largest"],
            "largest_mini_batch": float(np.log(size)),
            "protocol": f"mutual information of two augmented views of {len(number)} test images, {score} /"
            f" {tau:g}, pool of {len(drawn)}, batches of {size}, nats, layer {layer}",
            "settings": {
                "layer": layer, "images": len(number), "pool": len(drawn), "batch_size": size, "score": score,
                "temperature": tau, "temperatures": list(temperatures), "seed": seed,
            },
        }  # fmt: skip

    return evaluate


@checked()
def random_projections(
    facts: EvalSpec,
    *,
    directions: Count = 8,
    bins: Annotated[int, Ge(2)] = 40,
    images: CountOrZero = 0,
    seed: Seed = 0,
    layer: str = "pooled",
) -> Evaluate:
    """Histograms of test embeddings along random orthogonal directions, and their distance to normality.

    Projections of a uniform sphere are nearly normal. Embeddings are L2-normalised and multiplied by the root
    of their width, so that projections of a uniform sphere have variance 1. ``distance_to_standard_normal`` is
    the Wasserstein-1 distance to N(0, 1), averaged over directions; ``distance_to_normal`` is the same after
    standardizing each projection, so it measures shape only. ``histograms`` are shares of the images,
    [directions, bins] over ``edges``, -4 to 4; values outside are in the outermost bins.
    Source: Intriguing Properties (Chen et al., 2021, figure A.1).

    Args:
      directions: number of directions, at most the embedding's width.
      bins: number of bins of each histogram.
      seed: random seed of images and directions.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        features, _, _ = _test(subject, layer, images, seed)
        count = min(directions, features.shape[1])
        projected = _geometry.random_projections(features, count, seed)  # [n, directions]
        spread = projected.std(axis=0)
        shape = (projected - projected.mean(axis=0)) / np.where(spread > 0, spread, 1)
        edges = np.linspace(-4, 4, bins + 1)
        inside = np.clip(projected, -4, 4)
        histograms = [np.histogram(values, edges)[0] / len(values) for values in inside.T]
        return {
            "distance_to_standard_normal": float(np.mean(_geometry.distance_to_normal(projected))),
            "distance_to_normal": float(np.mean(_geometry.distance_to_normal(shape))),
            "mean": float(np.abs(projected.mean(axis=0)).mean()),
            "standard_deviation": float(spread.mean()),
            "edges": edges.tolist(),
            "histograms": np.array(histograms).tolist(),
            "protocol": f"{count} random orthogonal projections of {len(features)} test images, L2-normalised times"
            f" the root of the width, Wasserstein-1 distance to N(0, 1), layer {subject.layer(layer)}",
            "settings": {
                "layer": subject.layer(layer), "directions": count, "bins": bins, "images": len(features),
                "seed": seed,
            },
        }  # fmt: skip

    return evaluate


@checked()
def resolved_entropy(facts: EvalSpec, *, temperature: Positive = 0.1, layer: str = "pooled") -> Evaluate:
    """Similarity-sensitive entropy of the test embeddings, in nats (Leinster and Cobbold, 2012).

    See :func:`geometry.resolved_entropy`.

    Args:
        temperature: temperature that cosines are divided by; smaller values resolve finer differences.
    """
    facts.check_layer(layer)

    def evaluate(subject):
        rows, labels = subject.encoded(subject.test)
        known = labels if _geometry.shown_by_labels(subject.test) else None
        where = subject.layer(layer)
        return _geometry.resolved_entropy(rows[where], known, temperature=temperature, layer=where)

    return evaluate


# ------------------------------------------------------------------------------------------------ in common


def _test(
    subject: EvaluationData, layer: str, images: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return test images' features [n, F] float64, labels and positions."""
    rows, labels = subject.encoded(subject.test)
    features, number = rows[subject.layer(layer)].numpy(), subject.some(images, seed)
    if not np.isfinite(features).all():
        raise _NotFinite("the test features contain values that are not finite: the encoder has diverged.")
    return features[number].astype(np.float64), np.asarray(labels)[number], number
