"""Batch normalisation over all views, each view separately, or groups of examples.

Activations have one row for each view of each example, ``[N, ..., c]`` with N = B * W and row
``example * W + view``. A group is a set of rows. Each row's moments over space are computed on its
device, and only these ``[N, c]`` numbers are averaged within groups, by a product with the ``[N, G]``
one-hot membership: images stay on their device, and the result does not depend on the number of
devices.
"""

import dataclasses
import functools
import math
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.lax import Precision

from contrastive_jax import native, sharding
from contrastive_jax.kinds import Count, Decay, Positive, checked

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Norm:
    """Checked options of :func:`norm`."""

    scope: str
    groups: int
    momentum: float
    epsilon: float
    unbiased: bool


@checked("norm")
def norm(
    *,
    scope: Literal["joint", "per_view", "groups"] = "joint",
    groups: Count = 1,
    momentum: Decay = 0.9,
    epsilon: Positive = 1e-5,
    unbiased: bool = False,
) -> Norm:
    """Options of all batch norms of a network.

    ``scope`` selects the rows that share statistics: "joint" all views of the global batch (SimCLR),
    "per_view" each view separately (BYOL, MoCo with synchronised statistics), "groups" each view separately
    within ``groups`` groups of examples (MoCo, He et al., 2020, section 3.3: one group per GPU).
    Running statistics keep ``momentum`` of the old value; ``unbiased`` affects only the stored variance.
    Raises ValueError for a value out of range.

    Args:
      scope: rows that share batch-norm statistics: joint (all views), per_view, or groups (groups of examples,
        each view separately).
      groups: number of groups of examples, for ``scope`` groups; must divide the batch size.
      momentum: decay of the running statistics per step.
      epsilon: constant that is added to a variance.
      unbiased: whether running variances are multiplied by n / (n - 1), as in PyTorch.
    """
    if groups > 1 and scope != "groups":
        raise ValueError(
            f"norm.groups is {groups} and norm.scope is {scope!r}; norm.groups needs norm.scope='groups'."
        )
    return Norm(scope, groups, momentum, epsilon, unbiased)


class Members(NamedTuple):
    """Groups of rows that share their statistics."""

    row: Array  # [N, G] one-hot membership
    size: Array  # [G] number of rows in each group


def members(norm: Norm, batch: int, views: int, groups: Array | None, dtype) -> Members | None:
    """Return the groups of ``batch * views`` rows, or None if all rows are one group.

    ``groups`` is each example's group, ``[B]`` int32 in [0, norm.groups); None: group g is the g-th block of
    B / groups consecutive examples. Raises ValueError if the groups do not divide the batch, or if ``groups``
    are given for another scope.
    """
    if groups is not None and norm.scope != "groups":
        raise ValueError(f"norm.scope is {norm.scope!r}; group ids need norm.scope='groups'.")
    if batch % norm.groups:
        raise ValueError(f"norm.groups is {norm.groups}; it must divide the batch of {batch} examples.")
    if norm.scope == "joint" or norm.groups * views == 1:
        return None
    if groups is None:
        groups = jnp.arange(batch, out_sharding=sharding.rows_sharding()) // (batch // norm.groups)
    group = jnp.arange(views) * norm.groups + sharding.shard_batch(groups)[:, None]
    row = jax.nn.one_hot(group.reshape(batch * views), views * norm.groups, dtype=dtype)
    return Members(row, row.sum(0))


def average(x: Array, members: Members | None) -> Array:
    """Average ``[N, ..., c]`` over rows and space: ``[c]`` for all rows, ``[G, c]`` for groups (0 if empty)."""
    if members is None:
        return x.mean(range(x.ndim - 1))
    total = jnp.einsum(
        "ng,nc->gc",
        members.row,
        x.mean(range(1, x.ndim - 1)),
        precision=Precision.HIGHEST,
        out_sharding=sharding.REPLICATED if sharding.on_mesh() else None,
    )
    return total / jnp.maximum(members.size, 1)[:, None]


def to_rows(statistic: Array, members: Members | None, ndim: int) -> Array:
    """Return every row's statistic from its group's, in a shape that broadcasts to ``ndim`` axes."""
    if members is None:
        return statistic
    rows = jnp.einsum("ng,gc->nc", members.row, statistic, precision=Precision.HIGHEST)
    return jnp.expand_dims(rows, tuple(range(1, ndim - 1)))


# On a CPU, kernels compute the sums over space, forward and backward, in one pass over the activations.


def _sums(name: str, arrays: tuple[Array, ...]) -> list[Array]:
    """Return two arrays ``[N, c]`` of a kernel that reduces arrays ``[N, ..., c]`` over space."""

    def on_each(*arrays):
        rows, channels = arrays[0].shape[0], arrays[0].shape[-1]
        arrays = [x.reshape(rows, -1, channels) for x in arrays]
        return native.call(name, [jax.ShapeDtypeStruct((rows, channels), jnp.float32)] * 2, *arrays)

    return sharding.each_device(on_each, arrays)


def _over_space(row: Array, like: Array) -> Array:
    return jnp.expand_dims(row, tuple(range(1, like.ndim - 1)))


@jax.custom_vjp
def row_moments(x: Array) -> tuple[Array, Array]:
    """Return mean and variance over space of every row and channel of ``[N, ..., c]``: ``[N, c]`` each."""
    mean, square = _sums("moments", (x,))
    return mean, square


def _row_moments_backward(saved, gradients):
    (x, mean), (of_mean, of_square) = saved, (_over_space(g, saved[0]) for g in gradients)
    return ((of_mean + 2 * of_square * (x - _over_space(mean, x))) / math.prod(x.shape[1:-1]),)


def _row_moments_forward(x):
    mean, square = row_moments(x)
    return (mean, square), (x, mean)


row_moments.defvjp(_row_moments_forward, _row_moments_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def normalise(
    x: Array, mean: Array, multiplier: Array, bias: Array, residual: Array | None, relu: bool
) -> Array:
    """Return ``(x - mean) * multiplier + bias (+ residual)``, after a ReLU if ``relu``.

    ``x`` and ``residual`` are ``[N, ..., c]``, the others ``[N, c]``.
    """
    y = (x - _over_space(mean, x)) * _over_space(multiplier, x) + _over_space(bias, x)
    y = y if residual is None else residual + y
    return nn.relu(y) if relu else y


def _normalise_forward(x, mean, multiplier, bias, residual, relu):
    y = normalise(x, mean, multiplier, bias, residual, relu)
    return y, (x, mean, multiplier, residual is not None, y if relu else None)


def _normalise_backward(relu, saved, gradient):
    x, mean, multiplier, has_residual, y = saved
    total, weighted = _sums("sums", (gradient, x, mean, *([y] if relu else [])))
    gradient = jnp.where(y > 0, gradient, 0) if relu else gradient
    of_x = gradient * _over_space(multiplier, x)
    return of_x, -multiplier * total, weighted, total, gradient if has_residual else None


normalise.defvjp(_normalise_forward, _normalise_backward)


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe & Szegedy, 2015) of ``[N, ..., c]`` over a group's rows and space.

    Statistics and normalisation are in float32, or float64 for float64 activations, at any compute dtype.
    Running statistics average the groups in proportion to their rows. ``centre=False`` omits the bias,
    ``scaled=False`` the scale.
    """

    norm: Norm
    centre: bool = True
    scaled: bool = True

    @nn.compact
    def __call__(
        self,
        x: Array,
        members: Members | None,
        *,
        train: bool,
        residual: Array | None = None,
        relu: bool = False,
    ) -> Array:
        """Return the normalised activations plus ``residual``, after a ReLU if ``relu``; float32 or float64."""

        def end(y):
            y = y if residual is None else residual + y
            return nn.relu(y) if relu else y

        shape = (x.shape[-1],)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape)
        scale = self.param("scale", nn.initializers.ones, shape) if self.scaled else 1.0
        bias = self.param("bias", nn.initializers.zeros, shape) if self.centre else 0.0
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))

        if not train:
            mean, var = running_mean.value, running_var.value
            return end((x - mean) * (jax.lax.rsqrt(var + self.norm.epsilon) * scale) + bias)

        pixels, groups = math.prod(x.shape[1:-1]), 1 if members is None else len(members.size)
        if x.shape[0] * pixels < 2 * groups:
            raise ValueError(
                f"Batch norm {'/'.join(self.path)} has one value per channel and group in activations"
                f" of shape {x.shape}; use a larger batch or fewer groups."
            )

        # Squares are taken about the mean, since E[x^2] - E[x]^2 loses digits for a large mean. The last term
        # is 0 and adds the derivative that the constant shift omits.
        kernels = native.on_cpu() and x.ndim > 2 and x.dtype == jnp.float32 and native.available()
        means, squares = row_moments(x) if kernels else (x, None)
        mean = average(means, members)
        shift = jax.lax.stop_gradient(mean)
        square = jnp.square(means - to_rows(shift, members, means.ndim))
        square = square if squares is None else square + squares
        var = average(square, members) - jnp.square(mean - shift)

        values = pixels * (x.shape[0] if members is None else members.size[:, None])
        correction = values / jnp.maximum(values - 1, 1) if self.norm.unbiased else 1.0
        for running, new in ((running_mean, mean), (running_var, var * correction)):
            if members is not None:
                new = (new * members.size[:, None]).sum(0) / x.shape[0]
            new = self.norm.momentum * running.value + (1 - self.norm.momentum) * new
            running.value = new.astype(running.value.dtype)

        multiplier = jax.lax.rsqrt(var + self.norm.epsilon) * scale
        if kernels:
            full = (x.shape[0], x.shape[-1])
            rows = [
                to_rows(y, members if y.ndim == 2 else None, 2) for y in (mean, multiplier, jnp.asarray(bias))
            ]
            rows = [jnp.broadcast_to(y, full, out_sharding=sharding.rows_sharding()) for y in rows]
            residual = None if residual is None else residual.astype(x.dtype)
            return normalise(x, *rows, residual, relu)
        return end((x - to_rows(mean, members, x.ndim)) * to_rows(multiplier, members, x.ndim) + bias)
