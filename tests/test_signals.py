"""Nothing waits for ever: signals that nothing swallows, workers that die, files that are no files."""

import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from contrastive_jax.data import image_folder as folder
from contrastive_jax.data.records import Unreadable
from contrastive_jax.system import limits, signals
from contrastive_jax.workdir import remote

ROOT = pathlib.Path(__file__).parent.parent

BUSY = """
import sys, time
from contrastive_jax.system import signals

signals.GRACE = 1.0
signals.guard()
if sys.argv[1] != "early":
    signals.begin()


class Swallows:
    def __del__(self):
        print("ready", flush=True)
        while not signals.pending():
            time.sleep(0.01)
        time.sleep(5)  # interrupted here: Python drops what the handler raises


try:
    if sys.argv[1] == "swallowed":
        Swallows()
    elif sys.argv[1] == "held":
        with signals.held():
            print("ready", flush=True)
            while not signals.pending():
                time.sleep(0.01)
            time.sleep(0.1)
            print("started", flush=True)
    elif sys.argv[1] in ("deaf", "phase"):
        with signals.phase(*(3.0, "All is saved.") if sys.argv[1] == "phase" else (1.0,)):
            print("ready", flush=True)
            while True:  # as code that drops what is raised
                try:
                    time.sleep(60)
                except KeyboardInterrupt:
                    pass
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt as error:
    print("closed", flush=True)
    signals.leave(signals.code_of(error))
"""


def after_signal(tmp_path, case, number):
    """Return exit status, output and the seconds from the signal to the end."""
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    process = subprocess.Popen(
        [sys.executable, script, case], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the suite may be run by nohup
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        began = time.monotonic()
        process.send_signal(number)
        text = process.communicate(timeout=30)[0]
        return process.returncode, text, time.monotonic() - began
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("case", ["early", "open", "swallowed", "held", "deaf", "phase"])
def test_a_signal_ends_the_process_whatever_it_is_at(tmp_path, case, number):
    code, text, seconds = after_signal(tmp_path, case, number)
    assert code == 128 + number and seconds < 10, text
    assert "Traceback" not in text and "Exception ignored" not in text
    assert ("closed" in text.splitlines()) == (case in ("open", "swallowed", "held"))  # not lost
    assert ("started" in text.splitlines()) == (case == "held")
    if case == "phase":
        assert seconds > 2.5 and "All is saved." in text


def test_a_process_that_was_told_to_ignore_hangups_does(tmp_path):
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    process = subprocess.Popen(
        ["nohup", sys.executable, script, "open"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        while "ready" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
    finally:
        process.kill()


def images(place, count=4):
    for number in range(count):
        file = place / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(file)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_named_like_an_image_and_is_no_file_is_refused_by_name(tmp_path, kind):
    images(tmp_path)
    odd, server = tmp_path / "class0" / "odd.jpg", socket.socket(socket.AF_UNIX)
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    else:
        server.bind(str(odd))
    with server:
        with pytest.raises(Unreadable, match="odd.jpg"):
            folder.folder(dir=str(tmp_path), workers=0)
        if kind != "socket":
            assert (
                len(folder.folder(dir=str(tmp_path), workers=0, corrupt="replace").train) == 5
            )  # the next stands in


def test_folders_in_folders_without_end_are_refused_by_name(tmp_path):
    images(tmp_path)
    before, deep = os.getcwd(), tmp_path / "class0"
    os.chdir(deep)
    try:
        for _ in range(1_200):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(before)
    began = time.monotonic()
    with pytest.raises(ValueError, match=f"more than {folder.DEEPEST} deep: .*class0"):
        folder.folder(dir=str(tmp_path), workers=0)
    assert time.monotonic() - began < 5
    with pytest.raises(ValueError, match=f"more than {folder.DEEPEST} deep"):
        folder.has_images(deep / "d")
    subprocess.run(["rm", "-rf", deep], check=True)  # pytest's own way recurses


def test_json_that_is_nested_deep_is_refused_by_name(tmp_path):
    from contrastive_jax import config as configs

    deep = "[" * 100_000 + "]" * 100_000
    images(tmp_path / "images")
    for name in ("config.json", "images/labels.json", "images/labels.jsonl", "result.json", "replicas.json"):
        (tmp_path / name).write_text(deep)
    for name in ("labels.json", "labels.jsonl"):
        with pytest.raises(ValueError, match=name):
            folder.folder(dir=str(tmp_path / "images"), labels=name, workers=0)
    with pytest.raises(ValueError, match=r"config\.json"):
        configs.load(str(tmp_path / "config.json"))
    from contrastive_jax import workdir as workdirs

    with pytest.raises(ValueError, match=r"result\.json"):
        workdirs.read_json(tmp_path / "result.json")


def test_a_store_that_does_not_answer_is_given_up(monkeypatch):
    class Silent:
        def __init__(self, *parts):
            pass

        def exists(self):
            time.sleep(60)

    monkeypatch.setattr(remote.epath, "Path", Silent)
    monkeypatch.setattr(remote, "SECONDS", 0.2)
    with pytest.raises(ConnectionError, match="gs://nobody/run.*no answer"):
        remote.check_reachable("gs://nobody/run")
    with pytest.raises(ConnectionError, match="gs://nobody/run"), remote.mirrored("gs://nobody/run"):
        pass


def raised(error, cause=None):
    try:
        raise error from cause
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (MemoryError(), "memory"),
        (OSError(12, "Cannot allocate memory"), "memory"),
        (ImportError("x.so: failed to map segment from shared object"), "memory"),
        (OSError(24, "Too many open files", "a.png"), "ulimit -n"),
        (ValueError("RESOURCE_EXHAUSTED: Failed to open: x [OS error 24: Too many open files]"), "ulimit -n"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "ulimit -u"),
    ],
)
def test_a_limit_that_is_behind_an_error_is_named(error, option):
    assert option in limits.exhausted(error)
    assert option in limits.exhausted(raised(ValueError("it failed"), error))
    assert limits.exhausted(ValueError("another")) is None


def test_files_that_run_out_are_named(tmp_path):
    images(tmp_path, 4)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))  # the lowest that is free
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises((OSError, Unreadable)) as error:
            folder.folder(dir=str(tmp_path), workers=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n" in limits.exhausted(error.value)


def test_notes_of_signals_are_forgotten_where_the_process_goes_on():
    with signals.handled_by(lambda number, frame: signals.note(number)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.pending() > 0
        with pytest.raises(signals.Terminated):
            signals.check(0.0)
    assert signals.pending() == 0
