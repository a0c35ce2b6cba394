"""Functions of one's own on every axis, as the how-to page has them: trained, evaluated, resumed, on eight devices."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import NearestCentroid

from contrastive_jax import augment, data, load_encoder, lookup, main, sharding
from contrastive_jax import config as configs
from contrastive_jax.commands import describe, embed, evaluate, export
from contrastive_jax.evaluators import table
from contrastive_jax.training import evaluation, loop
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import read_metrics

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs/how_to/own_functions.md").read_text()
CODE, COMMANDS = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("python", "sh"))
FILES = ("mine", "encoders", "judges")


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The page's modules where Python finds them."""
    folder = tmp_path_factory.mktemp("mine")
    for name, code in zip(FILES, CODE, strict=True):
        (folder / f"{name}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    for name in FILES:
        sys.modules.pop(name, None)


def arguments(command):
    return shlex.split(COMMANDS[command].replace("\\\n", " "))[1:]


@pytest.fixture(scope="module")
def mine(modules):
    return modules, arguments(0)


def stopped_and_gone_on(config, workdir, monkeypatch):
    """Train on one device, with a stop at step 2 and a second start."""
    feed = data.Resident.feed

    def feed_and_stop(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return feed(self, step)

    one = jax.devices()[:1]
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped):
        patch.setattr(data.Resident, "feed", feed_and_stop)
        loop.train(config, str(workdir), quiet=True, devices=one)
    loop.train(config, str(workdir), quiet=True, devices=one)


def numbers(workdir):
    return [row | {"timing": 0} for row in read_metrics(workdir)]


@pytest.fixture(scope="module")
def config(mine):
    arguments = [*mine[1], "--config.evaluators={}", "--config.encoder.width=0.125", "--config.log.every=1"]
    return main.resolved(arguments, None, "train")[0].to_dict()


def test_the_config_has_their_options_and_no_others(config):
    assert config["data"] == {"name": "mine:threes_and_eights", "invert": True}
    assert config["temperature"] == {"name": "mine:warm", "tau": 0.1, "start": 1.0, "steps": 100}
    assert config["loss"] == {"mine:squared": {"weight": 1.0, "power": 1.5}}
    assert config["optimizer"] == {"name": "mine:lion", "weight_decay": 1e-4}  # digits' own stays
    assert config["schedule"] == {"name": "mine:triangle", "peak": 0.002}
    local = {"local_views": 0, "local_size": None, "local_crop_min": 0.05, "local_crop_max": 0.14}
    assert config["augment"] == {"preset": "mine:shifted", "size": 8, "views": 2, "shift": 0.1} | local


def test_an_evaluator_of_ones_own_is_a_column_beside_the_others(modules):
    (config,) = main.resolved(arguments(2), None, "train")
    assert {"linear", "knn", "centroid"} <= set(config.evaluators)
    assert config.evaluators["centroid"][:2] == ("evaluators.centroid", "judges:centroid")
    assert config.evaluators["centroid"].options == {"layer": "pooled"}
    run = runs.prepare(config, jax.devices()[:1])
    judge = evaluation.Evaluator(run.settings, run.source, run.mesh, run.evaluators)
    subject = judge.subject("raw pixels", None, ["centroid"])
    found = table.scores([subject], {"centroid": run.evaluators[""]["centroid"]})["raw pixels"]["centroid"]
    train, test = run.source.train, run.source.test
    expected = NearestCentroid().fit(train.image.reshape(len(train), -1), train.label)
    assert found["top1"] == expected.score(test.image.reshape(len(test), -1), test.label)


@pytest.mark.run
def test_they_train_as_the_page_says_and_go_on_bit_for_bit(mine, tmp_path, monkeypatch):
    folder, arguments = mine
    command = [sys.executable, "-m", "contrastive_jax.main", *arguments, "--config.log.every=1", "--quiet"]
    command += ["--config.evaluators={'knn': {'name': 'knn', 'k': 3}}", "--config.train.duration=4 steps"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = folder / "runs/mine"
    assert json.loads((run / "result.json").read_text())["evaluations"]["trained"]["knn"]["top1"] > 0.6
    whole = read_metrics(run)
    assert whole[0]["tau"] == pytest.approx(1.0) and whole[3]["tau"] == pytest.approx(0.973)
    config = configs.plain(configs.load(str(run)))
    config["evaluate"]["final"] = False
    stopped_and_gone_on(config, tmp_path, monkeypatch)
    assert numbers(tmp_path) == numbers(run)


@pytest.mark.run
@pytest.mark.parametrize("encoder", ["cnn", "layer", "mlp"])
def test_an_encoder_of_ones_own_reaches_what_a_resnet_reaches(
    modules, encoder, tmp_path, monkeypatch, capsys
):
    given = [f"--config.encoder=encoders:{encoder}" if "encoder=" in a else a for a in arguments(1)]
    given = [a for a in given if encoder == "cnn" or "channels" not in a]
    options = {"cnn": {"channels": 8}, "layer": {"channels": 16}, "mlp": {"hidden": 64}}[encoder]
    leaves = ["train.duration=4 steps", "log.every=1", "evaluators={'knn': {'name': 'knn', 'k': 3}}"]
    (config,) = main.resolved([*given, *(f"--config.{leaf}" for leaf in leaves)], None, "train")
    assert config.encoder.name == f"encoders:{encoder}" and config.encoder.options == options
    loop.train(config, str(tmp_path / "whole"), quiet=True, devices=jax.devices()[:1])
    stopped_and_gone_on(config, tmp_path / "run", monkeypatch)
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    rows = evaluate.evaluate(config, str(tmp_path / "run"), quiet=True)["results"]
    assert rows["trained"]["knn"]["top1"] > 0.3 and rows["untrained"]["knn"]
    written = embed.embed(config, str(tmp_path / "run"), quiet=True)
    with np.load(written["test"]) as found:
        assert found["pooled"].shape[1] == (64 if encoder == "mlp" else 16) and found["pooled"].std() > 0
        features = found["pooled"]
    loaded = load_encoder(tmp_path / "run")
    images = runs.source_of(config).test.pictures(np.arange(5))
    np.testing.assert_allclose(loaded(images), features[:5], rtol=1e-4, atol=1e-5)
    describe.describe(config, str(tmp_path / "described"))
    parameters = {
        "cnn": 9 * 8 + 8 + 9 * 8 * 16 + 16 + 2 * (8 + 16), "layer": 9 * 16 + 3 * 16, "mlp": 64 * 64 + 64
    }  # fmt: skip
    assert f"encoder: {parameters[encoder]:,} parameters" in capsys.readouterr().out
    with pytest.raises(ValueError, match=f"is 'encoders:{encoder}'; --mode=export writes ResNets"):
        export.export(config, str(tmp_path / "run"))
    values = config.to_dict()
    start = values | {"init": values["init"] | {"checkpoint": str(tmp_path / "run")}}
    loop.train(start, str(tmp_path / "start"), quiet=True, devices=jax.devices()[:1])


def test_an_untrained_encoder_normalises_by_its_images_whatever_its_momentum(modules, tmp_path, monkeypatch):
    """The page's network moves its statistics by a hundredth a pass; this one by a thousandth too."""
    slow = CODE[1].replace(
        "nn.BatchNorm(not train)", "nn.BatchNorm(not train, momentum=0.99 + 0.009 * layer)"
    )
    (tmp_path / "slow_encoders.py").write_text(slow)
    monkeypatch.syspath_prepend(tmp_path)
    (config,) = main.resolved([*arguments(1)[:1], "--config.encoder=slow_encoders:cnn"], None, "train")
    config = config.to_dict()
    config["data"] = {"name": "mine:threes_and_eights", "invert": False}
    mesh = sharding.make_mesh(jax.devices()[:1])
    with jax.set_mesh(mesh):
        source = runs.source_of(config)
        evaluator = evaluation.Evaluator(config, source, mesh)
        params, stats = evaluator.untrained()
        view = jax.vmap(evaluator.subject("", (params, stats)).view())
        chosen = np.random.default_rng(config["seed"]).permutation(250)[:248]  # what eight devices share
        images = view(source.train.image[chosen])
        outputs, _ = evaluator.network.apply(params, stats, images[:, None], train=True)
        features = evaluator.network.encode(params, stats, images)["pooled"]
    np.testing.assert_allclose(features, outputs.features[:, 0], rtol=0.01, atol=0.01)


def test_statistics_that_are_no_averages_stay_as_the_last_pass_leaves_them():
    start = {"count": jnp.int32(0), "passes": jnp.float32(0), "still": jnp.float32(3), "kept": jnp.float32(1)}

    def update(stats):
        moved = {
            "count": stats["count"] + 1,
            "passes": stats["passes"] + 1,
            "kept": 0.9 * stats["kept"] + 0.5,
        }
        return stats | moved

    found = evaluation.settled(update, start)
    assert (int(found["count"]), float(found["passes"]), float(found["still"])) == (16, 16, 3)
    assert float(found["kept"]) == pytest.approx(5, rel=1e-5)


@pytest.mark.slow
def test_one_device_equals_eight(config, tmp_path):
    """In float32 for two steps; the data set is 250 images, the batch 32."""
    found = []
    for name, devices in (("one", jax.devices()[:1]), ("eight", jax.devices())):
        short = config | {"train": config["train"] | {"duration": "2 steps"}}
        short["evaluate"] = config["evaluate"] | {"final": False}
        loop.train(short, str(tmp_path / name), quiet=True, devices=devices)
        found.append(read_metrics(tmp_path / name))
    for one, eight in zip(*found, strict=True):
        np.testing.assert_allclose(eight["info_nce"], one["info_nce"], rtol=2e-5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("temperature", "nowhere:f"), "temperature.name is 'nowhere:f'; Python finds no module 'nowhere'"),
        (("temperature", "mine:warn"), "mine has no function 'warn'. Did you mean 'warm'"),
        (("augment", "mine:shiftet"), "Did you mean 'shifted'"),
        (("loss", "mine:square"), "mine has no function 'square'"),
        (("encoder", "__main__:gone"), "'__main__:gone'; .* Define it here"),
        (("optimizer", "mine:sgd"), "optimizer.name is .* mine has no function 'sgd'"),
        (("data", "numpy:pi"), "data.name is 'numpy:pi'; it must be a function, not a float"),
        (("data", ":f"), "data.name is ':f'; .*write module:function"),
        (("loss", "/nowhere/mine:f"), "write module:function"),
        (("encoder", ".mine:f"), "encoder.name is '.mine:f'; .*write module:function"),
        (("schedule", "pathlike:f"), "the default of schedule.root is a PosixPath"),
        (("schedule", "pathlike:g"), "the default of schedule.table is a dict"),
    ],
)
def test_a_function_that_is_not_there_is_one_sentence(mine, override, message, tmp_path, monkeypatch):
    (tmp_path / "pathlike.py").write_text(
        "import pathlib\ndef f(steps, *, root=pathlib.PosixPath()): return lambda step: 1.0\n"
        "def g(steps, *, table={}): return lambda step: 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message):
        configs.resolve("digits", [override])


def test_a_loss_of_ones_own_may_lie_in_a_package_and_says_where_it_fails(tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/losses.py").write_text(
        "def power(c, *, to=1.0): return c ** to\n"
        "def asks(c): return c if c.mean() > 0 else -c\n"
        "def shapes(c, projection): return c * projection\n"
        "def refuses(c):\n    raise ValueError('to is wrong')\n"
        "import jax\n@jax.jit\ndef jitted(c):\n    raise ValueError('not so')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = [("loss", "parts.losses:power"), ("loss.parts.losses:power.to", "2.0")]
    assert configs.resolve("digits", named).to_dict()["loss"] == {
        "parts/losses:power": {"weight": 1.0, "to": 2.0}
    }
    section = {"parts.losses:power": {"weight": 0.5}}
    assert configs.resolve("digits", {"loss": section}).loss["parts/losses:power"].options["weight"] == 0.5
    for name, message in (
        ("asks", r"TracerBoolConversionError: .*losses.py, line 2\)"),
        ("shapes", r"Incompatible shapes .*losses.py, line 3\)"),
        ("refuses", r"loss\.parts/losses:refuses: to is wrong$"),
        ("jitted", r"loss\.parts/losses:jitted: not so$"),
    ):
        with pytest.raises(ValueError, match=message):
            runs.prepare(configs.resolve("digits:scale=smoke", [("loss", f"parts.losses:{name}")]))


def test_the_pages_further_augmentation_adds_noise_to_views_alone(mine):
    section = configs.plain(configs.resolve("digits", [("augment", "mine:noisy")]))["augment"]
    views, image = lookup.call(augment.make_views, "augment", section), np.full((8, 8, 1), 128, np.uint8)
    found = views(jax.random.key(0), image)
    assert found.shape == (2, 8, 8, 1) and np.abs(np.diff(found, axis=0)).mean() > 0.05
    assert np.ptp(lookup.call(augment.make_eval, "augment", section)(image)) == 0


def test_debug_shows_where_a_function_of_ones_own_failed():
    def broken(*, tau=None):
        return tau + 1

    with pytest.raises(ValueError, match="temperature: unsupported operand") as error:
        lookup.call(broken, "temperature", {})
    assert isinstance(error.value.__cause__, TypeError)


def test_a_whole_number_beyond_int32_is_a_float_where_floats_are_taken():
    def given(*, tau: float = 1.0, count: int = 1, either: int | float = 0):
        return tau, count, either

    found = lookup.call(given, "temperature", {"tau": 10**23, "count": 2**40, "either": 2**40})
    assert found == (1e23, 2**40, 2**40) and [type(value) for value in found] == [float, int, int]
    assert type(lookup.call(given, "temperature", {"tau": 2})[0]) is int  # as in kept configs


def test_the_warmup_of_a_schedule_of_ones_own_may_be_anything(tmp_path, monkeypatch):
    code = "def ramp(total_steps, *, warmup: str = '2 epochs'):\n    return lambda step: 0.1\n"
    (tmp_path / "own_ramp.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    runs.prepare(configs.resolve("digits:scale=smoke", {"schedule": "own_ramp:ramp"}), jax.devices()[:1])


def test_a_temperature_is_one_number(tmp_path, monkeypatch):
    (tmp_path / "several.py").write_text(
        "import jax.numpy as jnp\nfrom contrastive_jax.contrast.temperature import Temperature\n"
        "def two(total_steps, *, tau=0.1):\n"
        "    return Temperature(lambda: (), lambda state, step, a: jnp.full(2, tau), lambda state, step, ess: state)\n"
        "def short(total_steps, *, tau=0.1):\n"
        "    return Temperature(lambda: (), lambda state, step: tau, lambda state, step, ess: state)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = configs.resolve("digits:scale=smoke", [("temperature", "several:two")])
    with pytest.raises(ValueError, match=r"temperature.name is 'several:two', which returns an array \(2,\)"):
        runs.prepare(configs.plain(settings))
    settings = configs.resolve("digits:scale=smoke", [("temperature", "several:short")])
    with pytest.raises(ValueError, match="'several:short', which fails in the step: .*2 positional"):
        runs.prepare(configs.plain(settings))


def test_arrays_are_a_data_set():
    images, labels = np.zeros((6, 4, 4, 1), np.uint8), np.array([0, 1, 2, 0, 1, -1])
    source = data.from_arrays(images, labels, images[:2], labels[:2], name="six")
    assert source.classes == ("0", "1", "2") and len(source.train) == 6 and len(source.test) == 2
    assert data.from_arrays(images).test is None
    for wrong, message in (
        ((images.astype(complex),), "must be whole numbers or floats"),
        ((images, labels[:5]), r"need \[6\]"),
        ((images, labels, images[:, 1:], labels), "one shape"),
        ((images, labels + 0.5), "labels are float64; they must be whole numbers"),
        ((images, labels + 2**31), "labels .* must be whole numbers from -1 .none. to 2147483647"),
        ((images, labels - 1), "labels .* must be whole numbers from -1"),
        ((images, labels, None, labels), "test_labels are given without test_images"),
        (
            (images, np.eye(6, 3, dtype=int), images[:2], labels[:2]),
            r"labels are \[6, 3\] and test_labels are \[2\]",
        ),
        ((images, np.eye(6, 3, dtype=int), images[:2], np.eye(2, dtype=int)), r"test_labels are \[2, 2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            data.from_arrays(*wrong)


def test_what_a_module_of_ones_own_lacks_is_raised_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        lookup.own("lacking:f", "loss")
