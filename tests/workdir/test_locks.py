"""One run in a workdir at a time, whoever died how; and no run without room for its checkpoints."""

import collections
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import filelock
import jax
import pytest
from saved_runs import config_of

from contrastive_jax.training import loop
from contrastive_jax.workdir import locks

HOLD = """
import sys, time
from contrastive_jax import workdir
with workdir.lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_run_is_refused_with_the_first_ones_host_and_pid(tmp_path):
    process = holder(tmp_path)
    try:
        sentence = (
            rf"{tmp_path} is in use by process {process.pid} on {socket.gethostname()}, since .*--workdir\."
        )
        with pytest.raises(locks.InUse, match=sentence), locks.lock(tmp_path):
            pass
        made = config_of()
        with pytest.raises(locks.InUse, match=sentence):
            loop.train(made, tmp_path, quiet=True, devices=jax.devices()[:1])
        assert sorted(os.listdir(tmp_path)) == [".lock", "lock.json"]
    finally:
        process.kill()
        process.wait()


def test_a_killed_process_leaves_a_lock_that_is_taken_over(tmp_path):
    process, said = holder(tmp_path), []
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads((tmp_path / "lock.json").read_text())["pid"] == process.pid
    with locks.lock(tmp_path, said.append):
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
    assert len(said) == 1
    assert re.fullmatch(
        f"took over the lock of process {process.pid} on {socket.gethostname()}, since .*, which has ended.",
        said[0],
    )
    assert not (tmp_path / "lock.json").exists()


def test_one_process_cannot_run_twice_in_it_either_and_an_error_gives_it_back(tmp_path):
    said = []
    with pytest.raises(ZeroDivisionError), locks.lock(tmp_path / "run", said.append):
        with pytest.raises(locks.InUse, match=f"process {os.getpid()} "), locks.lock(tmp_path / "run"):
            pass
        1 / 0  # noqa: B018
    with locks.lock(tmp_path / "run", said.append):
        pass
    assert said == []


def test_a_damaged_lock_of_nobody_is_taken_over(tmp_path):
    (tmp_path / "lock.json").write_text('{"pid": 12')
    with locks.lock(tmp_path, lambda message: None):
        pass
    assert not (tmp_path / "lock.json").exists()


def test_a_workdir_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OSError, match="the workdir .*file cannot be written"),
        locks.lock(tmp_path / "file"),
    ):
        pass
    with pytest.raises(OSError, match="the workdir .*file/run cannot be written: Not a directory"):
        locks.check_writable(tmp_path / "file/run")
    assert locks.check_writable(tmp_path / "new/run") == tmp_path / "new/run"
    assert not (tmp_path / "new").exists()

    def refuse(self):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(OSError, match=f"the workdir {tmp_path} cannot be written: Read-only file system"):
        with locks.lock(tmp_path):
            pass


def test_a_disk_without_room_for_the_checkpoints_is_refused_before_training(tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 3 * 2**20))
    locks.check_room(tmp_path, 2**20, 2, 0)
    locks.check_room(tmp_path, 2**20, 3, 1)  # of which one is there
    with pytest.raises(OSError, match="3 MiB free; .* takes 1 MiB, .* checkpoint.keep_last=3 .* Free 1 MiB"):
        locks.check_room(tmp_path, 2**20, 3, 0)
    made = config_of()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 1000))
    with pytest.raises(OSError, match=r"has 1e\+03 B free|has 1000 B free"):
        loop.train(made, tmp_path / "run", quiet=True, devices=jax.devices()[:1])
    left = {path.name for path in (tmp_path / "run").rglob("*")}
    assert left <= {"checkpoints", ".lock"}
