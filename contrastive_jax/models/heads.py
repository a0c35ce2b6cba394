"""Heads on the encoder: projector, predictor and the online probe."""

from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from contrastive_jax.kinds import CountOrZero, checked
from contrastive_jax.models.norm import BatchNorm, Members, Norm

Array = jax.Array
Norms = Literal["all", "all_with_bias", "all_without_scale", "hidden", "none"]


class Dense(nn.Module):
    """A linear layer that multiplies in ``dtype`` and returns its float32 sums unrounded."""

    features: int
    bias: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map ``[N, d]`` to ``[N, features]``, float32 (float64 for float64)."""
        kernel = self.param("kernel", nn.initializers.zeros, (x.shape[-1], self.features))
        total = jnp.promote_types(self.dtype, jnp.float32)
        x = jnp.dot(x.astype(self.dtype), kernel.astype(self.dtype), preferred_element_type=total)
        return x + self.param("bias", nn.initializers.zeros, (self.features,)) if self.bias else x


class Head(nn.Module):
    """A multilayer perceptron on ``[N, d]``; without layers, the identity."""

    widths: tuple[int, ...]  # output width of each layer; 0: the head's input width
    normed: str
    norm: Norm
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, members: Members | None = None, *, train: bool = False) -> list[Array]:
        """Return every layer's output, hidden ones after their ReLU; the last is the head's output."""
        outputs: list[Array] = []
        for i, width in enumerate(self.widths, 1):
            last = i == len(self.widths)
            norm = self.normed.startswith("all") or (self.normed == "hidden" and not last)
            y = outputs[-1] if outputs else x
            y = Dense(width or x.shape[-1], not norm, self.dtype, name=f"dense{i}")(y)
            if norm:
                centre = not last or self.normed == "all_with_bias"
                scaled = not last or self.normed != "all_without_scale"
                y = BatchNorm(self.norm, centre, scaled, name=f"norm{i}")(y, members, train=train)
            outputs.append(y if last else nn.relu(y))
        return outputs


@checked("projector")
def projector(
    norm_options: Norm,
    dtype,
    *,
    layers: CountOrZero = 2,
    hidden: CountOrZero = 0,
    out: CountOrZero = 128,
    norm: Norms = "all",
    widths: Sequence[CountOrZero] = (),
) -> Head:
    """The projection head: ``layers`` linear layers, the hidden ones followed by ReLU.

    ``hidden`` is the width of all layers but the last, ``out`` that of the last, 0 the head's input width.
    ``widths`` sets every layer's width instead, such as (2048, 1024, 512, 128), and has priority. With
    ``layers=0`` the projection is the feature. ``norm``: "all" has batch norm after every layer, the last
    without bias (SimCLR, Chen et al., 2020), "all_with_bias" the last with bias too (SiMo's code),
    "all_without_scale" the last without bias and scale (MoCo v3's code), "hidden" after hidden layers only (BYOL,
    Grill et al., 2020), "none" nowhere (MoCo v2). Linear layers without batch
    norm have a bias. Raises ValueError for an option out of range.

    Args:
      norm_options: options of the head's batch norms.
      dtype: floating-point type of the computation.
      layers: number of linear layers; hidden ones are followed by ReLU; 0: no head.
      hidden: width of the hidden layers; 0: the head's input width.
      out: width of the last layer; 0: the head's input width.
      norm: layers with batch norm: all (the last one without bias), all_with_bias, all_without_scale (the last one
        without bias and scale), hidden, or none.
      widths: width of every layer, instead of ``layers``, ``hidden`` and ``out``; (): use those.
    """
    return _head(norm_options, dtype, layers, hidden, out, norm, widths)


@checked("predictor")
def predictor(
    norm_options: Norm,
    dtype,
    *,
    layers: CountOrZero = 0,
    hidden: CountOrZero = 0,
    out: CountOrZero = 0,
    norm: Norms = "hidden",
    widths: Sequence[CountOrZero] = (),
) -> Head:
    """The prediction head on the projection, by default none; options as for :func:`projector`.

    Args:
      norm_options: options of the head's batch norms.
      dtype: floating-point type of the computation.
      layers: number of linear layers; hidden ones are followed by ReLU; 0: no head.
      hidden: width of the hidden layers; 0: the head's input width.
      out: width of the last layer; 0: the head's input width.
      norm: layers with batch norm: all (the last one without bias), all_with_bias, all_without_scale (the last one
        without bias and scale), hidden, or none.
      widths: width of every layer, instead of ``layers``, ``hidden`` and ``out``; (): use those.
    """
    return _head(norm_options, dtype, layers, hidden, out, norm, widths)


def _head(norm_options, dtype, layers, hidden, out, norm, widths) -> Head:
    widths = tuple(widths) or ((hidden,) * (layers - 1) + (out,) if layers else ())
    return Head(widths, norm, norm_options, dtype)
