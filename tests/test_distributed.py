"""Two processes of four devices as one program: the same numbers, one checkpoint, one stop, no hanging."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from contrastive_jax import config as configs
from contrastive_jax import distributed
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parent.parent
CONFIG = "configs/digits.py:method=flatclr_ess,scale=smoke"


def start(workdir, *options, processes=2, devices=4, last=()):
    """The command on every process, by the loopback address; ``last``: options of the last process alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "contrastive_jax.main", f"--config={CONFIG}", f"--workdir={workdir}"]
    command += ["--config.projector.out=16", "--config.log.every=1", *options]
    return [
        subprocess.Popen(
            [*command, *last[: len(last) * (i + 1 == processes)], f"--distributed=127.0.0.1:{port},{processes},{i}"],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(processes)
    ]  # fmt: skip


def ended(processes, seconds=300):
    """What each said, and its exit status."""
    try:
        said = [p.communicate(timeout=seconds)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    return said, [p.returncode for p in processes]


def wait_for_step(workdir, step, seconds=240):
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if (workdir / "metrics.jsonl").exists():
            rows = (workdir / "metrics.jsonl").read_text().count("\n")
            if rows >= step:
                return
        time.sleep(0.2)
    raise AssertionError(f"step {step} was not reached")


@pytest.mark.slow
@pytest.mark.parametrize(
    "leaves", [{}, {"temperature": "isogclr", "normalizer": "sogclr"}], ids=["ess", "by example"]
)
def test_two_processes_are_one(leaves, tmp_path):
    """Both joined by jax.distributed: devices that are not add up in another order, which float32 training shows."""
    options = ("--config.train.duration=6 steps", "--config.schedule.warmup=1 step")
    options += tuple(f"--config.{name}={value}" for name, value in leaves.items())
    said, codes = ended(start(tmp_path / "two", *options))
    assert codes == [0, 0], said
    assert "trained" in said[0] and "trained" not in said[1]  # one of them speaks
    said, codes = ended(start(tmp_path / "one", *options, processes=1, devices=8))
    assert codes == [0], said
    rows = [workdirs.read_metrics(tmp_path / name) for name in ("one", "two")]
    assert len(rows[0]) == len(rows[1])
    for one, two in zip(*rows, strict=True):
        for name in set(one) - {"timing"}:
            np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-6, err_msg=name)
    # What two wrote together, one reads: on eight devices of its own, and on one.
    overrides = leaves | {"projector.out": 16, "log.every": 1, "train.duration": "6 steps"}
    config = configs.resolve(str(ROOT / CONFIG), overrides)
    for devices in (jax.devices(), jax.devices()[:1]):
        run = runs.prepare(config, devices)
        with (
            jax.set_mesh(run.mesh),
            checkpoint.Checkpoints(tmp_path / "two/checkpoints", read_only=True) as saved,
        ):
            state, step, _ = saved.restore(runs.replicate(init_state(run.recipe, 0), run.mesh))
        assert step == 6 and int(state.step) == 6


@pytest.mark.slow
def test_two_processes_describe_embed_and_export_as_one_does(tmp_path):
    """One of them speaks and writes; what it writes is what one process writes."""
    options = (
        "--config.train.duration=2 steps",
        "--config.schedule.warmup=1 step",
        "--config.evaluate.final=False",
    )
    options += ("--config.encoder.variant=torchvision", "--config.embed.splits=('test',)")
    said, codes = ended(start(tmp_path / "run", *options))
    assert codes == [0, 0], said
    for mode, says in (
        ("describe", "8 x cpu"),
        ("embed", "embeddings_test.npz"),
        ("export", "encoder.safetensors"),
    ):
        said, codes = ended(start(tmp_path / "run", *options, f"--mode={mode}"))
        assert codes == [0, 0], (mode, said)
        assert says in said[0] and says not in said[1], (mode, said)
    with np.load(tmp_path / "run/embeddings_test.npz") as written:
        two = dict(written)
    said, codes = ended(start(tmp_path / "run", *options, "--mode=embed", processes=1, devices=1))
    assert codes == [0], said
    with np.load(tmp_path / "run/embeddings_test.npz") as written:
        np.testing.assert_array_equal(written["label"], two["label"])
        np.testing.assert_allclose(written["pooled"], two["pooled"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_processes_with_other_options_are_refused(tmp_path):
    last = ("--config.seed=1", "--config.temperature.target=0.4")
    said, codes = ended(start(tmp_path / "run", last=last))
    assert codes == [1, 1], said
    assert "another process of this run has other options" in said[0]
    assert "process 1 differs from process 0: " in said[1] and "seed is 1, in process 0 0" in said[1]
    assert "temperature.target is 0.4, in process 0 0.3" in said[1]
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.slow
def test_a_stop_of_one_stops_both_at_one_step(tmp_path):
    processes = start(tmp_path, "--config.train.duration=100000 steps")
    wait_for_step(tmp_path, 3)
    processes[1].send_signal(signal.SIGTERM)
    said, codes = ended(processes)
    assert codes == [143, 143], said
    assert "stopped at step" in said[0]
    step = int(said[0].split("stopped at step ")[1].split()[0])
    with checkpoint.Checkpoints(tmp_path / "checkpoints", read_only=True) as saved:
        assert max(saved.steps()) == step


ASKS = """
def stop(step, metrics):
    return "stop" if step == 3 else None

def fail(step, metrics):
    return 1 / (5 - step)
"""


@pytest.mark.slow
def test_a_function_of_the_metrics_stops_or_fails_on_both(tmp_path, monkeypatch):
    """The first process alone calls it; both save the same step, and the same command goes on."""
    (tmp_path / "asks.py").write_text(ASKS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    options = ("--config.train.duration=7 steps", "--config.schedule.warmup=1 step")
    options += ("--config.evaluate.final=False",)
    said, codes = ended(start(tmp_path / "run", *options, "--config.log.on_log=asks:stop"))
    assert codes == [0, 0], said
    assert [row["step"] for row in workdirs.read_metrics(tmp_path / "run")] == [1, 2, 3]
    said, codes = ended(start(tmp_path / "run", *options, "--config.log.on_log=asks:fail"))
    assert codes == [1, 1], said
    assert "returned 1.0; it must return None, or 'stop'" in said[0] and "step 4 is saved" in said[0], said
    assert "log.on_log=asks:fail failed on the first process" in said[1], said
    with checkpoint.Checkpoints(tmp_path / "run/checkpoints", read_only=True) as saved:
        assert saved.steps() == [3, 4]


WAITS = """
import pathlib, time
import jax

def wait(facts, *, folder=""):
    def judge(subject):
        (pathlib.Path(folder) / f"judging{jax.process_index()}").touch()
        time.sleep(120)
    return judge
"""


@pytest.mark.slow
def test_a_stop_ends_the_evaluation_of_both(tmp_path, monkeypatch):
    (tmp_path / "waits.py").write_text(WAITS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    waits = f"{{'waits': {{'name': 'waits:wait', 'folder': '{tmp_path}'}}}}"
    options = (
        "--config.train.duration=2 steps",
        "--config.schedule.warmup=1 step",
        "--config.evaluate.every=0 steps",
    )
    processes = start(tmp_path / "run", *options, f"--config.evaluators={waits}")
    began = time.monotonic()
    while len(list(tmp_path.glob("judging*"))) < 2 and time.monotonic() - began < 240:
        time.sleep(0.2)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    said, codes = ended(processes)
    assert time.monotonic() - began < 60 and codes == [143, 143], said
    assert "stopped before the evaluation was complete. The run is trained and saved" in said[0]


@pytest.mark.slow
def test_a_process_that_dies_ends_the_job(tmp_path):
    processes = start(tmp_path, "--config.train.duration=100000 steps")
    wait_for_step(tmp_path, 3)
    processes[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    said, codes = ended(processes, seconds=90)
    assert time.monotonic() - began < 60
    assert codes[0] not in (0, None)


ONE_IS_LATE = """
import pathlib, sys, time
import jax
from contrastive_jax import distributed

distributed.start(sys.argv[1])
with distributed.stop_requests() as stop_requested:
    assert not stop_requested(1)
    distributed.on_all(True)
    pathlib.Path(sys.argv[3], f"here{jax.process_index()}").touch()
    time.sleep(5 * (jax.process_index() == int(sys.argv[2])))
    stop = stop_requested(2)
try:
    with distributed.ended_by_sigterm() as ended:
        if ended or stop or stop_requested(3):
            raise distributed.Terminated
        time.sleep(60)
except distributed.Terminated:
    sys.exit(143)
"""


@pytest.mark.slow
@pytest.mark.parametrize("asked", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("late", [0, 1])
def test_a_stop_is_seen_by_all_where_one_comes_late_to_the_evaluation(asked, late, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "late.py").write_text(ONE_IS_LATE)
    processes = [
        subprocess.Popen(
            [sys.executable, tmp_path / "late.py", f"127.0.0.1:{port},2,{i}", str(late), tmp_path],
            cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    began = time.monotonic()
    while len(list(tmp_path.glob("here*"))) < 2 and time.monotonic() - began < 60:
        time.sleep(0.1)
    time.sleep(1)
    for i in asked:
        processes[i].send_signal(signal.SIGTERM)
    said, codes = ended(processes, seconds=50)
    assert codes == [143, 143], said


THE_FIRST_IS_SLOW = """
import sys, time
from contrastive_jax import distributed

distributed.SECONDS = 3
distributed.start(sys.argv[1])
with distributed.together():
    if distributed.first():
        time.sleep(10)
        print("written", flush=True)
"""


@pytest.mark.slow
def test_the_first_is_waited_for_while_it_writes(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "slow.py").write_text(THE_FIRST_IS_SLOW)
    processes = [
        subprocess.Popen(
            [sys.executable, tmp_path / "slow.py", f"127.0.0.1:{port},2,{i}"],
            cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    said, codes = ended(processes, seconds=60)
    assert codes == [0, 0] and said[0].endswith("written\n"), said


def test_the_flag_is_checked():
    for spec in ("host", "host:1,2", "host:1,2,2", "host,2,0"):
        with pytest.raises(ValueError, match="it must be auto, or HOST:PORT,N,I"):
            distributed.start(spec)


def test_one_process_needs_nothing():
    assert distributed.first() and distributed.agreed(True) and not distributed.agreed(False)
    with distributed.stop_requests() as asked:
        assert asked(1) == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked(2) == signal.SIGTERM


def test_outside_of_the_main_thread_nothing_asks_a_run_to_stop():
    found = []

    def run():
        with distributed.stop_requests() as asked, distributed.ended_by_sigterm():
            found.append(asked(1))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [0]


def test_sigterm_ends_what_has_no_steps():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(distributed.Terminated), distributed.ended_by_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_would_abort_the_process_or_names_no_option_is_a_sentence(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"--distributed=.*: cannot listen on port {port}"):
            distributed.start(f"127.0.0.1:{port},2,0")
    with pytest.raises(ValueError, match="HOST:PORT,N,I with a port below 65536"):
        distributed.start("127.0.0.1:99999,2,0")

    def initialize(**options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(ValueError, match="--distributed=auto: jax finds no SLURM.*write HOST:PORT,N,I"):
        distributed.start("auto")


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({}, "3"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, "all"),
        ({"SLURM_STEP_TASKS_PER_NODE": "8"}, "3"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, "3"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2),8"}, "3"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "JAX_CUDA_VISIBLE_DEVICES": "0,1"}, "0,1"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "JAX_LOCAL_DEVICE_IDS": "3"}, "3"),
    ],
)
def test_the_one_task_of_a_host_sees_all_its_gpus(variables, seen, monkeypatch):
    """jax gives the task of each place on a host one GPU."""
    for name in (
        *("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        *("JAX_LOCAL_DEVICE_IDS", "JAX_CUDA_VISIBLE_DEVICES"),
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    values = {}
    monkeypatch.setattr(jax.config, "update", values.__setitem__)
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda **_: jax.config.update("jax_cuda_visible_devices", "3")
    )
    distributed.start("auto")
    assert values["jax_cuda_visible_devices"] == seen


def test_where_the_first_process_is_not_there_the_others_say_so(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(distributed, "JOINING", 0.5)
    with pytest.raises(
        ConnectionError,
        match=rf"no process answered at 127\.0\.0\.1:{port} within 0\.5 s .*the first process",
    ):
        distributed.start(f"127.0.0.1:{port},2,1")
    with pytest.raises(ConnectionError, match="there is no host 'nowhere.invalid'"):
        distributed.start(f"nowhere.invalid:{port},2,1")
