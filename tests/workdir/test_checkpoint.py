"""What is restored is what was saved, bit for bit; what is damaged is not restored, and is said."""

import dataclasses
import itertools
import json
import resource
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from contrastive_jax import distributed, sharding, types
from contrastive_jax.training import resume
from contrastive_jax.workdir import checkpoint
from contrastive_jax.workdir.checkpoint import Checkpoints

KERNEL = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
NOISE = np.random.default_rng(0).integers(
    0, 2**32, 512, np.uint32
)  # nothing for zstd: found in the file as is


def make_state(step=0):
    """A small TrainState with every dtype and kind of container that a run may carry."""
    params = {
        "encoder": {
            "conv": {"kernel": jnp.asarray(KERNEL) + step, "bias": jnp.arange(4, dtype=jnp.bfloat16)}
        },
        "projector": {},
    }
    return types.TrainState(
        step=jnp.int32(step),
        seed=jnp.uint32(3),
        params=params,
        stats={"encoder": {"bn": {"mean": jnp.full(3, 0.5, jnp.float16)}}},
        optimizer=optax.adam(1e-3).init(params),
        target=(),
        candidates={
            "queue": jnp.arange(32.0).reshape(16, 2),
            "full": jnp.array([True, False]),
            "bytes": jnp.arange(7, dtype=jnp.uint8),
            "signed": jnp.array([-1, -(2**31)], jnp.int32),
            "noise": jnp.asarray(NOISE) + jnp.uint32(step),
            "none": None,
        },
        temperature=jnp.float32(0.1),
    )


def bits(tree):
    return jax.tree.map(lambda x: (x.dtype, x.shape, np.asarray(x).tobytes()), tree)


def on_eight(state):
    """The state on the mesh of all devices: replicated, the queue's rows spread."""
    mesh = sharding.make_mesh()
    state = jax.device_put(state, sharding.named(mesh, sharding.REPLICATED))
    queue = jax.device_put(state.candidates["queue"], sharding.named(mesh, sharding.ROWS))
    return dataclasses.replace(state, candidates=state.candidates | {"queue": queue})


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    with Checkpoints(directory) as checkpoints:
        for step in (1, 2):
            assert checkpoints.save(step, make_state(step), {"config": {"seed": step}})
    return directory


@pytest.fixture
def directory(two_steps, tmp_path):
    """A copy of two intact checkpoints, to be damaged."""
    return shutil.copytree(two_steps, tmp_path / "checkpoints")


# ------------------------------------------------------------------------------------------ fingerprints


def test_fingerprint_does_not_depend_on_the_layout_and_tells_shape_and_dtype():
    state = make_state()
    assert checkpoint.fingerprint(state) == checkpoint.fingerprint(on_eight(state))
    with jax.set_mesh(sharding.make_mesh()):
        assert checkpoint.fingerprint(state) == checkpoint.fingerprint(on_eight(state))
    zeros = [jnp.zeros(4), jnp.zeros((2, 2)), jnp.zeros(4, jnp.int32), {"a": jnp.zeros(4)}]
    assert len({checkpoint.fingerprint(z) for z in zeros}) == len(zeros)


@pytest.mark.parametrize(
    "dtype",
    "bool uint8 int8 float16 bfloat16 int32 float32 int64 float64 complex64 complex128 float8_e4m3fn".split(),
)
def test_any_flipped_bit_changes_the_fingerprint(dtype):
    with jax.enable_x64(True):
        data = np.random.default_rng(1).integers(0, 2, 64).astype(bool) if dtype == "bool" else KERNEL[0, :6]
        array = np.asarray(jnp.asarray(data).astype(dtype))
        raw = array.view(np.uint8)
        flipped = []
        for position in range(0, raw.size, 3):
            for bit in range(1 if dtype == "bool" else 8):
                other = raw.copy()
                other[position] ^= 1 << bit
                flipped.append(other.view(array.dtype))
        sums = jax.jit(jax.vmap(checkpoint._weighted_sum))(jnp.asarray(np.stack([array, *flipped])))
        assert len(flipped) >= 16 and (sums[1:] != sums[0]).all()
        assert checkpoint._in_memory(jnp.asarray(array)) == (
            sums[0],
            np.isfinite(array.astype(complex)).all(),
        )


def test_the_fingerprint_is_the_written_sum():
    words = KERNEL.view(np.uint32).ravel().astype(object)
    expected = int((words * (2 * np.arange(words.size) + 1)).sum() % 2**32)
    assert int(checkpoint._weighted_sum(jnp.asarray(KERNEL))) == expected


@pytest.mark.parametrize(
    "leaf, words", [(1.0, "a float"), (np.zeros(2), "a ndarray"), (jax.random.key(0), "key_data")]
)
def test_a_leaf_that_is_no_array_is_refused(leaf, words):
    with pytest.raises(TypeError, match=f"inner/x of the state .*{words}"):
        checkpoint.fingerprint({"inner": {"x": leaf}})


# -------------------------------------------------------------------------------------------- round trips


def test_round_trip_bit_for_bit(two_steps):
    with Checkpoints(two_steps) as checkpoints:
        assert checkpoints.steps() == [1, 2]
        state, step, meta = checkpoints.restore(make_state(), report=pytest.fail)
        assert checkpoints.read_meta() == (2, {"config": {"seed": 2}})
    assert (step, meta) == (2, {"config": {"seed": 2}})
    assert jax.tree.structure(state) == jax.tree.structure(make_state())
    assert bits(state) == bits(make_state(2))


@pytest.mark.parametrize(
    "written, read", [(make_state, on_eight), (on_eight, make_state)], ids=["1to8", "8to1"]
)
def test_devices_may_change(written, read, tmp_path):
    state = make_state(5)
    like = on_eight(make_state()) if read is on_eight else make_state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, on_eight(state) if written is on_eight else state, {})
        with jax.set_mesh(sharding.make_mesh()):
            restored, _, _ = checkpoints.restore(like, report=pytest.fail)
    assert bits(restored) == bits(state)
    jax.tree.map(lambda r, l: np.testing.assert_equal(r.sharding, l.sharding), restored, like)


def test_a_checkpoint_older_than_a_field_of_the_state_is_restored_where_the_field_is_empty(tmp_path):
    names = [f.name for f in dataclasses.fields(types.TrainState) if f.name != "gradient_snr"]
    older = dataclasses.make_dataclass("Older", [(name, object) for name in names])
    jax.tree_util.register_dataclass(older, data_fields=names, meta_fields=[])
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, older(**{name: getattr(make_state(1), name) for name in names}), {})
        state, _, _ = checkpoints.restore(make_state(), report=pytest.fail)
        assert jax.tree.structure(state) == jax.tree.structure(make_state())
        assert bits(state) == bits(make_state(1))
        with pytest.raises(ValueError, match="gradient_snr/mean is absent in the checkpoint and float32"):
            checkpoints.restore(dataclasses.replace(make_state(), gradient_snr={"mean": jnp.zeros(2)}))


def test_restore_needs_shapes_only(two_steps):
    with Checkpoints(two_steps, read_only=True) as checkpoints:
        state, _, _ = checkpoints.restore(jax.eval_shape(make_state), report=pytest.fail)
    assert bits(state) == bits(make_state(2))


def test_reading_warns_of_nothing(two_steps, caplog):
    with Checkpoints(two_steps, read_only=True) as checkpoints:
        checkpoints.restore(jax.eval_shape(make_state), report=pytest.fail)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("place", [lambda s: s, on_eight], ids=["1", "8"])
def test_a_save_is_of_its_moment_while_training_goes_on(place, tmp_path):
    """The state is donated and overwritten right after each save, while orbax still writes."""

    @jax.jit
    def noise(key):
        return {"w": jax.random.normal(key, (512, 512)), "v": jax.random.normal(key, (64, 512))}

    mesh = sharding.make_mesh(jax.devices()[: 8 if place is on_eight else 1])
    state = jax.device_put(noise(jax.random.key(0)), sharding.named(mesh, sharding.REPLICATED))
    advance = jax.jit(lambda s: jax.tree.map(lambda x: x * 1.5 + 1, s), donate_argnums=0)
    expected = {}
    with Checkpoints(tmp_path, keep_last=4) as checkpoints:
        for step in range(4):
            expected[step] = bits(jax.tree.map(jnp.copy, state))
            checkpoints.save(step, state, {})
            for _ in range(5):
                state = advance(state)
        for step in (3, 2, 1, 0):
            restored, found, _ = checkpoints.restore(state, report=pytest.fail)
            assert found == step and bits(restored) == expected[step]
            shutil.rmtree(tmp_path / str(step))
            checkpoints._manager.reload()


def test_part_of_another_run(two_steps):
    with Checkpoints(two_steps, read_only=True) as checkpoints:
        part, step, meta = checkpoints.restore_part(["params", "stats/encoder"], report=pytest.fail)
        empty, _, _ = checkpoints.restore_part(["target", "params/projector"], report=pytest.fail)
        with pytest.raises(ValueError, match=r"no 'params/encodr' \(did you mean 'params/encoder'\?\)"):
            checkpoints.restore_part(["params/encodr"])
        everywhere = sharding.named(sharding.make_mesh(), sharding.REPLICATED)
        spread, _, _ = checkpoints.restore_part(["temperature"], sharding=everywhere, report=pytest.fail)
    state = make_state(2)
    assert (step, meta["config"]["seed"]) == (2, 2)
    assert bits(part) == bits({"params": state.params, "stats": state.stats})
    assert empty == {"target": {}, "params": {"projector": {}}}
    assert spread["temperature"].sharding == everywhere and spread["temperature"] == state.temperature


def test_part_of_what_has_a_slash_in_its_names(tmp_path):
    """As Haiku's modules have."""
    state = {"params": {"encoder": {"mlp/~/linear_0": {"w": jnp.arange(3.0)}}}}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        part, _, _ = checkpoints.restore_part(["params/encoder"], report=pytest.fail)
    assert bits(part) == bits(state)


def test_part_of_an_earlier_step(two_steps):
    with Checkpoints(two_steps, read_only=True) as checkpoints:
        part, step, meta = checkpoints.restore_part(["params"], step=1, report=pytest.fail)
        with pytest.raises(FileNotFoundError, match="no checkpoint of step 3; it has 1, 2"):
            checkpoints.restore_part(["params"], step=3)
    assert (step, meta["config"]["seed"]) == (1, 1) and bits(part) == bits({"params": make_state(1).params})


# ------------------------------------------------------------------------------------------------- damage


def data_file(step_directory):
    """The file that holds the bytes of the noise, and where in it they are."""
    needle = (NOISE + np.uint32(int(step_directory.name))).tobytes()[64:96]
    found = [(f, f.read_bytes().find(needle)) for f in step_directory.rglob("*") if f.is_file()]
    ((file, position),) = [(f, p) for f, p in found if p >= 0]
    return file, position


def flip(file, position):
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(bytes(content))


def flip_data(step):
    flip(*data_file(step))


def cut_data(step):
    file, position = data_file(step)
    file.write_bytes(file.read_bytes()[: position + 100])


def delete_data(step):
    data_file(step)[0].unlink()


def empty_structure(step):
    (step / "state" / "_METADATA").write_text("")


def empty_meta(step):
    (step / "meta" / "metadata").write_text("")


def alter_meta(step):
    file = step / "meta" / "metadata"
    file.write_text(file.read_text().replace('"seed": 2', '"seed": 3', 1))


def delete_meta(step):
    shutil.rmtree(step / "meta")


DAMAGES = {
    flip_data: "candidates/noise differ from the saved arrays",
    cut_data: "its arrays cannot be read",
    delete_data: "its arrays cannot be read",
    empty_structure: "its arrays cannot be read",
    empty_meta: "its metadata cannot be read",
    alter_meta: "its metadata was changed",
    delete_meta: "its metadata cannot be read",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_checkpoint_is_reported_moved_aside_and_replaced_by_the_previous(damage, directory):
    damage(directory / "2")
    said = []
    with Checkpoints(directory) as checkpoints:
        state, step, meta = checkpoints.restore(make_state(), report=said.append)
        assert (step, meta, bits(state)) == (1, {"config": {"seed": 1}}, bits(make_state(1)))
        assert len(said) == 1 and "\n" not in said[0]
        assert "step 2 is damaged" in said[0] and DAMAGES[damage] in said[0] and "damaged-2" in said[0]
        assert checkpoints.steps() == [1] and (directory / "damaged-2" / "state").exists()
        # The run comes to step 2 again, and its checkpoint is damaged again.
        assert checkpoints.save(2, make_state(2), {"config": {"seed": 2}})
        checkpoints.wait()
        damage(directory / "2")
        assert checkpoints.restore(make_state(), report=said.append)[1] == 1
    assert (directory / "damaged-2-2").exists() and "damaged-2-2" in said[1]
    with Checkpoints(directory) as checkpoints:
        assert checkpoints.steps() == [1]


def test_a_damaged_part_is_not_restored_but_damage_elsewhere_does_not_matter(directory):
    flip_data(directory / "2")
    said = []
    with Checkpoints(directory, read_only=True) as checkpoints:
        assert checkpoints.restore_part(["stats"], report=pytest.fail)[1] == 2
        part, step, _ = checkpoints.restore_part(["candidates"], report=said.append)
        assert step == 1 and bits(part["candidates"]) == bits(make_state(1).candidates | {"none": {}})
    assert "step 2 is damaged" in said[0]
    assert (directory / "2").exists() and not (directory / "damaged-2").exists()  # another run's: not ours


def test_reading_beside_a_run_that_removes_its_older_checkpoints(tmp_path):
    """They are gone, not damaged: the reader had listed them when it began."""
    with Checkpoints(tmp_path, keep_last=1) as run:
        run.save(1, make_state(1), {"config": {}})
        run.wait()
        with Checkpoints(tmp_path, read_only=True) as reader, Checkpoints(tmp_path, read_only=True) as other:
            assert reader.steps() == other.steps() == [1]
            run.save(2, make_state(2), {"config": {}})
            run.wait()
            assert reader.restore_part(["stats"], report=pytest.fail)[1] == 2 and other.read_meta()[0] == 2


def test_double_precision_is_not_damage(tmp_path):
    with jax.enable_x64(True), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"params": {"w": jnp.ones(2, "float64")}}, {"config": {}})
    with (
        Checkpoints(tmp_path, read_only=True) as checkpoints,
        pytest.raises(
            ValueError, match=r"has 64-bit arrays, float64\[2\] \(params/w\): set JAX_ENABLE_X64=1"
        ),
    ):
        checkpoints.restore_part(["params"])


def test_a_damaged_step_that_was_asked_for_is_not_replaced_by_another(directory):
    flip_data(directory / "2")
    with (
        Checkpoints(directory) as checkpoints,
        pytest.raises(
            checkpoint.DamagedCheckpoints, match="the checkpoint in .*step 2: candidates/noise differ"
        ),
    ):
        checkpoints.restore_part(["candidates"], step=2, report=pytest.fail)
    assert (directory / "2").exists()


def test_when_all_are_damaged_nothing_is_restored_and_nothing_is_touched(directory):
    flip_data(directory / "1")
    empty_meta(directory / "2")
    before = sorted(str(p) for p in directory.rglob("*"))
    with Checkpoints(directory) as checkpoints:
        with pytest.raises(
            checkpoint.DamagedCheckpoints, match="step 2: its metadata.*step 1: candidates/noise differ"
        ) as error:
            checkpoints.restore(make_state(), report=pytest.fail)
        assert checkpoints.steps() == [1, 2]
    assert "\n" not in str(error.value) and sorted(str(p) for p in directory.rglob("*")) == before


@pytest.mark.parametrize(
    "change, words",
    [
        (
            dict(temperature=jnp.zeros(2)),
            "temperature is float32[] in the checkpoint and float32[2] in the run",
        ),
        (
            dict(temperature=jnp.bfloat16(0)),
            "temperature is float32[] in the checkpoint and bfloat16[] in the run",
        ),
        (
            dict(target={"encoder": jnp.zeros(2)}),
            "target/encoder is absent in the checkpoint and float32[2] in the run (2 leaves",
        ),
    ],
)
def test_a_changed_structure_is_refused_and_is_not_damage(change, words, directory):
    with Checkpoints(directory) as checkpoints:
        with pytest.raises(ValueError) as error:
            checkpoints.restore(dataclasses.replace(make_state(), **change), report=pytest.fail)
        assert words in str(error.value) and checkpoints.steps() == [1, 2]


KILLED = """
import os, signal, sys
import jax.numpy as jnp
from contrastive_jax.workdir.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(1, {"w": jnp.ones(4)}, {})
checkpoints.wait()
checkpoints.save(2, {"w": jnp.arange(2**24, dtype=jnp.float32)}, {})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_save_leaves_is_ignored_and_cleaned(tmp_path):
    directory = tmp_path / "checkpoints"
    process = subprocess.run([sys.executable, "-c", KILLED, directory], stderr=subprocess.PIPE, timeout=120)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert any("tmp" in path.name for path in directory.iterdir())
    with Checkpoints(directory, read_only=True) as checkpoints:
        assert checkpoints.steps() == [1]
    assert any("tmp" in path.name for path in directory.iterdir())
    with Checkpoints(directory) as checkpoints:
        assert checkpoints.restore({"w": jnp.zeros(4)}, report=pytest.fail)[1] == 1
        assert checkpoints.save(3, {"w": jnp.zeros(4)}, {})
    assert sorted(path.name for path in directory.iterdir()) == ["1", "3"]


# ----------------------------------------------------------------------------------------------- policies


def test_retention_keeps_the_last_and_every_mth(tmp_path):
    with Checkpoints(tmp_path, keep_last=2, keep_every=4) as checkpoints:
        for step in range(1, 8):
            checkpoints.save(step, {"w": jnp.float32(step)}, {})
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [4, 6, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "6", "7"]


def test_a_step_is_written_once_and_in_order(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.save(5, {"w": jnp.float32(5)}, {})
        assert not checkpoints.save(5, {"w": jnp.float32(6)}, {})
        with pytest.raises(ValueError, match="step 4 is older than the latest checkpoint, 5"):
            checkpoints.save(4, {"w": jnp.float32(4)}, {})
        assert checkpoints.restore({"w": jnp.float32(0)})[0]["w"] == 5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_state_that_is_not_finite_is_never_written(bad, tmp_path):
    state = make_state(1)
    params = {
        "encoder": {"conv": state.params["encoder"]["conv"] | {"bias": jnp.array([1, bad], jnp.bfloat16)}}
    }
    broken = dataclasses.replace(state, params=params)
    with Checkpoints(tmp_path) as checkpoints:
        for one_or_eight in (broken, on_eight(broken)):
            with pytest.raises(
                checkpoint.NonFiniteState, match="step 1 is not finite in params/encoder/conv/bias"
            ):
                checkpoints.save(1, one_or_eight, {})
        assert checkpoints.steps() == []
    assert list(tmp_path.iterdir()) == []


def test_there_is_nothing_to_restore_in_a_new_directory(tmp_path):
    with Checkpoints(tmp_path / "new") as checkpoints:
        assert checkpoints.restore(make_state()) is None and checkpoints.read_meta() is None
        with pytest.raises(FileNotFoundError, match="has no checkpoint"):
            checkpoints.restore_part(["params"])


def test_bad_directories_and_options_get_one_sentence(tmp_path, two_steps):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(NotADirectoryError, match="file is a file"):
        Checkpoints(file)
    with pytest.raises(ValueError, match=r"a.udcfc' cannot be read in this locale: its name is not UTF-8"):
        Checkpoints(tmp_path / "a\udcfc")
    with pytest.raises(PermissionError, match="cannot be written"):
        Checkpoints(file / "checkpoints")
    with pytest.raises(FileNotFoundError, match="no checkpoint directory"):
        Checkpoints(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()
    with pytest.raises(ValueError, match="checkpoint.keep_last is 0"):
        Checkpoints(tmp_path, keep_last=0)
    with pytest.raises(ValueError, match="checkpoint.keep_every is -1"):
        Checkpoints(tmp_path, keep_every=-1)
    with Checkpoints(two_steps, read_only=True) as checkpoints:
        with pytest.raises(PermissionError, match="read-only"):
            checkpoints.save(9, make_state(9), {})


def test_a_meta_that_json_cannot_hold_is_refused_before_writing(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match="must be JSON"):
            checkpoints.save(1, {"w": jnp.ones(2)}, {"config": object()})
        checkpoints.save(1, {"w": jnp.ones(2)}, {"pair": (1, 2), "loss": float("nan")})
        _, meta = checkpoints.read_meta()
        assert meta["pair"] == [1, 2] and np.isnan(meta["loss"])
    record = json.loads((tmp_path / "1" / "meta" / "metadata").read_text())
    assert record["versions"]["jax"] == jax.__version__
    assert record["fingerprint"] == checkpoint.fingerprint({"w": jnp.ones(2)})


def test_a_full_disk_is_said_in_one_sentence_and_the_next_save_goes_on(tmp_path):
    noise = {"w": jnp.asarray(np.random.default_rng(0).integers(0, 2**32, 2**18, np.uint32))}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    good = "none"
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, hard))  # a file of 1 MiB does not fit
            try:
                with pytest.raises(checkpoint.NotWritten) as error:
                    checkpoints.save(step, noise, {})
                    checkpoints.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert str(error.value).startswith(
                f"the checkpoint of step {step} could not be written to {tmp_path}"
            )
            assert f"Last good checkpoint: {good};" in str(error.value) and "\n" not in str(error.value)
            assert checkpoints.steps() == list(range(1, step))
            assert checkpoints.save(step, noise, {})
            assert bits(checkpoints.restore(noise, report=pytest.fail)[0]) == bits(noise)
            good = f"step {step}"


def test_a_clock_that_jumps_by_days_ends_no_write(tmp_path, monkeypatch):
    true, jumps = time.time, itertools.cycle([0, 86400, -86400, 3 * 86400])
    state = make_state(1)
    with Checkpoints(tmp_path) as checkpoints:
        monkeypatch.setattr(time, "time", lambda: true() + next(jumps))
        for step in (1, 2, 3):
            checkpoints.save(step, make_state(step), {})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2, 3]
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore(state, report=pytest.fail)[1] == 3


QUIET = """
import logging, resource, sys
import jax.numpy as jnp
import numpy as np
from absl import logging as absl_logging
from contrastive_jax.workdir import checkpoint
absl_logging.use_absl_handler()
absl_logging.set_verbosity(absl_logging.ERROR)
if sys.argv[2] == "quiet":
    checkpoint.quiet()
noise = np.random.default_rng(0).integers(0, 2**32, (60, 2**12), np.uint32)
with checkpoint.Checkpoints(sys.argv[1]) as checkpoints:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**13, resource.RLIM_INFINITY))
    try:
        checkpoints.save(1, {str(i): jnp.asarray(row) for i, row in enumerate(noise)}, {})
        checkpoints.wait()
    except checkpoint.NotWritten as error:
        print(error)
absl_logging.error("somebody else's")
logging.getLogger("asyncio").error("nor this")
"""


@pytest.mark.parametrize("quiet", [True, False])
def test_of_a_write_that_failed_nothing_is_printed_but_what_is_raised(quiet, tmp_path):
    """Orbax logs a stack trace for it, and TensorStore one for every array that was under way."""
    arguments = [sys.executable, "-c", QUIET, tmp_path, "quiet" if quiet else "loud"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and len(done.stdout.strip().splitlines()) == 1, done.stderr
    *told, before, last = [line for line in done.stderr.splitlines() if "before flag parsing" not in line]
    assert "somebody else's" in before and "nor this" in last
    assert (told == []) if quiet else ("Traceback" in done.stderr)


def test_a_part_of_a_state_without_any_is_empty(tmp_path):
    """A network without batch norm: its statistics are one empty subtree, and those of a module are asked for."""
    with checkpoint.Checkpoints(tmp_path) as saved:
        saved.save(1, {"params": {"encoder": jnp.ones(2)}, "stats": {"encoder": {}, "projector": {}}}, {})
        part, _, _ = saved.restore_part(["params/encoder", "stats/encoder"])
    assert part["stats"] == {"encoder": {}} and part["params"]["encoder"].tolist() == [1, 1]


def test_processes_that_list_other_checkpoints_do_not_resume(directory, monkeypatch):
    """An old listing of a shared file system: one process would begin anew, the others wait for it."""
    with checkpoint.Checkpoints(directory) as checkpoints:
        resume._check_listed(checkpoints)
        monkeypatch.setattr(distributed, "of_first", lambda text: "[99]")
        with pytest.raises(
            ValueError, match=r"lists the checkpoints \[1, 2.*\] in .*, process 0 lists \[99\]"
        ):
            resume._check_listed(checkpoints)
