"""Runs on this host, a process each, or on a cluster; those that differ in seed and numbers only as one program."""

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness import packs
from experiments.harness.jobs import Job, distinct, folder_of
from experiments.harness.table import ROOT, config_of

AT_ONCE = 32  # replicas of a program where there is an accelerator
BEGUN, ENDED = ".json", ".ended"  # suffixes of the file that says which runs are together
# Sections whose numbers the step reads, and no shape follows from.
FREE = ("seed", "schedule", "optimizer", "temperature", "margin", "loss", "target", "probe")
NO_RESULT = "it ended without a result"


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


def run(
    todo: Callable[[], list[Job]],
    workers: int | None,
    cluster: str,
    options: Mapping[str, Any],
    replicas: int | None = None,
) -> list[str]:
    """Run jobs until none is left, ``workers`` at a time; return what went wrong, a sentence each.

    ``todo`` is asked again when all its jobs are done: a sweep that has chosen has new ones. As many runs as
    ``replicas`` are one program where they can be; None: ``bundles.AT_ONCE`` on an accelerator, 1 on a CPU, where
    processes are faster. ``workers`` None: one for each accelerator of this host, or each core where it has none; on a
    cluster as many as it starts.
    """
    if replicas is None:
        replicas = AT_ONCE if accelerators() else 1
    if workers is None and cluster == "here":
        workers = accelerators() or len(os.sched_getaffinity(0))
    failures, tried, broken = [], set(), set()
    while new := distinct([job for job in todo() if job not in tried and job.key not in broken]):
        tried |= set(new)
        together = bundles(new) if replicas > 1 else [[job] for job in new]
        failures += (_on_slurm if cluster == "slurm" else _here)(together, replicas, workers, options)
        broken |= {job.key for job in new if not job.done()}
    return failures


def run_jobs(found: Sequence[Job], replicas: int = 1) -> None:
    """Train and judge every seed of some jobs that is not done, in this process; a killed run goes on where it was.

    ``replicas``: as many runs as that are one program, where they differ in seed and numbers only.

    Raises:
      RuntimeError: when all have ended: which of them diverged, and of which a column that the table reads failed. A
        run that chooses of a sweep may diverge.
    """
    from contrastive_jax import native

    native.keep_pages()  # as the command does
    put_ended(left(found))
    singles, wrong = left(found), []
    if replicas > 1:
        together, singles = parts(singles, replicas), []
        for part in together:
            alone, problems = run_together(part)
            singles, wrong = singles + alone, wrong + problems
    wrong += filter(None, map(_run, singles))
    if wrong:
        raise RuntimeError("; ".join(wrong))


def _run(single: Single) -> str:
    """Train and judge a run; return what went wrong."""
    from contrastive_jax.training import loop, recorder

    job, seed = single
    try:
        result = loop.train(single.config, str(job.folder(seed)), source=packs.source_of(single.config))
    except recorder.Diverged as error:
        if job.chosen:
            return f"{job.name}, seed {seed}: {error}"
        job.diverged(seed, str(error))
        return ""
    why = job.failure(result)
    return f"{job.name}, seed {seed} is trained, and not judged: {why}" if why else ""


def _here(todo: list[list[Job]], replicas: int, workers: int, options: Mapping[str, Any]) -> list[str]:
    """Run jobs on this host: a process for those that are together. Ctrl-C and SIGTERM reach the jobs, which save and
    end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    slots = queue.SimpleQueue()
    for slot in range(workers):
        slots.put(slot)

    def work(jobs):
        slot = slots.get()
        running.update(jobs)
        try:
            return _worker(jobs, replicas, slot, workers, processes)
        finally:
            running.difference_update(jobs)
            slots.put(slot)

    failures, running, processes = [], set(), set()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        bar = progress.add_task("cells", total=sum(map(len, todo)))
        waiting = {pool.submit(work, jobs): jobs for jobs in todo}
        try:
            while waiting:
                done, _ = concurrent.futures.wait(waiting, 2.0, concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    jobs, problem = waiting.pop(future), future.result()
                    for job in jobs:
                        wrong = "" if job.done() else problem or NO_RESULT
                        failures += [f"{job.name}: {wrong}"] if wrong else []
                        progress.console.print(f"{job.name}: {wrong or 'done'}", highlight=False)
                        progress.advance(bar)
                now = "; ".join(f"{job.name}: {_step_of(job)}" for job in list(running))
                progress.update(bar, description=now or "cells")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(processes):
                process.terminate()  # it saves, and goes on when it is run again
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    return failures


def _worker(
    jobs: list[Job], replicas: int, slot: int, workers: int, processes: set[subprocess.Popen]
) -> str | None:
    """Run jobs in a process of their own, put into ``processes``, on its share of this host; return what went wrong."""
    environment = dict(os.environ)
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / "runs" / "compiled"))
    if workers > 1 and (devices := accelerators()):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))
        environment["CUDA_VISIBLE_DEVICES"] = seen.split(",")[slot % devices]
        if workers > devices:  # by default the first would take most of a GPU's memory
            environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[slot::workers] if workers <= len(cores) else cores
    log = jobs[0].folder(0).parent / "log.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        arguments = [sys.executable, "-m", "experiments.harness", "jobs", json.dumps([replicas, jobs])]
        process = subprocess.Popen(
            arguments, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, mine),
        )  # fmt: skip
        processes.add(process)
        code = process.wait()
        processes.discard(process)
    if code:
        last = [line for line in log.read_text().splitlines() if line.strip()][-1:]
        return f"exit status {code}: {last[0] if last else 'no word'} ({log})"
    return None


def _step_of(job: Job) -> str:
    """Say how far a job is, from what its runs have written."""
    for seed in reversed(job.seeds()):
        file = job.folder(seed) / "metrics.jsonl"
        if file.exists():
            lines = file.read_text().splitlines()
            return f"seed {seed}, epoch {json.loads(lines[-1])['epoch']:.1f}" if lines else f"seed {seed}"
    return "starting"


def _on_slurm(
    todo: list[list[Job]], replicas: int, workers: int | None, options: Mapping[str, Any]
) -> list[str]:
    """Run jobs as one SLURM array, by submitit: at most ``workers`` at a time, a day each where no option says else."""
    import submitit

    options = dict(options)
    executor = submitit.AutoExecutor(folder=ROOT / "runs" / "slurm", cluster=options.pop("executor", "slurm"))
    if executor.cluster == "slurm":
        some = {"slurm_array_parallelism": workers} if workers else {}
        options = {"timeout_min": 24 * 60} | some | options
    executor.update_parameters(**options)
    with executor.batch():
        submitted = [executor.submit(run_jobs, jobs, replicas) for jobs in todo]
    failures = []
    for jobs, task in zip(todo, submitted, strict=True):
        problem = task.exception()
        for job in jobs:
            wrong = "" if job.done() else problem or NO_RESULT
            failures += [f"{job.name}: {wrong}"] if wrong else []
            print(f"{job.name}: {'failed' if wrong else 'done'}", flush=True)
    return failures
