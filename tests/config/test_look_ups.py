"""Settings know the functions that their sections name: none is looked up once they are resolved."""

import collections
import copy
import pickle
import sys

import jax
import pytest

from contrastive_jax import config as configs
from contrastive_jax import data, lookup, main
from contrastive_jax.config import schema, sections, settings
from contrastive_jax.contrast import temperature
from contrastive_jax.evaluators import protocols
from contrastive_jax.models import heads
from contrastive_jax.optim import optimizers
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import files

OVERRIDES = {
    "temperature": "ess",
    "temperature.target": "0.3",
    "loss": "dcl",
    "evaluators.knn.k": "5",
    "train.batch_size": "64",
}
COMMAND = ["--config=digits:scale=smoke", *(f"--config.{name}={text}" for name, text in OVERRIDES.items())]


@pytest.fixture
def looked_up(monkeypatch):
    """What is looked up: section -> names."""
    found = collections.defaultdict(list)
    function_of = settings.function_of

    def counted(path, name):
        found[path.partition(".")[0]].append(name)
        return function_of(path, name)

    settings._packaged.cache_clear()
    monkeypatch.setattr(settings, "function_of", counted)
    return found


def test_each_function_is_looked_up_once(looked_up, monkeypatch):
    checked = []
    monkeypatch.setattr(schema, "check", lambda *given, check=schema.check: checked.append(check(*given)))
    (found,) = main.resolved(COMMAND, None, "train")
    names = {section: [getattr(found, section).name] for section in settings.NAMED}
    names |= {"augment": ["digits"], "loss": ["dcl"], "evaluators": ["knn", "lbfgs"]}  # two columns are lbfgs
    replaced = {"temperature": ["fixed"], "loss": ["flat_nce"]}  # of the config file
    expected = {section: sorted([*names[section], *replaced.get(section, [])]) for section in names}
    assert {section: sorted(names) for section, names in looked_up.items()} == expected
    looked_up.clear()
    runs.prepare(found, jax.devices()[:1])
    assert not looked_up and len(checked) == 1


def test_a_function_of_ones_own_is_looked_up_once(looked_up, monkeypatch, tmp_path):
    (tmp_path / "mine_once.py").write_text("from contrastive_jax.contrast.temperature import fixed as f\n"
        "def warm(total_steps, *, tau: float = 0.5):\n    return f(total_steps, tau=tau)\n")  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = configs.expand("digits:scale=smoke", [("temperature", "mine_once:warm")])
    runs.prepare(found, jax.devices()[:1])
    assert looked_up["temperature"].count("mine_once:warm") == 1 and found.temperature.options["tau"] == 0.1


def test_the_current_folder_may_be_gone(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setattr(lookup, "FOLDERS", [])
    lookup.add_current_folder()
    assert lookup.FOLDERS == [str(tmp_path / "gone")]
    (tmp_path / "gone").rmdir()
    lookup.add_current_folder()
    assert len(lookup.FOLDERS) == 1 and files.shareable("in /a/b: 1") == "in b: 1"


def test_the_current_folder_is_searched_for_what_the_user_named_alone(monkeypatch, tmp_path):
    """A file with the name of a library that is not installed was imported when the library was looked for."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here/beside_the_config.py").write_text("x = 1\n")
    (tmp_path / "elsewhere.py").write_text(
        "import beside_the_config\nfrom contrastive_jax.config import base\n"
        "def get_config(arg):\n    return base()\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(lookup, "FOLDERS", [str(tmp_path / "here")])
    configs.load(str(tmp_path / "elsewhere.py"))
    assert str(tmp_path / "here") not in sys.path
    (tmp_path / "here/mine_here.py").write_text("def f(c, *, x=1.0):\n    return c\n")
    configs.resolve(None, {"loss": "mine_here:f"})
    assert str(tmp_path / "here") in sys.path
    for name in ("beside_the_config", "mine_here"):
        sys.modules.pop(name)


def test_a_section_is_its_function_and_its_options():
    (found,) = configs.expand("digits:scale=smoke", [("temperature", "linear"), ("temperature.end", "0.3")])
    section = found.temperature
    assert section == ("temperature", "linear", temperature.linear, {"tau": 0.1, "end": 0.3})
    assert float(section(10).value((), 5, 0.0)) == pytest.approx(0.2) and found.temperature is section
    plain = configs.plain(configs.resolve("digits:scale=smoke"))
    assert configs.as_settings(plain).temperature.function is temperature.fixed  # looked up here
    assert found.optimizer[:3] == ("optimizer", "adamw", optimizers.adamw) and found.data == (
        "data",
        "digits",
        data.digits,
        {"validation": 0.0},
    )
    plain["temperature"]["name"] = "ess_"
    with pytest.raises(
        ValueError, match="temperature.name is 'ess_'; it must be one of .* Did you mean 'ess'"
    ):
        configs.as_settings(plain).temperature  # noqa: B018


def test_sections_are_values():
    found = configs.resolve(
        "digits:scale=smoke", {"loss": {"dcl": 2.0, "uniformity": {"weight": 0.5, "t": 3.0}}}
    )
    assert found.train == sections.Train(duration="4 steps", batch_size=32) and found.evaluate.look == (
        "knn",
    )
    assert found.projector.function is heads.projector and found.augment.options["ratio"] == (0.8, 1.25)
    assert {name: term.options for name, term in found.loss.items()} == {
        "dcl": {"weight": 2.0},
        "uniformity": {"weight": 0.5, "t": 3.0, "normalize": True},
    }
    assert found.evaluators["knn"].function is protocols.knn and found.evaluators["knn"].options["k"] == 10
    with pytest.raises(AttributeError, match="cannot be set: settings are immutable"):
        found.seed = 3


def test_every_section_is_an_attribute():
    found = configs.resolve(None)
    for name in found.to_dict():
        assert getattr(found, name) is not None


def test_older_configs_have_the_options_of_all_optimizers_and_schedules():
    """Those of others are left out; a misspelt one, or one that is set by hand, is refused."""
    plain = configs.plain(configs.resolve("digits:scale=smoke"))
    older = plain | {
        "optimizer": plain["optimizer"]
        | {"momentum": 0.9, "trust_coefficient": 1e-3, "exclude_from_adaptation": None},
        "schedule": plain["schedule"] | {"milestones": [], "decay": 0.1},
    }
    for found in (configs.settings_of(older), configs.saved_settings(older)):
        assert "momentum" not in found.optimizer.options and "milestones" not in found.schedule.options
    assert configs.plain(configs.completed(older)) == plain and not configs.forbidden_changes(older, plain)
    with pytest.raises(ValueError, match="optimizer.momentm is not an option of adamw"):
        runs.prepare(plain | {"optimizer": plain["optimizer"] | {"momentm": 0.5}}, jax.devices()[:1])
    with pytest.raises(
        ValueError,
        match="config.optimizer.momentum: there is no such option. optimizer=lars, optimizer=sgd have it",
    ):
        configs.resolve("digits:scale=smoke", {"optimizer.momentum": 0.5})


def test_settings_are_what_config_json_holds():
    (found,) = configs.expand("digits:scale=smoke")
    assert found == configs.resolve("digits:scale=smoke") and configs.settings_of(found) is found
    plain = configs.plain(configs.complete(configs.load("digits:scale=smoke")))
    assert found.to_dict() == configs.plain(found) == plain and found == configs.settings_of(plain)
    found.to_dict()["train"]["batch_size"] = 8  # a copy
    assert found.train.batch_size == plain["train"]["batch_size"]
    other = found.replaced(seed=3)
    assert other.to_dict() == plain | {"seed": 3} and other.find is found.find and other != found
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert again == found and again.target == found.target and configs.settings_of(again) is again
    for wrong in (configs.as_settings(plain | {"seed": -1}), plain | {"seed": -1}):
        with pytest.raises(ValueError, match="seed is -1; it must be at least 0"):
            configs.settings_of(wrong)


def test_a_saved_config_is_read_where_functions_or_sections_are_missing():
    plain = configs.plain(configs.resolve("digits:scale=smoke"))
    gone = plain | {"loss": {"gone:away": {"weight": 1.0}}, "target": {"name": "gone:too"}}
    saved = configs.saved_settings(gone)
    assert list(saved.loss) == ["gone:away"] and saved.target.name == "gone:too" and saved.to_dict() == gone
    with pytest.raises(ValueError, match="target.name is 'gone:too'; Python finds no module 'gone'"):
        saved.target()
    with pytest.raises(ValueError, match="target.name is 'gone:too'; Python finds no module 'gone'"):
        configs.as_settings(gone).target  # noqa: B018
    part = configs.saved_settings({"norm": {}, "dtype": "bfloat16"})
    assert "augment" not in part and part.evaluate.size == 0 and part.dtype == "bfloat16"
    assert part.only("norm", "augment") == {"norm": {}}
    with pytest.raises(ValueError, match="augment is missing; it must be a section"):
        part.augment  # noqa: B018
