"""Faults injected into real runs of digits, and what was lost: bits of the final parameters, metrics, or nothing.

    python -m experiments.reliability.soak run --fault kill --steps 1500   # 50 kills in one run, which needs the steps
    python -m experiments.reliability.soak run [--fault NAME ...]          # results/soak.json, soak.md
    python -m experiments.reliability.soak render
    python -m experiments.reliability.soak memory [--steps 10000]  # results/memory.json

Every run is the command, with an encoder of one block, in a process of its own, which is forked from one that has
imported it: 50 starts cost what they compute, not what they load. One uninterrupted run is the reference (for image
files one that reads its digits from files, for other devices one in float64); each faulted run is started again, by
the same command, until it ends, and must then have the same parameters, optimizer state and metrics bit for bit; on
other devices, whose sums have another order, to 1e-9. All share a compilation cache, which is as exposed to the faults
as a user's. A fault is *survived* where it has, or where the run was to end with a sentence and did, and left a
workdir from which a healthy command goes on to the reference.
"""

import argparse
import dataclasses
import datetime
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time

import numpy as np

from experiments.reliability import small

SERVER = multiprocessing.get_context("forkserver")
SCRATCH = pathlib.Path(tempfile.gettempdir(), f"soak-{os.getpid()}")
ROOT = pathlib.Path(__file__).parents[2]
RESULTS = pathlib.Path(__file__).parent / "results"
STEPS = 300  # unless --steps says otherwise
CONFIG = (
    "--config=configs/digits.py:method=simo,scale=smoke",
    "--config.log.every=5",
    "--config.log.tensorboard=False",
    "--config.evaluate.final=False",
    "--config.checkpoint.every_seconds=2.0",
)


class Started:
    """The command in a process of its own.

    Args:
      workdir: of the run.
      *more: options.
      extra: options, too.
      spoil: called before the command, in its process.
      devices: emulated.
      limit: bytes that a file may have, as on a disk that is full.
      config: options of the run; () takes the workdir's own.
    """

    def __init__(self, workdir, *more, extra=(), spoil=None, devices=1, limit=None, config=None):
        self._log = SCRATCH / f"{workdir.name}.log"
        self._log.unlink(missing_ok=True)
        arguments = [
            "main",
            *((*CONFIG, f"--config.train.duration={STEPS} steps") if config is None else config),
            *extra,
            *more,
            f"--workdir={workdir}",
        ]
        self._process = SERVER.Process(target=_command, args=(arguments, self._log, spoil, devices, limit))
        self._process.start()
        self.pid = self._process.pid

    def code(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._process.exitcode

    def ask(self, number) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def end(self, seconds=1800.0) -> str:
        """Wait for the end; return what was said."""
        self._process.join(seconds)
        if self.code() is None:
            self._process.kill()
            raise TimeoutError(f"did not end within {seconds:.0f} s: {self._log.read_text()}")
        return self._log.read_text() if self._log.exists() else ""


def _command(arguments, log, spoil, devices, limit) -> None:
    os.chdir(ROOT)
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the server ignores
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if spoil:
        spoil()
    sys.argv = arguments
    from contrastive_jax import main

    with small.one_block():
        main.run()


def jumping_clock() -> None:
    """Make it yesterday, today or tomorrow."""
    true, generator = time.time, random.Random(0)
    time.time = lambda: true() + generator.choice([-86400.0, 0.0, 86400.0])


def spoilt_loss() -> None:
    """Make the loss no number from the middle on."""
    from contrastive_jax.training import loop

    made = loop.compiled_step

    def spoilt(*arguments):
        step, seconds = made(*arguments)

        def call(state, feed):
            late = int(state.step) >= STEPS // 2
            state, metrics = step(state, feed)
            return state, dataclasses.replace(
                metrics, values=metrics.values * float("nan")
            ) if late else metrics

        return call, seconds

    loop.compiled_step = spoilt


def in_float64() -> None:
    """Let jax compute in 64 bits."""
    import jax

    jax.config.update("jax_enable_x64", True)


def double() -> dict:
    """Return the options of a run in float64."""
    return {"extra": ("--config.dtype=float64",), "spoil": in_float64}


def from_files() -> dict:
    """Return the options of a run that reads digits from files, by a worker process; the first call makes the files."""
    from PIL import Image
    from sklearn.datasets import load_digits

    folder = SCRATCH / "images"
    if not folder.exists():
        folder.mkdir()
        for number, image in enumerate(load_digits().images[:512]):
            Image.fromarray((image * 15.9).astype(np.uint8)).save(folder / f"{number:03}.png")
    section = {"name": "folder", "dir": str(folder), "stream": "on", "workers": 1}
    whole = ("--config.augment.slant=0.0", "--config.augment.shift=0.0")  # crops are cut where files are read
    return {"extra": (f"--config.data={json.dumps(section)}", *whole)}


def finish(workdir, *more, **options) -> tuple[bool, str]:
    """Run the command to its end; return whether that was a good one, and what it said."""
    process = Started(workdir, *more, **options)
    said = process.end()
    return process.code() == 0, said


def left_by(workdir) -> tuple[dict[str, np.ndarray], list[dict]]:
    """Read every array of the last checkpoint, and the metrics without the clock."""
    import jax

    from contrastive_jax import workdir as workdirs
    from contrastive_jax.training import run as runs
    from contrastive_jax.workdir import checkpoint

    config = json.loads((workdir / "config.json").read_text())
    with small.one_block(), jax.enable_x64(config["dtype"] == "float64"):
        run = runs.prepare(config, jax.devices()[:1])
    with (
        small.one_block(),
        jax.enable_x64(config["dtype"] == "float64"),
        jax.set_mesh(run.mesh),
        checkpoint.Checkpoints(workdir / "checkpoints", read_only=True) as saved,
    ):
        state, step, _ = saved.restore(runs.initial_state(run))
    assert step == STEPS, f"{workdir} ended at step {step} of {STEPS}"
    arrays = {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(state)}
    return arrays, [{k: v for k, v in row.items() if k != "timing"} for row in workdirs.read_metrics(workdir)]


def bits_lost(workdir, reference) -> int:
    """Count the bits in which what a run left differs from the reference; a log point that differs or is missing counts
    as 64."""
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


def difference(workdir, reference) -> float:
    """Return the largest difference of an array of floats from the reference's, of its largest value."""
    worst = 0.0
    for name, x in left_by(workdir)[0].items():
        if np.issubdtype(x.dtype, np.floating) and x.size:
            other = reference[0][name]
            worst = max(worst, float(np.max(np.abs(x - other)) / max(np.max(np.abs(other)), 1e-12)))
    return worst


def steps_done(workdir) -> int:
    """Return the last step that the metrics speak of; 0 before the first."""
    try:
        return json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    except (OSError, IndexError, ValueError, KeyError):
        return 0


def wait_for(condition, process, seconds=120.0) -> bool:
    """Wait for a condition; return whether it came true while the process lived."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.code() is None:
        if condition():
            return True
        time.sleep(0.002)
    return False


def stopped(workdir, share, number, *more, **options) -> tuple[Started, str]:
    """Start a run, send it a signal once this share of its steps is done, and wait for its end; return what it said."""
    process = Started(workdir, *more, **options)
    wait_for(lambda: steps_done(workdir) >= share * STEPS, process)
    process.ask(number)
    return process, process.end()


def newest_file(workdir) -> pathlib.Path:
    """Kill a run half-way, with several checkpoints; return the newest one's largest file."""
    stopped(workdir, 1 / 2, signal.SIGKILL, "--config.checkpoint.every_seconds=0.2")
    saved = (f for f in (workdir / "checkpoints").iterdir() if f.name.isdigit())
    newest = max(saved, key=lambda f: int(f.name))
    return max((f for f in newest.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


# --- the faults: each leaves its workdir, and returns (times injected, times survived) --------------------------


def kill(workdir, reference, kills):
    """SIGKILL, at random moments, while a checkpoint is written, and after one."""
    generator, done, written, early, seconds = random.Random(0), 0, 0, 0, 20.0

    def saved():
        return {f.name for f in (workdir / "checkpoints").glob("*") if f.name.isdigit()}

    while done < kills:
        before, many, began = saved(), generator.randint(0, 1), time.monotonic()
        since, last = time.time(), max(map(int, before), default=0)
        process = Started(workdir, "--config.checkpoint.every_seconds=0.0")  # one at every log point

        def more(before=before, many=many):
            return len(saved() - before) >= many

        def writing(since=since, last=last):
            """Return whether a checkpoint is written, not what the last kill left: this process has written metrics
            behind the last."""
            folder, metrics = workdir / "checkpoints", workdir / "metrics.jsonl"
            return any("tmp" in f.name for f in folder.glob("*")) and (
                metrics.stat().st_mtime > since and steps_done(workdir) > last
            )

        if done % 2 == 0:
            wait_for(lambda: False, process, generator.uniform(0.0, 1.2 * seconds))
            early += 1
        elif done % 4 == 1:
            wait_for(more, process)
            written += wait_for(writing, process)
            seconds = time.monotonic() - began
        else:
            wait_for(lambda before=before, writing=writing: saved() - before and not writing(), process)
        if process.code() is not None:
            print(process.end(), flush=True)
            break  # it came to its end
        process.ask(signal.SIGKILL)
        process.end()
        done += 1
        print(f"kill {done}, step {steps_done(workdir)}, {time.monotonic() - began:.0f} s", flush=True)
    ended, said = finish(workdir)
    return done, done if ended else 0, f"{early} at random moments, {written} while a checkpoint was written"


def sigterm(workdir, reference, kills):
    """SIGTERM (preemption): saved, and ended by itself."""
    survived, seconds = 0, []
    for share in (1 / 6, 1 / 3, 1 / 2):
        process = Started(workdir)
        wait_for(lambda share=share: steps_done(workdir) >= share * STEPS, process)
        began = time.monotonic()
        process.ask(signal.SIGTERM)
        said = process.end()
        seconds.append(time.monotonic() - began)
        survived += process.code() == 128 + signal.SIGTERM and "the command to resume" in said
    note = f"after {max(seconds):.0f} s at most, with {os.getloadavg()[0] / os.cpu_count():.1f} processes to a core"
    return 3, survived if finish(workdir)[0] else 0, note


def disk_full(workdir, reference, kills):
    """Files that cannot grow beyond a size: none for config.json, the metrics, a checkpoint's arrays."""
    survived, rare = 0, "--config.checkpoint.every_seconds=1000.0"
    for limit, options, word in ((2_000, (), ""), (6_000, (rare,), ""), (50_000, (), "is whole")):
        if word:
            stopped(workdir, 1 / 2, signal.SIGTERM)
        ended, said = finish(workdir, *options, limit=limit)
        last = said.strip().splitlines()[-1]
        survived += (
            not ended and " cannot grow (File too large" in last and word in last and "Traceback" not in said
        )
    return 3, survived if finish(workdir)[0] else 0, last


def bit_flip(workdir, reference, kills):
    """A bit flipped in the newest checkpoint's largest file."""
    file = newest_file(workdir)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)
    ended, said = finish(workdir)
    return 1, int(ended and "damaged" in said), "fell back, and said so"


def truncated_checkpoint(workdir, reference, kills):
    """The newest checkpoint's largest file cut in half."""
    file = newest_file(workdir)
    os.truncate(file, file.stat().st_size // 2)
    ended, said = finish(workdir)
    return 1, int(ended and "damaged" in said), "fell back, and said so"


def truncated_metrics(workdir, reference, kills):
    """Killed, and the last line of metrics.jsonl cut off in its middle."""
    stopped(workdir, 1 / 2, signal.SIGKILL, "--config.checkpoint.every_seconds=0.2")
    file = workdir / "metrics.jsonl"
    os.truncate(file, file.stat().st_size - 40)
    return 1, int(finish(workdir)[0]), "repaired, nothing twice"


def two_runs(workdir, reference, kills):
    """A second run started in the same workdir."""
    process = Started(workdir)
    wait_for(lambda: steps_done(workdir) >= 50, process)
    ended, said = finish(workdir)
    refused = not ended and str(process.pid) in said
    process.end()
    return 1, int(refused and process.code() == 0), said.strip().splitlines()[-1]


def clock(workdir, reference, kills):
    """A clock that jumps by a day, back and forth, at every look."""
    return 1, int(finish(workdir, spoil=jumping_clock)[0]), ""


def not_finite(workdir, reference, kills):
    """A loss that turns NaN: the run ends with a sentence that names the last good checkpoint, which goes on."""
    ended, said = finish(workdir, spoil=spoilt_loss)
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
    for part in range(1, 11):
        process, _ = stopped(workdir, part / 12, signal.SIGINT)
        survived += process.code() == 128 + signal.SIGINT
    return 10, survived if finish(workdir)[0] else 0, ""


def vanished_image(workdir, reference, kills):
    """An image file that vanishes during the run, and is put back."""
    options, file = from_files(), SCRATCH / "images" / "300.png"
    process = Started(workdir, **options)
    wait_for(lambda: steps_done(workdir) >= STEPS // 3, process)
    kept = file.read_bytes()
    file.unlink()
    said = process.end()
    file.write_bytes(kept)
    named = process.code() != 0 and "300.png" in said and "Traceback" not in said
    return 1, int(named and finish(workdir, **options)[0]), said.strip().splitlines()[-1]


def killed_worker(workdir, reference, kills):
    """The worker process that reads images killed ten times: the last step is saved, the same command goes on."""
    options, survived, seconds, said, random = from_files(), 0, [], "", np.random.default_rng(0)
    for part in range(10):
        process = Started(workdir, **options)
        begin = (part + random.random()) * STEPS / 11
        wait_for(lambda begin=begin: steps_done(workdir) >= begin, process)
        time.sleep(random.random() / 10)  # at any moment of a step
        children = pathlib.Path(f"/proc/{process.pid}/task").glob("*/children")
        for child in " ".join(file.read_text() for file in children).split():
            if (
                "spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_text()
            ):  # not multiprocessing's tracker
                os.kill(int(child), signal.SIGKILL)
        began = time.monotonic()
        said = process.end(60)
        seconds.append(time.monotonic() - began)
        survived += process.code() == 1 and "worker process" in said and "is saved" in said
        survived -= "Traceback" in said
    note = f"ended after {max(seconds):.1f} s at most"
    return 10, survived if finish(workdir, **options)[0] else 0, note


def hangup(workdir, reference, kills):
    """SIGHUP (a terminal that closes): saved, and ended by itself."""
    process, said = stopped(workdir, 1 / 3, signal.SIGHUP)
    ended = process.code() == 128 + signal.SIGHUP and "the command to resume" in said
    return 1, int(ended and finish(workdir)[0]), said.strip().splitlines()[-1]


def planted_links(workdir, reference, kills):
    """Links out of the workdir, in the place of its files: refused, what they lead to is as it was."""
    stopped(workdir, 1 / 3, signal.SIGKILL)
    survived, outside = 0, SCRATCH / "outside"
    outside.mkdir(exist_ok=True)
    names = ("lock.json", "result.json", "checkpoints/.writable-0", "checkpoints/99")
    for name in names:
        target, link = outside / name.replace("/", "-"), workdir / name
        target.write_text("mine")
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        ended, said = finish(workdir)
        survived += not ended and "is a link to" in said and target.read_text() == "mine"
        link.unlink()
    return len(names), survived if finish(workdir)[0] else 0, said.strip().splitlines()[-1]


def foreign_config(workdir, reference, kills):
    """A config.json that names a shell command, and one that names a function of an installed package: refused."""
    stopped(workdir, 1 / 3, signal.SIGKILL)
    file, ran, survived = workdir / "config.json", SCRATCH / "ran", 0
    kept = file.read_text()
    for name in ("subprocess:check_output", "sklearn.utils._testing:check_output"):
        foreign = {"name": name, "args": ["touch", str(ran)]}
        file.write_text(json.dumps(json.loads(kept) | {"data": foreign}))
        process = Started(workdir, "--mode=report", config=())
        said = process.end()
        survived += process.code() == 2 and name in said and "Traceback" not in said and not ran.exists()
    file.write_text(kept)
    return 2, survived if finish(workdir)[0] else 0, said.strip().splitlines()[-1]


def other_devices(workdir, reference, kills):
    """Killed twice, and gone on with on another number of devices: 1, then 8, then 2."""
    killed, resumed = 0, 0
    for part, devices in ((1, 1), (2, 8)):
        process = Started(workdir, "--config.checkpoint.every_seconds=0.2", devices=devices, **double())
        killed += wait_for(lambda part=part: steps_done(workdir) >= part * STEPS // 3, process)
        process.ask(signal.SIGKILL)
        resumed += "resuming at step" in process.end()
    ended, said = finish(workdir, devices=2, **double())
    resumed += "resuming at step" in said
    worst = difference(workdir, reference) if ended else float("inf")
    note = f"float64: differs by {worst:.0e} of an array's largest value at most" if ended else said
    return killed, resumed if worst < 1e-9 else 0, note


FAULTS = {
    f.__name__: f
    for f in (kill, sigterm, interrupted_often, disk_full, bit_flip, truncated_checkpoint, truncated_metrics,
              two_runs, clock, not_finite, vanished_image, killed_worker, other_devices, hangup, planted_links,
              foreign_config)
}  # fmt: skip
OPTIONS = {"vanished_image": from_files, "killed_worker": from_files, "other_devices": double}


def reference_of(fault: str):
    """Return what an uninterrupted run of the fault's options left."""
    options = OPTIONS.get(fault, dict)
    workdir = SCRATCH / f"reference_{options.__name__}"
    if not workdir.exists():
        ended, said = finish(workdir, **options())
        if not ended:
            raise SystemExit(f"the reference did not end: {said}")
    return left_by(workdir)


def run(kills: int, chosen: list[str]) -> None:
    """Inject the faults, and keep what came of it."""
    from contrastive_jax import workdir as workdirs

    file = RESULTS / "soak.json"
    for name in chosen or FAULTS:
        reference = reference_of(name)
        began, workdir = time.monotonic(), SCRATCH / name
        injected, survived, note = FAULTS[name](workdir, reference, kills)
        entry = {
            "what": FAULTS[name].__doc__.split("\n")[0], "steps": STEPS, "injected": injected, "survived": survived,
            "bits lost": "—" if name == "other_devices" else bits_lost(workdir, reference),
            "note": note.replace(str(SCRATCH), "...").replace(sys.prefix, "..."),
            "seconds": round(time.monotonic() - began), "date": datetime.date.today().isoformat(),
            "git_commit": workdirs.environment()["git_commit"],
        }  # fmt: skip
        print(name, entry, flush=True)
        found = json.loads(file.read_text())["faults"] if file.exists() else {}
        found = {fault: (found | {name: entry})[fault] for fault in FAULTS if fault in found | {name: entry}}
        about = {key: value for key, value in workdirs.environment().items() if key in ("device", "versions")}
        file.write_text(json.dumps({"faults": found} | about, indent=1) + "\n")
        shutil.rmtree(workdir)


def render() -> str:
    """Write the table."""
    found = json.loads((RESULTS / "soak.json").read_text())
    lines = [
        "| fault | steps | injected | survived | bits lost | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for entry in found["faults"].values():
        lines.append(
            f"| {entry['what']} | {entry['steps']} | {entry['injected']} | {entry['survived']} | {entry['bits lost']} |"
            f" {entry['note']} |"
        )
    about = f"SiMo on digits; {found['device']['kind']}, jax {found['versions']['jax']}."
    text = "\n".join([*lines, "", about, ""])
    (RESULTS / "soak.md").write_text(text)
    return text


def memory(steps: int) -> dict:
    """Measure resident memory, file descriptors and threads of a long run, sampled every second; medians of its
    parts."""
    workdir, samples = SCRATCH / "run", []
    process = Started(
        workdir, f"--config.train.duration={steps} steps", "--config.checkpoint.every_seconds=5", "-q"
    )
    while process.code() is None:
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
    said = process.end()
    if process.code():
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
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "render", "memory"])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--fault", nargs="+", choices=list(FAULTS), default=[])
    parser.add_argument("--steps", type=int, help="of a run; default 300, and 10,000 of memory's")
    options = parser.parse_args()
    global STEPS
    STEPS = options.steps or STEPS
    RESULTS.mkdir(exist_ok=True)
    os.environ |= {  # of the server, and of what it forks
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(SCRATCH / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # a start is then tracing and reading
    }
    SCRATCH.mkdir()
    SERVER.set_forkserver_preload(
        ["orbax.checkpoint", "contrastive_jax.main", "contrastive_jax.training.loop", __spec__.name]
    )
    try:
        if options.verb == "memory":
            print(json.dumps(memory(options.steps or 10_000), indent=1))
        elif options.verb == "run":
            run(options.kills, options.fault)
    finally:
        shutil.rmtree(SCRATCH)
    if options.verb != "memory":
        print(render())


if __name__ == "__main__":
    main()
