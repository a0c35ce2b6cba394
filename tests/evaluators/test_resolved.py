"""Entropy at a resolution: between nothing and what there is."""

import dataclasses
import math

import numpy as np
import pytest

from contrastive_jax import data
from contrastive_jax.data import compose
from contrastive_jax.evaluators import geometry, measures
from contrastive_jax.evaluators.evaluation_data import EvalSpec, LabelledSubset

INTEGERS = np.random.default_rng(0).integers(0, 8, 600)
BITS = INTEGERS[:, None] >> np.arange(3) & 1
ORTHOGONAL = np.eye(8)[INTEGERS]


def entropy(points, labels=BITS, temperature=0.1):
    return geometry.resolved_entropy(points, labels, temperature=temperature, layer="pooled")


def test_the_floor_is_the_entropy_of_the_integers():
    share = np.bincount(INTEGERS) / 600
    assert entropy(ORTHOGONAL)["floor"] == pytest.approx(-np.sum(share * np.log(share)), rel=1e-12)
    assert entropy(ORTHOGONAL, INTEGERS)["floor"] == pytest.approx(entropy(ORTHOGONAL)["floor"], rel=1e-12)


def test_embeddings_far_apart_tell_all_and_equal_ones_nothing():
    found = entropy(ORTHOGONAL, temperature=0.01)
    assert found["nats"] == pytest.approx(found["floor"], rel=1e-9) and found["recovered"] == pytest.approx(1)
    assert entropy(np.ones((600, 4)))["nats"] == pytest.approx(0, abs=1e-12)
    first_bit = entropy(np.eye(2)[BITS[:, 0]], temperature=0.01)
    assert first_bit["nats"] == pytest.approx(math.log(2), abs=0.01)


def test_against_a_direct_sum_and_never_above_the_floor():
    random = np.random.default_rng(1)
    points = random.normal(size=(8, 5))[INTEGERS] * 3.0
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    for temperature in (0.05, 0.2, 1.0):
        found = entropy(points, temperature=temperature)
        direct = [
            -math.log(np.mean([math.exp((one @ other - 1) / temperature) for other in unit]))
            for one in unit[:40]
        ]
        assert np.mean(direct) == pytest.approx(found["nats"], abs=0.2)
        every = -np.log(np.exp((unit @ unit.T - 1) / temperature).mean(1)).mean()
        assert found["nats"] == pytest.approx(every, rel=1e-9)
        assert 0 < found["nats"] <= found["floor"] + 1e-9


def test_without_labels_that_say_what_images_show_nothing_is_said_of_a_share():
    """1,000 rows and two labels: the entropy of the labels is no floor, and 9.97 of it no share."""
    points = np.random.default_rng(0).normal(size=(1000, 32))
    found = entropy(points, None)
    assert found["nats"] > math.log(2) and not {"floor", "recovered"} & set(found)
    assert "without a floor" in found["protocol"]


def test_whether_labels_say_what_images_show_is_seen_in_the_images(monkeypatch):
    source = data.Source("some", data.Split(np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, int)), None, ())
    of_bits = compose.binary(source, None, bits=3, side=2, examples=40, test_examples=30).test
    several = data.Split(np.repeat(of_bits.pictures(np.arange(30))[..., :1], 2, axis=0), np.arange(60) // 2)
    noisy = dataclasses.replace(several, image=several.image ^ (np.arange(60) == 7)[:, None, None, None])
    for chunk in (7, 1024):
        monkeypatch.setattr(geometry, "CHUNK", chunk)
        assert geometry.shown_by_labels(LabelledSubset(of_bits)) and geometry.shown_by_labels(
            LabelledSubset(several)
        )
        assert not geometry.shown_by_labels(LabelledSubset(noisy))
        assert geometry.shown_by_labels(LabelledSubset(noisy, np.arange(8, 60)))


def test_the_measure_leaves_out_a_share_of_what_labels_do_not_say():
    class Given:
        def __init__(self, split):
            self.test, self.layer = LabelledSubset(split), lambda layer: layer

        def encoded(self, part):
            points = np.random.default_rng(0).normal(size=(len(part), 8))
            return {"pooled": points}, part.split.label

    judge = measures.resolved_entropy(EvalSpec(("pooled",), None))
    images = np.random.default_rng(0).integers(0, 256, (40, 2, 2, 1), np.uint8)
    assert "recovered" not in judge(Given(data.Split(images, np.arange(40) % 2)))
    assert 0 <= judge(Given(data.Split(images, np.arange(40))))["recovered"] <= 1


def test_chunks_change_nothing(monkeypatch):
    whole = entropy(ORTHOGONAL)
    monkeypatch.setattr(geometry, "CHUNK", 7)
    assert entropy(ORTHOGONAL)["nats"] == pytest.approx(whole["nats"], rel=1e-12)


def test_images_without_entropy_recover_none_of_it():
    assert entropy(ORTHOGONAL, np.zeros((600, 1), int))["recovered"] == 0.0


def test_a_temperature_is_positive():
    with pytest.raises(ValueError, match="temperature is 0; it must be above 0"):
        measures.resolved_entropy(EvalSpec(("pooled",), None), temperature=0)
