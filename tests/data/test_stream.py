"""Streamed splits: the same batches as resident ones, on any number of processes, from any step."""

import contextlib
import errno
import io
import multiprocessing
import multiprocessing.util
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from PIL import Image

from contrastive_jax import augment, data, sharding
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.data import order, pixels, records, storage, stream
from contrastive_jax.data.composites import Plain
from contrastive_jax.training import loop
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
N, BATCH, SIZE = 40, 16, 8
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 20, 24, 3), np.uint8)
VIEWS = augment.make_views(preset="crop_only", size=SIZE)


class Memory:
    """Records that lie in memory."""

    label_shape, labelled, chunk = (), True, 8

    def __init__(self, images, shape=(None, None, 3)):
        self.images, self.shape = images, shape

    def __len__(self):
        return len(self.images)

    def read(self, rows):
        return [records.Record(self.images[row], int(row) % 3, int(row) // 2) for row in rows]

    def name(self, row):
        return f"image {row} of memory"


def png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


IMAGES = [png(array) for array in PIXELS]
CORRUPT = [b"no image" if row in (7, 8) else image for row, image in enumerate(IMAGES)]


def split(images=IMAGES, **options):
    return stream.Streamed(Memory(images), **{"workers": 0} | options)


def batches(steps, own=None, **options):
    """Of some steps, on the host; and what was reported and counted."""
    said = []
    feed = data.feed(split(**options), view=VIEWS, seed=3, batch_size=BATCH, steps=20, report=said.append)
    feed._parts = feed._parts if own is None else stream.Parts(feed._parts.loader, BATCH, own, 20 * BATCH)
    try:
        return [jax.device_get(feed.feed(step)) for step in steps], said, feed.metrics()["replaced"]
    finally:
        feed.close()


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def first():
    return batches(range(6))[0]


def test_streamed_batches_are_the_resident_ones(first):
    resident = data.Resident(
        data.Split(PIXELS, np.arange(N) % 3, np.arange(N) // 2), seed=3, batch_size=BATCH
    )

    @jax.jit
    def views(batch, streamed):
        keys = augment.example_keys(3, batch.epoch, batch.id)
        return jax.vmap(VIEWS)(keys, batch.image), jax.vmap(VIEWS.finish)(keys, streamed)

    for step, streamed in enumerate(first):
        batch = resident.take(resident.feed(step), step)
        for field in ("label", "id", "group", "epoch"):
            np.testing.assert_array_equal(getattr(batch, field), getattr(streamed, field))
        assert streamed.image.shape == (BATCH, 2, SIZE, SIZE, 3) and streamed.image.dtype == np.uint8
        whole, finished = views(batch, streamed.image)
        np.testing.assert_allclose(
            whole, finished, rtol=0, atol=0.501 / 255
        )  # half a grey level: PNG loses nothing


def test_every_example_once_an_epoch(first):
    ids, epochs = (np.concatenate([getattr(b, name) for b in first]) for name in ("id", "epoch"))
    for epoch in (0, 1):
        assert sorted(ids[epochs == epoch]) == list(range(N))
    np.testing.assert_array_equal(ids, order.rows(3, N, 0, 6 * BATCH)[0])


def test_two_processes_together_read_what_one_reads(first):
    halves = [batches(range(3), own=np.arange(BATCH)[half])[0] for half in (slice(0, 8), slice(8, 16))]
    for step in range(3):
        same(
            jax.tree.map(lambda *parts: np.concatenate(parts), *(half[step] for half in halves)), first[step]
        )
    assert len(halves[0][0].id) == BATCH // 2


def test_a_process_reads_the_rows_of_its_devices():
    mesh = sharding.make_mesh(jax.devices()[:4])
    assert list(stream.own_rows(16, mesh)) == list(range(16))


def test_from_any_step_on(first):
    same(batches([4, 5])[0], first[4:6])
    same(batches([2, 2, 5, 1])[0], [first[step] for step in (2, 2, 5, 1)])


def test_on_a_mesh_rows_lie_over_its_devices(first):
    mesh = sharding.make_mesh(jax.devices()[:4])
    feed = data.feed(split(), view=VIEWS, seed=3, batch_size=BATCH, steps=3, mesh=mesh)
    batch = feed.feed(1)
    feed.close()
    assert batch.image.sharding.spec == sharding.ROWS
    same(jax.device_get(batch), first[1])


@pytest.mark.run
def test_worker_processes_read_the_same_and_a_dead_one_ends_the_run(first):
    feed = data.feed(split(workers=2), view=VIEWS, seed=3, batch_size=BATCH, steps=10**6)
    try:
        same([jax.device_get(feed.feed(step)) for step in (2, 3)], first[2:4])
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        os.kill(workers[0].pid, signal.SIGKILL)
        with pytest.raises(stream.WorkerDied, match=r"worker process \d+ of data.workers=2.*SIGKILL"):
            for step in range(4, 1000):
                feed.feed(step)
    finally:
        feed.close()
    assert not multiprocessing.active_children()


@pytest.mark.timeout(60)
def test_a_worker_that_dies_as_it_starts_ends_the_run(monkeypatch):
    """What it is to read is more than a pipe holds: written there, its parent would wait for ever."""
    begin = multiprocessing.util.spawnv_passfds

    def killed(path, arguments, handles):
        process = begin(path, arguments, handles)
        if "spawn_main" in str(arguments):
            os.kill(process, signal.SIGKILL)
        return process

    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", killed)
    parts = stream.Parts(bytes(10**7), BATCH, np.arange(BATCH), 20 * BATCH)
    with pytest.raises(stream.WorkerDied, match=r"worker process \d+ .*SIGKILL"):
        stream.Workers(parts, 0, 2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_record_ends_the_run_by_name(workers):
    with pytest.raises(Exception, match=r"cannot read image [78] of memory: ") as error:
        batches(range(3), images=CORRUPT, workers=workers)
    assert error.type is records.Unreadable


def test_a_corrupt_record_is_replaced_by_the_next_of_the_order_and_counted(first):
    got, said, count = batches(range(6), images=CORRUPT, corrupt="replace")
    wanted, met = [b.id for b in first], 0
    for step, batch in enumerate(got):
        for row, (want, id) in enumerate(zip(wanted[step], batch.id, strict=True)):
            if want not in (7, 8):
                same(
                    jax.tree.map(lambda x, row=row: x[row], batch),
                    jax.tree.map(lambda x, row=row: x[row], first[step]),
                )
                assert want == id
            else:
                met += 1
                epoch = int(batch.epoch[row])
                turn = order.permutation(3, epoch, N).tolist()
                after = turn[turn.index(want) + 1 :] + turn
                assert id == next(x for x in after if x not in (7, 8))
                assert batch.label[row] == id % 3 and batch.group[row] == id // 2
    assert count == met >= 4
    assert {message.split(":")[0] for message in said} == {
        f"cannot read image {row} of memory" for row in (7, 8)
    }
    assert len(said) == 2 and all("replaces it" in message for message in said)  # each once, not every epoch

    later, _, _ = batches([3, 4], images=CORRUPT, corrupt="replace")
    same(later, got[3:5])
    half, _, _ = batches(range(2), own=np.arange(8, 16), images=CORRUPT, corrupt="replace")
    same(half, [jax.tree.map(lambda x: x[8:], batch) for batch in got[:2]])


def test_labels_of_corrupt_records_are_those_of_the_images_that_stand_in(monkeypatch):
    real = Memory.read

    def read(self, rows):
        if bad := {7, 8} & {*map(int, rows)}:
            raise records.Unreadable(f"block of {min(bad)}")
        return real(self, rows)

    monkeypatch.setattr(Memory, "read", read)
    view = augment.make_eval(preset="crop_only", size=SIZE)
    with pytest.warns(RuntimeWarning, match="block of 7; .* replaces it"):
        judged = np.concatenate([label for _, label in split(corrupt="replace").batches(16, view)])
    np.testing.assert_array_equal(split(corrupt="replace").label, judged)
    assert judged[7] == judged[8] == 9 % 3
    with pytest.raises(records.Unreadable, match="block of 7"):
        split().label  # noqa: B018


@pytest.mark.parametrize("size", [0, 4])
def test_in_memory_the_next_of_the_set_stands_in_for_a_corrupt_record(size):

    def stored(files, corrupt):
        options = storage.StorageOptions(size=size, stream="off", workers=0, corrupt=corrupt)
        return storage.stored("memory", files, None, options)[0]

    files, shape = IMAGES[:6], PIXELS.shape[1:]
    whole = stored(Memory(files, shape), "raise")
    damaged = Memory([*files[:2], b"no image", b"", files[4], files[4][:60]], shape)
    with pytest.warns(RuntimeWarning) as said:
        split = stored(damaged, "replace")
    stands_in = [0, 1, 4, 4, 4, 0]
    for name in ("image", "label", "group"):
        np.testing.assert_array_equal(getattr(split, name), getattr(whole, name)[stands_in])
    messages = [str(warning.message) for warning in said]
    assert [m.split(":")[0] for m in messages] == [f"cannot read image {i} of memory" for i in (2, 3, 5)]
    assert messages[2].endswith("image 0 of memory replaces it") and "0x" not in messages[0]
    with pytest.raises(records.Unreadable, match="cannot read image 2 of memory: "):
        stored(damaged, "raise")
    with pytest.raises(records.Unreadable, match="no record can be read: cannot read image 0 of memory"):
        stored(Memory([b""] * 3, shape), "replace")


class Gone(Memory):
    """A file system that goes away behind some records."""

    def read(self, rows):
        if any(row in (7, 8) for row in rows):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return super().read(rows)


@pytest.mark.parametrize(("corrupt", "workers"), [("raise", 0), ("replace", 0), ("replace", 1)])
def test_a_file_system_that_goes_away_is_no_corrupt_record(corrupt, workers):
    """Nothing stands in for what is sound where it lies."""
    feed = data.feed(
        stream.Streamed(Gone(IMAGES), workers=workers, corrupt=corrupt),
        view=VIEWS,
        seed=3,
        batch_size=BATCH,
        steps=3,
    )
    with contextlib.closing(feed), pytest.raises(OSError, match="Stale file handle"):
        for step in range(3):
            feed.feed(step)


@pytest.mark.parametrize("broken", ["boxes", "cut", "compose"])
def test_a_mistake_of_the_programs_own_is_no_corrupt_record(broken, monkeypatch):
    """Neither replaced nor made up for image by image: it ends the run, as what it is."""
    calls = []

    def wrong(*_, **__):
        calls.append(1)
        raise TypeError("a mistake")

    place = {
        "boxes": (type(VIEWS.cut), "boxes"), "cut": (pixels.Decoded, "cut"), "compose": (Plain, "__call__"),
    }[broken]  # fmt: skip
    monkeypatch.setattr(*place, wrong)
    loader = split(corrupt="replace").loader(stream.Endless(3, N), VIEWS.cut, 3)
    with pytest.raises(TypeError, match="a mistake"):
        loader.load(np.arange(4))
    assert len(calls) == 1


def test_where_nothing_can_be_read_replacing_ends():
    with pytest.raises(records.Unreadable, match="no record can be read: cannot read image"):
        batches([0], images=[b"no image"] * N, corrupt="replace")


def test_evaluation_reads_in_order():
    view = augment.make_eval(preset="moco_v2", size=SIZE)
    resident = data.Split(PIXELS, np.arange(N) % 3)
    whole, rows = jax.jit(jax.vmap(view)), np.array([3, 1, 39, 20, 4])
    for chosen in (None, rows):
        wanted = np.arange(N) if chosen is None else rows
        for part, images in ((resident, (20, 24, 3)), (split(), (SIZE, SIZE, 3))):
            got = list(part.batches(16, view, chosen))
            assert [len(image) for image, _ in got] == [16] * (len(wanted) // 16) + [len(wanted) % 16]
            image, label = (np.concatenate(x) for x in zip(*got, strict=True))
            assert image.shape[1:] == images
            np.testing.assert_array_equal(label, wanted % 3)
            seen = jax.jit(jax.vmap(part.finish(view)))(image)
            np.testing.assert_allclose(seen, whole(PIXELS[wanted]), rtol=0, atol=0.51 / 255 / 0.22)


def test_some_rows_of_a_streamed_split():
    some = split()[np.array([5, 9, 2])]
    view = augment.make_eval(preset="crop_only", size=SIZE)
    ((image, label),) = some.batches(8, view)
    np.testing.assert_array_equal(label, [2, 0, 2])
    ((want, _),) = split().batches(8, view, [5, 9, 2])
    np.testing.assert_array_equal(image, want)
    assert some.label.tolist() == [2, 0, 2] and some.labelled and some.labelled_rows is None


def test_wrong_options():
    with pytest.raises(ValueError, match="data.corrupt is 'skip'; it must be one of raise, replace"):
        split(corrupt="skip")
    with pytest.raises(ValueError, match="data.resize is 'fast'; it must be one of exact, opencv"):
        split(resize="fast")
    with pytest.raises(ValueError, match="data.workers is -2"):
        split(workers=-2)
    with pytest.raises(ValueError, match="data.stream is 'yes'; it must be one of auto, on, off"):
        data.folder(stream="yes")


def test_a_worker_that_cannot_send_ends(monkeypatch, capsys):
    """Only the thread ended, and the parent waited for its part without an end."""
    loaded = queue.Queue()
    loaded.put({"image": np.zeros(3)})
    monkeypatch.setattr(stream, "_send", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
    monkeypatch.setattr(os, "_exit", lambda status: (_ for _ in ()).throw(SystemExit(status)))
    with pytest.raises(SystemExit):
        stream._send_all(None, loaded)
    assert "MemoryError: no room" in capsys.readouterr().err


def test_opencv_resizes_the_same_boxes(first):
    pytest.importorskip("cv2")
    ((batch,), _, _) = batches([0], resize="opencv")
    drawn = split(resize="opencv").drawn(VIEWS, batch.id, seed=3, epoch=0)  # as preview and measures do
    np.testing.assert_array_equal(drawn["image"], batch.image)
    apart = np.abs(batch.image.astype(int) - first[0].image)
    assert 0 < apart.mean() < 12  # of noise, on which kernels differ most; other boxes: over 50
    same(batch.id, first[0].id)


def test_auto_streams_what_does_not_fit_or_differs_in_size():
    alike = Memory(IMAGES, (20, 24, 3))

    def kind(memory, **changes):
        options = storage.StorageOptions(**{"memory_limit": 1.0, "workers": 0} | changes)
        return type(storage.stored("x", memory, None, options)[0])

    assert kind(alike) is data.Split and kind(alike, stream="on") is data.Streamed
    assert kind(alike, memory_limit=1e-5) is data.Streamed
    assert kind(Memory(IMAGES)) is data.Streamed and kind(Memory(IMAGES), size=8) is data.Split
    with pytest.raises(ValueError, match="images of x differ in size: set data.size"):
        kind(Memory(IMAGES), stream="off")
    with pytest.raises(ValueError, match="data.memory_limit is .* take .* GiB"):
        kind(alike, memory_limit=1e-5, stream="off")


@pytest.mark.run
def test_a_streamed_run_stopped_and_resumed_is_uninterrupted_bit_for_bit(tmp_path, monkeypatch):
    folder = tmp_path / "images"
    for row, image in enumerate(CORRUPT):
        (folder / "train" / str(row % 2)).mkdir(parents=True, exist_ok=True)
        (folder / "train" / str(row % 2) / f"{row:02}.png").write_bytes(image)
    config = configs.load(str(ROOT / "configs/digits.py:method=simclr,scale=smoke"))
    with config.unlocked():
        config.data = {
            "name": "folder",
            "dir": str(folder),
            "stream": "on",
            "workers": 0,
            "corrupt": "replace",
        }
        config.augment = {"preset": "crop_only", "size": 8}
        leaves = {
            "train.duration": "6 steps",
            "train.batch_size": BATCH,
            "log.every": 1,
            "evaluate.final": False,
        }
        config.update_from_flattened_dict(leaves)
    config = configs.plain(configs.complete(config))
    one, feed = jax.devices()[:1], data.Stream.feed
    loop.train(config, tmp_path / "whole", quiet=True, devices=one)

    def feed_and_ask(self, step):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return feed(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(data.Stream, "feed", feed_and_ask)
        with pytest.raises(loop.Stopped):
            loop.train(config, tmp_path / "parts", quiet=True, devices=one)
    loop.train(config, tmp_path / "parts", quiet=True, devices=one)

    def left_behind(place):
        run = runs.prepare(config, one)
        like = runs.replicate(init_state(run.recipe, config["seed"]), run.mesh)
        with checkpoint.Checkpoints(place / "checkpoints", read_only=True) as saved:
            state, step, _ = saved.restore(like)
        rows = [{k: v for k, v in row.items() if k != "timing"} for row in workdirs.read_metrics(place)]
        return jax.device_get(state), step, rows

    whole, parts = left_behind(tmp_path / "whole"), left_behind(tmp_path / "parts")
    same(whole[0], parts[0])
    assert whole[1] == parts[1] == len(whole[2]) == 6 and whole[2] == parts[2]
    assert whole[2][-1]["replaced"] >= 4 and whole[2][0]["replaced"] <= whole[2][-1]["replaced"]


PROCESS = """
import sys
import jax, numpy as np
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))
sys.path.insert(0, sys.argv[3])
import test_stream as t
from contrastive_jax import data, sharding
mesh = sharding.make_mesh()
feed = data.feed(t.split(t.CORRUPT, corrupt="replace"), view=t.VIEWS, seed=3, batch_size=t.BATCH, steps=3, mesh=mesh)
rows = [feed.feed(step) for step in range(3)]
parts = [[np.asarray(s.data) for s in sorted(x.image.addressable_shards, key=lambda s: s.index[0].start)] for x in rows]
np.savez(sys.argv[4], image=[np.concatenate(p) for p in parts], replaced=feed.metrics()["replaced"])
feed.close()
"""


@pytest.mark.slow
def test_two_real_processes_read_what_one_reads(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here = str(pathlib.Path(__file__).parent)
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, port, str(i), here, str(tmp_path / f"{i}.npz")],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for i in (0, 1)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    found = [np.load(tmp_path / f"{i}.npz") for i in (0, 1)]
    one, _, count = batches(range(3), images=CORRUPT, corrupt="replace")
    for step, batch in enumerate(one):
        np.testing.assert_array_equal(np.concatenate([part["image"][step] for part in found]), batch.image)
    assert count > 0 and [int(part["replaced"]) for part in found] == [count, count]
