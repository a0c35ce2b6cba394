"""``result.json``: where a run ended, by which code, on which devices."""

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import native
from contrastive_jax.config import leaves
from contrastive_jax.workdir import replicas
from contrastive_jax.workdir.broken import read_result
from contrastive_jax.workdir.files import plain, read_json, write_json
from contrastive_jax.workdir.progress import log


def write_result(
    workdir: str | os.PathLike | None,
    *,
    step: int,
    epoch: float,
    metrics: Mapping[str, Any],
    evaluations: Mapping[str, Any],
    seconds: float,
    images_per_second: float | None,
    utilisation: float | None = None,
    lost: Mapping[str, float] | None = None,
    alarms: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write ``result.json`` atomically, and return what it holds.

    Args:
        workdir: of the run; None writes nothing: for every process but the first.
        step: steps done.
        epoch: epochs done.
        metrics: the last training metrics.
        evaluations: what the evaluators returned, with their protocols.
        seconds: wall time of the process that trained it last, evaluation included; of replicas, a share of it.
        images_per_second: mean rate without compiling and evaluating; None where nothing was trained.
        utilisation: of the devices at that rate (:mod:`contrastive_jax.training.utilisation`), or None.
        lost: the share of the time that was lost to data, evaluations and checkpoints.
        alarms: what was wrong, when; empty where nothing was.
        notes: what is to be known of the numbers, in sentences.
    """
    metrics = jax.device_get(dict(metrics))
    result = {
        "step": int(step),
        "epoch": float(epoch),
        "metrics": metrics,
        "evaluations": plain(
            evaluations
        ),  # in the order in which they were made, which device_get would sort
        "seconds": seconds,
        "images_per_second": images_per_second,
        "utilisation": utilisation,
        **(lost or {}),
        "alarms": list(alarms),
        "notes": list(notes),
        **environment(),
    }
    if workdir is not None:
        write_json(pathlib.Path(workdir, "result.json"), result)
    return result


def read_results(*workdirs: str | os.PathLike) -> list[dict[str, Any]]:
    """Read the tables of runs as flat rows, ready for a data frame.

    A workdir of replicas stands for all of them, and a folder that ``--mode=evaluate`` wrote into, without a run of its
    own, for that evaluation. A row has ``workdir``, ``step``, ``row`` ("trained", ...), ``loss`` (its terms, joined by
    +), the leaves in which the configs of the runs differ, by name, and the numbers of every column, ``linear.top1``. A
    replica that diverged has one row, "diverged", without numbers.

    Raises:
        FileNotFoundError: a workdir without ``result.json``: its run has not ended.
        ValueError: a config that cannot be read, or whose functions are not allowed.
        Broken: a file that is not what a run writes there.
    """
    runs = [run for path in workdirs for run in replicas.folders(path) or [pathlib.Path(path)]]
    judged = [_evaluation(run) for run in runs]  # alone, without a run of its own
    read = [
        configs.saved_settings({} if alone else configs.load(run / "config.json"))
        for run, alone in zip(runs, judged, strict=True)
    ]
    known = list(map(leaves, read))
    every = dict.fromkeys(name for of_run in known for name in of_run)
    differing = [name for name in every if len({json.dumps(of_run.get(name)) for of_run in known}) > 1]
    rows = []
    for run, settings, of_run, result in zip(runs, read, known, judged, strict=True):
        own: dict[str, Any] = {"workdir": str(run), "loss": "+".join(settings.loss)}
        own |= {name: of_run.get(name) for name in differing}
        if (run / "diverged.json").is_file():
            rows.append(own | {"row": "diverged"})
            continue
        if not result and not (run / "result.json").is_file():
            raise FileNotFoundError(f"{run} has no result.json: its run has not ended.")
        result = result or read_json(run / "result.json", dict)
        own["step"] = result.get("step")
        for row, columns in tables(result).items():
            scores = {
                f"{column}.{name}": value
                for column, score in columns.items()
                for name, value in score.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
            rows.append(own | {"row": row} | scores)
    return rows


def _evaluation(folder: pathlib.Path) -> dict[str, Any]:
    """Return what ``--mode=evaluate`` wrote into a folder that holds no run, by the names of a result; {} elsewhere."""
    if (folder / "config.json").is_file() or not (folder / "evaluation.json").is_file():
        return {}
    found = read_json(folder / "evaluation.json", dict)
    return {"step": found.get("step"), "evaluations": tables(found, "results")}


def tables(result: Mapping[str, Any], name: str = "evaluations") -> dict[str, dict[str, dict[str, Any]]]:
    """Return the scores of a file of results, by row and column, without what is no such table."""
    rows = result.get(name)
    return {
        str(row): {str(column): score for column, score in columns.items() if isinstance(score, dict)}
        for row, columns in (rows.items() if isinstance(rows, dict) else ())
        if isinstance(columns, dict)
    }


def measured_before(
    workdir: str | os.PathLike, step: int, report: Callable[[str], None] = log
) -> dict[str, Any]:
    """Return what ``result.json`` holds of the run up to ``step``, as :func:`write_result` takes it, or {}."""
    file = pathlib.Path(workdir, "result.json")
    result = read_result(file, report)
    if result.get("step") != step:
        return {}
    kept = {"evaluations": tables(result)}
    if result.get("images_per_second") is None:
        return kept
    names = ("metrics", "seconds", "images_per_second", "utilisation")
    lost = {name: value for name, value in result.items() if name.startswith("lost_to_")}
    if not isinstance(result.get("metrics", {}), dict):
        return kept
    return kept | {name: result[name] for name in names if name in result} | {"lost": lost}


def environment() -> dict[str, Any]:
    """Return versions, devices and the git commit of the source (None where it is not in a repository)."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scikit-learn", "contrastive_jax")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a source tree that was not installed
            versions[name] = None
    commit, modified = _git_commit()
    return {
        "versions": versions,
        "device": {
            "platform": jax.default_backend(),
            "kind": jax.devices()[0].device_kind,
            "count": jax.device_count(),
            "processes": jax.process_count(),
        }
        | ({"cpu_kernels": native.kernels()} if jax.default_backend() == "cpu" else {}),
        "git_commit": commit,
        "git_modified": modified,
    }


def _git_commit() -> tuple[str | None, bool | None]:
    """Return the commit of the repository that tracks this very file, and whether tracked files differ from it."""

    def git(*arguments):
        command = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", os.path.basename(__file__)
        )  # not any repository around an installation
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None
