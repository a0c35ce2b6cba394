"""Measures of test embeddings, and of what two views say of each other: columns that give no accuracy.

As the protocols they are found by their name, take :class:`~.evaluation_data.EvalSpec` and give
``evaluate(subject)``; what that returns are numbers with clear names, their protocol and settings.

Args:
  layer: layer whose features are evaluated: pooled, projection_1, ...
  images: test images that are read, drawn at random; 0: all.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np

from contrastive_jax.evaluators import geometry as _geometry
from contrastive_jax.evaluators import mutual_information as _information
from contrastive_jax.evaluators import resolved as _resolved
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

    Features are L2-normalised, everything is over the clean test images, but for ``alignment``, which is the mean
    squared distance of two views augmented as in the pretraining. Each measure is of its source: see
    :mod:`evaluators.geometry` (Wang & Isola, 2020; MACL, Huang et al., 2022, equations 5 to 7; Less can be more,
    Mitrovic et al., 2020, section 3).

    Args:
      t: of uniformity: the kernel's inverse squared width.
      self_pairs: whether an image counts as its own pair.
      metric: of the silhouette: euclidean or cosine.
      seed: of the choice of images and of the augmentation.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        features, labels, number = _test(subject, layer, images, seed)
        if labels.ndim == 2:
            return left_out("pairs of one class need one label an image")
        if not 2 <= len(np.unique(labels)) < len(labels):
            return left_out("the images need at least two classes, and a class at least two images")
        seen = None if subject.encoder is None else subject.two_views(layer, number, seed)
        measured = _geometry.evaluate(
            features, labels, layer=subject.layer(layer), t=t, self_pairs=self_pairs, metric=metric
        )
        alignment = {} if seen is None else {"alignment": _geometry.alignment(seen[:, 0], seen[:, 1])}
        return alignment | measured

    return evaluate


@checked()
def rankme(facts: EvalSpec, *, images: CountOrZero = 0, seed: Seed = 0, layer: str = "pooled") -> Evaluate:
    """Effective rank of the test embeddings by the entropy of their singular values (RankMe, Garrido et al., 2023).

    ``rankme`` is exp of that entropy, the values over their sum, plus 1e-7 as in the paper: with it the shares sum
    to a little more than 1, and a flat spectrum of 512 comes out as 512.1. Embeddings are neither centred nor
    normalised. ``participation_ratio`` is (tr C)^2 / tr(C^2) of their covariance C, what
    ``effective_rank`` says of a batch: it takes the mean off and squares the values twice, so that strong
    directions count for more. But for the 1e-7, neither exceeds ``largest``.

    Args:
      seed: of the choice of images.
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
    """Effective rank of what tells test images apart from what augmentation changes (LiDAR, Thilak et al., 2024).

    Each image is a class of its own, of views augmented as in the pretraining: see :func:`geometry.lidar`. The paper
    draws 1,000 images and 50 views, as this does by default; ``largest`` is the least of the features' width and the
    number of images less one.

    Args:
      views: augmented views of an image; an odd number is rounded up.
      seed: of the choice of images and of the augmentation.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        if subject.encoder is None:
            return left_out("raw pixels have no augmented views of one encoder")
        number = subject.some(images, seed)
        pairs = [subject.two_views(layer, number, seed + i) for i in range((views + 1) // 2)]
        seen = np.concatenate(pairs, axis=1)
        if not np.isfinite(seen).all():
            raise _NotFinite("the features hold values that are not finite: the encoder has diverged.")
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
      seed: of the choice of images.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        features, labels, _ = _test(subject, layer, images, seed)
        if labels.ndim == 2:
            return left_out("neighbours of one class need one label an image")
        if len(features) < 11 or len(np.unique(labels)) == len(labels):
            return left_out("it needs at least 11 images, and a class with two")
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
    """The mutual information of two augmented views of an image, by a mini-batch and by a large pool, in nats.

    ``large_pool`` is the InfoNCE estimate against the views of all other images, which the paper takes for the truth
    (FlatNCE, Chen et al., 2021, section 4, footnote 6), ``mini_batch`` what batches of the size of a training
    step's say; ``flat_nce``, ``donsker_varadhan`` and ``nwj`` are other estimates by the same batches, of which the
    first two are no bounds. ``largest`` and ``largest_mini_batch``, log(1 + K), are what no critic exceeds. See
    :mod:`evaluators.mutual_information`.

    Args:
      pool: second views in the large pool, drawn from all images; 0: all of them. A query's own is not its
        negative: where it was drawn, the query has one negative fewer, and ``largest`` counts that.
      batch_size: pairs in a mini-batch.
      score: the critic: cosine or dot, over the temperature.
      temperature: what the scores are divided by.
      temperatures: the one that makes large_pool largest is taken for everything; empty: temperature.
      seed: of the choice of images, of the augmentation, the pool and the batches.
    """
    facts.check_layer(layer)
    check_seed(seed)

    def evaluate(subject):
        if subject.encoder is None:
            return left_out("pixels are not augmented")
        number = subject.some(images, seed)
        if len(number) < 2:
            return left_out("a query needs another image for its negative")
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
    """Histograms of the test embeddings along random orthogonal directions, and their distance to a normal one.

    Source: Intriguing Properties (Chen et al., 2021, figure A.1). A uniform sphere has nearly normal ones.
    Embeddings are L2-normalised and multiplied by the root of their width, so that the uniform sphere projects to a
    variance of 1. ``distance_to_standard_normal`` is the Wasserstein-1 distance to N(0, 1), the mean over the
    directions; ``distance_to_normal`` the same once each projection has its own mean and deviation taken out: shape
    alone. ``histograms`` are shares of the images, [directions, bins] over ``edges``, -4 to 4; what lies outside is
    in the outermost bins.

    Args:
      directions: how many, at most the embedding's width.
      bins: of each histogram.
      seed: of the choice of images and of the directions.
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
    """Measure how many nats of what test images show their embeddings tell apart (Leinster and Cobbold, 2012).

    See :func:`resolved.resolved_entropy`.

    Args:
        temperature: what cosines are divided by; the smaller, the finer.
    """
    facts.check_layer(layer)

    def evaluate(subject):
        rows, labels = subject.encoded(subject.test)
        known = labels if _resolved.shown_by_labels(subject.test) else None
        where = subject.layer(layer)
        return _resolved.resolved_entropy(rows[where], known, temperature=temperature, layer=where)

    return evaluate


# ------------------------------------------------------------------------------------------------ in common


def _test(
    subject: EvaluationData, layer: str, images: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features [n, F] float64 and labels of test images, and their positions."""
    rows, labels = subject.encoded(subject.test)
    features, number = rows[subject.layer(layer)].numpy(), subject.some(images, seed)
    if not np.isfinite(features).all():
        raise _NotFinite("the test features hold values that are not finite: the encoder has diverged.")
    return features[number].astype(np.float64), np.asarray(labels)[number], number
