"""Model FLOP utilisation: FLOP/s of a run over the published peak of its devices."""

import functools
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.extend import core

from contrastive_jax import models
from contrastive_jax.training.run import Run
from contrastive_jax.workdir.encoder import network_of


class Peak(NamedTuple):
    """Published peak TFLOP/s of one jax device in dense matrix products."""

    kind: str  # regular expression that matches jax's whole name of the device
    bfloat16: float | None  # None: no bfloat16 units
    float32: float  # at jax's default precision: TF32 if available, bfloat16 on a TPU


# GPUs: NVIDIA's data sheets, without sparsity (half of the figures with it). TPUs: cloud.google.com/tpu/docs,
# one page per version; a device of v2 or v3 is a core, half of a chip. A part of a GPU (MIG) has no figure.
PEAKS = (
    Peak(r"NVIDIA H[12]00 NVL", 835, 417.5),
    Peak(r"NVIDIA H100 PCIe", 756, 378),
    Peak(r"NVIDIA H[12]00( .*)?", 989.4, 494.7),
    Peak(r"NVIDIA A100[- ].*", 312, 156),
    Peak(r"(NVIDIA )?(Tesla )?V100-PCI.*", None, 14),
    Peak(r"(NVIDIA )?(Tesla )?V100-SXM2.*", None, 15.7),
    Peak(r"NVIDIA L4", 121, 60),
    Peak(r"(NVIDIA )?(Tesla )?T4", None, 8.1),
    Peak(r"TPU v2", 22.5, 22.5),
    Peak(r"TPU v3", 61.5, 61.5),
    Peak(r"TPU v4", 275, 275),
    Peak(r"TPU v5( lite|e)", 197, 197),
    Peak(r"TPU v5p?", 459, 459),
    Peak(r"TPU v6( lite|e)", 918, 918),
)


def peak(kind: str, dtype: str) -> float | None:
    """Return the published peak FLOP/s of a kind of device; None if there is none, as for a CPU."""
    device = next((row for row in PEAKS if re.fullmatch(row.kind, kind) and "MIG" not in kind), None)
    tera = {"bfloat16": device.bfloat16, "float32": device.float32}.get(dtype) if device else None
    return None if tera is None else tera * 1e12


def of_one_image_a_second(run: Run, together: int = 1) -> float | None:
    """Return the utilisation per image per second, to be multiplied by a rate; None: no published peak.

    ``together``: number of runs that the devices train at once, each at that rate.
    """
    most = peak(run.mesh.local_devices[0].device_kind, run.settings.dtype)
    return None if most is None else together * model_flops(run) / (run.mesh.size * most)


def model_flops(run: Run) -> float:
    """Return the FLOPs that training needs per image.

    A view with a gradient counts as three forward passes of the network (a backward pass is two), a view of an
    averaged target as one. Recomputation (``train.remat``, ``train.microbatches``), augmentation, loss and
    optimizer are not counted, so that they do not increase the utilisation (Chowdhery et al. 2022, appendix B).
    """
    network = network_of(run.settings)
    return sum(
        (3 * online + target) * _forward_flops(network, view) for view, online, target in run.recipe.encoded
    )


@functools.lru_cache(maxsize=16)
def _forward_flops(network: models.Network, view: jax.ShapeDtypeStruct) -> float:
    """Return the FLOPs of a forward pass in matrix products and convolutions, for one view."""

    def forward(params, stats, views):
        return network.apply(params, stats, views, train=False)[0].prediction

    weights = network.shapes(view)
    views = jax.ShapeDtypeStruct((1, 1, *view.shape), view.dtype)
    return _flops(jax.make_jaxpr(forward)(*weights, views).jaxpr)


def _flops(program: Any) -> float:
    """Return the FLOPs of matrix products and convolutions in a jaxpr; a multiply-add counts as two.

    Padding counts too, the body of a ``while`` counts once, and a ``cond`` counts as its largest branch. XLA's
    own count is not available for GPUs and TPUs before compilation, and lacks cuDNN's convolutions after it.
    """
    total = 0.0
    for equation in program.eqns:
        name, given, found = equation.primitive.name, equation.invars, equation.outvars
        if name == "conv_general_dilated":
            kernel, output = given[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[0]
            total += 2 * found[0].aval.size * math.prod(kernel) / kernel[output]
        elif name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * found[0].aval.size * math.prod(given[0].aval.shape[axis] for axis in contracted)
        else:
            inner = [_flops(getattr(part, "jaxpr", part)) for part in _programs(equation.params)]
            total += max(inner) if name == "cond" else sum(inner) * equation.params.get("length", 1)
    return total


def _programs(parameters: Mapping[str, Any]) -> list[Any]:
    """Return the programs in an equation's parameters."""
    lists = [value if isinstance(value, tuple | list) else [value] for value in parameters.values()]
    return [part for parts in lists for part in parts if isinstance(part, core.Jaxpr | core.ClosedJaxpr)]
