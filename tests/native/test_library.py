"""The kernels are compiled once, kept, and done without where they cannot be had."""

import os
import pathlib
import platform
import stat
import subprocess
import sys

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


def test_an_unknown_value_of_the_switch_is_refused(monkeypatch):
    monkeypatch.setenv(library.SWITCH, "yes")
    with pytest.raises(ValueError, match=r"CONTRASTIVE_JAX_CPU_KERNELS='yes'; allowed: on, off"):
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
    found, said = run(tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert found[0] == "True" and "compiled again by the next start" in said


@pytest.mark.run
def test_a_compiler_that_fails_costs_a_line(tmp_path):
    script = compilers(tmp_path, 'echo "broken compiler" >&2; exit 3')
    found, said = run(tmp_path, CXX=script, XDG_CACHE_HOME=str(tmp_path))
    assert found[0] == "False" and said.count("CPU kernels: ") == 1 and "broken compiler" in said
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
    assert len(made) == len(kept) == 1


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
for _ in range(20):  # it takes some until no call asks for more than was kept
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    double(x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(faults)[5])
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


def test_a_library_that_others_could_have_put_there_is_not_loaded(tmp_path, monkeypatch):
    script = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && printf compiled > "$2"; shift; done'
    monkeypatch.setenv("CXX", str(compilers(tmp_path, script)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = library._built()
    assert built.parent == tmp_path / "contrastive_jax" / "native" and built.stat().st_mode & 0o777 == 0o600
    built.write_text("planted")
    assert library._built().read_text() == "planted"  # the user's own file is taken as it is
    built.chmod(0o666)
    assert library._built() == built and built.read_text() == "compiled"
    (tmp_path / "planted").write_text("planted")
    built.unlink()
    built.symlink_to(tmp_path / "planted")
    assert library._built().read_text() == "compiled" and not built.is_symlink()
    built.parent.chmod(0o777)
    built.unlink()
    assert (elsewhere := library._built()).parent != built.parent and elsewhere.read_text() == "compiled"
