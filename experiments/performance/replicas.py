"""Runs a second of replicas, against the same runs one after the other and in processes beside each other.

    python experiments/performance/replicas.py [--width 0.25] [--batch 128] [--replicas 8] [--processes 2] [--out ...]

All train ResNet-18 by FlatCLR on 2,048 images in memory. One step of one run is the unit: ``one`` is a run by itself,
on the whole device; ``loop`` and ``side by side`` are replicas in one program, one after the other within the step
(what a CPU takes) and by vmap (what an accelerator takes); ``processes`` are runs of their own that share the device,
on a CPU each on its share of the cores. They are timed in turns within one call of this script, the processes at the
end of it while nothing else runs; figures are images a second of all runs together, and their ratio to ``one``.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import native
from contrastive_jax.training.compilation import compiled_step
from contrastive_jax.training.replicas import program_of

IMAGES, SECONDS = 2048, 5.0


def config_of(options, seed):
    """Return the config of FlatCLR at the width and batch asked for, by seed."""
    config = configs.load("configs/flatclr_cifar10.py")
    config.encoder.update({"depth": 18, "width": options.width, "stem": "cifar"})
    config.augment.size, config.dtype, config.seed = options.size, options.dtype, seed
    config.train.batch_size = options.batch
    with config.unlocked():
        config.data = {"name": "synthetic", "like": "cifar10", "examples": IMAGES, "test_examples": 64}
    return configs.plain(configs.complete(config))


def ready(program):
    """Return a function that runs one step of a program and waits for it."""
    with jax.set_mesh(program.mesh):
        state, feed = program.initial_state([None] * len(program.runs)), program.open_feed(0, print)
        step, _ = compiled_step(program, feed, state)
    held, number = [state], [0]

    def once():
        held[0], metrics = step(held[0], feed.feed(number[0]))
        jax.block_until_ready(metrics)
        number[0] += 1

    once()
    once()
    return once


def steps_a_second(once, seconds=SECONDS):
    """Measure the steps a second of calls for so long."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        once()
        count += 1
    return count / (time.perf_counter() - began)


def worker(options):
    """Run by itself: say that it is ready, wait for a word, and say how many steps a second it made."""
    once = ready(program_of([config_of(options, options.worker)]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(steps_a_second(once), flush=True)


def in_processes(options):
    """Measure the steps a second of all processes together."""
    cores = sorted(os.sched_getaffinity(0))
    own = [
        "--width",
        options.width,
        "--batch",
        options.batch,
        "--size",
        options.size,
        "--dtype",
        options.dtype,
    ]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *map(str, own), "--worker", str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for number in range(options.processes)
    ]  # fmt: skip
    if jax.default_backend() == "cpu":  # before they have begun to count cores
        for number, process in enumerate(processes):
            os.sched_setaffinity(process.pid, cores[number :: options.processes] or cores)
    for process in processes:
        while (line := process.stdout.readline()).strip() != "ready":
            if not line:
                raise RuntimeError("a process ended before it was ready")
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0].split()[-1]) for process in processes)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--worker", type=int)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    native.keep_pages()  # as the command does
    if options.worker is not None:
        return worker(options)
    given = [config_of(options, seed) for seed in range(options.replicas)]
    count = len(given)
    ways = {
        "one": (ready(program_of(given[:1])), 1),
        "loop": (ready(program_of(given, side_by_side=False)), count),
        "side by side": (ready(program_of(given, side_by_side=True)), count),
    }
    rates = {name: [] for name in ways}
    for _ in range(options.turns):
        for name, (once, runs_a_step) in ways.items():
            rates[name].append(steps_a_second(once, SECONDS / 2) * runs_a_step * options.batch)
    ways.clear()
    rates["processes"] = [in_processes(options) * options.batch]
    report = {
        "what": f"{count} replicas against runs by themselves, ResNet-18 x {options.width:g}, {options.size} px,"
        f" batch {options.batch}, {options.dtype}; {options.processes} processes",
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "images_a_second": {name: float(np.median(found)) for name, found in rates.items()},
        "ratio_to_one": {
            name: float(np.median(found) / np.median(rates["one"])) for name, found in rates.items()
        },
    }
    print(report["what"])
    for name, rate in report["images_a_second"].items():
        print(f"{name:>14}: {rate:10,.0f} images/s, {report['ratio_to_one'][name]:.2f} of one run at a time")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
