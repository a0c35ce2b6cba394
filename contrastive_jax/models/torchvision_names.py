"""Conversion of a ResNet's arrays to torchvision's names (``layer1.0.conv1.weight``; kernels OIHW) and back."""

import re
from typing import Any

import numpy as np

from contrastive_jax.types import PyTree

LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


def to_torchvision(params: PyTree, stats: PyTree) -> dict[str, np.ndarray]:
    """Make the state dict of torchvision's ResNet, without ``fc``, from the encoder's params and stats.

    An encoder of variant "torchvision" loads into torchvision's model of the same depth (with its stem replaced
    for the stem "cifar"); variant "simclr" has shortcuts that torchvision's model lacks.
    """
    state = {}
    for layer, leaf, array in _walk(params, ()) + _walk(stats, ()):
        array = np.asarray(array)
        state[f"{_name(layer)}.{LEAVES[leaf]}"] = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
    return state


def from_torchvision(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """Invert :func:`to_torchvision`: return the encoder's params and stats.

    ``fc`` and ``num_batches_tracked`` are skipped. Raises ValueError for other names that a ResNet does not
    have, for a kernel that does not have four axes, and for another array that does not have one axis.
    """
    params: dict[str, Any] = {}
    stats: dict[str, Any] = {}
    for name, array in state.items():
        if name.startswith("fc.") or name.endswith(".num_batches_tracked"):
            continue
        torch_layer, _, torch_leaf = name.rpartition(".")
        leaf = {"running_mean": "mean", "running_var": "var", "bias": "bias"}.get(torch_leaf)
        path = _path(torch_layer)
        if torch_leaf == "weight" and path is not None:
            leaf = "kernel" if "conv" in path[-1] else "scale"
        if leaf is None or path is None:
            raise ValueError(f"{name!r} is not the name of an array of a torchvision ResNet.")
        if np.ndim(array) != (axes := 4 if leaf == "kernel" else 1):
            raise ValueError(f"its {name} has {np.ndim(array)} axes, not {axes}.")
        module = stats if leaf in ("mean", "var") else params
        for part in path:
            module = module.setdefault(part, {})
        array = np.asarray(array)
        module[leaf] = array.transpose(2, 3, 1, 0) if leaf == "kernel" else array
    return params, stats


def _walk(tree: PyTree, path: tuple[str, ...]) -> list[tuple[str, str, np.ndarray]]:
    if not isinstance(tree, dict):
        return [("/".join(path[:-1]), path[-1], tree)]
    return [leaf for key in tree for leaf in _walk(tree[key], (*path, key))]


def _name(layer: str) -> str:
    """Translate ``group1_block0/conv2`` to ``layer1.0.conv2``."""
    layer = {"stem_conv": "conv1", "stem_norm": "bn1"}.get(layer, layer)
    layer = re.sub(r"group(\d+)_block(\d+)/", r"layer\1.\2.", layer).replace("norm", "bn")
    return layer.replace("shortcut_conv", "downsample.0").replace("shortcut_bn", "downsample.1")


def _path(layer: str) -> list[str] | None:
    """Translate ``layer1.0.conv2`` to ``[group1_block0, conv2]``."""
    if layer in ("conv1", "bn1"):
        return [{"conv1": "stem_conv", "bn1": "stem_norm"}[layer]]
    match = re.fullmatch(r"layer(\d)\.(\d+)\.(conv[123]|bn[123]|downsample\.[01])", layer)
    if not match:
        return None
    group, block, inner = match.groups()
    inner = {"downsample.0": "shortcut_conv", "downsample.1": "shortcut_norm"}.get(inner, inner)
    return [f"group{group}_block{block}", inner.replace("bn", "norm")]
