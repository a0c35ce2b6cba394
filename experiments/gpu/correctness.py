"""Numbers of this device beside those of its host's CPU: three steps of every method, and the losses' golden arrays.

    python -m experiments.gpu.correctness [--methods flatclr_ess,moco_v1] [--out FILE]

Each method trains three steps on digits on both. In float32 with full products the two differ by rounding; by default
a GPU multiplies float32 in TF32, which rounds inputs to 11 bits; in bfloat16 both round to 8. A figure is the largest
difference of a metric that both have, relative to it or to 0.01. Also: whether a run that is stopped and resumed on
this device has the bits of one that is not, and the golden tests of the losses where pytest is installed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

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
    """A method on digits, narrow, without augmentation; SGD, as Adam divides by what is only rounding."""
    config = configs.load(str(ROOT / f"configs/digits.py:method={method},scale=smoke"))
    config.augment, config.dtype = {"preset": "none", "size": 8}, dtype
    config.optimizer = {"name": "sgd", "weight_decay": 1e-4}
    return configs.plain(configs.complete(config))


def history(config: dict, device: jax.Device) -> list[dict[str, np.ndarray]]:
    """The metrics of some steps on a device."""
    one = loop.One(runs.prepare(config, [device]))
    with jax.set_mesh(one.mesh):
        state, feed = one.first_state(print), one.feed(0, print)
        step, _ = one.compiled_step(feed, state)
        found = []
        for number in range(STEPS):
            state, metrics = step(state, feed.feed(number))
            found.append(jax.device_get(metrics).unpacked())
    return found


def difference(method: str, dtype: str, precision: str | None) -> tuple[float, str]:
    """The largest relative difference of a metric between this device and the CPU, and which metric it is."""
    config, worst = config_of(method, dtype), (0.0, "")
    with jax.default_matmul_precision(precision) if precision else jax.default_matmul_precision("default"):
        here = history(config, jax.devices()[0])
    with jax.default_matmul_precision("highest"):
        there = history(config_of(method, "float32"), jax.devices("cpu")[0])
    for one, other in zip(here, there, strict=True):
        for name in one.keys() & other.keys():
            if name.startswith("gradient_snr"):
                continue  # of two or three gradients: a ratio to rounding
            scale = np.maximum(np.abs(other[name]), 1e-2)
            found = float(np.max(np.abs(one[name] - other[name]) / scale))
            worst = max(worst, (found, name))
    return worst


def resumes(method: str) -> bool:
    """Whether a run that stops and goes on has the bits of one that does not."""
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
    """The last line of the losses' tests on this device; why not, where they cannot run."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/losses"]
    environment = os.environ | {"JAX_PLATFORMS": jax.default_backend()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return ((done.stdout.strip() or done.stderr.strip()).splitlines() or ["no word"])[-1]


def main() -> int:
    """Measures, prints, saves; 1 where a difference is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    report: dict = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "wrong": []}
    for mode, (dtype, precision, most) in MODES.items():
        rows = report[mode] = {}
        for method in options.methods.split(","):
            found, name = difference(method, dtype, precision)
            rows[method] = {"difference": found, "metric": name}
            if not found <= most:
                report["wrong"].append(f"{method}, {mode}: {name} differs by {found:.2g}")
    report["resumed bit for bit"] = {m: resumes(m) for m in options.methods.split(",")[:3]}
    report["wrong"] += [
        f"{m}: resumed is not uninterrupted" for m, ok in report["resumed bit for bit"].items() if not ok
    ]
    report["golden tests"] = golden()
    print(json.dumps({k: v for k, v in report.items() if k not in MODES}, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return bool(report["wrong"])


if __name__ == "__main__":
    sys.exit(main())
