"""The file ``result.json``: a run's final metrics and evaluations, code version and devices."""

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

EVALUATED_BY = ("evaluators.", "evaluate.size")  # leaves that decide scores, and may change after them


def write_result(
    workdir: str | os.PathLike | None,
    *,
    step: int,
    epoch: float,
    metrics: Mapping[str, Any],
    evaluations: Mapping[str, Any],
    evaluated_by: Mapping[str, Any] | None = None,
    seconds: float,
    images_per_second: float | None,
    utilisation: float | None = None,
    lost: Mapping[str, float] | None = None,
    alarms: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write ``result.json`` atomically, and return its content.

    Args:
        workdir: workdir of the run; None writes nothing, for all processes but the first.
        step: steps done.
        epoch: epochs done.
        metrics: the last training metrics.
        evaluations: results of the evaluators, with their protocols.
        evaluated_by: leaves of the config that decide them, ``EVALUATED_BY``; None: unknown, or no evaluations.
        seconds: wall time of the process that trained last, including evaluation; of replicas, a share of it.
        images_per_second: mean rate without compilation and evaluation; None if no step was trained.
        utilisation: utilisation of the devices at that rate (:mod:`contrastive_jax.training.compilation`), or
            None.
        lost: shares of the time lost to data, evaluations and checkpoints.
        alarms: summary of the run's alarms; may be empty.
        notes: remarks on the numbers, in sentences.
    """
    metrics = jax.device_get(dict(metrics))
    result = {
        "step": int(step),
        "epoch": float(epoch),
        "metrics": metrics,
        "evaluations": plain(evaluations),  # keeps their order, which device_get would sort
        **({"evaluated_by": plain(evaluated_by)} if evaluated_by else {}),
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
    """Read the result tables of runs as flat rows, ready for a data frame.

    A workdir of replicas stands for all of them, and a folder with results of ``--mode=evaluate`` but without a
    run for that evaluation. A row has ``workdir``, ``step``, ``row`` ("trained", ...), ``loss`` (its terms,
    joined by +), the config leaves that differ between the runs, by name, and the scores of every column, such
    as ``linear.top1``. A diverged replica has one row, "diverged", without scores.

    Raises:
        FileNotFoundError: a workdir has no ``result.json``, so its run has not ended.
        ValueError: a config cannot be read, or names functions that are not allowed.
        Broken: a file has other content than a run writes there.
    """
    runs = [run for path in workdirs for run in replicas.folders(path) or [pathlib.Path(path)]]
    judged = [_evaluation(run) for run in runs]  # evaluations without a run
    read = [
        configs.saved_settings({} if alone else configs.load(run / "config.json"))
        for run, alone in zip(runs, judged, strict=True)
    ]
    results = [of_run or _result(run) for run, of_run in zip(runs, judged, strict=True)]
    # The evaluation's leaves are those of the results; the config may have others by now.
    known = [
        leaves(settings) | _evaluated_by(result or {}) for settings, result in zip(read, results, strict=True)
    ]
    every = dict.fromkeys(name for of_run in known for name in of_run)
    differing = [name for name in every if len({json.dumps(of_run.get(name)) for of_run in known}) > 1]
    rows = []
    for run, settings, of_run, result in zip(runs, read, known, results, strict=True):
        own: dict[str, Any] = {"workdir": str(run), "loss": "+".join(settings.loss)}
        own |= {name: of_run.get(name) for name in differing}
        if (run / "diverged.json").is_file():
            rows.append(own | {"row": "diverged"})
            continue
        if result is None:
            raise FileNotFoundError(f"{run} has no result.json: the run has not ended.")
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


def _result(run: pathlib.Path) -> dict[str, Any] | None:
    """Return the content of a run's ``result.json``; None if there is none, or if the run diverged."""
    file = run / "result.json"
    return read_json(file, dict) if file.is_file() and not (run / "diverged.json").is_file() else None


def _evaluation(folder: pathlib.Path) -> dict[str, Any]:
    """Return the results of ``--mode=evaluate`` in a folder without a run, in the form of a run's, or {}."""
    if (folder / "config.json").is_file() or not (folder / "evaluation.json").is_file():
        return {}
    found = read_json(folder / "evaluation.json", dict)
    return {"step": found.get("step"), "evaluations": tables(found, "results")}


def tables(result: Mapping[str, Any], name: str = "evaluations") -> dict[str, dict[str, dict[str, Any]]]:
    """Return the scores of a results file by row and column; ignore values of another form."""
    rows = result.get(name)
    return {
        str(row): {str(column): score for column, score in columns.items() if isinstance(score, dict)}
        for row, columns in (rows.items() if isinstance(rows, dict) else ())
        if isinstance(columns, dict)
    }


def evaluated_by(settings: configs.Settings) -> dict[str, Any]:
    """Return the leaves of a config that decide the scores of its evaluators."""
    return {name: value for name, value in leaves(settings).items() if name.startswith(EVALUATED_BY)}


def _evaluated_by(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return :func:`evaluated_by` of a results file; {} in older files."""
    found = result.get("evaluated_by")
    return found if isinstance(found, dict) else {}


def measured_before(
    workdir: str | os.PathLike, step: int, report: Callable[[str], None] = log
) -> dict[str, Any]:
    """Return the content of the ``result.json`` of ``step`` as arguments of :func:`write_result`, or {}."""
    file = pathlib.Path(workdir, "result.json")
    result = read_result(file, report)
    if result.get("step") != step:
        return {}
    kept = {"evaluations": tables(result), "evaluated_by": _evaluated_by(result)}
    if result.get("images_per_second") is None:
        return kept
    names = ("metrics", "seconds", "images_per_second", "utilisation")
    lost = {name: value for name, value in result.items() if name.startswith("lost_to_")}
    if not isinstance(result.get("metrics", {}), dict):
        return kept
    return kept | {name: result[name] for name in names if name in result} | {"lost": lost}


def environment() -> dict[str, Any]:
    """Return versions, devices and the git commit of the source (None outside of a repository)."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scikit-learn", "contrastive_jax")
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
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
    """Return the commit of the repository that tracks this file, and whether tracked files differ from it."""

    def git(*arguments):
        command = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", os.path.basename(__file__)
        )  # fails in an unrelated repository around an installation
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None
