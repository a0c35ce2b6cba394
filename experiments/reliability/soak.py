"""Faults injected into real runs of digits, and what was lost: bits of the final parameters, metrics, or nothing.

    python -m experiments.reliability.soak run [--kills=50] [--fault NAME ...]  # results/soak.json and soak.md
    python -m experiments.reliability.soak render
    python -m experiments.reliability.soak memory [--steps=10000]             # results/memory.json

Every run is the command in a process of its own. One uninterrupted run is the reference; each faulted run is started
again, by the same command, until it ends, and must then have the same parameters, optimizer state and metrics bit for
bit. All share a compilation cache, which is as exposed to the faults as a user's. A fault is *survived* where it has,
or where the run was to end with a sentence and did, and left a workdir from which a healthy command goes on to the
reference.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="soak-"))
ROOT = pathlib.Path(__file__).parents[2]
RESULTS = pathlib.Path(__file__).parent / "results"
STEPS = 300
CONFIG = (
    "--config=configs/digits.py:method=simo,scale=smoke",
    f"--config.train.duration={STEPS} steps",
    "--config.log.every=5",
    "--config.log.tensorboard=False",
    "--config.evaluate.final=False",
    "--config.checkpoint.every_seconds=0.5",
)
CLOCK = """
import random, runpy, sys, time
true, generator = time.time, random.Random(0)
time.time = lambda: true() + generator.choice([-86400.0, 0.0, 86400.0])
sys.argv[0] = "main"
runpy.run_module("contrastive_jax.main", run_name="__main__", alter_sys=True)
"""

NAN = """
import runpy, sys
import jax.numpy as jnp
from contrastive_jax import train
made = train.compiled_step
def spoilt(*arguments):
    step, seconds = made(*arguments)
    def call(state, feed):
        late = int(state.step) >= 150
        state, metrics = step(state, feed)
        return state, metrics | ({"loss": metrics["loss"] * jnp.nan} if late else {})
    return call, seconds
train.compiled_step = spoilt
sys.argv[0] = "main"
runpy.run_module("contrastive_jax.main", run_name="__main__", alter_sys=True)
"""


def start(workdir, *extra, program=("-m", "contrastive_jax.main"), devices=1, limit=None):
    """The command in a process of its own; ``limit``: bytes that a file may have, as on a disk that is full."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(SCRATCH / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # a start is then tracing and reading
    }

    process = subprocess.Popen(
        [sys.executable, *program, *CONFIG, *extra, f"--workdir={workdir}"],
        cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if limit is not None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    return process


def finish(workdir, *extra, tries=1, **options) -> tuple[bool, str]:
    """Runs the command until it ends well; whether it did, and what it said last."""
    said = ""
    for _ in range(tries):
        process = start(workdir, *extra, **options)
        said = process.communicate(timeout=600)[0]
        if process.returncode == 0:
            return True, said
    return False, said


def left_by(workdir) -> tuple[dict[str, np.ndarray], list[dict]]:
    """Every array of the last checkpoint, and the metrics without the clock."""
    import jax

    from contrastive_jax import checkpoint, logbook
    from contrastive_jax import run as runs

    run = runs.prepare(json.loads((workdir / "config.json").read_text()), jax.devices()[:1])
    with jax.set_mesh(run.mesh), checkpoint.Checkpoints(workdir / "checkpoints", read_only=True) as saved:
        state, step, _ = saved.restore(runs.initial_state(run))
    assert step == STEPS, f"{workdir} ended at step {step} of {STEPS}"
    arrays = {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(state)}
    return arrays, [{k: v for k, v in row.items() if k != "timing"} for row in logbook.read_metrics(workdir)]


def bits_lost(workdir, reference) -> int:
    """Bits in which what a run left differs from the reference; a log point that differs or is missing counts as 64."""
    (arrays, rows), (others, other_rows) = left_by(workdir), reference
    bits = sum(
        int(
            np.unpackbits(
                np.bitwise_xor(x.reshape(-1).view(np.uint8), others[name].reshape(-1).view(np.uint8))
            ).sum()
        )
        for name, x in arrays.items()
    )
    mine, theirs = ({row["step"]: row for row in some} for some in (rows, other_rows))
    return bits + 64 * sum(mine.get(step) != theirs.get(step) for step in mine.keys() | theirs.keys())


def steps_done(workdir) -> int:
    """The last step that the metrics speak of; 0 before the first."""
    try:
        return json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    except (OSError, IndexError, ValueError, KeyError):
        return 0


def wait_for(condition, process, seconds=120.0) -> bool:
    """Whether it came true while the process lived."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if condition():
            return True
        time.sleep(0.002)
    return False


# --- the faults: each leaves its workdir, and returns (times injected, times survived) --------------------------


def kill(workdir, reference, kills):
    """SIGKILL, in turn at a random moment of start-up or the first steps, while a checkpoint is written, after one."""
    generator, done, written, early, seconds = random.Random(0), 0, 0, 0, 20.0

    def writing():
        return any("tmp" in f.name for f in (workdir / "checkpoints").glob("*"))

    def saved():
        return {f.name for f in (workdir / "checkpoints").glob("*") if f.name.isdigit()}

    while done < kills:
        before, many, began = saved(), generator.randint(0, 1), time.monotonic()
        process = start(workdir, "--config.checkpoint.every_seconds=0.0")  # one at every log point

        def more(before=before, many=many):
            return len(saved() - before) >= many

        if done % 3 == 0:
            wait_for(lambda: False, process, generator.uniform(0.0, 1.2 * seconds))
            early += 1
        elif done % 3 == 1:
            wait_for(more, process)
            written += wait_for(writing, process)
            seconds = time.monotonic() - began
        else:
            wait_for(lambda before=before: saved() - before and not writing(), process)
        if process.poll() is not None:
            print(process.communicate()[0], flush=True)
            break  # it came to its end
        process.kill()
        process.communicate()
        done += 1
        print(f"kill {done}, step {steps_done(workdir)}, {time.monotonic() - began:.0f} s", flush=True)
    ended, said = finish(workdir)
    return done, done if ended else 0, f"{early} at random moments, {written} while a checkpoint was written"


def sigterm(workdir, reference, kills):
    """SIGTERM with a grace period of 30 s (preemption): saved in time, and no step lost."""
    survived = 0
    for step in (STEPS // 6, STEPS // 3, STEPS // 2):
        process = start(workdir)
        wait_for(lambda step=step: steps_done(workdir) >= step, process)
        process.terminate()
        said = process.communicate(timeout=30)[0]
        survived += process.returncode == 128 + signal.SIGTERM and "same command goes on" in said
    return 3, survived if finish(workdir)[0] else 0, "ended within 30 s"


def disk_full(workdir, reference, kills):
    """Files that cannot grow beyond a size: none for config.json, the metrics, a checkpoint's arrays."""
    survived, rare = 0, "--config.checkpoint.every_seconds=1000.0"
    for limit, options, word in ((2_000, (), ""), (6_000, (rare,), ""), (50_000, (), "is whole")):
        if word:
            process = start(workdir)
            wait_for(lambda: steps_done(workdir) >= STEPS // 2, process)
            process.terminate()
            process.communicate(timeout=120)
        ended, said = finish(workdir, *options, limit=limit)
        last = said.strip().splitlines()[-1]
        survived += (
            not ended and last.startswith("error: the disk of ") and word in last and "Traceback" not in said
        )
    return 3, survived if finish(workdir)[0] else 0, last


def _half(workdir):
    """A run that is killed half-way."""
    process = start(workdir)
    wait_for(lambda: steps_done(workdir) >= STEPS // 2, process)
    process.kill()
    process.communicate(timeout=60)


def bit_flip(workdir, reference, kills):
    """A bit flipped in the newest checkpoint's largest file."""
    _half(workdir)
    newest = max(
        (f for f in (workdir / "checkpoints").iterdir() if f.name.isdigit()), key=lambda f: int(f.name)
    )
    file = max((f for f in newest.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)
    ended, said = finish(workdir)
    return 1, int(ended and "damaged" in said), "fell back, and said so"


def truncated_checkpoint(workdir, reference, kills):
    """The newest checkpoint's largest file cut in half."""
    _half(workdir)
    newest = max(
        (f for f in (workdir / "checkpoints").iterdir() if f.name.isdigit()), key=lambda f: int(f.name)
    )
    file = max((f for f in newest.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)
    ended, said = finish(workdir)
    return 1, int(ended and "damaged" in said), "fell back, and said so"


def truncated_metrics(workdir, reference, kills):
    """Killed, and the last line of metrics.jsonl cut off in its middle."""
    _half(workdir)
    file = workdir / "metrics.jsonl"
    os.truncate(file, file.stat().st_size - 40)
    return 1, int(finish(workdir)[0]), "repaired, nothing twice"


def two_runs(workdir, reference, kills):
    """A second run started in the same workdir."""
    process = start(workdir)
    wait_for(lambda: steps_done(workdir) >= 50, process)
    ended, said = finish(workdir)
    refused = not ended and str(process.pid) in said
    process.communicate(timeout=600)
    return 1, int(refused and process.returncode == 0), said.strip().splitlines()[-1]


def clock(workdir, reference, kills):
    """A clock that jumps by a day, back and forth, at every look."""
    return 1, int(finish(workdir, program=("-c", CLOCK))[0]), ""


def not_finite(workdir, reference, kills):
    """A loss that turns NaN: the run ends with a sentence that names the last good checkpoint, which goes on."""
    ended, said = finish(workdir, program=("-c", NAN))
    named = (
        not ended
        and "not finite" in said
        and "Last good checkpoint: step" in said
        and "Traceback" not in said
    )
    return 1, int(named and finish(workdir)[0]), said.strip().splitlines()[-1]


def interrupted_often(workdir, reference, kills):
    """Ctrl-C ten times over a run."""
    survived = 0
    for step in range(25, 275, 25):
        process = start(workdir)
        wait_for(lambda step=step: steps_done(workdir) >= step, process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        survived += process.returncode == 128 + signal.SIGINT
    return 10, survived if finish(workdir)[0] else 0, ""


FAULTS = {
    f.__name__: f
    for f in (kill, sigterm, interrupted_often, disk_full, bit_flip, truncated_checkpoint, truncated_metrics,
              two_runs, clock, not_finite)
}  # fmt: skip


def run(kills: int, chosen: list[str]) -> None:
    """Injects the faults, and keeps what came of it."""
    from contrastive_jax import logbook

    file = RESULTS / "soak.json"
    ended, said = finish(SCRATCH / "reference")
    if not ended:
        raise SystemExit(f"the reference did not end: {said}")
    reference = left_by(SCRATCH / "reference")
    for name in chosen or FAULTS:
        began, workdir = time.monotonic(), SCRATCH / name
        injected, survived, note = FAULTS[name](workdir, reference, kills)
        entry = {
            "what": FAULTS[name].__doc__.split("\n")[0], "injected": injected, "survived": survived,
            "bits lost": bits_lost(workdir, reference), "note": note.replace(str(SCRATCH), "..."),
            "seconds": round(time.monotonic() - began),
        }  # fmt: skip
        print(name, entry, flush=True)
        found = json.loads(file.read_text())["faults"] if file.exists() else {}
        found = {fault: (found | {name: entry})[fault] for fault in FAULTS if fault in found | {name: entry}}
        file.write_text(json.dumps({"faults": found} | logbook.environment(), indent=1) + "\n")
        shutil.rmtree(workdir)


def render() -> str:
    """The table."""
    found = json.loads((RESULTS / "soak.json").read_text())
    lines = ["| fault | injected | survived | bits lost | |", "| --- | ---: | ---: | ---: | --- |"]
    for entry in found["faults"].values():
        lines.append(
            f"| {entry['what']} | {entry['injected']} | {entry['survived']} | {entry['bits lost']} | {entry['note']} |"
        )
    about = f"SiMo on digits, {STEPS} steps; {found['device']['kind']}, jax {found['versions']['jax']}."
    text = "\n".join([*lines, "", about, ""])
    (RESULTS / "soak.md").write_text(text)
    return text


def memory(steps: int) -> dict:
    """Resident memory, file descriptors and threads of a long run, sampled every second; medians of its parts."""
    workdir, samples = SCRATCH / "run", []
    process = start(
        workdir, f"--config.train.duration={steps} steps", "--config.checkpoint.every_seconds=5", "-q"
    )
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            fields = dict(line.split(":", 1) for line in status.splitlines())
            resident, threads = int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"])
            samples.append(
                (steps_done(workdir), resident, len(os.listdir(f"/proc/{process.pid}/fd")), threads)
            )
        except (OSError, KeyError):  # it has just ended
            pass
        time.sleep(1.0)
    said = process.communicate()[0]
    if process.returncode:
        raise SystemExit(said)
    parts = {}
    for number in (2, 3, 4):  # the first quarter compiles
        part = [s for s in samples if steps * (number - 1) / 4 <= s[0] < steps * number / 4]
        parts[f"quarter {number}"] = {
            name: statistics.median(s[i] for s in part)
            for i, name in ((1, "MiB resident"), (2, "file descriptors"), (3, "threads"))
        }
    (RESULTS / "memory.json").write_text(json.dumps({"steps": steps} | parts, indent=1) + "\n")
    return parts


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "render", "memory"])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--fault", nargs="+", choices=list(FAULTS), default=[])
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    try:
        if options.verb == "memory":
            print(json.dumps(memory(options.steps), indent=1))
        elif options.verb == "run":
            run(options.kills, options.fault)
    finally:
        shutil.rmtree(SCRATCH)
    if options.verb != "memory":
        print(render())


if __name__ == "__main__":
    main()
