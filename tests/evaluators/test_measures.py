"""Columns that give no accuracy, on an encoder that is one matrix, against direct computations."""

import inspect
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import silhouette_score
from sklearn.metrics.pairwise import cosine_similarity

from contrastive_jax import augment, data, evaluators, sharding
from contrastive_jax.evaluators import evaluation_data, geometry, measures, retrieval
from contrastive_jax.evaluators.evaluation_data import EvalSpec, EvaluationData, LabelledSubset, Pretrained
from contrastive_jax.lookup import functions_of, hashable

AUGMENT = {"preset": "crop_only", "size": 4, "crop_min": 0.6, "flip": 0.0}
LABELS = np.arange(60) % 3
LAYERS = ("pooled",)


class Linear:
    """Pixels times a matrix."""

    @staticmethod
    def encode(params, stats, views):
        return {"pooled": views.reshape(len(views), -1) @ params["encoder"]["stem_conv"]["kernel"]}


def split(labels, seed):
    random = np.random.default_rng(seed)
    shade = 60 * labels[:, None, None, None]
    return data.Split((shade + random.integers(0, 100, (len(labels), 4, 4, 1))).astype(np.uint8), labels)


TEST = split(LABELS, 1)


def subject(pixels=False, test=TEST, width=6, batch_size=16):
    kernel = np.random.default_rng(2).normal(size=(16, width)).astype(np.float32) - 0.2
    seen = Pretrained(Linear, {"encoder": {"stem_conv": {"kernel": jnp.asarray(kernel)}}}, {}, AUGMENT)
    train = LabelledSubset(split(LABELS, 0))
    return EvaluationData(
        "it", None if pixels else seen, train, LabelledSubset(test), layers=LAYERS, batch_size=batch_size
    )


def measure(name, on=None, **options):
    built = evaluators.build({"it": {"name": name} | options}, EvalSpec(LAYERS, LABELS))
    found = built["it"](on or subject())
    found_back = json.loads(json.dumps(found))
    assert all(found_back[name] == value for name, value in found.items() if name != "intra_class_distances")
    return found


def features(on):
    return on.encoded(on.test)[0]["pooled"].numpy().astype(np.float64)


def views(on, seed=0):
    """[n, 2, F]: each image's two training views, one at a time."""
    make = jax.jit(augment.make_views(**AUGMENT))
    found = []
    for i, image in enumerate(TEST.image):
        key = augment.example_keys(jnp.uint32(seed), jnp.zeros(1, int), jnp.array([i]))[0]
        both = make(key, jnp.asarray(image))
        found.append(Linear.encode(on.encoder.params, {}, both)["pooled"])
    return np.array(found, np.float64)


@pytest.mark.run
def test_geometry_is_a_direct_computation_and_alignment_is_of_two_training_views():
    on = subject()
    found, f, two = measure("geometry", on), features(on), views(on)
    unit = f / np.linalg.norm(f, axis=1, keepdims=True)
    cosine, same = cosine_similarity(f), LABELS[:, None] == LABELS
    apart = ~np.eye(len(f), dtype=bool)
    expected = {
        "uniformity": np.log(np.exp(-2 * (2 - 2 * cosine))[apart].mean()),
        "tolerance": (cosine * same)[apart].mean(),
        "same_class_cosine": cosine[apart & same].mean(),
        "semantic_sensitivity": np.exp(-((np.where(same, 1, -1) - cosine) ** 2))[apart].mean(),
        "silhouette": silhouette_score(unit, LABELS),
        "intra_class_distance": np.mean(
            [np.sqrt(np.maximum(2 - 2 * cosine[(LABELS == c)][:, LABELS == c], 0)).sum() / (20 * 19) for c in range(3)]
        ),
        "alignment": np.mean(
            np.sum((two / np.linalg.norm(two, axis=2, keepdims=True) * [[[1], [-1]]]).sum(axis=1) ** 2, axis=1)
        ),
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)
    assert found["alignment"] > 0.001 and "distinct pairs" in found["protocol"]
    of_some = measure("geometry", on, images=30, self_pairs=True, metric="cosine")
    assert of_some["settings"]["images"] == 30 and "cosine silhouette" in of_some["protocol"]


@pytest.mark.run
def test_two_views_do_not_depend_on_the_batch_nor_on_the_devices_and_are_of_the_images_asked_for():
    on = subject()
    number = np.arange(60)
    whole = on.two_views("pooled", number, 5)
    np.testing.assert_allclose(whole, views(on, 5), rtol=1e-4)
    some = subject(batch_size=7).two_views("pooled", np.array([3, 50]), 5)
    np.testing.assert_allclose(some, whole[[3, 50]], rtol=1e-5, atol=1e-6)
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        there = subject()
        put = sharding.named(mesh, sharding.REPLICATED)
        there.encoder = there.encoder._replace(params=jax.device_put(there.encoder.params, put))
        np.testing.assert_allclose(there.two_views("pooled", number, 5), whole, rtol=1e-5, atol=1e-6)
    assert np.abs(on.two_views("pooled", number, 6) - whole).max() > 0.01


@pytest.mark.run
@pytest.mark.parametrize("name", ["geometry", "mutual_information"])
def test_one_device_measures_what_eight_measure(name):
    """Both of two augmented views, which the devices share: 60 images in batches of 16, a pool of 21."""
    options = {"images": 40} | ({"pool": 21, "batch_size": 10} if name == "mutual_information" else {})
    alone, mesh = measure(name, **options), sharding.make_mesh()
    with jax.set_mesh(mesh):
        there = subject()
        put = sharding.named(mesh, sharding.REPLICATED)
        there.encoder = there.encoder._replace(params=jax.device_put(there.encoder.params, put))
        shared = measure(name, there, **options)
    numbers = {key: value for key, value in alone.items() if isinstance(value, float)}
    assert len(numbers) >= 5
    assert {key: shared[key] for key in numbers} == pytest.approx(numbers, rel=1e-4, abs=1e-5)
    assert shared["protocol"] == alone["protocol"] and shared["settings"] == alone["settings"]


def test_the_fewest_that_pass_the_door_can_be_measured():
    few = measure("mutual_information", images=2, pool=2)
    assert few["largest"] == pytest.approx(np.log(2))
    some = measure("mutual_information", pool=2)
    assert some["largest"] == pytest.approx((58 * np.log(3) + 2 * np.log(2)) / 60)
    assert measure("rankme", images=1)["rankme"] == pytest.approx(1, abs=1e-5)
    one = data.Split(TEST.image[:1], TEST.label[:1])
    assert "one image only" in measure("mutual_information", subject(test=one))["left_out"]


def test_rankme_is_that_of_the_singular_values():
    on = subject()
    found, f = measure("rankme", on), features(on)
    share = np.linalg.svd(f, compute_uv=False)
    share = share / share.sum() + 1e-7
    assert found["rankme"] == pytest.approx(np.exp(-np.sum(share * np.log(share))), rel=1e-6)
    of_covariance = np.linalg.eigvalsh(np.cov(f.T))
    assert found["participation_ratio"] == pytest.approx(of_covariance.sum() ** 2 / (of_covariance**2).sum())
    assert found["largest"] == 6 and found["settings"]["images"] == 60
    wide = measure("rankme", subject(pixels=True), images=5)
    assert 1 < wide["rankme"] <= wide["largest"] == 5  # fewer images than pixels
    rank_two = np.outer([1, 2, 3], [1, 0, 0, 0.0]) + np.outer([2, -1, 0], [0, 0, 1, 0.0])
    share = np.linalg.svd(rank_two, compute_uv=False)[:2]
    share = share / share.sum()
    assert geometry.effective_ranks(rank_two, eps=0)[0] == pytest.approx(
        np.exp(-np.sum(share * np.log(share))), rel=1e-5
    )
    assert geometry.effective_ranks(np.zeros((4, 3))) == (0, 0)
    assert geometry.effective_ranks(np.eye(512))[0] == pytest.approx(512.14, abs=0.01)  # the paper's 1e-7


@pytest.mark.run
def test_mutual_information_three_ways():
    on = subject()
    found, two = measure("mutual_information", on, batch_size=20, temperature=0.2), views(on)
    two /= np.linalg.norm(two, axis=2, keepdims=True)
    score = two[:, 0] @ two[:, 1].T / 0.2
    estimate = np.log(60) + np.diag(score) - np.log(np.exp(score).sum(axis=1))
    assert found["large_pool"] == pytest.approx(estimate.mean(), rel=1e-4)
    assert found["largest"] == pytest.approx(np.log(60)) and found["largest_mini_batch"] == pytest.approx(
        np.log(20)
    )
    order = np.random.default_rng(0).permutation(60).reshape(3, 20)
    batches = [
        np.log(20)
        + np.mean(
            np.diag(score[np.ix_(b, b)]) - np.log(np.exp(score[np.ix_(b, b)]).sum(axis=1))
        )
        for b in order
    ]  # fmt: skip
    assert found["mini_batch"] == pytest.approx(np.mean(batches), rel=1e-4)
    assert found["mini_batch"] <= np.log(20) and {"flat_nce", "donsker_varadhan", "nwj"} <= set(found)


def test_the_pool_and_the_best_temperature_are_options():
    on = subject()
    few = measure("mutual_information", on, pool=10, batch_size=20)
    drawn = np.random.default_rng(0).permutation(60)[:10]
    in_pool = np.isin(np.arange(60), drawn)  # an image's own view is not its negative
    assert few["largest"] == pytest.approx(np.mean(np.log1p(np.where(in_pool, 9, 10))))
    each = {tau: measure("mutual_information", on, temperature=tau)["large_pool"] for tau in (0.05, 0.2, 1.0)}
    best = measure("mutual_information", on, temperatures=(0.05, 0.2, 1.0))
    assert best["large_pool"] == max(each.values())
    assert each[best["settings"]["temperature"]] == best["large_pool"]


def test_random_projections_of_a_sphere_are_normal_and_of_a_point_are_not():
    on = subject()
    found, f = measure("random_projections", on, directions=3, bins=10), features(on)
    assert np.shape(found["histograms"]) == (3, 10) and len(found["edges"]) == 11
    np.testing.assert_allclose(np.sum(found["histograms"], axis=1), 1)
    unit = 6**0.5 * f / np.linalg.norm(f, axis=1, keepdims=True)
    projected = geometry.random_projections(f, 6, 0)
    np.testing.assert_allclose(projected @ projected.T, unit @ unit.T, rtol=1e-6)  # orthogonal: lengths stay
    distance = geometry.distance_to_normal(projected)
    grid = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    expected = [stats.wasserstein_distance(column, grid) for column in projected.T]
    np.testing.assert_allclose(distance, expected, rtol=0.1)
    sphere = np.random.default_rng(0).normal(size=(4000, 64))
    near = geometry.distance_to_normal(geometry.random_projections(sphere, 4, 0))
    point = geometry.distance_to_normal(geometry.random_projections(1 + 0 * sphere, 4, 0))
    assert near.max() < 0.06 and point.min() > 0.7


@pytest.mark.parametrize("preset", ["none", "unchanged"])
def test_equal_views_are_not_measured_as_augmented_ones(preset, monkeypatch):
    monkeypatch.setitem(AUGMENT, "preset", preset)
    for option in ("crop_min", "flip"):
        monkeypatch.delitem(AUGMENT, option)
    reason = f"the views of augment.preset={preset} are equal"
    for name in ("mutual_information", "lidar"):
        assert measure(name) == {"left_out": reason}
    assert "alignment" not in measure("geometry")


def test_pixels_several_labels_and_lone_classes_leave_out_what_makes_no_sense():
    assert measure("mutual_information", subject(pixels=True)) == {
        "left_out": "raw pixels have no augmented views"
    }
    pixels = measure("geometry", subject(pixels=True))
    assert "alignment" not in pixels and "layer pixels" in pixels["protocol"]
    several = data.Split(TEST.image, np.eye(3, dtype=np.uint8)[LABELS])
    assert "one label" in measure("geometry", subject(test=several))["left_out"]
    lone = data.Split(TEST.image, np.zeros(60, int))
    assert "two classes" in measure("geometry", subject(test=lone))["left_out"]


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"name": "geometry", "layer": "projection_9"}, "layer is 'projection_9'"),
        ({"name": "geometry", "metric": "l1"}, "metric is 'l1'; it must be one of euclidean, cosine"),
        ({"name": "geometry", "t": 0.0}, "t is 0.0; it must be above 0"),
        ({"name": "rankme", "images": -1}, "images is -1"),
        ({"name": "mutual_information", "batch_size": 1}, "batch_size is 1"),
        ({"name": "mutual_information", "score": "l2"}, "score is 'l2'"),
        (
            {"name": "mutual_information", "temperatures": (0.1, 0.0)},
            "temperatures is (0.1, 0.0); it must be a tuple of numbers above 0",
        ),
        ({"name": "random_projections", "bins": 1}, "bins is 1"),
        ({"name": "geometry", "seed": -1}, "seed is -1; without a run it must be at least 0"),
        ({"name": "geometry", "images": 2}, "images is 2; it must be 0, or at least 3"),
        ({"name": "rankme", "seed": -1}, "seed is -1"),
        ({"name": "random_projections", "seed": -1}, "seed is -1"),
        ({"name": "mutual_information", "seed": -1}, "seed is -1"),
        ({"name": "mutual_information", "images": 1}, "images is 1; it must be 0, or at least 2"),
        ({"name": "mutual_information", "pool": 1}, "pool is 1; it must be 0, or at least 2"),
        ({"name": "lbfgs", "seed": -1}, "seed is -1"),
        ({"name": "simclr", "seed": -1}, "seed is -1"),
        ({"name": "finetune_simclr", "seed": -1}, "seed is -1"),
    ],
)
def test_bad_options_are_refused_before_anything_is_encoded(section, sentence):
    with pytest.raises(ValueError) as error:
        evaluators.build({"it": section}, EvalSpec(LAYERS, LABELS))
    assert f"evaluators.it: {sentence}" in str(error.value)


def test_every_option_is_a_leaf_with_a_default_and_every_measure_names_its_source():
    for function in functions_of(measures).values():
        options = list(inspect.signature(function).parameters.values())[1:]
        assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in options), function
        assert re.search(r", 20\d\d", function.__doc__), function


def test_retrieval_is_a_direct_computation():
    on = subject()
    found, f = measure("retrieval", on), features(on)
    cosine = cosine_similarity(f)
    recall, precision = {1: [], 5: [], 10: []}, []
    for i, row in enumerate(cosine):
        order = [j for j in np.argsort(-row, kind="stable") if j != i]
        same = LABELS[order] == LABELS[i]
        number = int(same.sum())
        for k, of in recall.items():
            of.append(same[:k].any())
        precision.append(sum(same[: j + 1].mean() for j in range(number) if same[j]) / number)
    assert {k: found[f"recall_at_{k}"] for k in recall} == {k: float(np.mean(of)) for k, of in recall.items()}
    assert abs(found["map_at_r"] - np.mean(precision)) < 1e-12 and found["queries"] == 60


def test_retrieval_leaves_out_classes_of_one_and_takes_the_earlier_of_equals():
    labels = np.array([0, 0, 1, 2, 2, 3])
    same = np.repeat([[1.0, 0.0]], 6, axis=0)  # all are equally near: the order decides
    found = retrieval.retrieval(same, labels, at=(1, 2))
    # queries 0, 1, 3, 4; their nearest are 1, 0, 0, 0
    assert found == {"recall_at_1": 0.5, "recall_at_2": 0.5, "map_at_r": 0.5, "queries": 4}
    perfect = np.eye(4)[np.array([0, 0, 1, 2, 2, 3])]
    assert retrieval.retrieval(perfect, labels, at=(1,))["map_at_r"] == 1.0
    assert measure("retrieval", subject(test=split(np.arange(60), 1)))["left_out"]


def test_lidar_is_a_direct_computation():
    on = subject()
    pairs = np.concatenate([views(on, seed) for seed in (0, 1)], axis=1)
    found = measure("lidar", on, views=4, images=0)
    means = pairs.mean(1)
    between = np.cov(means.T, bias=True)
    rest = (pairs - means[:, None]).reshape(-1, means.shape[1])
    within = rest.T @ rest / len(rest) + 1e-4 * np.eye(means.shape[1])
    values = np.linalg.eigvals(np.linalg.solve(within, between)).real
    share = values / values.sum() + 1e-7
    assert abs(found["lidar"] - np.exp(-np.sum(share * np.log(share)))) < 1e-3
    assert found["largest"] == 6.0 and found["settings"]["views"] == 4
    assert "left_out" in measure("lidar", subject(pixels=True))


def test_lidar_counts_directions_that_augmentation_leaves_alone():
    draw = np.random.default_rng(0)
    images, noise = draw.standard_normal((400, 1, 8)), draw.standard_normal((400, 10, 8))
    assert geometry.lidar(images + 0.01 * noise) > 7.5
    assert geometry.lidar(images * np.array([1, 1] + [0] * 6) + 0.1 * noise) < 3


def test_two_views_are_drawn_where_pretraining_had_one():
    """Of one view the second was the first, at distance 0."""
    options = {"preset": "byol", "size": 8, "views": 1, "blur": (1.0,), "solarize": (0.0,)}
    make = evaluation_data._training_views(hashable(options), None)
    first, second = make(jax.random.key(0), np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8))
    assert not np.array_equal(first, second)
