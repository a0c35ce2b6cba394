"""Conversion of a vision transformer's state dict, with timm's or torchvision's names, to this package's arrays."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from contrastive_jax.types import PyTree

HEAD = 64  # width of an attention head in ViT-Ti, S, B and L; the arrays do not show it
OTHER_HEADS = {  # width -> known network whose heads have another
    1280: "ViT-H with heads of 80",
    1408: "ViT-g with heads of 88",
    1664: "ViT-G with heads of 104",
}

# torchvision's names, as patterns -> timm's
TORCHVISION = (
    (r"class_token", "cls_token"),
    (r"encoder\.pos_embedding", "pos_embed"),
    (r"conv_proj\.(weight|bias)", r"patch_embed.proj.\1"),
    (r"encoder\.ln\.(weight|bias)", r"norm.\1"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.ln_([12])\.(weight|bias)", r"blocks.\1.norm\2.\3"),
    (
        r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_(weight|bias)",
        r"blocks.\1.attn.qkv.\2",
    ),
    (
        r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.out_proj\.(weight|bias)",
        r"blocks.\1.attn.proj.\2",
    ),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:0|linear_1)\.(weight|bias)", r"blocks.\1.mlp.fc1.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:3|linear_2)\.(weight|bias)", r"blocks.\1.mlp.fc2.\2"),
)
BLOCK = {
    "norm1.weight": 1, "norm1.bias": 1, "attn.qkv.weight": 2, "attn.qkv.bias": 1, "attn.proj.weight": 2,
    "attn.proj.bias": 1, "norm2.weight": 1, "norm2.bias": 1, "mlp.fc1.weight": 2, "mlp.fc1.bias": 1,
    "mlp.fc2.weight": 2, "mlp.fc2.bias": 1,
}  # fmt: skip
OUTSIDE = {
    "cls_token": 3, "pos_embed": 3, "patch_embed.proj.weight": 4, "patch_embed.proj.bias": 1,
    "norm.weight": 1, "norm.bias": 1,
}  # fmt: skip


def is_vit(state: Mapping[str, Any]) -> bool:
    """Return whether a state dict has the names of a vision transformer."""
    return not {"patch_embed.proj.weight", "conv_proj.weight"}.isdisjoint(state)


def from_state(
    state: Mapping[str, np.ndarray], *, foreign: bool = False
) -> tuple[PyTree, dict[str, Any], int]:
    """Return the params, the options of :func:`~contrastive_jax.models.encoders.vit` and the number of channels.

    The network is a ViT of variant "class_token" with heads of 64 (ViT-Ti, S, B, L). The classifier (``head``,
    ``heads.head``) is skipped.

    Raises:
      ValueError: a name or a shape that such a network does not have, or a name that is missing; with ``foreign`` (a
        file of another library) the width of a known network with other heads.
    """
    found = {_timm(name): array for name, array in state.items()}
    found = {name: array for name, array in found.items() if not re.match(r"heads?\.", name)}
    numbers = [int(name.split(".")[1]) for name in found if re.match(r"blocks\.\d+\.", name)]
    layers = max(numbers, default=-1) + 1
    axes = OUTSIDE | {f"blocks.{n}.{name}": count for n in range(layers) for name, count in BLOCK.items()}
    for name in found:
        if name not in axes:
            raise ValueError(f"{name!r} is not the name of an array of such a ViT.")
    for name, count in axes.items():
        if name not in found:
            raise ValueError(f"it lacks {name}.")
        if np.ndim(found[name]) != count:
            raise ValueError(f"its {name} has {np.ndim(found[name])} axes, not {count}.")
    dim, channels, patch, _ = found["patch_embed.proj.weight"].shape
    hidden = len(found["blocks.0.mlp.fc1.bias"]) if layers else 0
    if not layers or dim % HEAD:
        raise ValueError(
            f"it has {layers} blocks of width {dim}; the width must be a multiple of {HEAD}, a head's."
        )
    if foreign and dim in OTHER_HEADS:
        raise ValueError(
            f"its width is {dim}, that of {OTHER_HEADS[dim]}; the heads of such a file are read as {HEAD} wide."
        )
    tokens = found["pos_embed"].shape[1]
    shapes = {
        "cls_token": (1, 1, dim), "pos_embed": (1, tokens, dim),
        "patch_embed.proj.weight": (dim, channels, patch, patch),
        "attn.qkv.weight": (3 * dim, dim), "attn.qkv.bias": (3 * dim,), "attn.proj.weight": (dim, dim),
        "mlp.fc1.weight": (hidden, dim), "mlp.fc1.bias": (hidden,), "mlp.fc2.weight": (dim, hidden),
    }  # fmt: skip
    for name, array in found.items():
        expected = shapes.get(re.sub(r"^blocks\.\d+\.", "", name), (dim,))
        if array.shape != expected:
            raise ValueError(f"its {name} is {_shape(array.shape)}, not {_shape(expected)}.")
    options = {"patch": patch, "dim": dim, "layers": layers, "heads": dim // HEAD}
    options |= {"hidden": 0 if hidden == 4 * dim else hidden}
    params = {
        "class_token": found["cls_token"].reshape(dim),
        "positions": found["pos_embed"].reshape(tokens, dim),
        "patches": {
            "kernel": found["patch_embed.proj.weight"].transpose(2, 3, 1, 0).reshape(-1, dim),
            "bias": found["patch_embed.proj.bias"],
        },
        "norm": _norm(found, "norm"),
    }
    for number in range(layers):
        params[f"block{number}"] = _block(found, f"blocks.{number}.", dim)
    return params, {"name": "vit", **options, "variant": "class_token"}, channels


def to_state(params: PyTree, patch: int) -> dict[str, np.ndarray]:
    """Invert :func:`from_state`: return the state dict with timm's names, without a classifier."""
    dim = len(params["class_token"])
    state = {
        "cls_token": np.reshape(params["class_token"], (1, 1, dim)),
        "pos_embed": np.asarray(params["positions"])[None],
        "patch_embed.proj.weight": np.reshape(params["patches"]["kernel"], (patch, patch, -1, dim)).transpose(
            3, 2, 0, 1
        ),
        "patch_embed.proj.bias": np.asarray(params["patches"]["bias"]),
    }
    for number in range(sum(name.startswith("block") for name in params)):
        block, prefix = params[f"block{number}"], f"blocks.{number}."
        attention = block["MultiHeadDotProductAttention_0"]
        three = [attention[name] for name in ("query", "key", "value")]
        state[f"{prefix}attn.qkv.weight"] = np.concatenate(
            [np.reshape(one["kernel"], (dim, dim)).T for one in three]
        )
        state[f"{prefix}attn.qkv.bias"] = np.concatenate([np.ravel(one["bias"]) for one in three])
        dense = {"attn.proj": attention["out"], "mlp.fc1": block["dense1"], "mlp.fc2": block["dense2"]}
        for name, layer in dense.items():
            width = np.shape(layer["bias"])[0]
            state[f"{prefix}{name}.weight"] = np.reshape(layer["kernel"], (-1, width)).T
            state[f"{prefix}{name}.bias"] = np.asarray(layer["bias"])
        for name in ("norm1", "norm2"):
            state |= _state_of_norm(f"{prefix}{name}", block[name])
    return state | _state_of_norm("norm", params["norm"])


def _state_of_norm(name: str, layer: PyTree) -> dict[str, np.ndarray]:
    return {f"{name}.weight": np.asarray(layer["scale"]), f"{name}.bias": np.asarray(layer["bias"])}


def _timm(name: str) -> str:
    for pattern, timm in TORCHVISION:
        if match := re.fullmatch(pattern, name):
            return match.expand(timm)
    return name


def _norm(found: Mapping[str, np.ndarray], name: str) -> PyTree:
    return {"scale": found[f"{name}.weight"], "bias": found[f"{name}.bias"]}


def _block(found: Mapping[str, np.ndarray], prefix: str, dim: int) -> PyTree:
    heads = dim // HEAD
    kernels = found[f"{prefix}attn.qkv.weight"].reshape(3, heads, HEAD, dim)
    biases = found[f"{prefix}attn.qkv.bias"].reshape(3, heads, HEAD)
    attention = {
        name: {"kernel": kernel.transpose(2, 0, 1), "bias": bias}
        for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True)
    }
    attention["out"] = {
        "kernel": found[f"{prefix}attn.proj.weight"].T.reshape(heads, HEAD, dim),
        "bias": found[f"{prefix}attn.proj.bias"],
    }
    dense = {
        ours: {"kernel": found[f"{prefix}{name}.weight"].T, "bias": found[f"{prefix}{name}.bias"]}
        for ours, name in (("dense1", "mlp.fc1"), ("dense2", "mlp.fc2"))
    }
    norms = {name: _norm(found, f"{prefix}{name}") for name in ("norm1", "norm2")}
    return {**norms, "MultiHeadDotProductAttention_0": attention, **dense}


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
