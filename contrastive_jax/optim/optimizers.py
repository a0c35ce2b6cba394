"""Optimizers LARS, SGD, Adam and AdamW, composed from optax.

Differences between implementations are options, and docstrings name their source: Google's SimCLR
(``tf2/lars_optimizer.py``, ``tf2/model.py``), MoCo (PyTorch's SGD) and BYOL. A step is one update with the
global batch.

A name in ``exclude`` or ``alternate`` is a part of a parameter's path ("bias", "probe", a layer). In
``exclude``, "norm" also stands for all parameters of a layer without a weight (scale and bias of a norm), and
"bias" for all others in a layer with a weight. A weight is named kernel, or has two axes or more and is not a
norm's. Defaults follow common practice (SimCLR's optimizers other than LARS use ``("norm",)``). With
``alternate``, each of the two groups has its own moments and clipping, and the learning rate of the run's step.
A name in no parameter's path raises a ValueError at ``init``; ``exclude`` also allows ``COMMON_NAMES``.

Args:
  schedule: function of the step that returns the learning rate.
  apart: modules whose gradient is clipped separately by ``clip_norm``.
  momentum: momentum, the decay of the accumulated gradients; 0: none.
  nesterov: whether to use Nesterov momentum; with ``adam``, Nadam.
  weight_decay: L2 coefficient: this times the weights is added to the gradient.
  exclude: parts of parameter paths, or ``norm``, without weight decay; default: none.
  b1: decay of the first moment's average.
  b2: decay of the second moment's average.
  eps: constant that is added to the root of the second moment.
  clip_norm: maximum global norm of the gradient, the online probe's separately; 0: no clipping.
  shard_state: whether each device stores and updates only a share of the moments (ZeRO, stage 1: Rajbhandari et
    al., 2020); results do not change.
  alternate: parts of parameter paths that are updated at every second step, all others at the steps between;
    (): all at every step.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from contrastive_jax import sharding
from contrastive_jax.kinds import Decay, NonNegative, Positive, checked
from contrastive_jax.optim.schedules import Schedule
from contrastive_jax.types import PyTree

# Defaults of `exclude`: without weight decay and, for LARS, without layer-wise rate.
EXCLUDED = {"lars": ("norm", "bias", "probe"), "sgd": (), "adam": (), "adamw": ("norm", "bias")}
# Names of a norm's parameters, which are never weights, although Haiku's have the axes of an image.
OF_A_NORM = frozenset({"scale", "bias", "offset", "gamma", "beta"})
# Names that `exclude` allows even if the network lacks them: modules and common parameters.
COMMON_NAMES = frozenset({"encoder", "projector", "predictor", "probe", "norm", "kernel", "bias", "scale"})


@checked("optimizer")
def lars(
    schedule: Schedule,
    apart: tuple[str, ...] = (),
    *,
    momentum: Decay = 0.9,
    nesterov: bool = False,
    weight_decay: NonNegative = 0.0,
    exclude: tuple[str, ...] | None = None,
    exclude_from_adaptation: tuple[str, ...] | None = None,
    trust_coefficient: Positive = 1e-3,
    momentum_order: Literal["classic", "lr_last", "popular"] = "classic",
    clip_norm: NonNegative = 0.0,
    shard_state: bool = False,
    alternate: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """Layer-wise adaptive rate scaling (You et al., 2017), as in SimCLR's ``LARSOptimizer``.

    The gradient ``g + weight_decay * w`` of a parameter is multiplied by its trust ratio,
    ``trust_coefficient * |w| / |g + weight_decay * w|`` (1 if either norm is 0, and for excluded parameters),
    and by the learning rate, then added to the momentum. This order is ``momentum_order="classic"``.
    ``"lr_last"`` multiplies by the learning rate after the momentum (BYOL, MoCo v3; different only if the rate
    changes), ``"popular"`` also by the trust ratio after the momentum (SimCLR's ``classic_momentum=False``).

    SimCLR's additional L2 penalty on the probe's kernel is ``exclude=("norm", "bias")`` with
    ``exclude_from_adaptation=("norm", "bias", "probe")``.

    Args:
      exclude: parts of parameter paths, or ``norm``, without weight decay and layer-wise rate; default: norm,
          bias, probe.
      exclude_from_adaptation: parts of parameter paths, or ``norm``, without layer-wise rate; default: those of
          ``exclude``.
      trust_coefficient: ratio of step length to parameter norm.
      momentum_order: order of operations: classic (learning rate, then momentum), lr_last, or popular (momentum
          before the trust ratio).
    """
    exclude = EXCLUDED["lars"] if exclude is None else _names("optimizer.exclude", exclude)
    unadapted = _names(
        "optimizer.exclude_from_adaptation",
        exclude if exclude_from_adaptation is None else exclude_from_adaptation,
    )
    decay, trace = _decay(weight_decay, exclude), _momentum(momentum, nesterov)
    ratio = optax.masked(optax.scale_by_trust_ratio(trust_coefficient=trust_coefficient), _mask(unadapted))

    def chain(rate: optax.GradientTransformation) -> Parts:
        return {
            "classic": (decay, ratio, rate, trace),
            "lr_last": (decay, ratio, trace, rate),
            "popular": (decay, trace, ratio, rate),
        }[momentum_order]

    return _rule(chain, schedule, apart, (*exclude, *unadapted), clip_norm, shard_state, alternate)


@checked("optimizer")
def sgd(
    schedule: Schedule,
    apart: tuple[str, ...] = (),
    *,
    momentum: Decay = 0.9,
    nesterov: bool = False,
    weight_decay: NonNegative = 0.0,
    exclude: tuple[str, ...] | None = None,
    clip_norm: NonNegative = 0.0,
    shard_state: bool = False,
    alternate: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """SGD as in PyTorch and MoCo: L2 in the gradient, then momentum, then the learning rate."""
    exclude = EXCLUDED["sgd"] if exclude is None else _names("optimizer.exclude", exclude)
    decay, trace = _decay(weight_decay, exclude), _momentum(momentum, nesterov)
    return _rule(
        lambda rate: (decay, trace, rate), schedule, apart, exclude, clip_norm, shard_state, alternate
    )


@checked("optimizer")
def adam(
    schedule: Schedule,
    apart: tuple[str, ...] = (),
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: Positive = 1e-8,
    nesterov: bool = False,
    weight_decay: NonNegative = 0.0,
    exclude: tuple[str, ...] | None = None,
    clip_norm: NonNegative = 0.0,
    shard_state: bool = False,
    alternate: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """Adam (Kingma & Ba, 2015) as in PyTorch, with L2 in the gradient; ``nesterov``: Nadam (Dozat, 2016)."""
    exclude = EXCLUDED["adam"] if exclude is None else _names("optimizer.exclude", exclude)
    decay, moments = (
        _decay(weight_decay, exclude),
        optax.scale_by_adam(b1, b2, eps, nesterov=nesterov),
    )
    return _rule(
        lambda rate: (decay, moments, rate), schedule, apart, exclude, clip_norm, shard_state, alternate
    )


@checked("optimizer")
def adamw(
    schedule: Schedule,
    apart: tuple[str, ...] = (),
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: Positive = 1e-8,
    nesterov: bool = False,
    weight_decay: NonNegative = 0.0,
    exclude: tuple[str, ...] | None = None,
    clip_norm: NonNegative = 0.0,
    shard_state: bool = False,
    alternate: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019): outside the moments, times the rate.

    Args:
      weight_decay: decoupled weight decay: this times the weights and the learning rate is subtracted from the
          weights.
      exclude: parts of parameter paths, or ``norm``, without weight decay; default: norm and bias.
    """
    exclude = EXCLUDED["adamw"] if exclude is None else _names("optimizer.exclude", exclude)
    decay, moments = (
        _decay(weight_decay, exclude),
        optax.scale_by_adam(b1, b2, eps, nesterov=nesterov),
    )
    return _rule(
        lambda rate: (moments, decay, rate), schedule, apart, exclude, clip_norm, shard_state, alternate
    )


Parts = tuple[optax.GradientTransformation, ...]


def _decay(weight_decay: float, exclude: tuple[str, ...]) -> optax.GradientTransformation:
    return optax.add_decayed_weights(weight_decay, mask=_mask(exclude)) if weight_decay else optax.identity()


def _momentum(momentum: float, nesterov: bool) -> optax.GradientTransformation:
    return optax.trace(momentum, nesterov) if momentum else optax.identity()


def _rule(
    chain: Callable[[optax.GradientTransformation], Parts],
    schedule: Schedule,
    apart: tuple[str, ...],
    excluded: tuple[str, ...],
    clip_norm: float,
    shard_state: bool,
    alternate: tuple[str, ...],
) -> optax.GradientTransformation:
    """Return the update rule: clipping, then the parts that ``chain`` returns for the learning-rate step.

    Raises:
      ValueError: at ``init``, a name in ``excluded`` or ``alternate`` occurs in no parameter.
    """
    alternate = _names("optimizer.alternate", alternate)
    clip = _clip(clip_norm, apart) if clip_norm else optax.identity()

    def rule(schedule: Schedule) -> optax.GradientTransformation:
        return optax.chain(clip, *chain(optax.scale_by_learning_rate(schedule)))

    update_rule = _in_turns(rule, schedule, alternate) if alternate else rule(schedule)

    def init(params: PyTree) -> optax.OptState:
        _check_names_occur("exclude", excluded, params, COMMON_NAMES)
        _check_names_occur("alternate", alternate, params)
        return update_rule.init(params)

    transformation = optax.GradientTransformation(init, update_rule.update)
    return _shared(transformation) if shard_state else transformation


def _clip(most: float, apart: tuple[str, ...]) -> optax.GradientTransformation:
    """Return clipping by the global norm, with a separate norm for the modules in ``apart``."""
    clip = optax.clip_by_global_norm(most)

    def update(updates: PyTree, params: PyTree | None = None) -> PyTree:
        parts = (
            {name: tree for name, tree in updates.items() if (name in apart) == by_itself}
            for by_itself in (False, True)
        )
        clipped = [clip.update(part, clip.init(part))[0] for part in parts]
        return clipped[0] | clipped[1]

    return optax.stateless(update) if apart else clip


def _in_turns(
    rule: Callable[[Schedule], optax.GradientTransformation], schedule: Schedule, names: tuple[str, ...]
) -> optax.GradientTransformation:
    """Return a rule that updates the named parameters at even steps and all others at odd steps."""

    def at(turn: int) -> optax.GradientTransformation:
        rate = schedule if callable(schedule) else lambda count: schedule
        own = rule(lambda count: rate(2 * count + turn))  # a rule counts only its own steps
        return optax.conditionally_mask(own, lambda step: step % 2 == turn)

    def turns(params: PyTree) -> PyTree:
        def turn(path, leaf):
            return "first" if any(part in names for part in _parts(path)) else "second"

        return jax.tree_util.tree_map_with_path(turn, params)

    return optax.partition({"first": at(0), "second": at(1)}, turns)


def _shared(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Distribute a rule: each device computes and stores its share of the same updates."""

    def share(tree: PyTree) -> PyTree:
        return jax.tree.map(sharding.shard_first_axis, tree)

    def update(
        grads: PyTree, state: optax.OptState, params: PyTree | None = None
    ) -> tuple[PyTree, optax.OptState]:
        updates, state = rule.update(share(grads), state, share(params))
        return jax.tree.map(sharding.replicate, updates), state

    return optax.GradientTransformation(lambda params: rule.init(share(params)), update)


def _mask(exclude: tuple[str, ...]) -> Callable[[PyTree], PyTree]:
    """Return a function of the parameters that returns True for each one that is not excluded."""

    def included(params: PyTree) -> PyTree:
        leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=_of_the_other_turn)
        layers = [(_parts(path), 0 if _of_the_other_turn(leaf) else jnp.ndim(leaf)) for path, leaf in leaves]
        with_weight = {path[:-1] for path, axes in layers if _is_weight(path, axes)}
        kept = [of for of, (_, leaf) in zip(layers, leaves, strict=True) if not _of_the_other_turn(leaf)]

        def names(path: tuple[str, ...], axes: int) -> set[str]:
            other = "bias" if path[:-1] in with_weight else "norm"
            return {*path} if _is_weight(path, axes) else {*path, other}

        keep = [names(path, axes).isdisjoint(exclude) for path, axes in kept]
        return jax.tree.unflatten(jax.tree.structure(params), keep)

    return included


def _of_the_other_turn(leaf: PyTree) -> bool:
    """Return whether a leaf stands for a parameter that ``alternate`` updates at the other steps."""
    return isinstance(leaf, optax.MaskedNode)


def _is_weight(path: tuple[str, ...], axes: int) -> bool:
    return path[-1:] == ("kernel",) or (axes > 1 and OF_A_NORM.isdisjoint(path[-1:]))


def _parts(path: tuple) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _check_names_occur(
    option: str, names: Iterable[str], params: PyTree, known: frozenset[str] = frozenset()
) -> None:
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    known = known.union(*map(_parts, paths))
    for name in names:
        if name not in known:
            raise ValueError(
                f"optimizer.{option} contains {name!r}, which is not part of any parameter's"
                f" path{_nearest(name, known)}."
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)``, or an empty string."""
    matches = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _names(option: str, value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{option} is {value!r}; it must be a tuple of names such as ('norm', 'bias').")
    return tuple(value)
