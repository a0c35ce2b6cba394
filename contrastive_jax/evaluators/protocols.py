"""Evaluation protocols of published papers, functions of this module that are found by name.

A protocol takes :class:`~.evaluation_data.EvalSpec` and its options, raises ValueError for invalid options, and
returns ``evaluate(subject) -> {"top1", "mean_per_class", "protocol", "settings", ...}`` (for multi-label sets
``map_11_point`` and ``mean_average_precision``), or ``{"left_out": why}``. The options are those of a column of
the config's ``evaluators``; defaults are the source's.

Protocols that train by gradient are rows of ``PROTOCOLS``, as differences from SGD with Nesterov momentum 0.9,
100 epochs, batch 512, learning rate 0.1 x batch / 256, cosine without warm-up, no weight decay.

Args:
  layer: layer whose features are evaluated: pooled, projection_1, ...
  seed: random seed of order, crops, initial weights and draws; -1: the run's seed.
  optimizer: optimizer of the classifier: sgd or adam.
  learning_rate: learning rate; for 256 images if ``scaling`` is linear.
  scaling: linear multiplies the learning rate by batch_size / 256; none leaves it unchanged.
  learning_rates: candidate learning rates, chosen on a held-out tenth of the training images; cached features
    only; (): use ``learning_rate``.
  schedule: learning-rate schedule without warm-up: cosine, step (times 0.1 at 60 % and 80 %) or constant.
  momentum: momentum of SGD.
  nesterov: whether the momentum is Nesterov's.
  weight_decay: L2 coefficient: this times the weights is added to the gradient.
  batch_size: batch size of the classifier's training, at most the number of training images.
  epochs: number of epochs.
  augment: True trains on random crops and flips through the frozen encoder, as the source does; False trains on
    cached features of clean images, which is much faster.
  crop_min: smallest area of a random crop, as a share of the image.
  flip: probability of a horizontal flip; use 0 for characters.
  crop: side of the centre crop of clean images as a share of the largest centred square; 0: as in pretraining.
  tolerance: training stops when the loss falls by less than this share; 0 trains to the last epoch.
  patience: number of consecutive epochs below ``tolerance``.
  standardize: whether features are standardized to mean 0 and variance 1 over the training images.
  fraction: share of labelled training images, the same for every class.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from contrastive_jax.evaluators import finetune, linear_probe
from contrastive_jax.evaluators import knn as _knn
from contrastive_jax.evaluators.evaluation_data import (
    EvalSpec,
    EvaluationData,
    Seed,
    check_seed,
    known_groups,
    left_out,
)
from contrastive_jax.evaluators.training import Plan
from contrastive_jax.kinds import (
    Count,
    CountOrZero,
    Fraction,
    NonNegative,
    Positive,
    PositiveFraction,
    checked,
)
from contrastive_jax.lookup import options_of, variant

Evaluate = Callable[[EvaluationData], dict]
ONE_CLASS = "all labelled training images have the same class"


@checked()
def knn(
    facts: EvalSpec,
    *,
    k: Count = 10,
    temperature: NonNegative = 0.0,
    standardize: bool = False,
    layer: str = "pooled",
) -> Evaluate:
    """Weighted nearest neighbours (Wu et al., 2018, section 3.4): see :func:`knn.evaluate`.

    The default is k = 10 without weights. MoCo's CIFAR demo uses ``k=200, temperature=0.1``; Wu et al. use
    0.07.

    Args:
      facts: facts about the data and encoder that are known before features are computed.
      k: number of neighbours that vote.
      temperature: T in a neighbour's weight exp(cosine / T); 0: all neighbours have equal weight.
    """
    facts.check_layer(layer)
    facts.check_count("k", k)
    if _one_class(facts):
        return _leave_out(ONE_CLASS)

    def evaluate(subject):
        options = dict(k=k, temperature=temperature, standardize=standardize, layer=subject.layer(layer))
        if subject.train.rows is not None:
            options["bank"] = f"all clean training images with labels, {len(subject.train):,}"
        return _knn.evaluate(*subject.arrays(layer), **options)

    return evaluate


@checked()
def lbfgs(
    facts: EvalSpec,
    *,
    C: Positive = 1.0,
    Cs: tuple[Positive, ...] = (),
    labels_per_class: CountOrZero = 0,
    draws: Count = 20,
    seed: Seed = 0,
    tolerance: Positive = 1e-5,
    max_iterations: Count = 10_000,
    layer: str = "pooled",
) -> Evaluate:
    """Logistic regression at its optimum: see :func:`linear_probe.lbfgs`.

    ``Cs`` chooses C on held-out training images (SimCLR, Chen et al., 2020, appendix B.8.1; Kornblith et al.,
    2019); ``labels_per_class`` trains on few labels.

    Args:
      facts: facts about the data and encoder that are known before features are computed.
      C: inverse strength of the l2 penalty.
      Cs: candidates for C, chosen on a held-out tenth of the training images; not with ``labels_per_class``;
          (): use ``C``.
      labels_per_class: number of training labels per class; 0: all.
      draws: number of random label subsets; scores are averaged over them.
      tolerance: largest entry of the gradient at which the fit counts as converged.
      max_iterations: maximum number of iterations of one fit.
    """
    facts.check_layer(layer)
    check_seed(seed)
    options = dict(
        C=C, Cs=tuple(Cs), labels_per_class=labels_per_class, draws=draws,
        tolerance=tolerance, max_iterations=max_iterations,
    )  # fmt: skip
    if labels_per_class and facts.several:
        return _leave_out("images have several labels; labels_per_class needs one label per image")
    if _one_class(facts):
        return _leave_out(ONE_CLASS)
    linear_probe.check_lbfgs(facts.labels, **options)
    facts.check_count("labels_per_class", labels_per_class)

    def evaluate(subject):
        arrays = subject.arrays(layer)
        return linear_probe.lbfgs(
            *arrays, **options, seed=seed, layer=subject.layer(layer), groups=known_groups(subject.train)
        )

    return evaluate


# ------------------------------------------------------------------------------------------------ by gradient


def _linear(
    facts: EvalSpec,
    *,
    title: str,
    learning_rates: tuple[Positive, ...] = (),
    standardize: bool = False,
    augment: bool = False,
    crop_min: PositiveFraction = 0.08,
    flip: Fraction = 0.5,
    crop: Fraction = 0.0,
    layer: str = "pooled",
    **options: Any,
) -> Evaluate:
    plan, learning_rates = Plan(**options).check(), tuple(learning_rates)
    facts.check_layer(layer)
    if augment and (standardize or learning_rates):
        raise ValueError(
            "augment is True; it must be False with standardize or learning_rates, which need cached"
            " features."
        )
    if _one_class(facts):
        return _leave_out(ONE_CLASS)

    def evaluate(subject):
        if augment and subject.encoder is None:
            return left_out("raw pixels have no encoder to train through")
        if augment:
            return finetune.frozen(
                subject, plan, name=title, layer=layer, crop_min=crop_min, flip=flip, crop=crop or None
            )
        train, labels, test, test_labels = subject.arrays(layer, crop or None)
        within = plan._replace(batch_size=min(plan.batch_size, len(labels)))
        linear_probe.check(train, labels, test, test_labels)
        return linear_probe.by_gradient(
            train, labels, test, test_labels, within, name=title, standardize=standardize,
            learning_rates=learning_rates, layer=subject.layer(layer), crop=crop or None,
            groups=known_groups(subject.train),
        )  # fmt: skip

    return evaluate


def _finetune(
    facts: EvalSpec,
    *,
    title: str,
    fraction: PositiveFraction = 1.0,
    crop_min: PositiveFraction = 0.08,
    flip: Fraction = 0.5,
    crop: Fraction = 0.0,
    **options: Any,
) -> Evaluate:
    plan = Plan(**options).check()
    if fraction < 1 and facts.several:
        return _leave_out("images have several labels; a class-balanced fraction needs one label per image")
    if _one_class(facts):
        return _leave_out(ONE_CLASS)

    def evaluate(subject):
        if subject.encoder is None:
            return left_out("raw pixels have no network to train")
        return finetune.finetuned(
            subject, plan, name=title, fraction=fraction, crop_min=crop_min, flip=flip, crop=crop or None
        )

    return evaluate


def _one_class(facts: EvalSpec) -> bool:
    labels = facts.labels
    return labels is not None and labels.ndim == 1 and len(labels) > 0 and bool(np.ptp(labels) == 0)


def _leave_out(why: str) -> Evaluate:
    return lambda subject: left_out(why)


# ------------------------------------------------------------------------------------------------ the table


class Protocol(NamedTuple):
    """A published protocol: title of its results, source, options and differing defaults."""

    title: str
    source: str
    options: tuple[str, ...]
    differs: Mapping[str, Any]  # values that differ from the defaults; fixed if not among the options
    build: Callable[..., Evaluate] = _linear


PLAN = {name: p.replace(kind=p.KEYWORD_ONLY) for name, p in inspect.signature(Plan).parameters.items()}
KNOWN = {
    build: {n: p for n, p in (PLAN | options_of(build)).items() if n != "title"}
    for build in (_linear, _finetune)
}
CLASSIFIER = ("learning_rate", "batch_size", "epochs", "augment", "crop_min", "flip", "seed", "layer")
CONVERGED = (*CLASSIFIER, "tolerance", "patience")
TRANSFER = tuple(name for name in (*CONVERGED, "crop") if name not in ("augment", "crop_min", "flip"))
FINETUNING = ("fraction", "learning_rate", "batch_size", "epochs", "crop_min", "flip", "seed")
ADAM = {
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "scaling": "none",
    "schedule": "constant",
    "nesterov": False,
}
TO_CONVERGENCE = ADAM | {"epochs": 500, "tolerance": 1e-3}

PROTOCOLS = {
    "sgd": Protocol(
        "",
        "A linear classifier with any of these options: see :class:`training.Plan`.",
        tuple(KNOWN[_linear]),
        {},
    ),
    "simclr": Protocol(
        "SimCLR's",
        "SimCLR's linear evaluation (Chen et al., 2020, appendix B.6), as in its code for CIFAR-10. On"
        " ImageNet: ``batch_size=4096, epochs=90, weight_decay=1e-6``.",
        (*CLASSIFIER, "weight_decay"),
        {"augment": True},
    ),
    "moco": Protocol(
        "MoCo's",
        (
            "Linear evaluation of MoCo and MoCo v2 (He et al., 2020, section 4.1; ``main_lincls.py``), for"
            " ImageNet."
        ),
        CLASSIFIER,
        {"learning_rate": 30.0, "schedule": "step", "nesterov": False, "batch_size": 256, "augment": True},
    ),
    "moco_v3": Protocol(
        "MoCo v3's",
        (
            "Linear evaluation of MoCo v3 for a ResNet-50 (Chen et al., 2021; ``main_lincls.py``; for a"
            " ViT ``learning_rate=3``)."
        ),
        CLASSIFIER,
        {"nesterov": False, "batch_size": 1024, "epochs": 90, "augment": True},
    ),
    "byol": Protocol(
        "BYOL's",
        "Linear evaluation of BYOL (Grill et al., 2020, appendix C.1; rate and length from its JAX"
        " code). The paper chooses one of five rates on a validation set, as does ``sgd`` with"
        " ``learning_rates`` on cached features.",
        CLASSIFIER,
        {"learning_rate": 0.2, "batch_size": 1024, "epochs": 80, "augment": True},
    ),
    "macl": Protocol(
        "MACL's",
        "Linear evaluation of MACL (Huang et al., 2022): SGD 0.02, momentum 0.9, no decay, 100 epochs."
        " Assumed, since not printed: batch 256, a constant rate as in its pretraining, plain momentum,"
        " crop and flip.",
        CLASSIFIER,
        {
            "learning_rate": 0.02,
            "scaling": "none",
            "schedule": "constant",
            "nesterov": False,
            "batch_size": 256,
        }
        | {"augment": True},
    ),
    "flatnce_linear": Protocol(
        "FlatNCE's (Table 2)",
        'Linear evaluation of FlatNCE (Chen et al., 2021, section 5, Table 2): "a linear classifier'
        " trained to convergence\". Assumed, since not printed: Adam's rate 1e-3, batch 512, clean"
        " features, and the criterion of convergence.",
        CONVERGED,
        TO_CONVERGENCE,
    ),
    "flatnce_linear_long": Protocol(
        "FlatNCE's (Table S3)",
        "Linear evaluation of FlatNCE's Table S3 (Chen et al., 2021): longer training and a larger"
        " batch than in Table 2. Both numbers are assumed, since not printed.",
        CONVERGED,
        ADAM | {"batch_size": 4096, "epochs": 2000, "tolerance": 1e-4, "patience": 10},
    ),
    "flatnce_transfer": Protocol(
        "FlatNCE's (E.3)",
        "FlatNCE's linear transfer (Chen et al., 2021, appendix E.3): logistic regression by Adam, no"
        " l2, no augmentation. The short side of an image is resized to 224 (bicubic) and the centre"
        " cropped: ``data.size`` and the encoder's size are 224, and ``crop`` is 1. Assumed: rate,"
        " batch and the criterion of convergence.",
        TRANSFER,
        TO_CONVERGENCE | {"flip": 0.0, "crop": 1.0},
    ),
    "finetune_simclr": Protocol(
        "SimCLR's fine-tuning",
        "SimCLR's fine-tuning on a fraction of the labels (Chen et al., 2020, appendix B.5): 60 epochs"
        " of 1 % and 30 of 10 % of ImageNet's labels, batch 4,096; the cosine schedule is from its"
        " code. Assumed: batch 512, which fits a GPU.",
        FINETUNING,
        {"learning_rate": 0.05, "epochs": 30},
        _finetune,
    ),
    "finetune_flatnce": Protocol(
        "FlatNCE's fine-tuning",
        "FlatNCE's fine-tuning (Chen et al., 2021, appendix E.3; Tables S2 and S4): Adam with Nesterov"
        " momentum. Test images have a short side of 256 and a centre of 224 pixels (``crop`` = 224 /"
        " 256). Assumed: a constant rate of 5e-5, since the printed rate is illegible.",
        (*FINETUNING, "crop"),
        ADAM | {"learning_rate": 5e-5, "nesterov": True, "crop": 0.875},
        _finetune,
    ),
}


def _function(name: str, row: Protocol) -> Callable[..., Evaluate]:
    build = functools.partial(row.build, title=row.title)
    options = [parameter for option, parameter in KNOWN[row.build].items() if option in row.options]
    return variant(build, name, __name__, row.source, ("facts",), options, row.differs)


globals().update({name: _function(name, row) for name, row in PROTOCOLS.items()})
