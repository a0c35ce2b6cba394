"""Roofline of the step: what each part computes and moves, and what bounds it on a device.

    python experiments/performance/roofline.py                                   # measured here, and counted
    python experiments/performance/roofline.py --topology=v5e:2x4                # counted by libtpu, without a TPU

FLOPs and bytes are the compiler's own count of each part, compiled by itself in plain XLA (the library's CPU kernels
are not counted). A part takes at least the larger of FLOPs over the device's rate of products and bytes over its
memory's rate. Rates of this machine are measured: a product of square matrices, and an addition to an array that no
cache holds. Rates of other devices are their makers', so that their times are bounds and not predictions; bytes there
are those of the compiler that counted, and another one fuses otherwise.

The CPU's workload is the step of ``configs/simclr_cifar10.py`` on 32 pixels, the pod's that of
``configs/flatclr_imagenet.py`` with ResNet-50 on 224 pixels in bfloat16, on one chip.
"""

import argparse
import datetime
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from contrastive_jax import augment, contrastive_loss, native, sharding  # noqa: E402
from contrastive_jax import config as configs  # noqa: E402
from contrastive_jax.training import run as runs  # noqa: E402
from contrastive_jax.training.compilation import compiler_options  # noqa: E402
from experiments.performance import topology  # noqa: E402

# FLOP/s of dense products (bfloat16; TF32 of float32 on a GPU) and bytes/s of memory, from the makers' data sheets.
MAKERS = {"NVIDIA H200": (989.4e12, 4.8e12), "TPU v5e": (197e12, 819e9)}
WORKLOADS = {
    "cpu": ("simclr_cifar10", {"train.batch_size": 128, "encoder.width": 0.25, "dtype": "float32"}),
    "pod": ("flatclr_imagenet", {"train.batch_size": 256, "dtype": "bfloat16"}),
}


def run_of(workload: str, devices: list[jax.Device], leaves: dict[str, Any]) -> runs.Run:
    """Prepare the run of a workload on synthetic images."""
    name, own = WORKLOADS[workload]
    like = {"cpu": "cifar10", "pod": "imagenet2012"}[workload]
    given = [
        ("data.name", "synthetic"),
        ("data.like", like),
        ("data.examples", "1024"),
        ("data.stream", "off"),
    ]
    given += [("data.test_examples", "64"), *(("data.size", "224") for _ in range(workload == "pod"))]
    given += [(key, str(value)) for key, value in (own | leaves).items()]
    return runs.prepare(configs.plain(configs.resolve(name, given)), devices)


def parts(run: runs.Run) -> dict[str, tuple[Callable, tuple]]:
    """Return the parts of a step: a function each, and the shapes of its arguments."""
    recipe, batch = run.recipe, run.settings.train.batch_size
    tau, dtype = run.settings.temperature.options["tau"], "float32"
    images = jax.ShapeDtypeStruct((batch, *run.source.train.shape), np.uint8)
    number = jax.ShapeDtypeStruct((batch,), np.int32)
    views = jax.ShapeDtypeStruct((batch, 2, *recipe.view.shape), dtype)
    params, stats = recipe.network.shapes(recipe.view)
    embedding = jax.ShapeDtypeStruct((batch, recipe.embedding_width), dtype)
    state = jax.eval_shape(recipe.optimizer.init, params)

    def augmented(images, number):
        keys = augment.example_keys(jnp.uint32(0), number, number)
        return jax.vmap(recipe.augment)(keys, images)

    def forward(params, stats, views):
        return recipe.network.apply(params, stats, views, train=True)

    def both(params, stats, views):
        return jax.grad(lambda p: jnp.sum(forward(p, stats, views)[0].projection.astype(jnp.float32)))(params)

    def loss(one, two):
        return jax.grad(lambda a, b: contrastive_loss(a, b, "info_nce", tau).mean(), argnums=(0, 1))(one, two)

    def optimizer(grads, state, params):
        updates, state = recipe.optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return {
        "two augmented views": (augmented, (images, number)),
        "network, forward": (forward, (params, stats, views)),
        "network, forward and backward": (both, (params, stats, views)),
        "loss, forward and backward": (loss, (embedding, embedding)),
        "optimizer": (optimizer, (params, state, params)),
    }


def counted(function: Callable, shapes: tuple, run: runs.Run) -> dict[str, float]:
    """Count the FLOPs and bytes of a part by the compiler, on one device of the run."""
    put = sharding.named(run.mesh, sharding.REPLICATED)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=put), shapes)
    found = jax.jit(function).lower(*shapes).compile().cost_analysis() or {}
    return {"flops": found.get("flops", float("nan")), "bytes": found.get("bytes accessed", float("nan"))}


def seconds(function: Callable, shapes: tuple, run: runs.Run, turns: int) -> float:
    """Measure the median seconds of a call of a part as the library compiles it."""
    random = np.random.default_rng(0)

    def array(x):
        integer = np.issubdtype(x.dtype, np.integer)
        return jnp.asarray(
            random.integers(0, 255, x.shape) if integer else random.normal(size=x.shape), x.dtype
        )

    arguments = jax.tree.map(array, shapes)
    program = native.jit(function).lower(*arguments).compile(compiler_options(run.mesh))
    jax.block_until_ready(program(*arguments))
    return median(lambda: program(*arguments), turns)


def median(call: Callable, turns: int) -> float:
    """Measure the median seconds of a call."""
    found = []
    for _ in range(turns):
        began = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - began)
    return float(np.median(found))


def measured_rates(turns: int) -> tuple[float, float]:
    """Measure the FLOP/s of a product of matrices and bytes/s of memory, of this machine."""
    n, size = 4096, 2**27
    matrix, array = jnp.ones((n, n), jnp.float32), jnp.ones(size, jnp.float32)
    product, addition = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1)
    jax.block_until_ready((product(matrix), addition(array)))
    return 2 * n**3 / median(lambda: product(matrix), turns), 8 * size / median(
        lambda: addition(array), turns
    )


def bound(part: dict[str, float], rates: tuple[float, float]) -> tuple[float, str]:
    """Return the least seconds of a part on a device, and what they are spent on."""
    arithmetic, memory = part["flops"] / rates[0], part["bytes"] / rates[1]
    return max(arithmetic, memory), "arithmetic" if arithmetic > memory else "memory"


def table(report: dict[str, Any]) -> str:
    """Write the report in Markdown."""
    devices = report["rates"]
    heads = ["part", "GFLOP", "GB", "FLOP a byte"]
    heads += [f"{name}, least ms" for name in devices] + (
        ["measured ms", "reached"] if report["measured"] else []
    )
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for name, part in report["parts"].items():
        cells = [name, f"{part['flops'] / 1e9:,.2f}", f"{part['bytes'] / 1e9:,.3f}"]
        cells.append(f"{part['flops'] / part['bytes']:,.1f}")
        least = {device: bound(part, tuple(rates)) for device, rates in devices.items()}
        cells += [f"{1e3 * value:,.2f} ({word})" for value, word in least.values()]
        if report["measured"]:
            cells += [
                f"{1e3 * part['seconds']:,.1f}",
                f"{next(iter(least.values()))[0] / part['seconds']:.0%}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Count, measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, help="default: cpu, with --topology pod")
    parser.add_argument("--topology", default="", help="count for a TPU slice that is not here")
    parser.add_argument("--set", action="append", default=[], metavar="LEAF=VALUE", help="of the config")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    native.keep_pages()  # as the command does
    workload = options.workload or ("pod" if options.topology else "cpu")
    devices, note = (
        topology.devices_of(options.topology) if options.topology else (jax.devices(), "compiled here")
    )
    run = run_of(workload, devices[:1], dict(pair.split("=", 1) for pair in options.set))
    here = not options.topology
    found = {}
    for name, (function, shapes) in parts(run).items():
        found[name] = counted(function, shapes, run)
        if here:
            found[name]["seconds"] = seconds(function, shapes, run, options.turns)
        print(name, found[name], flush=True)
    rates = {"this CPU": measured_rates(options.turns)} if here else dict(MAKERS)
    network = run.settings.encoder.options
    report = {
        "what": f"{run.settings.name}, ResNet-{network['depth']} x {network['width']:g},"
        f" {run.recipe.view.shape[0]} px, batch {run.settings.train.batch_size}, {run.settings.dtype}; {note}",
        "device": devices[0].device_kind,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "measured": here,
        "rates": rates,
        "parts": found,
    }
    print(report["what"], table(report), sep="\n")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
