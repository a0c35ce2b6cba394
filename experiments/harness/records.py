"""Finished runs, a small JSON file each in ``experiments/results``, from which every table reads.

A run is known by its settled config: two commands that mean the same are one run, and a changed default is another.
"""

import fnmatch
import functools
import hashlib
import json
import math
import os
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any

from contrastive_jax import config as configs
from contrastive_jax.config.identity import YOUNG
from experiments.harness.table import ROOT, config_of, stem_of

# Sections and leaves that change no number of a result.
IMMATERIAL = (
    *("name", "seed", "checkpoint", "preview", "embed", "export", "report", "profile"),
    *("log.tensorboard", "log.wandb", "optimizer.shard_state", "train.remat", "train.deterministic"),
    *("log.on_log", "data.dir", "data.memory_limit", "data.workers"),
)
# Leaves younger than some run that is kept -> the value that does what was done before there was the leaf.
SINCE: dict[str, Any] = {
    "encoder.name": "resnet",
    "encoder.kernel_init": "fan_in",
    "negatives.per_example": False,
    "critic.name": "none",
    "optimizer.alternate": [],
} | YOUNG


def material(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a settled config that a run's numbers depend on."""
    idle = re.compile("|".join(rf"{re.escape(prefix)}(\.|$)" for prefix in IMMATERIAL))
    return {
        name: value
        for name, value in sorted(configs.leaves(config).items())
        if not idle.match(name) and not (name in SINCE and value == SINCE[name])
    }


def digest(leaves: Mapping[str, Any]) -> str:
    """Return the digest of what :func:`material` says: twelve hexadecimal digits."""
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()[:12]


@functools.cache
def key_of(arguments: str) -> str:
    """Name the run that a command's arguments mean, ``flatclr_cifar10-0a1b2c3d4e5f``."""
    return f"{stem_of(arguments)}-{digest(material(config_of(arguments)))}"


def folder() -> pathlib.Path:
    """Return the folder where finished runs are kept."""
    return ROOT / "experiments" / "results"


def read(key: str) -> dict[str, Any]:
    """Read what is kept of a run: ``arguments``, ``config``, ``device``, ``versions``, ``protocols``, ``seeds``; or {}.

    A seed that ran on another device, or with other versions, than the first has its own ``device`` and ``versions``.

    Raises:
      ValueError: the file holds no record.
    """
    file = folder() / f"{key}.json"
    try:
        record = json.loads(file.read_text()) if file.exists() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is no record: {error}") from None
    if record and not {"config", "seeds"} <= set(record):
        raise ValueError(f"{file} is no record: it has no config, or no seeds.")
    return record


def write(key: str, record: Mapping[str, Any]) -> None:
    """Keep a record, a list and the config on a line of their own."""
    config = json.dumps(record["config"], sort_keys=True)
    text = json.dumps(dict(record) | {"config": None}, indent=1)
    text = re.sub(r"\[[^][{}]*\]", lambda m: " ".join(m[0].split()), text)
    text = re.sub(r"\[\s+(\[.*\]),\s+(\[.*\])\s+\]", r"[\1, \2]", text)
    folder().mkdir(parents=True, exist_ok=True)
    file = folder() / f"{key}.json"
    part = file.with_suffix(f".{os.getpid()}")  # another process reads the old one or the new one
    part.write_text(text.replace('"config": null', f'"config": {config}', 1) + "\n")
    part.replace(file)


def found_at(result: Mapping[str, Any], path: str) -> Any:
    """Return what is at a path of METRIC; where a column failed, what that left.

    Of alternatives, ``linear@*|linear``, the first that a name meets.

    Raises:
      KeyError: there is nothing, or an alternative meets several names.
    """
    value = result if path.startswith("metrics.") else result["evaluations"]
    for name in path.partition(" ")[0].split("."):
        if isinstance(value, Mapping) and "failed" in value:
            return value
        there = list(value) if isinstance(value, Mapping) else []
        met = next(filter(None, (fnmatch.filter(there, option) for option in name.split("|"))), [])
        if len(met) != 1:
            which = (
                f"{name!r} is any of {', '.join(met)}"
                if met
                else f"no {name!r} among {', '.join(there) or value}"
            )
            raise KeyError(f"{path}: {which}")
        value = value[met[0]]
    return value


def pick(result: Mapping[str, Any], path: str) -> float:
    """Return the number at a path of METRIC, ``trained.linear.top1 %``: times 100 where it ends in ``%``.

    Raises:
      KeyError: there is no such number, or there are several; names the path and what there is.
    """
    value = found_at(result, path)
    return 100.0 * value if path.endswith(" %") else float(value)


def failure(result: Mapping[str, Any], path: str) -> str:
    """Say why the column of a path gave no number; empty if it did."""
    value = found_at(result, path)
    return value["failed"] if isinstance(value, Mapping) else ""


def numbers(tree: Any) -> Any:
    """Return the scalars of an evaluation: what a table may read; and why a column failed."""
    if isinstance(tree, Mapping):
        return (
            {"failed": tree["failed"]}
            if "failed" in tree
            else {
                k: v
                for k, v in ((k, numbers(v)) for k, v in tree.items() if k != "settings")
                if v not in (None, {})
            }
        )
    return tree if isinstance(tree, int | float) and not isinstance(tree, bool) else None


def curves(file: pathlib.Path, names: Collection[str], points: int = 60) -> dict[str, list[list[float]]]:
    """Read metrics over training, thinned: name -> [epochs, values]; those that were logged."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = {}
    for name in sorted(names):
        known = [row for row in rows if name in row]
        known = known[:: max(1, math.ceil(len(known) / points))]
        if known:
            found[name] = [[float(f"{row[of]:.6g}") for row in known] for of in ("epoch", name)]
    return found
