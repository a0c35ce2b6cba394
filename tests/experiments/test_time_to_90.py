"""The judge of records: what it refuses, what it counts, and that a stopped run goes on."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

FILE = pathlib.Path(__file__).parents[2] / "experiments" / "performance" / "time_to_90.py"
SPEC = importlib.util.spec_from_file_location("time_to_90", FILE)
judge = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(judge)


def made(seed, knn, seconds):
    look = {"epoch": 5.0, "training_seconds": seconds, "knn": knn}
    return {
        "seed": seed, "knn": knn, "training_seconds": seconds, "seconds": seconds + 9, "starts": 2, "looks": [look],
        "device": {"kind": "H200"},
    }  # fmt: skip


def test_a_record_is_a_mean_over_three_seeds_at_the_target():
    settings = judge.SCALES["gpu"]
    two = [made(100, 0.899, 600), made(101, 0.902, 606)]
    assert not judge.summary("x", settings, two)["reached"]
    assert "3 seeds are needed, 2 are here" in judge.report("x", settings, two)
    low = [*two, made(102, 0.898, 612)]
    assert not judge.summary("x", settings, low)["reached"] and "below 90.0 %" in judge.report(
        "x", settings, low
    )
    three = [*two, made(102, 0.902, 612)]
    found = judge.summary("x", settings, three)
    assert found["reached"] and found["training_seconds"] == {"mean": 606, "standard_deviation": 6}
    text = judge.report("x", settings, three)
    assert "90.10 +- 0.17 %, 606 +- 6 s of training, 615 +- 6 s with looks" in text
    assert "a record: 10.10 minutes" in text and "seed 100: kNN 89.90 % at the end" in text


def test_all_training_images_are_trained_on_and_kNN_is_the_rules():
    config = judge.config_of(judge.SCALES["gpu"]["config"], "cifar10", 100)
    knn = config["evaluators"]["knn"]
    assert list(config["evaluators"]) == ["knn"] and (knn["k"], knn["temperature"]) == (10, 0.0)
    assert config["seed"] == 100 and config["train"]["duration"] == "500 epochs"
    with pytest.raises(ValueError, match="data.name is 'digits'"):
        judge.config_of("configs/flatclr_digits.py", "cifar10")


def test_earlier_rules_are_no_runs_of_these():
    old = json.loads((FILE.parent / "results" / "time_to_90_cpu_2026-11-22.json").read_text())
    assert old["rules"] == 1 and len(old["runs"]) == 3
    config = judge.config_of(judge.SCALES["cpu"]["config"], "digits")
    assert judge.known("cpu", judge.key_of(config)) == []


@pytest.mark.slow
def test_a_stopped_run_ends_as_one_that_was_not(tmp_path):
    def call(name, *more):
        command = [sys.executable, str(FILE), "--scale=smoke", f"--out={tmp_path / name}", *more]
        return subprocess.run(command, capture_output=True, text=True)

    stopped = call("parts.json", "--minutes=0.02")
    assert stopped.returncode == judge.STOPPED and not (tmp_path / "parts.json").exists(), stopped.stderr
    other = call("parts.json", "--config=configs/flatclr_digits.py:scale=smoke", "--minutes=0.02")
    assert "at step 1 of" in other.stderr  # of its own: nothing of the other config's run is taken
    for name in ("parts.json", "whole.json"):
        assert (done := call(name)).returncode == 0, done.stderr
    (parts,), (whole,) = (
        json.loads((tmp_path / name).read_text())["runs"] for name in ("parts.json", "whole.json")
    )
    assert [look["knn"] for look in parts["looks"]] == [look["knn"] for look in whole["looks"]]
    assert (parts["starts"], whole["starts"]) == (2, 1)
    assert call("whole.json").returncode == 0  # nothing is left
    refused = call("whole.json", "--config=configs/flatclr_digits.py:scale=smoke")
    assert refused.returncode == 1 and "another config" in refused.stderr
