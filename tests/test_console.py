"""Nothing that is printed ends a run: any encoding, a reader that is gone, a full disk, closed descriptors."""

import errno
import io
import os
import subprocess
import sys

import pytest

from contrastive_jax.system import console

TEXT = "61.3 ± 0.4 — Käfer 甲虫 \udcff"


class Failing(io.StringIO):
    """A stream that raises at every write, or at every flush."""

    def __init__(self, error, at):
        super().__init__()
        self.error, self.at = error, at

    def write(self, text):
        if self.at == "write":
            raise self.error
        return super().write(text)

    def flush(self):
        if self.at == "flush":
            raise self.error


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "utf-8", "utf-16", "shift_jis"])
def test_every_encoding_takes_every_text(encoding, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    console.Stream(lambda: sys.stdout).write(TEXT)
    console.shared().print(TEXT)
    sys.stdout.flush()
    shown = raw.getvalue().decode(encoding)
    assert shown.count("61.3") == 2 and ("±" in shown or "+-" in shown), shown


@pytest.mark.parametrize("at", ["write", "flush"])
@pytest.mark.parametrize(
    "error",
    [
        *(OSError(code, os.strerror(code)) for code in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF)),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        BlockingIOError(errno.EAGAIN, "try again"),
        ValueError("I/O operation on closed file"),
    ],
)  # fmt: skip
def test_a_stream_that_fails_ends_nothing(error, at, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Failing(error, at))
    told = []
    stream = console.Stream(lambda: sys.stdout, report=told.append)
    for _ in range(2):
        assert stream.write("a") == 1
        stream.flush()
        console.shared().print("a")
    assert stream.lost is error
    assert len(told) == (
        getattr(error, "errno", None) not in console.GONE
    )  # once, and not where nobody reads


def test_no_stream_at_all(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    console.shared().print("a")
    console.Stream(lambda: None).write("a")


PROGRAM = """
import sys
from contrastive_jax.system import console
incomplete = console.protect()
handle = open({file!r}, "w")
for i in range(3000):
    print("line", i, "\\u00b1")
    print("line", i, file=sys.stderr)
handle.write("whole")
handle.close()
sys.exit(3 if incomplete() else 7)
"""


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("{} | head -1", 7),
        ("{} 2>&1 | head -1", 7),
        ("{} >&-", 7),
        ("{} >&- 2>&- <&-", 7),
        ("{} > /dev/full", 3),
        ("{} > /dev/full 2>&1", 3),
        ("PYTHONIOENCODING=ascii:strict {}", 7),
        ("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {}", 7),
    ],
)
def test_a_program_ends_as_it_would(shell, code, tmp_path):
    file = tmp_path / "result"
    (tmp_path / "program.py").write_text(PROGRAM.format(file=str(file)))
    command = shell.format(f"{sys.executable} {tmp_path / 'program.py'}")
    if "/dev/full" in command and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo codes ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert f"codes {code}" in done.stdout, done
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert (
        file.read_text() == "whole"
    )  # nothing that is printed lands in a file that took a closed descriptor
