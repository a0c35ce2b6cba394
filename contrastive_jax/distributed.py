"""Several processes as one program: how they find one another, which one writes, and when all stop.

Every function here does what one expects where there is one process.
"""

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

SECONDS = 30  # after which a process that is silent, or does not come to the end, is given up
JOINING = 300  # seconds for all to come


def start(spec: str) -> None:
    """Join the processes of a run, before anything else is asked of jax.

    Args:
      spec: "" is one process; "auto" lets jax find the others (TPU pods, SLURM, Open MPI, Kubernetes); else
        ``HOST:PORT,N,I``: the first process's address, the number of processes, and which this one is.

    Says so where it has to wait for the others.

    Raises:
      ValueError: neither of these.
      ConnectionError: nobody is at the first process's address.
    """
    if not spec:
        return
    match = re.fullmatch(r"([^,]+:\d+),(\d+),(\d+)", spec)
    in_range = match and int(match[3]) < int(match[2]) and 0 < int(match[1].rpartition(":")[2]) < 2**16
    if spec != "auto" and not in_range:
        raise ValueError(
            f"--distributed={spec!r}; write auto, or HOST:PORT,N,I with a port below 65536 and process I of 0 to N - 1,"
            " for instance 10.0.0.1:1234,2,0."
        )
    peers = (
        dict(zip(("coordinator_address", "num_processes", "process_id"), match.groups(), strict=True))
        if match
        else {}
    )
    peers |= {name: int(peers[name]) for name in ("num_processes", "process_id") if peers}
    waiting = threading.Timer(
        5,
        lambda: print(
            f"--distributed={spec}: waiting up to {JOINING} s for the other processes.", flush=True
        ),
    )
    waiting.daemon = True
    waiting.start()
    try:
        end = time.monotonic() + JOINING
        if peers.get("process_id"):  # jax would abort the process
            _find(peers["coordinator_address"], spec, end)
        elif peers:
            _check_free(peers["coordinator_address"], spec)
        jax.distributed.initialize(
            **peers,
            initialization_timeout=max(1, round(end - time.monotonic())),
            heartbeat_timeout_seconds=SECONDS,
            shutdown_timeout_seconds=SECONDS,
        )
        _see_all_gpus()
    except ValueError as error:
        if spec != "auto":
            raise
        raise ValueError(
            f"--distributed=auto: jax finds no SLURM, Open MPI, Kubernetes or TPU pod here ({error}); write"
            " HOST:PORT,N,I."
        ) from None
    finally:
        waiting.cancel()


def _see_all_gpus() -> None:
    """Take all GPUs of a host that has one task: under SLURM and Open MPI jax gives each task one."""
    slurm = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")  # 1(x4): one on each of four hosts
    tasks = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", slurm)  # mpirun's daemons may be tasks of SLURM
    if re.fullmatch(r"1(\(x\d+\))?", tasks) and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        for platform in ("cuda", "rocm"):
            everything = os.environ.get(f"JAX_{platform.upper()}_VISIBLE_DEVICES", "all")
            jax.config.update(f"jax_{platform}_visible_devices", everything)


def _find(address: str, spec: str, end: float) -> None:
    """Return once somebody listens at the address, before the clock shows ``end``."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except socket.gaierror as error:
            raise ConnectionError(f"--distributed={spec}: there is no host {host!r} ({error}).") from None
        except OSError as error:
            if time.monotonic() > end:
                raise ConnectionError(
                    f"--distributed={spec}: nobody is at {address} after {JOINING} s ({error}). The first process has"
                    " to be there, with the same HOST:PORT,N and 0: look at its log, the address and the firewall."
                ) from None
        time.sleep(0.2)


def _check_free(address: str, spec: str) -> None:
    """Raise ConnectionError where the port is taken: jax would abort the process."""
    port = int(address.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ConnectionError(
            f"--distributed={spec}: port {port} cannot be listened at ({error}); take another one on every process."
        ) from None


def first() -> bool:
    """Return whether this process is the one that writes and speaks."""
    return jax.process_index() == 0


def agreed(value: bool) -> bool:
    """Return the first process's value, on all: what a clock says must not differ between them."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return bool(multihost_utils.broadcast_one_to_all(np.array(value)))


def on_all(value: bool) -> bool:
    """Return whether the value is true on every process; all of them meet here."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.array(value)).all())


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Let no process go before all are done: jax ends one that is alone for ``SECONDS``, and the first may still write.

    They meet at the beginning too, as to meet for the first time has a limit of its own. One that fails does not wait.
    """
    on_all(True)
    yield
    on_all(True)


class Terminated(KeyboardInterrupt):
    """SIGTERM, where nothing waits for the end of a step."""


class Insisted(KeyboardInterrupt):
    """A second Ctrl-C, before the step that would have ended the run."""


def _end(number: int, frame: Any) -> None:
    raise Terminated


def end_by_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does, by an exception; several processes have a handler of jax's."""
    if jax.process_count() == 1:
        signal.signal(signal.SIGTERM, _end)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[bool]:
    """Let SIGTERM end what is inside, of several processes too: jax's handler waits for a step, and there is none.

    Waits until all processes are here; yields whether SIGTERM came to one of them as it waited.
    """
    if not _handles_signals():
        yield False
        return
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        on_all(True)
        undisturbed = on_all(not got)
        signal.signal(signal.SIGTERM, _end)
        yield bool(got) or not undisturbed
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: jax's, which Python cannot put back


def _handles_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[int], int]]:
    """Yield ``stop_requested(step)``: the signal that asked the run to stop, or 0; the same on all processes.

    One process: Ctrl-C and SIGTERM ask, a second Ctrl-C insists. Several: either, to any of them, asks all, at a
    step that they agree on (jax's preemption notice), so every process must ask at every step. Outside of the main
    thread, which alone Python lets handle signals, nothing asks.
    """
    if not _handles_signals():
        yield lambda step: 0
        return
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        # SIGTERM has no handler of ours: it would take the place of the one that tells the others.
        before = signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        try:
            yield lambda step: int(multihost_utils.reached_preemption_sync_point(step) and signal.SIGTERM)
        finally:
            signal.signal(signal.SIGINT, before)
        return
    got = []

    def ask(number, frame):
        if number == signal.SIGINT and got:
            raise Insisted
        got.append(number)

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda step: got[-1] if got else 0
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
