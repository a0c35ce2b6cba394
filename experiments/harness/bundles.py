"""Runs that are one program: those whose configs differ in seed and numbers only, as replicas in one process."""

import collections
import functools
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from experiments.harness import packs
from experiments.harness.jobs import Job
from experiments.harness.table import ROOT, config_of

AT_ONCE = 32  # replicas of a program where there is an accelerator
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


def run_together(runs: Sequence[Single]) -> list[Single]:
    """Train and judge runs as replicas, go on where they were killed, and put each where its job looks for it.

    Returns:
      The runs that have to run by themselves: those that had begun so, and all where they are no replicas.
    """
    from contrastive_jax.training import replicas

    begun = [run for run in runs if (run.job.folder(run.seed) / "config.json").exists()]
    fresh = [run for run in runs if run not in begun]
    if len(fresh) < 2:
        return list(runs)
    name = hashlib.sha256(json.dumps([[run.job.key, run.seed] for run in fresh]).encode()).hexdigest()[:12]
    folder = ROOT / "runs" / "experiments" / "together" / name
    try:
        given = [run.config for run in fresh]
        found = replicas.train(given, str(folder), source=packs.source_of(given[0]))
    except replicas.NotReplicas as error:
        print(f"one by one: {error}", flush=True)
        return list(runs)
    diverged, unjudged = [], []
    for run, here, result in zip(fresh, replicas.folders(folder), found, strict=True):
        place, name = run.job.folder(run.seed), f"{run.job.name}, seed {run.seed}"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(here), str(place))
        if "diverged" in result and run.job.chosen:  # no result; one that chooses is the worst, and done
            run.job.forget(run.seed)
            diverged.append(f"{name}: {result['diverged']}")
        if why := "" if "diverged" in result else run.job.failure(result):
            unjudged.append(f"{name} is trained, and not judged: {why}")
    shutil.rmtree(folder)
    if diverged:
        raise ArithmeticError("; ".join(diverged + unjudged))
    if unjudged:
        raise RuntimeError("; ".join(unjudged))
    return begun
