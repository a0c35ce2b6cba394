"""The kernels over random shapes: against float64, bits by one thread and several, and under the compiler's sanitizers.

They are compiled by themselves, with a pool of threads in XLA's place.
"""

import pathlib
import platform
import signal
import subprocess

import pytest

from contrastive_jax import native
from contrastive_jax.native import library

HERE = pathlib.Path(__file__).parent
X86 = platform.machine() in ("x86_64", "AMD64")
kernels = pytest.mark.skipif(not native.available(), reason="switched off, or no compiler")


def compiled(folder, *flags):
    """The check's program, or None where the compiler has not these flags."""
    program = folder / "random_shapes"
    includes = [f"-I{library.SOURCE.parent}", f"-I{HERE / 'stub'}"]
    flags = [*(flag for flag in library.FLAGS if flag not in ("-shared", "-O3")), "-pthread", *flags]
    done = subprocess.run(
        [*library._compiler(), *flags, *includes, str(HERE / "random_shapes.cc"), "-o", str(program)],
        capture_output=True,
        text=True,
    )
    return program if done.returncode == 0 else pytest.skip(done.stderr.strip().splitlines()[-1])


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode == -signal.SIGILL:
        pytest.skip("this CPU has no such vectors")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@kernels
@pytest.mark.parametrize("machine", ["native", "haswell", "x86-64"] if X86 else ["native"])
def test_random_shapes(machine, tmp_path):
    """Of each width of vectors: those of AVX-512, AVX2 and SSE on an x86 with all of them."""
    program = compiled(tmp_path, "-O2", f"-m{'arch' if X86 else 'cpu'}={machine}")
    assert " 0 wrong" in run(program, 200)


@pytest.mark.slow
@kernels
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer, tmp_path):
    flags = ("-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    program = compiled(tmp_path, *flags, f"-m{'arch' if X86 else 'cpu'}=native")
    assert " 0 wrong" in run(program, 100, 1)
