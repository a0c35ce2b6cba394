"""What ran out is named by the file or segment that failed: disk, quota, shared memory, memory, descriptors."""

import errno
import os
import subprocess
import sys
import tempfile

import pytest

from contrastive_jax import workdir as workdirs
from contrastive_jax.workdir import exhausted, locks


def said(error, workdir, cause=None, kind=exhausted.Full):
    with (
        pytest.raises(kind) as caught,
        exhausted.translate_errors(workdir),
        exhausted.translate_errors(workdir),
    ):
        raise error from cause
    return str(caught.value)


def full(file, number=errno.ENOSPC):
    return OSError(number, os.strerror(number), None if file is None else str(file))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A workdir and a cache that do not lie in the temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("tmp", "cache", "run"):
        (tmp_path / name).mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_the_file_that_failed_says_what_is_full(number, run):
    reason, home = os.strerror(number), run.parent
    for file, expected in {
        run / "metrics.jsonl": f"the disk of {run} is full",
        "run/result.json": f"the disk of {run} is full",
        home / "tmp/x/y": f"the temporary folder {home}/tmp (TMPDIR) is full",
        home / "cache/contrastive_jax/a.so": f"the cache {home}/cache (XDG_CACHE_HOME) is full",
        "/dev/shm/psm_1": "shared memory (/dev/shm",
        "/elsewhere/wandb/log": "the disk of /elsewhere/wandb/log is full",
    }.items():
        text = said(full(file, number), run)
        assert (
            text.startswith(expected) and f"({reason}" in text and "Make room or raise the quota" in text
        ), text
    (run / "tmp").mkdir()  # the nearest place counts
    tempfile.tempdir = str(run / "tmp")
    assert said(full(run / "tmp/a"), run).startswith(f"the temporary folder {run}/tmp")


def test_a_checkpoint_that_is_whole_is_named(run):
    for name in ("9", "40", "50.orbax-checkpoint-tmp", "damaged-60"):
        (run / "checkpoints" / name).mkdir(parents=True)
    text = f"OUT_OF_RANGE: Failed to write {run}/checkpoints/50/state/d/1:\n No space left on device [OS error 28]"
    text = said(OSError("the checkpoint of step 50 could not be written"), run, ValueError(text))
    assert text.startswith(
        f"the disk of {run} is full (No space left on device). The run's checkpoint of step 40 is complete"
    )
    assert "to resume from it" in text


def test_an_error_without_a_file_is_settled_by_the_room_that_there_is(run, monkeypatch):
    rooms = {}
    monkeypatch.setattr(exhausted, "_room", lambda place: rooms.get(place, (60 * 2**30, 1000)))
    text = said(full(None), run)
    assert "does not name the file" in text and "60 GiB free" in text and f"disk of {run} is full" not in text
    rooms[exhausted.SHARED_MEMORY] = (0, 1000)
    assert said(full(None), run).startswith("shared memory")
    rooms[run] = (2**30, 0)
    assert "no free inodes" in said(full(run / "a"), run)
    monkeypatch.setattr(
        tempfile, "gettempdir", lambda: (_ for _ in ()).throw(FileNotFoundError("none is usable"))
    )
    assert said(full(run / "a"), run).startswith(f"the disk of {run} is full")


def test_semaphores_and_segments_are_shared_memory(run):
    from multiprocessing import synchronize

    def failing(*arguments):
        raise full(None)

    with pytest.raises(exhausted.Full, match="shared memory"), exhausted.translate_errors(run):
        synchronize._multiprocessing, kept = type("M", (), {"SemLock": failing}), synchronize._multiprocessing
        try:
            synchronize.Lock(ctx=__import__("multiprocessing").get_context("spawn"))
        finally:
            synchronize._multiprocessing = kept


def test_a_file_that_cannot_grow_is_named_with_the_limit(run):
    text = said(full(run / "metrics.jsonl", errno.EFBIG), run)
    assert text.startswith(f"{run}/metrics.jsonl cannot grow (File too large")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/a/b.png"),
            ("too many files", "ulimit -n", "/a/b.png"),
        ),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), ("this machine", "too many files")),
        (RuntimeError("[Errno 24] Too many open files: 'x'"), ("too many files", "ulimit -n")),
        (MemoryError(), ("memory ran out", "train.batch_size")),
        (MemoryError("Unable to allocate 3.00 GiB for an array"), ("3.00 GiB",)),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), ("memory ran out",)),
        (RuntimeError("can't start new thread"), ("thread", "ulimit -u")),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), ("process", "ulimit -u")),
    ],
)
def test_what_else_runs_out_is_named(error, words, run):
    text = said(error, run, kind=exhausted.Exhausted)
    assert all(word in text for word in words) and "is full" not in text, text
    text = said(ValueError("a library's own words"), run, error, kind=exhausted.Exhausted)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "Permission denied"), ValueError("x"), locks.InUse("y")]
)
def test_other_errors_are_left_as_they_are(error, tmp_path):
    with pytest.raises(type(error)) as caught, exhausted.translate_errors(tmp_path):
        raise error
    assert caught.value is error


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_our_own_writes_name_their_file(tmp_path):
    book = workdirs.Logbook(tmp_path, tensorboard=False)
    file = book._file
    book._file = type(
        "Full",
        (),
        {
            "name": file.name,
            "fileno": file.fileno,
            "truncate": lambda *a: None,
            "write": lambda self, line: open("/dev/full", "wb", 0).write(line),
            "close": file.close,
        },
    )()
    with (
        pytest.raises(exhausted.Full, match=f"the disk of {tmp_path} is full"),
        exhausted.translate_errors(tmp_path),
    ):
        book.write(1, 0.1, {"loss": 1.0})
    with pytest.raises(OSError, match="result.json"), workdirs.replacing(tmp_path / "result.json"):
        open("/dev/full", "wb", 0).write(b"a")
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl"}


def test_a_small_address_space_is_a_sentence(tmp_path):
    program = """
import resource, numpy as np
from contrastive_jax.workdir.exhausted import translate_errors
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
try:
    with translate_errors("run"):
        np.ones((1 << 34,), np.float64)
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert "memory ran out (Unable to allocate 128. GiB" in done.stdout, done
