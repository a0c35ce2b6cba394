"""The README's blocks run as they stand, and what it names is there."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", README, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SCRIPTS = [
    [line.split("#")[0].strip() for line in code.splitlines() if line.strip()]
    for language, code in BLOCKS
    if language == "bash"
]
COMMANDS = [command for script in SCRIPTS for command in script]


def run(command, where):
    # One device: eight emulated ones would take turns on the same cores.
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = re.sub("^contrastive-jax ", "python -m contrastive_jax.main ", command)  # of this tree
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture
def where(tmp_path):
    """A folder in which the commands find the tree and write nothing into it."""
    for name in ("configs", "experiments", "contrastive_jax"):
        (tmp_path / name).symlink_to(ROOT / name)
    for code in PYTHON:
        if found := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / found[1]).write_text(code)
    return tmp_path


@pytest.mark.run
@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.splitlines()[0])
def test_python_blocks_run(code):
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.run
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("contrastive-jax check")])
def test_a_loss_is_checked(command, where):
    assert " 0 failed" in run(command, where)


def training(command):
    return command.startswith("contrastive-jax --")


@pytest.mark.run
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("contrastive-jax config")])
def test_commands_that_only_look(command, where):
    assert "temperature.target" in run(command, where)


@pytest.mark.slow
@pytest.mark.parametrize("script", [s for s in SCRIPTS if any(map(training, s))], ids=lambda s: s[0][:80])
def test_commands_that_train(script, where):
    """A block from its first line to its last, in one folder.

    ``sh`` blocks need data or hours that are not here: tests/test_docs.py looks whether their commands exist.
    """
    for command in filter(training, script):
        printed = run(command.removeprefix("pip install -e . && "), where)
        mode = re.search(r"--mode=(\w+)", command)
        if mode is None or mode[1] == "evaluate":
            assert all(row in printed for row in ("trained", "untrained", "raw pixels")), printed
        else:
            assert printed


def test_every_command_is_accounted_for():
    """A new kind of block needs a test of its own."""
    assert set(re.findall(r"^```(\w+)$", README, re.MULTILINE)) == {"python", "bash", "sh"}
    others = [c for c in COMMANDS if not training(c)]
    assert all(re.match(r"pip install|pytest|contrastive-jax (check|config)", c) for c in others), others


def test_what_the_readme_names_is_there():
    for path in re.findall(r"\]\((?!http)([^)]+)\)", README) + re.findall(
        r"python (experiments/\S+\.py)", README
    ):
        assert (ROOT / path.partition("#")[0]).exists(), path
    for path in re.findall(r"`((?:contrastive_jax|configs|tests|experiments)/[\w./]+)`", README):
        assert (ROOT / path).exists(), path
    for line in README.splitlines():
        if line.startswith("| ") and "_imagenet`" in line or "`macl_" in line and line.startswith("|"):
            for name in re.findall(r"`(\w+)`", line):
                assert (ROOT / "configs" / f"{name}.py").exists(), name


def test_no_placeholder_is_left():
    assert not re.search(r"@[A-Z]+@", README)
