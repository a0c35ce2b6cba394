"""Batch normalisation whose scope is a choice: over all views, each view apart, or groups of examples.

Activations have one row for each view of each example, ``[N, ..., c]`` with N = B * W and row
``example * W + view``. A group is a set of rows. The moments of every row are taken over space where
the row lies, and only these ``[N, c]`` numbers are averaged within groups, by a product with the
``[N, G]`` one-hot membership: no image crosses a device, and the result does not depend on how many
devices there are.
"""

import dataclasses
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.lax import Precision

from contrastive_jax import sharding

Array = jax.Array
SCOPES = ("joint", "per_view", "groups")


@dataclasses.dataclass(frozen=True)
class Norm:
    """Checked options of :func:`norm`."""

    scope: str
    groups: int
    momentum: float
    epsilon: float
    unbiased: bool


def norm(
    *,
    scope: str = "joint",
    groups: int = 1,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    unbiased: bool = False,
) -> Norm:
    """Options of every batch norm of a network.

    ``scope`` says which rows share their statistics: "joint" all views of the global batch (SimCLR),
    "per_view" each view apart (BYOL, MoCo with synchronised statistics), "groups" each view apart within
    ``groups`` groups of examples (MoCo, He et al., 2020, section 3.3: one group a GPU).
    Running statistics keep ``momentum`` of the old value; ``unbiased`` stores n/(n-1) times the variance,
    as PyTorch does, and changes nothing else. Raises ValueError for a value outside its range.

    Args:
      scope: which rows share batch-norm statistics: joint (all views), per_view, or groups (of examples, each
        view apart).
      groups: groups of examples, for the scope of that name; divides the batch.
      momentum: share of the old running statistics that a step keeps.
      epsilon: added to a variance.
      unbiased: running variances are stored times n / (n - 1), as PyTorch does.
    """
    if scope not in SCOPES:
        raise ValueError(f"norm.scope is {scope!r}; it must be one of {', '.join(SCOPES)}.")
    if groups < 1:
        raise ValueError(f"norm.groups is {groups}; it must be at least 1.")
    if groups > 1 and scope != "groups":
        raise ValueError(f"norm.groups is {groups} and norm.scope is {scope!r}; groups need scope 'groups'.")
    if not 0 <= momentum < 1:
        raise ValueError(f"norm.momentum is {momentum}; it must be in [0, 1).")
    if epsilon <= 0:
        raise ValueError(f"norm.epsilon is {epsilon}; it must be positive.")
    return Norm(scope, groups, momentum, epsilon, unbiased)


class Members(NamedTuple):
    """Which rows share their statistics."""

    row: Array  # [N, G] one-hot
    count: Array  # [G] rows in each group


def members(norm: Norm, batch: int, views: int, groups: Array | None, dtype) -> Members | None:
    """The groups of ``batch * views`` rows, or None where all rows are one group.

    ``groups`` gives each example's group, ``[B]`` int32 in [0, norm.groups); without it group g is the
    g-th run of B / groups examples. Raises ValueError where the batch does not split evenly.
    """
    if groups is not None and norm.scope != "groups":
        raise ValueError(f"group ids were given and norm.scope is {norm.scope!r}; they need scope 'groups'.")
    if batch % norm.groups:
        raise ValueError(f"A batch of {batch} examples does not split into norm.groups = {norm.groups}.")
    if norm.scope == "joint" or norm.groups * views == 1:
        return None
    if groups is None:
        groups = jnp.arange(batch, out_sharding=sharding.rows_sharding()) // (batch // norm.groups)
    group = jnp.arange(views) * norm.groups + sharding.spread(groups)[:, None]
    row = jax.nn.one_hot(group.reshape(batch * views), views * norm.groups, dtype=dtype)
    return Members(row, row.sum(0))


def average(x: Array, members: Members | None) -> Array:
    """``[N, ..., c]`` to means over rows and space: ``[c]`` of all, or ``[G, c]`` of groups (0 if empty)."""
    if members is None:
        return x.mean(range(x.ndim - 1))
    total = jnp.einsum(
        "ng,nc->gc",
        members.row,
        x.mean(range(1, x.ndim - 1)),
        precision=Precision.HIGHEST,
        out_sharding=sharding.REPLICATED if sharding.on_mesh() else None,
    )
    return total / jnp.maximum(members.count, 1)[:, None]


def to_rows(statistic: Array, members: Members | None, ndim: int) -> Array:
    """The inverse: every row's statistic, in a shape that broadcasts to ``ndim`` axes."""
    if members is None:
        return statistic
    rows = jnp.einsum("ng,gc->nc", members.row, statistic, precision=Precision.HIGHEST)
    return jnp.expand_dims(rows, tuple(range(1, ndim - 1)))


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe & Szegedy, 2015) of ``[N, ..., c]`` over a group's rows and space.

    Statistics and normalisation are in float32, or float64 for float64 activations, whatever the compute
    dtype. Running statistics average the groups in proportion to their rows. ``centre=False`` leaves out
    the bias.
    """

    norm: Norm
    centre: bool = True

    @nn.compact
    def __call__(self, x: Array, members: Members | None, *, train: bool) -> Array:
        """Returns the normalised activations, float32 (float64 for float64)."""
        shape = (x.shape[-1],)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape)
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape) if self.centre else 0.0
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))

        if not train:
            mean, var = running_mean.value, running_var.value
            return (x - mean) * (jax.lax.rsqrt(var + self.norm.epsilon) * scale) + bias

        pixels, groups = math.prod(x.shape[1:-1]), 1 if members is None else len(members.count)
        if x.shape[0] * pixels < 2 * groups:
            raise ValueError(
                f"Batch norm {'/'.join(self.path)} sees one value per channel and group in activations of "
                f"shape {x.shape}; it needs a larger batch or fewer groups."
            )

        # The second moment is taken about the mean: E[x^2] - E[x]^2 loses digits where the mean is large.
        # The last term is 0 and carries the derivative that the shift, held constant, leaves out.
        mean = average(x, members)
        shift = jax.lax.stop_gradient(mean)
        var = average(jnp.square(x - to_rows(shift, members, x.ndim)), members) - jnp.square(mean - shift)

        values = pixels * (x.shape[0] if members is None else members.count[:, None])
        correction = values / jnp.maximum(values - 1, 1) if self.norm.unbiased else 1.0
        for running, new in ((running_mean, mean), (running_var, var * correction)):
            if members is not None:
                new = (new * members.count[:, None]).sum(0) / x.shape[0]
            new = self.norm.momentum * running.value + (1 - self.norm.momentum) * new
            running.value = new.astype(running.value.dtype)

        multiplier = jax.lax.rsqrt(var + self.norm.epsilon) * scale
        return (x - to_rows(mean, members, x.ndim)) * to_rows(multiplier, members, x.ndim) + bias
