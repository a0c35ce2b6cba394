import functools
import json
import pathlib
import re
import tracemalloc

import golden_cases
import jax
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from suite import sampled

from contrastive_jax import sharding
from contrastive_jax.evaluators import features, knn, linear_probe
from contrastive_jax.evaluators.features import spread

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "knn_monitor.npz")
CASES = {case["case"]: case for case in json.loads(str(GOLDEN["index"]))}


def clusters(n, width=6, classes=4, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    return (centres[labels] + random.normal(size=(n, width))).astype(np.float32), labels


@pytest.mark.parametrize("name", golden_cases.marked("knn_monitor", CASES))
@pytest.mark.parametrize("suffix", ["", "_f32"])
def test_golden(name, suffix):
    """lemniscate, leftthomas/SimCLR and MoCo's demo: the vote, the order of the classes, the accuracies."""
    case = CASES[name]
    read = lambda field: GOLDEN[f"{name}/{field}"]  # noqa: E731
    precision = np.float32 if suffix else np.float64
    arrays = (read("bank").astype(precision), read("bank_labels"), read("queries").astype(precision))
    with jax.enable_x64(not suffix):
        votes = knn.votes(*arrays, k=case["k"], temperature=case["T"])
        found = knn.evaluate(*arrays, read("query_labels"), k=case["k"], temperature=case["T"])
    assert votes.dtype == precision
    probabilities = read(f"lem_probs{suffix}")
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(votes, probabilities, rtol=0, atol=1e-6 if suffix else 1e-14)
    order = np.argsort(-votes, axis=1, kind="stable")
    for theirs in ("lem_pred", "moco_pred"):
        voted = np.take_along_axis(votes, read(theirs + suffix).astype(int), axis=1) > 0
        np.testing.assert_array_equal(order[voted], read(theirs + suffix)[voted])
    assert found["top1"] == pytest.approx(float(read(f"lem_top1{suffix}")), abs=1e-6)
    assert found["top1"] == pytest.approx(float(read(f"leftthomas_top1{suffix}")), abs=1e-6)
    top5 = np.any(order[:, :5] == read("query_labels")[:, None], axis=1).mean()
    assert top5 == pytest.approx(float(read(f"leftthomas_top5{suffix}")), abs=1e-6)


@pytest.mark.parametrize("k", [1, 10, 60])
def test_unweighted_vote_is_scikit_learns(k):
    train, labels = clusters(60)
    test, _ = clusters(33, seed=1)
    theirs = KNeighborsClassifier(k, metric="cosine").fit(train.astype(np.float64), labels)
    votes = knn.votes(train, labels, test, k=k)
    np.testing.assert_allclose(votes, theirs.predict_proba(test.astype(np.float64)), atol=1e-6)
    np.testing.assert_array_equal(votes.argmax(axis=1), theirs.predict(test.astype(np.float64)))


def test_digits_by_cosine_are_scikit_learns():
    from sklearn.datasets import load_digits

    digits, labels = load_digits(return_X_y=True)
    theirs = KNeighborsClassifier(10, metric="cosine").fit(digits[:1437], labels[:1437])
    found = knn.evaluate(digits[:1437], labels[:1437], digits[1437:], labels[1437:], k=10)
    assert found["top1"] == pytest.approx(theirs.score(digits[1437:], labels[1437:]), abs=1e-6)
    assert (
        found["protocol"] == "kNN, k=10, cosine, unweighted, layer pooled, bank = all clean training images"
    )


@pytest.mark.parametrize("query_chunk, bank_chunk", [(1, 7), (5, 1), (33, 59), (1000, 1000)])
@pytest.mark.parametrize("temperature", [0.0, 0.07])
def test_chunks_change_nothing(query_chunk, bank_chunk, temperature):
    train, labels = clusters(60)
    test, _ = clusters(33, seed=1)
    whole = knn.votes(train, labels, test, k=9, temperature=temperature)
    found = knn.votes(
        train, labels, test, k=9, temperature=temperature, query_chunk=query_chunk, bank_chunk=bank_chunk
    )
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-7)


def test_ties_the_earlier_image_then_the_smaller_class():
    bank = np.tile([[1.0, 0.0]], (6, 1))
    labels = np.array([3, 2, 2, 3, 1, 1])
    for bank_chunk in (1, 2, 6):
        votes = knn.votes(bank, labels, bank[:1], k=3, bank_chunk=bank_chunk)
        np.testing.assert_allclose(votes, [[0, 0, 2 / 3, 1 / 3]], atol=1e-7)
    np.testing.assert_array_equal(knn.votes(bank, labels, bank[:1], k=4).argmax(axis=1), [2])


@pytest.mark.parametrize("width", sampled([513, 64, 7], 1))
def test_equal_rows_tie_whatever_the_chunks_and_devices(width):
    """Each of 40 rows lies 12 times or so in the bank, under labels of any class: the earlier of them vote."""
    random = np.random.default_rng(0)
    which = random.integers(0, 40, 501)
    bank = random.normal(size=(40, width)).astype(np.float32)[which]
    labels, test = random.integers(0, 5, 501), random.normal(size=(67, width)).astype(np.float32)
    unit = lambda x: x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)  # noqa: E731
    order = np.argsort(-np.round(unit(test) @ unit(bank).T, 12), axis=1, kind="stable")[:, :10]
    exact = np.stack([np.bincount(row, minlength=5) for row in labels[order]]) / 10
    shuffled = random.permutation(67)
    for query_chunk in (1, 7, 64):
        for bank_chunk in (13, 100, 8192):
            found = functools.partial(knn.votes, k=10, query_chunk=query_chunk, bank_chunk=bank_chunk)
            np.testing.assert_allclose(found(bank, labels, test), exact, atol=1e-6)
        np.testing.assert_array_equal(
            found(bank, labels, test[shuffled]), found(bank, labels, test)[shuffled]
        )
        with jax.set_mesh(sharding.make_mesh()):
            np.testing.assert_allclose(found(bank, labels, test), exact, atol=1e-6)


@pytest.mark.parametrize("dtype, chunks", [("float32", dict(query_chunk=16, bank_chunk=24)), ("int64", {})])
def test_arrays_have_the_neighbours_of_features_on_the_device(dtype, chunks):
    """The same bits, ties included: each row of the bank is there twice, under labels of any class."""
    random = np.random.default_rng(0)
    bank = np.repeat(random.integers(0, 5, (40, 33)), 2, axis=0).astype(dtype)[random.permutation(80)]
    if dtype == "float32":
        bank[:50] += random.normal(size=(50, 33)).astype(dtype)
    labels, test = random.integers(0, 5, 80), random.integers(0, 9, (30, 33)).astype(dtype)
    on_device = spread(bank, chunks.get("bank_chunk", 1024)), spread(test, chunks.get("query_chunk", 1024))
    for options in (dict(k=7), dict(k=80, temperature=0.1)):
        found = knn.votes(bank, labels, test, **options, **chunks)
        np.testing.assert_array_equal(found, knn.votes(on_device[0], labels, on_device[1], **options))


def test_arrays_of_another_byte_order_have_the_same_neighbours():
    """A compiled program that was called with native numbers reads others as if they were native."""
    bank, test = np.random.default_rng(0).normal(size=(2, 30, 8)).astype(np.float32)
    labels = np.arange(30) % 3
    native = knn.votes(bank, labels, test, k=5, temperature=0.1)
    swapped = [x.astype(x.dtype.newbyteorder()) for x in (bank, test)]
    for arrays in (swapped, [spread(x) for x in swapped]):
        found = knn.votes(arrays[0], labels, arrays[1], k=5, temperature=0.1)
        np.testing.assert_array_equal(found, native)


def test_no_copy_of_the_bank_is_made(monkeypatch):
    """Neither on the device nor on the host, but for chunks of it."""
    train, labels = clusters(8192, width=64)
    test, test_labels = clusters(100, width=64, seed=1)
    nearer, on_device = knn._nearer, []

    def watched(*arguments, **options):
        on_device.append(sum(array.nbytes for array in jax.live_arrays()))
        return nearer(*arguments, **options)

    evaluate = functools.partial(
        knn.evaluate, train, labels, test, test_labels, query_chunk=50, bank_chunk=256
    )
    evaluate()  # compiles
    monkeypatch.setattr(knn, "_nearer", watched)
    monkeypatch.setattr(features, "BLOCK", 2**14)  # 256 rows
    before = sum(array.nbytes for array in jax.live_arrays())
    tracemalloc.start()
    evaluate()
    _, on_host = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(on_device) == 64
    assert max(on_device) - before < train.nbytes / 8 and on_host < train.nbytes / 8


def test_low_temperature_zero_rows_and_large_rows_stay_finite():
    train, labels = clusters(20)
    train[3] = 0
    train[4] *= 1e15
    votes = knn.votes(train, labels, np.zeros_like(train[:2]), k=5, temperature=1e-3)
    assert np.isfinite(votes).all()
    votes = knn.votes(train, labels, train, k=5, temperature=1e-3)
    np.testing.assert_allclose(votes.sum(axis=1), 1, atol=1e-5)
    nearest = np.argmax(votes, axis=1)
    np.testing.assert_array_equal(np.delete(nearest, 3), np.delete(labels, 3))


@pytest.mark.parametrize("bank_chunk", [8, 24, 8192])
def test_mesh_changes_nothing_and_only_the_nearest_travel(bank_chunk):
    train, labels = clusters(60)
    train[40:44] = train[:4]  # equal cosines, on other devices
    test, _ = clusters(33, seed=1)
    one = knn.votes(train, labels, test, k=9, temperature=0.1)
    with jax.set_mesh(sharding.make_mesh()):
        eight = knn.votes(train, labels, test, k=9, temperature=0.1, bank_chunk=bank_chunk)
        bank, queries = spread(train, bank_chunk), spread(test)
        assert {shard.data.shape[1] * 8 for shard in bank.tiles.addressable_shards} == {bank.tiles.shape[1]}
        text = knn._nearest.lower(queries.tiles, 0, bank.tiles, k=9, count=60).compile().as_text()
    np.testing.assert_allclose(eight, one, rtol=1e-5, atol=1e-7)
    shapes = sorted(re.findall(r"= (\w+\[[\d,]+\])\S* all-gather\(", text))
    assert shapes == [
        "f32[40,6]",
        "f32[8,40,9]",
        "s32[8,40,9]",
    ]  # the queries; of the bank k a query and device


def test_an_image_of_several_classes_votes_for_all_of_them():
    train, labels = clusters(60)
    test, _ = clusters(33, seed=1)
    several = np.stack([labels == 0, labels <= 1, labels == 3], axis=1).astype(np.uint8)
    one, many = (
        knn.votes(train, labels, test, k=9, temperature=0.1),
        knn.votes(train, several, test, k=9, temperature=0.1),
    )
    np.testing.assert_allclose(many, np.stack([one[:, 0], one[:, 0] + one[:, 1], one[:, 3]], 1), atol=1e-6)


def test_standardizing_is_an_option_and_is_said():
    train, labels = clusters(60)
    test, test_labels = clusters(33, seed=1)
    train, test = train + 50, test + 50  # all point one way
    plain = knn.evaluate(train, labels, test, test_labels)
    scaled = knn.evaluate(train, labels, test, test_labels, standardize=True)
    theirs = KNeighborsClassifier(10, metric="cosine")
    mean, deviation = train.mean(0, dtype=float), train.std(0, dtype=float)
    theirs.fit((train - mean) / deviation, labels)
    assert scaled["top1"] == pytest.approx(theirs.score((test - mean) / deviation, test_labels), abs=1e-6)
    assert plain["top1"] != scaled["top1"]
    assert "standardised" in scaled["protocol"] and "standardised" not in plain["protocol"]
    assert scaled["settings"]["standardize"] and json.dumps(scaled)
    weighted = knn.evaluate(train, labels, test, test_labels, k=20, temperature=0.1, layer="projection")
    assert weighted["protocol"].startswith("kNN, k=20, cosine, weights exp(cosine/0.1), layer projection")


@pytest.mark.parametrize(
    "option, sentence",
    [
        (dict(k=0), "k is 0; it must be from 1 to 60"),
        (dict(k=61), "k is 61"),
        (dict(temperature=-1.0), "temperature is -1.0"),
        (dict(temperature=float("nan")), "temperature is nan"),
        (dict(query_chunk=0), "query_chunk is 0"),
        (dict(bank_chunk=0), "bank_chunk is 0"),
    ],
)
def test_bad_options(option, sentence):
    train, labels = clusters(60)
    with pytest.raises(ValueError, match=sentence):
        knn.evaluate(train, labels, train, labels, **option)


def test_what_fills_a_tile_is_no_neighbour():
    """Rows of zeros, of cosine 0, where every image of the bank points away."""
    bank, labels = -np.ones((5, 3), np.float32), np.array([0, 1, 0, 1, 0])
    share = knn.votes(bank, labels, np.ones((1, 3), np.float32), k=5, bank_chunk=4)
    np.testing.assert_allclose(share, [[0.6, 0.4]], rtol=1e-6)


@pytest.mark.parametrize("judge", [knn.evaluate, linear_probe.lbfgs], ids=lambda judge: judge.__name__)
def test_two_classes_may_be_boolean(judge):
    random = np.random.default_rng(0)
    label = np.arange(40) % 2 == 1
    rows = random.normal(size=(40, 5)).astype(np.float32) + label[:, None]
    found, expected = (judge(rows, of, rows, of) for of in (label, label.astype(int)))
    assert found == expected
