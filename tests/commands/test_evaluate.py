"""--mode=evaluate: a checkpoint brings its network, the config says on what and how it is judged."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from saved_runs import config_of, workdir_of

from contrastive_jax import config as configs
from contrastive_jax import data, load_encoder, models, sharding
from contrastive_jax.commands import embed, evaluate, export, report
from contrastive_jax.config import sections
from contrastive_jax.data import compose
from contrastive_jax.training import loop
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on digits as it ends, and its config."""
    path, config = tmp_path_factory.mktemp("run"), config_of(seed=5)
    workdir_of(path, config)
    return path, config


def pictures(folder, mode="L"):
    """Two folders of two classes; the second class is brighter, and rarer in the test."""
    random = np.random.default_rng(0)
    for split, counts in (("train", (12, 12)), ("test", (9, 3))):
        for name, count in enumerate(counts):
            place = folder / split / f"class{name}"
            place.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(120 * name, 120 * name + 100, (12, 12), np.uint8)
                Image.fromarray(pixels).convert(mode).save(place / f"{number}.png")
    return folder


def other(run, folder, **leaves):
    """Another config altogether: it names the checkpoint, another set and other evaluators."""
    config = configs.base()
    config.data = {"name": "folder", "dir": str(folder)}
    config.evaluators = {
        "knn": {"name": "knn", "k": 3},
        "first": {"name": "knn", "k": 3, "layer": "projection_1"},
        "sgd": {"name": "moco_v3", "augment": False, "epochs": 2},
    }
    config.update_from_flattened_dict({"evaluate.checkpoint": str(run), **leaves})
    return configs.plain(configs.complete(config))


def test_a_checkpoint_is_judged_on_another_set_without_its_own(trained, tmp_path, capsys):
    run, config = trained
    judging = other(run, pictures(tmp_path / "pictures"))
    judging["compose"] = {"name": "rand_bit", "bits": 0, "seed": 0}
    found = evaluate.evaluate(judging, tmp_path / "out")
    here = {
        "data": judging["data"] | {"dir": "pictures"},
        "compose": judging["compose"],
    }  # not its whole path
    assert {name: found[name] for name in ("data", "compose")} == here
    printed = capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["results"] == found["results"]
    assert found["step"] == 7 and found["config"] == configs.fingerprint(config)
    assert found["metric"] == "top1" and set(found["results"]) == {"trained", "untrained", "raw pixels"}
    for scores in found["results"].values():
        assert set(scores) == {"knn", "first", "sgd"}
    assert "encoder" in printed and "taken from the checkpoint" in printed
    assert "Top-1 (mean per-class accuracy)" in printed  # the test set is unbalanced
    assert "layer projection_1" in found["results"]["trained"]["first"]["protocol"]
    assert "layer pixels" in found["results"]["raw pixels"]["first"]["protocol"]


@pytest.mark.run
def test_the_untrained_row_is_the_runs_own_start(trained, tmp_path):
    run, config = trained
    own = evaluate.evaluate(
        config | {"evaluate": config["evaluate"] | {"rows": ["untrained"]}}, run, quiet=True
    )
    digits = other(run, "", **{"evaluate.rows": ("untrained",)}) | {
        "data": config["data"], "evaluators": config["evaluators"]
    }  # fmt: skip
    assert evaluate.evaluate(digits, tmp_path, quiet=True)["results"] == own["results"]


@pytest.mark.run
def test_an_exported_file_is_a_checkpoint_like_any_other(trained, tmp_path):
    run, config = trained
    folder, only = pictures(tmp_path / "pictures"), {"evaluate.rows": ("trained",)}
    export.export(
        config | {"evaluate": config["evaluate"] | {"checkpoint": str(run)}}, str(tmp_path), quiet=True
    )
    configs_of = [other(path, folder, **only) for path in (run, tmp_path / "encoder.safetensors")]
    for one in configs_of:
        one["evaluators"].pop("first")  # a file has no projector
    found = [evaluate.evaluate(one, tmp_path / "out", quiet=True)["results"]["trained"] for one in configs_of]
    assert found[0] == found[1]


@pytest.mark.run
def test_the_size_of_the_images_can_be_another(trained, tmp_path):
    run, _ = trained
    folder, only = pictures(tmp_path / "pictures"), {"evaluate.rows": ("trained",)}
    found = [
        evaluate.evaluate(other(run, folder, **only, **{"evaluate.size": size}), tmp_path, quiet=True)
        for size in (0, 8, 12)
    ]
    loss = [one["results"]["trained"]["sgd"]["train_loss"] for one in found]
    assert loss[0] == loss[1] != loss[2]


def test_whatever_judges_sees_images_of_evaluate_size(trained, tmp_path):
    """Looks, the final table, embeddings and the report's map."""
    run, config = trained
    config = config | {
        "evaluate": config["evaluate"] | {"size": 12},
        "embed": config["embed"] | {"splits": ("test",)},
    }
    built = runs.prepare(config)
    judge = evaluate.Evaluator(built.settings, built.source, built.mesh, built.evaluators)
    subject = judge.subject("", ({}, {}))
    assert subject.view()(built.source.test.image[0]).shape == (12, 12, 1)
    found = report.features_of(run, built.settings, sections.Report(images=20)).features
    with np.load(embed.embed(config, str(run), quiet=True)["test"]) as file:
        rows = np.sort(np.random.default_rng(0).permutation(len(file["id"]))[:20])
        np.testing.assert_allclose(found, file["pooled"][rows], rtol=1e-4, atol=1e-5)
        assert json.loads(str(file["config"]))["augment"]["size"] == 12
    as_trained = load_encoder(run)(built.source.test.image[rows])
    assert np.abs(found - as_trained).max() > 0.01


def perceptron(norm, dtype):
    """An encoder whose weights are for images of one size."""

    def init(key, images):
        return {"w": jnp.ones((images[0].size, 4))}, {}

    return models.Encoder(
        init, lambda params, stats, x, *, train: (x.reshape(len(x), -1) @ params["w"], stats)
    )


@pytest.mark.parametrize(
    ("size", "encoder", "sentence"),
    [
        (-1, {}, "evaluate.size is -1; it must be at least 0"),
        (
            10,
            {"name": "vit", "patch": 4, "dim": 16, "layers": 1, "heads": 2},
            "evaluate.size is 10: encoder.patch is 4",
        ),
        (
            10,
            {"name": f"{__name__}:perceptron"},
            "evaluate.size is 10; it must be 0, .* 8 pixels",
        ),
    ],
)
def test_a_size_that_the_network_cannot_read_is_refused_before_training(size, encoder, sentence):
    config = config_of()
    config |= {"evaluate": config["evaluate"] | {"size": size}, "encoder": encoder or config["encoder"]}
    with pytest.raises(ValueError, match=sentence):
        runs.prepare(configs.plain(configs.completed(config)))


@pytest.mark.parametrize(
    ("leaves", "mode", "sentence"),
    [
        ({}, "RGB", "has images with 3 channels; the encoder of .* reads 1"),
        ({"data.train_split": "test", "data.test_split": ""}, "L", "nothing to evaluate: no test examples"),
        ({"evaluate.checkpoint": "nowhere"}, "L", "there is no checkpoint directory .*nowhere"),
        (
            {"evaluators.first.layer": "projection_4"},
            "L",
            (
                "evaluators.first: layer is 'projection_4'; it must be one of pooled, projection_1,"
                " projection_2"
            ),
        ),
        ({"evaluators.knn.k": 30}, "L", "evaluators.knn: k is 30; .* 24"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_writes_nothing(trained, tmp_path, leaves, mode, sentence):
    run, _ = trained
    config = other(run, pictures(tmp_path / "pictures", mode), **leaves)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        evaluate.evaluate(config, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_look_is_at_any_columns(trained):
    _, config = trained
    settings = config["evaluate"] | {"look": ["knn", "nearer"], "every": "1 step", "final": False}
    columns = {"knn": config["evaluators"]["knn"], "nearer": {"name": "knn", "k": 1}}
    changed = config | {"evaluate": settings, "evaluators": columns}
    with pytest.raises(ValueError, match="evaluate.look contains 'nearr', .*Did you mean 'nearer'"):
        loop.train(changed | {"evaluate": settings | {"look": ["nearr"]}}, "unused", quiet=True)
    run = runs.prepare(changed)
    judge = evaluate.Evaluator(run.settings, run.source, run.mesh)
    with jax.set_mesh(run.mesh):
        state = runs.replicate(init_state(run.recipe, 0), run.mesh)
        seen = judge.look((state.params, state.stats))
    assert set(seen) == {"eval/knn_top1", "eval/nearer_top1"}


def test_a_column_that_fails_in_a_look_takes_no_training_with_it(trained):
    _, config = trained
    settings = config["evaluate"] | {"look": ["bad", "knn"], "every": "1 step", "final": False}
    columns = {"knn": config["evaluators"]["knn"], "bad": {"name": "sgd", "learning_rate": 1e38, "epochs": 1}}
    run = runs.prepare(config | {"evaluate": settings, "evaluators": columns})
    judge, said = evaluate.Evaluator(run.settings, run.source, run.mesh), []
    own = {"nothing": lambda subject: None, "single": lambda subject: {"top1": np.float32(0.5)}}
    judge.evaluators |= own
    judge.settings = run.settings.replaced(evaluate=settings | {"look": [*settings["look"], *own]})
    with jax.set_mesh(run.mesh):
        state = runs.replicate(init_state(run.recipe, 0), run.mesh)
        looks = [judge.look((state.params, state.stats), said.append) for _ in range(2)]
    assert all(set(seen) == {"eval/knn_top1", "eval/single_top1"} for seen in looks)
    assert len(said) == 2 and "evaluate.look: bad failed: " in said[0] and "nothing failed: " in said[1]


def test_columns_can_be_others_than_those_of_the_looks(trained, tmp_path):
    """--mode=evaluate of a run that looked while it trained: evaluate.every and its columns are the run's own."""
    run, config = trained
    looking = config | {
        "evaluate": config["evaluate"] | {"look": ["knn"], "every": "1 step", "rows": ["trained"]}
    }
    found = evaluate.evaluate(
        looking | {"evaluators": {"nearer": {"name": "knn", "k": 1}}, "evaluate": looking["evaluate"]
                   | {"checkpoint": str(run)}}, tmp_path, quiet=True,
    )  # fmt: skip
    assert set(found["results"]["trained"]) == {"nearer"}


def test_images_that_were_added_or_removed_since_the_run_are_said(tmp_path):
    config = other(tmp_path, tmp_path)
    drawn = config | {"data": config["data"] | {"test_fraction": 0.1}}
    moved = drawn | {"data": drawn["data"] | {"dir": "elsewhere", "size": 8}}
    config, drawn, moved = map(configs.as_settings, (config, drawn, moved))
    fewer, begun = (269, "a"), (270, "b")
    (note,) = evaluate.changed(drawn, drawn, fewer, begun)
    assert "data has 269 training images; the run began with 270" in note
    (note,) = evaluate.changed(drawn, drawn, (270, "a"), begun)
    assert "270 training images, as many as the run began with" in note
    for now, had in ((begun, begun), (fewer, (None, None)), ((270, None), begun), ((270, "a"), (270, None))):
        assert evaluate.changed(drawn, drawn, now, had) == []
    assert evaluate.changed(config, config, fewer, begun) == []  # test images have a folder of their own
    assert evaluate.changed(moved, drawn, fewer, begun) == []


def test_the_metric_is_the_sets_own_whatever_is_made_of_its_images():
    """A display name such as "oxford_flowers102 + 2 random bits" is in no list."""
    config = configs.plain(configs.load(str(ROOT / "configs/digits.py:scale=smoke")))
    whole, mesh = data.load(name="digits"), sharding.make_mesh(jax.devices()[:1])
    for name, metric in (("oxford_flowers102:2.1.1", "mean_per_class"), ("cifar10", "top1")):
        config["data"] = config["data"] | {"name": name}
        source = compose.rand_bit(dataclasses.replace(whole, name=name), None, bits=2)
        assert evaluate.Evaluator(config, source, mesh).metric() == metric


def test_validation_images_are_not_called_test_images(capsys):
    config = configs.plain(configs.load(str(ROOT / "configs/digits.py:scale=smoke")))
    mesh = sharding.make_mesh(jax.devices()[:1])
    for validation, said in ((0.2, "Top-1 on the validation images"), (0.0, "Top-1 on the test images")):
        config["data"] = config["data"] | {"validation": validation}
        judge = evaluate.Evaluator(config, data.load(name="digits", validation=validation), mesh)
        judge.print({"trained": {"knn": {"top1": 0.5, "protocol": "how"}}})
        assert said in capsys.readouterr().out


def test_every_set_that_is_judged_has_columns_of_its_own():
    """Columns ``knn@odd`` are what ``knn`` is where that set is the only one; one named "" takes the first place."""
    config = configs.plain(configs.load(str(ROOT / "configs/digits.py:scale=smoke")))
    config["evaluators"], config["evaluate"]["rows"] = {"knn": {"name": "knn", "k": 3}}, ["raw pixels"]
    whole, nothing = data.load(name="digits"), ({"w": jax.numpy.ones(1)}, {})

    def first(part, count):  # 2 and 3, told apart by their ones
        return part[np.flatnonzero(np.isin(part.label, (2, 3)))[:count]]

    def odd(part):
        return dataclasses.replace(part, label=part.label % 2)

    def table(source):
        mesh = sharding.make_mesh(jax.devices()[:1])
        with jax.set_mesh(mesh):
            return evaluate.Evaluator(config, source, mesh).table(nothing)["raw pixels"]

    few = data.Source("few", first(whole.train, 40), first(whole.test, 20), whole.classes)
    odds = dataclasses.replace(few, train=odd(few.train[:9]), test=odd(few.test))
    alone, of_odds = table(few), table(odds)
    assert alone.keys() == of_odds.keys() == {"knn"} and alone != of_odds
    both = table(dataclasses.replace(few, probes={"odd": (odds.train, odds.test)}))
    assert both == alone | {"knn@odd": of_odds["knn"]} and list(both) == ["knn", "knn@odd"]
    instead = table(
        dataclasses.replace(few, probes={"": (odds.train, odds.test), "few": (few.train, few.test)})
    )
    assert instead == of_odds | {"knn@few": alone["knn"]}
