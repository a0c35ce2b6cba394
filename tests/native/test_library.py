"""The kernels are compiled once, kept, and done without where they cannot be had."""

import os
import pathlib
import platform
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from contrastive_jax import native
from contrastive_jax.native import library

CODE = """
import numpy as np, jax
from contrastive_jax import native
from contrastive_jax.models.convolution import convolve
r = np.random.default_rng(0)
x, k = r.normal(size=(64, 16, 16, 20)).astype('f'), r.normal(size=(3, 3, 20, 24)).astype('f')
def run(x, k):
    value, pull = jax.vjp(lambda x, k: convolve(x, k, (1, 1), ((1, 1), (1, 1))), x, k)
    return value, *pull(value)
found = native.jit(run)(x, k)
print(native.available(), *(float(abs(y).sum()) for y in found))
np.savez('found', *found)
"""
kernels = pytest.mark.skipif(not native.available(), reason="switched off, or no compiler")


def run(folder: pathlib.Path, **environment):
    """(its output, its standard error) of a small program with both gradients, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k not in (library.SWITCH, "CXX")} | environment
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split(), done.stderr


def compilers(folder, body):
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    return str(script)


def real_library() -> pathlib.Path:
    """The library of this process, as the cache has it."""
    with open("/proc/self/maps") as maps:
        return pathlib.Path(next(line.split()[-1] for line in maps if "/native/kernels-" in line))


def copier(folder):
    """A compiler that takes no time: it copies the library."""
    return compilers(
        folder, f'while [ $# -gt 1 ]; do [ "$1" = -o ] && cp "{real_library()}" "$2"; shift; done; exit 0'
    )


def test_an_unknown_value_of_the_switch_is_refused(monkeypatch):
    monkeypatch.setenv(library.SWITCH, "yes")
    with pytest.raises(ValueError, match="CONTRASTIVE_JAX_CPU_KERNELS is 'yes'; .* on, direct, off"):
        native.check_switch()


@kernels
def test_bits_do_not_depend_on_the_number_of_threads(tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    arrays = []
    for cores in (1, 2):
        (tmp_path / str(cores)).mkdir()
        some = sorted(os.sched_getaffinity(0))[:cores]
        subprocess.run(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {some})\n{CODE}"],
            cwd=tmp_path / str(cores), check=True, capture_output=True,
        )  # fmt: skip
        arrays.append(np.load(tmp_path / str(cores) / "found.npz"))
    for name in arrays[0].files:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])


@pytest.mark.run
@kernels
def test_a_cache_that_cannot_be_written_costs_a_line(tmp_path):
    (tmp_path / "file").write_text("in the folder's place")
    (tmp_path / "temporary").mkdir()
    found, said = run(
        tmp_path,
        CXX=copier(tmp_path),
        XDG_CACHE_HOME=str(tmp_path / "file"),
        TMPDIR=str(tmp_path / "temporary"),
    )
    assert found[0] == "True" and said.count("the next start compiles it again") == 1
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.run
def test_a_compiler_that_fails_costs_a_line(tmp_path):
    script = compilers(tmp_path, 'echo "broken compiler" >&2; exit 3')
    found, said = run(tmp_path, CXX=script, XDG_CACHE_HOME=str(tmp_path))
    assert (
        found[0] == "False" and said.count("CPU kernels are not available") == 1 and "broken compiler" in said
    )
    missing, said = run(tmp_path, CXX=str(tmp_path / "nowhere"))
    assert missing[0] == "False" and "nowhere" in said
    np.testing.assert_allclose(np.float64(found[1:]), np.float64(run(tmp_path)[0][1:]), rtol=1e-4)


@pytest.mark.run
@kernels
def test_compiled_once_and_again_for_another_compiler(tmp_path):
    real = library._compiler()[0]
    script = compilers(tmp_path, f'echo "$@" >> {tmp_path}/calls; exec {real} "$@"')
    environment = dict(CXX=script, XDG_CACHE_HOME=str(tmp_path / "cache"))
    first, second = run(tmp_path, **environment)[0], run(tmp_path, **environment)[0]
    assert first == second and first[0] == "True"
    made = [line for line in (tmp_path / "calls").read_text().splitlines() if "--version" not in line]
    kept = list((tmp_path / "cache" / "contrastive_jax" / "native").iterdir())
    assert len(made) == 1 and sorted(file.suffix for file in kept) == [".sha256", ".so"]


def test_the_switch_turns_all_of_it_off(tmp_path):
    off, said = run(tmp_path, **{library.SWITCH: "off", "CXX": str(tmp_path / "nowhere")})
    assert off[0] == "False" and "CPU kernels" not in said


FAULTS = """
import resource, sys
import jax, jax.numpy as jnp
from contrastive_jax import native
if "keep" in sys.argv:
    native.keep_pages()
double = native.jit(lambda x: 2 * x)
x = jnp.ones(2**24)
faults = []
for _ in range(40):  # a result may be freed after the next is allocated: the heap grows over several calls
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    double(x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


@pytest.mark.run
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize("switch", ["on", "off"])
def test_memory_that_is_freed_is_kept(switch):
    """64 MiB are 16,384 pages of 4 KiB."""
    environment = os.environ | {library.SWITCH: switch, "JAX_PLATFORMS": "cpu"}
    faults = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, how],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for how in ("keep", "not")
    }
    assert faults["not"] > 16_000
    assert (faults["keep"] < 1000) == (switch == "on"), faults


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of files of text, of which "compiled" is what the compiler writes: they are read and not loaded."""
    script = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && printf compiled > "$2"; shift; done'
    monkeypatch.setenv("CXX", str(compilers(tmp_path, script)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    opened = []

    def read(path):
        opened.append(path)
        if path.read_text() == "foreign":
            raise OSError("no function")
        return path.read_text()

    monkeypatch.setattr(library, "_open", read)
    assert library._handlers() == "compiled"
    return opened


def put(path, text):
    """Put a file in the cache as the library does."""
    library._keep(text.encode(), path)


def test_what_the_cache_keeps_is_read_again(cache, tmp_path):
    built = cache[-1]
    assert built.parent == tmp_path / "contrastive_jax" / "native"
    assert {file.stat().st_mode & 0o777 for file in built.parent.iterdir()} == {0o600}
    assert built.parent.stat().st_mode & 0o777 == 0o700
    put(built, "kept")
    assert library._handlers() == "kept" and cache[-1] == built


ARM = """processor\t: 0
BogoMIPS\t: {mips}
Features\t: fp asimd{sve}
CPU implementer\t: 0x{maker}
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1

processor\t: 1
"""


def test_each_cpu_has_a_library_of_its_own(cache, tmp_path, monkeypatch):
    """By Linux's description of an ARM CPU, and by macOS's name of one."""
    monkeypatch.setattr(library, "CPUINFO", tmp_path / "cpuinfo")

    def file(**how):
        values = {"mips": 50, "sve": " sve", "maker": 41} | how
        library.CPUINFO.write_text(ARM.format(**values))
        library._handlers()
        return cache[-1]

    assert len({file(), file(sve=""), file(maker=61)}) == 3 and file() == file(mips=2000)
    library.CPUINFO.unlink()
    found = set()
    for name in ("Apple M1", "Apple M4"):
        script = tmp_path / "sysctl"
        script.write_text(f'#!/bin/sh\n[ "$*" = "-n machdep.cpu.brand_string" ] && echo {name}\n')
        script.chmod(0o700)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        library._handlers()
        found.add(cache[-1])
    assert len(found) == 2


@pytest.mark.parametrize("size", [0, 3])
def test_a_library_that_was_cut_off_is_made_again(cache, size):
    built = cache[-1]
    put(built, "kept")
    os.truncate(built, size)
    assert library._handlers() == "compiled" == built.read_text()


def test_a_library_of_another_content_is_made_again(cache):
    built = cache[-1]
    built.write_text("planted!")  # of the same size
    assert library._handlers() == "compiled" == built.read_text()
    library._beside(built).unlink()
    assert library._handlers() == "compiled" and library._beside(built).exists()
    put(built, "foreign")  # as it was written, and no library of ours
    assert library._handlers() == "compiled" == built.read_text()


def test_a_library_that_others_could_have_put_there_is_not_loaded(cache, tmp_path):
    built = cache[-1]
    for file in (built, library._beside(built)):
        put(built, "planted")
        file.chmod(0o666)
        assert library._handlers() == "compiled"
        put(built, "planted")
        file.rename(tmp_path / "planted")
        file.symlink_to(tmp_path / "planted")
        assert library._handlers() == "compiled" and not file.is_symlink()
    put(built, "planted")
    built.parent.chmod(0o777)
    assert library._handlers() == "compiled" and cache[-1].parent != built.parent
    assert not cache[-1].exists()  # from a folder that is gone


@pytest.mark.run
@kernels
@pytest.mark.parametrize("size", [0, 100, 5_000, 100_000])
def test_a_start_survives_a_library_that_was_cut_off(tmp_path, size):
    environment = dict(CXX=copier(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    run(tmp_path, **environment)
    (kept,) = (tmp_path / "cache" / "contrastive_jax" / "native").glob("*.so")
    os.truncate(kept, size)
    found, said = run(tmp_path, **environment)
    assert found[0] == "True" and "CPU kernels" not in said
    assert kept.read_bytes() == real_library().read_bytes()


@kernels
def test_a_library_of_other_functions_is_refused(tmp_path):
    import _ctypes

    with pytest.raises(OSError, match="has no function contrastive_convolve"):
        library._open(pathlib.Path(_ctypes.__file__))


def gone(*texts):
    """Whether no process whose command has one of the texts is left; a killed one may need a moment to end."""
    deadline = time.monotonic() + 10
    while any(processes(text) for text in texts):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def processes(text):
    """Ids of the processes whose command has a text."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "cmdline").read_bytes().decode():
                found.append(int(folder.name))
        except OSError:
            pass
    return found


@pytest.mark.skipif(not pathlib.Path("/proc/self/cmdline").exists(), reason="no /proc")
@pytest.mark.parametrize("hangs", ["always", "compiling"])
def test_a_compiler_that_hangs_is_not_waited_for(tmp_path, monkeypatch, capsys, hangs):
    """Nor is what it started left behind."""
    version = '[ "$1" = --version ] && exit 0; ' if hangs == "compiling" else ""
    script = compilers(tmp_path, f"{version}sleep 1234 & wait")
    monkeypatch.setenv("CXX", script)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("SECONDS", "SECONDS_FOR_VERSION"):
        monkeypatch.setattr(library, name, 0.5)
    began = time.monotonic()
    assert not library._load.__wrapped__()
    assert time.monotonic() - began < 10
    assert (
        capsys.readouterr().err.count(
            f"CPU kernels are not available ({script} did not end within 0.5 s); XLA's"
        )
        == 1
    )
    assert gone(script, "sleep\x001234")


ENDS = """
import time
from contrastive_jax import native
native.start()
while not native.library._RUNNING:
    time.sleep(0.01)
time.sleep(0.5)
"""


@pytest.mark.run
@pytest.mark.skipif(not pathlib.Path("/proc/self/cmdline").exists(), reason="no /proc")
def test_a_process_that_ends_takes_its_compiler_along(tmp_path):
    script = compilers(tmp_path, '[ "$1" = --version ] && exit 0; sleep 2345 & wait')
    (tmp_path / "temporary").mkdir()
    environment = {
        "CXX": script,
        "XDG_CACHE_HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "temporary"),
        library.SWITCH: "on",
    }
    done = subprocess.run(
        [sys.executable, "-c", ENDS], env=os.environ | environment, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "") and gone(script, "sleep\x002345")
    assert not list((tmp_path / "temporary").glob("contrastive_jax-*")), done.stderr
