"""One whole story: a run is trained, stopped, resumed bit for bit and judged. Other stories are of the tier ``run``."""

import contextlib
import io
import json
import shutil

import jax
import numpy as np
import pytest
from saved_runs import assert_same, config_of, left_behind, stop_at

from contrastive_jax import config as configs
from contrastive_jax import evaluators
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import evaluate
from contrastive_jax.training import evaluation, initial, loop, program
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import checkpoint

ONE = jax.devices()[:1]


def short(method, **leaves):
    steps = {"train.duration": "6 steps", "log.every": 1}
    return config_of(method=method, **steps | leaves)


CONFIG = short(
    "flatclr_ess",
    **{
        "train.batch_size": 500,  # an epoch is three steps: where it is resumed, another order of images begins
        "gradient_snr.decay": 0.5,
        "evaluate.every": "3 steps",
        "evaluate.final": True,
        "evaluators.few_labels.draws": 2,
    },
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody stopped: its workdir, its result, and what it printed."""
    workdir, printed = tmp_path_factory.mktemp("story") / "whole", io.StringIO()
    built, prepare = [], evaluators.prepare
    with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluators, "prepare", lambda *a, **k: built.append(a) or prepare(*a, **k))
        result = loop.train(CONFIG, workdir, devices=ONE)
    assert len(built) == 1
    return workdir, result, printed.getvalue()


def test_a_run_leaves_what_it_promises(whole):
    workdir, result, printed = whole
    files = ("config.json", "config_diff.txt", "metrics.jsonl", "result.json", "curves.png", "checkpoints")
    for name in files:
        assert (workdir / name).exists(), name
    saved = json.loads((workdir / "result.json").read_text())
    assert json.loads((workdir / "config.json").read_text()) == CONFIG
    for encoder in ("trained", "untrained", "raw pixels"):
        assert encoder in printed
        for protocol in saved["evaluations"][encoder].values():
            assert 0 <= protocol["top1"] <= 1 and protocol["protocol"]
    assert saved["evaluations"] == json.loads(json.dumps(result["evaluations"]))
    assert any("eval/knn_top1" in line for line in workdirs.read_metrics(workdir))
    assert "InfoNCE" in printed and "images/s" in printed  # plain lines where there is no terminal


def test_stopped_and_resumed_is_uninterrupted_bit_for_bit(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        with pytest.raises(loop.Stopped, match="stopped at step 3 of 6; saved .* the command to resume"):
            loop.train(CONFIG, tmp_path, quiet=True, devices=ONE)
    result = loop.train(CONFIG, tmp_path, quiet=True, devices=ONE)
    first = left_behind(whole[0], CONFIG)
    trained = [row for row in first[2] if "loss" in row]
    assert first[1] == len(trained) == 6 and trained[-1]["gradient_snr"] > 0
    assert_same(first, left_behind(tmp_path, CONFIG))
    assert result["evaluations"] == whole[1]["evaluations"]


def test_an_interrupted_evaluation_during_training_is_made_up_for(whole, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "look", interrupted)
        with pytest.raises(loop.Stopped, match="stopped at step 3 of 6; saved .* the command to resume"):
            loop.train(CONFIG, tmp_path, quiet=True, devices=ONE)
    seen = []
    loop.train(
        CONFIG, tmp_path, quiet=True, devices=ONE, on_log=lambda step, metrics: seen.append((step, metrics))
    )
    assert_same(left_behind(whole[0], CONFIG), left_behind(tmp_path, CONFIG))
    assert [step for step, metrics in seen if "eval/knn_top1" in metrics] == [3, 6]


def test_the_same_command_again_judges_it_and_keeps_what_training_said_of_its_speed(whole):
    workdir = whole[0]
    before = json.loads((workdir / "result.json").read_text())
    again = loop.train(CONFIG, str(workdir), quiet=True, devices=ONE)
    assert before["images_per_second"] > 0 and before["lost_to_checkpoint"] > 0
    assert json.loads((workdir / "result.json").read_text()) == before == json.loads(json.dumps(again))


def test_where_it_is_not_judged_again_the_evaluations_of_before_stay(whole, tmp_path):
    workdir = shutil.copytree(whole[0], tmp_path / "copy")
    unjudged = CONFIG | {"evaluate": CONFIG["evaluate"] | {"final": False}}
    loop.train(unjudged, workdir, quiet=True, devices=ONE)
    assert json.loads((workdir / "result.json").read_text())["evaluations"] == whole[1]["evaluations"]


def test_it_can_be_judged_again(whole):
    workdir, result, _ = whole
    again = evaluate.evaluate(CONFIG, str(workdir), quiet=True)
    assert again["results"] == result["evaluations"] and again["step"] == 6
    assert again["config"] == configs.fingerprint(CONFIG)
    assert json.loads((workdir / "evaluation.json").read_text())["results"] == again["results"]


def test_another_method_starts_from_its_encoder(whole):
    workdir = whole[0]
    other = short("simclr", **{"init.checkpoint": str(workdir), "schedule.learning_rate": 0.0})
    run = runs.prepare(other, ONE)
    with jax.set_mesh(run.mesh):
        state = initial.first_state(program.single(run), print)
    with checkpoint.Checkpoints(workdir / "checkpoints", read_only=True) as book:
        parts, step, _ = book.restore_part(("params/encoder", "stats/encoder"))
    assert step == 6
    for part in ("params", "stats"):
        found = getattr(state, part)["encoder"]
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(parts[part]["encoder"]), strict=True):
            np.testing.assert_array_equal(a, b)
