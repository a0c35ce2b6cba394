"""Programs of the library: no reduction of theirs is YNNPACK's, and only a CPU's call the kernels."""

import os
import re
import subprocess
import sys
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import sampled

from contrastive_jax import config as configs
from contrastive_jax import contrastive_loss, native
from contrastive_jax.evaluators import knn, linear_probe
from contrastive_jax.native import compiler
from contrastive_jax.training import compilation, program
from contrastive_jax.training import run as runs
from contrastive_jax.training.replicas import program_of
from contrastive_jax.training.step import make_train_step


def squares(rows):
    matrix = jnp.eye(3, dtype=rows.dtype)
    return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(rows)


@pytest.mark.parametrize(("dtype", "n"), [("float32", 32_769), ("float64", 16_385)])
def test_reductions_are_right(dtype, n):
    """The pattern of jax-ml/jax#39103: under jax's own jit the last row is 0.8 % off in jax 0.10.2."""
    with jax.enable_x64(dtype == "float64"):
        rows = np.zeros((n, 3), dtype)
        rows[:, 0] = np.arange(n)
        found = np.asarray(native.jit(squares)(rows))
    np.testing.assert_allclose(found, np.arange(n, dtype=np.float64) ** 2, rtol=1e-6)


def handed_to_ynnpack(text):
    """The reductions of a compiled program that XLA hands to YNNPACK."""
    bodies = dict(re.findall(r"^%?([\w.\-]+) \(.*?\) -> .*?\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    called = re.findall(r"calls=%?([\w.\-]+).*?__ynn_fusion", text)
    return [name for name in called if re.search(r"\breduce(-window)?\(", bodies[name])]


@pytest.mark.run
def test_no_reduction_of_the_librarys_programs_is_ynnpacks(monkeypatch):
    """Of the train step, kNN and the linear probes: every program that is compiled while they run."""
    texts, compile_ = {}, jax.stages.Lowered.compile

    def compiled(lowered, *args, **kwargs):
        done = compile_(lowered, *args, **kwargs)
        texts[len(texts)] = done.as_text()
        return done

    def call(function, *args, **kwargs):
        if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):
            function.lower(*args, **kwargs).compile()
        return called(function, *args, **kwargs)

    called = compiler.Program.__call__
    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    monkeypatch.setattr(compiler.Program, "__call__", call)
    config = configs.load("configs/digits.py:method=simclr,scale=smoke")
    run = runs.prepare(configs.plain(configs.complete(config)), jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        feed, state = runs.feed_of(run), runs.initial_state(run)
        compilation.compiled_step(program.single(run), feed, state)
    random = np.random.default_rng(0)
    features = [random.normal(size=(n, 16)).astype(np.float32) for n in (4096, 512)]
    labels = [random.integers(0, 3, len(x)) for x in features]
    knn.evaluate(features[0], labels[0], features[1], labels[1])
    linear_probe.sgd(features[0], labels[0], features[1], labels[1], epochs=1, batch_size=256)
    found = {name: handed_to_ynnpack(text) for name, text in texts.items()}
    assert len(texts) > 2 and not any(found.values()), found


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


def test_a_step_is_deterministic_on_a_gpu():
    jax.jit(lambda x: x, compiler_options=compilation.DETERMINISTIC).lower(0.0).compile()  # XLA knows them

    def of_step(platform, deterministic):
        device = types.SimpleNamespace(platform=platform)
        mesh = types.SimpleNamespace(devices=np.array([device], object))
        return compilation.compiler_options(mesh, deterministic)

    assert of_step("gpu", False) == of_step("tpu", True) == of_step("tpu", False) == {}
    assert of_step("gpu", True) == compilation.DETERMINISTIC
    assert of_step("cpu", False) == of_step("cpu", True)


@pytest.mark.parametrize("replicas", sampled([True, False], 1))
def test_a_run_says_whether_its_step_is_deterministic(replicas, monkeypatch):
    asked = []

    def compiled(step, options, *given):
        asked.append(options)

    monkeypatch.setattr(compilation, "compiled", compiled)
    monkeypatch.setattr(compilation, "compiler_options", lambda mesh, deterministic: deterministic)
    config = configs.load("configs/digits.py:method=simclr,scale=smoke")
    for deterministic in (True, False):
        config.train.deterministic = deterministic
        plain = configs.plain(configs.complete(config))
        given = [plain, plain | {"seed": 1}] if replicas else [plain]
        made = program_of(given, jax.devices()[:1])
        with jax.set_mesh(made.mesh):
            compilation.compiled_step(made, made.open_feed(0, print), made.initial_state([None] * len(given)))
    assert asked == [True, False]


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


@pytest.mark.run
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_step_of_an_accelerator_is_untouched(platform, monkeypatch):
    config = configs.load("configs/digits.py:method=moco_v1,scale=smoke")
    run = runs.prepare(configs.plain(configs.complete(config)), jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        feed, state = runs.feed_of(run), runs.initial_state(run)

        def text(traced_for):
            step = make_train_step(run.recipe, feed.take)
            with compiler.tracing_for(traced_for):
                traced = jax.jit(lambda *arrays: step(*arrays)).trace(state, feed.feed(0))
            return traced.lower(lowering_platforms=(platform,)).as_text()

        with_kernels = text(platform)
        monkeypatch.setenv(native.library.SWITCH, "off")
        assert with_kernels == text("cpu")


@pytest.mark.skipif(not compiler.options("cpu"), reason="this jax does not know the option")
@pytest.mark.parametrize("computed_before", [False, True])
def test_importing_a_loss_makes_programs_of_the_users_own_right(computed_before, monkeypatch):
    """XLA reads its flags as it starts, and a flag that comes later is not pretended."""
    code = (
        f"import os, jax\nif {computed_before}: jax.numpy.ones(3).sum()\n"
        "from contrastive_jax import contrastive_loss\n"
        "assert jax.jit(lambda a: contrastive_loss(a, a))(jax.numpy.ones((4, 3))).shape == (8,)\n"
        "print(os.environ.get('XLA_FLAGS'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    affected = compiler.FIRST_AFFECTED <= jax.__version_info__ < compiler.FIRST_MENDED
    flag = compiler.FLAG if affected and not computed_before else None
    assert done.stdout == f"{flag}\n", done.stderr
    assert ("some reductions of your own programs incorrectly" in done.stderr) == (
        affected and computed_before
    )


def test_a_program_of_the_users_own_is_warned_once(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(compiler, "FIRST_MENDED", (99,))
    monkeypatch.setattr(compiler, "_warned", False)
    a = np.ones((4, 3), np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        native.jit(lambda a: contrastive_loss(a, a))(a)
        assert not caught
        for _ in range(2):
            jax.jit(lambda a: contrastive_loss(a, a))(a)
    assert [str(w.message).count("-reduce") for w in caught] == [1] and caught[0].filename == __file__
    monkeypatch.setattr(compiler, "_warned", False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=-reduce")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contrastive_loss(a, a)
