"""Signals and deaths of data workers at random moments of every mode that streams images: does the command end?

    python -m experiments.reliability.modes [--count 12] [--seed 0] [--modes train,evaluate,embed,preview]

A folder of 5,600 images of 12 pixels, more than is read without workers, and a short run on it. Then every mode is
started ``count`` times for each kind of fault. ``signal``: SIGINT, SIGTERM or SIGHUP to the command, at a moment drawn
from its usual length. ``worker``: SIGKILL or SIGSEGV to one of its data workers, up to two seconds after the
first was seen. Counted are the commands that the fault reached; of these must end within ``LIMIT`` seconds all that
got a signal, with its status, and all whose worker died, with an error or, where the worker had nothing left to do,
well. Nothing may be left of their processes. ``results/modes.json`` has the counts and the slowest.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from PIL import Image

ROOT = pathlib.Path(__file__).parents[2]
OUT = pathlib.Path(__file__).parent / "results" / "modes.json"
LIMIT = 10.0
COUNTS = {"train": 3000, "test": 2600}
TRAIN = (
    *("--config=configs/folder.py:scale=smoke", "--config.data.stream=on", "--config.data.workers=2"),
    *("--config.augment.size=8", "--config.encoder.width=0.0625", "--config.log.tensorboard=False"),
)
MODES = ("train", "evaluate", "embed", "preview")


def images(folder: pathlib.Path) -> None:
    """Write a training and a test folder of noise in four classes."""
    rng = np.random.default_rng(0)
    for part, count in COUNTS.items():
        for number in range(count):
            file = folder / part / f"class{number % 4}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8)).save(file)


def processes() -> Iterator[tuple[int, int, int, str]]:
    """Yield id, parent's id, session and command of every process that has not ended."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if fields[0] != "Z":
            yield int(entry.name), int(fields[1]), int(fields[3]), words


def started(mode: str, folder: pathlib.Path) -> subprocess.Popen:
    """Start a mode on a copy of the run, or a longer run of its own."""
    workdir = folder / "run"
    shutil.rmtree(workdir, ignore_errors=True)
    if mode == "train":
        what = [*TRAIN, f"--config.data.dir={folder}/images", "--config.train.duration=100 epochs"]
    else:
        shutil.copytree(folder / "short", workdir)
        what = [f"--mode={mode}"]
    command = [sys.executable, "-m", "contrastive_jax.main", f"--workdir={workdir}", *what]
    with (folder / "log.txt").open("w") as log:
        return subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"XDG_STATE_HOME": str(folder / "state")},
        )  # fmt: skip


def struck(process: subprocess.Popen, fault: str, usual: float, draw: random.Random) -> int:
    """Send the signal; 0 where the command had ended before."""
    if fault == "signal":
        number = draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        time.sleep(draw.uniform(0.05, usual))
        if process.poll() is None:
            process.send_signal(number)
            return number
        return 0
    number = draw.choice([signal.SIGKILL, signal.SIGSEGV])
    wait = draw.choice([0.0, 0.05, 0.3, 1.0, 2.0])
    while process.poll() is None:
        if wait and any(
            parent == process.pid and "spawn_main" in words for _, parent, _, words in processes()
        ):
            time.sleep(wait)
            wait = 0.0
        workers = [
            pid for pid, parent, _, words in processes() if parent == process.pid and "spawn_main" in words
        ]
        if workers and process.poll() is None:
            os.kill(draw.choice(workers), number)
            return number
        time.sleep(0.005)
    return 0


def tried(mode: str, fault: str, folder: pathlib.Path, usual: float, draw: random.Random) -> dict | None:
    """Return what became of one command; None where the fault did not reach it."""
    process = started(mode, folder)
    number, began = struck(process, fault, usual, draw), time.monotonic()
    try:
        code = process.wait(6 * LIMIT)
    except subprocess.TimeoutExpired:
        code = None
    seconds = time.monotonic() - began
    time.sleep(1.0)
    left = [pid for pid, _, session, _ in processes() if session == process.pid]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if not number or (fault == "signal" and code in (0, -number)):  # it had done its work
        return None
    text = (folder / "log.txt").read_text()
    done = code == 0 and fault == "worker"
    good = done or code == (1 if fault == "worker" else 128 + number)
    wrong = [
        *([] if good and (done or seconds < LIMIT) else [f"status {code} after {seconds:.1f} s"]),
        *([f"{len(left)} processes left"] if left else []),
        *(["a stack trace"] if "Traceback" in text else []),
    ]
    return {"seconds": 0.0 if done else seconds, "done": done, "wrong": wrong and [*wrong, text[-4000:]]}


def main() -> int:
    """Strike, count, save; return 1 where a command did not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    options, table = parser.parse_args(), []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        images(folder / "images")
        short = [*TRAIN, f"--config.data.dir={folder}/images", f"--workdir={folder}/short"]
        subprocess.run([sys.executable, "-m", "contrastive_jax.main", *short], cwd=ROOT, check=True)
        for mode in options.modes.split(","):
            began, usual = time.monotonic(), 25.0  # of training, which is stopped before its end
            if mode != "train":
                started(mode, folder).wait()
                usual = time.monotonic() - began
            for fault in ("signal", "worker"):
                draw = random.Random(f"{options.seed} {mode} {fault}")
                found = [tried(mode, fault, folder, usual, draw) for _ in range(options.count)]
                reached = [one for one in found if one]
                table.append(
                    {
                        "mode": mode, "fault": fault, "reached": len(reached),
                        "had nothing left to do": sum(one["done"] for one in reached),
                        "slowest, s": round(max((one["seconds"] for one in reached), default=0.0), 2),
                        "wrong": [one["wrong"] for one in reached if one["wrong"]],
                    }
                )  # fmt: skip
                print(json.dumps(table[-1]), flush=True)
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    return any(row["wrong"] for row in table)


if __name__ == "__main__":
    sys.exit(main())
