"""Encoder weights in files, with the names of torchvision or timm, and the metadata needed to use them.

Files are safetensors, or of PyTorch (``.pth``), of which tensors alone are read. Metadata map names to text, the
only kind that safetensors has; those of :data:`FACTS` are JSON. Reading a file executes no code.
"""

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from contrastive_jax import workdir as workdirs
from contrastive_jax.models import encoders, resnet, torchvision_names, vit_names
from contrastive_jax.models.norm import norm
from contrastive_jax.types import PyTree

SUFFIX = ".safetensors"
PYTORCH = (".pth", ".pt")
SAFE_TORCH = (2, 10)  # the first whose ``weights_only=True`` has no known way to run code
FACTS = ("encoder", "preprocessing", "config", "step")


class Weights(NamedTuple):
    """Contents of a weights file."""

    params: PyTree  # the encoder's, in NumPy
    stats: PyTree
    about: dict[str, Any]  # those of FACTS that the file has
    encoder: dict[str, Any]  # name and options of the encoder, as the arrays show them
    channels: int  # of the images


def is_file(path: str | os.PathLike) -> bool:
    """Return whether a path has the suffix of a weights file, which need not exist."""
    return str(path).endswith((SUFFIX, *PYTORCH))


def save(path: str | os.PathLike, params: PyTree, stats: PyTree, about: Mapping[str, Any]) -> None:
    """Write the encoder's arrays atomically and bit for bit, with the metadata ``about``, named as in FACTS.

    The names are torchvision's for a ResNet, timm's for a ViT of variant "class_token".
    """
    from safetensors.numpy import save_file

    import contrastive_jax

    if "class_token" in params:
        named = vit_names.to_state(params, about["encoder"]["patch"])
    else:
        named = torchvision_names.to_torchvision(params, stats)
    state = {name: np.ascontiguousarray(array) for name, array in named.items()}
    # "pt": other libraries expect this of a file for PyTorch.
    text = {"format": "pt", "contrastive_jax": contrastive_jax.__version__}
    text |= {name: json.dumps(workdirs.shareable(about[name])) for name in FACTS if name in about}
    with workdirs.replacing(path) as temporary:
        save_file(state, temporary, text)


def load(path: str | os.PathLike) -> Weights:
    """Read a file of :func:`save`, or the state dict of a ResNet or ViT of torchvision or timm.

    The ViT is of variant "class_token", see :func:`contrastive_jax.models.vit_names.from_state`. A file of PyTorch
    may hold the state dict under the key ``state_dict`` or ``model``.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file cannot be read, or does not hold such a network.
    """
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    state, text = (_of_pytorch(path), {}) if str(path).endswith(PYTORCH) else _of_safetensors(path)
    vit = vit_names.is_vit(state)
    try:
        _check_numbers(state)
        about = {name: json.loads(text[name]) for name in FACTS if name in text}
        if vit:
            params, options, count = vit_names.from_state(state, foreign="encoder" not in about)
            return Weights(params, {}, about, options, count)
        params, stats = torchvision_names.from_torchvision(state)
        _check_shapes(params)
        _check_statistics(state)
    except (ValueError, RecursionError) as error:  # RecursionError: metadata that is nested too deep
        network = (
            "ViT with a class token and the names of timm or torchvision"
            if vit
            else "ResNet with torchvision's names"
        )
        raise ValueError(f"{path} is not a {network}: {error}") from None
    return Weights(params, stats, about, {"name": "resnet", **architecture(params)}, channels(params))


def _of_safetensors(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
            return state, file.metadata() or {}
    except (SafetensorError, TypeError) as error:  # TypeError: an element type that NumPy lacks
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from None


def _of_pytorch(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Read the tensors of a file of PyTorch, whose other objects would run code and are refused."""
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{path} is a file of PyTorch, which needs torch: pip install 'contrastive_jax[torch]'; or save its state"
            " dict with safetensors.torch.save_file."
        ) from None
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < SAFE_TORCH:
        raise ValueError(
            f"{path} is a file of PyTorch, and torch is {torch.__version__}; it must be"
            f" {'.'.join(map(str, SAFE_TORCH))} or later: in earlier ones a file can run code (CVE-2025-32434,"
            " CVE-2026-24747). Or save its state dict with safetensors.torch.save_file."
        )
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything on damaged bytes
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} cannot be read as a file of tensors: {reason}") from None
    for key in ("state_dict", "model"):
        held = held[key] if isinstance(held, Mapping) and isinstance(held.get(key), Mapping) else held
    if not isinstance(held, Mapping) or not all(isinstance(one, torch.Tensor) for one in held.values()):
        raise ValueError(f"{path} does not hold a state dict, whose values are tensors.")
    known = (torch.float16, torch.float32, torch.float64)  # NumPy lacks bfloat16 and those of 8 bits
    state = {}
    for name, one in held.items():
        try:
            state[str(name)] = (
                (one.float() if one.is_floating_point() and one.dtype not in known else one).detach().numpy()
            )
        except (TypeError, RuntimeError):  # sparse, quantized or without data
            raise ValueError(
                f"{path} cannot be read as a file of tensors: its {name} is a {one.layout} {one.dtype}."
            ) from None
    return state


def _check_numbers(state: Mapping[str, np.ndarray]) -> None:
    for name, array in state.items():
        if not name.endswith("num_batches_tracked") and not np.issubdtype(array.dtype, np.floating):
            raise ValueError(f"its {name} is {array.dtype}; weights must be floating.")


def _check_shapes(params: PyTree) -> None:
    network = encoders.resnet(norm(), np.float32, **architecture(params))
    image = jax.ShapeDtypeStruct((1, 32, 32, channels(params)), np.float32)
    ours = jax.eval_shape(network.init, jax.random.key(0), image)["params"]
    if other := difference(params, ours):
        raise ValueError(f"its {other} (encoder.name=resnet is neither wide nor grouped).")


def _check_statistics(state: Mapping[str, np.ndarray]) -> None:
    for name, array in state.items():
        layer, _, leaf = name.rpartition(".")
        if leaf == "bias" and layer != "fc":
            for other in ("weight", "running_mean", "running_var"):
                beside = state.get(f"{layer}.{other}")
                if beside is None or np.shape(beside) != array.shape:
                    raise ValueError(f"its {layer} has no {other}, or one of another shape.")


def architecture(params: PyTree) -> dict[str, Any]:
    """Return the options of :func:`encoders.resnet` that match the names and shapes of its parameters.

    At depth 50 and more, "torchvision" and "simclr" have the same arrays, and the variant is "torchvision".

    Raises:
      ValueError: the parameters match no such network.
    """
    groups = (
        sum(name.startswith(f"group{group}_block") for name in params) for group in range(1, len(params))
    )
    blocks = tuple(filter(None, groups))
    bottleneck = "conv3" in params.get("group1_block0", {})
    depths = [d for d, counts in resnet.BLOCKS.items() if counts == blocks and (d >= 50) == bottleneck]
    if not depths or "stem_conv" not in params:
        raise ValueError(
            f"it has {blocks or 'no'} residual blocks in its groups, which matches no known ResNet."
        )
    height, _, _, channels = np.shape(params["stem_conv"]["kernel"])
    extra = not bottleneck and "shortcut_conv" in params["group1_block0"]
    return {
        "depth": depths[0],
        "width": channels / 64,
        "stem": "cifar" if height == 3 else "imagenet",
        "variant": "simclr" if extra else "torchvision",
    }


def channels(params: PyTree) -> int:
    """Return the number of input channels of a ResNet."""
    return np.shape(params["stem_conv"]["kernel"])[2]


def difference(here: PyTree, there: PyTree) -> str:
    """Return a description of the first array whose shape differs between two encoders' params, or ""."""
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
