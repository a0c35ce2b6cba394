"""What changed between the records of two revisions: numbers, by how much, and against their spread over seeds."""

import io
import json
import math
import pathlib
import statistics
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.harness import records

Records = dict[str, dict[str, Any]]


def of_tree() -> Records:
    """Return name -> record, of the files that are here."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(records.folder().glob("*.json"))}


def of_revision(revision: str) -> Records:
    """Return name -> record, as a commit has them.

    Raises:
      ValueError: git knows no such revision.
    """
    folder = records.folder()
    root = folder.parents[1]
    path = folder.relative_to(root).as_posix()
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
