"""Scales: a config as published, for one GPU, for two CPU cores, and for seconds."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from contrastive_jax import evaluators
from contrastive_jax.config.settings import base, complete

SCALES = ("paper", "gpu", "cpu", "smoke")


def on_digits(config: ConfigDict, smoke: bool = False) -> ConfigDict:
    """The same method where it trains in a minute on two CPU cores: digits, ResNet-18 of width 16, AdamW.

    Loss, heads and rules stay; what a method takes from the size of its data (queue, alpha, K, momentum
    of the target) is scaled to the 1,437 training images. ``smoke``: 4 steps, for seconds.
    """
    config.data = {"name": "digits", "dir": ""}
    config.augment = {"preset": "digits", "size": 8}
    width = 0.125 if smoke else 0.25
    # An 8x8 image meets no spatial layer but the stem while the residual branches are zero.
    small = {"depth": 18, "width": width, "stem": "cifar", "zero_init": False, "kernel_init": "fan_in"}
    config.encoder.update(small)
    config.optimizer = {"name": "adamw", "weight_decay": 1e-4}
    config.schedule = {
        "name": "cosine", "learning_rate": 3e-3, "scaling": "none", "warmup": "1 step" if smoke else "2 epochs",
        "milestones": (),
    }  # fmt: skip
    config.train.update({"duration": "4 steps" if smoke else "30 epochs", "batch_size": 32 if smoke else 128})
    config.dtype = "float32"
    config.evaluators, config.evaluate.rows = base().evaluators, evaluators.ROWS
    config.log.every = 25
    if config.candidates.name == "queue":
        few = config.margin.name == "eqco"  # as many negatives as alpha would be no margin
        config.candidates.size = min(config.candidates.size, 128 if smoke else 256 if few else 1024)
    if config.negatives.get("k", 0) >= config.train.batch_size:
        config.negatives.k = config.train.batch_size // 2
    if config.margin.name == "eqco":
        config.margin.alpha = min(config.margin.alpha, 1024.0)
    if config.target.name == "ema":
        config.target.decay = min(config.target.decay, 0.95)  # of 337 steps, not of a million
    return config


def at_scale(config: ConfigDict, scale: str, gpu: Mapping[str, Any] | None = None) -> ConfigDict:
    """A config as published -> the same at one of ``SCALES``, complete.

    Args:
      config: what ``paper`` is.
      scale: ``cpu`` and ``smoke`` are :func:`on_digits`.
      gpu: leaf -> value, what one GPU takes instead. With a new ``train.duration``, warm-up and milestones
        keep their share of the run.
    """
    if scale in ("cpu", "smoke"):
        on_digits(config, smoke=scale == "smoke")
    elif scale == "gpu" and gpu:
        published = config.train.duration
        config.update_from_flattened_dict(gpu)
        config.schedule.warmup = _share(config.schedule.warmup, published, config.train.duration)
        config.schedule.milestones = tuple(
            _share(milestone, published, config.train.duration) for milestone in config.schedule.milestones
        )
    return complete(config)


def _share(duration: str, published: str, now: str) -> str:
    """``"120 epochs"`` of ``"200 epochs"`` is ``"12 epochs"`` of ``"20 epochs"``, ``"600 steps"`` of ``"1000 steps"``.

    Raises:
      ValueError: the first two are of different units.
    """
    (number, unit), (whole, of), (new, of_new) = (text.split() for text in (duration, published, now))
    if unit.rstrip("s") != of.rstrip("s"):
        raise ValueError(
            f"{duration!r} is no share of {published!r}: write both in epochs, steps or examples."
        )
    return f"{float(number) * float(new) / float(whole):g} {of_new}"
