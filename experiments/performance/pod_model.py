"""Step time and efficiency of SimCLR with ResNet-50 on 8 to 1,024 chips that are not here: a model, back-tested.

    python experiments/performance/pod_model.py count --topology=v5e:2x2     # compile once, keep the counts
    python experiments/performance/pod_model.py backtest                     # predicted over measured, here
    python experiments/performance/pod_model.py predict                      # results/pod_model.md

What a step costs a device comes from the compiled step (``count``: FLOPs, bytes read and written, temporaries,
collectives with their bytes), what a chip can from its maker's data sheet. A step takes

    FLOPs / (peak x MXU) + bytes / (bandwidth x HBM) + sum of collectives

each collective being its bytes over the links, twice (n - 1) / n of them for an all-reduce and once for the others,
and a latency. Assumptions:

  - A convolution is bound by arithmetic, what lies between them by memory, and they take turns: the two times
    add. Of the published peaks MXU = 0.5 and HBM = 0.8 are reached: the round figures of a well-compiled network, not
    measured here.
  - The counted bytes are those of the chip that was compiled for; another compiler fuses otherwise.
  - FLOPs, bytes and temporaries grow with a chip's share of the batch, but for ten passes over the weights
    (forward, backward, gradients, optimizer) and for the scores, 2 b x 2 B x D three times over.
  - Nothing overlaps: collectives wait for what computes, and the other way round. XLA hides some of the gradients'.
  - Where the temporaries do not fit, the fewest micro-batches that do are taken: a third more FLOPs and bytes (every
    forward pass twice), and gradients and batch norm are summed once a micro-batch.
  - TPU: half of the published interconnect bandwidth in a direction; a hop of 1 us, 2 sqrt(n) hops on a torus.
    GPU: hosts of 8; NVLink within, one network card a GPU between; 10 us within, and 5 us x log2(hosts) between.
  - Images arrive in time.

Efficiency is images a second and chip over those of the same chip alone at the same share of the batch.

The back-test calibrates two rates (FLOPs and bytes a CPU second) on some small steps of this machine, and predicts
others of another batch, width and number of emulated devices. Time is the process's CPU time, as other jobs run beside.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
COUNTS = HERE / "results" / "pod_model_counts.json"
BACKTEST = HERE / "results" / "pod_model_backtest.json"
TABLE = HERE / "results" / "pod_model.md"
ON_A_GPU = HERE / "results" / "imagenet_off_nvidia_h100_80gb_hbm3.json"
MXU, HBM, PASSES = 0.5, 0.8, 10
CHIPS_OF_A_HOST = 8


class Chip(NamedTuple):
    """Published rates of a chip."""

    name: str
    peak: float  # FLOP/s, bfloat16, dense
    bandwidth: float  # bytes/s, of its memory
    memory: float  # bytes
    links: float  # bytes/s in one direction, between chips of a slice or host
    network: float | None  # bytes/s in one direction and chip, between hosts; None: a torus
    most: int  # chips in one slice


CHIPS = (
    Chip("TPU v4", 275e12, 1228e9, 32 * 2**30, 2400e9 / 8 / 2, None, 4096),
    Chip("TPU v5e", 197e12, 819e9, 16 * 2**30, 1600e9 / 8 / 2, None, 256),
    Chip("A100 80 GB SXM", 312e12, 2039e9, 80e9, 600e9 / 2, 200e9 / 8, 1024),
    Chip("H100 SXM", 989e12, 3350e9, 80e9, 900e9 / 2, 400e9 / 8, 1024),
)
BATCHES = (4096, 8192, 16384, 32768, 65536)
SIZES = (8, 32, 128, 256, 1024)


class Counts(NamedTuple):
    """Costs of a compiled step to each of some devices."""

    batch: int  # of all devices
    devices: int
    flops: float
    traffic: float  # bytes
    fixed: float  # bytes that are there whatever the batch: arguments and results
    temporary: float  # bytes
    weights: float  # bytes of the parameters
    embedding: int  # D
    collectives: list  # (kind, bytes)


def scores(batch: int, devices: int, embedding: int) -> float:
    """Count the FLOPs of comparing all views with all, forward and backward, on one device."""
    return 3 * 2 * (2 * batch / devices) * 2 * batch * embedding


def scaled(counts: Counts, batch: int, devices: int) -> tuple[float, float, float]:
    """Scale FLOPs, traffic and temporaries of a device to another batch on other devices."""
    more = (batch / devices) / (counts.batch / counts.devices)
    own = scores(counts.batch, counts.devices, counts.embedding)
    flops = (counts.flops - own) * more + scores(batch, devices, counts.embedding)
    state = min(PASSES * counts.weights, counts.traffic)
    temporary = counts.weights + max(counts.temporary - counts.weights, 0) * more
    return flops, state + (counts.traffic - state) * more, temporary


def seconds_of(kind: str, size: float, chip: Chip, n: int) -> float:
    """Return the seconds of a collective over n chips; ``size``: bytes of its result on a device."""
    if n == 1:
        return 0.0
    passes = (2 if kind == "all-reduce" else 1) * (n - 1) / n
    if kind == "reduce-scatter":
        size *= n
    if chip.network is None:
        return size * passes / chip.links + 1e-6 * 2 * math.sqrt(n)
    hosts = max(1, n // CHIPS_OF_A_HOST)
    # Within a host every byte passes NVLink; between hosts each of its chips carries its share.
    between = size * passes / (chip.network * min(n, CHIPS_OF_A_HOST)) if hosts > 1 else 0.0
    return size * passes / chip.links + between + 10e-6 + 5e-6 * math.log2(hosts)


def predicted(counts: Counts, chip: Chip, batch: int, n: int) -> dict | None:
    """Predict one cell; None where the slice is too large for the chip or nothing fits."""
    if n > chip.most or batch % n:
        return None
    flops, traffic, temporary = scaled(counts, batch, n)
    room = chip.memory - counts.fixed - counts.weights
    share = batch // n
    parts = next(
        (m for m in range(1, share + 1) if share % m == 0 and (temporary - counts.weights) / m <= room), None
    )
    if room <= 0 or parts is None:
        return None
    again = 1 if parts == 1 else 4 / 3
    compute, memory = again * flops / (chip.peak * MXU), again * traffic / (chip.bandwidth * HBM)
    sent = 0.0
    for kind, size in counts.collectives:
        if kind == "all-gather":  # embeddings: they grow with the batch
            sent += seconds_of(kind, size * batch / counts.batch, chip, n)
        else:  # gradients and batch norm, in every micro-batch
            sent += parts * seconds_of(kind, size, chip, n)
    alone = compute + memory
    step = alone + sent
    return {
        "chip": chip.name, "batch": batch, "chips": n, "microbatches": parts, "seconds": step,
        "arithmetic": compute, "memory": memory, "collectives": sent, "efficiency": alone / step,
        "images_per_second": batch / step,
    }  # fmt: skip


def counts_of(run, cost) -> Counts:
    """Return the counts of a run's step."""
    return Counts(
        batch=run.settings.train.batch_size,
        devices=run.mesh.size,
        flops=cost.flops,
        traffic=cost.traffic,
        fixed=cost.arguments + cost.results,
        temporary=cost.temporary,
        weights=4 * sum(run.recipe.network.describe(run.recipe.view)[1].values()),
        embedding=run.recipe.embedding_width,
        collectives=[list(c) for c in cost.collectives],
    )


def count(topology: str, batch: int) -> dict:
    """Compile the step for a slice that is not here, or for this machine's devices, and count."""
    import jax
    from imagenet import step
    from topology import devices_of

    from contrastive_jax.training import compilation
    from contrastive_jax.training.cost import count

    devices, note = devices_of(topology) if topology else (None, "this machine")
    run = step(batch, devices, dtype="bfloat16")
    counts = counts_of(run, count(compilation.compiled_from_shapes(run)))
    return {
        "compiled": note,
        "device": run.mesh.devices.flat[0].device_kind,
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "counts": counts._asdict(),
    }


# (width of the network in channels, batch, devices) of the back-test: the first calibrate, the others are predicted
CALIBRATE = ((16, 64, 1), (32, 64, 1), (16, 16, 1))
PREDICT = ((16, 128, 1), (32, 128, 1), (32, 32, 1), (16, 64, 4), (16, 128, 8), (64, 64, 1))


def measured(width: int, batch: int, devices: int, steps: int) -> dict:
    """Measure a small step on this machine: its counts, and the CPU seconds of a call, the least of a few."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import numpy as np

    from contrastive_jax import config as configs
    from contrastive_jax import data
    from contrastive_jax.native import library
    from contrastive_jax.training import compilation, program
    from contrastive_jax.training import run as runs
    from contrastive_jax.training.cost import count

    os.environ[library.SWITCH] = "off"  # XLA does not count what a kernel computes
    config = configs.base()
    config.augment = {"preset": "none", "size": 32}
    config.encoder.width = width / 64
    config.evaluators, config.evaluate.look = {}, ()
    config.train.update({"batch_size": batch, "duration": "1000 steps"})
    config.schedule.warmup = "0 steps"
    images = np.random.default_rng(0).integers(0, 256, (512, 32, 32, 3), np.uint8)
    source = data.Source("random", data.Split(images), None, ())
    run = runs.prepare(configs.plain(configs.complete(config)), source=source)
    seconds = []
    with jax.set_mesh(run.mesh):
        state, feed = runs.initial_state(run), runs.feed_of(run)
        compiled, _ = compilation.compiled_step(program.single(run), feed, state)
        for _ in range(steps):
            began = time.process_time()
            state, metrics = compiled(state, feed.feed(0))
            jax.block_until_ready((state, metrics))
            seconds.append(time.process_time() - began)
    return {
        "width": width,
        "batch": batch,
        "devices": devices,
        "cpu_seconds": min(seconds[1:]),
        "counts": counts_of(run, count(compiled))._asdict(),
    }


def backtest() -> dict:
    """Fit two rates to ``CALIBRATE``, and compute predicted over measured for ``PREDICT``.

    A prediction starts from the counts of the calibration's step of the same width, scaled as those of the pod are;
    of a width that was not calibrated, from its own. All emulated devices run on the same cores: their seconds add.
    """
    import numpy as np

    found = []
    for width, batch, devices in CALIBRATE + PREDICT:
        command = [sys.executable, __file__, "measure", f"--cell={width},{batch},{devices}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(
            {k: found[-1][k] for k in ("width", "batch", "devices", "cpu_seconds")},
            file=sys.stderr,
            flush=True,
        )
    base, others = found[: len(CALIBRATE)], found[len(CALIBRATE) :]
    work = np.array([[f["counts"]["flops"], f["counts"]["traffic"]] for f in base])
    measured_seconds = np.array([f["cpu_seconds"] for f in base])
    from scipy.optimize import nnls

    a_flop, a_byte = nnls(work / measured_seconds[:, None], np.ones(len(base)))[
        0
    ]  # relative errors count alike
    rows = []
    for f in others:
        same = [b for b in base if b["width"] == f["width"]]
        known = Counts(**(same or [f])[0]["counts"])
        flops, traffic, _ = scaled(known, f["batch"], f["devices"])
        seconds = f["devices"] * (flops * a_flop + traffic * a_byte)
        cell = {k: f[k] for k in ("width", "batch", "devices", "cpu_seconds")}
        rows.append(cell | {"predicted": seconds, "predicted over measured": seconds / f["cpu_seconds"]})
    return {
        "what": "CPU seconds of a step, ResNet-18 on 32 px, float32",
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "seconds a flop": a_flop,
        "seconds a byte": a_byte,
        "calibrated on": [{k: b[k] for k in ("width", "batch", "devices", "cpu_seconds")} for b in base],
        "rows": rows,
    }


def render() -> str:
    """Write the page: predictions, what they were counted from, and the back-test."""
    kept = json.loads(COUNTS.read_text())
    counts = Counts(**kept["counts"])
    lines = [
        "# SimCLR, ResNet-50, 224 px, bfloat16, on chips that are not here",
        "",
        f"Predicted by `pod_model.py` (assumptions there), not measured. Counts: {kept['compiled']},"
        f" batch {counts.batch} on {counts.devices}, jax {kept['jax']}, {kept['date']}: {counts.flops / 1e12:.2f}"
        f" TFLOP and {counts.traffic / 1e9:.1f} GB read and written a chip, {len(counts.collectives)} collectives.",
        "A cell: seconds a step (efficiency; micro-batches where it does not fit at once).",
    ]
    for chip in CHIPS:
        lines += ["", f"## {chip.name}", "", f"| batch | {' | '.join(f'{n:,} chips' for n in SIZES)} |",
                  "| ---: |" + " ---: |" * len(SIZES)]  # fmt: skip
        for batch in BATCHES:
            cells = []
            for n in SIZES:
                cell = predicted(counts, chip, batch, n)
                parts = f"; {cell['microbatches']}" if cell and cell["microbatches"] > 1 else ""
                cells.append(
                    f"{cell['seconds']:.3g} ({100 * cell['efficiency']:.0f} %{parts})" if cell else "—"
                )
            lines.append(f"| {batch:,} | {' | '.join(cells)} |")
    lines += ["", "—: the slice does not exist, or nothing fits."]
    if ON_A_GPU.exists():
        found, batch = json.loads(ON_A_GPU.read_text()), 256
        cell = predicted(counts, next(chip for chip in CHIPS if chip.name == "H100 SXM"), batch, 1)
        lines += [
            "", f"## One H100, batch {batch}", "",
            f"Measured on {found['date']}, long after the prediction of {cell['seconds']:.3f} s (arithmetic"
            f" {cell['arithmetic']:.3f}, memory {cell['memory']:.3f}):", "",
        ]  # fmt: skip
        for way in (way for way in found if way.startswith("train.deterministic")):
            seconds = batch / found[way]["images_per_second/step"]
            lines.append(
                f"* {way.partition(' ')[0]}: {seconds:.3f} s; predicted over measured"
                f" {cell['seconds'] / seconds:.2f}"
            )
    if BACKTEST.exists():
        test = json.loads(BACKTEST.read_text())
        lines += [
            "", "## Back-test", "",
            f"{test['what']}, {test['cores']} cores, load {test['load']:.0f}, {test['date']}. Two rates were"
            f" calibrated on {len(test['calibrated on'])} other steps.",
            "", "| channels | batch | devices | measured | predicted | predicted over measured |",
            "| ---: | ---: | ---: | ---: | ---: | ---: |",
        ]  # fmt: skip
        for r in test["rows"]:
            lines.append(
                f"| {r['width']} | {r['batch']} | {r['devices']} | {r['cpu_seconds']:.3f} | {r['predicted']:.3f} |"
                f" {r['predicted over measured']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Count, measure or render."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("count", "backtest", "predict", "measure"))
    parser.add_argument("--topology", default="")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.verb == "measure":
        print(json.dumps(measured(*map(int, options.cell.split(",")), options.steps)))
    elif options.verb == "count":
        COUNTS.write_text(json.dumps(count(options.topology, options.batch), indent=1) + "\n")
    elif options.verb == "backtest":
        BACKTEST.write_text(json.dumps(backtest(), indent=1) + "\n")
    else:
        TABLE.write_text(render())
        print(TABLE.read_text())


if __name__ == "__main__":
    main()
