"""Arrays of one's own: the how-to page's commands, literally; runs on many devices, resumed, in parts, side by side."""

import pathlib
import re
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest
from saved_runs import assert_same, left_behind, stop_at

from contrastive_jax import config as configs
from contrastive_jax import data, load_encoder, main, sharding
from contrastive_jax.commands import describe, embed, evaluate, export, preview, report
from contrastive_jax.training import loop, pair_evaluation
from contrastive_jax.training import run as runs

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs/how_to/arrays.md").read_text()
CODE, COMMANDS = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("python", "sh"))
ONE = jax.devices()[:1]
MODES = {"train": loop.train, "embed": embed.embed, "report": report.report}
SHORT = ("--config.train.duration=2 steps", "--config.encoder.width=16", "--config.projector.hidden=16")
DRAW = np.random.default_rng(0)
ARRAYS = {
    "table": DRAW.normal(size=(48, 6)),
    "series": DRAW.normal(size=(48, 12, 2)),
    "tokens": DRAW.integers(1, 20, (48, 10)),
}
ENCODERS = {
    "table": {"encoder.layers": 2, "encoder.width": 16},
    "series": {"encoder.layers": 1, "encoder.width": 16},
    "tokens": {"encoder.layers": 1, "encoder.dim": 16, "encoder.vocabulary": 20},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page's files, and arrays of each kind."""
    place = tmp_path_factory.mktemp("arrays")
    for code in CODE:
        (place / re.match(r"# (\S+)", code)[1]).write_text(code)
    for kind, x in ARRAYS.items():
        y = np.arange(48) % 3
        np.savez(place / f"{kind}.npz", x=x[:36], y=y[:36], x_test=x[36:], y_test=y[36:])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        yield place
    sys.modules.pop("my_views", None)


def config_of(folder, kind, **leaves):
    given = {
        "data.file": str(folder / f"{kind}.npz"),
        "train.batch_size": 16,
        "train.duration": "6 steps",
        "log.every": 1,
        "log.tensorboard": False,
        "evaluate.final": False,
        "projector.hidden": 16,
        "projector.out": 8,
        "evaluators.knn.k": 3,
    }
    given |= ENCODERS[kind] | leaves
    return configs.resolve(str(ROOT / f"configs/arrays.py:kind={kind}"), list(given.items())).to_dict()


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """A run of each kind that nobody stopped."""
    found = {}
    for kind in ARRAYS:
        workdir, config = tmp_path_factory.mktemp(kind), config_of(folder, kind)
        loop.train(config, str(workdir), quiet=True, devices=ONE)
        found[kind] = workdir, config
    return found


@pytest.mark.run
def test_stopped_and_resumed_is_uninterrupted_bit_for_bit(whole, tmp_path, monkeypatch):
    workdir, config = whole["table"]  # its views are drawn from all rows
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped):
        stop_at(patch, 2)
        loop.train(config, tmp_path, quiet=True, devices=ONE)
    loop.train(config, tmp_path, quiet=True, devices=ONE)
    assert_same(left_behind(workdir, config), left_behind(tmp_path, config))


@pytest.mark.run
@pytest.mark.parametrize("kind", ARRAYS)
def test_eight_devices_in_parts_of_a_batch_are_one(whole, folder, kind, tmp_path):
    workdir, config = whole[kind]
    x = np.load(folder / f"{kind}.npz")["x"]
    _, step, lines = left_behind(workdir, config)
    other = configs.resolve(str(workdir), [("train.microbatches", 2)]).to_dict()
    loop.train(other, str(tmp_path), quiet=True, devices=jax.devices()[:8])
    _, steps, rows = left_behind(tmp_path, other)
    assert steps == step
    np.testing.assert_allclose([r["loss"] for r in rows], [r["loss"] for r in lines], rtol=1e-5)
    # Not the weights: those whose gradient is 0 but for rounding (a key's bias) follow Adam anywhere.
    ours, theirs = (load_encoder(place)(x) for place in (tmp_path, workdir))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


@pytest.mark.run
def test_replicas_are_single_runs(whole, tmp_path):
    workdir, config = whole["table"]
    given = [configs.resolve(str(workdir), [("seed", seed)]).to_dict() for seed in (0, 1)]
    loop.train(given, str(tmp_path), quiet=True)
    state, _, lines = left_behind(workdir, config)
    mine, _, rows = left_behind(tmp_path / "replica_0", config)
    np.testing.assert_allclose([r["loss"] for r in rows], [r["loss"] for r in lines], rtol=1e-5)
    other = left_behind(tmp_path / "replica_1", given[1])[0]
    assert not np.allclose(jax.tree.leaves(other.params)[1], jax.tree.leaves(mine.params)[1])


@pytest.mark.run
@pytest.mark.parametrize("kind", ARRAYS)
def test_the_encoder_is_embedded_loaded_evaluated_and_trained_on(whole, folder, kind, tmp_path):
    workdir, config = whole[kind]
    x = np.load(folder / f"{kind}.npz")["x_test"]
    encoder = load_encoder(workdir)
    features = encoder(x)
    with np.load(embed.embed(config, str(workdir), quiet=True)["test"]) as written:
        np.testing.assert_allclose(written["pooled"], features, rtol=1e-5, atol=1e-6)
    assert encoder.example.shape == x.shape[1:] and encoder.channels == x.shape[-1]
    with pytest.raises(
        ValueError, match="open reads image files only; this encoder reads (float|int)32 .n, "
    ):
        encoder.open("a.png")
    with pytest.raises(ValueError, match="images are .* of shape .*; this encoder reads"):
        encoder(x[:, :-1])
    columns = {
        "knn": {"name": "knn", "k": 3},
        "tuned": {"name": "finetune_simclr", "epochs": 1, "batch_size": 8},
        "geometry": {"name": "geometry"},
        "lidar": {"name": "lidar", "images": 4},
    }
    if kind == "table":
        columns["frozen"] = {"name": "moco", "epochs": 1, "batch_size": 8}
    again = configs.resolve(str(workdir), [("evaluators", str(columns))])
    judged = evaluate.evaluate(again, str(workdir), quiet=True)
    for row in ("trained", "untrained"):
        assert all("failed" not in judged["results"][row][column] for column in columns), judged["results"][
            row
        ]
    assert judged["results"]["raw pixels"]["knn"]["top1"] >= 0
    more = [("init.checkpoint", str(workdir)), ("train.duration", "1 step")]
    loop.train(configs.resolve(str(workdir), more), str(tmp_path / "more"), quiet=True, devices=ONE)
    page = pathlib.Path(report.report(config, str(workdir), quiet=True)).read_text()
    assert "The examples are not images" in page and "data:image/png" not in page


@pytest.mark.run
def test_an_encoder_of_other_examples_is_refused(whole, folder, tmp_path):
    workdir, config = whole["table"]
    for kind in ("series", "tokens"):
        with pytest.raises(ValueError, match=r"has examples .*; the encoder of .* reads float32 \[6\]"):
            embed.embed(config | {"data": config_of(folder, kind)["data"]}, str(workdir), quiet=True)


@pytest.mark.parametrize(
    "kind, leaves, says",
    [
        ("table", {"augment": "simclr"}, "augment.preset is 'simclr', for images"),
        ("table", {"augment": "tokens"}, "augment.preset is 'tokens', for token ids"),
        ("table", {"encoder": "resnet"}, "this encoder reads images"),
        ("table", {"encoder": "conv1d", "encoder.width": 16}, None),
        ("series", {"evaluate.size": 16}, "evaluate.size is 16; it must be 0"),
        ("series", {"compose": "rand_bit"}, "compose needs images"),
        (
            "tokens",
            {"encoder.vocabulary": 19},
            "encoder.vocabulary is 19; ids must be from 0 to 18, and data contains 19",
        ),
        ("tokens", {"augment.mask_id": 20}, "and augment.mask_id contains 20"),
        ("tokens", {"augment.padding_id": 21}, "and augment.padding_id contains 21"),
        ("tokens", {"encoder.vocabulary": 0}, "encoder.vocabulary is 0; set it"),
        ("tokens", {"encoder.padding_id": 0}, "augment.mask_id is 0, which is encoder.padding_id"),
        ("tokens", {"encoder.padding_id": 0, "augment.mask": 0.0}, None),
        ("tokens", {"encoder.padding_id": 1}, "augment.padding_id is 0; it must be 1, as encoder.padding_id"),
        ("tokens", {"encoder": "conv1d", "encoder.vocabulary": None, "encoder.dim": None}, "reads float"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_compiled(folder, kind, leaves, says):
    base = {k: v for k, v in ENCODERS[kind].items() if "encoder" not in leaves}
    given = {"data.file": str(folder / f"{kind}.npz"), "train.batch_size": 16}
    given |= base | {k: v for k, v in leaves.items() if v is not None}

    def prepared():
        return runs.prepare(
            configs.resolve(str(ROOT / f"configs/arrays.py:kind={kind}"), list(given.items())), ONE
        )

    if says is None:
        prepared()
        return
    with pytest.raises(ValueError, match=says) as error:
        prepared()
    assert "\n" not in str(error.value)


def test_streamed_images_are_not_checked_as_ids():
    """They have no array of ids; the encoder refuses them."""
    leaves = {"data": "synthetic", "data.like": "digits", "data.stream": "on", "augment": "simclr"}
    leaves |= {"encoder": "transformer", "encoder.vocabulary": 20}
    with pytest.raises(ValueError, match="encoder.name=transformer reads ids .*, not float32 .1, 32, 32, 1."):
        runs.prepare(configs.resolve(None, leaves), ONE)


def test_preview_and_export_are_for_images(whole_table, tmp_path):
    workdir, config = whole_table
    with pytest.raises(
        ValueError, match="augment.preset is 'scarf'; --mode=preview draws images, .* float32 .6."
    ):
        preview.preview(config, str(tmp_path))
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="--mode=export writes ResNets"):
        export.export(config, str(workdir))


@pytest.fixture
def whole_table(folder, tmp_path_factory):
    workdir, config = (
        tmp_path_factory.mktemp("short"),
        config_of(folder, "table", **{"train.duration": "1 step"}),
    )
    loop.train(config, str(workdir), quiet=True, devices=ONE)
    return workdir, config


@pytest.mark.run
def test_describe(folder, capsys):
    describe.describe(config_of(folder, "series"), "")
    printed = capsys.readouterr().out
    assert "36 float32 examples 12x2, 3 classes" in printed


@pytest.mark.run
def test_the_pages_commands(folder, monkeypatch, capsys):
    """With a short training; the two commands of Python as they are."""
    monkeypatch.chdir(folder)
    subprocess.run([sys.executable, "make_arrays.py"], check=True, cwd=folder)
    for line in (line for block in COMMANDS for line in block.strip().split("\n")):
        words = shlex.split(line)
        words = words[1:] + [w for w in SHORT if any("config=" in word for word in words)]
        spec, overrides, rest = main.split(words)
        options = dict(word.removeprefix("--").split("=") for word in rest)
        given = [f"--config={spec}"] * bool(spec) + [f"--config.{name}={text}" for name, text in overrides]
        mode = options.get("mode", "train")
        (config,) = main.resolved(given, options["workdir"], mode)
        MODES[mode](config, options["workdir"])
    assert {p.name for p in (folder / "runs").iterdir()} == {"cancer", "rows", "blurred"}
    assert {"embeddings_test.npz", "report.html", "result.json"} <= {
        p.name for p in (folder / "runs/cancer").iterdir()
    }
    code = next(code for code in CODE if "load_encoder" in code)
    found = {}
    exec(code, found)
    assert found["features"].shape == (114, 16)  # of the short run's width


X = np.zeros((24, 6))


@pytest.mark.parametrize(
    "kind, rows, line",
    [
        ("arrays:kind=table", {"x": X, "y": np.arange(24) % 3}, "--config.data.test_fraction=0.2"),
        ("arrays:kind=table", {"x": X}, "no labelled test examples"),
        ("pairs:first=table,second=table", {"image": X, "text": X}, "--config.data.test_fraction=0.2"),
    ],
)
def test_a_run_that_evaluates_nothing_names_the_option_that_would(tmp_path, kind, rows, line):
    np.savez(tmp_path / "rows.npz", **rows)
    settings = configs.resolve(kind, {"data.file": str(tmp_path / "rows.npz")})
    evaluator = pair_evaluation.evaluator_of(settings, runs.source_of(settings), sharding.make_mesh(ONE))
    assert not evaluator.evaluates and line in pair_evaluation.skipped(evaluator)


def test_a_labelled_test_set_alone_is_said_to_lack_training_labels():
    images = np.zeros((9, 8, 8, 1), np.uint8)
    source = data.from_arrays(images, None, images, np.arange(9) % 3)
    evaluator = pair_evaluation.evaluator_of(configs.resolve("digits"), source, sharding.make_mesh(ONE))
    assert pair_evaluation.lacks(evaluator) == "no labelled training examples"
