"""A step that does not fit: one sentence, before anything is written."""

import re
import types

import jax
import pytest

from contrastive_jax import config as configs
from contrastive_jax.commands import describe
from contrastive_jax.data import stream
from contrastive_jax.system import limits
from contrastive_jax.training import compilation, cost, loop, recorder
from contrastive_jax.training import run as runs

CONFIG = "configs/digits.py:method=simclr,scale=smoke"
MIB = 2**20


def config(**leaves):
    found = configs.load(CONFIG)
    found.augment = {"preset": "none", "size": 8}
    with found.unlocked():
        found.update_from_flattened_dict(
            {"projector.out": 16, "train.batch_size": 128, "evaluate.final": False} | leaves
        )
    return configs.plain(configs.complete(found))


@pytest.fixture(scope="module")
def one():
    run = runs.prepare(config(), jax.devices()[:1])
    return run, compilation.compiled_from_shapes(run)


def exhausted(*_, **__):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes.")


@pytest.mark.run
def test_a_step_that_does_not_fit_is_refused_before_it_runs(one, monkeypatch, tmp_path):
    run, compiled = one
    needed = cost.count(compiled).memory
    monkeypatch.setattr(cost, "memory_limit", lambda mesh: needed - 4 * MIB)
    monkeypatch.setattr(loop, "compiled_step", lambda *_: (compiled, 0.0))
    message = r"^train\.batch_size=128 does not fit: .* needs .* MiB on each device, which has .*train\.microbatches"
    with pytest.raises(cost.OutOfMemory, match=message) as error:
        loop.train(config(), tmp_path, quiet=True, devices=jax.devices()[:1])
    assert "\n" not in str(error.value) and not list(tmp_path.glob("checkpoints/[0-9]*"))
    monkeypatch.setattr(cost, "memory_limit", lambda mesh: needed)
    cost.check_memory(run, compiled)


@pytest.mark.run
def test_micro_batches_that_fit_are_found_by_compiling(one, monkeypatch):
    (run, compiled), tried = one, []

    def of_less_memory(smaller):
        """Two micro-batches need as much as none, four hardly anything."""
        tried.append(smaller.settings.train.microbatches)
        return compiled if tried == [2] else jax.jit(lambda x: x).lower(1.0).compile()

    monkeypatch.setattr(describe.compilation, "compiled_from_shapes", of_less_memory)
    counted = cost.count(compiled)
    limit = counted.memory - counted.temporary // 5
    monkeypatch.setattr(cost, "memory_limit", lambda mesh: limit)
    said = describe.microbatches_that_fit(run, compiled, lambda line: None)
    assert tried == [2, 4] and re.match(
        r"fits: train\.microbatches=4, \S+ MiB of \S+ MiB on each device", said
    )
    monkeypatch.setattr(cost, "memory_limit", lambda mesh: counted.memory)  # others use the device
    assert describe.microbatches_that_fit(run, compiled, lambda line: None) is None


def test_the_memory_of_a_container_is_its_limit(tmp_path, monkeypatch):
    own, none = tmp_path / "memory.max", tmp_path / "max"
    none.write_text("max\n")
    monkeypatch.setattr(limits, "CGROUPS", (str(none), str(own)))
    of_machine = limits.memory()
    own.write_text(f"{3 * MIB}\n")
    assert limits.memory() == 3 * MIB < of_machine
    run = runs.prepare(config(), jax.devices()[:2])
    assert cost.memory_limit(run.mesh) == 3 * MIB // 2


def test_a_run_of_many_hours_on_a_cpu_is_announced(monkeypatch):
    monkeypatch.setattr(cost, "_cpu_flops", lambda: 1e11)
    long, short = (describe.prepared(configs.resolve(c))[0] for c in ("flatclr_imagenet", "digits"))
    assert "250,228 steps take about 17,000 hours" in cost.warn_long(long, long.total_steps)
    assert "take about 35,000 hours" in cost.warn_long(long, long.total_steps, together=2)
    assert cost.warn_long(short, short.total_steps) is None
    assert cost.warn_long(long, 1) is None
    on_gpu = long._replace(
        mesh=types.SimpleNamespace(
            devices=types.SimpleNamespace(flat=[types.SimpleNamespace(platform="gpu")])
        )
    )
    assert cost.warn_long(on_gpu, long.total_steps) is cost.expected_seconds(on_gpu) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00123, "1.2 ms"),
        (0.0235, "24 ms"),
        (3.04, "3.0 seconds"),
        (130, "2.2 minutes"),
        (9.9e7, "28,000 hours"),
    ],
)
def test_rough_times(seconds, text):
    assert cost.rough_time(seconds) == text


@pytest.mark.parametrize("devices", [1, 4])
def test_streamed_batches_that_wait_are_counted(devices):
    found = {}
    for mode in ("off", "on"):
        images = {"name": "synthetic", "like": "cifar10", "stream": mode}
        run = runs.prepare(config(**{"augment.size": 32}) | {"data": images}, jax.devices()[:devices])
        found[mode] = cost.feed_memory(run)
    image = 2 * 32 * 32 * 3 + 4 * 4  # two views; label, id, group and epoch
    assert found == {"off": 0, "on": (cost.IN_FLIGHT + stream.AHEAD) * 128 * image // devices}


def test_a_few_steps_are_on_the_device_at_once():
    """Each holds its batch there; the host would have sent all up to the next log point."""
    waited = []
    own = types.SimpleNamespace(_pending=[], _start=-9)

    class Values:
        def __init__(self, step):
            self.step = step

        def block_until_ready(self):
            waited.append(self.step)

    for step in range(12):
        recorder.Recorder.record(own, step, types.SimpleNamespace(values=Values(step)))
        assert step - max(waited, default=-1) <= cost.IN_FLIGHT
    assert waited == list(range(12 - cost.IN_FLIGHT))


@pytest.mark.run
@pytest.mark.parametrize("known", [True, False], ids=["running", "compiling"])
def test_the_runtimes_error_is_one_sentence(one, known):
    run, compiled = one
    with pytest.raises(cost.OutOfMemory, match="does not fit: the step .*more than the free memory") as error:
        with cost.translate_errors(run, compiled if known else None):
            exhausted()
    assert "RESOURCE" not in str(error.value) and ("MiB" in str(error.value)) == known
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), cost.translate_errors(run, compiled):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
