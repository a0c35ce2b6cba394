"""Intriguing Properties' Figures 3 and 4 from the workdir of a run."""

import json
import sys

import pytest

from contrastive_jax import config as configs
from contrastive_jax import train
from experiments.intriguing import figure_3


@pytest.mark.run
def test_regions_of_a_runs_features(tmp_path, monkeypatch):
    config = configs.resolve(
        "multidigits:scale=smoke",
        [
            ("train.duration", "2 steps"),
            ("evaluate.final", False),
            ("log.tensorboard", False),
        ],
    )
    train(config, tmp_path / "run")
    given = [f"SimCLR={tmp_path / 'run'}", "--images=6", "--groups", "2", "--clusters", "2", "3"]
    monkeypatch.setattr(sys, "argv", ["figure_3", *given, f"--results={tmp_path / 'figure_3'}"])
    figure_3.main()
    cells = json.loads((tmp_path / "figure_3" / "regions.json").read_text())["cells"]
    assert [(cell["encoder"], cell["clusters"]) for cell in cells] == [
        (name, k) for name in ("SimCLR", "untrained", "raw pixels") for k in (2, 3)
    ]
    assert all(0 < cell["largest_class"] <= cell["purity"] <= 1 for cell in cells)
    assert "Purity in percent" in (tmp_path / "figure_3.md").read_text()
