"""Two encoders on pairs of arrays: data, refusals, retrieval against a loop; a run on devices, resumed, evaluated."""

import json
import pathlib
import re
import shlex
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from saved_runs import assert_same, left_behind, stop_at
from suite import one_program, over, sampled
from test_step import run_on
from tiny_methods import x64  # noqa: F401

from contrastive_jax import augment, contrastive_loss, data, load_encoder, losses, main, models, sigmoid_loss
from contrastive_jax import config as configs
from contrastive_jax.commands import describe, embed, evaluate, export, preview, report
from contrastive_jax.contrast import by_example, diagnostics, margin, negatives, normalizer
from contrastive_jax.contrast.candidates import other_view
from contrastive_jax.contrast.comparison import Compare, cosine
from contrastive_jax.contrast.temperature import Slopes, learnt, siglip
from contrastive_jax.contrast.terms import make_terms, total_loss
from contrastive_jax.evaluators import table
from contrastive_jax.evaluators.pairs import Embedded, pair_retrieval
from contrastive_jax.evaluators.retrieval import cross_retrieval
from contrastive_jax.training import initial, loop, program, recipe
from contrastive_jax.training import pairs as towers_of
from contrastive_jax.training import run as runs
from contrastive_jax.training.pair_evaluation import evaluator_of, skipped
from contrastive_jax.types import Outputs

PAGE = (pathlib.Path(__file__).parents[2] / "docs/how_to/two_towers.md").read_text()
ONE = jax.devices()[:1]
DRAW = np.random.default_rng(0)
KIND = np.arange(60) % 10
ARRAYS = {
    "sound": DRAW.normal(size=(10, 6))[KIND] + 0.3 * DRAW.normal(size=(60, 6)),
    "video": DRAW.normal(size=(10, 4))[KIND] + 0.3 * DRAW.normal(size=(60, 4)),
    "kind": KIND,
    "text": DRAW.integers(0, 9, (60, 5)),
    "photo": DRAW.integers(0, 255, (60, 8, 8, 1), np.uint8),
}
TINY = {
    "train.batch_size": 16,
    "train.duration": "6 steps",
    "log.every": 1,
    "log.tensorboard": False,
    "evaluate.final": False,
    "projector.out": 8,
    "encoder.layers": 1,
    "encoder.width": 8,
    "second_encoder.layers": 1,
    "second_encoder.width": 8,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.npz"
    held = {f"{name}_test": x[40:] for name, x in ARRAYS.items()}
    np.savez(path, **{name: x[:40] for name, x in ARRAYS.items()}, **held)
    return path


def config_of(file, kinds="key=sound,pair_key=video,first=table,second=table", **leaves):
    given = TINY | {"data.label_key": "kind", "data.test_label_key": "kind_test"} | leaves
    given = {name: value for name, value in given.items() if value is not None}
    return configs.resolve(f"configs/pairs.py:file={file},{kinds}", list(given.items())).to_dict()


# -------------------------------------------------------------------------------------------- data


def test_pairs_of_a_file_stay_together(file):
    options = dict(file=str(file), key="sound", label_key="kind", test_label_key="kind_test")
    whole = data.arrays(**options, pair_key="video", group_key="kind")
    assert whole.paired and not data.arrays(**options).paired
    for part, rows in ((whole.train, slice(40)), (whole.test, slice(40, None))):
        first, second = part.pictures(np.arange(len(part)))
        np.testing.assert_array_equal(first, ARRAYS["sound"][rows].astype(np.float32))
        np.testing.assert_array_equal(second, ARRAYS["video"][rows].astype(np.float32))
        np.testing.assert_array_equal(part.of_pair(1).image, second)
        np.testing.assert_array_equal(part.group, KIND[rows])
    np.testing.assert_array_equal(whole.test[::3].pictures(np.arange(7))[1], second[::3])
    drawn = data.arrays(
        **options | {"test_key": "", "test_label_key": ""}, pair_key="video", test_fraction=0.25
    )
    assert len(drawn.test) == 10 and drawn.test.paired
    feed = data.Resident(whole.train, seed=0, batch_size=8)
    batch = feed.take(feed.feed(1), 1)
    np.testing.assert_array_equal(batch.image[1], ARRAYS["video"].astype(np.float32)[batch.id])


def test_other_second_arrays_are_another_data_set(file):
    one, other = (
        data.arrays(file=str(file), key="sound", label_key="", pair_key=key).train
        for key in ("video", "text")
    )
    was, now = data.contents(one), data.contents(other)
    assert data.differing(one, now, was) and was != data.contents(one.of_pair(0))


def test_pairs_from_arrays(file):
    first, second = ARRAYS["sound"][:8], ARRAYS["text"][:8]
    made = data.from_arrays(first, KIND[:8], first, KIND[:8], pairs=second, test_pairs=second)
    assert made.of_pair(1).test.example.shape == (5,) and made.of_pair(0).classes == made.classes
    for options, message in (
        ({"pairs": second, "test_images": first}, "pairs are given for one split only"),
        ({"pairs": second, "test_pairs": second}, "test_pairs are given without test_images"),
        ({"pairs": second[:4]}, "there are 8 first arrays and 4 second ones"),
        ({"pairs": second, "test_images": first, "test_pairs": second[:, :2]}, "training second arrays are"),
    ):
        with pytest.raises(ValueError, match=message):
            data.from_arrays(first, **options)


@over(
    [
        ({"pair_key": "vide"}, "data.pair_key is 'vide'"),
        ({"pair_key": "text", "test_pair_key": "photo_test"}, "data.test_pair_key contains examples uint8"),
        ({"pair_key": "text", "test_pair_key": "video_test"}, "data.test_pair_key contains examples float32"),
        ({"pair_key": "text", "test_pair_key": ""}, "data.test_pair_key is '', but .* has test examples"),
        (
            {"pair_key": "text", "test_pair_key": "text"},
            "data.test_pair_key is an array .* must have 20 rows",
        ),
        (
            {"group_key": "kind", "test_group_key": "kind"},
            "data.test_group_key is an array .40. .* must have 20 rows",
        ),
    ]
)
def test_arrays_that_are_no_pairs_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        data.arrays(file=str(PLACE[0]), key="sound", label_key="", **options)


PLACE = []


@pytest.fixture(autouse=True)
def place(file):
    PLACE[:] = [file]


# -------------------------------------------------------------------------------------------- refusals


@over(
    [
        ({"augment": "time_series", "second_encoder": "none", "second_encoder.layers": None}
         | {"second_encoder.width": None}, "second_encoder.name is 'none'; it must be the encoder of the second"),
        ({"data.pair_key": ""}, "second_encoder.name is 'mlp'; it must be none, since the examples .* not pairs"),
        ({"candidates": "queue", "candidates.size": 32}, "candidates.name is 'queue', which would mix the keys"),
        ({"target": "ema"}, "target.name is 'ema'; it must be 'online' with second_encoder"),
        ({"predictor.layers": 2}, "predictor.layers is 2; it must be 0 with second_encoder"),
        ({"predictor.widths": (8,)}, r"predictor.widths is \(8,\); it must be \(\) with second_encoder"),
        ({"probe.weight": 1.0}, "probe.weight is 1.0; it must be 0.0 with second_encoder"),
        ({"second_encoder": "conv1d", "second_encoder.width": None}, None),
        ({"second_encoder": "resnet", "second_encoder.layers": None, "second_encoder.width": 0.125},
         "second_encoder: .*this encoder reads images"),
        ({"second_encoder": "mlpp"}, "second_encoder.name is 'mlpp'"),
        ({"second_encoder.widht": 8}, "second_encoder.widht"),
        ({"second_augment": "tokens"}, "second_augment: augment.preset is 'tokens', for token ids"),
        ({"second_augment": "time_series", "second_augment.mask": 2.0}, "second_augment.mask is 2.0"),
        ({"train.remat": True}, "train.remat is True"),
        ({"projector.layers": 0, "second_encoder.width": 16}, "widths 8 and 16; it must be one width"),
        ({"compose": "rand_bit"}, "compose.name is 'rand_bit'; it must be none, since .* pairs"),
        ({"evaluators.retrieval.k": 3}, "evaluators.retrieval.k"),
        ({"evaluate.size": 8}, "evaluate.size is 8; it must be 0"),
        ({"loss": "cross_entropy"}, "loss.cross_entropy reads the online probe"),
    ]
)  # fmt: skip
def test_what_two_encoders_do_not_combine_with_is_refused(leaves, message):
    if message is None:
        runs.prepare(config_of(PLACE[0], **leaves), ONE)
        return
    with pytest.raises(ValueError, match=message):
        runs.prepare(config_of(PLACE[0], **leaves), ONE)


@over(
    [
        ({"augment.views": 2}, "augment.views is 2; it must be 1 with second_encoder"),
        (
            {"augment.local_views": 1, "augment.local_size": 4},
            "augment.local_views is 1; it must be 0 with second",
        ),
        (
            {"second_encoder.vocabulary": 8},
            "second_encoder.vocabulary is 8; ids must be from 0 to 7, and data contains 8",
        ),
    ]
)
def test_images_and_tokens_are_checked_each(leaves, message):
    kinds = "key=photo,pair_key=text,size=8,vocabulary=9"
    small = dict.fromkeys(TINY.keys() & {"encoder.layers", "second_encoder.width", "encoder.width"})
    with pytest.raises(ValueError, match=message):
        runs.prepare(config_of(PLACE[0], kinds, **small, **leaves), ONE)


def test_one_encoder_has_no_second_checkpoint():
    settings = configs.as_settings(
        configs.resolve("digits", [("init.second_checkpoint", "runs/a")]).to_dict()
    )
    with pytest.raises(
        ValueError, match="init.second_checkpoint is 'runs/a'; it must be '' without second_encoder"
    ):
        initial.paths(settings)


def test_one_encoder_has_no_columns_or_views_of_pairs(file):
    alone = {"data.pair_key": "", "second_encoder": "none", "second_encoder.layers": None}
    alone |= {"second_encoder.width": None}
    with pytest.raises(ValueError, match="augment.preset is 'unchanged', so that both views are equal"):
        runs.prepare(config_of(file, **alone), ONE)
    with pytest.raises(ValueError, match="evaluators.retrieval.name is 'pair_retrieval'; it needs pairs"):
        runs.prepare(config_of(file, **alone, **{"augment": "scarf"}), ONE)
    with pytest.raises(ValueError, match="encoder.name is 'none'; it must be one of conv1d, mlp, resnet"):
        runs.prepare(
            config_of(file, **{"encoder": "none", "encoder.layers": None, "encoder.width": None}), ONE
        )


# -------------------------------------------------------------------------------------------- retrieval


def slow_recall(first, second, first_item, second_item, group, k):
    """Recall@k of second arrays by first ones, one query and one candidate at a time."""
    cosine = lambda x, y: x @ y / np.linalg.norm(x) / np.linalg.norm(y)  # noqa: E731
    found = []
    for query in dict.fromkeys(first_item):
        groups = set(group[first_item == query])
        x = first[list(first_item).index(query)]
        scored = []
        for candidate in dict.fromkeys(second_item):
            y = second[list(second_item).index(candidate)]
            scored.append((-cosine(x, y), bool(groups & set(group[second_item == candidate]))))
        found.append(any(right for _, right in sorted(scored, key=lambda pair: pair[0])[:k]))
    return np.mean(found)


@over([(np.arange(24), np.arange(24), np.arange(24)), (np.arange(24) // 2, np.arange(24), np.arange(24)),
       (np.arange(24), np.arange(24) % 12, np.arange(24) % 4)])  # fmt: skip
def test_retrieval_is_that_of_a_loop(first_item, second_item, group):
    draw = np.random.default_rng(1)
    one, other = draw.normal(size=(24, 5))[first_item], draw.normal(size=(24, 5))[second_item]
    found = cross_retrieval(one, other, first_item, second_item, group)
    for k in (1, 5, 10):
        assert found[f"to_second_at_{k}"] == slow_recall(one, other, first_item, second_item, group, k)
        assert found[f"to_first_at_{k}"] == slow_recall(other, one, second_item, first_item, group, k)


def test_equal_embeddings_are_retrieved_by_chance_and_perfect_ones_always():
    number, equal, exact = np.arange(20), np.ones((20, 3)), np.eye(20)
    collapsed = cross_retrieval(equal, equal, number, number, number)
    assert collapsed["to_second_at_5"] == pytest.approx(collapsed["to_second_chance_at_5"]) == 5 / 20
    perfect = cross_retrieval(exact, exact, number, number, number)
    assert perfect["to_second_at_1"] == perfect["to_first_at_1"] == 1.0
    of_groups = cross_retrieval(exact, exact, number, number, number % 2)
    assert of_groups["to_first_chance_at_5"] == pytest.approx(
        1 - np.prod((10 - np.arange(5)) / (20 - np.arange(5)))
    )
    few = cross_retrieval(exact[:5], exact[:5], *[number[:5]] * 3)
    assert "to_first_at_1" in few and "to_first_at_5" not in few  # five of five are no retrieval


def test_encoders_that_map_all_to_one_point_have_a_reason_and_an_alarm():
    draw, number = np.random.default_rng(2).normal(size=(20, 4)).astype(np.float32), np.arange(20)
    point = np.full((20, 4), 0.3, np.float32)
    scaled = point * np.linspace(1.0, 3.0, 20, dtype=np.float32)[:, None]  # one direction
    judge = pair_retrieval(None)
    for one, other, which in ((scaled, draw, "first"), (draw, point, "second"), (point, -point, "first")):
        found = table.judged(judge, Embedded("trained", one, other, number, number, number, "projection_1"))
        assert found == {
            "failed": f"collapse: all embeddings of the {which} arrays are one point, so that no order is theirs."
        }
        metrics = of_two(one, other)
        assert metrics["embedding_std"] < 1e-3 and metrics["effective_rank"] < 1e-3
    near = point + 1e-4 * draw
    assert "to_second_at_1" in judge(Embedded("trained", near, draw, number, number, number, "projection_1"))
    alone = [diagnostics.of_outputs(outputs_of(x, x), jnp.zeros(20, int)) for x in (draw, draw[:, ::-1] ** 3)]
    for name in ("embedding_std", "effective_rank"):
        least = min(float(metrics[name]) for metrics in alone)
        assert of_two(draw, draw[:, ::-1] ** 3)[name] == pytest.approx(least, rel=1e-5)


def test_a_column_of_pairs_that_fails_is_left_out_and_reported_once(file):
    columns = {"retrieval": {"name": "pair_retrieval"}, "knn": {"name": "knn", "k": 3}}
    run = runs.prepare(config_of(file, **{"evaluators": str(columns), "evaluate.look": ("retrieval",)}), ONE)
    reports, number = [], np.arange(20)
    with jax.set_mesh(run.mesh):
        evaluator = evaluator_of(run.settings, run.source, run.mesh, run.evaluators)
        evaluator.embedded = lambda name, weights: Embedded(
            name, *np.ones((2, 20, 4), np.float32), number, number, number, "projection_1"
        )
        assert [evaluator.look(None, reports.append) for _ in range(2)] == [{}, {}]
    assert len(reports) == 1 and reports[0].startswith("evaluate.look: retrieval failed: collapse")


@over(
    [{"data.validation": 0.2}, {"data.validation": 0.2, "data.label_key": "", "data.test_label_key": ""}, {}]
)
def test_the_words_of_held_out_pairs(leaves):
    labelled = "data.label_key" not in leaves
    columns = {"retrieval": {"name": "pair_retrieval"}, "knn": {"name": "knn", "k": 3}}
    run = runs.prepare(config_of(PLACE[0], evaluators=str(columns), **leaves), ONE)
    with jax.set_mesh(run.mesh):
        evaluator = evaluator_of(run.settings, run.source, run.mesh, run.evaluators)
    held = f"{len(run.source.test)} " + ("validation pairs" if "data.validation" in leaves else "test pairs")
    by = "retrieval, knn" if labelled else "retrieval"
    skipped = "" if labelled else ", without labels: knn skipped"
    assert evaluator._what() == f"evaluating trained, untrained, raw pixels by {by}; {held}{skipped}"
    embedded = Embedded(
        "", *np.eye(20)[None].repeat(2, 0), *[np.arange(20)] * 3, "projection_1", evaluator.towers[0].held
    )
    assert held.split()[1] + " pairs, cosine" in pair_retrieval(None)(embedded)["protocol"]


@over([{}, {"data.label_key": "", "data.test_label_key": ""}])
def test_pairs_without_columns_are_not_evaluated(leaves):
    run = runs.prepare(config_of(PLACE[0], evaluators="{}", **{"evaluate.look": ()}, **leaves), ONE)
    with jax.set_mesh(run.mesh):
        evaluator = evaluator_of(run.settings, run.source, run.mesh, run.evaluators)
        assert not evaluator.evaluates and "no evaluator for these pairs" in skipped(evaluator)


def outputs_of(one, other):
    views = jnp.stack([jnp.asarray(one), jnp.asarray(other)], axis=1)
    return Outputs(views, views, views, jnp.zeros((len(one), 2, 0)))


def of_two(one, other):
    return diagnostics.of_outputs(outputs_of(one, other), jnp.zeros(len(one), int), apart=True)


# -------------------------------------------------------------------------------------------- network


def test_each_tower_is_the_network_of_its_own_settings(file):
    run = runs.prepare(config_of(file), ONE)
    params, stats = run.recipe.init_network(3)
    towers = towers_of.towers(run.settings, run.source)
    assert not np.allclose(*(jax.tree.leaves(models.of_tower(params, i)["projector"])[-1] for i in (0, 1)))
    rejoined = models.joined(*(models.of_tower(params, i) for i in (0, 1)))
    assert jax.tree.structure(rejoined) == jax.tree.structure(params)
    views = tuple(jnp.asarray(of.train.image[:4])[:, None] for _, of in towers)
    outputs, _ = run.recipe.network.apply(params, stats, views, train=False)
    for number, (settings, of) in enumerate(towers):
        network = runs.network_of(settings)
        weights = (models.of_tower(tree, number) for tree in (params, stats))
        alone = network.encode(*weights, jnp.asarray(of.train.image[:4]))["projection_1"]
        np.testing.assert_allclose(outputs.projection[:, number], alone, rtol=1e-5)
    modules = {row[0] for row in run.recipe.network.describe(run.recipe.view)[0]}
    assert modules == {"encoder", "projector", "second_encoder", "second_projector"}


def test_a_pair_has_one_view_of_each_array_with_a_key_of_its_own(file):
    wide = {
        "encoder.layers": None,
        "encoder.width": None,
        "second_encoder.width": None,
        "augment.crop_min": 0.3,
    }
    kinds = "key=photo,pair_key=text,size=8,vocabulary=9"
    run = runs.prepare(config_of(file, kinds, **wide, **{"second_augment": "tokens"}), ONE)
    key, (photo, text) = jax.random.key(5), run.source.train.pictures(np.arange(40))
    first, second = run.recipe.augment(key, (photo[3], text[3]))
    assert first.shape == (1, 8, 8, 1) and second.shape == (1, 5)
    np.testing.assert_array_equal(first[0], run.recipe.views(key, photo[3])[0])
    of_text = jax.random.fold_in(key, zlib.crc32(b"second"))
    wanted = augment.make_views_of_arrays(text, preset="tokens")(of_text, text[3])
    np.testing.assert_array_equal(second[0], wanted[0])
    assert [spec.shape for spec in run.recipe.view] == [(8, 8, 1), (5,)]


def test_pairs_train_on_scarfs_corrupted_copy(file):
    run = runs.prepare(config_of(file, **{"augment": "scarf", "second_augment": "scarf"}), ONE)
    pair = run.source.train.pictures(np.arange(40))
    made = run.recipe.augment(jax.random.key(5), tuple(array[3] for array in pair))
    for view, array in zip(made, pair, strict=True):
        assert view.shape == (1, *array.shape[1:])
        assert 0 < np.sum(np.asarray(view[0]) != array[3]) <= int(0.6 * array.shape[1])


IMAGES = {
    **{f"{which}.name": "tiny_methods:two_layers" for which in ("encoder", "second_encoder")},
    **{"augment.mean": (0.5,), "augment.std": (0.25,)},
    **{"second_augment.mean": (0.4,), "second_augment.std": (0.2,), "second_augment.crop_min": 0.3},
    **dict.fromkeys(TINY.keys() & {"encoder.layers", "encoder.width", "second_encoder.layers"}),
    "second_encoder.width": None,
}


def test_second_images_have_views_normalised_by_their_own_numbers(file):
    kinds = "key=photo,pair_key=photo,first=image,second=image,size=8"
    run = runs.prepare(config_of(file, kinds, **IMAGES), ONE)
    key, (photo, again) = jax.random.key(5), run.source.train.pictures(np.arange(40))
    assert again.dtype == np.uint8
    first, second = run.recipe.augment(key, (photo[3], again[3]))
    options = {"preset": "crop_only", "size": 8, "views": 1}
    of_second = jax.random.fold_in(key, zlib.crc32(b"second"))
    wanted = augment.make_views(**options, crop_min=0.3, mean=(0.4,), std=(0.2,))(of_second, again[3])
    np.testing.assert_array_equal(second, wanted)
    assert first.shape == second.shape == (1, 8, 8, 1) and not np.allclose(first, second)
    plain = [augment.make_eval(**options, mean=mean, std=std)(again[3]) for mean, std in [((0.4,), (0.2,))]]
    settings, _ = towers_of.towers(run.settings, run.source)[1]
    np.testing.assert_array_equal(augment.make_eval(**settings.augment.options)(again[3]), plain[0])


def test_presets_of_one_value_a_view_have_one_in_training_and_its_repeat_in_evaluation(file):
    """Training asked for one value, evaluation for two: no run of byol's views could be evaluated."""
    kinds = "key=photo,pair_key=photo,first=image,second=image,size=8"
    leaves = {
        f"{section}{leaf}": value
        for section in ("augment.", "second_augment.")
        for leaf, value in {"blur": (1.0,), "solarize": (0.0,)}.items()
    }
    names = {"augment.preset": "byol", "second_augment": "byol"}
    run = runs.prepare(config_of(file, kinds, **IMAGES, **names, **leaves), ONE)
    for settings, _ in towers_of.towers(run.settings, run.source):
        options = settings.augment.options
        assert (options["views"], options["blur"], options["solarize"]) == (2, (1.0, 1.0), (0.0, 0.0))
        augment.make_eval(**options), augment.make_crops(0.2, 0.5, **options), augment.make_views(**options)


@over(
    [
        ({"second_augment": "unchanged"}, "second_encoder: this encoder reads images"),
        ({"second_augment.size": 0}, "second_augment.size is 0; it must be at least 1"),
        ({"data.pair_key": "text"}, "second_augment: augment.preset is 'crop_only', for images"),
        ({"second_augment.local_views": 2}, "second_augment.local_views"),
    ]
)
def test_second_images_need_a_preset_of_images(leaves, message):
    kinds = "key=photo,pair_key=photo,first=table,second=image,size=8"
    small = {"second_encoder.layers": None, "second_encoder.width": 0.125}
    with pytest.raises(ValueError, match=message):
        runs.prepare(config_of(PLACE[0], kinds, **small, **leaves), ONE)


# -------------------------------------------------------------------------------------------- runs


@pytest.mark.run
@pytest.mark.parametrize("loss", ["clip", "siglip"])
def test_the_loss_of_two_towers_on_one_device_and_eight(loss, file, x64):  # noqa: F811
    printed = {"loss": "sigmoid", "temperature": "siglip", "temperature.tau": 0.1}
    leaves = {"data.group_key": "kind"} if loss == "clip" else printed
    config = config_of(file, **{"dtype": "float64", "optimizer": "sgd", **leaves})
    one, history, _ = run_on(ONE, config)
    eight, others, _ = run_on(jax.devices(), config)
    for a, b in zip(history, others, strict=True):
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-9)
    for tree in ("params", "temperature"):
        for a, b in zip(*(jax.tree.leaves(getattr(state, tree)) for state in (one, eight)), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)

    run = runs.prepare(config, ONE)
    params, stats = run.recipe.init_network(config["seed"])
    feed = data.Resident(run.source.train, seed=config["seed"], batch_size=16)
    batch = feed.take(feed.feed(0), 0)
    a, b = (
        runs.network_of(settings).encode(
            *(models.of_tower(tree, number) for tree in (params, stats)), batch.image[number]
        )["projection_1"]
        for number, settings in enumerate(towers_of.tower(run.settings, i) for i in (0, 1))
    )
    for name in ("embedding_std", "effective_rank"):
        np.testing.assert_allclose(history[0][name], of_two(a, b)[name], rtol=1e-6)
    if loss == "clip":
        wanted = contrastive_loss(a, b, "info_nce", 0.07, candidates="other_view", group=batch.group).mean()
        np.testing.assert_allclose(history[0]["loss"], wanted, rtol=1e-6)
    else:  # one step of tau and the bias, by autodiff of the printed loss
        ours = -jnp.log(0.1), jnp.asarray(-10.0)
        wanted, slopes = jax.value_and_grad(algorithm_1, argnums=(0, 1))(*ours, a, b)
        np.testing.assert_allclose(history[0]["loss"], wanted, rtol=1e-6)
        adam = optax.adam(1e-3, 0.9, 0.95)
        change, _ = adam.update(slopes, adam.init(ours))
        np.testing.assert_allclose(history[1]["tau"], jnp.exp(-(ours[0] + change[0])), rtol=1e-9)
        np.testing.assert_allclose([history[0]["bias"], history[1]["bias"]], [0.0, change[1]], rtol=1e-6)


def test_siglips_loss_in_a_run_is_that_of_arrays():
    a, b = jnp.asarray(DRAW.normal(size=(2, 12, 5)), jnp.float32)
    for directions, wanted in (("one_way", one_program(sigmoid_loss)(a, b, 0.2, -4.0)), ("both", None)):
        found = one_program(contrastive_loss)(
            a, b, "sigmoid", 0.2, candidates="other_view", directions=directions, bias=-4.0
        )
        if wanted is None:  # a sum over all pairs is the same both ways
            np.testing.assert_allclose(found[:12].mean(), found[12:].mean(), rtol=1e-5)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    masked = losses.sigmoid(jnp.asarray([[1.0, -jnp.inf, 2.0]]), bias=0.0)
    np.testing.assert_allclose(masked, jax.nn.softplus(-1.0) + jax.nn.softplus(2.0), rtol=1e-6)
    slope = jax.jit(jax.grad(lambda x: losses.sigmoid(x).sum()))(jnp.asarray([1.0, -jnp.inf, 2.0]))
    assert np.isfinite(slope).all() and slope[1] == 0
    assert configs.resolve("digits", [("loss", "siglip")]).loss["sigmoid"].options["bias"] == -10.0


def algorithm_1(log_scale, bias, a, b):
    """SigLIP's loss as printed (Zhai et al. 2023, algorithm 1): t' and b of two encoders' outputs."""
    a, b = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    logits = jnp.dot(a, b.T) * jnp.exp(log_scale) + bias
    labels = 2 * jnp.eye(len(a)) - jnp.ones(logits.shape)
    return -jnp.sum(jax.nn.log_sigmoid(labels * logits)) / len(a)


def of_contrast(loss):
    def value(log_scale, bias, a, b):
        options = {"candidates": "other_view", "differentiate_temperature": True}
        return 0.5 * contrastive_loss(a, b, loss, jnp.exp(-log_scale), **options).mean()

    return value


@pytest.mark.parametrize("engine", sampled(["dense", "tiled"], 1))
@pytest.mark.parametrize("loss", ["info_nce", "dcl", "flat_nce", "sigmoid"])
def test_a_learnt_temperature_takes_adams_steps_along_the_losss_derivative(loss, engine, x64):  # noqa: F811
    a, b = jnp.asarray(DRAW.normal(size=(2, 10, 4)))
    number, tau, pairs = jnp.arange(10), 0.1, loss == "sigmoid"
    rule, plain = (siglip, algorithm_1) if pairs else (learnt, of_contrast(loss))
    rule = rule(100, tau=tau, rate=0.05, min_tau=0.08)
    adam = optax.adam(0.05, 0.9, 0.95) if pairs else optax.adam(0.05, 0.9, 0.98, 1e-6)
    everything = cosine, other_view(10, 2), negatives.all(engine=engine), rule, margin.none(), (1.0, 2.0)
    compare, terms = Compare(*everything), make_terms({loss: {"weight": 1.0 if pairs else 0.5}})
    kept = by_example.keep_temperature(rule, by_example.keep_normalizer(normalizer.none(), 10, 2), 10, 2)
    views, zero = jnp.stack([a, b], axis=1), jnp.zeros(())

    def value(slopes, state, step):
        read = (), kept.read(state, number)
        comparison, _ = compare(views, views, number, read, step, jax.random.key(0), 0.0, slopes)
        return total_loss(terms, comparison, {})[0], comparison

    state, ours = kept.init(), (-jnp.log(tau), jnp.asarray(-10.0 if pairs else 0.0))
    moments, start = adam.init(ours), ours
    value = jax.jit(jax.value_and_grad(value, has_aux=True))
    expected = jax.jit(jax.value_and_grad(lambda at: plain(*at, a, b)))
    for step in range(4):
        (found, comparison), slopes = value(Slopes(zero, zero), state, jnp.asarray(step))
        wanted, gradient = expected(ours)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
        np.testing.assert_allclose(slopes, gradient, rtol=1e-8, atol=1e-12)
        state = kept.update(state, number, jnp.asarray(step), (), slopes)
        changes, moments = adam.update(gradient, moments)
        ours = jnp.minimum(ours[0] + changes[0], -jnp.log(0.08)), ours[1] + changes[1]
        np.testing.assert_allclose(rule.value(state, step, 0.0), jnp.exp(-ours[0]), rtol=1e-10)
        if pairs:
            np.testing.assert_allclose(rule.bias(state), ours[1] + 10.0, rtol=1e-10)
            assert "bias" in diagnostics.of_comparison(comparison)
        else:
            assert comparison.bias is None
    assert ours[0] != start[0] and (ours[1] != start[1]) == pairs


def test_a_bias_needs_a_loss_that_reads_it_and_is_one_number():
    terms, rule = make_terms({"info_nce": 1.0, "sigmoid": 0.0}), siglip(10)
    with pytest.raises(ValueError, match="temperature.name is 'siglip', whose bias no loss reads"):
        recipe._check_bias(terms, rule, "siglip")
    recipe._check_bias(make_terms({"sigmoid": 1.0}), rule, "siglip")
    recipe._check_bias(terms, learnt(10), "learnt")
    recipe._check_temperature(rule, "siglip", 40, (16, 2))
    several = rule._replace(bias=lambda state: jnp.zeros(2))
    with pytest.raises(ValueError, match=r"whose bias is an array \(2,\)"):
        recipe._check_temperature(several, "mine:rule", 40, (16, 2))


@pytest.mark.run
def test_a_run_is_resumed_embedded_evaluated_and_described(file, tmp_path, monkeypatch):
    config = config_of(file, **{"evaluate.every": "3 steps", "evaluate.look": ("retrieval", "knn")})
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    loop.train(config, str(whole), quiet=True, devices=ONE)
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped):
        stop_at(patch, 2)
        loop.train(config, str(stopped), quiet=True, devices=ONE)
    loop.train(config, str(stopped), quiet=True, devices=ONE)
    assert_same(left_behind(whole, config), left_behind(stopped, config))
    names = {"eval/retrieval_to_second_at_1", "eval/knn_top1", "eval/knn@second_top1"}
    assert names <= left_behind(whole, config)[2][-1].keys()

    encoders = [load_encoder(whole, second=second) for second in (False, True)]
    written = np.load(embed.embed(config, str(whole), quiet=True)["test"])
    for encoder, name, layer in zip(encoders, ("sound", "video"), ("pooled", "second_pooled"), strict=True):
        x = ARRAYS[name][40:].astype(np.float32)
        np.testing.assert_allclose(written[layer], encoder(x), rtol=1e-5, atol=1e-6)
    assert json.loads(str(written["config"]))["second_encoder"]["name"] == "mlp"

    columns = {
        "knn": {"name": "knn", "k": 3},
        "retrieval": {"name": "pair_retrieval"},
        "spread": {"name": "geometry"},
    }
    again = configs.resolve(str(whole), [("evaluators", str(columns))])
    found = evaluate.evaluate(again, str(whole), quiet=True)["results"]
    names = {"retrieval", "knn", "knn@second", "spread", "spread@second"}
    assert found["trained"].keys() == found["untrained"].keys() == names
    assert found["raw pixels"].keys() == names - {"retrieval"}
    assert all("protocol" in score for row in found.values() for score in row.values())
    ours = cross_retrieval(
        *(encoder(ARRAYS[name][40:].astype(np.float32), layer="projection_1")
          for encoder, name in zip(encoders, ("sound", "video"), strict=True)),
        *[np.arange(20)] * 3,
    )  # fmt: skip
    assert {name: found["trained"]["retrieval"][name] for name in ours} == ours

    for given in (("checkpoint",), ("second_checkpoint",), ("checkpoint", "second_checkpoint")):
        more = config | {"init": config["init"] | dict.fromkeys(given, str(whole)), "seed": 1}
        run, said = runs.prepare(more, ONE), []
        with jax.set_mesh(run.mesh):
            params = jax.device_get(initial.first_state(program.single(run), said.append).params)
        fresh = run.recipe.init_network(1)[0]
        for number, option in enumerate(("checkpoint", "second_checkpoint")):
            own, now = (models.of_tower(tree, number) for tree in (fresh, params))
            wanted = encoders[number].params if option in given else own
            jax.tree.map(np.testing.assert_array_equal, now["encoder"], wanted["encoder"])
            jax.tree.map(np.testing.assert_array_equal, now["projector"], own["projector"])
            name = ("encoder", "second_encoder")[number]
            assert f"{name}: from {f'step 6 of {whole}' if option in given else 'the seed'}" in said
    other = config_of(file, **{"second_encoder.width": 16, "init.second_checkpoint": str(whole)})
    with pytest.raises(
        ValueError, match="init.second_checkpoint=.* does not match the second_encoder of this config"
    ):
        initial.check(runs.prepare(other, ONE), str(tmp_path / "new"))
    described = describe.describe(config, str(whole), quiet=True)
    assert described["gflops_per_step"] > 0
    report.report(config, str(whole), quiet=True)
    with pytest.raises(ValueError, match="data.pair_key"):
        embed.embed(configs.resolve(str(whole), [("data.pair_key", "")]), str(whole), quiet=True)
    for mode in (preview.preview, export.export):
        with pytest.raises(ValueError):
            mode(config, str(whole), quiet=True)


@pytest.mark.run
def test_replicas_of_two_towers_are_single_runs(file, tmp_path):
    given = [config_of(file, seed=seed, **{"train.duration": "3 steps"}) for seed in (0, 1)]
    loop.train(given, str(tmp_path / "both"), quiet=True)
    loop.train(given[1], str(tmp_path / "one"), quiet=True, devices=ONE)
    lines = [left_behind(tmp_path / place, given[1])[2] for place in ("both/replica_1", "one")]
    np.testing.assert_allclose(*([row["loss"] for row in rows] for rows in lines), rtol=1e-5)


@pytest.mark.run
def test_a_run_of_two_arrays_of_images(file, tmp_path):
    kinds = "key=photo,pair_key=photo,first=image,second=image,size=8"
    columns = {"retrieval": {"name": "pair_retrieval"}, "knn": {"name": "knn", "k": 3}}
    leaves = {"evaluate.final": True, "train.duration": "2 steps", "evaluators": str(columns)}
    config = config_of(file, kinds, **IMAGES | leaves)
    results = loop.train(config, str(tmp_path / "run"), quiet=True, devices=ONE)["evaluations"]
    assert set(results["trained"]) == {"retrieval", "knn", "knn@second"} == {*results["untrained"]}
    encoder = load_encoder(tmp_path / "run", second=True)
    photos = ARRAYS["photo"][40:]
    written = np.load(embed.embed(config, str(tmp_path / "run"), quiet=True)["test"])
    np.testing.assert_allclose(written["second_pooled"], encoder(photos), rtol=1e-5, atol=1e-6)
    seen = augment.make_eval(preset="crop_only", size=8, mean=(0.4,), std=(0.2,))(photos[0])
    np.testing.assert_array_equal(encoder.prepare(photos[0]), seen)


@pytest.mark.run
def test_without_labels_only_pairs_are_evaluated(file, tmp_path):
    leaves = {"data.label_key": "", "data.test_label_key": "", "evaluate.final": True}
    columns = {"retrieval": {"name": "pair_retrieval"}, "knn": {"name": "knn", "k": 3}}
    config = config_of(file, **leaves, **{"train.microbatches": 2, "evaluators": str(columns)})
    results = loop.train(config, str(tmp_path), quiet=True, devices=ONE)["evaluations"]
    assert {row: set(scores) for row, scores in results.items()} == {
        "trained": {"retrieval"}, "untrained": {"retrieval"}
    }  # fmt: skip


@pytest.mark.run
def test_the_page_of_two_encoders(tmp_path, monkeypatch):
    """Its commands, with short trainings of narrow encoders, and its Python."""
    monkeypatch.chdir(tmp_path)
    code, commands = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "sh"))
    make, use, own_loop = code
    exec(make, {})
    columns = {"retrieval": {"name": "pair_retrieval"}, "knn": {"name": "knn"}}
    short = [
        "train.duration=2 steps",
        "encoder=mlp",
        "encoder.layers=1",
        "encoder.width=8",
        "evaluate.final=False",
    ]
    short.append(f"evaluators={columns}")
    for line in commands[0].strip().split("\n"):
        words = shlex.split(line)[1:]
        words += [f"--config.{leaf}" for leaf in short if any("config=" in word for word in words)]
        spec, overrides, rest = main.split(words)
        options = dict(word.removeprefix("--").split("=") for word in rest)
        given = [f"--config={spec}"] * bool(spec) + [f"--config.{name}={text}" for name, text in overrides]
        mode = options.get("mode", "train")
        (config,) = main.resolved(given, options["workdir"], mode)
        modes = {"train": loop.train, "embed": embed.embed, "evaluate": evaluate.evaluate}
        modes[mode](config, options["workdir"], quiet=True)
    assert {"pooled", "second_pooled", "label"} <= set(np.load("runs/names/embeddings_test.npz").files)
    scores = json.loads((tmp_path / "runs/names/evaluation.json").read_text())["results"]["trained"]
    assert scores["retrieval"]["second_items"] <= 40 and {"knn", "knn@second"} <= scores.keys()
    found = {}
    exec(use, found)
    assert found["a"].shape == (360, 64) and found["right"].shape == (360,)
    exec(own_loop, {})
