"""Jobs run on this host, a process each, or on a cluster."""

import concurrent.futures
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from experiments.harness.jobs import Job, distinct
from experiments.harness.table import ROOT, config_of


def run(todo: Callable[[], list[Job]], workers: int, cluster: str, options: Mapping[str, Any]) -> list[str]:
    """Runs jobs until none is left, ``workers`` at a time; what went wrong, a sentence each.

    ``todo`` is asked again when all its jobs are done: a sweep that has chosen has new ones.
    """
    failures, tried, broken = [], set(), set()
    while new := distinct([job for job in todo() if job not in tried and job.key not in broken]):
        tried |= set(new)
        failures += (_on_slurm if cluster == "slurm" else _here)(new, workers, options)
        broken |= {job.key for job in new if not job.done()}
    return failures


def run_job(job: Job) -> None:
    """Trains and judges every seed of a job that is not done, in this process; a killed run goes on where it was.

    Raises:
      RuntimeError: a column that the table reads failed.
      recorder.Diverged: a loss was not finite; where a sweep chooses, it is taken note of instead.
    """
    from contrastive_jax.training import loop, recorder

    config = config_of(job.arguments())
    for seed in job.seeds():
        if job.result(seed) is not None:
            continue
        try:
            result = loop.train(config | {"seed": seed}, str(job.folder(seed)))
        except recorder.Diverged as error:
            if job.chosen:
                raise
            job.diverged(seed, str(error))
            continue
        if why := job.failure(result):
            raise RuntimeError(f"seed {seed} is trained, and not judged: {why}")


def _here(todo: list[Job], workers: int, options: Mapping[str, Any]) -> list[str]:
    """On this host: a process a job. Ctrl-C and SIGTERM reach the jobs, which save and end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    slots = queue.SimpleQueue()
    for slot in range(workers):
        slots.put(slot)

    def work(job):
        slot = slots.get()
        running.add(job)
        try:
            return _worker(job, slot, workers, processes)
        finally:
            running.discard(job)
            slots.put(slot)

    failures, running, processes = [], set(), set()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        bar = progress.add_task("cells", total=len(todo))
        waiting = {pool.submit(work, job): job for job in todo}
        try:
            while waiting:
                done, _ = concurrent.futures.wait(waiting, 2.0, concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    job, problem = waiting.pop(future), future.result()
                    failures += [f"{job.name}: {problem}"] if problem else []
                    progress.console.print(f"{job.name}: {problem or 'done'}", highlight=False)
                    progress.advance(bar)
                now = "; ".join(f"{job.name}: {_step_of(job)}" for job in list(running))
                progress.update(bar, description=now or "cells")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(processes):
                process.terminate()  # it saves, and goes on when it is run again
            raise
    return failures


def _worker(job: Job, slot: int, workers: int, processes: set[subprocess.Popen]) -> str | None:
    """Runs a job in a process of its own, put into ``processes``, on its share of this host; what went wrong."""
    environment = dict(os.environ)
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / "runs" / "compiled"))
    if "CUDA_VISIBLE_DEVICES" not in os.environ and workers > 1:
        environment["CUDA_VISIBLE_DEVICES"] = str(slot)  # no effect without GPUs
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[slot::workers] if workers <= len(cores) else cores
    log = job.folder(0).parent / "log.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        arguments = [sys.executable, "-m", "experiments.harness", "job", json.dumps(job)]
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
    """How far a job is, from what its runs have written."""
    for seed in reversed(job.seeds()):
        file = job.folder(seed) / "metrics.jsonl"
        if file.exists():
            lines = file.read_text().splitlines()
            return f"seed {seed}, epoch {json.loads(lines[-1])['epoch']:.1f}" if lines else f"seed {seed}"
    return "starting"


def _on_slurm(todo: list[Job], workers: int, options: Mapping[str, Any]) -> list[str]:
    """As one SLURM array, by submitit; at most ``workers`` at a time."""
    import submitit

    executor = submitit.AutoExecutor(folder=ROOT / "runs" / "slurm", cluster=options.pop("executor", "slurm"))
    if executor.cluster == "slurm":
        options = {"slurm_array_parallelism": workers} | dict(options)
    executor.update_parameters(**options)
    with executor.batch():
        submitted = [executor.submit(run_job, job) for job in todo]
    failures = []
    for job, task in zip(todo, submitted, strict=True):
        if task.exception() is not None:
            failures.append(f"{job.name}: {task.exception()}")
        print(f"{job.name}: {'failed' if task.exception() else 'done'}", flush=True)
    return failures
