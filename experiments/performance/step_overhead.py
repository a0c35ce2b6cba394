"""What training costs beyond the network: the full step against the bare network on views in memory.

    python experiments/performance/step_overhead.py [--width 0.25] [--batch 128] [--out results/step_overhead.json]

Full: index the resident images, augment two views, network, loss, backward, optimizer, metrics. Bare: forward
and backward of the same network on two views that lie in memory already. Both are compiled ahead, then called in
turn, so that whatever else the machine does falls on both; a ratio is full over bare of one turn, the table shows
the median and the quartiles over turns. Also counted: compilations after the first step, and reads of the
device between log points (both must be 0).
"""

import argparse
import datetime
import json
import os
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data, native, sharding
from contrastive_jax.training import run as runs
from contrastive_jax.training.compilation import compiler_options
from contrastive_jax.training.recipe import build
from contrastive_jax.training.step import init_state, make_train_step

IMAGES = 2048


def programs(options):
    """Return the recipe, its mesh, and (full, bare): each a function that runs one step and waits for it."""
    config = configs.load(f"configs/{options.config}")
    config.encoder.update({"depth": options.depth, "width": options.width, "stem": options.stem})
    config.augment.size, config.dtype = options.size, options.dtype
    config.train.batch_size = options.batch
    config = configs.plain(config)
    schedule = config["schedule"] | {"warmup": 10}
    recipe = build(
        config | {"schedule": schedule},
        image_shape=(options.size, options.size, 3),
        classes=10,
        total_steps=1000,
        steps_per_epoch=10,
    )
    mesh = sharding.make_mesh()
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (IMAGES, options.size, options.size, 3), np.uint8)
    split = data.Split(images, random.integers(0, 10, IMAGES).astype(np.int32))
    with jax.set_mesh(mesh):
        feed = data.Resident(split, seed=0, batch_size=options.batch, mesh=mesh)
        state = runs.replicate(init_state(recipe, 0), mesh)
        views = jax.device_put(
            random.random((options.batch, 2, *recipe.view.shape), np.float32),
            sharding.named(mesh, sharding.ROWS),
        )
        step = native.jit(make_train_step(recipe, feed.take), donate_argnums=0)
        step = step.lower(state, feed.feed(0)).compile(compiler_options(mesh))

        def loss(params, stats, views):
            outputs, new = recipe.network.apply(params, stats, views, train=True)
            return jnp.mean(outputs.projection**2), new

        bare = native.jit(jax.grad(loss, has_aux=True))
        weights = jax.tree.map(jnp.copy, (state.params, state.stats))
        bare = bare.lower(*weights, views).compile(compiler_options(mesh))

    def full_step(number, holder=[state]):  # noqa: B006 - the state lives here
        holder[0], metrics = step(holder[0], feed.feed(number))
        return metrics

    return mesh, full_step, lambda number: bare(*weights, views)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="flatclr_cifar10.py")
    parser.add_argument("--depth", type=int, default=18)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--stem", default="cifar")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    mesh, full, bare = programs(options)
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compilations.append(event) if "backend_compile" in event else None
    )
    seconds = {"full": [], "bare": []}
    with jax.set_mesh(mesh):
        for number in range(3):
            jax.block_until_ready((full(number), bare(number)))
        compilations.clear()
        for number in range(3, 3 + options.turns):
            for name, run in (("full", full), ("bare", bare)):
                began = time.perf_counter()
                jax.block_until_ready(run(number))
                seconds[name].append(time.perf_counter() - began)
    ratio = np.array(seconds["full"]) / np.array(seconds["bare"])
    report = {
        "what": f"full step over bare network, ResNet-{options.depth} x {options.width:g}, {options.size} px,"
        f" batch {options.batch}, {options.dtype}, {options.config}",
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "turns": options.turns,
        "full_seconds": float(np.median(seconds["full"])),
        "bare_seconds": float(np.median(seconds["bare"])),
        "ratio": [float(q) for q in np.quantile(ratio, (0.25, 0.5, 0.75))],
        "compilations_after_warm_up": len(compilations),
    }
    print(report["what"])
    low, middle, high = report["ratio"]
    print(f"full {report['full_seconds']:.4f} s, bare {report['bare_seconds']:.4f} s, ratio {middle:.3f}")
    print(f"(quartiles {low:.3f}, {high:.3f}; {options.turns} turns; load {report['load']:.1f})")
    print(f"compilations after warm-up: {len(compilations)}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
