"""Whole runs: what they leave behind, and that being stopped changes nothing."""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from absl.testing import flagsaver
from ml_collections import ConfigDict
from saved_runs import assert_same, left_behind, stop_at

from contrastive_jax import config as configs
from contrastive_jax import data, main
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import describe, evaluate, report
from contrastive_jax.data.noise import NOTE
from contrastive_jax.training import encoder, loop, recorder
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parents[2]


def smoke(method="flatclr_ess", **leaves):
    config = configs.load(str(ROOT / f"configs/digits.py:method={method},scale=smoke"))
    config.augment = {"preset": "none", "size": 8}
    with config.unlocked():
        config.update_from_flattened_dict(
            {"projector.out": 16, "train.duration": "6 steps", "log.every": 1, "evaluate.final": False}
            | leaves
        )
    return configs.plain(configs.complete(config))


@pytest.mark.run
@pytest.mark.parametrize(
    ("method", "leaves"),
    [
        ("moco_v1", {}),
        ("fenchel_legendre", {"optimizer.alternate": ("critic",)}),
        ("kl_tau", {"temperature.rate": 0.1}),
        ("isogclr", {"data.validation": 0.9}),  # of 144 images some are met twice
    ],
    ids=[
        "with a queue and a target",
        "with a second critic, in turns",
        "with one moving tau",
        "with state by example",
    ],
)
def test_stopped_and_resumed_is_uninterrupted_bit_for_bit(method, leaves, tmp_path, monkeypatch):
    """Other methods than test_story.py's; what is read of their runs is encoder and heads."""
    config = smoke(method, **{"gradient_snr.decay": 0.5} | leaves)
    one = jax.devices()[:1]
    loop.train(config, tmp_path / "whole", quiet=True, devices=one)
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        with pytest.raises(loop.Stopped, match="stopped at step 3 of 6; saved .* the command to resume"):
            loop.train(config, tmp_path / "parts", quiet=True, devices=one)
    loop.train(config, tmp_path / "parts", quiet=True, devices=one)
    whole = left_behind(tmp_path / "whole", config)
    assert whole[1] == len(whole[2]) == 6 and whole[2][-1]["gradient_snr"] > 0
    assert_same(whole, left_behind(tmp_path / "parts", config))
    if method in ("kl_tau", "isogclr"):
        assert len({line["tau"] for line in whole[2]}) > 1
    assert set(encoder.load_encoder(tmp_path / "parts").params) == {"encoder", "projector", "predictor"}


@pytest.mark.run
def test_synthetic_images_train_go_on_bit_for_bit_and_are_marked(tmp_path, monkeypatch, capsys):
    knn = {"evaluators": {"knn": {"name": "knn"}}, "evaluate.rows": ("trained",), "evaluate.final": True}
    config = ConfigDict(smoke("simclr", **knn | {"train.duration": "3 steps"}))
    with config.unlocked():
        config.data = {"name": "synthetic", "like": "digits", "examples": 70, "test_examples": 40}
    config = configs.plain(configs.complete(config))
    one = jax.devices()[:1]
    result = loop.train(config, str(tmp_path / "whole"), devices=one)
    printed = capsys.readouterr().out
    assert result["notes"] == [f"{NOTE}."] and printed.count(NOTE) == 1
    assert "Top-1 on synthetic test images, %" in printed
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped):
        stop_at(patch, 1)
        loop.train(config, str(tmp_path / "parts"), quiet=True, devices=one)
    loop.train(config, str(tmp_path / "parts"), quiet=True, devices=one)
    assert_same(*(left_behind(tmp_path / name, config) for name in ("whole", "parts")))
    config["report"] |= {"images": 20, "map": "pca"}
    page = pathlib.Path(report.report(config, str(tmp_path / "whole"), quiet=True)).read_text()
    assert page.count(NOTE) == 1


@pytest.mark.run
@pytest.mark.parametrize("room", [10, 2_000], ids=["for no line of metrics", "for no checkpoint"])
def test_a_disk_that_fills_up_ends_in_a_sentence_and_loses_nothing(room, tmp_path, monkeypatch):
    config = smoke(**{"checkpoint.every_seconds": 0.0})
    one, (soft, hard) = jax.devices()[:1], resource.getrlimit(resource.RLIMIT_FSIZE)
    loop.train(config, tmp_path / "whole", quiet=True, devices=one)
    record, metrics = recorder.Recorder.record, tmp_path / "parts" / "metrics.jsonl"

    def fill_up(self, step, values):
        if step == 4:
            self._saved.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (metrics.stat().st_size + room, hard))
        record(self, step, values)

    with monkeypatch.context() as patch:
        patch.setattr(recorder.Recorder, "record", fill_up)
        try:
            with pytest.raises(
                workdirs.Full, match=r"parts/.* cannot grow \(.*checkpoint of step 3 is complete: make room"
            ):
                loop.train(config, tmp_path / "parts", quiet=True, devices=one)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert metrics.read_text().count("\n") == (3 if room == 10 else 4)
    assert {path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()} == {"1", "2", "3"}
    loop.train(config, tmp_path / "parts", quiet=True, devices=one)
    assert_same(left_behind(tmp_path / "whole", config), left_behind(tmp_path / "parts", config))


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_is_uninterrupted(tmp_path):
    """SIGKILL, three times, in a process of its own, with a checkpoint at every step."""
    leaves = ["--config.train.duration=12 steps", "--config.log.every=1", "--config.checkpoint.every_seconds=0.0",
              "--config.evaluate.final=False", "--config.augment={'preset': 'none', 'size': 8}"]  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "contrastive_jax.main",
        "--config=configs/digits.py:method=flatclr_ess,scale=smoke",
        *leaves,
    ]
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}

    def run(workdir, kill_after=None):
        process = subprocess.Popen(
            [*command, f"--workdir={workdir}"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
        )
        metrics = workdir / "metrics.jsonl"
        while process.poll() is None and kill_after is not None:
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= kill_after:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
        return process.wait()

    assert run(tmp_path / "whole") == 0
    killed = [run(tmp_path / "parts", kill_after=n) for n in (3, 6, 9)]
    assert killed.count(-signal.SIGKILL) == 3
    assert run(tmp_path / "parts") == 0
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert_same(left_behind(tmp_path / "whole", config), left_behind(tmp_path / "parts", config))


@pytest.mark.run
def test_one_device_then_eight(tmp_path, monkeypatch):
    config = smoke()
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        with pytest.raises(loop.Stopped):
            loop.train(config, tmp_path, quiet=True, devices=jax.devices()[:1])
    result = loop.train(config, tmp_path, quiet=True)
    assert result["step"] == 6 and np.isfinite(result["metrics"]["info_nce"])
    assert [line["step"] for line in workdirs.read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.run
def test_a_relative_workdir(tmp_path, monkeypatch):
    """As the README types it."""
    monkeypatch.chdir(tmp_path)
    config = smoke(**{"train.duration": "2 steps"})
    loop.train(config, "runs/here", quiet=True, devices=jax.devices()[:1])
    assert evaluate.evaluate(config, "runs/here", quiet=True)["results"]["trained"]
    assert (tmp_path / "runs" / "here" / "result.json").exists()


@pytest.mark.run
def test_a_changed_config_is_refused_unless_it_may_change(tmp_path, capsys):
    one = jax.devices()[:1]
    config = smoke(**{"train.duration": "2 steps"})
    loop.train(config, tmp_path, quiet=True, devices=one)
    before = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(ValueError, match=r"temperature.target was 0.3, is 0.5.*--workdir"):
        loop.train(
            config | {"temperature": config["temperature"] | {"target": 0.5}},
            tmp_path,
            quiet=True,
            devices=one,
        )
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == before
    longer = config | {
        "train": config["train"] | {"duration": "3 steps"},
        "log": config["log"] | {"every": 2},
    }
    assert loop.train(longer, tmp_path, devices=one)["step"] == 3
    said = capsys.readouterr().out
    assert (
        "schedules are stretched" in said and "the results of an earlier end, step 2; it was renamed" in said
    )
    kept = [json.loads((tmp_path / name).read_text()) for name in ("result.json", "result.json.earlier")]
    assert [result["step"] for result in kept] == [3, 2]
    for _ in range(2):  # nothing is left to train by the second: its result says so still
        notes = loop.train(longer, tmp_path, quiet=True, devices=one)["notes"]
        assert any("train.duration was 2 steps, and is 3 steps" in note for note in notes)
    with pytest.raises(
        ValueError, match="train.duration is '2 steps', 2 steps; it must be at least the 3 steps"
    ):
        loop.train(config, tmp_path, quiet=True, devices=one)
    with pytest.raises(ValueError, match=r"gradient_snr.decay was 0.0, is 0.9"):
        loop.train(longer | {"gradient_snr": {"decay": 0.9}}, tmp_path, quiet=True, devices=one)
    with pytest.raises(ValueError, match=r"init.checkpoint was '', is '/a/run'"):  # it would not be read
        loop.train(longer | {"init": longer["init"] | {"checkpoint": "/a/run"}}, tmp_path, devices=one)
    with (
        jax.threefry_partitionable(False),
        pytest.raises(ValueError, match="JAX_THREEFRY_PARTITIONABLE was True, is False"),
    ):
        loop.train(longer, tmp_path, quiet=True, devices=one)
    with jax.default_prng_impl("rbg"), pytest.raises(ValueError, match="JAX_DEFAULT_PRNG_IMPL is rbg"):
        loop.train(longer, tmp_path, quiet=True, devices=one)
    assert (tmp_path / "result.json").exists()


def test_a_run_older_than_an_option_goes_on_with_its_default():
    """The config of a run of an older version: sections and leaves that came since are at their defaults."""
    before = json.loads((pathlib.Path(__file__).parents[1] / "saved/config_before_compose.json").read_text())
    now = configs.plain(configs.load("configs/digits.py:method=moco_v2,scale=smoke"))
    assert configs.leaves(now).keys() - configs.leaves(before).keys() >= {"compose.name", "log.wandb"}
    assert configs.forbidden_changes(before, now) == {}
    assert configs.plain(configs.completed(before)) == now
    other = now | {"gradient_snr": {"decay": 0.9}}
    assert configs.forbidden_changes(before, other) == {"gradient_snr.decay": (0.0, 0.9)}


def test_the_files_of_a_begun_run_may_have_moved():
    """Where they lie may change, what they are may not: the digits of the temperatures, the name of the set."""
    leaves = {"data": ("dir", "labels"), "compose": ("dir",), "temperature": ("file",)}
    pins = {"data": "name", "compose": "digits", "temperature": "values"}

    def begun(place, name):
        given = {
            section: dict.fromkeys(names, place) | {pins[section]: name} for section, names in leaves.items()
        }
        return {section: smoke()[section] | options for section, options in given.items()}

    assert configs.forbidden_changes(begun("/old", "a"), begun("/new", "a")) == {}
    found = configs.forbidden_changes(begun("/old", "a"), begun("/new", "b"))
    assert found.keys() == {f"{section}.{name}" for section, name in pins.items()}
    one, other = (smoke() | begun(place, "a") for place in ("/old", "/new"))
    assert configs.fingerprint(one) != configs.fingerprint(other)


@pytest.mark.parametrize("wrong", [{"temperature": 3}, {"loss": {"not_here:own": {"weight": 1.0}}}])
def test_a_saved_config_that_is_wrong_is_refused_by_the_door_not_by_completing_it(wrong):
    with pytest.raises((ValueError, ImportError), match="temperature is 3|not_here"):
        runs.prepare(configs.plain(configs.completed(smoke() | wrong)))


@pytest.mark.run
def test_checkpoints_of_which_none_can_be_read_are_no_new_start(tmp_path):
    config, one = smoke(**{"train.duration": "2 steps"}), jax.devices()[:1]
    loop.train(config, tmp_path, quiet=True, devices=one)
    (meta,) = (tmp_path / "checkpoints").glob("2/meta/metadata")
    meta.write_text("x")
    before = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(checkpoint.DamagedCheckpoints, match="every checkpoint .* is damaged"):
        loop.train(config, tmp_path, quiet=True, devices=one)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == before


@pytest.mark.run
@pytest.mark.parametrize("saved_or_judged", ["checkpoint.keep_every", "evaluate.every"])
def test_a_loss_that_is_not_finite_stops_the_run_and_saves_nothing_of_it(saved_or_judged, tmp_path):
    diverging = {"schedule.learning_rate": 1e38, "optimizer.name": "sgd", "schedule.warmup": "0 steps"}
    unseen = {"log.every": 100, saved_or_judged: "2 steps"}  # it would be, before anybody looks
    config = smoke("simclr", **diverging, **unseen)
    with pytest.raises(
        recorder.Diverged, match=r"step \d: loss .* not finite. Last good checkpoint: none .*learning_rate"
    ):
        loop.train(config, tmp_path, quiet=True, devices=jax.devices()[:1])
    with checkpoint.Checkpoints(tmp_path / "checkpoints") as saved:
        assert saved.steps() == []


@pytest.mark.run
def test_a_damaged_checkpoint_is_said_and_the_previous_one_taken(tmp_path, capsys):
    one = jax.devices()[:1]
    config = smoke(**{"train.duration": "3 steps", "checkpoint.every_seconds": 0.0})
    loop.train(config, tmp_path, quiet=True, devices=one)
    newest = tmp_path / "checkpoints" / "3"
    arrays = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    loop.train(config, tmp_path, devices=one)
    printed = capsys.readouterr().out
    assert "damaged-3" in printed and "resuming at step 2 of 3" in printed


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"train.batch_size": 30}, "train.batch_size is 30; .* multiple of 8, .* the 8 devices"),
        (
            {"train.microbatches": 8},
            "batch_size is 32; .* multiple of 64, .* the 8 devices and 8 micro-batches",
        ),
        ({"train.microbatches": 0}, r"train.microbatches is 0; .* at least 1"),
        ({"train.batch_size": 4096}, "train.batch_size is 4096; it must be at most 1437"),
        ({"temperature": {"name": "fixed", "tau": 0.0}}, "temperature.tau is 0.0; it must be above 0"),
        ({"temperature": {"name": "fixd"}}, r"temperature.name is 'fixd'; .* Did you mean 'fixed'"),
        (
            {"temperature": {"name": "fixed", "tua": 0.1}},
            r"temperature.tua is not an option of fixed\(tau.*Did you mean 'tau'",
        ),
        ({"negatives": {"name": "random", "k": 63}}, "negatives.k is 63; it must be at most 62"),
        (
            {"negatives": {"name": "random", "k": 32}, "target": {"name": "ema"}, "directions": "one_way"},
            "negatives.k is 32; it must be at most 31",
        ),
        (
            {"margin": {"name": "eqco", "alpha": 64.0}, "loss": {"dcl": {"weight": 0.0}, "hard_nce": 1.0}},
            r"margin.name is 'eqco', which cancels in the gradient of loss.hard_nce",
        ),
        (
            {"margin": {"name": "eqco", "alpha": 64.0}, "loss": {"sliced_wasserstein": {"weight": 1.0}}},
            "margin.name is 'eqco', but no loss uses a contrast",
        ),
        (
            {"margin": {"name": "eqco", "alpha": 64.0}, "loss": {"eqco": {"alpha": 64.0}}},
            "margin.name is 'eqco', which would be added to the margin that is part of loss.eqco",
        ),
        (
            {"margin": {"name": "eqco", "alpha": 64.0}, "loss": {"donsker_varadhan": 1.0}},
            "margin.name is 'eqco', which would bias the estimate of loss.donsker_varadhan",
        ),
        (
            {"score": "dot", "temperature": {"name": "macl_a"}},
            "score is 'dot'; it must be cosine with temperature=macl_a",
        ),
        (
            {"predictor.layers": 2, "predictor.out": 1},
            "predictor.out .* is 1; it must be 16",
        ),
        ({"score": "dot", "loss": {"macl_w": 1.0}}, "score is 'dot'; it must be cosine with loss.macl_w"),
        (
            {"candidates": {"name": "queue", "size": 96 + 1}},
            r"candidates.size is 97; .* multiple of the 64 keys",
        ),
        (
            {"loss": {"fenchel_legendre": {"weight": 1.0}}},
            "loss.fenchel_legendre needs u .* set critic=pair",
        ),
        (
            {"loss": {"cross_entropy": {"weight": 1.0}, "info_nce": {"weight": 0.0}}},
            "loss.cross_entropy trains only the probe while probe.gradient is False",
        ),
        ({"loss": {"dcl": {"weight": 0.0}}}, "loss.dcl.weight is 0, like all weights"),
        (
            {"loss": {"info_nce": {"weight": 1.0}, "EqCo_estimate": {"alpha": 64.0}}},
            "loss.EqCo_estimate.weight is 1.0; it must be at most 0 .* use loss.eqco",
        ),
        *(
            (
                {"loss": {name: 1.0}, "target": {"name": "ema"}, "directions": "one_way"},
                f"directions is 'one_way', .* loss.{name} needs two: set directions=both",
            )
            for name in ("byol", "alignment")
        ),
        ({"loss": {"dclw": {"sigma": -1.0}}}, r"loss.dclw.sigma is -1.0; it must be above 0"),
        ({"critic": {"name": "pair"}}, "critic.name is 'pair', but no loss trains its u"),
        ({"loss": {"flat_nec": 1.0}}, "loss 'flat_nec' does not exist. Did you mean 'flat_nce'"),
        ({"loss": {"hoelder_flat_nce": {"gama": 2.0}}}, r"no option 'gama'; .* hoelder_flat_nce\("),
        ({"train.duration": "6 epohcs"}, "train.duration is '6 epohcs'; it must be a number and a unit"),
        ({"data.name": "cifar10", "data.dir": "nowhere"}, r"cifar10"),
        ({"data.name": "cifra10"}, r"cifra10.*cifar10"),
        ({"augment.preset": "digts"}, r"augment.*digts.*digits"),
        ({"encoder.depth": 19}, r"encoder.depth is 19"),
        ({"optimizer.name": "larss"}, r"optimizer.name.*larss"),
        ({"schedule.warmup": "10 steps"}, r"warmup"),
        (
            {"evaluators.knn.layer": "projection_3"},
            r"evaluators.knn: layer is 'projection_3'; .* projection_2",
        ),
        ({"evaluators.knn.k": 2000}, "evaluators.knn: k is 2000; it must be at most 1437"),
        (
            {"evaluators.few_labels.labels_per_class": 200},
            r"evaluators.few_labels: labels_per_class is 200; it must be at most 1\d\d",
        ),
        ({"evaluators": {"knn": {"name": "kn"}}}, r"evaluators.knn.name is 'kn'; .* Did you mean 'knn'"),
        (
            {"evaluators": {"fine": {"name": "moco", "rate": 1.0}}},
            r"evaluators.fine.rate is not an option of moco\(",
        ),
        (
            {"evaluate.rows": ("trained", "raw_pixels")},
            r"evaluate.rows is .*'raw_pixels'.*; it must be .* raw pixels",
        ),
        ({"evaluate.rows": ()}, r"evaluate.rows is empty; .* untrained"),
        ({"evaluate.metric": "map_11_point"}, r"evaluate.metric is 'map_11_point'; with one label .* top1"),
        ({"evaluate.metric": "top_1"}, r"evaluate.metric is 'top_1'; .* Did you mean 'top1'"),
        ({"augment": {"preset": "none", "size": 8, "views": 1}}, "augment.views is 1; .* at least 2"),
        (
            {"norm": {"scope": "groups", "groups": 5, "momentum": 0.9, "epsilon": 1e-5, "unbiased": False}},
            r"norm.groups is 5; it must divide train.batch_size, 32",
        ),
        (
            {"temperature": {"name": "fixed", "tau": "warm"}},
            r"temperature.tau is 'warm'; it must be a number above 0",
        ),
        (
            {"schedule.warmup": "20 steps", "train.duration": "12 steps"},
            r"schedule.warmup is '20 steps', 20 steps; it must be shorter than train.duration, '12 steps'",
        ),
        ({"directions": "sideways"}, r"directions is 'sideways'"),
        ({"score": "cosin"}, r"score is 'cosin'; .* Did you mean 'cosine'"),
    ],
)
def test_a_wrong_option_is_one_sentence_before_anything_is_written(leaves, message, tmp_path):
    config = ConfigDict(smoke())
    with config.unlocked():
        for name, value in leaves.items():
            if isinstance(value, dict):
                config[name] = value
            else:
                config.update_from_flattened_dict({name: value})
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        loop.train(configs.plain(config), tmp_path / "run", quiet=True)
    assert "\n\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        loop.train(smoke(), tmp_path / "file" / "run", quiet=True)


@pytest.mark.run
def test_describe_says_what_a_run_would_be_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # clu's table needs none
    describe.describe(smoke(), str(tmp_path / "run"))
    printed = capsys.readouterr().out
    for what in (
        "temperature.target = 0.3",
        "| Name ",
        "| encoder/stem_conv/kernel ",
        "| (3, 3, 1, 8) ",
        "  probe: 650 parameters",
        "8 x cpu",
        "6 in all",
        "gflops_per_step",
        "no published peak of cpu in float32",
        "temp_mib",
    ):
        assert what in printed, what
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(describe.distributed, "first", lambda: False)
    monkeypatch.setattr(describe, "SECONDS", 0)
    describe.describe(smoke(), str(tmp_path / "run"))
    assert capsys.readouterr().out == ""  # of several processes one speaks


def command(*arguments, **environment):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"} | environment
    return subprocess.run(
        [sys.executable, "-m", "contrastive_jax.main", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=configs/nope.py"], "there is no config 'configs/nope.py'"),
        (["--config=configs/digits.py:method=simclrr"], "Did you mean 'simclr'"),
        (
            ["--config=configs/digits.py", "--config.schedule.learning_rat=3"],
            "Did you mean 'schedule.learning_rate'",
        ),
        (["--config=configs/digits.py", "stray"], "'stray' is not an option"),
        (["evaluate", "--workdir=runs/x"], "'evaluate' is not an option. Write --mode=evaluate."),
        (["--config=digits", "--mode=eval"], "--mode is 'eval'; it must be one of train, evaluate, "),
        (["--mode=evaluate"], "--workdir is missing: --mode=evaluate reads a run"),
        (["--config=digits:method=simclr:scale=smoke"], "separate arguments by commas"),
        (["--config=configs/digits.py", "--config.loss={'flat_nec': 1.0}"], "Did you mean 'flat_nce'"),
        (
            ["--config=configs/digits.py", "--config.train.batch_size=abc"],
            "train.batch_size is 'abc'; it must be a whole number",
        ),
        ([], "--config is missing"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(arguments, message, capsys):
    with flagsaver.flagsaver(), pytest.raises((ValueError, SystemExit)) as raised:
        main.resolved(main._parse(["main", *arguments]), None, "train")
    said = capsys.readouterr().err if raised.type is SystemExit else str(raised.value)
    assert message in said and len(said.strip().splitlines()) == 1


@pytest.mark.run
def test_a_mistake_ends_the_program_with_status_2_and_without_a_trace():
    done = command("--config=configs/digits.py:method=simclrr")
    assert done.returncode == 2 and "Did you mean 'simclr'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "open.py",
            "def get_config(arg=''",
            r"raised SyntaxError: '\(' was never closed \(.*open.py, line 1\); --debug",
        ),
        (
            "lacks.py",
            "def get_config(arg=''):\n    import no_such_module",
            r"raised ModuleNotFoundError: No module named 'no_such_module' \(.*lacks.py, line 2\); --debug shows",
        ),
        ("none.py", "x = 1", "none.py is not a config; it must define a function get_config"),
        ("cut.json", '{"a": ', "cut.json is not valid JSON .*; it is damaged"),
    ],
)
def test_a_config_file_that_is_none_is_one_sentence(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        main.resolved([f"--config={tmp_path / name}"], str(tmp_path / "run"), "train")
    assert "\n" not in str(raised.value)


def test_a_workdir_says_what_its_run_is_and_refuses_other_data(tmp_path):
    settings = configs.resolve("configs/digits.py", [("seed", "3")])
    workdirs.write_config(tmp_path, settings.to_dict(), "")
    for mode in ("train", "embed"):
        assert main.resolved([], str(tmp_path), mode) == [settings]
    assert main.resolved(["--config.log.every=1"], str(tmp_path), "train")[0].log.every == 1
    with pytest.raises(ValueError, match="does not hold a run; to begin one, give its config"):
        main.resolved([], str(tmp_path / "none"), "embed")
    other = ["--config=configs/simclr_cifar10.py"]
    with pytest.raises(
        ValueError, match=r"data\.name is 'cifar10', and the run of --workdir=.* has 'digits'"
    ):
        main.resolved(other, str(tmp_path), "embed")
    (told,) = main.resolved([*other, "--config.data.name=cifar10"], str(tmp_path), "embed")
    assert told.data.name == "cifar10"
    held_out = "--config.data.validation=0.1"
    (other,) = main.resolved(["--config=digits", held_out], None, "train")
    workdirs.write_config(tmp_path, other.to_dict(), "")
    with pytest.raises(ValueError, match="data.validation is 0.0, and the run of --workdir=.* has 0.1"):
        main.resolved(["--config=digits"], str(tmp_path), "evaluate")
    for given, value in (([], 0.1), (["--config=digits", "--config.data.validation=0"], 0.0)):
        assert main.resolved(given, str(tmp_path), "evaluate")[0].data.options["validation"] == value


@pytest.mark.run
@pytest.mark.parametrize("platform", ["cuda", "tpu", "gpuu"])
def test_a_device_that_is_not_there_is_one_sentence(platform):
    if platform in {device.platform for device in jax.devices()}:
        pytest.skip("it is there")
    done = command("--config=configs/digits.py:scale=smoke", "--mode=describe", JAX_PLATFORMS=platform)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert (
        f"JAX_PLATFORMS='{platform}': jax finds no such device" in done.stderr and "Unset it" in done.stderr
    )


@pytest.mark.run
def test_a_library_that_is_missing_is_one_sentence(tmp_path):
    code = (
        "import sys; sys.modules['tensorflow_datasets'] = None; from contrastive_jax import main; main.run()"
    )
    options = [
        "--config=configs/digits.py:scale=smoke",
        "--config.data.name=cifar10",
        f"--config.data.dir={tmp_path}",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *options, f"--workdir={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "tensorflow_datasets" in done.stderr and "pip install contrastive_jax" in done.stderr


@pytest.mark.run
def test_a_run_in_microbatches_and_rematerialised(tmp_path):
    """Fed and judged as any other; only the statistics of batch norm are those of its parts."""
    one = jax.devices()[:1]
    duration = {"train.duration": "1 step", "schedule.warmup": "0 steps", "augment.preset": "digits"}
    parts = {"train.microbatches": 2, "train.remat": True}
    whole = loop.train(smoke(**duration), tmp_path / "whole", quiet=True, devices=one)
    split = loop.train(smoke(**duration, **parts), tmp_path / "parts", quiet=True, devices=one)
    assert whole["metrics"]["info_nce"] != split["metrics"]["info_nce"]
    assert whole["metrics"]["info_nce"] == pytest.approx(split["metrics"]["info_nce"], rel=0.2)


@pytest.mark.run
def test_between_log_points_nothing_is_read_and_nothing_compiled(tmp_path, monkeypatch):
    """Counted where it shows on a CPU: a transfer guard lets reads pass there."""
    from jax._src.array import ArrayImpl

    fed, reads, compiled = [], [], []
    feed, value = data.Resident.feed, ArrayImpl._value

    def feed_and_count(self, step):
        fed.append(step)
        return feed(self, step)

    def value_and_count(array):
        reads.append(len(fed))
        return value.fget(array)

    monkeypatch.setattr(data.Resident, "feed", feed_and_count)
    monkeypatch.setattr(ArrayImpl, "_value", property(value_and_count))
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(len(fed)) if "backend_compile" in event else None
    )
    leaves = {"train.duration": "12 steps", "log.every": 4, "checkpoint.every_seconds": 1e9}
    loop.train(smoke(**leaves), str(tmp_path), quiet=True, devices=jax.devices()[:1])
    during = [count - 1 for count in reads if count > 1]  # one feed makes the program, then one a step
    assert {4, 8, 12} <= set(during) <= {4, 8, 12}
    assert [count - 1 for count in compiled if 2 < count < 13] == []


@pytest.mark.run
def test_a_profile_of_some_steps(tmp_path):
    one = jax.devices()[:1]
    loop.train(smoke(**{"profile.steps": (2, 4)}), tmp_path / "run", quiet=True, devices=one)
    assert list((tmp_path / "run/profile").rglob("*.xplane.pb"))  # TensorBoard, XProf
    assert list((tmp_path / "run/profile").rglob("perfetto_trace.json.gz"))
    for wrong, why in (((4, 2), "first step"), ((1,), "first step"), ((0.5, 1), "whole numbers")):
        with pytest.raises(ValueError, match=rf"profile.steps is .* {why}"):
            loop.train(smoke() | {"profile": {"steps": wrong}}, tmp_path / "no", quiet=True, devices=one)
    assert not (tmp_path / "no").exists()


@pytest.mark.run
def test_a_run_that_started_from_another_goes_on_without_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    one = jax.devices()[:1]
    loop.train(smoke(**{"train.duration": "2 steps"}), tmp_path / "first", quiet=True, devices=one)
    start = {"init.checkpoint": str(tmp_path / "first")}
    loop.train(smoke(**start, **{"train.duration": "2 steps"}), tmp_path / "run", devices=one)
    printed = capsys.readouterr().out
    assert "encoder: from step 2" in printed
    assert printed.count("contrastive_jax[tf]") == 1  # TensorBoard's extra: said where a run begins
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    loop.train(smoke(**start, **{"train.duration": "3 steps"}), tmp_path / "run", devices=one)
    printed = capsys.readouterr().out
    assert "resuming at step 2 of 3" in printed and "contrastive_jax[tf]" not in printed


@pytest.mark.run
def test_a_column_that_fails_takes_no_other_with_it(tmp_path, capsys, monkeypatch):
    from contrastive_jax.evaluators import knn

    def broken(*arguments, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(knn, "evaluate", broken)
    columns = {"evaluators": {"knn": {"name": "knn"}, "linear": {"name": "lbfgs"}}}
    config = smoke(**{"train.duration": "2 steps", "evaluate.final": True}) | columns
    found = loop.train(config, tmp_path, quiet=True, devices=jax.devices()[:1])["evaluations"]["trained"]
    assert found["knn"] == {"failed": "out of memory"} and found["linear"]["top1"] > 0.1
    printed = capsys.readouterr().out
    assert "knn: FAILED: out of memory" in printed and "linear: linear, all labels" in printed


def test_a_checkpoint_to_start_from_that_is_not_there_is_refused_before_anything_is_written(tmp_path):
    config = smoke(**{"init.checkpoint": str(tmp_path / "nowhere")})
    with pytest.raises(FileNotFoundError, match=r"init.checkpoint='.*nowhere': there is no checkpoint"):
        loop.train(config, tmp_path / "run", quiet=True, devices=jax.devices()[:1])
    assert not (tmp_path / "run").exists()
