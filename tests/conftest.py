"""Eight emulated devices, a compilation cache shared by the whole session, and the count of golden cases."""

import ctypes
import gc
import os
import pathlib
import sys
import tempfile

CACHE = pathlib.Path(
    os.environ.setdefault(
        "JAX_COMPILATION_CACHE_DIR",
        str(pathlib.Path(tempfile.gettempdir()) / f"contrastive_jax-tests-{os.getuid()}"),
    )
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
_STATE = tempfile.TemporaryDirectory(prefix="contrastive_jax-state-")  # removed at the end
os.environ["XDG_STATE_HOME"] = _STATE.name  # approvals of the tests' functions

import golden_cases  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402
import suite  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config):
    """In the tiers default and ``run`` XLA makes no fast programs, which is most of its time.

    The slow tier compiles as users do, and so do the losses of both when CI runs them once more.
    """
    if config.option.markexpr in ("not run and not slow", "run"):
        jax.config.update("jax_disable_most_optimizations", True)
        flags = ["--xla_cpu_parallel_codegen_split_count=1"]  # a program in parts takes a fifth longer
        if jax.__version__.startswith("0.10."):  # emitters by MLIR take as long again; later jax has no other
            flags.append("--xla_cpu_use_fusion_emitters=false")
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])
        jax.config.update("jax_traceback_in_locations_limit", 0)  # finding source lines takes time


@pytest.fixture(autouse=True)
def _compiled_programs_go():
    """Drop compiled programs once the process is large, so that two processes stay under 2 GB.

    A program has about 1 MB.
    """
    global _kept
    yield
    if _resident() < max(LARGE, _kept + 1e8):
        return  # dropping takes half a second, and the next test compiles its first operations again
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # what they held goes back
    _kept = _resident()


# Bytes, far below the 65,530 memory maps that Linux gives a process: a program holds about four.
LARGE = 9.5e8
_kept = 0.0  # bytes that the last dropping left


def _resident() -> float:
    """Bytes of memory that this process holds; infinite where Linux's file of them is not there."""
    statm = pathlib.Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else float("inf")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Before ``-m`` and ``-k`` take tests away."""
    for item in items:
        cases = golden_cases.of(item)
        golden_cases.NAMED.update(cases)
        item.user_properties += [("golden", case) for case in sorted(cases)]
    golden_cases.COLLECTED.update(item.path for item in items)
    if wrong := suite.in_two_tiers(items):
        raise pytest.UsageError("one tier a test, run or slow, not both: " + ", ".join(wrong))


def pytest_runtest_logreport(report):
    golden_cases.count(report)


def pytest_terminal_summary(terminalreporter):
    every, failed = golden_cases.every(), golden_cases.FAILED
    met = golden_cases.PASSED - failed
    if not met | failed:
        return
    terminalreporter.write_line(f"golden: {len(met)} of {len(every)} cases met")
    for word, cases in (("FAILED", failed), ("not run", every - met - failed)):
        if cases and len(cases) <= 20:
            names = ", ".join(sorted("/".join(case) for case in cases))
            terminalreporter.write_line(f"golden, {word}: {names}")
