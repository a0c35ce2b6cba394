"""A step that does not fit: one sentence, before anything is written."""

import types

import jax
import pytest

from contrastive_jax import config as configs
from contrastive_jax.data import stream
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
