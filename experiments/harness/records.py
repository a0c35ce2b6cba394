"""Finished runs, a small JSON file each in ``experiments/results``, from which every table reads.

A run is known by its settled config: two commands that mean the same are one run, and a changed default is another.
:func:`compare` says what changed between the records of two revisions: numbers, by how much, and against their spread
over seeds.
"""

import contextlib
import fnmatch
import functools
import hashlib
import io
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import tarfile
from collections.abc import Collection, Iterator, Mapping
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

PROVENANCE = ("device", "versions", "git_commit")  # of a record; a seed has its own where they differ
NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # how JSON has them

Records = dict[str, dict[str, Any]]
"""Name -> record."""


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
    """Read the record of a run; {} if there is none.

    Its fields are ``arguments``, ``config``, :data:`PROVENANCE`, ``protocols`` and ``seeds``. A seed that ran on
    another device, with other versions or at another commit than the first has its own.

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
    """Return what is at a path of ``metric``; where a column failed, what that left.

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
    """Return the number at a path of ``metric``, ``trained.linear.top1 %``: times 100 where it ends in ``%``.

    Raises:
      KeyError: there is no such number, or there are several; names the path and what there is.
    """
    value = float(found_at(result, path))  # "NaN" is text in JSON
    return 100.0 * value if path.endswith(" %") else value


def failure(result: Mapping[str, Any], path: str) -> str:
    """Say why the column of a path gave no number; empty if it did."""
    value = found_at(result, path)
    return value["failed"] if isinstance(value, Mapping) else ""


def converged(result: Mapping[str, Any], path: str) -> bool:
    """Return whether the fit behind a path of ``metric`` converged; True for numbers without a fit."""
    with contextlib.suppress(KeyError):
        return found_at(result, re.sub(r"\.[^.]*$", ".converged", path.partition(" ")[0])) is not False
    return True


def numbers(tree: Any) -> Any:
    """Return the scalars of an evaluation that a table may read, those that are not finite as JSON's text.

    Of a column that failed, the reason; of a fit that did not converge, ``"converged": False`` beside its scalars.
    """
    if isinstance(tree, Mapping):
        if "failed" in tree:
            return {"failed": tree["failed"]}
        found = {name: numbers(value) for name, value in tree.items() if name != "settings"}
        found = {name: value for name, value in found.items() if value not in (None, {})}
        return found | ({"converged": False} if tree.get("converged") is False else {})
    if isinstance(tree, bool):
        return None
    return tree if isinstance(tree, int | float) or tree in NOT_FINITE else None


def curves(file: pathlib.Path, names: Collection[str], points: int = 60) -> dict[str, list[list[float]]]:
    """Read metrics over training, thinned, the last point always kept: name -> [epochs, values]."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]  # a number that is not finite is text
    found = {}
    for name in sorted(names):
        known = [row for row in rows if isinstance(row.get(name), int | float)]
        if known:
            step = math.ceil(len(known) / points)
            known = [*known[:-1:step], known[-1]]
            found[name] = [[float(f"{row[of]:.6g}") for row in known] for of in ("epoch", name)]
    return found


def of_tree() -> Records:
    """Return name -> record, of the files that are here."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder().glob("*.json"))}


def of_revision(revision: str) -> Records:
    """Return name -> record, as a commit has them.

    Raises:
      ValueError: git knows no such revision.
    """
    here = folder()
    root = here.parents[1]
    path = here.relative_to(root).as_posix()
    git = ["git", "-C", str(root)]
    known = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], capture_output=True
    )
    if known.returncode:
        raise ValueError(f"REV is {revision!r}: git knows no such revision of {root}.")
    commit = known.stdout.decode().strip()
    if not subprocess.run([*git, "ls-tree", commit, f"{path}/"], capture_output=True, check=True).stdout:
        return {}
    packed = subprocess.run([*git, "archive", commit, path], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = [member for member in archive.getmembers() if member.name.endswith(".json")]
        return {pathlib.PurePath(m.name).stem: json.load(archive.extractfile(m)) for m in files}


def training(name: str, record: Mapping[str, Any]) -> str:
    """Return what a run was trained as: its config file and its config, but for what is evaluated."""
    config = {k: v for k, v in record["config"].items() if not k.startswith(("evaluate.", "evaluators."))}
    return name.rpartition("-")[0] + json.dumps(config, sort_keys=True)


def pairs(old: Records, new: Records) -> dict[str, str]:
    """Return old name -> new name: the same name, or else the one other record of the same command or the same
    training."""
    found = {name: name for name in old if name in new}
    for key in (lambda name, record: record["arguments"], training):
        left = {name: key(name, record) for name, record in old.items() if name not in found}
        there = {name: key(name, record) for name, record in new.items() if name not in found.values()}
        for name, value in left.items():
            same = [other for other in there if there[other] == value]
            if len(same) == 1 and list(left.values()).count(value) == 1:
                found[name] = same[0]
    return found


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, float | str]]:
    """Yield (path, value) of every number of a seed's result, and of why a column failed; seconds and curves aside."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if path or name not in ("seconds", "curves"):
                yield from leaves(value, f"{path}.{name}" if path else name)
    elif isinstance(tree, int | float | str):
        yield path.removeprefix("evaluations."), tree


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line for every number of a run that changed, those furthest beyond their spread first.

    Means and the spread (standard deviation) are over the seeds that both have, the spread is the larger of the two
    revisions'.
    """
    both = [seed for seed in old["seeds"] if seed in new["seeds"]]
    lines = [
        (math.inf, f"seeds {word}: {', '.join(seeds)}")
        for word, seeds in {
            "gone": [seed for seed in old["seeds"] if seed not in both],
            "added": [seed for seed in new["seeds"] if seed not in both],
        }.items()
        if seeds
    ]
    was, now = ({seed: dict(leaves(record["seeds"][seed])) for seed in both} for record in (old, new))
    for path in dict.fromkeys(path for found in (*was.values(), *now.values()) for path in found):
        before, after = ([found[seed].get(path) for seed in both] for found in (was, now))
        if before == after:
            continue
        if not all(isinstance(value, int | float) for value in before + after):
            lines.append((math.inf, f"{path}: {_shown(before)} -> {_shown(after)}"))
            continue
        change = statistics.mean(after) - statistics.mean(before)
        spread = max(statistics.stdev(before), statistics.stdev(after)) if len(both) > 1 else math.nan
        ratio = abs(change) / spread if spread else math.inf
        if math.isnan(spread):
            against = "one seed, no spread"
        elif not spread:
            against = f"beyond its spread, 0 over {len(both)} seeds"
        else:
            against = f"{ratio:.2g} of the spread {spread:.3g} over {len(both)} seeds"
        means = f"{statistics.mean(before):.5g} -> {statistics.mean(after):.5g}"
        lines.append((ratio, f"{path}: {means} ({change:+.3g}; {against})"))
    return [line for _, line in sorted(lines, key=lambda pair: 0.0 if math.isnan(pair[0]) else -pair[0])]


def _shown(values: list) -> str:
    """Show values of several seeds, one where they agree; what is not there is a dash."""
    texts = ["-" if v is None else f"{v:.5g}" if isinstance(v, float) else str(v) for v in values]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def about(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line for each of what the two runs were made with that differs: leaves of the config, versions,
    device."""
    found = []
    for section in ("config", "versions", "device", "protocols"):
        was, now = old.get(section) or {}, new.get(section) or {}
        for name in {**was, **now}:
            if was.get(name) != now.get(name):
                found.append(f"{section} {name}: {was.get(name)!r} -> {now.get(name)!r}")
    return found


def compare(old: Records, new: Records) -> str:
    """List the runs whose numbers changed, each with what changed; then those that are gone and those that are new."""
    found, same = [], 0
    matched = pairs(old, new)
    for one, other in matched.items():
        if not (changed := changes(old[one], new[other])):
            same += 1
            continue
        found.append(one if one == other else f"{one} -> {other}")
        found.append(f"  {new[other]['arguments']}")
        found += [f"    {line}" for line in [*about(old[one], new[other]), *changed]]
    for word, left, there in (("gone", old, set(matched)), ("new", new, set(matched.values()))):
        found += [f"{word}: {name}  {left[name]['arguments']}" for name in left if name not in there]
    counts = f"{len(matched) - same} changed, {same} the same"
    return "\n".join([*found, f"{counts}, {len(old) - len(matched)} gone, {len(new) - len(matched)} new"])
