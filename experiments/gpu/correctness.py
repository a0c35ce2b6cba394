"""Numbers of this device beside those of its host's CPU: three steps of every method, and the losses' golden arrays.

    python -m experiments.gpu.correctness [--methods=flatclr_ess,moco_v1] [--processes=8] [--out=FILE]

Each method trains three steps on digits on both. In float32 with full products the two differ by rounding; by default
a GPU multiplies float32 in TF32, which rounds inputs to 11 bits; in bfloat16 both round to 8. A figure is the largest
difference of a metric that both have, relative to it or to 0.01 (to 1 for shares of a batch, which jump). The learning
rate is small: at a usual one DCL turns a change of its first weights by 1e-6 into 6 % of the third gradient's norm. In
bfloat16 it may be twice what rounding to bfloat16 changes on the CPU: Donsker-Varadhan's bound is an exponential mean,
whose gradient a few of the batch decide.

Also: whether the steps of a method have the same bits when they are taken again, whether a run that is stopped and
resumed has the bits of one that is not (``--resumed``), and the golden tests of the losses where pytest is installed.
What is found of a method is kept beside FILE, so that a command that was stopped goes on with the others.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax.config.methods import METHODS
from contrastive_jax.training import compilation, initial, loop, program
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 3
SHARES = ("contrast_accuracy", "probe_accuracy", "saturated")
RESUMED = "flatclr_ess,moco_v2,macl"  # a controller, a queue and an average, a temperature by the batch
# name -> config's dtype, precision of products, and what the largest difference must stay below.
MODES = {
    "float32, full products": ("float32", "highest", 2e-2),
    "float32, the device's products": ("float32", None, 0.3),
    "bfloat16": ("bfloat16", None, 2.0),
}
ROUNDED = "bfloat16 on the CPU"  # beside its float32


def config_of(method: str, dtype: str) -> dict:
    """Return the config of a method on digits, narrow, without augmentation; SGD, as Adam divides by what is only
    rounding."""
    config = configs.load(str(ROOT / f"configs/digits.py:method={method},scale=smoke"))
    config.augment, config.dtype = {"preset": "none", "size": 8}, dtype
    config.optimizer = {"name": "sgd", "weight_decay": 1e-4}
    config.schedule.update(
        {"name": "constant", "scaling": "none", "learning_rate": 1e-4, "warmup": "0 steps"}
    )
    return configs.plain(configs.complete(config))


def trained(trainee: Any, steps: int = STEPS) -> tuple[Any, list[Any]]:
    """Train some steps from the first weights; the state and the packed metrics of each step, on the host."""
    return trained_again(trainee, 1, steps)[0]


def trained_again(trainee: Any, times: int, steps: int = STEPS) -> list[tuple[Any, list[Any]]]:
    """Return what :func:`trained` does, of so many times with one program."""
    found = []
    with jax.set_mesh(trainee.mesh):
        feed = trainee.open_feed(0, print)
        step, _ = compilation.compiled_step(trainee, feed, initial.first_state(trainee, print))
        for _ in range(times):
            state, history = initial.first_state(trainee, print), []
            for number in range(steps):
                state, metrics = step(state, feed.feed(number))
                history.append(jax.device_get(metrics))
            found.append((jax.device_get(state), history))
    return found


def twice(config: dict, device: jax.Device) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Return the metrics of some steps on a device, and whether the same steps have the same bits again."""
    one, other = trained_again(program.single(runs.prepare(config, [device])), 2)
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    return [metrics.unpacked()[0] for metrics in one[1]], same


def differences(method: str) -> dict[str, Any]:
    """Return, for each mode, the largest relative difference of a metric between device and CPU, and the metric; and
    whether steps that are taken again have the same bits."""
    cpu = jax.devices("cpu")[0]
    with jax.default_matmul_precision("highest"):
        there, _ = twice(config_of(method, "float32"), cpu)
    found, repeats = {ROUNDED: largest(twice(config_of(method, "bfloat16"), cpu)[0], there)}, []
    for mode, (dtype, precision, _) in MODES.items():
        with jax.default_matmul_precision(precision or "default"):
            here, same = twice(config_of(method, dtype), jax.devices()[0])
        found[mode] = largest(here, there)
        repeats.append(same)
    return found | {"repeats": all(repeats)}


def largest(here: list[dict], there: list[dict]) -> dict[str, Any]:
    """Return the largest relative difference of a metric that both have, and which metric it is."""
    worst = (0.0, "")
    for one, other in zip(here, there, strict=True):
        for name in one.keys() & other.keys():
            if name.startswith("gradient_snr"):
                continue  # of two or three gradients: a ratio to rounding
            scale = 1.0 if name in SHARES else np.maximum(np.abs(other[name]), 1e-2)
            worst = max(worst, (float(np.max(np.abs(one[name] - other[name]) / scale)), name))
    return {"difference": worst[0], "metric": worst[1]}


def resumes(method: str) -> bool:
    """Return whether a run that stops and goes on has the bits of one that does not."""
    prints = []
    for lengths in ((4,), (2, 4)):
        with tempfile.TemporaryDirectory() as folder:
            for length in lengths:
                config = config_of(method, "float32")
                config["train"] = config["train"] | {"duration": f"{length} steps"}
                config["evaluate"] = config["evaluate"] | {"final": False}
                loop.train(config, folder, quiet=True, devices=jax.devices()[:1])
            with checkpoint.Checkpoints(pathlib.Path(folder) / "checkpoints", read_only=True) as saved:
                prints.append(checkpoint.fingerprint(saved.restore_part(["params", "stats"])[0]))
    return prints[0] == prints[1]


def golden(tests: str) -> str:
    """Run the losses' tests on this device; return their last line, or why they cannot run."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        str(min(8, os.cpu_count() or 1)),
        "-p",
        "no:cacheprovider",
    ]
    command += ["-m", "not slow and not run", tests]  # compiled as users compile
    environment = os.environ | {"JAX_PLATFORMS": jax.default_backend()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return ((done.stdout.strip() or done.stderr.strip()).splitlines() or ["no word"])[-1]


def examine(method: str, resumed: bool) -> dict[str, Any]:
    """Return all that is measured of a method."""
    return differences(method) | ({"resumes": resumes(method)} if resumed else {})


def wrong(method: str, found: Mapping[str, Any]) -> list[str]:
    """Return what is wrong of it, in words."""
    limits = {mode: most for mode, (_, _, most) in MODES.items()}
    limits["bfloat16"] = max(limits["bfloat16"], 2 * found[ROUNDED]["difference"])
    said = [
        f"{method}, {mode}: {found[mode]['metric']} differs by {found[mode]['difference']:.2g}"
        for mode, most in limits.items()
        if not found[mode]["difference"] <= most
    ]
    said += [] if found["repeats"] else [f"{method}: the same steps have other bits"]
    return said + ([] if found.get("resumes", True) else [f"{method}: resumed is not uninterrupted"])


def main() -> int:
    """Measure, print, save; return 1 where a difference is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--resumed", default=RESUMED, help="of them, those that are stopped and resumed too")
    parser.add_argument("--tests", default="tests/losses", help="folder or file of the losses' tests")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/correctness.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = options.out.with_suffix(".unfinished")
    methods = json.loads(unfinished.read_text()) if unfinished.exists() else {}
    failed: list[str] = []
    left = [method for method in options.methods.split(",") if method not in methods]
    with concurrent.futures.ProcessPoolExecutor(
        min(options.processes, max(1, len(left))), multiprocessing.get_context("spawn")
    ) as pool:
        begun = {pool.submit(examine, m, m in options.resumed.split(",")): m for m in left}
        for done in concurrent.futures.as_completed(begun):
            if error := done.exception():
                failed.append(f"{begun[done]}: {type(error).__name__}: {error}")
                continue
            methods[begun[done]] = done.result()
            unfinished.write_text(json.dumps(methods))
    report = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "wrong": failed + [text for method, found in methods.items() for text in wrong(method, found)],
        "golden tests": golden(options.tests),
    }
    print(json.dumps(report, indent=1))
    options.out.write_text(json.dumps(report | {"methods": methods}, indent=1) + "\n")
    unfinished.unlink(missing_ok=True)
    return bool(report["wrong"])


if __name__ == "__main__":
    sys.exit(main())
