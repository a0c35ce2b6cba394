"""Workdirs, encoders and data sets that somebody sends: reading one runs nothing and writes nowhere else."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from saved_runs import ROOT, config_of, workdir_of

from contrastive_jax import load_encoder, main
from contrastive_jax.commands import evaluate
from contrastive_jax.config import approval
from contrastive_jax.data import tfds_images
from contrastive_jax.training import loop
from contrastive_jax.workdir import weights

TOUCH = "import pathlib; pathlib.Path(__file__).with_name('RAN').touch()\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of somebody's where Python finds it."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/theirs.py").write_text(TOUCH + "def f(size, views): pass\n")
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(approval, "_allowed", set())
    yield tmp_path / "path"
    assert not (tmp_path / "path/RAN").exists() and "theirs" not in sys.modules


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_checkpoint_names_a_function(module, tmp_path):
    clean = config_of(**{"train.duration": "9 steps"})
    workdir_of(tmp_path / "run", clean | {"augment": {"preset": "theirs:f", "size": 8}})
    (tmp_path / "run/config.json").write_text(json.dumps(clean))
    before, place = contents(tmp_path), str(tmp_path / "run")
    starting = clean | {"init": clean["init"] | {"checkpoint": place}}
    judging = clean | {"evaluate": clean["evaluate"] | {"checkpoint": place}}
    for use in (
        lambda: load_encoder(place),
        lambda: load_encoder(tmp_path / "run/checkpoints"),
        lambda: evaluate.evaluate(clean, place),
        lambda: evaluate.evaluate(judging, str(tmp_path / "other")),
        lambda: loop.train(clean, place, quiet=True),
        lambda: loop.train(starting, str(tmp_path / "other"), quiet=True),
    ):
        with pytest.raises(ValueError, match=r"augment.preset is 'theirs:f' .*theirs\.py.*--allow=theirs:f"):
            use()
    assert {name: file for name, file in contents(tmp_path).items() if name in before} == before


def test_an_exported_encoder_names_a_function(module, tmp_path):
    config = config_of()
    params, stats = workdir_of(tmp_path / "run", config)
    named = config | {"augment": {"preset": "theirs:f", "size": 8}}
    about = {"config": named, "step": 1, "encoder": {}, "preprocessing": {}}
    weights.save(tmp_path / "encoder.safetensors", params["encoder"], stats["encoder"], about)
    with pytest.raises(ValueError, match=r"augment.preset is 'theirs:f' .*--allow=theirs:f"):
        load_encoder(tmp_path / "encoder.safetensors")


@pytest.mark.parametrize(
    "features",
    [
        {"pythonClassName": "theirs.F"},
        {"features": [{"python_class_name": "theirs.F"}]},
        {"type": "theirs.F", "content": {}},
    ],
)
def test_a_data_set_names_a_class(features, module, tmp_path):
    place = tmp_path / "sets/my_set/1.0.0"
    place.mkdir(parents=True)
    (place / "features.json").write_text(json.dumps(features))
    (place / "dataset_info.json").write_text(json.dumps({"name": "my_set", "version": "1.0.0"}))
    with pytest.raises(ValueError, match=r"features.json contains the class 'theirs\.F'"):
        tfds_images.prepared("my_set", str(tmp_path / "sets"))
    (place / "features.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"features.json is not the description"):
        tfds_images.prepared("my_set", str(tmp_path / "sets"))


PLANTED = (
    "tensorflow",
    "tensorboard",
    "wandb",
    "torch",
    "cv2",
    "sklearn",
    "rich",
    "matplotlib",
    "hashlib",
    "theirs",
)


@pytest.mark.slow
def test_the_command_in_somebodys_workdir(tmp_path):
    """Files that are named like libraries lie in the current folder, which is the workdir; its config names one."""
    config = config_of(**{"init.checkpoint": str(tmp_path / "mine"), "log.tensorboard": True})
    run = tmp_path / "run"
    workdir_of(run, config)
    (run / "configs").mkdir()
    for name in (*PLANTED, "configs/digits"):
        (run / f"{name}.py").write_text(TOUCH + "def f(size, views): pass\n")
    (run / "metrics.jsonl").write_text('{"step": 7, "epoch": 1.0, "loss": 1.0, "timing": {}}\n')
    program = pathlib.Path(sys.executable).with_name("contrastive-jax")
    environment = os.environ | {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}

    def command(*options):
        start = [program, *options]
        return subprocess.run(start, cwd=run, env=environment, capture_output=True, text=True)

    (run / "config.json").write_text(json.dumps(config | {"augment": {"preset": "theirs:f", "size": 8}}))
    before = contents(run)
    for mode in main.MODES:
        done = command("--workdir=.", f"--mode={mode}")
        assert done.returncode == 2 and "--allow=theirs:f" in done.stderr and "Traceback" not in done.stderr
    assert command("config", "show", ".").returncode == 2
    assert contents(run) == before
    (run / "config.json").write_text(json.dumps(config))
    assert command("config", "show", ".").returncode == 0
    for mode in ("evaluate", "export", "report"):  # what they write is sent on
        done = command("--workdir=.", f"--mode={mode}")
        assert done.returncode == 0, done.stderr
    assert not (run / "RAN").exists() and not (run / "configs/RAN").exists()
    for shared in ("encoder.safetensors", "report.html", "evaluation.json"):
        assert str(tmp_path).encode() not in (run / shared).read_bytes()
