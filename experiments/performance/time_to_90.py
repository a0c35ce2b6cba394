"""Seconds until kNN on frozen features is right 90 times of 100: CIFAR-10, ResNet-18, everything included.

    python experiments/performance/time_to_90.py                    # CIFAR-10, one GPU
    python experiments/performance/time_to_90.py --scale=cpu        # digits, until 96.0 %

kNN: k = 10, cosine, one vote each, all training images against all test images, at looks a few epochs apart; the
first look at or above the target ends a run. The clock starts with the process and counts everything: import,
reading the data, compiling (no cache is used), training and every look.

Every seed is a process of its own; those in the results file are not run again. The config is one that was there
before this script (``configs/simclr_cifar10.py``, ``configs/flatclr_digits.py``), with the length of its schedule;
nothing was tuned to the target. The test images decide when a run ends, so the accuracy at that look is the best so
far, not an estimate. A run that is killed goes on from its last look; what it had spent by then counts.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

BEGAN = time.perf_counter()
HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
METRIC = "eval/knn_top1"
SCALES = {
    "gpu": {
        "config": "configs/simclr_cifar10.py:scale=gpu",
        "leaves": {"train.duration": "500 epochs", "dtype": "bfloat16"},
        "target": 0.90, "epochs": 20, "seeds": 1, "beat": "1 h 39 min, a tuned single-file PyTorch SimCLR on an A100",
    },
    "cpu": {
        "config": "configs/flatclr_digits.py",
        "leaves": {}, "target": 0.96, "epochs": 2, "seeds": 3, "beat": None,
    },
    "smoke": {
        "config": "configs/flatclr_digits.py:scale=smoke",
        "leaves": {}, "target": 0.3, "epochs": 0.05, "seeds": 1, "beat": None,
    },
}  # fmt: skip


def run(scale: str, seed: int, folder: pathlib.Path) -> dict:
    """Train one run, in this process, up to the look that reaches the target or to the schedule's end.

    ``folder`` has what an earlier process of the run has left, and is left to the next.
    """
    import jax

    from contrastive_jax import config as configs
    from contrastive_jax import workdir as workdirs
    from contrastive_jax.commands import evaluate
    from contrastive_jax.training import compilation
    from contrastive_jax.training import run as runs
    from contrastive_jax.workdir import checkpoint
    from experiments.harness import packs

    settings = SCALES[scale]
    config = configs.load(str(ROOT / settings["config"]))
    with config.unlocked():
        config.update_from_flattened_dict(settings["leaves"] | {"seed": seed})
        config.evaluators.knn.update({"k": 10, "temperature": 0.0})
        config.evaluate.look = ("knn",)
    config = configs.plain(configs.complete(config))
    run = runs.prepare(config, source=packs.source_of(config))
    judge = evaluate.Evaluator(run.config, run.source, run.mesh, run.evaluators)
    between = max(1, round(settings["epochs"] * run.steps_per_epoch))
    looks, seconds, before, start = [], {"looks": 0.0, "compiling the step": 0.0}, 0.0, 0
    with (
        jax.set_mesh(run.mesh),
        contextlib.closing(runs.feed_of(run)) as feed,
        checkpoint.Checkpoints(folder.resolve(), keep_last=1) as saved,
    ):
        state = runs.initial_state(run)
        if found := saved.restore(state):
            state, start, meta = found
            looks, seconds, before = meta["looks"], meta["seconds"], meta["looks"][-1]["seconds"]
        compiled, compiling = compilation.compiled_step(run, feed, state)
        seconds["compiling the step"] += compiling
        for step in range(start + 1, run.total_steps + 1):
            state, _ = compiled(state, feed.feed(step - 1))
            if step % between and step < run.total_steps:
                continue
            jax.block_until_ready(state)
            began = time.perf_counter()
            accuracy = judge.look(state)[METRIC]
            now = time.perf_counter()
            seconds["looks"] += now - began
            spent = before + now - BEGAN
            looks.append({"epoch": step / run.steps_per_epoch, "seconds": spent, "knn": accuracy})
            print(f"seed {seed}: epoch {looks[-1]['epoch']:.1f}, {spent:.0f} s, kNN {100 * accuracy:.1f} %",
                  file=sys.stderr, flush=True)  # fmt: skip
            saved.save(step, state, {"looks": looks, "seconds": seconds})
            if accuracy >= settings["target"]:
                break
    return {
        "seed": seed,
        "reached": looks[-1]["knn"] >= settings["target"],
        "seconds": looks[-1]["seconds"],
        "cpu_seconds": time.process_time(),
        "of which": seconds,
        "epoch": looks[-1]["epoch"],
        "looks": looks,
        "load": os.getloadavg()[0],
        **workdirs.environment(),
    }


def main() -> None:
    """Run the seeds one after the other, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=SCALES, default="gpu")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--seed", type=int, help="one run, in this process")
    parser.add_argument("--folder", type=pathlib.Path, help="of one run: where it goes on from")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.seed is not None:
        print(json.dumps(run(options.scale, options.seed, options.folder)))
        return
    settings = SCALES[options.scale]
    out = options.out or HERE / "results" / f"time_to_90_{options.scale}.json"
    state = out.with_suffix("")
    found = json.loads(out.read_text())["runs"] if out.exists() else []
    for seed in range(options.seeds or settings["seeds"]):
        if seed in [f["seed"] for f in found]:
            continue
        folder = state / f"seed{seed}"
        command = [
            sys.executable,
            __file__,
            f"--scale={options.scale}",
            f"--seed={seed}",
            f"--folder={folder}",
        ]
        environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(summary(settings, found), indent=1) + "\n")
        shutil.rmtree(folder)
    report = summary(settings, found)
    print(report["what"])
    for f in found:
        print(
            f"  seed {f['seed']}: {'reached' if f['reached'] else 'NOT reached'} at epoch {f['epoch']:.1f},"
            f" {f['seconds']:.0f} s ({f['cpu_seconds']:.0f} s of CPU, load {f['load']:.1f}),"
            f" kNN {100 * f['looks'][-1]['knn']:.1f} %"
        )
    if report["seconds"]:
        print(f"  median of {len(report['seconds'])}: {statistics.median(report['seconds']):.0f} s")


def summary(settings: dict, found: list[dict]) -> dict:
    """Return what the results file holds."""
    reached = [f for f in found if f["reached"]]
    return {
        "what": f"seconds until kNN (k=10, cosine) reaches {100 * settings['target']:.1f} %, {settings['config']}",
        "date": datetime.date.today().isoformat(),
        "target": settings["target"],
        "looks every": f"{settings['epochs']} epochs",
        "to beat": settings["beat"],
        "reached": f"{len(reached)} of {len(found)} seeds",
        "seconds": [f["seconds"] for f in reached],
        "runs": found,
    }


if __name__ == "__main__":
    main()
