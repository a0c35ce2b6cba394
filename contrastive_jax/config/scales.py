"""Scales of a config: as published, for one GPU, small images or digits on CPU cores, and a smoke test."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from contrastive_jax import evaluators
from contrastive_jax.config.settings import base, complete

SMALL = ("small", "small_mnist")
SCALES = ("paper", "gpu", *SMALL, "cpu", "smoke")


def on_digits(config: ConfigDict, smoke: bool = False) -> ConfigDict:
    """Scale a method to a minute of training on two CPU cores: digits, ResNet-18 of width 16, AdamW.

    Loss, heads and rules stay; options that depend on the size of the data (queue, alpha, K, momentum of the
    target) are scaled to the 1,437 training images. ``smoke``: width 8 and 4 steps, for seconds.
    """
    config.data = {"name": "digits"}
    config.augment = {"preset": "digits", "size": 8}
    # While the residual branches are zero, the stem is the only spatial layer that acts on an 8x8 image.
    _reduce(config, 0.125 if smoke else 0.25, zero_init=False)
    config.schedule = {
        "name": "cosine", "learning_rate": 3e-3, "scaling": "none", "warmup": "1 step" if smoke else "2 epochs",
    }  # fmt: skip
    config.train.update({"duration": "4 steps" if smoke else "30 epochs", "batch_size": 32 if smoke else 128})
    config.log.every = 25
    return limit(config, "smoke" if smoke else "cpu")


def on_small_images(config: ConfigDict, scale: str = "small") -> ConfigDict:
    """Scale a method to at most 20 minutes on a CPU core: real images, ResNet-18 of width 8, 20 epochs, AdamW.

    ``small`` is all of CIFAR-10 at 16 x 16 pixels, far from solved; ``small_mnist`` is all of MNIST at 14 x 14,
    whose images the network soon distinguishes. The peak learning rate is 0.0025 sqrt(batch / 100). Loss, heads
    and rules stay; queue, K and momentum of the target are scaled to 50,000 or 60,000 images.
    """
    if scale == "small":
        config.data = {"name": "cifar10"}
        config.augment = {"preset": "simclr", "size": 16, "crop_min": 0.2, "strength": 0.5, "blur": 0.0}
    else:
        config.data = {"name": "mnist"}
        config.augment = {"preset": "digits", "size": 14, "shift": 1.5, "erase": 0.5, "erase_sides": (3, 5)}
    _reduce(config, 0.125, zero_init=config.encoder.get("zero_init", True))
    config.schedule = {
        "name": "cosine", "learning_rate": 2.5e-4, "scaling": "sqrt", "warmup": "1 epoch",
    }  # fmt: skip
    config.train.update({"duration": "20 epochs", "batch_size": 128})
    config.evaluators.linear.tolerance = 1e-4  # raw pixels need minutes to reach the default of 1e-5
    config.log.every = 100
    return limit(config, scale)


def _reduce(config: ConfigDict, width: float, zero_init: bool) -> None:
    """Set a narrow ResNet-18 with a CIFAR stem, AdamW, float32, and the base's evaluation."""
    small = {"depth": 18, "width": width, "stem": "cifar", "zero_init": zero_init, "kernel_init": "fan_in"}
    config.encoder.update(small)
    config.optimizer = {"name": "adamw", "weight_decay": 1e-4}
    config.dtype = "float32"
    config.evaluators, config.evaluate.rows = base().evaluators, evaluators.ROWS


def limit(config: ConfigDict, scale: str) -> ConfigDict:
    """Limit the options that depend on the size of the data: queue, alpha, target's momentum; K to the batch.

    ``cpu`` and ``smoke`` assume 1,000 images and hundreds of steps; other scales 50,000 images and thousands.
    """
    eqco = config.margin.name == "eqco"  # with as many negatives as alpha there would be no margin
    queue, decay, alpha = {
        "smoke": (128, 0.95, 1024.0),
        "cpu": (256 if eqco else 1024, 0.95, 1024.0),
    }.get(scale, (4096, 0.99, float("inf")))
    if config.candidates.name == "queue":
        config.candidates.size = min(config.candidates.size, queue)
    if config.negatives.get("k", 0) >= config.train.batch_size:
        config.negatives.k = config.train.batch_size // 2
    if eqco:
        config.margin.alpha = min(config.margin.alpha, alpha)
    if config.target.name == "ema":
        config.target.decay = min(config.target.decay, decay)  # for short runs
    return config


def at_scale(config: ConfigDict, scale: str, gpu: Mapping[str, Any] | None = None) -> ConfigDict:
    """Scale a published config to one of ``SCALES``, and complete it.

    Args:
      config: the published config, scale ``paper``.
      scale: ``cpu`` and ``smoke`` are :func:`on_digits`, ``small`` and ``small_mnist`` :func:`on_small_images`.
      gpu: leaf -> value of the scale ``gpu``. With a new ``train.duration``, warm-up and milestones keep their
        share of the run.
    """
    if scale in ("cpu", "smoke"):
        on_digits(config, smoke=scale == "smoke")
    elif scale in SMALL:
        on_small_images(config, scale)
    elif scale == "gpu" and gpu:
        published = config.train.duration
        config.update_from_flattened_dict(gpu)
        config.schedule.warmup = _share(config.schedule.warmup, published, config.train.duration)
        if "milestones" in config.schedule:
            config.schedule.milestones = tuple(
                _share(milestone, published, config.train.duration)
                for milestone in config.schedule.milestones
            )
    return complete(config)


def _share(duration: str, published: str, now: str) -> str:
    """Scale a part of a duration to a new duration.

    ``"120 epochs"`` of ``"200 epochs"`` becomes ``"12 epochs"`` of ``"20 epochs"``, or ``"600 steps"`` of
    ``"1000 steps"``.

    Raises:
      ValueError: the first two have different units.
    """
    (number, unit), (whole, of), (new, of_new) = (text.split() for text in (duration, published, now))
    if unit.rstrip("s") != of.rstrip("s"):
        raise ValueError(
            f"{duration!r} and {published!r} have different units; write both in epochs, in steps or in"
            " examples."
        )
    return f"{float(number) * float(new) / float(whole):g} {of_new}"
