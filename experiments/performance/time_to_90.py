"""Minutes of training to 90 % kNN on CIFAR-10, as a mean over fresh seeds: the judge of `records.md`.

    python experiments/performance/time_to_90.py                    # CIFAR-10, one GPU, seeds 100, 101 and 102
    python experiments/performance/time_to_90.py --minutes=9        # stops after 9 minutes; the same command goes on
    python experiments/performance/time_to_90.py --config=configs/mine.py --seeds=103,104,105 --out=mine.json
    python experiments/performance/time_to_90.py --scale=cpu        # digits, 96.0 %

A run trains to the end of its schedule. kNN there: k = 10, cosine, one vote each, pooled features, all training images
against all test images. It counts if the mean over at least three seeds reaches the target; the test images choose
neither its length nor its seeds.

The clock starts with the process. `training_seconds` has everything but the looks: import, reading the data, compiling
(no cache is used), training, checkpoints. `seconds` has the looks too; those before the last one are for watching.

Every seed is a process of its own. One that is stopped (`--minutes`, SIGTERM, Ctrl-C) saves and goes on in the next
call, whose start, data and compiling count again. Steps that a kill lost are trained again and count once. Seeds that
a results file of this folder has, of the same config, rules and device, are not run again.
"""

import argparse
import collections
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

BEGAN = time.perf_counter()
HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
METRIC = "eval/knn_top1"
RULES = 2  # 1: up to the first look at the target, looks included
SEEDS = 3  # that a record needs
STOPPED = 75  # exit status: the same command goes on
SCALES = {
    "gpu": {
        "config": "configs/simclr_cifar10_fast.py:scale=gpu",
        "data": "cifar10", "target": 0.90, "epochs": 100, "seeds": (100, 101, 102),
        "beat": "1 h 39 min, a single-file SimCLR in PyTorch on an A100, 90.3 +- 0.3 % over three runs",
    },
    "cpu": {
        "config": "configs/flatclr_digits.py",
        "data": "digits", "target": 0.96, "epochs": 10, "seeds": (100, 101, 102), "beat": None,
    },
    "smoke": {
        "config": "configs/simclr_cifar10_fast.py:scale=smoke",
        "data": "digits", "target": 0.3, "epochs": 0.05, "seeds": (100,), "beat": None,
    },
}  # fmt: skip


def config_of(spec: str, name: str, seed: int = 0) -> dict[str, Any]:
    """Load a config with the judge's evaluation in the place of its own.

    Raises:
      ValueError: it trains on something else than all images of the data set ``name``, without labels, from scratch.
    """
    from contrastive_jax import config as configs

    config = configs.load(str(ROOT / spec))
    with config.unlocked():
        config.seed = seed
        config.evaluators = {"knn": {"name": "knn", "k": 10, "temperature": 0.0}}
        config.evaluate.update({"look": ("knn",), "size": 0})
    config = configs.plain(configs.complete(config))
    needed = {"data.name": name, "data.validation": 0, "init.checkpoint": "", "probe.gradient": False}
    leaves = configs.leaves(config)
    for leaf, value in needed.items():
        if leaves[leaf] != value:
            raise ValueError(f"{spec}: {leaf} is {leaves[leaf]!r}; the rules of records.md have {value!r}.")
    return config


def key_of(config: Mapping[str, Any]) -> str:
    """Return the digest of what a run's numbers depend on, its seed aside."""
    from experiments.harness import records

    return records.digest(records.material(config))


def run(
    config: Mapping[str, Any], settings: Mapping[str, Any], folder: pathlib.Path, minutes: float
) -> dict | None:
    """Train one run, in this process, to the end of its schedule; None: it was stopped before, and saved.

    ``folder`` has what an earlier process of the run has left, and is left to the next.
    """
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, frame: stop.append(got))
    import jax

    from contrastive_jax import workdir as workdirs
    from contrastive_jax.commands import evaluate
    from contrastive_jax.training import compilation, program
    from contrastive_jax.training import run as runs
    from contrastive_jax.training.program import IN_FLIGHT
    from contrastive_jax.workdir import checkpoint
    from experiments.harness import packs

    run = runs.prepare(config, source=packs.source_of(config))
    judge = evaluate.Evaluator(run.settings, run.source, run.mesh, run.evaluators)
    between = max(1, round(settings["epochs"] * run.steps_per_epoch))
    looks: list[dict[str, float]] = []
    seconds, before, start, starts = {"looks": 0.0, "compiling the step": 0.0}, 0.0, 0, 1
    behind: collections.deque = collections.deque()

    def spent() -> float:
        return before + time.perf_counter() - BEGAN

    with (
        jax.set_mesh(run.mesh),
        contextlib.closing(runs.feed_of(run)) as feed,
        checkpoint.Checkpoints(folder.resolve(), keep_last=1) as saved,
    ):
        state = runs.initial_state(run)
        if found := saved.restore(state):
            state, start, meta = found
            if meta["device"] != (device := jax.devices()[0].device_kind):
                sys.exit(
                    f"{folder} was begun on {meta['device']}, and this is {device}: remove it to begin again."
                )
            looks, seconds, before, starts = (
                meta["looks"],
                meta["seconds"],
                meta["spent"],
                meta["starts"] + 1,
            )
        compiled, compiling = compilation.compiled_step(program.single(run), feed, state)
        seconds["compiling the step"] += compiling

        def save(step: int) -> None:
            about = {"spent": spent(), "starts": starts, "device": jax.devices()[0].device_kind}
            saved.save(step, state, {"looks": looks, "seconds": seconds, **about})

        for step in range(start + 1, run.total_steps + 1):
            state, metrics = compiled(state, feed.feed(step - 1))
            behind.append(metrics.values)
            if len(behind) > IN_FLIGHT:  # else the clock and a stop would wait for a long queue
                jax.block_until_ready(behind.popleft())
            last = step == run.total_steps
            if last or step % between == 0 and run.total_steps - step > between / 2:
                jax.block_until_ready(state)
                began, trained = time.perf_counter(), spent() - seconds["looks"]
                accuracy = judge.look((state.params, state.stats))[METRIC]
                seconds["looks"] += time.perf_counter() - began
                epoch = step / run.steps_per_epoch
                looks.append({"epoch": epoch, "training_seconds": trained, "knn": accuracy})
                print(f"seed {config['seed']}: epoch {epoch:.1f}, {trained:.0f} s, kNN {100 * accuracy:.1f} %",
                      file=sys.stderr, flush=True)  # fmt: skip
                if not last:
                    save(step)
            if not last and (stop or time.perf_counter() - BEGAN > 60 * minutes):
                jax.block_until_ready(state)
                save(step)
                print(f"seed {config['seed']}: stopped and saved at step {step} of {run.total_steps}",
                      file=sys.stderr, flush=True)  # fmt: skip
                return None
    return {
        "seed": config["seed"],
        "config_digest": key_of(config),
        "rules": RULES,
        "knn": looks[-1]["knn"],
        "training_seconds": looks[-1]["training_seconds"],
        "seconds": spent(),
        "of which": seconds,
        "starts": starts,
        "epoch": looks[-1]["epoch"],
        "looks": looks,
        "load": os.getloadavg()[0],
        **workdirs.environment(),
    }


def known(scale: str, digest: str) -> list[dict]:
    """Return the runs of a config that results files of this folder have by these rules."""
    files = sorted((HERE / "results").glob(f"time_to_90_{scale}*.json"))
    runs = [run for file in files for run in json.loads(file.read_text())["runs"]]
    return [run for run in runs if run.get("rules") == RULES and run["config_digest"] == digest]


def device_kind() -> str:
    """Return the kind of this machine's first device, by a process that gives it back."""
    command = [sys.executable, "-c", "import jax; print(jax.devices()[0].device_kind)"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")[-2]


def call(command: Sequence[str]) -> str | None:
    """Run a seed's process and return what it prints; None: it was stopped and has saved.

    A signal to this process is handed on, and its end is waited for.

    Raises:
      SystemExit: the run failed.
    """
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        numbers = (signal.SIGTERM, signal.SIGINT)
        asked: list[int] = []

        def hand_on(number: int, frame: object) -> None:
            asked.append(number)
            process.send_signal(signal.SIGTERM)

        old = [signal.signal(number, hand_on) for number in numbers]
        output, _ = process.communicate()
        for number, handler in zip(numbers, old, strict=True):
            signal.signal(number, handler)
    if process.returncode == STOPPED or process.returncode and asked:
        return None
    if process.returncode:
        raise SystemExit(process.returncode)
    return output


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and standard deviation; None for that of one value."""
    return {
        "mean": statistics.mean(values),
        "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
    }


def summary(spec: str, settings: Mapping[str, Any], found: Sequence[dict]) -> dict[str, Any]:
    """Return what the results file holds."""
    enough = len({run["seed"] for run in found}) >= SEEDS
    return {
        "what": f"training to {100 * settings['target']:.1f} % kNN (k=10, cosine) at the end of {spec}",
        "rules": RULES,
        "date": datetime.date.today().isoformat(),
        "target": settings["target"],
        "to beat": settings["beat"],
        "a record needs": f"a mean at the target over at least {SEEDS} seeds on one kind of device",
        "reached": enough and statistics.mean(run["knn"] for run in found) >= settings["target"],
        **{name: spread([run[name] for run in found]) for name in ("knn", "training_seconds", "seconds")},
        "runs": list(found),
    }


def report(spec: str, settings: Mapping[str, Any], found: Sequence[dict]) -> str:
    """Return the lines that the command prints about runs on one kind of device."""
    of, lines = summary(spec, settings, found), []
    for run in sorted(found, key=lambda run: run["seed"]):
        reached = [look["epoch"] for look in run["looks"] if look["knn"] >= settings["target"]]
        first = f"first look at the target: epoch {reached[0]:.1f}" if reached else "no look at the target"
        lines.append(
            f"  seed {run['seed']}: kNN {100 * run['knn']:.2f} % at the end;"
            f" {run['training_seconds']:.0f} s of training, {run['seconds']:.0f} s with looks,"
            f" {run['starts']} start{'s' * (run['starts'] > 1)}; {first}"
        )

    def shown(name: str, scale: float, digits: int) -> str:
        mean, deviation = of[name]["mean"], of[name]["standard_deviation"]
        return f"{scale * mean:.{digits}f}" + (
            f" +- {scale * deviation:.{digits}f}" if deviation is not None else ""
        )

    lines.append(
        f"  mean of {len(found)}: kNN {shown('knn', 100, 2)} %, {shown('training_seconds', 1, 0)} s of training,"
        f" {shown('seconds', 1, 0)} s with looks"
    )
    verdict = (
        f"no record: {SEEDS} seeds are needed, {len(found)} are here"
        if len(found) < SEEDS
        else f"a record: {of['training_seconds']['mean'] / 60:.2f} minutes"
        if of["reached"]
        else f"no record: the mean is below {100 * settings['target']:.1f} %"
    )
    return "\n".join([f"{of['what']}, {found[0]['device']['kind']}", *lines, f"  {verdict}"])


def parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--scale", choices=SCALES, default="gpu")
    made.add_argument(
        "--config", default="", help="another config than the scale's, from the repository's root"
    )
    made.add_argument("--seeds", default="", help="as 103,104,105; default: those of the scale")
    made.add_argument("--minutes", type=float, default=float("inf"), help="stop after these; default: never")
    made.add_argument("--out", type=pathlib.Path, help="results file")
    made.add_argument("--one", type=int, help=argparse.SUPPRESS)  # a seed, run in this process
    return made


def main() -> int:
    """Run the seeds one after the other, print, save; return the exit status."""
    options = parser().parse_args()
    settings = SCALES[options.scale]
    spec = options.config or settings["config"]
    try:
        seeds = [int(seed) for seed in options.seeds.split(",")] if options.seeds else list(settings["seeds"])
    except ValueError:
        sys.exit(f"--seeds={options.seeds}: write whole numbers with commas between, as 103,104,105.")
    out = (options.out or HERE / "results" / f"time_to_90_{options.scale}.json").absolute()

    def folder(seed: int) -> pathlib.Path:
        """Return the place of an unfinished run, of this config alone."""
        return out.with_suffix("") / f"seed{seed}-{digest}"

    if options.one is not None:
        config = config_of(spec, settings["data"], options.one)
        digest = key_of(config)
        found = run(config, settings, folder(options.one), options.minutes)
        if found is None:
            return STOPPED
        print(json.dumps(found))
        return 0
    try:
        digest = key_of(config_of(spec, settings["data"]))
    except ValueError as error:
        sys.exit(str(error))
    own = json.loads(out.read_text())["runs"] if out.exists() else []
    others = known(options.scale, digest)
    kind = device_kind() if own or others else ""
    others = [run for run in others if run["device"]["kind"] == kind]
    if any(
        (run.get("rules"), run.get("config_digest"), run["device"]["kind"]) != (RULES, digest, kind)
        for run in own
    ):
        sys.exit(
            f"--out={out} holds runs of another config, another device or earlier rules; name another file."
        )
    status, measured = 0, {run["seed"] for run in [*own, *others]}
    todo = [seed for seed in seeds if seed not in measured]
    for seed in todo:
        left = options.minutes - (time.perf_counter() - BEGAN) / 60
        arguments = [f"--scale={options.scale}", f"--config={spec}", f"--out={out}", f"--minutes={left}"]
        begin = left > 0 or seed == todo[0]  # at least a step a call
        output = call([sys.executable, __file__, *arguments, f"--one={seed}"]) if begin else None
        if output is None:
            print(f"stopped before the end of seed {seed}; repeat the command to resume it.")
            status = STOPPED
            break
        own.append(json.loads(output.splitlines()[-1]))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(summary(spec, settings, own), indent=1) + "\n")
        shutil.rmtree(folder(seed))
    there = {run["seed"]: run for run in [*others, *own]}
    if there:
        print(report(spec, settings, list(there.values())))
    return status


if __name__ == "__main__":
    sys.exit(main())
