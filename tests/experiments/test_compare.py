"""What ``python -m experiments.harness compare`` says of two revisions, on made-up records."""

import json
import subprocess
import sys

import pytest

from experiments.harness import records


def record(tops, config=None, arguments="configs/x.py:scale=cpu", **others):
    """A run of as many seeds as there are top-1s."""
    seeds = {
        str(seed): {"evaluations": {"trained": {"knn": {"top1": top1}}}, "seconds": 9.0 + top1} | others
        for seed, top1 in enumerate(tops)
    }
    return {"arguments": arguments, "config": config or {}, "versions": {"jax": "1"}, "seeds": seeds}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository without a record; commits what it is given, in place of what there was."""
    monkeypatch.setattr(records, "ROOT", tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "none"], check=True)

    def commit(**kept):
        for file in records.folder().glob("*.json"):
            file.unlink()
        records.folder().mkdir(parents=True, exist_ok=True)
        for name, value in kept.items():
            (records.folder() / f"{name}.json").write_text(json.dumps(value))
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", "records"], check=True)

    return commit


def test_a_changed_number_stands_beside_its_spread(repository):
    repository(x_a=record([0.5, 0.6, 0.7]), x_b=record([0.5, 0.6], arguments="b"))
    repository(x_a=record([0.6, 0.7, 0.8]), x_b=record([0.5, 0.6], arguments="b"))
    lines = records.compare(records.of_revision("HEAD~1"), records.of_revision("HEAD")).splitlines()
    assert lines[0] == "x_a" and len(lines) == 4
    assert lines[2].strip() == "trained.knn.top1: 0.6 -> 0.7 (+0.1; 1 of the spread 0.1 over 3 seeds)"
    assert lines[-1] == "1 changed, 1 the same, 0 gone, 0 new"


def test_without_a_second_revision_the_files_here(repository):
    repository(x_a=record([0.5]))
    (records.folder() / "x_a.json").write_text(json.dumps(record([0.75])))
    said = records.compare(records.of_revision("HEAD"), records.of_tree())
    assert "0.5 -> 0.75 (+0.25; one seed, no spread)" in said


def test_a_command_whose_config_changed_is_the_same_cell(repository):
    old = {"x_a": record([0.5, 0.7], {"lr": 1}), "y": record([0.5], arguments="y")}
    said = records.compare(old, {"x_b": record([0.5, 0.8], {"lr": 2}), "z": record([0.5], {"lr": 9}, "z")})
    for line in (
        "x_a -> x_b",
        "config lr: 1 -> 2",
        "gone: y",
        "new: z",
        "1 changed, 0 the same, 1 gone, 1 new",
    ):
        assert line in said


def test_a_column_more_leaves_the_training_what_it_was():
    old = {"x-a": record([0.5], {"lr": 1}), "x-b": record([0.5], {"lr": 2}, "b")}
    new = {
        "x-c": record([0.5], {"lr": 1, "evaluators.knn.k": 3}, "c", metrics={"ess": 1}),
        "x-d": record([0.5], {"lr": 3}, "d"),
    }
    said = records.compare(old, new)
    for line in ("x-a -> x-c", "metrics.ess: - -> 1", "gone: x-b", "new: x-d"):
        assert line in said


def test_seeds_and_columns_that_come_and_go():
    lines = records.changes(record([0.5, 0.6]), record([0.5]))
    assert lines == ["seeds gone: 1"]
    failed = record([0.5])
    failed["seeds"]["0"]["evaluations"]["trained"]["knn"] = {"failed": "why"}
    assert set(records.changes(record([0.5]), failed)) == {
        "trained.knn.top1: 0.5 -> -",
        "trained.knn.failed: - -> why",
    }
    assert records.changes(record([0.5], ess=0.1), record([0.5], ess=0.1)) == []


def test_far_beyond_the_spread_comes_first_and_equal_seeds_have_none():
    old = record([0.5, 0.6], metrics={"ess": 0.5, "tau": 0.1})
    new = record([0.51, 0.61], metrics={"ess": 0.5, "tau": 0.2})
    first, second = records.changes(old, new)
    assert first.startswith("metrics.tau: 0.1 -> 0.2 (+0.1; beyond its spread, 0") and "0.14 of" in second


def test_a_revision_without_records_and_one_that_is_none(repository):
    assert records.of_revision("HEAD") == {}
    with pytest.raises(ValueError, match="REV is 'nowhere'"):
        records.of_revision("nowhere")


@pytest.mark.run
def test_the_command_needs_a_revision():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.harness", "compare"], capture_output=True, text=True
    )
    assert done.returncode and "REV1 [REV2]" in done.stderr
