"""An encoder in a file: safetensors, in torchvision's naming, with all that is needed to use it.

What a file says of itself is text by name (safetensors knows no other metadata); :data:`FACTS` are JSON.
No code is executed by reading one.
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from contrastive_jax import workdir as workdirs
from contrastive_jax.models import encoders, resnet, torchvision_names
from contrastive_jax.models.norm import norm
from contrastive_jax.types import PyTree

SUFFIX = ".safetensors"
FACTS = ("encoder", "preprocessing", "config", "step")


class Weights(NamedTuple):
    """Contents of a file."""

    params: PyTree  # of the encoder, numpy
    stats: PyTree
    about: dict[str, Any]  # of FACTS those that the file has


def is_file(path: str | os.PathLike) -> bool:
    """Return whether a path names such a file (or would)."""
    return str(path).endswith(SUFFIX)


def save(path: str | os.PathLike, params: PyTree, stats: PyTree, about: Mapping[str, Any]) -> None:
    """Write the encoder's arrays, bit for bit and whole or not at all; ``about`` by the names of FACTS."""
    from safetensors.numpy import save_file

    import contrastive_jax

    state = {
        name: np.ascontiguousarray(array)
        for name, array in torchvision_names.to_torchvision(params, stats).items()
    }
    # "pt": what other libraries want to read of a file for PyTorch.
    text = {"format": "pt", "contrastive_jax": contrastive_jax.__version__}
    text |= {name: json.dumps(workdirs.shareable(about[name])) for name in FACTS if name in about}
    with workdirs.replacing(path) as temporary:
        save_file(state, temporary, text)


def load(path: str | os.PathLike) -> Weights:
    """Read what :func:`save` wrote, or a torchvision ResNet's state dict that others saved as safetensors.

    Raises:
      FileNotFoundError: no such file.
      ValueError: no safetensors file, or not one of a ResNet.
    """
    from safetensors import SafetensorError, safe_open

    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        with safe_open(path, framework="numpy") as file:
            text = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, TypeError) as error:  # TypeError: an element type that NumPy lacks
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from None
    try:
        params, stats = torchvision_names.from_torchvision(state)
        about = {name: json.loads(text[name]) for name in FACTS if name in text}
        _check_shapes(params)
        _check_statistics(state)
    except (ValueError, RecursionError) as error:  # RecursionError: metadata that is nested too deep
        raise ValueError(f"{path} holds no ResNet in torchvision's naming: {error}") from None
    return Weights(params, stats, about)


def _check_shapes(params: PyTree) -> None:
    network = encoders.resnet(norm(), np.float32, **architecture(params))
    image = jax.ShapeDtypeStruct((1, 32, 32, channels(params)), np.float32)
    ours = jax.eval_shape(network.init, jax.random.key(0), image)["params"]
    if other := difference(params, ours):
        raise ValueError(f"its {other} (encoder.name=resnet is neither wide nor grouped).")


def _check_statistics(state: Mapping[str, np.ndarray]) -> None:
    for name, array in state.items():
        layer, _, leaf = name.rpartition(".")
        if leaf != "num_batches_tracked" and not np.issubdtype(array.dtype, np.floating):
            raise ValueError(f"its {name} is {array.dtype}; weights are floating numbers.")
        if leaf == "bias" and layer != "fc":
            for other in ("weight", "running_mean", "running_var"):
                if np.shape(state.get(f"{layer}.{other}")) != array.shape:
                    raise ValueError(f"{layer} lacks {other}, or has it in another shape.")


def architecture(params: PyTree) -> dict[str, Any]:
    """Read options of :func:`resnet.resnet` for arrays in its tree, read off their names and shapes.

    Where "torchvision" and "simclr" differ in no array (depth 50 and more) it is "torchvision".

    Raises:
      ValueError: they are of no such network.
    """
    blocks = [
        sum(name.startswith(f"group{group}_block") for name in params) for group in range(1, len(params))
    ]
    blocks = tuple(count for count in blocks if count)
    bottleneck = "conv3" in params.get("group1_block0", {})
    depths = [d for d, counts in resnet.BLOCKS.items() if counts == blocks and (d >= 50) == bottleneck]
    if not depths or "stem_conv" not in params:
        raise ValueError(f"it has {blocks or 'no'} residual blocks in its groups.")
    height, _, _, channels = np.shape(params["stem_conv"]["kernel"])
    extra = not bottleneck and "shortcut_conv" in params["group1_block0"]
    return {
        "depth": depths[0],
        "width": channels / 64,
        "stem": "cifar" if height == 3 else "imagenet",
        "variant": "simclr" if extra else "torchvision",
    }


def channels(params: PyTree) -> int:
    """Return the channels of the images that a ResNet reads."""
    return np.shape(params["stem_conv"]["kernel"])[2]


def difference(here: PyTree, there: PyTree) -> str:
    """Return the first array in which two encoders' params differ in shape, or ""."""
    one, two = (
        {
            "/".join(key.key for key in path): np.shape(array)
            for path, array in jax.tree.leaves_with_path(tree)
        }
        for tree in (here, there)
    )

    def shape(of, name):
        return "x".join(map(str, of[name])) if name in of else "absent"

    stem_first = sorted(one | two, key=lambda name: (not name.startswith("stem"), name))
    differing = [name for name in stem_first if one.get(name) != two.get(name)]
    return (
        f"{differing[0]} is {shape(one, differing[0])}, not {shape(two, differing[0])}" if differing else ""
    )
