"""Runs that are one program: those whose configs differ in seed and numbers only, as replicas in one process."""

import collections
import contextlib
import functools
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from experiments.harness import packs
from experiments.harness.jobs import Job, folder_of
from experiments.harness.table import ROOT, config_of

AT_ONCE = 32  # replicas of a program where there is an accelerator
BEGUN, ENDED = ".json", ".ended"  # suffixes of the file that says which runs are together
# Sections whose numbers the step reads, and no shape follows from.
FREE = ("seed", "schedule", "optimizer", "temperature", "margin", "loss", "target", "probe")


class Single(NamedTuple):
    """One run of a job."""

    job: Job
    seed: int

    @property
    def config(self) -> dict[str, Any]:
        """Its config."""
        return config_of(self.job.arguments()) | {"seed": self.seed}


@functools.cache
def accelerators() -> int:
    """Count the devices that jax finds besides a CPU, asked in a process that ends: this one must not take their
    memory."""
    asked = "import jax; print(0 if jax.default_backend() == 'cpu' else jax.local_device_count())"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    words = found.stdout.split()
    return int(words[-1]) if words else 0


def left(jobs: Iterable[Job]) -> list[Single]:
    """Return the runs of jobs that are not done."""
    return [Single(job, seed) for job in jobs for seed in job.seeds() if job.result(seed) is None]


def alike(config: dict[str, Any]) -> str:
    """Return what replicas of each other have in common."""
    from contrastive_jax import config as configs

    def is_free(name: str, value: Any) -> bool:
        return name == "seed" or name.split(".")[0] in FREE and isinstance(value, float)

    leaves = configs.leaves(config).items()  # the names of numbers too: a loss is named by that of its weight
    return json.dumps(
        {name: "any" if is_free(name, value) else value for name, value in leaves}, sort_keys=True
    )


def bundles(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs whose runs may be one program, together; the others alone."""
    groups = collections.defaultdict(list)
    for job in jobs:
        groups[alike(config_of(job.arguments()))].append(job)
    return list(groups.values())


def parts(runs: Sequence[Single], at_once: int) -> list[list[Single]]:
    """Return runs in parts, a program each: those that were interrupted together, then the rest ``at_once`` at a time.

    Of those that were interrupted no more than ``at_once`` go on together: so many may not have fitted the device.
    """
    asked, again = {(run.job.key, run.seed): run for run in runs}, []
    for _, members in _files(BEGUN):
        if len(members) <= at_once and all(member in asked for member in members):
            again.append([asked.pop(member) for member in members])
    rest = list(asked.values())
    return again + [rest[i : i + at_once] for i in range(0, len(rest), at_once)]


def put_ended(runs: Sequence[Single]) -> None:
    """Put what ended together, and was interrupted on its way to its places, there; of programs with one of ``runs``.

    Others are another worker's, who may be putting them.
    """
    asked = {(run.job.key, run.seed) for run in runs}
    for file, members in _files(ENDED):
        if asked & set(members):
            _put(file, members)


def run_together(runs: Sequence[Single]) -> tuple[list[Single], list[str]]:
    """Train and judge runs as replicas, go on where they were killed, and put each where its job looks for it.

    Returns:
      The runs that have to run by themselves: those that had begun so, and all where they are no replicas; and what
      went wrong, a sentence a run.
    """
    from contrastive_jax.training import loop, replicas

    begun = [run for run in runs if (run.job.folder(run.seed) / "config.json").exists()]
    fresh = [run for run in runs if run not in begun]
    if len(fresh) < 2:
        return list(runs), []
    members = [(run.job.key, run.seed) for run in fresh]
    text = json.dumps(members)
    file = _folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}{BEGUN}"
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)
    try:
        configs = [run.config for run in fresh]
        results = loop.train(configs, str(file.with_suffix("")), source=packs.source_of(configs[0]))
    except replicas.NotReplicas as error:
        print(f"one by one: {error}", flush=True)
        file.unlink()
        return list(runs), []
    _put(file.rename(file.with_suffix(ENDED)), members)
    wrong = []
    for (job, seed), result in zip(fresh, results, strict=True):
        if "diverged" not in result and (why := job.failure(result)):
            wrong.append(f"{job.name}, seed {seed} is trained, and not judged: {why}")
        elif "diverged" in result and job.chosen:  # one that chooses is the worst, and done
            wrong.append(f"{job.name}, seed {seed}: {result['diverged']}")
    return begun, wrong


def _folder() -> pathlib.Path:
    """Return the folder of the runs that are together: of each program its workdir, and who they are beside it."""
    return ROOT / "runs" / "experiments" / "together"


def _files(suffix: str) -> list[tuple[pathlib.Path, list[tuple[str, int]]]]:
    """Return the files of a suffix, and the keys and seeds of the runs that each says are together."""
    found = []
    for file in sorted(_folder().glob(f"*{suffix}")):
        with contextlib.suppress(FileNotFoundError):  # another worker's, who is done with it
            found.append((file, [(key, seed) for key, seed in json.loads(file.read_text())]))
    return found


def _put(file: pathlib.Path, members: Sequence[tuple[str, int]]) -> None:
    """Put what has ended together where its jobs look for it; what has begun there by itself since stays."""
    from contrastive_jax.workdir import locks, replicas

    workdir = file.with_suffix("")
    for number, (key, seed) in enumerate(members):
        here, place = pathlib.Path(replicas.folder(workdir, number)), folder_of(key, seed)
        if here.exists() and not (place / "config.json").exists():
            if place.exists():  # the lock of a run that never began, and nothing else
                for name in (locks.LOCK, locks.HOLDER):
                    (place / name).unlink(missing_ok=True)
                place.rmdir()
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(here, place)
    shutil.rmtree(workdir, ignore_errors=True)
    file.unlink()
