"""Encoder: resnet and vit for images; mlp, conv1d and transformer for other examples.

A function takes the options of batch norm and the dtype of the computation, and returns a Flax linen module or
an :class:`~contrastive_jax.models.adapters.Encoder`.
"""

from typing import Annotated, Literal

from contrastive_jax.kinds import Count, CountOrZero, Ge, Le, checked
from contrastive_jax.models import resnet as residual
from contrastive_jax.models.norm import Norm
from contrastive_jax.models.sequence import MLP, Conv1D, Transformer
from contrastive_jax.models.vit import ViT


@checked("encoder")
def resnet(
    norm: Norm,
    dtype,
    remat: bool = False,
    *,
    depth: Literal[18, 34, 50, 101, 152] = 18,
    width: Annotated[float, Ge(1 / 64)] = 1.0,
    stem: Literal["cifar", "imagenet"] = "cifar",
    variant: Literal["torchvision", "simclr"] = "torchvision",
    zero_init: bool = True,
    kernel_init: Literal["fan_in", "fan_out"] = "fan_in",
) -> residual.ResNet:
    """Return a residual network (He et al., 2016).

    Args:
      norm: options of batch norm.
      dtype: type of the computation.
      remat: whether blocks are recomputed in the backward pass.
      depth: number of layers: 18, 34, 50, 101 or 152.
      width: multiplier of all channel counts; 1.0 means 64 channels in the first group.
      stem: first layers: cifar (3x3, stride 1) or imagenet (7x7, stride 2, max-pool).
      variant: torchvision, or simclr: a projection shortcut in the first block of every group, SAME max-
        pooling (Chen et al., 2020, their code).
      zero_init: whether the last norm scale of every residual block starts at 0.
      kernel_init: variance of a convolution's normal initial weights: fan_in, 1 / fan-in (SimCLR's code), or
        fan_out, 2 / fan-out (torchvision and MoCo).

    Raises:
      ValueError: an option is out of its range.
    """
    return residual.ResNet(
        depth, round(64 * width), stem, variant, zero_init, kernel_init, norm, dtype, remat
    )


@checked("encoder")
def vit(
    norm: Norm,
    dtype,
    remat: bool = False,
    *,
    patch: Count = 4,
    dim: Annotated[int, Ge(4)] = 192,
    layers: Count = 12,
    heads: Count = 3,
    hidden: CountOrZero = 0,
    variant: Literal["mean", "class_token"] = "mean",
    frozen_patches: bool = False,
) -> ViT:
    """Return a vision transformer (Dosovitskiy et al., 2021); by default ViT-Tiny with patches for 32 pixels.

    Args:
      norm: unused; the network has layer norm only.
      dtype: type of the computation.
      remat: whether blocks are recomputed in the backward pass.
      patch: side of a patch in pixels; must divide the image's side.
      dim: width of tokens and features; a multiple of 4 and of ``heads``.
      layers: number of transformer blocks.
      heads: number of attention heads.
      hidden: width of the MLP in each block; 0: 4 x dim.
      variant: mean: fixed positions and the mean of the tokens; class_token: learned positions and a class token,
        as in torchvision and timm (Dosovitskiy et al., 2021).
      frozen_patches: whether the projection of patches keeps its random first weights (MoCo v3, Chen et al.,
        2021, section 4.2).

    Raises:
      ValueError: an option is out of its range.
    """
    _check_width(dim, heads)
    return ViT(patch, dim, layers, heads, hidden or 4 * dim, dtype, remat, frozen_patches, variant)


def _check_width(dim: int, heads: int) -> None:
    if dim % 4 or dim % heads:
        raise ValueError(f"encoder.dim is {dim}; it must be a multiple of 4 and of encoder.heads, {heads}.")


@checked("encoder")
def mlp(norm: Norm, dtype, *, layers: Count = 4, width: Count = 256) -> MLP:
    """Return a perceptron on flattened examples of any shape; by default SCARF's (Bahri et al., 2022).

    Args:
      norm: unused; the network has no batch norm.
      dtype: type of the computation.
      layers: number of linear layers, each with ReLU.
      width: width of every layer and of the features.
    """
    return MLP(layers, width, dtype)


@checked("encoder")
def conv1d(
    norm: Norm, dtype, *, layers: Annotated[int, Ge(1), Le(16)] = 3, width: Count = 64, kernel: Count = 3
) -> Conv1D:
    """Return dilated convolutions over time, as in TS2Vec (Yue et al., 2022), with the maximum over time.

    Args:
      norm: unused; the network has no batch norm.
      dtype: type of the computation.
      layers: number of residual blocks; block i has a dilation of 2^i steps.
      width: number of channels and of features.
      kernel: length of a convolution, in steps.
    """
    return Conv1D(layers, width, kernel, dtype)


@checked("encoder")
def transformer(
    norm: Norm,
    dtype,
    remat: bool = False,
    *,
    vocabulary: CountOrZero = 0,
    dim: Annotated[int, Ge(4)] = 64,
    layers: Count = 2,
    heads: Count = 4,
    hidden: CountOrZero = 0,
    padding_id: Annotated[int, Ge(-1)] = -1,
) -> Transformer:
    """Return a transformer for token ids or series, with the blocks and the fixed positions of ``vit``.

    Args:
      norm: unused; the network has layer norm only.
      dtype: type of the computation.
      remat: whether blocks are recomputed in the backward pass.
      vocabulary: number of token ids; 0 for series.
      dim: width of tokens and features; a multiple of 4 and of ``heads``.
      layers: number of transformer blocks.
      heads: number of attention heads.
      hidden: width of the MLP in each block; 0: 4 x dim.
      padding_id: token id that attention and the average leave out; -1: none.

    Raises:
      ValueError: an option is out of its range.
    """
    _check_width(dim, heads)
    return Transformer(vocabulary, dim, layers, heads, hidden or 4 * dim, padding_id, dtype, remat)
