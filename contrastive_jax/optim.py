"""Optimizers and learning-rate schedules of the field, composed from optax.

Where implementations disagree the difference is an option, and each docstring names its source: Google's
SimCLR (``tf2/lars_optimizer.py``, ``tf2/model.py``), MoCo (PyTorch's SGD) and BYOL. A step is one update
of the global batch; a batch is counted in images, not in views.
"""

import difflib
import itertools
import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import optax

from contrastive_jax import sharding
from contrastive_jax.types import Array, PyTree

Schedule = Callable[[Array | int], Array]

SCHEDULES = ("cosine", "linear", "step", "constant")
SCALINGS = ("linear", "sqrt", "none")
OPTIMIZERS = ("lars", "sgd", "adam", "adamw")
MOMENTUM_ORDERS = ("classic", "lr_last", "popular")

# What is not decayed (and, by LARS, not adapted) unless `exclude` says otherwise.
EXCLUDED = {"lars": ("norm", "bias", "probe"), "sgd": (), "adam": (), "adamw": ("norm", "bias")}
# Names that need not occur in every network: the rooms of the parameters and what `EXCLUDED` speaks of.
COMMON_NAMES = frozenset({"encoder", "projector", "predictor", "probe", "norm", "kernel", "bias", "scale"})


def schedule(
    *,
    name: str = "cosine",
    learning_rate: float,
    total_steps: int,
    batch_size: int,
    warmup_steps: int = 0,
    scaling: str = "linear",
    milestones: tuple[int, ...] = (),
    decay: float = 0.1,
    end_factor: float = 0.0,
    per_epoch: bool = False,
    steps_per_epoch: int = 0,
) -> Schedule:
    """The learning rate as a function of the step: linear warm-up from 0 to the peak, then a decay.

    The peak is ``learning_rate * batch_size / 256`` (``scaling="linear"``), ``learning_rate *
    sqrt(batch_size)`` (``"sqrt"``) or ``learning_rate`` (``"none"``); 0.3 linear and 0.075 sqrt meet at
    4,096 images. Step ``s < warmup_steps`` has ``peak * s / warmup_steps``. After that

    * ``"cosine"``: half a cosine from the peak to ``end_factor * peak`` over the steps that remain, and
      constant beyond ``total_steps`` (SimCLR, ``WarmUpAndCosineDecay``, where ``end_factor`` is 0);
    * ``"linear"``: a straight line between the same two points;
    * ``"step"``: ``peak * decay ** (number of milestones reached)``, milestones in steps since the start
      (MoCo v1: a tenth at epochs 120 and 160 of 200);
    * ``"constant"``: the peak.

    With ``per_epoch`` the decay moves only where an epoch of ``steps_per_epoch`` begins (MoCo v2's
    cosine); the warm-up still moves at each step. Raises ValueError for a value out of range.

    Args:
      name: how the learning rate falls after the warm-up: cosine, linear, step or constant.
      learning_rate: of a batch of 256 images (scaling=linear), of 1 image (sqrt), or of any batch (none).
      total_steps: length of the run.
      batch_size: images a step.
      warmup_steps: steps of the linear warm-up from 0.
      scaling: how the peak grows with the batch: linear (batch / 256), sqrt (its root) or none.
      milestones: when a step schedule decays, as durations since the start.
      decay: factor of a step schedule at each milestone.
      end_factor: what cosine and linear end at, as a share of the peak.
      per_epoch: the decay moves at the beginning of an epoch only (MoCo v2).
      steps_per_epoch: read by per_epoch.
    """
    _one_of("schedule.name", name, SCHEDULES)
    _one_of("schedule.scaling", scaling, SCALINGS)
    _in_range("schedule.learning_rate", learning_rate, learning_rate >= 0, "not negative and finite")
    _in_range("schedule.total_steps", total_steps, total_steps >= 1, "at least 1")
    _in_range("schedule.batch_size", batch_size, batch_size >= 1, "at least 1")
    _in_range(
        "schedule.warmup_steps",
        warmup_steps,
        0 <= warmup_steps < total_steps,
        f"at least 0 and less than total_steps ({total_steps})",
    )
    _in_range("schedule.decay", decay, 0 <= decay <= 1, "between 0 and 1")
    _in_range("schedule.end_factor", end_factor, 0 <= end_factor <= 1, "between 0 and 1")
    if name == "step" and not milestones:
        raise ValueError("schedule.milestones is empty; a 'step' schedule needs the steps at which it decays")
    if any(later <= earlier for earlier, later in itertools.pairwise((0, *milestones))):
        raise ValueError(f"schedule.milestones is {milestones}; the steps must be positive and increasing")
    if per_epoch:
        _in_range(
            "schedule.steps_per_epoch", steps_per_epoch, steps_per_epoch >= 1, "at least 1 with per_epoch"
        )

    scale = {"linear": batch_size / 256, "sqrt": math.sqrt(batch_size), "none": 1.0}[scaling]
    peak = learning_rate * scale
    decay_steps = total_steps - warmup_steps

    def learning_rate_at(step: Array | int) -> Array:
        step = jnp.asarray(step)
        at = step // steps_per_epoch * steps_per_epoch if per_epoch else step
        # Whole steps are counted as integers: float32 is exact only up to 2**24 of them.
        left = jnp.clip(total_steps - at, 0, decay_steps) / decay_steps
        if name == "cosine":
            # sin(x)**2 is (1 - cos(2x)) / 2 without the cancellation at the end of the run.
            factor = end_factor + (1 - end_factor) * jnp.sin(jnp.pi / 2 * left) ** 2
        elif name == "linear":
            factor = end_factor + (1 - end_factor) * left
        elif name == "step":
            factor = decay ** jnp.searchsorted(jnp.array(milestones), at, side="right")
        else:
            factor = jnp.ones_like(left)
        return peak * jnp.where(step < warmup_steps, step / max(warmup_steps, 1), factor)

    return learning_rate_at


def optimizer(
    schedule: Schedule,
    *,
    name: str = "lars",
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    exclude: tuple[str, ...] | None = None,
    exclude_from_adaptation: tuple[str, ...] | None = None,
    trust_coefficient: float = 1e-3,
    momentum_order: str = "classic",
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    clip_norm: float = 0.0,
    shard_state: bool = False,
) -> optax.GradientTransformation:
    """The update rule ``name`` at the learning rate ``schedule(step)``.

    * ``"lars"`` (You et al., 2017, as in SimCLR's ``LARSOptimizer``): ``g + weight_decay * w``, times the
      trust ratio ``trust_coefficient * |w| / |g + weight_decay * w|`` of the parameter (1 where either
      norm is 0, and for what is excluded: the plain learning rate), times the learning rate, into the
      momentum. That order is ``momentum_order="classic"``; ``"lr_last"`` multiplies by the learning rate
      after the momentum (BYOL, MoCo v3; it differs where the rate changes), ``"popular"`` also takes the
      trust ratio after the momentum (SimCLR's ``classic_momentum=False``). Reads ``momentum``,
      ``nesterov``, ``trust_coefficient``, ``momentum_order``, ``exclude_from_adaptation``.
    * ``"sgd"`` (PyTorch's, as in MoCo): L2 inside the gradient, momentum, then the learning rate. Reads
      ``momentum``, ``nesterov``.
    * ``"adam"`` (Kingma & Ba, 2015, as PyTorch's): L2 inside the gradient. Reads ``b1``, ``b2``, ``eps``, and
      ``nesterov`` (Dozat, 2016: Nadam).
    * ``"adamw"`` (Loshchilov & Hutter, 2019): decay outside the moments, times the learning rate. Reads
      the same.

    ``exclude`` names what is not decayed, and by LARS not adapted either: a part of a parameter's path
    ("bias", "probe", a layer), or "norm", which stands for every parameter of a layer without a kernel
    (scale and bias of a norm). The default is the field's: ("norm", "bias", "probe") for LARS, nothing for
    SGD and Adam (PyTorch; SimCLR's other optimizers are ``("norm",)``), ("norm", "bias") for AdamW. SimCLR
    adds, beside its LARS, an L2 penalty on the probe's kernel: ``exclude=("norm", "bias")`` with
    ``exclude_from_adaptation=("norm", "bias", "probe")``.

    ``clip_norm > 0`` first scales the gradient down to that global norm. ``shard_state`` keeps a share of
    the moments on each device, and updates that share there (ZeRO, stage 1: Rajbhandari et al., 2020). Raises
    ValueError for a value out of range, and at ``init`` for a name in ``exclude`` that no parameter has.

    Args:
      schedule: step -> learning rate.
      name: update rule: lars, sgd, adam or adamw.
      momentum: of lars and sgd.
      nesterov: Nesterov's momentum; with adam, Nadam.
      weight_decay: inside the gradient (lars, sgd, adam), or outside the moments, times the learning rate
        (adamw).
      exclude: what is not decayed, nor adapted by LARS: parts of a parameter's path, or norm; default: the
        rule's own.
      exclude_from_adaptation: what LARS does not adapt; default: as exclude.
      trust_coefficient: of LARS: step length as a share of a parameter's norm.
      momentum_order: of LARS: classic (learning rate, then momentum), lr_last, or popular (momentum before
        the trust ratio too).
      b1: decay of the first moment, of adam and adamw.
      b2: decay of the second moment, of adam and adamw.
      eps: added to the root of the second moment, of adam and adamw.
      clip_norm: largest global norm of the gradient; 0 does not clip.
      shard_state: each device keeps and updates a share of the moments (ZeRO, stage 1); changes no result.
    """
    _one_of("optimizer.name", name, OPTIMIZERS)
    _one_of("optimizer.momentum_order", momentum_order, MOMENTUM_ORDERS)
    for option, value in {"momentum": momentum, "b1": b1, "b2": b2}.items():
        _in_range(f"optimizer.{option}", value, 0 <= value < 1, "at least 0 and less than 1")
    for option, value in {"weight_decay": weight_decay, "clip_norm": clip_norm}.items():
        _in_range(f"optimizer.{option}", value, value >= 0, "not negative and finite")
    for option, value in {"trust_coefficient": trust_coefficient, "eps": eps}.items():
        _in_range(f"optimizer.{option}", value, value > 0, "positive and finite")
    exclude = EXCLUDED[name] if exclude is None else _names("optimizer.exclude", exclude)
    if exclude_from_adaptation is None:
        exclude_from_adaptation = exclude
    _names("optimizer.exclude_from_adaptation", exclude_from_adaptation)

    clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
    decay = optax.add_decayed_weights(weight_decay, mask=_mask(exclude)) if weight_decay else optax.identity()
    trace = optax.trace(momentum, nesterov) if momentum else optax.identity()
    moments = optax.scale_by_adam(b1, b2, eps, nesterov=nesterov)
    ratio = optax.masked(
        optax.scale_by_trust_ratio(trust_coefficient=trust_coefficient), _mask(exclude_from_adaptation)
    )
    rate = optax.scale_by_learning_rate(schedule)
    chain = {
        "lars": {
            "classic": (decay, ratio, rate, trace),
            "lr_last": (decay, ratio, trace, rate),
            "popular": (decay, trace, ratio, rate),
        }[momentum_order],
        "sgd": (decay, trace, rate),
        "adam": (decay, moments, rate),
        "adamw": (moments, decay, rate),
    }[name]
    update_rule = optax.chain(clip, *chain)

    def init(params: PyTree) -> optax.OptState:
        _check_names_occur((*exclude, *exclude_from_adaptation), params)
        return update_rule.init(params)

    found = optax.GradientTransformation(init, update_rule.update)
    return _shared(found) if shard_state else found


def _shared(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same updates, each device making its share of them."""

    def share(tree: PyTree) -> PyTree:
        return jax.tree.map(sharding.share, tree)

    def update(grads: PyTree, state: optax.OptState, params: PyTree) -> tuple[PyTree, optax.OptState]:
        updates, state = rule.update(share(grads), state, share(params))
        return jax.tree.map(sharding.gather, updates), state

    return optax.GradientTransformation(lambda params: rule.init(share(params)), update)


def _mask(exclude: tuple[str, ...]) -> Callable[[PyTree], PyTree]:
    """Parameters -> True where a parameter is not excluded."""

    def included(params: PyTree) -> PyTree:
        paths = [_parts(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        with_kernel = {path[:-1] for path in paths if path[-1:] == ("kernel",)}
        keep = [
            not any(part in exclude for part in path)
            and not ("norm" in exclude and path[:-1] not in with_kernel)
            for path in paths
        ]
        return jax.tree.unflatten(jax.tree.structure(params), keep)

    return included


def _parts(path: tuple) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _check_names_occur(names: Iterable[str], params: PyTree) -> None:
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    known = COMMON_NAMES.union(*map(_parts, paths))
    for name in names:
        if name not in known:
            raise ValueError(
                f"optimizer.exclude names {name!r}, which is in no parameter's path{_nearest(name, known)}"
            )


def _names(option: str, value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{option} is {value!r}; it must be a tuple of names such as ('norm', 'bias')")
    return tuple(value)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(
            f"{option} is {value!r}; it must be one of {', '.join(allowed)}{_nearest(value, allowed)}"
        )


def _in_range(option: str, value: float, holds: bool, rule: str) -> None:
    if not (holds and math.isfinite(value)):
        raise ValueError(f"{option} is {value}; it must be {rule}")


def _nearest(value: object, allowed: Iterable[str]) -> str:
    matches = difflib.get_close_matches(str(value), sorted(allowed), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
