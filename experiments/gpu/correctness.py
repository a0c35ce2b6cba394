"""Numbers of this device beside those of its host's CPU: three steps of every method, and the losses' golden arrays.

    python -m experiments.gpu.correctness [--methods=flatclr_ess,moco_v1] [--out=FILE]

Each method trains three steps on digits on both. In float32 with full products the two differ by rounding; by default
a GPU multiplies float32 in TF32, which rounds inputs to 11 bits; in bfloat16 both round to 8. A figure is the largest
difference of a metric that both have, relative to it or to 0.01. Also: whether a run that is stopped and resumed on
this device has the bits of one that is not, and the golden tests of the losses where pytest is installed. What is
found of a method is kept beside FILE, so that a command that was stopped goes on with the next method.
"""

import argparse
import json
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
from contrastive_jax.training import loop
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 3
# name -> config's dtype, precision of products, and what the largest difference must stay below.
MODES = {
    "float32, full products": ("float32", "highest", 2e-2),
    "float32, the device's products": ("float32", None, 0.3),
    "bfloat16": ("bfloat16", None, 1.0),
}


def config_of(method: str, dtype: str) -> dict:
    """Return the config of a method on digits, narrow, without augmentation; SGD, as Adam divides by what is only
    rounding."""
    config = configs.load(str(ROOT / f"configs/digits.py:method={method},scale=smoke"))
    config.augment, config.dtype = {"preset": "none", "size": 8}, dtype
    config.optimizer = {"name": "sgd", "weight_decay": 1e-4}
    return configs.plain(configs.complete(config))


def trained(trainee: Any, steps: int = STEPS) -> tuple[Any, list[Any]]:
    """Train some steps from the first weights; the state and the packed metrics of each step, on the host."""
    with jax.set_mesh(trainee.mesh):
        state, feed = trainee.first_state(print), trainee.feed(0, print)
        step, _ = trainee.compiled_step(feed, state)
        history = []
        for number in range(steps):
            state, metrics = step(state, feed.feed(number))
            history.append(jax.device_get(metrics))
        return jax.device_get(state), history


def history(config: dict, device: jax.Device) -> list[dict[str, np.ndarray]]:
    """Return the metrics of some steps on a device."""
    return [metrics.unpacked() for metrics in trained(loop.One(runs.prepare(config, [device])))[1]]


def differences(method: str) -> dict[str, dict[str, Any]]:
    """Return, for each mode, the largest relative difference of a metric between device and CPU, and the metric."""
    with jax.default_matmul_precision("highest"):
        there = history(config_of(method, "float32"), jax.devices("cpu")[0])
    found = {}
    for mode, (dtype, precision, _) in MODES.items():
        with jax.default_matmul_precision(precision or "default"):
            found[mode] = largest(history(config_of(method, dtype), jax.devices()[0]), there)
    return found


def largest(here: list[dict], there: list[dict]) -> dict[str, Any]:
    """Return the largest relative difference of a metric that both have, and which metric it is."""
    worst = (0.0, "")
    for one, other in zip(here, there, strict=True):
        for name in one.keys() & other.keys():
            if name.startswith("gradient_snr"):
                continue  # of two or three gradients: a ratio to rounding
            scale = np.maximum(np.abs(other[name]), 1e-2)
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
                config["schedule"] = config["schedule"] | {"name": "constant", "warmup": "0 steps"}
                loop.train(config, folder, quiet=True, devices=jax.devices()[:1])
            with checkpoint.Checkpoints(pathlib.Path(folder) / "checkpoints", read_only=True) as saved:
                prints.append(checkpoint.fingerprint(saved.restore_part(["params", "stats"])[0]))
    return prints[0] == prints[1]


def golden() -> str:
    """Run the losses' tests on this device; return their last line, or why they cannot run."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/losses"]
    environment = os.environ | {"JAX_PLATFORMS": jax.default_backend()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return ((done.stdout.strip() or done.stderr.strip()).splitlines() or ["no word"])[-1]


def examine(method: str) -> dict[str, Any]:
    """Return all that is measured of a method."""
    return differences(method) | {"resumes": resumes(method)}


def wrong(method: str, found: Mapping[str, Any]) -> list[str]:
    """Return what is wrong of it, in words."""
    said = [
        f"{method}, {mode}: {found[mode]['metric']} differs by {found[mode]['difference']:.2g}"
        for mode, (_, _, most) in MODES.items()
        if not found[mode]["difference"] <= most
    ]
    return said if found["resumes"] else [*said, f"{method}: resumed is not uninterrupted"]


def main() -> int:
    """Measure, print, save; return 1 where a difference is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/correctness.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = options.out.with_suffix(".unfinished")
    methods = json.loads(unfinished.read_text()) if unfinished.exists() else {}
    for method in options.methods.split(","):
        if method not in methods:
            methods[method] = examine(method)
            unfinished.write_text(json.dumps(methods))
    report = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "wrong": [text for method, found in methods.items() for text in wrong(method, found)],
        "golden tests": golden(),
    }
    print(json.dumps(report, indent=1))
    options.out.write_text(json.dumps(report | {"methods": methods}, indent=1) + "\n")
    unfinished.unlink()
    return bool(report["wrong"])


if __name__ == "__main__":
    sys.exit(main())
