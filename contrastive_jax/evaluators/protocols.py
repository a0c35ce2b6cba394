"""What a number in a paper was made by. Every public function here is a protocol, found by its name.

A protocol takes :class:`~contrastive_jax.evaluators.subject.Facts` and its options, refuses in a sentence what
cannot work, and gives ``evaluate(subject) -> {"top1", "mean_per_class", "protocol", "settings", ...}`` (of
multi-label sets ``map_11_point`` and ``mean_average_precision``), or ``{"left_out": why}``. The options are the
leaves of a column of the config's ``evaluators``; defaults are what its source prints.

Where a protocol's function does not say what an option is, it is one that protocols share. A batch is at most
the images there are.

Args:
  layer: whose output is judged: pooled, projection_1, ...
  seed: of the order, the crops, the first weights and the draws.
  learning_rate: of a batch of 256 images where the protocol scales it, else of any batch.
  weight_decay: added to the gradient, times the weights.
  batch_size: images a step of the classifier's training.
  epochs: passes over the training images.
  augment: train through the frozen encoder on random crops and flips, which is what the source does, or (False)
    on cached clean features, which is much faster.
  crop_min: smallest area of a random crop, as a share of the image.
  flip: probability of a mirror image; 0 for characters.
  crop: share of the largest centred square that the encoder sees of clean images; 0: as in its pretraining.
  tolerance: training ends when the loss falls by less than this share; 0 trains to the last epoch.
  patience: epochs in a row for which ``tolerance`` must hold.
  standardize: features are brought to mean 0 and variance 1 of the training images.
  fraction: share of the labelled training images, the same of every class.
"""

from collections.abc import Callable

from contrastive_jax.evaluators import finetune, linear_probe
from contrastive_jax.evaluators import knn as _knn
from contrastive_jax.evaluators.subject import Facts, Subject, at_least, left_out
from contrastive_jax.evaluators.training import Plan

Evaluate = Callable[[Subject], dict]


def knn(
    facts: Facts,
    *,
    k: int = 10,
    temperature: float = 0.0,
    standardize: bool = False,
    layer: str = "pooled",
) -> Evaluate:
    """Weighted nearest neighbours (Wu et al., 2018, section 3.4): see :func:`knn.evaluate`.

    The default is k = 10 without weights; MoCo's CIFAR demo has ``k=200, temperature=0.1``, Wu et al. 0.07.

    Args:
      facts: what is known before features are.
      k: neighbours that vote.
      temperature: T of a neighbour's weight exp(cosine / T); 0 gives every neighbour one vote.
    """
    facts.check_layer(layer)
    at_least("k", k, 1)
    at_least("temperature", temperature, 0)
    if facts.labels is not None and k > len(facts.labels):
        raise ValueError(f"k is {k}; there are {len(facts.labels)} labelled training images.")

    def evaluate(subject):
        options = dict(k=k, temperature=temperature, standardize=standardize, layer=subject.layer(layer))
        return _knn.evaluate(*subject.arrays(layer), **options)

    return evaluate


def lbfgs(
    facts: Facts,
    *,
    C: float = 1.0,
    Cs: tuple[float, ...] = (),
    labels_per_class: int = 0,
    draws: int = 20,
    seed: int = 0,
    tolerance: float = 1e-5,
    max_iterations: int = 10_000,
    layer: str = "pooled",
) -> Evaluate:
    """Logistic regression at its optimum: see :func:`linear_probe.lbfgs`.

    ``Cs`` chooses C on a validation part of the training images (SimCLR, Chen et al., 2020, appendix B.8.1;
    Kornblith et al., 2019), ``labels_per_class`` trains on few labels.

    Args:
      facts: what is known before features are.
      C: inverse strength of the l2 penalty.
      Cs: where given, C is the one of these that does best on a tenth of the training images.
      labels_per_class: labels of each class that the classifier learns from; 0 for all.
      draws: of these labels; scores are means over the draws.
      tolerance: largest entry of the gradient at which the fit counts as converged.
      max_iterations: of one fit.
    """
    facts.check_layer(layer)
    options = dict(
        C=C, Cs=tuple(Cs), labels_per_class=labels_per_class, draws=draws,
        tolerance=tolerance, max_iterations=max_iterations,
    )  # fmt: skip
    if labels_per_class and facts.labels is not None and facts.labels.ndim == 2:
        return _leave_out("labels_per_class needs sets of one label an image")
    at_least("seed", seed, 0)
    linear_probe.check_lbfgs(facts.labels, **options)

    def evaluate(subject):
        arrays = subject.arrays(layer)
        return linear_probe.lbfgs(*arrays, **options, seed=seed, layer=subject.layer(layer))

    return evaluate


def sgd(
    facts: Facts,
    *,
    optimizer: str = "sgd",
    learning_rate: float = 0.1,
    scaling: str = "linear",
    learning_rates: tuple[float, ...] = (),
    schedule: str = "cosine",
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    batch_size: int = 512,
    epochs: int = 100,
    tolerance: float = 0.0,
    patience: int = 5,
    standardize: bool = False,
    augment: bool = False,
    crop_min: float = 0.08,
    flip: float = 0.5,
    crop: float = 0.0,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """A linear classifier by any of these: see :class:`training.Plan`.

    ``learning_rates`` chooses the rate on a validation part of the training images (cached features only);
    ``crop`` is the proportion of the centred square that the encoder sees of clean images (0: as in its
    pretraining).

    Args:
      facts: what is known before features are.
      optimizer: sgd or adam.
      scaling: linear multiplies the learning rate by batch_size / 256, none does not.
      learning_rates: where given, the rate is the one of these that does best on a tenth of the training
        images.
      schedule: of the learning rate: cosine, step (a tenth at 60 % and 80 %) or constant.
      momentum: of SGD, or Nesterov's of Adam.
      nesterov: whether the momentum is Nesterov's.
    """
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f"optimizer={optimizer!r} must be sgd or adam.")
    plan = Plan(
        optimizer, learning_rate, scaling, schedule, momentum, nesterov, weight_decay,
        batch_size, epochs, tolerance, patience, seed,
    )  # fmt: skip
    return _linear(
        facts, plan, "", layer, augment, crop_min, flip,
        crop=crop, standardize=standardize, learning_rates=tuple(learning_rates),
    )  # fmt: skip


def simclr(
    facts: Facts,
    *,
    learning_rate: float = 0.1,
    weight_decay: float = 0.0,
    batch_size: int = 512,
    epochs: int = 100,
    augment: bool = True,
    crop_min: float = 0.08,
    flip: float = 0.5,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """SimCLR's linear evaluation (Chen et al., 2020, appendix B.6) as its code runs it on CIFAR-10.

    Nesterov momentum 0.9, 0.1 x batch / 256, cosine without warm-up, crop and flip. On ImageNet:
    ``batch_size=4096, epochs=90, weight_decay=1e-6``.
    """
    plan = Plan(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        batch_size=batch_size,
        epochs=epochs,
        seed=seed,
    )
    return _linear(facts, plan, "SimCLR's", layer, augment, crop_min, flip)


def moco(
    facts: Facts,
    *,
    learning_rate: float = 30.0,
    batch_size: int = 256,
    epochs: int = 100,
    augment: bool = True,
    crop_min: float = 0.08,
    flip: float = 0.5,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """MoCo's and MoCo v2's (He et al., 2020, section 4.1; ``main_lincls.py``), made for ImageNet.

    SGD with momentum 0.9, rate 30 at batch 256, a tenth at 60 % and 80 % of the epochs, no decay, crop and flip.
    """
    plan = Plan(
        learning_rate=learning_rate,
        schedule="step",
        nesterov=False,
        batch_size=batch_size,
        epochs=epochs,
        seed=seed,
    )
    return _linear(facts, plan, "MoCo's", layer, augment, crop_min, flip)


def moco_v3(
    facts: Facts,
    *,
    learning_rate: float = 0.1,
    batch_size: int = 1024,
    epochs: int = 90,
    augment: bool = True,
    crop_min: float = 0.08,
    flip: float = 0.5,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """MoCo v3's for a ResNet-50 (Chen et al., 2021; ``main_lincls.py``; a ViT takes ``learning_rate=3``).

    SGD with momentum 0.9, rate x batch / 256, cosine, no decay, crop and flip.
    """
    plan = Plan(learning_rate=learning_rate, nesterov=False, batch_size=batch_size, epochs=epochs, seed=seed)
    return _linear(facts, plan, "MoCo v3's", layer, augment, crop_min, flip)


def byol(
    facts: Facts,
    *,
    learning_rate: float = 0.2,
    batch_size: int = 1024,
    epochs: int = 80,
    augment: bool = True,
    crop_min: float = 0.08,
    flip: float = 0.5,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """BYOL's (Grill et al., 2020, appendix C.1; rate and length of its JAX code).

    Nesterov momentum 0.9, 0.2 x batch / 256, cosine without warm-up, no decay, crop and flip. The paper chooses
    one of five rates on a validation set: ``sgd`` with ``learning_rates`` does so on cached features.
    """
    plan = Plan(learning_rate=learning_rate, batch_size=batch_size, epochs=epochs, seed=seed)
    return _linear(facts, plan, "BYOL's", layer, augment, crop_min, flip)


def macl(
    facts: Facts,
    *,
    learning_rate: float = 0.02,
    batch_size: int = 256,
    epochs: int = 100,
    augment: bool = True,
    crop_min: float = 0.08,
    flip: float = 0.5,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """MACL's (Huang et al., 2022, section 4.1): SGD 0.02, momentum 0.9, no decay, 100 epochs.

    Assumed, as not printed: batch 256, the constant rate of its pretraining, plain momentum, crop and flip.
    """
    plan = Plan(
        learning_rate=learning_rate, scaling="none", schedule="constant", nesterov=False,
        batch_size=batch_size, epochs=epochs, seed=seed,
    )  # fmt: skip
    return _linear(facts, plan, "MACL's", layer, augment, crop_min, flip)


def flatnce_linear(
    facts: Facts,
    *,
    learning_rate: float = 1e-3,
    batch_size: int = 512,
    epochs: int = 500,
    tolerance: float = 1e-3,
    patience: int = 5,
    augment: bool = False,
    crop_min: float = 0.08,
    flip: float = 0.5,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """FlatNCE's (Chen et al., 2021, section 5, Table 2): "a linear classifier trained to convergence".

    Adam. Assumed, as not printed: rate 1e-3, batch 512, clean features, and what convergence is.
    """
    plan = _adam(learning_rate, batch_size, epochs, tolerance, patience, seed)
    return _linear(facts, plan, "FlatNCE's (Table 2)", layer, augment, crop_min, flip)


def flatnce_linear_long(
    facts: Facts,
    *,
    learning_rate: float = 1e-3,
    batch_size: int = 4096,
    epochs: int = 2000,
    tolerance: float = 1e-4,
    patience: int = 10,
    augment: bool = False,
    crop_min: float = 0.08,
    flip: float = 0.5,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """FlatNCE's Table S3 (Chen et al., 2021): longer training, a larger batch of the classifier than in Table 2.

    How much longer and larger is not printed: assumed.
    """
    plan = _adam(learning_rate, batch_size, epochs, tolerance, patience, seed)
    return _linear(facts, plan, "FlatNCE's (Table S3)", layer, augment, crop_min, flip)


def flatnce_transfer(
    facts: Facts,
    *,
    learning_rate: float = 1e-3,
    batch_size: int = 512,
    epochs: int = 500,
    tolerance: float = 1e-3,
    patience: int = 5,
    crop: float = 1.0,
    seed: int = 0,
    layer: str = "pooled",
) -> Evaluate:
    """FlatNCE's linear transfer (Chen et al., 2021, appendix E.3): logistic regression by Adam, no l2, no augmentation.

    Images have their short side resized to 224 (bicubic) and the centre cropped: ``data.size`` and the
    encoder's size are 224, and ``crop`` is the whole of that. Assumed: rate, batch and what convergence is.
    """
    plan = _adam(learning_rate, batch_size, epochs, tolerance, patience, seed)
    return _linear(facts, plan, "FlatNCE's (E.3)", layer, False, 0.08, 0.0, crop=crop)


def finetune_simclr(
    facts: Facts,
    *,
    fraction: float = 1.0,
    learning_rate: float = 0.05,
    batch_size: int = 512,
    epochs: int = 30,
    crop_min: float = 0.08,
    flip: float = 0.5,
    seed: int = 0,
) -> Evaluate:
    """SimCLR's fine-tuning on a fraction of the labels (Chen et al., 2020, appendix B.5).

    Nesterov momentum 0.9, 0.05 x batch / 256 without warm-up, no decay, crop and flip; 60 epochs of 1 % and 30
    of 10 % of ImageNet's labels, batch 4,096. The cosine is its code's. Assumed: batch 512, which fits a GPU.
    """
    plan = Plan(learning_rate=learning_rate, batch_size=batch_size, epochs=epochs, seed=seed)
    return _finetune(facts, plan, "SimCLR's fine-tuning", fraction, crop_min, flip)


def finetune_flatnce(
    facts: Facts,
    *,
    fraction: float = 1.0,
    learning_rate: float = 5e-5,
    batch_size: int = 512,
    epochs: int = 100,
    crop_min: float = 0.08,
    flip: float = 0.5,
    crop: float = 0.875,
    seed: int = 0,
) -> Evaluate:
    """FlatNCE's fine-tuning (Chen et al., 2021, appendix E.3; Tables S2 and S4).

    Adam with Nesterov momentum 0.9, 100 epochs, batch 512, no decay, random crop, resize and flip; in the test
    the short side is 256 and the centre 224 pixels (``crop`` = 224 / 256). The rate is illegible in the scan: 5e-5,
    and that it is constant, are assumed.
    """
    plan = Plan(
        "adam", learning_rate, "none", "constant", momentum=0.9, nesterov=True,
        batch_size=batch_size, epochs=epochs, seed=seed,
    )  # fmt: skip
    return _finetune(facts, plan, "FlatNCE's fine-tuning", fraction, crop_min, flip, crop)


# ------------------------------------------------------------------------------------------------ in common


def _adam(learning_rate, batch_size, epochs, tolerance, patience, seed) -> Plan:
    return Plan(
        "adam", learning_rate, "none", "constant", nesterov=False,
        batch_size=batch_size, epochs=epochs, tolerance=tolerance, patience=patience, seed=seed,
    )  # fmt: skip


def _linear(
    facts: Facts,
    plan: Plan,
    name: str,
    layer: str,
    augment: bool,
    crop_min: float,
    flip: float,
    *,
    crop: float = 0.0,
    standardize: bool = False,
    learning_rates: tuple[float, ...] = (),
) -> Evaluate:
    plan.check()
    facts.check_layer(layer)
    _check_view(crop_min, flip, crop)
    for rate in learning_rates:
        plan._replace(learning_rate=rate).check()
    if augment and (standardize or learning_rates):
        raise ValueError("augment=True has no cached features for standardize and learning_rates.")

    def evaluate(subject):
        if augment and subject.encoder is None:
            return left_out("augmentation needs an encoder")
        if augment:
            options = dict(layer=layer, crop_min=crop_min, flip=flip, crop=crop or None)
            return finetune.frozen(subject, plan, name=name, **options)
        train, labels, test, test_labels = subject.arrays(layer, crop or None)
        within = plan._replace(batch_size=min(plan.batch_size, len(labels)))
        linear_probe.check(train, labels, test, test_labels)
        return linear_probe.by_gradient(
            train, labels, test, test_labels, within, name=name, standardize=standardize,
            learning_rates=learning_rates, layer=subject.layer(layer),
        )  # fmt: skip

    return evaluate


def _finetune(facts, plan, name, fraction, crop_min, flip, crop=0.0) -> Evaluate:
    plan.check()
    _check_view(crop_min, flip, crop)
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction} must be above 0 and at most 1.")
    if fraction < 1 and facts.labels is not None and facts.labels.ndim == 2:
        return _leave_out("a class-balanced fraction needs sets of one label an image")

    def evaluate(subject):
        if subject.encoder is None:
            return left_out("there is no network to train")
        options = dict(fraction=fraction, crop_min=crop_min, flip=flip, crop=crop or None)
        return finetune.finetuned(subject, plan, name=name, **options)

    return evaluate


def _leave_out(why: str) -> Evaluate:
    return lambda subject: left_out(why)


def _check_view(crop_min: float, flip: float, crop: float) -> None:
    for name, value, low in (("crop_min", crop_min, 1e-9), ("flip", flip, 0), ("crop", crop, 0)):
        if not low <= value <= 1:
            raise ValueError(f"{name}={value} must be {'above' if low else 'from'} 0 to 1.")
