"""Feeding the step from the device: the order of the rule, no recompilation, no communication."""

import contextlib
import re

import jax
import numpy as np
import pytest

from contrastive_jax import data, sharding
from contrastive_jax.data.order import rows

N, BATCH, SEED = 21, 8, 3
random = np.random.default_rng(0)
SPLIT = data.Split(
    random.integers(0, 256, (N, 3, 2, 1), np.uint8), random.integers(-1, 5, N), random.integers(0, 9, N)
)
FIELDS = ("image", "label", "id", "group", "epoch")
COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast|reduce-scatter"


def mesh_of(devices):
    return sharding.make_mesh(jax.devices()[:devices]) if devices else None


def expected(step, split=SPLIT, batch=BATCH):
    index, epoch = rows(SEED, len(split), step * batch, batch)
    return split.image[index], split.label[index], index, split.group[index], epoch


def batches(resident, steps):
    """What a train loop does: feed on the host, take in the compiled step."""
    take = jax.jit(resident.take)
    for step in steps:
        batch = take(resident.feed(step), np.int32(step))
        yield step, [np.asarray(getattr(batch, field)) for field in FIELDS]


@pytest.mark.parametrize("devices", [0, 1, 8], ids=["no mesh", "1 device", "8 devices"])
def test_batches_follow_the_rule_on_any_number_of_devices(devices):
    """Three chunks of three steps; 21 = 2 * 8 + 5, so that most epochs end inside a batch."""
    mesh = mesh_of(devices)
    resident = data.Resident(SPLIT, seed=SEED, batch_size=BATCH, mesh=mesh)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        for step, got in batches(resident, range(9)):
            for field, value, want in zip(FIELDS, got, expected(step), strict=True):
                np.testing.assert_array_equal(value, want, err_msg=f"{field} of step {step}")
                assert value.dtype == (np.uint8 if field == "image" else np.int32)


def test_a_batch_that_straddles_epochs():
    resident = data.Resident(SPLIT, seed=SEED, batch_size=BATCH)
    seen = [got for _, got in batches(resident, range(6))]
    epoch = np.concatenate([batch[4] for batch in seen])
    number = np.concatenate([batch[2] for batch in seen])
    assert seen[2][4].tolist() == [0] * 5 + [1] * 3  # rows 16..20 end epoch 0
    for e in (0, 1):
        assert sorted(number[epoch == e].tolist()) == list(range(N))


@pytest.mark.parametrize("n, batch", [(3, 8), (8, 8), (1, 4)])
def test_batches_no_smaller_than_the_set(n, batch):
    split = SPLIT[:n]
    resident = data.Resident(split, seed=SEED, batch_size=batch)
    for step, got in batches(resident, range(3)):
        for value, want in zip(got, expected(step, split, batch), strict=True):
            np.testing.assert_array_equal(value, want)


@pytest.mark.parametrize("start", [1, 2, 3, 7])
def test_resuming_at_a_step_gives_the_same_rows(start):
    uninterrupted = dict(batches(data.Resident(SPLIT, seed=SEED, batch_size=BATCH), range(9)))
    for step, got in batches(data.Resident(SPLIT, seed=SEED, batch_size=BATCH), range(start, 9)):
        for a, b in zip(got, uninterrupted[step], strict=True):
            np.testing.assert_array_equal(a, b)


def test_nothing_recompiles_and_the_order_is_uploaded_once_a_chunk():
    compiled, uploads = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    mesh = mesh_of(8)
    resident = data.Resident(SPLIT, seed=SEED, batch_size=BATCH, mesh=mesh)
    put = resident._put
    resident._put = lambda array, spec: uploads.append(array.shape) or put(array, spec)
    take = jax.jit(lambda arrays, step: resident.take(arrays, step))
    step_of = {
        step: jax.device_put(np.int32(step), sharding.named(mesh, sharding.REPLICATED)) for step in range(12)
    }
    with jax.set_mesh(mesh):
        before = len(compiled)
        for step in range(12):
            arrays = resident.feed(step)
            with jax.transfer_guard("disallow"):
                take(arrays, step_of[step])
            if step == 0:
                first = len(compiled)
                assert first > before
    assert len(compiled) == first
    assert uploads == [(3, 8)] * 2 * 4  # index and epoch, four chunks


def test_the_compiled_take_moves_nothing_between_devices():
    mesh = mesh_of(8)
    resident = data.Resident(SPLIT, seed=SEED, batch_size=BATCH, mesh=mesh)
    with jax.set_mesh(mesh):
        compiled = jax.jit(resident.take).lower(resident.feed(0), np.int32(0)).compile()
        assert not re.findall(COLLECTIVES, compiled.as_text())
        batch = compiled(resident.feed(0), np.int32(0))
        # The search above finds a collective where there is one.
        moved = jax.jit(lambda b: sharding.replicate(b.image)).lower(batch).compile().as_text()
        assert re.findall(COLLECTIVES, moved)
    for field in FIELDS:
        array = getattr(batch, field)
        assert array.sharding.spec[0] == sharding.AXIS and array.addressable_shards[0].data.shape[0] == 1


@pytest.mark.parametrize("batch_size", [0, -8, 12])
def test_a_batch_that_the_devices_cannot_share_is_refused(batch_size):
    with pytest.raises(
        ValueError, match=f"batch_size is {batch_size}; it must be a positive multiple of the 8 devices"
    ):
        data.Resident(SPLIT, seed=SEED, batch_size=batch_size, mesh=mesh_of(8))


def test_a_chunk_beyond_32_bits_of_examples():
    step = 2**31 // BATCH * 5
    resident = data.Resident(SPLIT, seed=SEED, batch_size=BATCH)
    ((_, got),) = batches(resident, [step])
    for value, want in zip(got, expected(step), strict=True):
        np.testing.assert_array_equal(value, want)
