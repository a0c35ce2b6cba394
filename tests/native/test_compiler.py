"""Programs of the library: no reduction of theirs is YNNPACK's, and only a CPU's call the kernels."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import native
from contrastive_jax.native import compiler


def product_and_sum(a, b):
    return jax.vmap(lambda x, y: jnp.sum(x * y))(a, b)


@pytest.mark.parametrize(("dtype", "n"), [("float32", 32_769), ("float64", 16_385)])
def test_reductions_are_right(dtype, n):
    """The pattern of jax-ml/jax#39103: under jax's own jit a row is 0.8 % off in jax 0.10.2."""
    with jax.enable_x64(dtype == "float64"):
        a, b = (np.random.default_rng(i).random((n, 64)).astype(dtype) for i in range(2))
        program = native.jit(product_and_sum)
        found = np.asarray(program(a, b))
        assert "ynn" not in program.lower(a, b).compile().as_text()
    np.testing.assert_allclose(found, (a.astype(np.float64) * b).sum(1), rtol=1e-5)


def test_a_program_within_another_is_a_part_of_it():
    inner = native.jit(lambda x: x * (2.0 if native.on_cpu() else 3.0))
    outer = native.jit(lambda x: inner(x).sum())
    assert outer(np.ones(4, np.float32)) == 8.0 and inner(np.float32(1)) == 2.0
    assert jax.jit(lambda x: inner(x).sum())(np.ones(4, np.float32)) == 12.0  # a user's own program
    assert not native.on_cpu()


def test_options_of_jit_are_kept():
    program = native.jit(static_argnames="power", compiler_options={"xla_backend_optimization_level": 1})(
        lambda x, power: x**power
    )
    assert program(np.float32(3), power=2) == 9


def test_other_platforms_have_no_options():
    assert compiler.options("cuda") == compiler.options("tpu") == {}


def test_users_flags_are_kept_and_change_nothing():
    code = (
        "import os, jax, jax.numpy as jnp\n"
        "from contrastive_jax import native\n"
        "program = native.jit(lambda a, b: jax.vmap(lambda x, y: jnp.sum(x * y))(a, b))\n"
        "text = program.lower(jnp.ones((64, 64)), jnp.ones((64, 64))).compile().as_text()\n"
        "print('ynn' in text, len(jax.devices()), os.environ['XLA_FLAGS'])\n"
    )
    flags = "--xla_force_host_platform_device_count=3"
    if compiler.options("cpu"):
        flags += " --xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_REDUCE"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "", "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", native.library.SWITCH: "off"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split(maxsplit=2) == ["False", "3", flags + "\n"]
