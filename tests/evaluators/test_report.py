import io
import json

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from contrastive_jax.evaluators import knn, linear_probe
from contrastive_jax.evaluators.report import Encoded, report

RANDOM = np.random.default_rng(0)
LABELS = np.arange(60) % 3
GOOD = Encoded(*[np.eye(3)[LABELS[:n]] + 0.1 * RANDOM.normal(size=(n, 3)) for n in (60, 30)])
BAD = Encoded(*[np.eye(3)[LABELS[:n]] + 2 * RANDOM.normal(size=(n, 3)) for n in (60, 30)], layer="pixels")


def test_table_and_result_say_the_same_and_carry_protocols():
    screen = Console(file=io.StringIO(), width=120)
    encoders = {"trained": GOOD, "raw pixels": BAD}
    found = report(encoders, LABELS, LABELS[:30], labels_per_class=5, draws=4, k=7, console=screen)
    text = screen.file.getvalue()
    assert json.loads(json.dumps(found)) == found
    for name, encoded in encoders.items():
        arrays = (encoded.train, LABELS, encoded.test, LABELS[:30])
        assert found[name]["linear"] == linear_probe.lbfgs(*arrays, layer=encoded.layer)
        few = linear_probe.lbfgs(*arrays, layer=encoded.layer, labels_per_class=5, draws=4)
        assert found[name]["linear_few_labels"] == few
        assert found[name]["knn"] == knn.evaluate(*arrays, k=7, layer=encoded.layer)
        row = next(line for line in text.splitlines() if name in line)
        assert encoded.layer in row
        assert f" {100 * found[name]['linear']['top1']:.1f} " in row
        assert f" {100 * few['top1']:.1f} ± {100 * few['top1_std']:.1f} " in row
        assert f" {100 * found[name]['knn']['top1']:.1f} " in row
    assert found["trained"]["knn"]["top1"] > found["raw pixels"]["knn"]["top1"]
    for line in (
        "linear, all labels, L-BFGS, C=1, standardised on the training images",
        "linear, 5 labels per class, 4 draws, L-BFGS, C=1, standardised on the training images",
        "kNN, k=7, cosine, unweighted, bank = all clean training images",
    ):
        assert text.splitlines().count(line) == 1


def test_what_has_not_converged_is_seen_in_the_table(monkeypatch):
    lbfgs = linear_probe.lbfgs
    monkeypatch.setattr(linear_probe, "lbfgs", lambda *a, **k: lbfgs(*a, **k, max_iterations=2))
    screen = Console(file=io.StringIO(), width=120)
    with pytest.warns(RuntimeWarning, match="NOT CONVERGED"):
        report({"trained": BAD}, LABELS, LABELS[:30], labels_per_class=5, draws=2, console=screen)
    assert "(not converged)" in screen.file.getvalue() and "NOT CONVERGED" in screen.file.getvalue()


def test_quiet_prints_nothing(capsys):
    report({"trained": GOOD}, LABELS, LABELS[:30], labels_per_class=5, draws=2, quiet=True)
    assert capsys.readouterr().out == ""


def test_raw_digits():
    """The baseline of the README, on a fixed split: the optimum is 96.9; L-BFGS at 1e-4 stops at 96.7."""
    digits, labels = load_digits(return_X_y=True)
    split = train_test_split(digits / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    train, test, train_labels, test_labels = split
    scores = report({"raw pixels": Encoded(train, test, "pixels")}, train_labels, test_labels, quiet=True)[
        "raw pixels"
    ]
    assert scores["linear"]["converged"] and scores["linear_few_labels"]["converged"]
    assert scores["linear"]["top1"] == pytest.approx(349 / 360)
    assert scores["linear_few_labels"]["top1"] == pytest.approx(0.888, abs=0.01)
    assert scores["knn"]["top1"] == pytest.approx(352 / 360)
    scaled = knn.evaluate(train, train_labels, test, test_labels, standardize=True)
    assert scaled["top1"] == pytest.approx(340 / 360)
