"""Memory of the SimCLR step on ImageNet, ResNet-50 at 224 px, by batch and by what saves memory.

    python experiments/performance/memory.py [--batches 32,64] [--topology v5e:2x2] [--dtype bfloat16]

From the compiled program's own count (arguments, results that are not written over arguments, temporaries), of one
device: a program is compiled, not run, so that a batch may be larger than this machine. Without ``--topology`` the
compiler is XLA's for the devices at hand; with it, for TPU chips that are not here (libtpu, the ``tpu`` extra).

    plain           the step as it is
    remat           train.remat: of every residual block its input only
    microbatches=4  train.microbatches: a quarter of the batch at a time
    shard_state     optimizer.shard_state, over 8 devices: all figures of one of them, an eighth of the batch

The count is checked against a step that runs (``--check``, ResNet-18 on 32 px): the growth of the process's peak
memory from before its arrays are made to after its first step.

A cell is a process of its own; what is done is kept, and a second start goes on from there.
"""

import argparse
import datetime
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
WAYS = {
    "plain": {},
    "remat": {"train.remat": True},
    "microbatches=4": {"train.microbatches": 4},
    "shard_state": {"optimizer.shard_state": True},
}
SHARED = 8  # devices of shard_state
MIB = 2**20


class Unread:
    """As many images as ImageNet has, of which only the shapes are asked for."""

    shape, label_shape, chunk = (None, None, 3), (), 1

    def __len__(self) -> int:
        return 1_281_167


def step_of(batch: int, devices: list, **leaves):
    """Prepare the run of ``configs/simclr_imagenet.py`` without ImageNet; ``leaves``: section.option -> value."""
    from contrastive_jax import config as configs
    from contrastive_jax import data
    from contrastive_jax.training import run as runs

    config = configs.load(str(HERE.parents[1] / "configs/simclr_imagenet.py"))
    with config.unlocked():
        config.update_from_flattened_dict(leaves | {"train.batch_size": batch})
        config.evaluators = {}
        config.evaluate.look = ()
    source = data.Source("imagenet2012", data.Streamed(Unread()), None, tuple(map(str, range(1000))))
    return runs.prepare(configs.plain(configs.complete(config)), devices, source=source)


def counted(way: str, batch: int, topology: str, dtype: str) -> dict:
    """Measure one cell: the compiler's count, of one device."""
    import jax

    wanted = SHARED if way == "shard_state" else 1
    jax.config.update("jax_num_cpu_devices", wanted)  # before any device is asked for
    from topology import devices_of

    from contrastive_jax.training import compilation
    from contrastive_jax.training.cost import count

    devices = devices_of(topology)[0] if topology else jax.devices()
    run = step_of(
        batch, devices[:wanted] if way != "shard_state" else devices, **WAYS[way] | {"dtype": dtype}
    )
    began = time.perf_counter()
    cost = count(compilation.compiled_from_shapes(run))
    return {
        "way": way,
        "batch": batch,
        "devices": run.mesh.size,
        "device": run.mesh.devices.flat[0].device_kind,
        "dtype": dtype,
        "arguments": cost.arguments,
        "results": cost.results,
        "temporary": cost.temporary,
        "memory": cost.memory,
        "compile_seconds": time.perf_counter() - began,
        "jax": jax.__version__,
    }


def checked(batch: int) -> dict:
    """Count a small step and run it: both in bytes, and the second over the first."""
    import jax
    import numpy as np

    from contrastive_jax import config as configs
    from contrastive_jax import data
    from contrastive_jax.training import compilation
    from contrastive_jax.training import run as runs
    from contrastive_jax.training.cost import count

    jax.config.update("jax_num_cpu_devices", 1)
    config = configs.base()
    config.augment = {"preset": "none", "size": 32}
    config.evaluators, config.evaluate.look = {}, ()
    config.train.update({"batch_size": batch, "duration": "2 steps"})
    config.schedule.warmup = "0 steps"
    images = np.zeros((batch, 32, 32, 3), np.uint8)
    source = data.Source("zeros", data.Split(images), None, ())
    run = runs.prepare(configs.plain(configs.complete(config)), source=source)
    compiled = compilation.compiled_from_shapes(run)
    cost = count(compiled)
    _restart_peak()
    before = _peak()
    with jax.set_mesh(run.mesh):
        state, feed = runs.initial_state(run), runs.feed_of(run)
        jax.block_until_ready(compiled(state, feed.feed(0)))
    grown = _peak() - before
    return {"batch": batch, "counted": cost.memory, "grown": grown, "grown over counted": grown / cost.memory}


def _restart_peak() -> None:
    """Let peak memory count from here, where the kernel can do that: compiling takes more than the step."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def table(report: dict) -> str:
    """Write the cells as a table, GiB a device."""
    cells, batches = report["cells"], sorted({cell["batch"] for cell in report["cells"]})
    lines = [f"| batch | {' | '.join(WAYS)} |", "| ---: |" + " ---: |" * len(WAYS)]
    for batch in batches:
        row = []
        for way in WAYS:
            found = [c for c in cells if c["way"] == way and c["batch"] == batch]
            row.append(f"{found[0]['memory'] / 2**30:.2f}" if found else "—")
        lines.append(f"| {batch} | {' | '.join(row)} |")
    return "\n".join(lines)


def child(*arguments: str) -> dict:
    """Measure a cell, by a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Count what is missing, check, print, save after every cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="32,64")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--topology", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--check", default="64,256", help="batches of the step that runs; empty: none")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        way, _, batch = options.cell.partition(":")
        found = (
            checked(int(batch))
            if way == "check"
            else counted(way, int(batch), options.topology, options.dtype)
        )
        print(json.dumps(found))
        return
    name = f"memory_{options.topology.partition(':')[0] or 'cpu'}_{options.dtype}.json"
    out = options.out or HERE / "results" / name
    report = json.loads(out.read_text()) if out.exists() else {"cells": [], "checks": []}
    report |= {
        "what": "bytes of a device, SimCLR step, ResNet-50, 224 px",
        "topology": options.topology,
        "cores": os.cpu_count(),
        "date": datetime.date.today().isoformat(),
    }
    common = [f"--topology={options.topology}", f"--dtype={options.dtype}"]
    for batch in filter(None, options.check.split(",")):
        if int(batch) not in [check["batch"] for check in report["checks"]]:
            report["checks"].append(child(f"--cell=check:{batch}"))
            out.write_text(json.dumps(report, indent=1) + "\n")
    for batch in map(int, options.batches.split(",")):
        for way in options.ways.split(","):
            if (way, batch) not in [(cell["way"], cell["batch"]) for cell in report["cells"]]:
                report["cells"].append(child(f"--cell={way}:{batch}", *common))
                out.write_text(json.dumps(report, indent=1) + "\n")
    print(report["what"], "in GiB;", options.topology or "this machine's compiler", options.dtype)
    print(table(report))
    for check in report["checks"]:
        print(
            f"check, ResNet-18 on 32 px, batch {check['batch']}: counted {check['counted'] / MIB:.0f} MiB, the process"
            f" grew by {check['grown'] / MIB:.0f} MiB ({check['grown over counted']:.2f}x)"
        )


if __name__ == "__main__":
    main()
