"""CPU kernels of ``kernels.cc``, compiled at first use by the local C++ compiler and kept in the user's cache.

``CONTRASTIVE_JAX_CPU_KERNELS=direct`` disables Winograd's algorithm, ``off`` all kernels. If there is no
compiler, or it fails or hangs, kernels are off too, with one line on standard error. ``resize.cc`` is a library
of its own, since workers resize that need no XLA; see :mod:`contrastive_jax.native.resize`.
"""

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from contrastive_jax.system import console, private

SWITCH = "CONTRASTIVE_JAX_CPU_KERNELS"
VALUES = ("on", "direct", "off")
SOURCE = pathlib.Path(__file__).with_name("kernels.cc")
SOURCES = (SOURCE, *sorted(SOURCE.parent.glob("*.h")))
HANDLERS = ("convolve", "image_gradient", "kernel_gradient", "moments", "sums")
COMPILERS = ("g++", "clang++", "c++")
CPUINFO = pathlib.Path("/proc/cpuinfo")
MODEL_AND_FEATURES = ("model name", "flags", "Features", "CPU implementer", "CPU variant", "CPU part")
COMMON_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-w")
# GCC's tuning for AMD Zen leaves some sums of products uncontracted, by the number of tiles, so that an image's bits
# would depend on the others of its batch.
FLAGS = (*COMMON_FLAGS, "-ffp-contract=fast", "--param=avoid-fma-max-bits=0")
SECONDS, SECONDS_FOR_VERSION = 90, 10  # limits of the compiler, which needs about 10 and 0.01
SECONDS_TO_END = 2  # to stop the compiler and remove its folder if the process ends first


def check_switch() -> bool:
    """Return whether the environment enables the kernels; raise ValueError for a value not in VALUES."""
    value = os.environ.get(SWITCH, "on")
    if value not in VALUES:
        raise ValueError(f"{SWITCH} is {value!r}; it must be one of {', '.join(VALUES)}.")
    return value != "off"


def winograd() -> bool:
    """Return whether convolutions may use Winograd's algorithm, which rounds differently."""
    return os.environ.get(SWITCH, "on") == "on"


def kernels() -> str:
    """Return the kernels of programs for a CPU: winograd, direct or, without kernels, off."""
    if not available():
        return "off"
    return "winograd" if winograd() else "direct"


def available() -> bool:
    """Return whether programs for a CPU can call the kernels; the first call compiles and loads them."""
    return check_switch() and _loaded()


def start() -> None:
    """Load the kernels in the background; compiling them the first time takes seconds."""
    if check_switch() and jax.default_backend() == "cpu":
        thread = threading.Thread(target=_loaded, daemon=True)
        thread.start()
        atexit.register(_end, thread)


def _end(thread: threading.Thread) -> None:
    _ENDING.set()
    for process in list(_RUNNING):
        _kill(process)
    thread.join(SECONDS_TO_END)


def _loaded() -> bool:
    with _ONCE:
        return _load()


_ONCE = threading.Lock()
_ENDING = threading.Event()  # set at exit, which kills a running compiler without a warning
_RUNNING: set[subprocess.Popen] = set()  # running compilers


@functools.cache
def _load() -> bool:
    try:
        handlers = _handlers()
    except (OSError, ValueError, subprocess.SubprocessError) as error:  # ValueError: of CXX
        if not _ENDING.is_set():
            console.warn(f"CPU kernels are not available ({reason(error)}); XLA's slower ones are used.")
        return False
    for name, handler in handlers.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    return True


def call(name: str, results: Any, *arrays: jax.Array, **attributes: tuple[int, ...] | bool) -> Any:
    """Call a kernel of ``kernels.cc`` on float32 arrays of one device.

    Args:
      name: one of HANDLERS.
      results: shapes and dtypes of the results.
      arrays: arguments of the kernel.
      attributes: attributes of the kernel, integer tuples and booleans.
    """
    numbers = {
        key: value if isinstance(value, bool) else np.asarray(value, np.int64)
        for key, value in attributes.items()
    }
    return jax.ffi.ffi_call(f"contrastive_{name}", results, vmap_method="sequential")(*arrays, **numbers)


def reason(error: Exception) -> str:
    """Return why a library could not be built."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or "").strip().splitlines()
        return f"{error.cmd[0]} failed ({lines[0] if lines else f'exit status {error.returncode}'})"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{error.cmd[0]} did not end within {error.timeout:g} s"
    return " ".join(str(error).split())


def _handlers() -> dict[str, Any]:
    return built("kernels", SOURCES, (*FLAGS, f"-I{jax.ffi.include_dir()}"), lambda path: _open(path))


def built(name: str, sources: Sequence[pathlib.Path], flags: Sequence[str], load: Callable) -> Any:
    """Return ``load(path)`` of a compiled library, from the cache if the same compiler has built it for this CPU.

    Args:
      name: first part of the file's name.
      sources: source files; the first is compiled, it includes the others.
      flags: the compiler's flags; those of this CPU are added.
      load: function that opens the library; an OSError has it compiled again.

    Raises:
      OSError, subprocess.SubprocessError: there is no compiler, or it fails or hangs.
    """
    compiler = _compiler()
    version = _run([*compiler, "--version"], SECONDS_FOR_VERSION)
    flags = [*flags, "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"]
    texts = [source.read_text() for source in sources]
    made_of = (*texts, *compiler, version, *flags, jax.lib.__version__, _cpu())
    file = f"{name}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}.so"
    kept = private.cache_home() / "contrastive_jax" / "native" / file
    with contextlib.suppress(OSError):
        return load(_checked(kept))
    with tempfile.TemporaryDirectory(prefix="contrastive_jax-") as scratch:
        new = pathlib.Path(scratch) / file
        _run([*compiler, *flags, str(sources[0]), "-o", str(new)], SECONDS)
        try:
            _keep(new.read_bytes(), kept)
        except OSError as error:
            console.warn(f"{kept.name} cannot be cached ({error}); the next start compiles it again.")
            return load(new)  # an open library outlives its file
        return load(kept)


def _open(path: pathlib.Path) -> dict[str, Any]:
    library = ctypes.CDLL(str(path))
    names = [f"contrastive_{name}" for name in HANDLERS]
    if missing := [name for name in names if not hasattr(library, name)]:
        raise OSError(f"{path} has no function {missing[0]}")
    return {name: getattr(library, name) for name in names}


def _checked(path: pathlib.Path) -> pathlib.Path:
    """Return a cached library's path; raise OSError if others can write it, or its content has changed.

    A truncated library would load, and end the process with SIGBUS when a missing page is read.
    """
    size_and_digest = _beside(path)
    private.check_folder(path.parent)  # its files are loaded as code
    for each in (path, size_and_digest):
        private.check(each)
    if size_and_digest.read_text() != _described(path.read_bytes()):
        raise OSError(f"{path} was changed after it was written")
    return path


def _beside(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix(".sha256")


def _described(library: bytes) -> str:
    return f"{len(library)} {hashlib.sha256(library).hexdigest()}\n"


def _keep(library: bytes, path: pathlib.Path) -> None:
    private.folder(path.parent)
    for name, content in ((_beside(path), _described(library).encode()), (path, library)):
        part = name.with_name(f"{name.name}.{os.getpid()}")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o600)
        part.replace(name)  # atomic, also if several processes write it


def _compiler() -> list[str]:
    given = shlex.split(os.environ.get("CXX", ""))
    if given:
        return given
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"no C++ compiler ({', '.join(COMPILERS)}, or the environment's CXX)")
    return [compiler]


def _run(command: list[str], seconds: float) -> str:
    """Run a command in its own session, so that its child processes are killed with it."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    _RUNNING.add(process)
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException:
        _kill(process)
        raise
    finally:
        _RUNNING.discard(process)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return output


def _kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _cpu() -> str:
    """Return the model and features of the CPU, which determine the compiled instructions."""
    with contextlib.suppress(OSError):
        lines = CPUINFO.read_text(errors="replace").splitlines()
        first = lines[: lines.index("")] if "" in lines else lines
        return "\n".join(line for line in first if line.startswith(MODEL_AND_FEATURES))
    with contextlib.suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):  # macOS
        return _run(["sysctl", "-n", "machdep.cpu.brand_string"], SECONDS_FOR_VERSION)
    return platform.processor()
