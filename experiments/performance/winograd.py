"""Winograd's algorithm in the CPU kernels beside the direct kernels: errors, training, time.

    python experiments/performance/winograd.py accuracy [--width 0.25] [--batch 128] [--steps 300]
    python experiments/performance/winograd.py beside [--width 0.25] [--batch 64] [--steps 1000]
    python experiments/performance/winograd.py seeds [--config digits] [--seeds 5]
    python experiments/performance/winograd.py speed [--width 0.25] [--batch 256] [--turns 8]

``accuracy`` trains SimCLR on scikit-learn's digits at 32 px and takes every 3x3 convolution without a stride of the
trained ResNet-18: its images, its kernel and the loss's gradient. It compares forward and both gradients with float64:
the largest error over the largest number, and the root of the mean square of both.
``beside`` trains twice from the same seed, by one and by the other, and once more by the direct kernels after one
number of the state was changed by 1e-7 of itself: how soon rounding alone makes two runs differ.
``seeds`` runs the command with each and lists the accuracies and their spread over seeds.
``speed`` times the whole step with each in turns: the ratios' median and quartiles, of seconds and of CPU seconds.
Against PyTorch and lightly: `against_pytorch.py`.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from against_pytorch import ours

from contrastive_jax import augment, contrastive_loss, native
from contrastive_jax import config as configs
from contrastive_jax.models import convolution
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import make_train_step

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
SWITCHES = {"winograd": "on", "direct": "direct"}  # values of the switch
PASSES = ("forward", "of images", "of kernel")


def trained(width: float, batch: int, steps: int, nudge: float = 0.0):
    """Train SimCLR on digits for some steps; return the run, its state and feed, and every step's loss.

    ``nudge`` changes one number of the first state by that share of itself.
    """
    config = configs.load("configs/digits.py:method=simclr")
    config.augment.size, config.encoder.width, config.train.batch_size = 32, width, batch
    config.train.duration, config.schedule.warmup = f"{steps} steps", f"{steps // 10} steps"
    run = runs.prepare(configs.plain(configs.complete(config)), devices=jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        feed, state = runs.feed_of(run), runs.initial_state(run)
        if nudge:
            leaves, tree = jax.tree.flatten(state.params)
            last = max(range(len(leaves)), key=lambda i: leaves[i].size)
            leaves[last] = leaves[last].at[(0,) * leaves[last].ndim].multiply(1 + nudge)
            state = dataclasses.replace(state, params=jax.tree.unflatten(tree, leaves))
        step = native.jit(make_train_step(run.recipe, feed.take), donate_argnums=0)
        losses = []
        for number in range(steps):
            state, metrics = step(state, feed.feed(number))
            losses.append(float(metrics["loss"]))
    return run, state, feed, losses


def layers(run, state, feed) -> list[tuple[np.ndarray, ...]]:
    """Return images, kernel and the loss's gradient of each 3x3 convolution without a stride."""
    plain = convolution.convolve

    def loss(probes, params, stats, views):
        """Add zeros, the probes, to what is convolved: their gradients are the gradients there."""
        found = []

        def recorded(images, kernel, strides, padding):
            value = plain(images, kernel, strides, padding)
            if strides != (1, 1) or kernel.shape[:2] != (3, 3):
                return value
            found.append((images, kernel))
            return value + probes[len(found) - 1] if probes else value

        convolution.convolve = recorded
        try:
            outputs, _ = run.recipe.network.apply(params, stats, views, train=True)
        finally:
            convolution.convolve = plain
        return contrastive_loss(*jnp.moveaxis(outputs.projection, 1, 0), temperature=0.5).mean(), found

    with jax.set_mesh(run.mesh):
        batch = feed.take(feed.feed(0), jnp.asarray(0))
        keys = augment.example_keys(state.seed, batch.epoch, batch.id)
        views = native.jit(jax.vmap(run.recipe.augment))(keys, batch.image)
        given = state.params, state.stats, views
        shapes = jax.eval_shape(lambda *a: loss((), *a)[1], *given)
        probes = [jnp.zeros((*images.shape[:3], kernel.shape[3])) for images, kernel in shapes]
        gradients, found = native.jit(jax.grad(loss, has_aux=True))(probes, *given)
    return jax.device_get([(*pair, gradient) for pair, gradient in zip(found, gradients, strict=True)])


def passes(images, kernel, gradient):
    """Return the convolution, and the gradients of images and kernel."""
    value, pull = jax.vjp(lambda x, k: convolution.convolve(x, k, (1, 1), ((1, 1), (1, 1))), images, kernel)
    return value, *pull(gradient)


def accuracy(options) -> dict:
    """Measure the errors of each layer and pass."""
    os.environ[native.library.SWITCH] = "direct"
    run, state, feed, _ = trained(options.width, options.batch, options.steps)
    rows = []
    for number, given in enumerate(layers(run, state, feed)):
        with jax.enable_x64(True):  # float64 is XLA's
            exact = jax.device_get(native.jit(lambda *a: passes(*a))(*(np.float64(x) for x in given)))
        row = {"layer": number, "images": given[0].shape, "kernel": given[1].shape, "errors": {}}
        for name, switch in SWITCHES.items():
            os.environ[native.library.SWITCH] = switch
            found = jax.device_get(native.jit(lambda *a: passes(*a))(*given))
            row["errors"][name] = {
                which: {
                    "max": float(np.abs(x - y).max() / np.abs(y).max()),
                    "rms": float(np.sqrt(np.mean((x - y) ** 2) / np.mean(y**2))),
                }
                for which, x, y in zip(PASSES, found, exact, strict=True)
            }
        rows.append(row)
        print(f"  {row['images']} by {row['kernel']}: ", end="")
        texts = [
            f"{name} " + " ".join(f"{e['max']:.1e} ({e['rms']:.1e})" for e in errors.values())
            for name, errors in row["errors"].items()
        ]
        print("; ".join(texts), flush=True)
    return {"steps": options.steps, "layers": rows}


def beside(options) -> dict:
    """Measure how two runs part, by another algorithm and by one number that was changed."""
    runs_of = {"direct": ("direct", 0.0), "winograd": ("on", 0.0), "nudged": ("direct", 1e-7)}
    losses = {}
    for name, (switch, nudge) in runs_of.items():
        os.environ[native.library.SWITCH] = switch
        losses[name] = trained(options.width, options.batch, options.steps, nudge)[3]
    last = max(1, options.steps // 10)
    report = {"losses": losses, "apart": {}, "mean of the last tenth": {}}
    for name, found in losses.items():
        report["mean of the last tenth"][name] = statistics.mean(found[-last:])
        if name != "direct":
            apart = [abs(x / y - 1) for x, y in zip(found, losses["direct"], strict=True)]
            report["apart"][name] = {n: apart[n - 1] for n in (1, 10, 100, 1000) if n <= len(apart)}
    for what in ("apart", "mean of the last tenth"):
        print(f"  {what}: {report[what]}")
    return report


def seeds(options) -> dict:
    """Run the command with each for some seeds."""
    report = {"config": options.config, "scores": {}}
    for seed in range(options.seeds):
        for name, switch in SWITCHES.items():
            with tempfile.TemporaryDirectory() as workdir:
                config = shlex.split(f"--config={options.config}")
                command = [sys.executable, "-m", "contrastive_jax.main", *config, f"--config.seed={seed}"]
                subprocess.run(
                    [*command, f"--workdir={workdir}"],
                    cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
                    env=os.environ | {native.library.SWITCH: switch},
                )  # fmt: skip
                result = json.loads(pathlib.Path(workdir, "result.json").read_text())
            for column, score in result["evaluations"]["trained"].items():
                report["scores"].setdefault(column, {}).setdefault(name, []).append(score["top1"])
    for column, of_each in report["scores"].items():
        texts = [
            f"{name} {100 * statistics.mean(scores):.2f} ± {100 * statistics.stdev(scores):.2f}"
            for name, scores in of_each.items()
            if len(scores) > 1
        ]
        print(f"  {column}: {', '.join(texts)} %")
    return report


def speed(options) -> dict:
    """Measure the step by each in turns."""
    programs = {}
    for name, switch in SWITCHES.items():
        os.environ[native.library.SWITCH] = switch
        programs[name] = ours(options.width, options.batch, False, "float32")[0]
        programs[name](1)
    seconds = {name: [] for name in programs}
    for _ in range(options.turns):
        for name, run in programs.items():
            run(1)  # caches and threads are warm again
            began, cpu = time.perf_counter(), time.process_time()
            run(1)
            seconds[name].append((time.perf_counter() - began, time.process_time() - cpu))
    report = {"load": os.getloadavg()[0], "cores": len(os.sched_getaffinity(0)), "seconds": seconds}
    for number, what in enumerate(("seconds", "CPU seconds")):
        ratios = [x[number] / y[number] for x, y in zip(seconds["direct"], seconds["winograd"], strict=True)]
        report[f"{what}, direct over winograd"] = low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {what}: {middle:.2f}x (quartiles {low:.2f}, {high:.2f})")
    return report


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("accuracy", "beside", "seeds", "speed"))
    parser.add_argument("--config", default="digits", help="of seeds; more options may follow, in one string")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    report = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "width": round(64 * options.width),
        "batch": options.batch,
    }
    report |= globals()[options.what](options)
    name = f"winograd_{options.what}_"
    name += options.config if options.what == "seeds" else f"width{report['width']}"
    out = options.out or HERE / "results" / f"{name}_{report['device'].lower().replace(' ', '_')}.json"
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
