"""A step that does not fit: one sentence, and what it proposes does fit."""

import re

import jax
import pytest

from contrastive_jax import config as configs
from contrastive_jax.training import compilation, loop, memory
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


def proposed(sentence):
    """(batch, microbatches)"""
    batch = re.search(r"a batch of (\d+)|does is (\d+)", sentence)
    parts = re.search(r"microbatches=(\d+) would", sentence)
    return int(batch[1] or batch[2]), int(parts[1])


def needs(run, **leaves):
    other = runs.prepare(config(**leaves), jax.devices()[:1], source=run.source)
    return compilation.cost(compilation.compiled_from_shapes(other)).memory


def test_what_is_proposed_fits_and_not_much_more_would(one):
    """By the compiled programs of the proposals themselves."""
    run, compiled = one
    cost = compilation.cost(compiled)
    there = int(cost.arguments + cost.results + 0.55 * cost.temporary)
    batch, parts = proposed(memory.sentence(run, cost, there))
    assert needs(run, **{"train.batch_size": batch}) <= 1.03 * there
    assert needs(run, **{"train.batch_size": batch + 24}) > there
    assert needs(run, **{"train.microbatches": parts}) <= 1.03 * there


def test_a_step_is_refused_before_it_runs(one, monkeypatch, tmp_path):
    _, compiled = one
    needed = compilation.cost(compiled).memory
    monkeypatch.setattr(memory, "limit", lambda mesh: needed - 4 * MIB)
    with pytest.raises(
        memory.OutOfMemory, match=r"^train.batch_size=128 does not fit: the step needs"
    ) as error:
        loop.train(config(), tmp_path, quiet=True, devices=jax.devices()[:1])
    assert "\n" not in str(error.value) and proposed(str(error.value))
    monkeypatch.setattr(memory, "limit", lambda mesh: needed)
    memory.check(*one)


def test_the_runtimes_error_while_compiling_is_answered(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "compiled_step", exhausted)
    with pytest.raises(memory.OutOfMemory, match="train.microbatches=2 would") as error:
        loop.train(config(), tmp_path, quiet=True, devices=jax.devices()[:1])
    batch, _ = proposed(str(error.value))
    assert 64 < batch < 128


def test_the_runtimes_error_at_the_first_step_is_answered(one, monkeypatch, tmp_path):
    _, compiled = one

    class Step:
        cost_analysis, memory_analysis, as_text = (
            compiled.cost_analysis, compiled.memory_analysis, compiled.as_text,
        )  # fmt: skip
        __call__ = exhausted

    monkeypatch.setattr(loop, "compiled_step", lambda *_: (Step(), 0.0))
    with pytest.raises(memory.OutOfMemory, match="does not fit") as error:
        loop.train(config(), tmp_path, quiet=True, devices=jax.devices()[:1])
    assert "RESOURCE" not in str(error.value)


def test_a_device_that_has_more_than_the_step_asked_for_is_not_said_to_have_less(one, monkeypatch):
    """Others use the device, or its memory is in pieces: what there is was not measured, so no figure is given."""
    run, compiled = one
    for limit in (2 * compilation.cost(compiled).memory, None):
        monkeypatch.setattr(memory, "limit", lambda mesh, limit=limit: limit)
        with pytest.raises(memory.OutOfMemory, match="on each device, more than is free"):
            with memory.answered(run, compiled):
                exhausted()


def test_an_eighth_of_a_small_batch_on_many_devices_is_a_multiple_of_them(monkeypatch):
    asked = []

    def smaller(config, *_, **__):
        asked.append(config["train"]["batch_size"])
        raise ValueError("norm.groups is 8")

    run = runs.prepare(config(**{"train.batch_size": 32}), jax.devices()[:8])
    monkeypatch.setattr(memory, "prepare", smaller)
    with pytest.raises(
        memory.OutOfMemory, match="^the step does not fit in a device's memory: take a smaller"
    ):
        with memory.answered(run):
            exhausted()
    assert asked == [8]


def test_another_error_of_the_runtime_stays_what_it_is(one):
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), memory.answered(*one):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_norm_groups_have_no_micro_batches_and_weights_alone_may_not_fit(one):
    run, compiled = one
    cost = compilation.cost(compiled)
    grouped = run._replace(config=run.config | {"norm": {"scope": "groups", "groups": 8}})
    assert "microbatches" not in memory.sentence(grouped, cost, cost.memory - 4 * MIB)
    assert "No batch does" in memory.sentence(run, cost, cost.arguments // 2)
