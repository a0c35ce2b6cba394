"""Settings know the functions that their sections name: none is looked up once they are resolved."""

import collections
import copy
import pickle

import jax
import pytest

from contrastive_jax import config as configs
from contrastive_jax import main
from contrastive_jax.config import schema, settings
from contrastive_jax.contrast import temperature
from contrastive_jax.training import run as runs

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
    names = {section: [found[section]["name"]] for section in (*configs.CHOICES, *settings.TAKERS)}
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
    assert looked_up["temperature"].count("mine_once:warm") == 1 and found["temperature"]["tau"] == 0.1


def test_a_section_is_its_function_and_its_options():
    (found,) = configs.expand("digits:scale=smoke", [("temperature", "linear"), ("temperature.end", "0.3")])
    section = configs.section(found, "temperature")
    assert section == ("temperature", temperature.linear, {"tau": 0.1, "end": 0.3})
    assert float(section(10).value((), 5, 0.0)) == pytest.approx(0.2)
    plain = configs.plain(configs.resolve("digits:scale=smoke"))
    assert (
        configs.section(plain, "temperature").function is temperature.fixed
    )  # without settings, looked up here
    assert configs.section(found, "optimizer").options["name"] == "adamw"  # an option of the one function
    plain["temperature"]["name"] = "ess_"
    with pytest.raises(
        ValueError, match="temperature.name is 'ess_'; it must be one of .* Did you mean 'ess'"
    ):
        configs.section(plain, "temperature")


def test_settings_are_dictionaries():
    (found,) = configs.expand("digits:scale=smoke")
    assert found == configs.plain(configs.resolve("digits:scale=smoke"))
    assert configs.settings_of(found) is found
    other = found.replaced(seed=3)
    assert other == found | {"seed": 3} and other.find is found.find and isinstance(other, configs.Settings)
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert again == found and configs.section(again, "target") == configs.section(found, "target")
    with pytest.raises(ValueError, match="seed is -1; it must be at least 0"):
        configs.settings_of(found | {"seed": -1})
