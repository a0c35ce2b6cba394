"""Eight emulated devices, a compilation cache shared by the whole session, and the count of golden cases."""

import gc
import os
import pathlib
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

import golden_cases  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_go():
    """Drop a module's programs when it ends: each holds memory maps, of which Linux gives a process 65,530."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Before ``-m`` and ``-k`` take tests away."""
    golden_cases.NAMED.update(*map(golden_cases.of, items))
    golden_cases.COLLECTED.update(item.path for item in items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        golden_cases.FAILED.update(golden_cases.of(item))
    elif report.passed and report.when == "call":
        golden_cases.PASSED.update(golden_cases.of(item))
    return report


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
