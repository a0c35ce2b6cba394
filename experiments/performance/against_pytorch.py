"""One SimCLR step of ours against the same step in PyTorch, and with lightly's loss and head, in one run.

    python experiments/performance/against_pytorch.py --python=PATH/TO/ANOTHER/ENVIRONMENT/bin/python

``--python`` is an interpreter that has torch (and perhaps lightly), best in a virtual environment of its own. The step:
ResNet-18 with the CIFAR stem on 32 px, a 2-layer head, NT-Xent of both views, backward, SGD with momentum; both
views lie in memory, float32. Ours is the library's whole step (it also indexes the images and makes all metrics).

PyTorch gets its best: channels-last or not, eager or ``torch.compile``, each for some steps first, and the fastest
is raced. Every contender is a process of its own that waits while another runs; they take turns, so that whatever
else the machine does falls on all; ratios are of one turn, the table shows the median and the quartiles.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
TAU, OUT = 0.5, 128


def ours(width: float, batch: int):
    """A function that runs one step of ours, and what it is."""
    import jax
    import numpy as np

    from contrastive_jax import config as configs
    from contrastive_jax import data, program
    from contrastive_jax import run as runs

    config = configs.base()
    config.augment = {"preset": "none", "size": 32}
    config.encoder.width = width
    config.projector.out = OUT
    config.temperature.tau = TAU
    config.probe.weight = 0.0
    config.optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
    config.schedule.update({"scaling": "none", "learning_rate": 0.03, "warmup": "0 steps"})
    config.train.update({"batch_size": batch, "duration": "1000 steps"})
    config.evaluators, config.evaluate.look = {}, ()
    images = np.random.default_rng(0).integers(0, 256, (max(batch, 1024), 32, 32, 3), np.uint8)
    source = data.Source("random", data.Split(images), None, ())
    run = runs.prepare(configs.plain(configs.complete(config)), source=source)
    jax.set_mesh(run.mesh)
    feed, holder = runs.feed_of(run), [runs.initial_state(run)]
    step, seconds = program.compiled_step(run, feed, holder[0])

    def once():
        holder[0], metrics = step(holder[0], feed.feed(0))
        jax.block_until_ready(metrics)

    return once, {"is": f"jax {jax.__version__}", "compile_seconds": seconds,
                  "gflops": program.cost(step).flops / 1e9}  # fmt: skip


def theirs(width: float, batch: int, lightly: bool):
    """The fastest of PyTorch's ways to run the step, and which it is."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(0)
    channels = [round(width * c) for c in (64, 128, 256, 512)]

    class Block(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
            self.short = nn.Identity()
            if stride > 1 or before != after:
                self.short = nn.Sequential(
                    nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
                )

        def forward(self, x):
            y = functional.relu(self.norm1(self.conv1(x)))
            return functional.relu(self.norm2(self.conv2(y)) + self.short(x))

    def network():
        layers, before = (
            [nn.Conv2d(3, channels[0], 3, 1, 1, bias=False), nn.BatchNorm2d(channels[0]), nn.ReLU()],
            channels[0],
        )
        for group, after in enumerate(channels):
            for block in range(2):
                layers.append(Block(before, after, 2 if group and not block else 1))
                before = after
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if lightly:
            from lightly.models.modules import SimCLRProjectionHead

            return nn.Sequential(*layers, SimCLRProjectionHead(before, before, OUT))
        head = [nn.Linear(before, before, bias=False), nn.BatchNorm1d(before), nn.ReLU()]
        return nn.Sequential(*layers, *head, nn.Linear(before, OUT, bias=False), nn.BatchNorm1d(OUT))

    def nt_xent(z):
        z = functional.normalize(z, dim=1)
        scores = z @ z.T / TAU
        scores = scores.masked_fill(torch.eye(2 * batch, dtype=torch.bool), float("-inf"))
        return functional.cross_entropy(scores, torch.arange(2 * batch).roll(batch))

    if lightly:
        from lightly.loss import NTXentLoss

        criterion = NTXentLoss(temperature=TAU)

        def loss_of(z):
            return criterion(*z.chunk(2))
    else:
        loss_of = nt_xent

    def way(compiled, channels_last):
        model = network().train()
        views = torch.rand(2 * batch, 3, 32, 32)
        if channels_last:
            model, views = (
                model.to(memory_format=torch.channels_last),
                views.to(memory_format=torch.channels_last),
            )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)

        def forward(views):
            return loss_of(model(views))

        called = torch.compile(forward) if compiled else forward

        def once():
            optimizer.zero_grad(set_to_none=True)
            called(views).backward()
            optimizer.step()

        return once

    ways, seconds, failed = {}, {}, {}
    for compiled in (False, True):
        for channels_last in (False, True):
            name = f"{'compiled' if compiled else 'eager'}, {'channels-last' if channels_last else 'channels-first'}"
            try:
                ways[name] = way(compiled, channels_last)
                ways[name]()
                ways[name]()
            except Exception as error:  # torch.compile needs a C++ compiler
                failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
                ways.pop(name, None)
    for _ in range(3):
        for name, once in ways.items():
            began = time.perf_counter()
            once()
            seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - began)
    best = min(seconds, key=seconds.get)
    facts = {"is": f"torch {torch.__version__}, {best}", "ways": seconds, "failed": failed,
             "threads": torch.get_num_threads()}  # fmt: skip
    if lightly:
        import lightly as package

        facts["is"] = f"lightly {package.__version__}, {facts['is']}"
    return ways[best], facts


def contend(name: str, width: float, batch: int) -> None:
    """A contender: says what it is, then runs a step for every line that it is given, and says how long it took."""
    once, facts = ours(width, batch) if name == "ours" else theirs(width, batch, name == "lightly")
    once()
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        once()
        print(time.perf_counter() - began, flush=True)


class Contender:
    """A process that runs a step when it is asked to."""

    def __init__(self, name: str, python: str, width: float, batch: int):
        environment = os.environ | {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}  # who waits, waits
        command = [python, __file__, f"--contender={name}", f"--widths={width}", f"--batches={batch}"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        self.facts = json.loads(line) if line else None

    def step(self) -> float:
        """Seconds of a step."""
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()


def race(python: str, width: float, batch: int, turns: int) -> dict:
    """One row of the table."""
    contenders = {}
    for name in ("ours", "pytorch", "lightly"):
        contender = Contender(name, sys.executable if name == "ours" else python, width, batch)
        if contender.facts is None:
            print(f"  {name} cannot run here", file=sys.stderr)
        else:
            contenders[name] = contender
    seconds = {name: [] for name in contenders}
    for _ in range(turns):
        for name, contender in contenders.items():
            seconds[name].append(contender.step())
    for contender in contenders.values():
        contender.end()
    row = {
        "width": round(64 * width),
        "batch": batch,
        "turns": turns,
        "load": os.getloadavg()[0],
        "contenders": {},
    }
    for name, contender in contenders.items():
        found = {"seconds": statistics.median(seconds[name]), **contender.facts}
        if name != "ours":
            speed = [theirs / ours for theirs, ours in zip(seconds[name], seconds["ours"], strict=True)]
            found["our speed over theirs"] = statistics.quantiles(speed, n=4)
        row["contenders"][name] = found
    return row


def main() -> None:
    """Races, prints, saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--widths", default="0.25,1.0")
    parser.add_argument("--batches", default="128")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results" / "against_pytorch_cpu.json")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    widths = [float(w) for w in options.widths.split(",")]
    batches = [int(b) for b in options.batches.split(",")]
    if options.contender:
        contend(options.contender, widths[0], batches[0])
        return
    report = {
        "what": "SimCLR step, ResNet-18 on 32 px, two views in memory, float32: our speed over theirs",
        "cores": os.cpu_count(),
        "date": datetime.date.today().isoformat(),
        "rows": [race(options.python, width, batch, options.turns) for width in widths for batch in batches],
    }
    print(report["what"])
    for row in report["rows"]:
        print(f"  width {row['width']}, batch {row['batch']} (load {row['load']:.1f})")
        for name, found in row["contenders"].items():
            low, middle, high = found.get("our speed over theirs", (None,) * 3)
            speed = (
                "" if middle is None else f", ours {middle:.2f}x its speed (quartiles {low:.2f}, {high:.2f})"
            )
            print(f"    {name}: {found['seconds']:.3f} s{speed}; {found['is']}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
