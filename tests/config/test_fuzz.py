"""The door: whatever a config says, it is traced or refused in one sentence, and nothing is written."""

import json

import hypothesis
import pytest

from contrastive_jax import config as configs
from contrastive_jax import kinds
from contrastive_jax.config import schema
from experiments.reliability import fuzz


@pytest.fixture(scope="module", autouse=True)
def small():
    with fuzz.tiny():
        yield


@hypothesis.settings(
    max_examples=50, deadline=None, derandomize=True, database=None, phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip
@hypothesis.given(fuzz.changed())
def test_any_config_is_traced_or_refused_in_a_sentence(example):
    outcome, why = fuzz.attempt(*example)
    assert outcome != "failed", why


@pytest.mark.run
@pytest.mark.parametrize(
    "change", [{"optimizer.b2": 0.5}, {"seed": 2**31 - 1}, {"candidates.same_group": "keep"}]
)
def test_what_traces_takes_real_steps(change):
    assert fuzz.attempt(changed(**change), change, steps=2) == ("trained", "")


def changed(method="moco_v2", **leaves):
    config = json.loads(fuzz.of_method(method))
    for leaf, value in leaves.items():
        *path, key = leaf.split(".")
        section = config
        for name in path:
            section = section[name]
        section[key] = value
    return config


# Each of these came through the door once, as something else than a sentence, or unnoticed.
REFUSED = [
    ("train.batch_size", "128", "train.batch_size is '128'; it must be a whole number of at least 2."),
    ("train.batch_size", True, "train.batch_size is True; it must be a whole number of at least 2."),
    ("encoder.width", float("nan"), "encoder.width is nan; it must be a finite number below 3.4e38."),
    ("augment.ratio", [1.0], "augment.ratio is [1.0]; it must be a tuple of 2 numbers above 0."),
    ("profile.steps", [0.5, 1], "profile.steps is [0.5, 1]; it must be a tuple of whole numbers."),
    ("data", 5, "data is 5; it must be a section"),
    ("train.duration", {"a": 1}, "train.duration is {'a': 1}; it must be one value, not a section."),
    ("train.duration", "1.2.3 epochs", "train.duration is '1.2.3 epochs'; it must be a number and a unit"),
    (
        "train.duration",
        "1e9 epochs",
        "train.duration is '1e9 epochs', 4.5e+10 steps; a run must have fewer than 2**31.",
    ),
    ("loss", {}, "loss is empty"),
    ("name", "../outside", "name is '../outside'; it must be a folder name"),
    ("name", "/etc/passwd", "name is '/etc/passwd'; it must be a folder name"),
    ("name", ".hidden", "name is '.hidden'; it must be a folder name"),
    ("seed", -1, "seed is -1; it must be at least 0."),
]


@pytest.mark.parametrize(("leaf", "value", "sentence"), REFUSED)
def test_a_wrong_value_is_named(leaf, value, sentence):
    outcome, why = fuzz.attempt(changed(**{leaf: value}), {leaf: value})
    assert outcome == "refused" and why.startswith(sentence), why


@pytest.mark.parametrize("leaf", ["directions", "train.batch_size", "temperature.name", "train"])
def test_a_leaf_that_is_missing_is_named(leaf):
    config = changed()
    path, _, key = leaf.rpartition(".")
    del (config[path] if path else config)[key]
    outcome, why = fuzz.attempt(config, {leaf: None})
    assert outcome == "refused" and why.startswith(f"{leaf} is missing"), why


def test_values_of_every_config_fit():
    """And every annotation is one that ``fits`` knows."""
    schema.check(configs.plain(configs.complete(configs.base())))
    for option in schema.every():
        if option.function:
            kind = kinds.parameters(option.function)[option.name.rpartition(".")[2]].annotation
            assert kinds.words(kind) and not kinds.fits(object(), kind), option.name
