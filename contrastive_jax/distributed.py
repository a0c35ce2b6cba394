"""Runs of several processes: how they connect, which one writes, and when all stop.

All functions also work with one process.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from contrastive_jax.system import signals
from contrastive_jax.system.signals import Insisted, Terminated

__all__ = [
    "Insisted",
    "Terminated",
    "agreed",
    "alone",
    "end_by_sigterm",
    "ended_by_sigterm",
    "first",
    "lost_peer",
    "of_first",
    "on_all",
    "start",
    "stop_requests",
    "together",
]

SECONDS = 30  # until a process without heartbeats, or late at the end of the run, counts as lost
JOINING = 300  # seconds for all processes to connect


def start(spec: str) -> None:
    """Connect the processes of a run; call this before any other use of jax.

    If the others are late, print a message.

    Args:
      spec: "": one process; "auto": jax finds the others (TPU pods, SLURM, Open MPI, Kubernetes); otherwise
        ``HOST:PORT,N,I``: address of the first process, number of processes, and index of this process.

    Raises:
      ValueError: ``spec`` has another form, or jax does not find the others for "auto".
      ConnectionError: the first process cannot be reached, or its port is taken.
    """
    if not spec:
        return
    match = re.fullmatch(r"([^,]+:\d+),(\d+),(\d+)", spec)
    in_range = match and int(match[3]) < int(match[2]) and 0 < int(match[1].rpartition(":")[2]) < 2**16
    if spec != "auto" and not in_range:
        raise ValueError(
            f"--distributed={spec!r}; it must be auto, or HOST:PORT,N,I with a port below 65536 and I"
            " from 0 to N - 1, for instance 10.0.0.1:1234,2,0."
        )
    address, count, index = (match[1], int(match[2]), int(match[3])) if match else (None, None, None)
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
        if address and index:  # otherwise jax would abort the process
            _find(address, spec, end)
        elif address:
            _check_free(address, spec)
        with _taking_over_sigterm(), _explaining_aborts():
            jax.distributed.initialize(
                coordinator_address=address,
                num_processes=count,
                process_id=index,
                initialization_timeout=max(1, round(end - time.monotonic())),
                heartbeat_timeout_seconds=SECONDS,
                shutdown_timeout_seconds=SECONDS,
            )
        _see_all_gpus()
    except ValueError as error:
        if spec != "auto":
            raise
        raise ValueError(
            f"--distributed=auto: jax finds no SLURM, Open MPI, Kubernetes or TPU pod ({error}); write"
            " HOST:PORT,N,I."
        ) from None
    finally:
        waiting.cancel()


def _see_all_gpus() -> None:
    """Use all GPUs of a host with one task; under SLURM and Open MPI, jax uses one GPU per task."""
    slurm = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")  # 1(x4): one task on each of four hosts
    tasks = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", slurm)  # mpirun's daemons may be tasks of SLURM
    if re.fullmatch(r"1(\(x\d+\))?", tasks) and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        for platform in ("cuda", "rocm"):
            everything = os.environ.get(f"JAX_{platform.upper()}_VISIBLE_DEVICES", "all")
            jax.config.update(f"jax_{platform}_visible_devices", everything)


def _find(address: str, spec: str, end: float) -> None:
    """Wait for a listener at the address; raise ConnectionError for an unknown host, or after time ``end``."""
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
                    f"--distributed={spec}: no process answered at {address} within {JOINING} s"
                    f" ({error}). Start the first process there, with the same HOST:PORT,N and 0; else"
                    " check its log, the address and the firewall."
                ) from None
        time.sleep(0.2)


def _check_free(address: str, spec: str) -> None:
    """Raise ConnectionError if the port is taken: jax would abort the process."""
    port = int(address.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ConnectionError(
            f"--distributed={spec}: cannot listen on port {port} ({error}); choose another port, on"
            " every process."
        ) from None


def lost_peer(error: BaseException) -> str | None:
    """Return a message if an error is due to the loss of another process, otherwise None.

    With three or more processes, wait a second for jax's coordinator to find the lost one.
    """
    if alone() or not re.search(_LOST, str(error), re.IGNORECASE):
        return None
    others = sorted(set(range(jax.process_count())) - {jax.process_index()})
    if len(others) > 1:
        with contextlib.suppress(Exception):
            from jax._src import distributed as internals

            time.sleep(1)
            if client := internals.global_state.client:
                living = client.get_live_nodes(list(range(jax.process_count())))
                others = sorted(set(others) - set(living)) or others
    return _gone(others)


_LOST = "gloo|nccl|connection reset|connection closed|socket closed|broken pipe|heartbeat|task .* died|unavailable"


def _gone(peers: Sequence[int]) -> str:
    which = f"process {peers[0]}" if len(peers) == 1 else f"one of the processes {', '.join(map(str, peers))}"
    return (
        f"{which} of this run was lost: it was ended, or its host or network failed; see its own"
        " output. This process cannot continue without it. Repeat the command on every process to"
        " continue from the last checkpoint."
    )


@contextlib.contextmanager
def _explaining_aborts() -> Iterator[None]:
    """Print a message, not a stack trace, if jax aborts later because a process of the run is lost."""
    yield
    if alone() or os.name != "posix" or not _handles_signals():
        return

    def explain(number: int) -> None:
        os.write(2, f"error: {_gone([0] if not first() else range(1, jax.process_count()))}\n".encode())
        os._exit(1)

    global _abort_handler
    _abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(explain)
    replace = ctypes.CDLL(None).signal
    replace.restype, replace.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    replace(signal.SIGABRT, ctypes.cast(_abort_handler, ctypes.c_void_p))


_abort_handler: Callable[[int], None] | None = None  # kept alive: C stores only its address


def first() -> bool:
    """Return whether this is the first process, which writes files and logs."""
    return jax.process_index() == 0


def alone() -> bool:
    """Return whether this is the only process of the run."""
    return jax.process_count() == 1


def agreed(value: bool) -> bool:
    """Return the first process's value on all processes, for instance if it depends on a clock."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return bool(multihost_utils.broadcast_one_to_all(np.array(value)))


def on_all(value: bool) -> bool:
    """Return whether the value is true on every process, after waiting for all of them."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.array(value)).all())


def of_first(text: str) -> str:
    """Return the first process's text on all processes, after waiting for all of them."""
    if jax.process_count() == 1:
        return text
    from jax.experimental import multihost_utils

    own = np.frombuffer(text.encode(), np.uint8)
    sent = np.zeros(int(multihost_utils.broadcast_one_to_all(np.array(len(own)))), np.uint8)
    if first():
        sent[:] = own
    return np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes().decode()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Wait for all processes before and after the body.

    After the body, as jax ends a process that is alone for ``SECONDS``, and the first may still write. Before
    it, as the first synchronization has a time limit of its own. A process that raises does not wait.
    """
    on_all(True)
    yield
    on_all(True)


def end_by_sigterm() -> None:
    """Let SIGTERM and SIGHUP raise an exception in this process from now on, as Ctrl-C does."""
    signals.begin()
    if jax.process_count() == 1:
        for number in signals.ENDING:
            if number == signal.SIGTERM or signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, signals.handle)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[bool]:
    """Let SIGTERM and SIGHUP raise in the body, also with several processes, as jax's handler waits for a step.

    Wait for all processes first, and yield whether one of them received a signal meanwhile.
    """
    if not _handles_signals():
        yield False
        return
    got = []

    def take(number, frame):
        got.append(number)
        signals.note(number)

    with signals.handled_by(take, _BUT_CTRL_C):
        on_all(True)
        undisturbed = on_all(not got)
        with signals.handled_by(signals.handle, _BUT_CTRL_C):
            yield bool(got) or not undisturbed


_BUT_CTRL_C = tuple(number for number in signals.ENDING if number != signal.SIGINT)


def _handles_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[int], int]]:
    """Yield ``stop_requested(step)``: the signal that requested a stop, or 0; the same on all processes.

    One process: Ctrl-C, SIGTERM and SIGHUP request a stop, and Ctrl-C after that raises :class:`Insisted`.
    Several processes: a signal to any of them stops all at a common step (jax's preemption notice), so every
    process must call the function at every step; it returns SIGTERM. Outside the main thread, the only one that
    can handle signals in Python, it always returns 0.
    """
    if not _handles_signals():
        yield lambda step: 0
        return
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        def tell(number, frame):
            signals.note(number)
            if _tell_others is not None:
                _tell_others(signal.SIGTERM)
            elif number != signal.SIGTERM:
                os.kill(os.getpid(), signal.SIGTERM)

        # If jax's own handler could not be replaced, it has to stay, as it notifies the others.
        numbers = tuple(n for n in signals.ENDING if n != signal.SIGTERM or _tell_others is not None)
        with signals.handled_by(tell, numbers):
            yield lambda step: int(multihost_utils.reached_preemption_sync_point(step) and signal.SIGTERM)
        return
    got: list[int] = []

    def ask(number, frame):
        if number == signal.SIGINT and got:
            raise Insisted
        got.append(number)
        signals.note(number)

    with signals.handled_by(ask):
        yield lambda step: got[-1] if got else 0


_tell_others: Callable[[int], None] | None = None  # jax's handler of SIGTERM, which notifies the others


@contextlib.contextmanager
def _taking_over_sigterm() -> Iterator[None]:
    """Restore Python's handler of SIGTERM after the body, in which jax replaces it, and keep jax's for later.

    jax's handler only sets a flag that no Python thread sees, so a process that compiles would not end.
    """
    global _tell_others
    if not _handles_signals() or os.name != "posix":
        yield
        return
    replace = ctypes.CDLL(None).signal
    replace.restype, replace.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    before = signal.getsignal(signal.SIGTERM)
    own = replace(signal.SIGTERM, None)
    replace(signal.SIGTERM, own)
    yield
    there = replace(signal.SIGTERM, own)
    if there not in (own, None, 1):
        _tell_others = ctypes.CFUNCTYPE(None, ctypes.c_int)(there)
        signal.signal(signal.SIGTERM, signals.handle if before in (None, signal.SIG_DFL) else before)
