"""What people type: overrides of a config, in any order, by the names that they know."""

import itertools
import json
import pathlib

import pytest

from contrastive_jax import config as configs
from contrastive_jax import main
from contrastive_jax.config import schema, settings
from contrastive_jax.config.overrides import _refers
from contrastive_jax.training import recipe

DIGITS = "configs/digits.py:method=simclr"


def leaves(*overrides, spec=DIGITS):
    return configs.leaves(configs.plain(configs.resolve(spec, [tuple(o.split("=", 1)) for o in overrides])))


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (
            ("temperature.name=ess", "temperature.target=0.3"),
            {"temperature.target": 0.3, "temperature.tau": 0.1},
        ),
        (("temperature.target=0.3", "temperature.name=ess"), {"temperature.target": 0.3}),
        (("temperature=linear", "temperature.end=2"), {"temperature.name": "linear", "temperature.end": 2}),
        (("margin=eqco", "margin.alpha=64"), {"margin.name": "eqco", "margin.alpha": 64}),  # has no default
        (("loss=eqco", "loss.eqco.alpha=8"), {"loss.eqco.alpha": 8}),
        (("temperature={'name': 'linear', 'end': 0.3}",), {"temperature.end": 0.3, "temperature.tau": 0.07}),
        (("loss=dcl",), {"loss.dcl.weight": 1.0}),
        (("loss=InfoNCE",), {"loss.info_nce.weight": 1.0}),
        (("loss=nt_xent", "loss.NT-Xent.weight=2"), {"loss.info_nce.weight": 2}),
        (("loss={'dcl': 0.5, 'alignment': 2}",), {"loss.dcl.weight": 0.5, "loss.alignment.weight": 2.0}),
        (("loss={'InfoNCE': 0.5}",), {"loss.info_nce.weight": 0.5}),
        (("loss.dcl.weight=0.5",), {"loss.dcl.weight": 0.5, "loss.info_nce.weight": 1.0}),
        (("loss.DCL=3",), {"loss.dcl.weight": 3, "loss.info_nce.weight": 1.0}),
        (("schedule=constant",), {"schedule.name": "constant", "schedule.warmup": "2 epochs"}),
        (("optimizer=sgd", "optimizer.momentum=0.5"), {"optimizer.name": "sgd", "optimizer.momentum": 0.5}),
        (("augment=simclr", "augment.flip=0.25"), {"augment.preset": "simclr", "augment.flip": 0.25}),
        (("evaluators.near.name=knn", "evaluators.near.k=3"), {"evaluators.near.k": 3}),
        (("evaluators.knn.k=3",), {"evaluators.knn.k": 3, "evaluators.knn.name": "knn"}),
        (("probe.gradient=true", "train.remat=False"), {"probe.gradient": True, "train.remat": False}),
        (("embed.layers=pooled,projection_1",), {"embed.layers": ["pooled", "projection_1"]}),
        (("embed.layers=pooled",), {"embed.layers": ["pooled"]}),
        (("profile.steps=(2, 5)",), {"profile.steps": [2, 5]}),
        (("name=12", "train.batch_size=64"), {"name": "12", "train.batch_size": 64}),
        (("seed=1", "seed=2"), {"seed": 2}),
    ],
)
def test_overrides_mean_what_they_say(overrides, found):
    whole = leaves(*overrides)
    assert {name: whole[name] for name in found} == found
    losses = {name.split(".")[1] for name in whole if name.startswith("loss.")}
    if any(o.startswith("loss") for o in overrides):
        assert losses == {name.split(".")[1] for name in found}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("temprature.tau=1", "Did you mean 'temperature.tau'"),
        ("los=dcl", "Did you mean 'loss'"),
        ("optimizer.lr=1", "Did you mean 'schedule.learning_rate'"),
        ("batch_size=64", "'evaluate.batch_size' or 'train.batch_size'"),
        (
            "temperature=0.1",
            "must be the name of a function, not a number; did you mean --config.temperature.tau=0.1",
        ),
        ("temperature.end=0.3", r"--config\.temperature\.end: there is no such option"),
        ("temperature.name=es", r"temperature\.name is 'es'; .* Did you mean 'ess'"),
        ("loss=dlc", "Did you mean 'dcl'"),
        ("loss=my_losses.focal", "Did you mean 'my_losses:focal'"),
        ("loss.flat_nec.weight=1", "Did you mean 'flat_nce'"),
        ("train.name=x", r"train\.name: there is no such option"),
        ("margin.alpha=64", r"margin\.alpha: there is no such option"),
        ("schedule.total_steps=4", r"schedule\.total_steps: there is no such option"),
        (
            "optimizer={'name': 'adamw', 'momentum': 0.5}",
            "--config.optimizer: 'adamw' has no option 'momentum'",
        ),
        ("train=fast", "train is a section; write --config.train.OPTION"),
        ("train.batch_size=abc", r"train\.batch_size is 'abc'; it must be a whole number"),
        ("train.batch_size=2.5", r"train\.batch_size is 2.5; it must be a whole number"),
        ("probe.gradient=maybe", "True or False"),
    ],
)
def test_an_override_that_cannot_be_is_refused_with_a_hint(override, message):
    with pytest.raises(ValueError, match=message):
        config = configs.plain(configs.resolve(DIGITS, [tuple(override.split("=", 1))]))
        recipe.build(config, image_shape=(8, 8, 1), classes=10, several_labels=False, streamed=False,
                     total_steps=4, steps_per_epoch=4)  # fmt: skip


def test_values_and_paths_are_what_their_text_is():
    texts = [
        ("seed", "1"),
        ("temperature.tau", "0.2"),
        ("embed.layers", "('pooled',)"),
        ("probe.gradient", "True"),
    ]
    values = [("seed", 1), ("temperature.tau", 0.2), ("embed.layers", ("pooled",)), ("probe.gradient", True)]
    found = configs.resolve(pathlib.Path("configs/digits.py"), values)
    assert found.to_dict() == configs.resolve(pathlib.Path("configs/digits.py"), dict(values)).to_dict()
    assert configs.resolve("configs/digits.py", zip(["seed"], [3], strict=True)).seed == 3
    for wrong in ("seed=1", 5):
        with pytest.raises(ValueError, match=f"overrides contain {wrong!r}; they must be pairs"):
            configs.resolve("configs/digits.py", [wrong])
    assert found.to_dict() == configs.resolve("configs/digits.py", texts).to_dict()


@pytest.mark.parametrize(
    ("leaf", "value", "message"),
    [
        (
            "train.duratoin",
            "8 epochs",
            "train.duratoin: there is no such option. Did you mean 'train.duration'",
        ),
        ("evaluate.evry", "1 step", "Did you mean 'evaluate.every'"),
        ("temprature", 0.3, "temprature: there is no such option. Did you mean 'temperature'"),
        ("trian", {"duration": "8 epochs"}, "Did you mean 'train.duration'"),
        ("norm.momentun", 0.5, "Did you mean 'norm.momentum'"),
    ],
)
def test_an_option_that_a_config_file_misspells_is_refused(leaf, value, message):
    """It was kept, and training went on with the default."""
    config = configs.plain(configs.load(DIGITS))
    *section, name = leaf.split(".")
    (config[section[0]] if section else config)[name] = value
    with pytest.raises(ValueError, match=message):
        schema.check(config)


def test_a_config_of_before_is_that_of_now():
    """Options that came or went since a run was saved are no part of what it is."""
    now = configs.plain(configs.load(DIGITS))
    before = now | {
        "norm": {"scope": "joint", "groups": 1},
        "evaluate": now["evaluate"] | {"C": 1.0, "k": 10},
    }
    found = configs.plain(configs.completed(before))
    schema.check(found)
    assert found == now and configs.fingerprint(before) == configs.fingerprint(now)
    older = {
        name: section for name, section in now.items() if name not in ("second_encoder", "second_augment")
    }
    assert configs.fingerprint(older) == configs.fingerprint(now)
    vit = configs.plain(configs.resolve(DIGITS, {"encoder.name": "vit"}))
    without = vit | {"encoder": {name: v for name, v in vit["encoder"].items() if name != "variant"}}
    assert configs.fingerprint(without) == configs.fingerprint(vit)


def test_a_column_can_become_a_protocol_without_a_layer():
    found = leaves("evaluators.linear=finetune_simclr")
    assert "evaluators.linear.layer" not in found and found["evaluators.linear.name"] == "finetune_simclr"
    assert leaves("evaluators.linear=knn")["evaluators.linear.layer"] == "pooled"


def test_a_config_is_found_by_its_name(tmp_path, monkeypatch):
    by_path = configs.resolve("configs/flatclr_digits.py:scale=smoke")
    monkeypatch.chdir(tmp_path)  # of an installed package: no configs/ here
    assert configs.resolve("flatclr_digits:scale=smoke").to_dict() == by_path.to_dict()
    with pytest.raises(ValueError, match="Did you mean 'flatclr_digits'"):
        configs.load("flatclr_digts")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.json").write_text(by_path.to_json())
    assert configs.plain(configs.load("~/mine.json")) == configs.plain(by_path)
    for name, text, why in (
        ("notes.md", "", "must end in .py or .json"),
        ("null.json", "null", "a JSON object of sections"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=why):
            configs.load(name)


def test_a_workdir_may_have_a_colon(tmp_path):
    run = tmp_path / "12:30:59"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(configs.plain(configs.load(DIGITS))))
    for spec in (run, run / "config.json"):
        assert configs.load(spec).name == configs.load(DIGITS).name


def test_a_config_of_an_address_is_not_split_at_its_colon():
    with pytest.raises(ValueError, match="config 'memory://bucket/run' cannot be read"):
        configs.load("memory://bucket/run")


@pytest.mark.parametrize(
    "change",
    [
        {"log.every": 3},
        {"data.workers": 2},
        {"report.images": 12},
        {"name": "other"},
        {"checkpoint.keep_last": 9},
        {"train.duration": "90 epochs"},
        {"evaluators": {}},
    ],
)
def test_what_changes_no_number_of_training_is_the_same_run(change):
    config = configs.load(DIGITS)
    first = configs.fingerprint(configs.plain(config))
    with config.unlocked(), config.ignore_type():
        for name, value in change.items():
            parent, _, leaf = name.rpartition(".")
            (config[parent] if parent else config)[leaf] = value
    assert configs.fingerprint(configs.plain(config)) == first


@pytest.mark.parametrize(
    "change",
    ["seed=1", "temperature.tau=0.2", "init.checkpoint=x", "train.batch_size=32", "data.validation=0.1"],
)
def test_what_changes_a_number_is_another_run(change):
    first = configs.fingerprint(configs.plain(configs.resolve(DIGITS)))
    assert configs.fingerprint(configs.plain(configs.resolve(DIGITS, [tuple(change.split("="))]))) != first


def test_the_command_line_is_split_with_blanks_or_without():
    spec, overrides, rest = main.split(
        ["main", "--config", "x.py", "--config.a.b", "-1", "-config.c=d=e", "--mode=train", "stray"]
    )
    assert (spec, overrides, rest) == (
        "x.py",
        [("a.b", "-1"), ("c", "d=e")],
        ["main", "--mode=train", "stray"],
    )
    for wrong in (["--config"], ["--config.a", "--mode=x"], ["--config=a", "--config=b"]):
        with pytest.raises(ValueError, match="has no value|given twice"):
            main.split(wrong)


def test_an_option_of_an_old_name_and_another_kind_is_the_new_functions(tmp_path, monkeypatch):
    """A ResNet's width is a share, one's own may be a number of channels."""
    (tmp_path / "own_net.py").write_text(
        "def net(norm, dtype, *, width: int = 8, depth='small', stem: int = 3, zero_init: float = 0.0): ...\n"
        "def needs(norm, dtype, *, width: int): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = "configs/digits.py:scale=smoke"
    encoder = configs.plain(configs.resolve(spec, [("encoder", "own_net:net")]))["encoder"]
    assert encoder == {"name": "own_net:net", "width": 8, "depth": "small", "stem": 3, "zero_init": 0.0}
    for name in ("net", "needs"):
        for overrides in itertools.permutations([("encoder", f"own_net:{name}"), ("encoder.width", "12")]):
            width = configs.plain(configs.resolve(spec, overrides))["encoder"]["width"]
            assert (width, type(width)) == (12, int)
    with pytest.raises(ValueError, match=r"encoder.width is 0.5; it must be a whole number"):
        configs.resolve(spec, [("encoder", "own_net:net"), ("encoder.width", "0.5")])


def test_an_option_that_refers_to_another_follows_an_override(tmp_path):
    (tmp_path / "rate_of_batch.py").write_text(
        "from contrastive_jax.config import base\n\n\n"
        "def get_config(args=None):\n"
        "    config = base()\n"
        "    with config.ignore_type():\n"
        "        config.schedule.learning_rate = config.train.get_ref('batch_size') / 256.0\n"
        "    return config\n"
    )
    for batch, more in ((64, {}), (128, {"temperature": "ess"})):
        config = configs.resolve(
            str(tmp_path / "rate_of_batch.py"), {"train.batch_size": batch, "projector.widths": "3,4"} | more
        )
        plain = configs.plain(config)
        assert plain["schedule"]["learning_rate"] == batch / 256
        assert plain["projector"]["widths"] == [3, 4]


@pytest.mark.parametrize("spec", [None, DIGITS, "flatclr_imagenet:scale=small"])
def test_an_option_without_a_value_refers_to_no_other(spec):
    """Where options refer to others, resolving copies them with their references, which takes longer."""
    loaded = configs.base() if spec is None else configs.load(spec)
    assert not _refers(settings.complete(loaded))


def test_an_option_without_annotation_takes_what_a_config_can_hold(tmp_path, monkeypatch):
    (tmp_path / "loss_without_kinds.py").write_text("def plain(c, *, x=1):\n    return c\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "loss_without_kinds:plain"
    given = configs.resolve(None, {"loss": name, f"loss.{name}.x": "(1, 'a')"})
    assert configs.plain(given)["loss"][name]["x"] == [1, "a"]
    for text in ("1j", "b'a'", "[{1, 2}]"):
        with pytest.raises(ValueError, match="a config can hold numbers, text, True and False"):
            configs.resolve(None, {"loss": name, f"loss.{name}.x": text})


@pytest.mark.parametrize(
    "line, message",
    [
        ("del c.train", "train is missing; every config must have this section."),
        ("del c.temperature", "temperature is missing; every config must have this section."),
        ("c.temperature = 0.3", "temperature is 0.3; it must be a section with options such as name, tau."),
        ("c.temperature.tau = np.float32(0.5)", "temperature.tau is .*float32.*of Python's own types."),
        ("c.loss = {'dcl': 'x'}", "loss.dcl is 'x'; it must be a weight or a section of options."),
        ("c.evaluators.x = {'k': 3}", "evaluators.x is {'k': 3}; it must be a section with the name"),
    ],
)
@pytest.mark.parametrize("overrides", [{}, {"train.batch_size": 64}])
def test_a_file_of_another_shape_is_refused_by_name(tmp_path, line, message, overrides):
    file = tmp_path / "own.py"
    file.write_text(
        "import numpy as np\nfrom contrastive_jax import config\n"
        "def get_config(arg=''):\n    c = config.base()\n"
        f"    with c.unlocked(), c.ignore_type():\n        {line}\n    return c\n"
    )
    with pytest.raises(ValueError, match=message):
        configs.resolve(str(file), overrides)
