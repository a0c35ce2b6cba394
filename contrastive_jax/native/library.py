"""The CPU kernels of ``kernels.cc``: compiled at first use by the machine's own C++ compiler, kept in the user's cache.

``CONTRASTIVE_JAX_CPU_KERNELS=off`` does without them. So does, with one line on standard error, a machine without a
compiler, or on which it fails.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from typing import Any

import jax
import numpy as np

from contrastive_jax.system import console, private

SWITCH = "CONTRASTIVE_JAX_CPU_KERNELS"
VALUES = ("on", "off")
SOURCE = pathlib.Path(__file__).with_name("kernels.cc")
HANDLERS = ("convolve", "image_gradient", "kernel_gradient", "moments", "sums")
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-w")
SECONDS = 120  # for the compiler, which takes 6


def check_switch() -> bool:
    """Return whether the kernels are asked for. Raises ValueError for a value that is neither on nor off."""
    value = os.environ.get(SWITCH, "on")
    if value not in VALUES:
        raise ValueError(f"{SWITCH}={value!r}; allowed: {', '.join(VALUES)}.")
    return value == "on"


def available() -> bool:
    """Return whether programs for a CPU can call the kernels; compiles and loads them at the first call."""
    return check_switch() and _loaded()


def start() -> None:
    """Begin to load the kernels, which the first time takes the compiler seconds, beside what the caller does."""
    if check_switch() and jax.default_backend() == "cpu":
        threading.Thread(target=_loaded).start()


def _loaded() -> bool:
    with _ONCE:
        return _load()


_ONCE = threading.Lock()


@functools.cache
def _load() -> bool:
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError) as error:
        console.warn(f"CPU kernels: {_reason(error)}; XLA's own are used, which are slower.")
        return False
    for name in HANDLERS:
        handler = jax.ffi.pycapsule(getattr(library, f"contrastive_{name}"))
        jax.ffi.register_ffi_target(f"contrastive_{name}", handler, platform="cpu")
    return True


def call(name: str, results: Any, *arrays: jax.Array, **attributes: tuple[int, ...]) -> Any:
    """Call a kernel of ``kernels.cc`` on float32 arrays of one device.

    Args:
      name: one of HANDLERS.
      results: shapes and dtypes of what it returns.
      arrays: its arguments.
      attributes: its tuples of integers.
    """
    numbers = {key: np.asarray(value, np.int64) for key, value in attributes.items()}
    return jax.ffi.ffi_call(f"contrastive_{name}", results, vmap_method="sequential")(*arrays, **numbers)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or "").strip().splitlines()
        return f"{error.cmd[0]} failed ({lines[0] if lines else f'exit status {error.returncode}'})"
    return " ".join(str(error).split())


def _built() -> pathlib.Path:
    """Return the compiled library, from the cache where it was made before by the same compiler for the same CPU."""
    compiler = _compiler()
    version = _run([*compiler, "--version"])
    flags = [*FLAGS, "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"]
    made_of = (SOURCE.read_text(), *compiler, version, *flags, jax.lib.__version__, _cpu())
    name = f"kernels-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}.so"
    folder = private.cache_home() / "contrastive_jax" / "native"
    with contextlib.suppress(OSError):
        private.check(folder / name)  # it is loaded as code
        return folder / name
    with tempfile.TemporaryDirectory(prefix="contrastive_jax-") as scratch:
        new = pathlib.Path(scratch) / name
        _run([*compiler, *flags, f"-I{jax.ffi.include_dir()}", str(SOURCE), "-o", str(new)])
        try:
            private.folder(folder)
            part = folder / f"{name}.{os.getpid()}"
            shutil.copyfile(new, part)
            part.chmod(0o600)
            part.replace(folder / name)  # whole or not at all, also where several processes make it
        except OSError as error:
            console.warn(f"CPU kernels: {error}; they will be compiled again by the next start.")
            kept = pathlib.Path(tempfile.mkdtemp(prefix="contrastive_jax-")) / name
            return pathlib.Path(shutil.move(new, kept))
    return folder / name


def _compiler() -> list[str]:
    given = shlex.split(os.environ.get("CXX", ""))
    if given:
        return given
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"no C++ compiler ({', '.join(COMPILERS)}, or the environment's CXX)")
    return [compiler]


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout


def _cpu() -> str:
    """Return what tells this CPU from others for which the same compiler would write other instructions."""
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        first = lines[: lines.index("")] if "" in lines else lines
        return "\n".join(
            line for line in first if line.startswith(("model name", "flags", "Features", "CPU part"))
        )
    return platform.processor()
