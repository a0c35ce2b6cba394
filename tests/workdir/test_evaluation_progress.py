"""What an evaluation shows, and what is left where it is interrupted."""

import dataclasses
import io
import json
import os
import signal

import jax
import numpy as np
import pytest
from rich.console import Console
from saved_runs import stop_at

from contrastive_jax import config as configs
from contrastive_jax import distributed
from contrastive_jax.evaluators import progress
from contrastive_jax.training import evaluation, loop, resume
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import EvaluationProgress, checkpoint


def test_scores_are_lines_and_what_is_reported_is_the_status():
    out, now = io.StringIO(), iter(range(100))
    console = Console(file=out, force_terminal=True, width=200)
    with EvaluationProgress("evaluating it", console=console, clock=lambda: float(next(now))) as shown:
        shown.begin("trained")
        progress.report("images encoded", 512, 1437)
        assert str(shown._status.status) == "trained: 512 of 1,437 images encoded"
        shown.score("trained", "knn", "97.2")
    progress.report("images encoded", 1, 2)  # nobody listens any more
    text = out.getvalue()
    assert text.index("evaluating it") < text.index("  trained, knn: 97.2  (")
    quiet = io.StringIO()
    with EvaluationProgress("evaluating it", quiet=True, console=Console(file=quiet)) as shown:
        shown.score("trained", "knn", "97.2")
    assert not quiet.getvalue()


@pytest.mark.run
def test_an_interrupted_evaluation_says_what_is_there_and_the_same_command_makes_it(
    tmp_path, capsys, monkeypatch
):
    config = configs.plain(configs.load("digits:scale=smoke"))
    config |= {
        "evaluators": {"knn": {"name": "knn", "k": 3}},
        "train": config["train"] | {"duration": "1 step"},
    }
    config["schedule"] = config["schedule"] | {"warmup": "0 steps"}
    config = configs.plain(configs.completed(config))
    one = jax.devices()[:1]

    def interrupted(*arguments, **options):
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        os.kill(os.getpid(), number)

    for number, has in ((signal.SIGINT, "no evaluations yet"), (signal.SIGTERM, "the earlier evaluations")):
        with monkeypatch.context() as patch:
            patch.setattr(evaluation.table, "scores", interrupted)
            before = signal.getsignal(signal.SIGTERM)
            distributed.end_by_sigterm()
            with pytest.raises(
                loop.Stopped, match=f"trained and saved .* has {has}. Repeat the command"
            ) as stopped:
                loop.train(config, str(tmp_path), devices=one)
        signal.signal(signal.SIGTERM, before)
        assert stopped.value.code == 128 + number
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped, match="no evaluations yet") as stopped:
        stop_at(patch, 0)  # the last step
        loop.train(config, str(tmp_path / "last"), devices=one)
    assert stopped.value.code == 128 + signal.SIGTERM
    number = signal.SIGINT
    assert json.loads((tmp_path / "result.json").read_text())["evaluations"] == {}
    capsys.readouterr()
    result = loop.train(config, str(tmp_path), devices=one)
    assert set(result["evaluations"]) == {"trained", "untrained", "raw pixels"}
    source = runs.source_of(config)
    fewer = dataclasses.replace(source, train=source.train[np.arange(1_000)])
    with pytest.raises(ValueError, match="data has 1,000 training images; .* 1,437"):
        loop.train(config, str(tmp_path), devices=one, source=fewer)
    named = dataclasses.replace(source.train, paths=np.array([f"{i}.png" for i in range(len(source.train))]))
    files = resume.about(runs.prepare(config, devices=one, source=dataclasses.replace(source, train=named)))
    swapped = dataclasses.replace(named, paths=named.paths[::-1])
    elsewhere = resume.about(runs.prepare(config, devices=one, source=source)) | {"streamed": True}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "read_meta", lambda _: (0, files))
        with pytest.raises(ValueError, match="1,437 training images, as many .* other files"):
            loop.train(config, str(tmp_path), devices=one, source=dataclasses.replace(source, train=swapped))
        patch.setattr(checkpoint.Checkpoints, "read_meta", lambda _: (0, elsewhere))
        with pytest.raises(ValueError, match="data is in memory, .* data streamed.* data.stream=on"):
            loop.train(config, str(tmp_path), devices=one, source=source)
    said = capsys.readouterr().out
    assert "evaluating trained, untrained, raw pixels by knn; 1,437 training and 360 test images" in said
    assert said.index("trained, knn: ") < said.index("raw pixels, knn: ") < said.index("Top-1")
    with monkeypatch.context() as patch:
        patch.setattr(evaluation.table, "scores", interrupted)
        with pytest.raises(loop.Stopped, match="the earlier evaluations"):
            loop.train(config, str(tmp_path), devices=one)
    assert json.loads((tmp_path / "result.json").read_text())["evaluations"] == result["evaluations"]
