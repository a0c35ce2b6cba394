"""Resumption of a workdir's run: the facts in its checkpoints, and checks that a run may resume from them."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import data, distributed
from contrastive_jax.config import approval
from contrastive_jax.training import initial
from contrastive_jax.training.program import Program
from contrastive_jax.training.run import Run
from contrastive_jax.types import TrainState
from contrastive_jax.workdir import checkpoint
from contrastive_jax.workdir import replicas as layout

Facts = Mapping[str, Any]  # facts about the runs, saved with the arrays of a checkpoint


def about(run: Run) -> dict[str, Any]:
    """Return the facts of a run that are known without reading its images."""
    train = run.source.train
    images = {
        "examples": len(train),
        "files": data.files_digest(train.paths),
        "streamed": isinstance(train, data.Streamed),
    }
    example = train.example
    what: dict[str, Any] = (
        {"channels": example.shape[2]}
        if example.is_image
        else {"example": [list(example.shape), example.dtype]}
    )
    if run.source.paired:
        second = run.source.of_pair(1).train.example
        what["second_example"] = [list(second.shape), second.dtype]
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    return {"config": run.settings.to_dict(), **what, **images, "threefry_partitionable": partitionable}


def restored(
    program: Program,
    saved: checkpoint.Checkpoints,
    workdir: str | os.PathLike,
    report: Callable[[str], None],
) -> tuple[TrainState, dict[str, Any]]:
    """Restore the state of the newest intact checkpoint, or make the first state; return it with the runs' facts.

    Raises:
      ValueError: the checkpoint's run does not match the program's, see :func:`compatible`; or the processes of a
        run list different checkpoints.
      checkpoint.DamagedCheckpoints: there are checkpoints, and all are damaged.
    """
    _check_listed(saved)
    run, newest = program.runs[0], saved.read_meta()
    facts = about(run) | ({"replicas": program.differences} if len(program.runs) > 1 else {})
    facts["contents"] = data.contents(run.source.train, newest[1].get("contents") if newest else None)
    now = run.settings.train.duration
    if not saved.steps():
        return initial.first_state(program, report), facts | {"durations": [now]}
    if newest is not None:  # else restore raises, as all are damaged
        approval.check(newest[1]["config"], workdir)
        if why := compatible(newest, (run, facts)):
            raise ValueError(why)
        if (was := configs.saved_settings(newest[1]["config"]).train.duration) != now:
            report(
                f"train.duration was {was}, is {now}: schedules are stretched to the new length from this"
                " step."
            )
    found = saved.restore(program.initial_state([None] * len(program.runs)), report)
    assert found is not None  # there are steps
    state, step, meta = found
    report(f"resuming at step {step} of {run.total_steps}")
    return state, facts | {"durations": durations(meta, now), "data": meta.get("data", {})}


def _check_listed(saved: checkpoint.Checkpoints) -> None:
    """Refuse processes that would resume from different steps, as by an old listing of a shared file system.

    Raises:
      ValueError: a process lists other checkpoints than process 0.
    """
    own = json.dumps(saved.steps())
    theirs = distributed.of_first(own)
    if not distributed.on_all(own == theirs):
        raise ValueError(
            f"process {jax.process_index()} lists the checkpoints {own} in {saved.directory}, process 0 lists {theirs}:"
            " wait until the shared file system shows all of them to every host, then start again."
            if own != theirs
            else "another process lists other checkpoints than process 0; its own output names them."
        )


def durations(had: Facts, now: str) -> list[str]:
    """Return every ``train.duration`` of a run: those in its last checkpoint's facts, then the current one."""
    before = had.get("durations") or [configs.saved_settings(had["config"]).train.duration]
    return before if before[-1] == now else [*before, now]


def check_folders(program: Program, workdir: str | os.PathLike, start: int) -> None:
    """Refuse to resume from step ``start`` in a workdir whose folders belong to other runs.

    Raises:
      ValueError: a single run in a workdir with replica folders, which readers would take for its own; or a
        replica folder with a checkpoint after ``start``, which would keep the weights of another run.
    """
    if len(program.runs) == 1:
        if others := layout.folders(workdir):
            raise ValueError(
                f"{workdir} holds {len(others)} replicas ({layout.TABLE}), but this is a single run;"
                " choose another --workdir."
            )
        return
    for number in range(len(program.runs)):
        place = layout.checkpoints(workdir, number)
        if (newest := max(checkpoint.steps_in(place), default=0)) > start:
            raise ValueError(
                f"{place} holds step {newest}, of another run or of a replica that was trained on its"
                f" own, but the replicas of {workdir} continue from step {start}: move it away, or"
                " choose another --workdir."
            )


# --------------------------------------------------------------------------------- checks before resuming


def compatible(saved: tuple[int, Facts], wanted: tuple[Run, Facts]) -> str:
    """Return the reason why a run may not resume from a checkpoint; "" if it may.

    Args:
      saved: step and facts of the checkpoint.
      wanted: the first run of the program, and the facts of its checkpoints.
    """
    return next((why for check in CHECKS if (why := check(*saved, *wanted))), "")


def _runs(step: int, had: Facts, run: Run, now: Facts) -> str:
    before, these = had.get("replicas"), json.loads(json.dumps(now.get("replicas")))
    if before == these:
        return ""
    if these is None and before is not None:
        return (
            f"this workdir holds {len(before)} replicas, but this is a single run; choose another --workdir."
        )
    return (
        "this workdir holds"
        f" {'a single run' if before is None else f'replicas of {layout.words(before)}'}, but these are"
        f" replicas of {layout.words(these)}; choose another --workdir."
    )


def _length(step: int, had: Facts, run: Run, now: Facts) -> str:
    if step <= run.total_steps:
        return ""
    return (
        f"train.duration is {run.settings.train.duration!r}, {run.total_steps} steps; it must be at"
        f" least the {step} steps that this workdir's run has completed. For a new run choose another"
        " --workdir."
    )


def _config(step: int, had: Facts, run: Run, now: Facts) -> str:
    wrong = configs.forbidden_changes(had["config"], now["config"])
    changes = "; ".join(f"{name} was {was!r}, is {value!r}" for name, (was, value) in wrong.items())
    return changes and (
        f"the config differs from that of this workdir's run: {changes}. Undo these changes, or choose"
        " another --workdir."
    )


def _number(step: int, had: Facts, run: Run, now: Facts) -> str:
    if had.get("examples", now["examples"]) == now["examples"]:
        return ""
    return (
        f"data has {now['examples']:,} training images; this workdir's run began with"
        f" {had['examples']:,}, and their order and epochs would change. Restore the same images, or"
        " choose another --workdir."
    )


def _files(step: int, had: Facts, run: Run, now: Facts) -> str:
    if had.get("files") in (None, now["files"]):
        return ""
    return (
        f"data has {now['examples']:,} training images, as many as this workdir's run began with, but"
        " other files; their order would change. Restore the same images, or choose another --workdir."
    )


def _contents(step: int, had: Facts, run: Run, now: Facts) -> str:
    if not (had.get("contents") and now["contents"]):  # unknown, or an old checkpoint
        return ""
    others = data.differing(run.source.train, now["contents"], had["contents"])
    first = ", ".join(others[:3]) + (f" and {len(others) - 3:,} more" if len(others) > 3 else "")
    if first:
        return (
            f"data has other pixels, labels or groups than at the start of this workdir's run: {first}."
            " Restore the earlier images, or choose another --workdir."
        )
    labels = had["contents"].get("labels")  # of streamed files; older checkpoints have none
    if labels in (None, now["contents"].get("labels")):
        return ""
    return (
        "data has other labels or groups than at the start of this workdir's run. Restore them, or choose another"
        " --workdir."
    )


def _storage(step: int, had: Facts, run: Run, now: Facts) -> str:
    streamed = had.get("streamed", now["streamed"])
    if streamed == now["streamed"]:
        return ""
    here, there = ("streamed" if it else "in memory" for it in (now["streamed"], streamed))
    return (
        f"data is {here}, but this workdir's run began with data {there}, and views would be rounded"
        f" differently. Set data.stream={'on' if streamed else 'off'} or the earlier data.memory_limit,"
        " or choose another --workdir."
    )


def _random(step: int, had: Facts, run: Run, now: Facts) -> str:
    is_now = now["threefry_partitionable"]
    was = had.get("threefry_partitionable", is_now)  # unknown in older checkpoints
    if was == is_now:
        return ""
    return (
        f"JAX_THREEFRY_PARTITIONABLE was {was}, is {is_now}, and random numbers would be others than before. Restore"
        " it, or choose another --workdir."
    )


CHECKS = (_runs, _length, _config, _number, _files, _contents, _storage, _random)
