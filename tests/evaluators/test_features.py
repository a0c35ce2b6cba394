import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from sklearn.metrics import average_precision_score, top_k_accuracy_score

from contrastive_jax import sharding
from contrastive_jax.evaluators.features import (
    accuracy,
    average_precision,
    check,
    encode_all,
    encode_rows,
    raw_pixels,
    scores,
    spread,
    standardized,
    standardized_rows,
)

IMAGES = np.random.default_rng(0).integers(0, 256, (21, 4, 4, 1), np.uint8)
WEIGHT = np.random.default_rng(1).normal(size=(16, 3)).astype(np.float32)


def prepare(image):
    return image.astype(jnp.float32) / 255


def network(weight, images):
    flat = images.reshape(images.shape[0], -1)
    return {"pooled": jnp.dot(flat, weight, precision="highest"), "map": images[:, :2].astype(jnp.bfloat16)}


def expected():
    scaled = IMAGES.astype(np.float32) / 255
    return {"pooled": scaled.reshape(21, -1) @ WEIGHT, "map": scaled[:, :2].reshape(21, -1)}


def test_no_batches_are_refused():
    with pytest.raises(ValueError, match="batches is empty; it must yield at least one batch"):
        encode_rows(Partial(network, WEIGHT), [], prepare, count=21, batch_size=8, layers=("pooled",))


@pytest.mark.parametrize("batch_size", [1, 8, 21, 64])
def test_every_image_once_in_order_whatever_the_batch(batch_size):
    found = encode_all(Partial(network, WEIGHT), IMAGES, prepare, batch_size)
    for name, features in expected().items():
        assert isinstance(found[name], np.ndarray) and found[name].dtype == np.float32
        assert found[name].shape == features.shape
        np.testing.assert_allclose(found[name], features, rtol=1e-2 if name == "map" else 1e-5, atol=1e-6)


def test_one_shape_is_compiled_also_for_other_sets_and_other_parameters():
    shapes = []

    def watched(weight, images):
        shapes.append(images.shape)  # runs when traced
        return network(weight, images)

    first = encode_all(Partial(watched, WEIGHT), IMAGES, prepare, 8)
    second = encode_all(Partial(watched, 2 * WEIGHT), IMAGES[:5], prepare, 8)
    assert shapes == [(8, 4, 4, 1)]
    np.testing.assert_allclose(second["pooled"], 2 * first["pooled"][:5], rtol=1e-6)


def test_a_jitted_closure_is_accepted():
    found = encode_all(jax.jit(lambda images: network(WEIGHT, images)), IMAGES, prepare, 8)
    np.testing.assert_allclose(found["pooled"], expected()["pooled"], rtol=1e-5, atol=1e-6)


def test_mesh_rounds_the_batch_up_spreads_it_and_changes_nothing():
    seen = []

    def watched(weight, images):
        seen.append((images.shape[0], jax.typeof(images).sharding.spec[0]))
        return network(weight, images)

    one = encode_all(Partial(network, WEIGHT), IMAGES, prepare, 10)
    with jax.set_mesh(sharding.make_mesh()):
        eight = encode_all(Partial(watched, WEIGHT), IMAGES, prepare, 10)
    assert seen == [(16, sharding.AXIS)]
    for name in one:
        np.testing.assert_allclose(eight[name], one[name], rtol=1e-6, atol=1e-6)


def test_refuses_what_cannot_be_encoded():
    with pytest.raises(ValueError, match="images is empty"):
        encode_all(Partial(network, WEIGHT), IMAGES[:0], prepare, 8)
    with pytest.raises(ValueError, match="batch_size is 0; it must be at least 1"):
        encode_all(Partial(network, WEIGHT), IMAGES, prepare, 0)


def test_raw_pixels():
    found = raw_pixels(IMAGES)
    assert found.shape == (21, 16) and found.dtype == np.float32
    np.testing.assert_array_equal(found, (IMAGES / 255.0).astype(np.float32).reshape(21, 16))


def test_standardized_by_the_training_part_alone_in_float64():
    random = np.random.default_rng(0)
    train, test = (
        random.normal(3, 2, (50, 4)).astype(np.float32),
        random.normal(size=(9, 4)).astype(np.float32),
    )
    train[:, 1] = test[:, 1] = 7
    found_train, found_test = standardized(train, test)
    assert found_train.dtype == found_test.dtype == np.float64
    np.testing.assert_allclose(found_train.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(found_train.std(0), [1, 0, 1, 1], atol=1e-12)
    np.testing.assert_allclose(
        found_test[:, 0], (test[:, 0] - train[:, 0].mean(dtype=float)) / train[:, 0].std(dtype=float)
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_standardized_in_single(dtype):
    """Sums of squares of a thousand halves overflow: every feature was taken for a constant."""
    train = jnp.asarray(np.random.default_rng(0).normal(30, 30, (3000, 2)), dtype)
    rows, _ = standardized_rows(spread(train, 512), spread(train[:9]))
    np.testing.assert_allclose(rows.numpy().std(0), 1, rtol=1e-3)


def test_what_varies_little_beside_a_large_mean_is_standardized_however_many_rows():
    """A threshold that grew with the rows took such features for constants; scikit-learn's is in float64."""
    values = (
        np.random.default_rng(0).normal((10, 0, 1, 0.1), (0.2, 1, 0.02, 0), (200_000, 4)).astype(np.float32)
    )
    rows, _ = standardized_rows(spread(values), spread(values[:9]))
    np.testing.assert_allclose(rows.numpy().std(0), (1, 1, 1, 0), atol=1e-3)
    np.testing.assert_allclose(rows.numpy().mean(0), 0, atol=1e-3)


def test_accuracy_weighs_classes_as_it_says():
    labels = np.array([0, 0, 0, 0, 2, 2])
    found = accuracy(np.array([0, 0, 0, 1, 2, 0]), labels)
    assert found == {"top1": pytest.approx(4 / 6), "mean_per_class": pytest.approx((3 / 4 + 1 / 2) / 2)}


def test_top5_is_scikit_learns_with_more_than_five_classes():
    random = np.random.default_rng(0)
    labels = np.r_[random.integers(0, 8, 60), np.arange(8)]
    outputs = random.normal(size=(68, 8)) + np.eye(8)[labels]
    found = scores(outputs, labels)
    assert found["top5"] == pytest.approx(top_k_accuracy_score(labels, outputs, k=5))
    assert scores(np.eye(8)[labels] - 1.0, 7 - labels)["top5"] == 0  # no vote for any other class
    assert scores(np.zeros((8, 8)), np.arange(8))["top5"] == 1 / 8  # as top-1
    assert found["top1"] < found["top5"] < 1 and "top5" not in scores(outputs[:, :5], labels % 5)


def test_average_precision_is_scikit_learns_and_voc_2007s():
    random = np.random.default_rng(0)
    labels = (random.random((80, 5)) < 0.3).astype(np.uint8)
    labels[:, 4] = 0  # a class without images is left out
    outputs = np.round(random.normal(size=(80, 5)) + labels, 1)  # with ties
    found = average_precision(outputs, labels)
    plain = [average_precision_score(labels[:, c], outputs[:, c]) for c in range(4)]
    assert found["mean_average_precision"] == pytest.approx(np.mean(plain), abs=1e-12)
    eleven = []  # VOCap.m of the 2007 kit, rank by rank; images of equal output have one rank
    for c in range(4):
        best = np.zeros(11)
        for threshold in np.unique(outputs[:, c]):
            taken = outputs[:, c] >= threshold
            hits = labels[taken, c].sum()
            reached = np.array([10 * hits >= point * labels[:, c].sum() for point in range(11)])
            best = np.where(reached, np.maximum(best, hits / taken.sum()), best)
        eleven.append(best.mean())
    assert found["map_11_point"] == pytest.approx(np.mean(eleven), abs=1e-12)
    with pytest.raises(ValueError, match="no positive"):
        average_precision(outputs, np.zeros_like(labels))


def test_rows_are_tiles_over_the_devices_that_come_back_in_order():
    values = np.random.default_rng(0).normal(3, 2, (50, 4)).astype(np.float32)
    values[:, 1] = 7
    whole = spread(values, 12)
    assert whole.shape == (50, 4) and whole.tiles.shape == (5, 12, 4)
    scaled = standardized(values, values[:9])
    with jax.set_mesh(sharding.make_mesh()):
        rows = spread(values, 12)
        assert rows.tiles.shape == (4, 16, 4)  # a multiple of the devices
        assert {shard.data.shape for shard in rows.tiles.addressable_shards} == {(4, 2, 4)}
        found = standardized_rows(rows, spread(values[:9]))
        np.testing.assert_array_equal(rows.numpy(), values)
        for ours, theirs in zip(found, scaled, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)
        assert not np.asarray(found[0].tiles).reshape(-1, 4)[50:].any()


@pytest.mark.parametrize(
    "change, sentence",
    [
        (dict(train_features=np.zeros((3, 2, 2))), "train_features has shape"),
        (dict(test_labels=np.zeros(5, int)), "test_labels"),
        (dict(test_features=np.zeros((0, 2)), test_labels=np.zeros(0, int)), "n at least 1"),
        (dict(train_labels=np.array([0, -1, 1])), "train_labels contains -1"),
        (dict(test_features=np.full((2, 2), np.nan)), "test_features contains values that are not finite"),
        (dict(test_features=np.zeros((2, 3))), "same layer"),
        (dict(train_labels=np.array([0.0, 1, 1])), "train_labels are float64; they must be whole numbers"),
    ],
)
def test_check_names_what_is_wrong(change, sentence):
    arrays = dict(
        train_features=np.zeros((3, 2)),
        train_labels=np.arange(3),
        test_features=np.zeros((2, 2)),
        test_labels=np.arange(2),
    )
    check(**arrays)
    with pytest.raises(ValueError, match=sentence):
        check(**arrays | change)
