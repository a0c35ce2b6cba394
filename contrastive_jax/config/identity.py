"""Identity of a run: differences between configs, and the leaves that a continuation may change."""

import functools
import hashlib
import json
import re
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ml_collections import ConfigDict

from contrastive_jax.config.settings import base, completed, plain

if TYPE_CHECKING:
    from contrastive_jax.config.resolved import Settings

    Config: TypeAlias = Mapping[str, Any] | ConfigDict | Settings

# Prefixes of leaves that do not affect the numbers of training. All other leaves identify a run.
RESOURCES = (
    *("data.memory_limit", "data.workers", "data.corrupt"),
    *("train.remat", "train.deterministic", "optimizer.shard_state", "checkpoint"),
)
PRESENTATION = (
    *("name", "log", "profile", "diagnostics", "evaluate", "evaluators"),
    *("preview", "embed", "export", "report"),
)
PLACES = ("data.dir", "data.file", "data.labels", "compose.dir", "temperature.file")  # of files
# A continuation may change these too: the run gets longer, or its files have moved.
OF_A_BEGUN_RUN = ("train.duration", *PLACES)
# Leaves that the processes of one run may have of their own.
OF_A_PROCESS = (*PLACES, "init.checkpoint", "init.second_checkpoint", "data.workers")
MAY_CHANGE = (*RESOURCES, *PRESENTATION, *OF_A_BEGUN_RUN)


# Leaves newer than some runs -> the value with the earlier behaviour, which fingerprints leave out.
YOUNG = {
    **{"norm.momentum": 0.9, "norm.epsilon": 1e-5, "norm.unbiased": False, "data.channels": 0},
    **{"transform.name": "none", "normalizer.name": "none"},
    **{"augment.views": 2, "augment.local_views": 0, "augment.local_size": None},
    **{"augment.local_crop_min": 0.05, "augment.local_crop_max": 0.14},
    **{"init.second_checkpoint": "", "second_encoder.name": "none", "second_augment.name": "unchanged"},
    "encoder.variant": "mean",  # of a ViT; a ResNet's has other values
}


class Absent:
    """Marker for a leaf that one of two configs lacks."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


def _under(prefixes: tuple[str, ...]) -> re.Pattern:
    return re.compile("|".join(rf"{re.escape(prefix)}(\.|$)" for prefix in prefixes))


def leaves(config: "Config", prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a config, ``section.option`` -> value."""
    by_name: dict[str, Any] = {}
    for name, value in (config if isinstance(config, Mapping | ConfigDict) else config.to_dict()).items():
        if isinstance(value, Mapping | ConfigDict):
            by_name |= leaves(value, f"{prefix}{name}.")
        else:
            by_name[f"{prefix}{name}"] = value
    return by_name


@functools.cache
def base_leaves() -> Mapping[str, Any]:
    """Return the leaves of the base config."""
    return types.MappingProxyType(leaves(base()))


def diff(first: "Config", second: "Config") -> dict[str, tuple[Any, Any]]:
    """Find the leaves in which two configs differ: ``section.option`` -> (first, second), ABSENT if missing."""
    one, two = leaves(first), leaves(second)
    names = [*one, *(name for name in two if name not in one)]
    return {
        name: (one.get(name, ABSENT), two.get(name, ABSENT))
        for name in names
        if one.get(name) != two.get(name)
    }


def diff_text(first: "Config", second: "Config") -> str:
    """Return :func:`diff` as text, one line per leaf."""
    return "".join(f"{name}: {one!r} -> {two!r}\n" for name, (one, two) in diff(first, second).items())


def may_change(leaf: str) -> bool:
    """Return whether a continuation of a run may change a leaf."""
    return bool(_under(MAY_CHANGE).match(leaf))


def of_a_process(leaf: str) -> bool:
    """Return whether each process of a run may have its own value of a leaf."""
    return leaf in OF_A_PROCESS


def forbidden_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the leaves that a continuation changes in its saved run although it may not.

    The functions that ``saved`` names are looked up; call :func:`approval.check` first on a config of a file.
    """
    changes = diff(plain(completed(saved)), plain(completed(now)))
    return {name: change for name, change in changes.items() if not may_change(name)}


def fingerprint(config: "Config") -> str:
    """Return eight hexadecimal digits that hash the leaves that affect a run's numbers, except its duration."""
    other = _under((*RESOURCES, *PRESENTATION, "train.duration"))
    of_the_run = {
        name: value
        for name, value in leaves(config).items()
        if not other.match(name) and not (name in YOUNG and value == YOUNG[name])
    }
    return hashlib.sha256(json.dumps(of_the_run, sort_keys=True).encode()).hexdigest()[:8]
