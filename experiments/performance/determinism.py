"""What a deterministic step costs on a GPU: the bits and the speed of a step with ``train.deterministic`` and without.

    python experiments/performance/determinism.py [--config=simclr_cifar10] [--width=1.0] [--batch=256] [--out=FILE]

Each way is compiled twice, without a cache, as by two runs. Bits: parameters after a few steps from the first weights,
of one program called twice, and of the two programs. Speed: both ways in turns, so that whatever else the machine does
falls on both; a ratio is of one turn, the median and the quartiles are over turns.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import native
from contrastive_jax.training import compilation, program
from contrastive_jax.training import run as runs

STEPS = 6  # whose bits are compared


def run_of(options: argparse.Namespace, deterministic: bool) -> runs.Run:
    """Prepare the run on synthetic images in memory."""
    given = {"data.name": "synthetic", "data.stream": "off", "data.examples": 8 * options.batch}
    given |= {"data.test_examples": 64, "train.batch_size": options.batch, "dtype": options.dtype}
    given |= {"encoder.width": options.width, "train.deterministic": deterministic}
    given |= {"data.like": "imagenet2012", "data.size": 256} if "imagenet" in options.config else {}
    return runs.prepare(
        configs.plain(configs.resolve(options.config, [(k, str(v)) for k, v in given.items()]))
    )


def program_of(run: runs.Run) -> tuple[Callable[[int], str], Callable[[int], float], float]:
    """Compile a step: what returns the digest of the parameters after so many steps from the first weights, what
    returns the seconds of so many further steps, and the seconds that it took."""
    feed, state = runs.feed_of(run), runs.initial_state(run)
    step, seconds = compilation.compiled_step(program.single(run), feed, state)
    taken = 0

    def bits(count: int) -> str:
        state = runs.initial_state(run)
        for number in range(count):
            state, _ = step(state, feed.feed(number))
        found = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(jax.device_get(state.params))]
        return hashlib.sha256(b"".join(found)).hexdigest()

    def timed(count: int) -> float:
        nonlocal state, taken
        began = time.perf_counter()
        for _ in range(count):
            state, metrics = step(state, feed.feed(taken))
            taken += 1
        jax.block_until_ready(metrics)
        return time.perf_counter() - began

    return bits, timed, seconds


def measure(options: argparse.Namespace) -> dict:
    """Return what was found of each way, and the ratio of their speeds."""
    found, clocks = {}, {}
    for deterministic in (True, False):
        run = run_of(options, deterministic)
        with jax.set_mesh(run.mesh):
            bits, clocks[deterministic], seconds = program_of(run)
            first, again = bits(STEPS), bits(STEPS)
            jax.clear_caches()
            anew = program_of(run)[0](STEPS)
        found[f"train.deterministic={deterministic}"] = {
            "compile_seconds": seconds,
            "one program, called twice: same bits": first == again,
            "two programs: same bits": first == again == anew,
        }
    turns = []
    for turn in range(options.turns + 1):
        seconds = {way: clock(options.steps) / options.steps for way, clock in clocks.items()}
        turns += [seconds] * (turn > 0)  # the first warms up
    for way in clocks:
        median = statistics.median(turn[way] for turn in turns)
        found[f"train.deterministic={way}"]["images/s"] = options.batch / median
    ratios = [turn[False] / turn[True] for turn in turns]
    return found | {"speed, deterministic over not": statistics.quantiles(ratios, n=4)}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="simclr_cifar10")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="steps a turn")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    native.keep_pages()  # as the command does
    jax.config.update("jax_enable_compilation_cache", False)
    report = {
        "what": f"{options.config}, width {round(64 * options.width)}, batch {options.batch}, {options.dtype}",
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        **measure(options),
    }
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
