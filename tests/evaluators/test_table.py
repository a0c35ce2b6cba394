import io
import json
import re
import types

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from contrastive_jax import config as configs
from contrastive_jax import data, evaluators, sharding
from contrastive_jax.evaluators import knn, linear_probe, table
from contrastive_jax.evaluators.evaluation_data import EvalSpec, EvaluationData, LabelledSubset
from contrastive_jax.training import pair_evaluation
from contrastive_jax.training import run as runs

RANDOM = np.random.default_rng(0)
LABELS = np.arange(60) % 3
SECTIONS = {
    "linear": {"name": "lbfgs"},
    "few_labels": {"name": "lbfgs", "labels_per_class": 5, "draws": 4},
    "knn": {"name": "knn", "k": 7},
    "tuned": {"name": "finetune_simclr"},
}


class Given:
    """A subject whose features are given."""

    def __init__(self, name, train, test, layer, encoder=None):
        self.name, self.encoder = name, encoder
        self._arrays = (train, LABELS[: len(train)], test, LABELS[: len(test)])
        self.layer = lambda wanted: layer
        self.train = LabelledSubset(data.Split(np.zeros((len(train), 1, 1, 1), np.uint8), self._arrays[1]))

    def arrays(self, layer, crop=None):
        return self._arrays


def features(noise):
    return [np.eye(3)[LABELS[:n]] + noise * RANDOM.normal(size=(n, 3)) for n in (60, 30)]


GOOD, BAD = Given("trained", *features(0.1), "pooled"), Given("raw pixels", *features(2), "pixels")


def judged(subjects, sections=SECTIONS, **options):
    found = table.scores(subjects, evaluators.build(sections, EvalSpec(("pooled",), LABELS)))
    screen = Console(file=io.StringIO(), width=120)
    table.print_table(found, console=screen, **options)
    return found, screen.file.getvalue()


def test_names_are_no_markup_and_move_no_cursor():
    """`k[/nn]` ended the command after the evaluation, `[cosine]` was not shown."""
    score = {"top1": 0.5, "protocol": "a [bold] one"}
    found = {
        "trained[/x]": {"k[/nn]": score, "knn[cosine]": score, "m\x1b[2J": {"rank": 3.0, "protocol": ""}}
    }
    screen = Console(file=io.StringIO(), width=120)
    table.print_table(found, console=screen)
    shown = screen.file.getvalue()
    assert "\x1b" not in shown
    assert all(
        name in shown for name in ("trained[/x]", "k[/nn]", "knn[cosine]", "m\\x1b[2J", "a [bold] one")
    )


def test_a_table_too_wide_for_the_terminal_is_turned():
    columns = [f"evaluator_{number}" for number in range(8)]
    scores = {column: {"top1": 0.9, "protocol": "one " * 30} for column in columns}
    screen = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    table.print_table({"trained": scores, "untrained": scores}, console=screen)
    lines = screen.file.getvalue().splitlines()
    assert re.match(r". evaluator +. trained . untrained .$", lines[2]) and max(map(len, lines)) <= 80
    assert all(any(line.startswith(f"│ {column} ") for line in lines) for column in columns)
    assert not any(line.rstrip().endswith(" on") for line in lines)  # protocols break between words


def test_an_own_evaluator_that_fails_or_says_little_takes_no_other_column_with_it(capsys):
    def broken(subject):
        return {}["key"]

    subject = types.SimpleNamespace(name="trained")
    found = table.scores([subject], {"broken": broken, "short": lambda subject: {"top1": 0.5}})["trained"]
    assert found["short"] == {"top1": 0.5}

    def gone(subject):
        raise OSError("the file system does not answer")

    with pytest.raises(OSError, match="does not answer"):  # it is no fault of the column's
        table.scores([subject], {"gone": gone})
    assert found["broken"]["failed"].startswith("KeyError: 'key' (") and "test_table.py, line" in str(found)
    table.print_table({"trained": found}, beside="mean_per_class")
    assert {"failed", "50.0"} <= set(capsys.readouterr().out.replace("|", " ").split())


def test_what_an_own_evaluator_returns_is_numbers_or_the_column_failed(capsys):
    """Each of these ended the whole evaluation, or the training, with a stack trace."""
    bad = {
        "bare": 0.9, "nothing": None, "none": {"top1": None}, "pair": {"top1": np.zeros(2)},
        "unsaid": {"top1": 0.5, "protocol": 3}, "set": {"top1": 0.5, "classes": {1}},
        "complex": {"rank": np.complex64(1j)},
    }  # fmt: skip
    good = {"top1": np.float32(0.5), "count": np.int64(3), "each": jnp.arange(2), "lost": float("nan")}
    judges = {name: lambda subject, value=value: value for name, value in (bad | {"good": good}).items()}
    found = table.scores([types.SimpleNamespace(name="trained")], judges)["trained"]
    assert all("failed" in found[name] for name in bad) and "'top1' is None" in found["none"]["failed"]
    assert found["good"] | {"lost": 0} == {"top1": 0.5, "count": 3, "each": [0, 1], "lost": 0}
    assert [type(value) for value in found["good"].values()] == [float, int, list, float]
    table.print_table({"trained": found})
    assert capsys.readouterr().out.count("FAILED: ") == len(bad)


def test_table_and_result_say_the_same_and_carry_protocols():
    found, text = judged([GOOD, BAD])
    assert json.loads(json.dumps(found)) == found
    for subject in (GOOD, BAD):
        layer, scores = subject.layer(""), found[subject.name]
        arrays = subject.arrays("")
        assert scores["linear"] == linear_probe.lbfgs(*arrays, layer=layer)
        few = linear_probe.lbfgs(*arrays, layer=layer, labels_per_class=5, draws=4)
        assert scores["few_labels"] == few
        assert scores["knn"] == knn.evaluate(*arrays, k=7, layer=layer)
        row = next(line for line in text.splitlines() if subject.name in line)
        assert f" {100 * scores['linear']['top1']:.1f} " in row
        assert f" {100 * few['top1']:.1f} ± {100 * few['top1_std']:.1f} " in row
        assert f" {100 * scores['knn']['top1']:.1f} " in row and row.rstrip(" │").endswith("—")
    assert found["trained"]["knn"]["top1"] > found["raw pixels"]["knn"]["top1"]
    for line in (
        "linear: linear, all labels, L-BFGS, C=1, standardised on the training images, layer pooled",
        "few_labels: linear, 5 labels per class, 4 draws, L-BFGS, C=1, standardised on the training images, "
        "layer pooled",
        "knn: kNN, k=7, cosine, unweighted, layer pooled, bank = all clean training images",
        "tuned: left out: raw pixels have no network to train",
    ):
        assert text.splitlines().count(line) == 1, line


def test_what_is_no_accuracy_has_a_table_of_its_own():
    screen = Console(file=io.StringIO(), width=120)
    geometry = {
        "alignment": 0.25,
        "uniformity": -2.34567,
        "converged": True,
        "protocol": "how",
        "settings": {},
    }
    rows = {
        "trained": {"knn": {"top1": 0.5, "protocol": "k"}, "geometry": geometry},
        "raw pixels": {"knn": {"top1": 0.4, "protocol": "k"}, "geometry": {"left_out": "no network"}},
    }
    table.print_table(rows, console=screen)
    lines = [line.replace(" ", "").strip("│").split("│") for line in screen.file.getvalue().splitlines()]
    assert ["trained", "50.0"] in lines and ["rawpixels", "40.0"] in lines  # no column of dashes
    assert ["geometry:alignment", "0.25", "—"] in lines and ["geometry:uniformity", "-2.346", "—"] in lines
    screen = Console(file=io.StringIO(), width=120)
    table.print_table({"trained": {"geometry": geometry}}, console=screen)
    assert "Top-1" not in screen.file.getvalue() and "geometry: how" in screen.file.getvalue()


def test_the_line_of_a_score_has_all_that_is_no_accuracy():
    """While a run is judged a measure's line had a dash, and its numbers came minutes later, in the table."""
    geometry = {"alignment": 0.25, "rank": 7, "converged": True, "protocol": "how", "settings": {}}
    assert table.line(geometry) == "alignment 0.25, rank 7"
    assert table.line({"top1": 0.5, "k": 3}) == "50.0" and table.line({"left_out": "no network"}) == "—"
    assert table.line({"top1": 0.5}, "map_11_point") == "—"


def test_mean_per_class_in_brackets_or_alone():
    found, text = judged([GOOD], {"knn": {"name": "knn"}}, beside="mean_per_class")
    scores = found["trained"]["knn"]
    assert f"{100 * scores['top1']:.1f} ({100 * scores['mean_per_class']:.1f})" in text
    _, text = judged([GOOD], {"knn": {"name": "knn"}}, metric="mean_per_class")
    assert "Mean per-class accuracy on the test images" in text


def test_top5_has_top1_beside_it():
    screen, score = Console(file=io.StringIO(), width=120), {"top1": 0.5, "top5": 0.875, "protocol": "how"}
    table.print_table({"trained": {"linear": score}}, metric="top5", beside="top1", console=screen)
    text = screen.file.getvalue()
    assert "87.5 (50.0)" in text and "Top-5 (top-1) on the test images" in text


def test_the_row_of_several_seeds_is_their_mean_and_deviation():
    """The deviation over seeds is in the place of that over draws; what one of them lacks is left out."""
    first = {"few": {"top1": 0.5, "top1_std": 0.2, "protocol": "how"}, "knn": {"top1": 0.4, "protocol": "k"}}
    second = {"few": {"top1": 0.6, "protocol": "how", "converged": False}, "knn": {"failed": "no room"}}
    row = table.mean_of([first, second])
    assert row.keys() == {"few"} == table.mean_of([second, first]).keys()
    assert row["few"].pop("settings") == {} and row["few"] == pytest.approx(
        {"top1": 0.55, "top1_std": 0.005**0.5, "protocol": "how", "converged": False}
    )
    assert table.cell(row["few"]) == "55.0 ± 7.1 (not converged)"
    measures = table.mean_of([{"rank": {"rankme": value, "protocol": "p"}} for value in (10, 12)])
    assert measures["rank"]["rankme"] == 11 and measures["rank"]["rankme_std"] == pytest.approx(2**0.5)
    screen = Console(file=io.StringIO(), width=120)
    table.print_table({"mean ± sd of 2": measures}, console=screen)
    assert "11 ± 1.4" in screen.file.getvalue() and "rankme_std" not in screen.file.getvalue()
    infinite = table.mean_of([{"rank": {"rankme": value}} for value in (10.0, float("inf"))])["rank"]
    assert infinite["rankme"] == float("inf") and np.isnan(infinite["rankme_std"])
    screen = Console(file=io.StringIO(), width=120)
    table.print_table({"a": {"rank": {"rankme": 7.0}}, "b": {"rank": {"rankme": None}}}, console=screen)
    assert "7" in screen.file.getvalue() and "—" in screen.file.getvalue()


def test_top5_of_five_classes_is_refused():
    images, labels = np.zeros((10, 8, 8, 1), np.uint8), np.arange(10) % 5
    source = data.from_arrays(images, labels, images, labels, name="five")
    settings = configs.resolve(None, {"evaluate.metric": "top5"})
    with pytest.raises(ValueError, match="evaluate.metric is 'top5'; with the 5 classes of data.name='five'"):
        runs.evaluators_of(settings, source)


def test_the_metric_is_that_of_the_sets_literature():
    one, several = np.arange(10) % 5, np.zeros((4, 3), np.uint8)
    assert table.metric_of("cifar10", False) == "top1"
    assert table.metric_of("oxford_flowers102:2.1.1", False) == "mean_per_class"
    assert table.metric_of("voc/2007", True) == "map_11_point"
    images, labels = np.zeros((300, 8, 8, 3), np.uint8), np.arange(300) % 5
    source = data.from_arrays(images, labels, images, labels, name="five")
    for named in ({"data.name": "caltech101"}, {"data.name": "tfds", "data.set": "caltech101"}):
        evaluator = pair_evaluation.evaluator_of(configs.resolve(None, named), source, sharding.make_mesh())
        assert evaluator.metric() == "mean_per_class"
    assert (
        not table.unbalanced(one) and table.unbalanced(np.array([0, 0, 1])) and not table.unbalanced(several)
    )


def test_a_row_need_not_have_every_column():
    """Raw pixels of one set may be too many, and of another not."""
    screen = Console(file=io.StringIO(), width=120)
    score = {"top1": 0.5, "protocol": "how"}
    rows = {"raw pixels": {"knn": score}, "trained": {"knn": score, "knn@digit": score | {"top1": 0.25}}}
    table.print_table(rows, console=screen)
    lines = screen.file.getvalue().splitlines()
    assert next(line for line in lines if "raw pixels" in line).split("│")[2:4] == [" 50.0 ", "         — "]
    assert next(line for line in lines if "trained" in line).split("│")[2:4] == [" 50.0 ", "      25.0 "]
    assert "knn@digit: how" in lines


def test_what_has_not_converged_is_seen_in_the_table():
    with pytest.warns(RuntimeWarning, match="NOT CONVERGED"):
        _, text = judged([BAD], {"linear": {"name": "lbfgs", "max_iterations": 2}})
    assert "(not converged)" in text and "NOT CONVERGED" in text


def test_raw_digits():
    """The baseline of the README, on a fixed split: the optimum is 96.9; L-BFGS at 1e-4 stops at 96.7."""
    digits, labels = load_digits(return_X_y=True)
    split = train_test_split(digits / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    train, test, train_labels, test_labels = split
    arrays = (train, train_labels, test, test_labels)
    linear, few = linear_probe.lbfgs(*arrays), linear_probe.lbfgs(*arrays, labels_per_class=10)
    assert linear["converged"] and few["converged"]
    assert linear["top1"] == pytest.approx(349 / 360)
    assert few["top1"] == pytest.approx(0.888, abs=0.01)
    assert knn.evaluate(*arrays)["top1"] == pytest.approx(352 / 360)
    assert knn.evaluate(*arrays, standardize=True)["top1"] == pytest.approx(340 / 360)


def test_pixels_are_a_subject_like_any_other():
    images = RANDOM.integers(0, 256, (20, 4, 4, 1), np.uint8)
    part = LabelledSubset(data.Split(images, LABELS[:20]))
    subject = EvaluationData(
        "raw pixels", None, part, part.chosen(np.arange(5)), layers=("pooled",), batch_size=8
    )
    train, labels, test, test_labels = subject.arrays("pooled")
    np.testing.assert_array_equal(train.numpy(), images.reshape(20, -1).astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(test.numpy(), train.numpy()[:5])
    np.testing.assert_array_equal(labels, LABELS[:20])
    assert subject.layer("projection_1") == "pixels" and len(test_labels) == 5


def test_draws_by_the_seed_of_the_run():
    """A column's seed -1 is the run's own: other draws of labels for each run, the same as if they were named."""
    images = np.zeros((60, 8, 8, 1), np.uint8)
    source = data.from_arrays(images, LABELS, images, LABELS, name="drawn")
    settings = configs.resolve(None)
    row = Given("trained", *np.random.default_rng(0).normal(size=(2, 60, 4)), "pooled")

    def score(run: int, column: int) -> float:
        section = {"few": {"name": "lbfgs", "labels_per_class": 2, "draws": 3, "seed": column}}
        built = runs.evaluators_of(settings.replaced(seed=run, evaluators=section), source)
        return built[""]["few"](row)["top1"]

    assert score(5, -1) == score(0, 5) == score(9, 5) != score(6, -1) == score(0, 6)
    with pytest.raises(ValueError, match="seed is -2"):
        score(0, -2)
