"""The supported range of versions, and the command that tests it."""

import pathlib
import sys
import tomllib

import jax
import pytest
from packaging.requirements import Requirement

from experiments.reliability import versions

ROOT = pathlib.Path(__file__).parent.parent
TESTS = """
import pytest
def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_skipped(): pass
@pytest.fixture
def broken(): raise OSError
def test_in_error(broken): pass
"""
ENTRY = {
    "python": "3.12.1", "jax": "0.11.2", "flax": "0.12.12", "orbax-checkpoint": "0.12.8", "numpy": "2.5.5",
    "passed": 2858, "failed": [], "skipped": 4, "date": "2026-11-22",
}  # fmt: skip


def requirements(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return {requirement.name: requirement for requirement in map(Requirement, found)}


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["versions", *arguments])
    versions.main()


@pytest.mark.parametrize("extra", ["", "cuda", "tpu"])
def test_the_bounds_hold_what_is_tested_and_nothing_newer(extra):
    bounds = requirements(extra)["jax"].specifier
    newest = max(int(environment.rpartition(".")[2]) for environment in versions.ENVIRONMENTS)
    for environment in versions.ENVIRONMENTS:
        assert f"{environment.partition(':')[2]}.0" in bounds
    assert f"0.{newest + 1}.0" not in bounds and f"0.{newest}.9" in bounds


def test_what_is_committed_is_of_one_measurement(tmp_path, monkeypatch):
    texts = {path: path.read_text() for path in (versions.CONSTRAINTS, versions.RESULTS / "versions.md")}
    for path, text in texts.items():
        (tmp_path / path.name).write_text(text)
    (tmp_path / "versions.json").write_text((versions.RESULTS / "versions.json").read_text())
    monkeypatch.setattr(versions, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(versions, "RESULTS", tmp_path)
    run(monkeypatch, "render")
    for path, text in texts.items():
        assert (tmp_path / path.name).read_text() == text


@pytest.mark.run
def test_counts_are_those_of_pytest(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    entry = versions.measure(sys.executable, tmp_path, [str(tmp_path)])
    assert (entry["passed"], entry["skipped"]) == (1, 1)
    assert [name.rpartition("::")[2] for name in entry["failed"]] == ["test_fails", "test_in_error"]
    assert entry["jax"] == jax.__version__ and entry["python"].startswith("3.")


@pytest.mark.run
def test_tests_that_do_not_run_are_no_measurement(tmp_path):
    with pytest.raises(SystemExit, match="exit status 5"):
        versions.measure(sys.executable, tmp_path, [str(tmp_path / "absent.py")])


def test_what_passed_stands_in_the_constraints(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "RESULTS", tmp_path)
    monkeypatch.setattr(versions, "CONSTRAINTS", tmp_path / "constraints.txt")
    (tmp_path / "constraints.txt").write_text("# Versions.\njax==0.10.2\n")
    failed = ENTRY | {"python": "3.13.0", "jax": "0.12.0", "failed": ["tests.test_step::test_a"]}
    for _ in range(2):  # a second time changes nothing
        versions.keep({"3.13:0.12": failed, "3.12:0.11": ENTRY})
        first, passed, pin = (tmp_path / "constraints.txt").read_text().splitlines()
        assert (first, pin) == ("# Versions.", "jax==0.10.2")
        assert "3.12.1, jax 0.11.2" in passed and "2,858" in passed
    written = (tmp_path / "versions.md").read_text()
    assert written.index("| 3.12.1 | 0.11.2 ") < written.index("| 3.13.0 | 0.12.0 ")
    assert "- Python 3.13.0, jax 0.12.0: `tests.test_step::test_a`" in written
    assert list(versions.kept()) == ["3.12:0.11", "3.13:0.12"]


def test_an_interpreter_that_is_not_there_is_named_before_anything_is_made(tmp_path, monkeypatch, capsys):
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "environments"
    for release in ("3.98", "3.99"):
        with pytest.raises(SystemExit, match=f"Python {release} is not on PATH"):
            run(monkeypatch, "run", "--only", f"{release}:0.11", f"--folder={folder}")
    with pytest.raises(SystemExit, match="--python .*python3.99: it does not run"):
        run(monkeypatch, "run", "--python", str(shim), f"--folder={folder}")
    with pytest.raises(SystemExit):
        run(monkeypatch, "run", "--only", "3.12")
    assert "'3.12' is no environment" in capsys.readouterr().err
    assert not folder.exists()
    release = "{}.{}".format(*sys.version_info)
    assert versions.interpreters([release], [sys.executable]) == {release: sys.executable}
