"""Encoder of images.

A function takes the options of batch norm and the dtype to compute in, and returns a Flax linen module or a
:class:`~contrastive_jax.models.encoder.Encoder`.
"""

from contrastive_jax.models import resnet as residual
from contrastive_jax.models.norm import Norm
from contrastive_jax.models.vit import ViT


def resnet(
    norm: Norm,
    dtype,
    *,
    depth: int = 18,
    width: float = 1.0,
    stem: str = "cifar",
    variant: str = "torchvision",
    zero_init: bool = True,
    kernel_init: str = "fan_in",
    remat: bool = False,
) -> residual.ResNet:
    """Return a residual network (He et al., 2016).

    Args:
      norm: options of its batch norms.
      dtype: that it computes in.
      depth: layers of the ResNet: 18, 34, 50, 101 or 152.
      width: multiplies all channels; 1.0 is 64 in the first group.
      stem: first layers: cifar (3x3, stride 1) or imagenet (7x7, stride 2, max-pool).
      variant: torchvision, or simclr: a projection shortcut in the first block of every group, SAME max-
        pooling (Chen et al., 2020, their code).
      zero_init: the last norm scale of every residual block starts at 0.
      kernel_init: variance of a convolution's first weights, which are normal: fan_in, 1 / fan-in (SimCLR's code), or
        fan_out, 2 / fan-out (torchvision's, so MoCo's).
      remat: blocks are computed again in the backward pass.

    Raises:
      ValueError: an option out of its range.
    """
    for name, value, allowed in (
        ("depth", depth, residual.BLOCKS),
        ("stem", stem, residual.STRIDES),
        ("variant", variant, residual.VARIANTS),
        ("kernel_init", kernel_init, residual.KERNEL_INITS),
    ):
        if value not in allowed:
            raise ValueError(
                f"encoder.{name} is {value!r}; it must be one of {', '.join(map(str, allowed))}."
            )
    if not 64 * width >= 1:
        raise ValueError(f"encoder.width is {width}, less than one channel; it must be at least 1/64.")
    return residual.ResNet(
        depth, round(64 * width), stem, variant, zero_init, kernel_init, norm, dtype, remat
    )


def vit(
    norm: Norm,
    dtype,
    *,
    patch: int = 4,
    dim: int = 192,
    layers: int = 12,
    heads: int = 3,
    hidden: int = 0,
    remat: bool = False,
) -> ViT:
    """Return a vision transformer (Dosovitskiy et al., 2021); by default ViT-Tiny with patches for 32 pixels.

    Args:
      norm: unused, as it has layer norm only.
      dtype: that it computes in.
      patch: side of a patch, in pixels; divides the image's.
      dim: width of the tokens, and of the features; a multiple of 4 and of heads.
      layers: transformer blocks.
      heads: of the self-attention.
      hidden: width of a block's perceptron; 0 is 4 x dim.
      remat: blocks are computed again in the backward pass.

    Raises:
      ValueError: an option out of its range.
    """
    for name, value, least in (
        ("patch", patch, 1),
        ("layers", layers, 1),
        ("heads", heads, 1),
        ("hidden", hidden, 0),
    ):
        if value < least:
            raise ValueError(f"encoder.{name} is {value}; it must be at least {least}.")
    if dim < 4 or dim % 4 or dim % heads:
        raise ValueError(f"encoder.dim is {dim}; it must be a multiple of 4 and of encoder.heads, {heads}.")
    return ViT(patch, dim, layers, heads, hidden or 4 * dim, dtype, remat)
