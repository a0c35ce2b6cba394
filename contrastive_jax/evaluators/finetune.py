"""Training on labelled images: a linear classifier on the frozen encoder, or the whole network."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial

from contrastive_jax import augment, sharding
from contrastive_jax.evaluators import linear_probe, training
from contrastive_jax.evaluators.evaluation_data import EvaluationData, Pretrained, training_view
from contrastive_jax.evaluators.training import Plan
from contrastive_jax.types import Example


def frozen(
    subject: EvaluationData,
    plan: Plan,
    *,
    name: str,
    layer: str,
    crop_min: float,
    flip: float,
    crop: float | None,
) -> dict:
    """Evaluate a linear classifier on a frozen encoder, trained on random crops and flips of the images.

    The encoder uses its running statistics, and no gradient of it is computed. Options are those of
    :func:`finetuned`, the result is that of :func:`linear_probe.by_gradient`.
    """
    encoder, images = subject.pretrained, subject.train.images()
    plan = plan._replace(batch_size=batch_within(plan.batch_size, len(images)))
    feed = training.ViewsFeed(images, training_view(encoder, crop_min, flip), plan)
    test, test_labels = subject.encoded(subject.test, crop)
    labels = _labels(images)
    first = training.first_linear(test[layer].shape[1], linear_probe.class_count(labels), plan.seed)
    weights = (encoder.params, encoder.stats)
    with contextlib.closing(feed):
        fitted = training.fit(
            plan, feed, training.through(encoder.network.encode, layer), first, frozen=weights
        )
    outputs = training.linear_outputs(fitted.variables, test[layer])
    seen = _said(encoder, crop_min, flip)
    return linear_probe.outcome(
        outputs, test_labels, fitted, plan, name=name, augment=seen, crop=crop, layer=layer
    )


def finetuned(
    subject: EvaluationData,
    plan: Plan,
    *,
    name: str,
    fraction: float,
    crop_min: float,
    flip: float,
    crop: float | None,
) -> dict:
    """Train the encoder from the subject's weights with a new linear layer on "pooled", and evaluate both.

    Batch norm keeps using the statistics of each global batch. For an untrained subject this is supervised
    training from scratch with the same budget.

    Args:
        subject: row of the table; it must have an encoder.
        plan: training plan; the batch size is at most the number of images.
        name: name of the protocol.
        fraction: share of the labels of each class; ``plan.seed`` determines which.
        crop_min: smallest area of the random crop, as a share of the image.
        flip: probability of the horizontal flip.
        crop: side of the test's centre crop as a share of the largest centred square; None: as in pretraining.

    Returns:
        As :func:`linear_probe.by_gradient`, with ``labels``, the number of training images.
    """
    encoder, images = subject.pretrained, subject.train.images()
    if fraction < 1:
        images = images[linear_probe.balanced_share(_labels(images), fraction, plan.seed)]
    plan = plan._replace(batch_size=batch_within(plan.batch_size, len(images)))
    feed = training.ViewsFeed(images, training_view(encoder, crop_min, flip), plan)
    classes = linear_probe.class_count(_labels(subject.train.images()))
    variables = {
        "encoder": encoder.params["encoder"],
        "head": training.first_linear(_width(encoder, images.example), classes, plan.seed),
    }
    rest = tuple(
        {k: v for k, v in tree.items() if k != "encoder"} for tree in (encoder.params, encoder.stats)
    )
    with contextlib.closing(feed):
        fitted = training.fit(
            plan, feed, _whole(encoder.network.apply), variables, extra=encoder.stats["encoder"], frozen=rest
        )
    params, stats = rest[0] | {"encoder": fitted.variables["encoder"]}, rest[1] | {"encoder": fitted.extra}
    test, test_labels = subject.tuned(Partial(encoder.network.encode, params, stats), crop, "pooled")
    outputs = training.linear_outputs(fitted.variables["head"], test)
    what = f"whole network, {100 * fraction:g} % of the labels ({len(images)})"
    result = linear_probe.outcome(
        outputs, test_labels, fitted, plan,
        name=name, augment=_said(encoder, crop_min, flip), crop=crop, layer="pooled", what=what,
    )  # fmt: skip
    result["settings"] |= {"fraction": fraction, "crop_min": crop_min, "flip": flip}
    return result | {"labels": len(images)}


@functools.cache
def _whole(apply: Callable) -> Callable:
    """Return a function that computes logits of images and updates the encoder's batch-norm statistics."""

    def forward(variables, extra, rest, x):
        params, stats = (rest[0] | {"encoder": variables["encoder"]}, rest[1] | {"encoder": extra})
        outputs, stats = apply(params, stats, x[:, None], train=True)
        logits, _ = training.linear(variables["head"], (), (), outputs.features[:, 0])
        return logits, stats["encoder"]

    return forward


def batch_within(batch_size: int, images: int) -> int:
    """Return the largest batch size up to ``batch_size`` and ``images`` that the number of devices divides.

    Raises:
        ValueError: fewer images, or a smaller batch, than devices.
    """
    shared = min(batch_size, images) // sharding.devices() * sharding.devices()
    if not shared:
        raise ValueError(
            f"batch_size is {batch_size} with {images} labelled images; it must be at least the number"
            f" of devices, {sharding.devices()}."
        )
    return shared


def _width(encoder: Pretrained, example: Example) -> int:
    """Return the width F of the pooled features."""
    rows, view = sharding.devices(), augment.seen(encoder.augment, example)
    where = sharding.named(jax.sharding.get_mesh(), sharding.ROWS) if sharding.on_mesh() else None
    image = jax.ShapeDtypeStruct((rows, *view.shape), view.dtype, sharding=where)
    return jax.eval_shape(encoder.network.encode, encoder.params, encoder.stats, image)["pooled"].shape[1]


def _labels(split: Any) -> np.ndarray:
    return np.asarray(split.label)


def _said(encoder: Pretrained, crop_min: float, flip: float) -> str:
    if "size" not in encoder.augment:
        return "no augmentation"
    flips = f" and flips (p = {flip:g})" if flip else ""
    return f"random crops of at least {100 * crop_min:g} % of the area{flips}"
