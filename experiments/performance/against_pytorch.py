"""SimCLR of ours against plain PyTorch and lightly, in one run: the network's step, and images/s end to end.

    python experiments/performance/against_pytorch.py --python=PATH/TO/ANOTHER/ENVIRONMENT/bin/python
        [--end-to-end] [--cores=1,2] [--dtype=bfloat16]

``--python`` is an interpreter that has torch and torchvision (and perhaps lightly), best in an environment of its
own; their side is `pytorch_simclr.py`. The step: ResNet-18 with the CIFAR stem on 32 px, a 2-layer head, NT-Xent of
both views, backward, SGD with momentum; float32 on a CPU, bfloat16 (theirs: autocast) on a GPU, or as ``--dtype`` says.
``--cores`` are numbers of CPU cores that all contenders are bound to, a race each. Without
``--end-to-end`` both views lie in memory; with it, two views of 50,000 images in memory are cut and coloured anew in
every step (SimCLR's augmentation for CIFAR): theirs by the workers of a DataLoader, ours on the device. Ours is the
library's whole step both times (it also indexes the images and makes all metrics).

Every contender is a process of its own that is stopped (SIGSTOP, its workers too) while another runs; they take
turns, so that whatever else the machine does falls on all; ratios are of one turn, the table shows the median and the
quartiles.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
TAU, OUT, IMAGES = 0.5, 128, 50_000


def ours(width: float, batch: int, end_to_end: bool, dtype: str):
    """Return a function that runs a number of steps of ours, and what it is."""
    import jax
    import numpy as np

    from contrastive_jax import config as configs
    from contrastive_jax import data, native
    from contrastive_jax.training import compilation, cost, program
    from contrastive_jax.training import run as runs

    native.keep_pages()  # as the command does
    config = configs.base()
    config.augment = {"preset": "none", "size": 32}
    if end_to_end:
        config.augment = {"preset": "simclr", "size": 32, "strength": 0.5, "blur": 0.0}
    config.dtype = dtype or ("bfloat16" if jax.default_backend() == "gpu" else "float32")
    config.encoder.width = width
    config.projector.out = OUT
    config.temperature.tau = TAU
    config.probe.weight = 0.0
    config.optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
    config.schedule.update({"scaling": "none", "learning_rate": 0.03, "warmup": "0 steps"})
    config.train.update({"batch_size": batch, "duration": "1000 steps"})
    config.evaluators, config.evaluate.look = {}, ()
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), np.uint8)
    source = data.Source("random", data.Split(images), None, ())
    run = runs.prepare(configs.plain(configs.complete(config)), source=source)
    jax.set_mesh(run.mesh)
    feed, state = runs.feed_of(run), runs.initial_state(run)
    step, seconds = compilation.compiled_step(program.single(run), feed, state)
    taken = 0

    def go(count):
        nonlocal state, taken
        for _ in range(count):
            state, metrics = step(state, feed.feed(taken))
            taken += 1
        jax.block_until_ready(metrics)

    facts = {
        "is": f"jax {jax.__version__}",
        "cpu kernels": native.available(),
        "device": jax.devices()[0].device_kind,
        "dtype": config.dtype,
        "compile_seconds": seconds,
        "gflops": batch * cost.model_flops(run) / 1e9,
    }
    return go, facts


def contend(width: float, batch: int, end_to_end: bool, dtype: str) -> None:
    """Run our contender: say what it is, then run as many steps as each line says, and say how long they took."""
    go, facts = ours(width, batch, end_to_end, dtype)
    go(1)
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        began, worked = time.perf_counter(), time.process_time()
        go(int(line))
        print(time.perf_counter() - began, time.process_time() - worked, flush=True)


class Contender:
    """A process that runs steps when it is asked to, and stands still otherwise."""

    def __init__(self, name: str, options, width: float, batch: int, cores: int):
        command = [sys.executable, __file__, "--contender"]
        if name != "ours":
            command = [options.python, str(HERE / "pytorch_simclr.py")] + ["--lightly"] * (name == "lightly")
        command += [f"--width={width}", f"--batch={batch}", f"--dtype={options.dtype}"]
        command += ["--end-to-end"] * options.end_to_end
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # they share a GPU
        some = sorted(os.sched_getaffinity(0))[:cores]
        self.process = subprocess.Popen(
            command, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, some),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        self.facts = json.loads(line) if line else None
        if line:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def run(self, steps: int) -> tuple[float, float]:
        """Measure the seconds and CPU seconds of that many steps, after one more that warms caches and threads."""
        self._signal(signal.SIGCONT)
        for count in (1, steps):
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()
            seconds, worked = map(float, self.process.stdout.readline().split())
        self._signal(signal.SIGSTOP)
        return seconds, worked

    def end(self) -> None:
        """End the process and its workers."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self.process.wait()


def race(options, width: float, batch: int, cores: int) -> dict:
    """Measure one row of the table."""
    contenders = {}
    with contextlib.ExitStack() as processes:
        for name in ("ours", "pytorch", "lightly"):
            contender = Contender(name, options, width, batch, cores)
            processes.callback(contender.end)  # else it would stand still for ever
            if contender.facts is None:
                print(f"  {name} cannot run here", file=sys.stderr)
            else:
                contenders[name] = contender
        turns = {name: [] for name in contenders}
        for _ in range(options.turns):
            for name, contender in contenders.items():
                turns[name].append([taken / options.steps for taken in contender.run(options.steps)])
    row = {
        "width": round(64 * width),
        "batch": batch,
        "cores": cores,
        "turns": options.turns,
        "steps a turn": options.steps,
        "load": os.getloadavg()[0],
        "contenders": {},
    }
    for name, contender in contenders.items():
        seconds, worked = map(statistics.median, zip(*turns[name], strict=True))
        found = {"seconds": seconds, "CPU seconds": worked, "images/s": batch / seconds, **contender.facts}
        if name != "ours":
            ratios = [
                [theirs / ours for theirs, ours in zip(*pair, strict=True)]
                for pair in zip(turns[name], turns["ours"], strict=True)
            ]
            found["our speed over theirs"], found["by CPU seconds"] = (
                statistics.quantiles(ratio, n=4) for ratio in zip(*ratios, strict=True)
            )
        row["contenders"][name] = found
    return row


def main() -> None:
    """Race, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--width", default="0.25,1.0", help="widths, 1 has 64 channels first")
    parser.add_argument("--batch", default="128", help="batches, or one for each width, WIDTH:BATCH")
    parser.add_argument("--cores", default=str(os.cpu_count()), help="numbers of CPU cores")
    parser.add_argument(
        "--dtype", default="", choices=("", "float32", "bfloat16"), help="default: by the device"
    )
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4, help="steps a turn")
    parser.add_argument("--end-to-end", action="store_true", help="with data and augmentation")
    parser.add_argument(
        "--out", type=pathlib.Path, help="default: results/against_pytorch[_end_to_end][_DTYPE]_DEVICE.json"
    )
    parser.add_argument("--contender", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    widths = [float(w) for w in options.width.split(",")]
    pairs = [
        (width, int(batch)) for width in widths for batch in options.batch.split(",") if ":" not in batch
    ]
    pairs += [(float(w), int(b)) for w, _, b in (x.partition(":") for x in options.batch.split(",")) if b]
    if options.contender:
        contend(*pairs[0], options.end_to_end, options.dtype)
        return
    what = (
        "two views cut from images in memory in every step" if options.end_to_end else "two views in memory"
    )
    report = {
        "what": f"SimCLR step, ResNet-18 on 32 px, {what}: our speed over theirs",
        "cores": os.cpu_count(),
        "date": datetime.date.today().isoformat(),
        "rows": [race(options, *pair, int(n)) for pair in pairs for n in options.cores.split(",")],
    }
    print(report["what"])
    for row in report["rows"]:
        print(f"  width {row['width']}, batch {row['batch']}, {row['cores']} cores (load {row['load']:.1f})")
        for name, found in row["contenders"].items():
            speed = ""
            for key, told in (
                ("our speed over theirs", "ours {:.2f}x its speed"),
                ("by CPU seconds", "{:.2f}x by CPU seconds"),
            ):
                if key in found:
                    low, middle, high = found[key]
                    speed += f", {told.format(middle)} (quartiles {low:.2f}, {high:.2f})"
            print(f"    {name}: {found['images/s']:.1f} images/s{speed}; {found['is']}")
    device = report["rows"][0]["contenders"]["ours"]["device"].lower().replace(" ", "_")
    name = "_".join(
        ["against_pytorch"] + ["end_to_end"] * options.end_to_end + [options.dtype] * bool(options.dtype)
    )
    out = options.out or HERE / "results" / f"{name}_{device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
