"""Protocols on an encoder: what they train, what they leave alone, and that devices do not matter."""

import functools
import inspect
import io
import json

import jax
import numpy as np
import pytest
from PIL import Image
from suite import later

from contrastive_jax import augment, data, evaluators, models, sharding
from contrastive_jax.augment import presets
from contrastive_jax.data.records import Record
from contrastive_jax.data.stream import Streamed
from contrastive_jax.evaluators import features, linear_probe, protocols, training
from contrastive_jax.evaluators.evaluation_data import (
    EvalSpec,
    EvaluationData,
    LabelledSubset,
    Pretrained,
    known_groups,
    training_view,
)
from contrastive_jax.lookup import functions_of
from contrastive_jax.workdir import checkpoint

AUGMENT = {
    "preset": "simclr",
    "size": 8,
    "strength": 0.5,
    "blur": 0.0,
    "mean": (0.5, 0.5, 0.5),
    "std": (0.2, 0.2, 0.2),
}
LAYERS = ("pooled", "projection_1", "projection_2")
NAMES = sorted(functions_of(protocols))
LABELS = np.arange(48) % 3


def images(labels, seed):
    """Each class has a colour."""
    random = np.random.default_rng(seed)
    colour = 80 * np.eye(3)[labels][:, None, None]
    return (colour + random.integers(0, 176, (len(labels), 8, 8, 3))).astype(np.uint8)


TRAIN = data.Split(images(LABELS, 0), LABELS)
TEST = data.Split(images(LABELS[:21], 1), LABELS[:21])


@functools.cache
def encoder():
    network = models.network(
        encoder={"depth": 18, "width": 0.125, "stem": "cifar"},
        projector={"layers": 2, "out": 6},
        predictor={"layers": 0},
        norm={},
        classes=0,
    )
    params, stats = jax.tree.map(jax.numpy.asarray, network.init(0, (8, 8, 3)))
    return Pretrained(network, params, stats, AUGMENT)


def subject(mesh=None, train=TRAIN, test=TEST, pixels=False):
    seen = encoder()
    if mesh is not None:
        put = sharding.named(mesh, sharding.REPLICATED)
        seen = seen._replace(params=jax.device_put(seen.params, put), stats=jax.device_put(seen.stats, put))
    return EvaluationData(
        "it",
        None if pixels else seen,
        LabelledSubset(train),
        LabelledSubset(test),
        layers=LAYERS,
        batch_size=20,
    )


def judge(name, on, **options):
    labels = on.train.split.label
    facts = EvalSpec(LAYERS, labels, several=labels.ndim == 2)
    built = evaluators.build({"it": {"name": name} | options}, facts)
    return built["it"](on)


SHORT = {
    "knn": {"k": 5},
    "lbfgs": {"Cs": (0.1, 1.0), "max_iterations": 20_000},
    "sgd": {"learning_rates": (0.1, 1.0), "standardize": True},
    "finetune_simclr": {"fraction": 0.5, "epochs": 2},
    "finetune_flatnce": {"epochs": 2},
}


THROUGH = ("simclr", "moco", "moco_v3", "byol", "macl", "finetune_simclr", "finetune_flatnce")  # the encoder
FAST = {"augment": False}  # on cached features: nothing of the encoder's size to compile
CASES = [(name, {} if name.startswith("finetune") else FAST if name in THROUGH else {}) for name in NAMES]


def marks_of(name):
    return {"finetune_flatnce": pytest.mark.slow, "knn": (), "lbfgs": (), "moco_v3": ()}.get(
        name, pytest.mark.run
    )


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *(pytest.param(*case, marks=marks_of(case[0])) for case in CASES),
        later((THROUGH[0], {})),
        *(pytest.param(name, {}, marks=pytest.mark.slow) for name in THROUGH[1:5]),
    ],
)
def test_every_protocol_judges_and_leaves_the_encoder_bit_for_bit(name, more):
    on, before = subject(), checkpoint.fingerprint((encoder().params, encoder().stats))
    options = SHORT.get(name, {"epochs": 2}) | more
    found = judge(name, on, **options)
    assert checkpoint.fingerprint((encoder().params, encoder().stats)) == before
    assert 0 <= found["top1"] <= 1 and 0 <= found["mean_per_class"] <= 1
    assert "layer pooled" in found["protocol"] and json.loads(json.dumps(found)) == found
    for option, value in options.items():
        settings = found["settings"].get(option, value) if option != "augment" else value
        assert list(settings) == list(value) if isinstance(value, tuple) else settings == value


def test_every_option_is_a_leaf_with_a_default_and_every_protocol_names_its_source():
    for function in functions_of(protocols).values():
        options = list(inspect.signature(function).parameters.values())[1:]
        assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in options), function
        assert "al., 20" in function.__doc__ or "see :" in function.__doc__, function


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simclr", "finetune_simclr"])
def test_training_on_crops_learns_what_it_says(name):
    options = {
        "simclr": {"epochs": 80, "learning_rate": 10.0},
        "finetune_simclr": {"epochs": 25, "learning_rate": 1.0},
    }
    found = judge(name, subject(), crop_min=0.5, batch_size=16, **options[name])
    assert found["top1"] >= 0.8 and found["train_loss"] < 0.7 * np.log(3), found
    assert "random crops of at least 50 % of the area and flips (p = 0.5)" in found["protocol"]


def test_frozen_means_frozen_also_inside_the_step():
    """Without crops and flips the program through the encoder is the one on cached features."""
    whole = dict(preset="none", size=8, views=1, mean=AUGMENT["mean"], std=AUGMENT["std"])
    on, plan = subject(), training.Plan(epochs=3, batch_size=16)
    clean = training.ViewsFeed(TRAIN, augment.make_views(**whole), plan)
    test = on.encoded(on.test)[0]["pooled"]
    first = training.first_linear(test.shape[1], 3, 0)
    frozen = (encoder().params, encoder().stats)
    through = training.fit(
        plan, clean, training.through(encoder().network.encode, "pooled"), first, frozen=frozen
    )
    cached = linear_probe.by_gradient(*on.arrays("pooled"), plan)
    assert through.train_loss == pytest.approx(cached["train_loss"], rel=1e-4)
    np.testing.assert_allclose(
        training.linear_outputs(through.variables, test),
        training.linear_outputs(linear_probe._fit_cached(*on.arrays("pooled")[:2], plan).variables, test),
        atol=1e-4,
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("knn", {"k": 5, "temperature": 0.1}),
        ("moco_v3", {"epochs": 2, "batch_size": 20, "augment": False}),
        pytest.param("simclr", {"epochs": 2, "batch_size": 24}, marks=pytest.mark.slow),
        pytest.param("finetune_simclr", {"epochs": 2, "batch_size": 24}, marks=pytest.mark.slow),
    ],
)
def test_eight_devices_are_one(name, options):
    one = judge(name, subject(), **options)
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        eight = judge(name, subject(mesh), **options)
    if "train_loss" in one:
        assert eight["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
    assert eight["top1"] == pytest.approx(
        one["top1"], abs=1 / 21 + 1e-9 if name == "finetune_simclr" else 1e-9
    )


def test_cached_rows_reach_the_batch_without_a_device_that_holds_all():
    with jax.set_mesh(sharding.make_mesh()):
        rows = features.spread(np.random.default_rng(0).normal(size=(100, 5)).astype(np.float32), 40)
        feed = training.CachedFeed(rows, np.arange(100), batch_size=13, seed=0, rows=np.arange(50, 100))
        assert {shard.data.shape for shard in rows.tiles.addressable_shards} == {(3, 5, 5)}
        take = jax.jit(training.take_cached)
        order, _ = data.rows(0, 50, 13, 13)
        batch = take(feed.feed(0), 1)
        text = take.lower(feed.feed(0), 1).compile().as_text()
    np.testing.assert_array_equal(np.asarray(batch.x)[:13], rows.numpy()[50:][order])
    np.testing.assert_array_equal(np.asarray(batch.label)[:13], 50 + order)
    np.testing.assert_array_equal(batch.weight, [1] * 13 + [0] * 3)
    assert "all-gather" not in text and "f32[100,5]" not in text


def test_layers_and_crops_are_those_asked_for():
    on = subject()
    for layer, width in (("pooled", 64), ("projection_1", 64), ("projection_2", 6)):
        assert on.arrays(layer)[0].shape == (48, width)
    whole, centre = on.arrays("pooled")[0].numpy(), on.arrays("pooled", 0.5)[0].numpy()
    assert np.abs(whole - centre).max() > 1e-3
    assert "layer projection_2" in judge("knn", on, layer="projection_2")["protocol"]
    found = judge("sgd", on, crop=0.5, epochs=1)
    assert "the centred 0.5 of images" in found["protocol"] and found["settings"]["crop"] == 0.5


def test_options_are_chosen_on_images_that_are_no_copies_of_what_was_learnt():
    """Frames of a video in both parts of the training images make the weakest penalty the best."""
    random, group = np.random.default_rng(0), np.repeat(np.arange(30), 4)
    noise, labels = random.integers(0, 256, (30, 8, 8, 3), np.uint8)[group], random.integers(0, 2, 30)[group]
    known = data.Split(noise, labels, group)
    for train, chosen in ((data.Split(noise, labels), 1e3), (known, 1e-6)):
        found = judge("lbfgs", subject(train=train, pixels=True), Cs=(1e-6, 1e3))
        assert found["settings"]["C"] == chosen
    some = LabelledSubset(known, np.array([0, 5, 6]))
    np.testing.assert_array_equal(known_groups(some), [0, 1, 1])


def test_a_folder_of_one_class_leaves_classifiers_out():
    """Images in one sub-folder are of one class: they can be trained on, and told apart by nothing."""
    one = data.Split(TRAIN.image, np.zeros(len(LABELS), np.int32))
    for name in NAMES:
        assert judge(name, subject(train=one)) == {
            "left_out": "all labelled training images have the same class"
        }


def normalised(size, views):
    """A preset that normalises inside."""
    options = {name: value for name, value in AUGMENT.items() if name not in ("preset", "size")}
    return presets.simclr(size, views, ratio=(1.0, 1.0), **options)


@pytest.mark.parametrize(
    "section", [AUGMENT | {"ratio": (1.0, 1.0)}, {"preset": f"{__name__}:normalised", "size": 8}]
)
def test_classifiers_train_under_the_resizing_and_normalization_of_the_pretraining(section):
    """The whole image as a crop is what evaluation sees."""
    seen = encoder()._replace(augment=section)
    found = training_view(seen, 1.0, 0.0)(jax.random.key(0), TRAIN.image[0])
    np.testing.assert_allclose(found[0], augment.make_eval(**AUGMENT)(TRAIN.image[0]), atol=1e-5)


def test_pixels_and_several_labels_leave_out_what_makes_no_sense():
    assert judge("simclr", subject(pixels=True))["left_out"]
    assert judge("finetune_flatnce", subject(pixels=True))["left_out"]
    assert judge("moco", subject(pixels=True), augment=False, epochs=1)["settings"]["layer"] == "pixels"


SEVERAL = np.stack([LABELS == 0, LABELS == 1, LABELS != 2], axis=1).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lbfgs", {"Cs": (0.1, 1.0)}),
        ("knn", {"k": 5, "temperature": 0.1}),
        ("flatnce_transfer", {"epochs": 60, "learning_rate": 0.05}),
        pytest.param("finetune_simclr", {"epochs": 2}, marks=pytest.mark.slow),
    ],
)
def test_images_of_several_classes_are_ranked(name, options):
    on = subject(train=data.Split(TRAIN.image, SEVERAL), test=data.Split(TEST.image, SEVERAL[:21]))
    found = judge(name, on, **options)
    assert "top1" not in found and 0 < found["mean_average_precision"] <= 1
    if name != "finetune_simclr":
        assert found["map_11_point"] > np.mean(SEVERAL) + 0.1  # better than chance
    few = judge("lbfgs", on, labels_per_class=3)
    assert "one label per image" in few["left_out"]
    assert "one label per image" in judge("finetune_simclr", on, fraction=0.1)["left_out"]


class Pngs:
    """Images as a streamed split reads them."""

    shape, label_shape, chunk = (8, 8, 3), (), 1

    def __init__(self, split):
        self.split = split

    def __len__(self):
        return len(self.split)

    def read(self, rows):
        found = []
        for row in rows:
            file = io.BytesIO()
            Image.fromarray(self.split.image[row]).save(file, "PNG")
            found.append(Record(file.getvalue(), int(self.split.label[row]), int(row)))
        return found

    def name(self, row):
        return f"image {row}"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("knn", {"k": 5, "temperature": 0.1}),
        ("lbfgs", {}),
        pytest.param("simclr", {"epochs": 2, "batch_size": 16}, marks=pytest.mark.slow),
    ],
)
def test_streamed_images_are_judged_as_resident_ones(name, options):
    streamed = [Streamed(Pngs(split), workers=0) for split in (TRAIN, TEST)]
    on = EvaluationData("it", encoder(), *map(LabelledSubset, streamed), layers=LAYERS, batch_size=20)
    built = evaluators.build({"it": {"name": name} | options}, EvalSpec(LAYERS, None))
    found, resident = built["it"](on), judge(name, subject(), **options)
    np.testing.assert_allclose(
        on.encoded(on.test)[0]["pooled"].numpy(),
        resident_features(),
        atol=0.05,
    )
    assert found["top1"] == pytest.approx(resident["top1"], abs=0.1)
    assert found["protocol"] == resident["protocol"]


def resident_features():
    on = subject()
    return on.encoded(on.test)[0]["pooled"].numpy()


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"name": "moco", "epochs": 0}, "evaluators.it: epochs is 0; it must be at least 1"),
        (
            {"name": "sgd", "schedule": "cosin"},
            "evaluators.it: schedule is 'cosin'; it must be one of cosine",
        ),
        ({"name": "sgd", "optimizer": "lars"}, "optimizer is 'lars'; it must be one of sgd, adam"),
        (
            {"name": "sgd", "scaling": "sqrt"},
            "evaluators.it: scaling is 'sqrt'; it must be one of linear, none",
        ),
        ({"name": "sgd", "batch_size": 2.5}, "evaluators.it: batch_size is 2.5; it must be a whole number"),
        ({"name": "sgd", "augment": True, "standardize": True}, "augment is True; it must be False"),
        ({"name": "finetune_simclr", "fraction": 0.0}, "fraction is 0.0; it must be above 0"),
        ({"name": "simclr", "flip": 2.0}, "flip is 2.0; it must be from 0 to 1"),
        ({"name": "flatnce_transfer", "crop": 1.5}, "crop is 1.5"),
        ({"name": "knn", "k": 49}, "evaluators.it: k is 49; it must be at most 48"),
        ({"name": "lbfgs", "Cs": (1.0, 0.0)}, "Cs is (1.0, 0.0); it must be a tuple of numbers above 0"),
        ({"k": 3}, "evaluators.it is {'k': 3}; it needs a name"),
    ],
)
def test_bad_options_are_refused_before_anything_is_encoded(section, sentence):
    with pytest.raises(ValueError) as error:
        evaluators.build({"it": section}, EvalSpec(LAYERS, LABELS))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "section", [{"name": "knn", "k": 49}, {"name": "lbfgs", "labels_per_class": 49}], ids=str
)
def test_more_images_than_a_stream_has_are_refused_before_it_is_read(section):
    with pytest.raises(ValueError, match="is 49; it must be at most 48, the number of training images"):
        evaluators.build({"it": section}, EvalSpec(LAYERS, None, 48))


@pytest.mark.parametrize(
    "section",
    [{"name": "finetune_simclr", "fraction": 0.5}, {"name": "lbfgs", "labels_per_class": 2}],
    ids=str,
)
def test_shares_of_classes_are_left_out_of_streamed_images_with_several_labels(section):
    """The kind of their labels is known before they are read; fine-tuning failed after the features."""
    built = evaluators.build({"it": section}, EvalSpec(LAYERS, None, 48, several=True))
    assert "images have several labels" in built["it"](None)["left_out"]


def test_your_own_evaluator_is_a_function_and_its_name(monkeypatch):
    import sys
    import types

    mine = types.ModuleType("my_evaluators")

    def norm(facts, *, power=2.0):
        def evaluate(subject):
            train = subject.arrays("pooled")[0].numpy()
            return {"top1": float((train**power).mean()), "protocol": "norm", "settings": {"power": power}}

        return evaluate

    norm.__module__ = "my_evaluators"  # as if it were written there
    mine.norm = norm
    monkeypatch.setitem(sys.modules, "my_evaluators", mine)
    found = judge("my_evaluators:norm", subject(), power=4.0)
    assert found["settings"] == {"power": 4.0} and found["top1"] > 0
