"""Identity of a run: which leaves two configs differ in, and which of them a continuation may change."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from contrastive_jax.config.settings import completed, plain

# Leaves (by prefix) in which a run and its continuation may differ.
MAY_CHANGE = (
    *("name", "log", "evaluate", "evaluators", "checkpoint", "init"),
    *("preview", "embed", "export", "report", "profile"),
    *("train.duration", "train.remat", "optimizer.shard_state", "diagnostics"),
    *("data.dir", "data.memory_limit", "data.workers", "data.corrupt"),
)


def leaves(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``section.option`` -> value."""
    found = {}
    for name, value in config.items():
        if isinstance(value, Mapping | ConfigDict):
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def diff(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The leaves in which two configs differ: ``section.option`` -> (first, second); None where it is absent."""
    one, two = leaves(first), leaves(second)
    names = [*one, *(name for name in two if name not in one)]
    return {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def diff_text(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """:func:`diff`, a line a leaf."""
    return "".join(f"{name}: {one!r} -> {two!r}\n" for name, (one, two) in diff(first, second).items())


def forbidden_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between a run's config, as it was saved, and its continuation's and may not (``MAY_CHANGE``)."""
    allowed = re.compile("|".join(rf"{re.escape(prefix)}(\.|$)" for prefix in MAY_CHANGE))
    found = diff(plain(completed(saved)), plain(completed(now)))
    return {name: change for name, change in found.items() if not allowed.match(name)}


def fingerprint(config: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a config's content."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
