"""Functions that saved configs name run where their user has allowed them, and nowhere else."""

import functools
import json
import sys
import zipfile

import pytest

from contrastive_jax import config as configs
from contrastive_jax import lookup, main
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import approval
from contrastive_jax.lookup import file_of, own
from contrastive_jax.training import loop

SOURCE = """
import pathlib
pathlib.Path("ran").touch()
def warm(total_steps, *, tau: float = 0.1):
    pathlib.Path("called").touch()
def anything(total_steps, **options):
    pathlib.Path("called").touch()
from subprocess import check_output as taken
"""
AXES = (
    *("data", "compose", "encoder", "critic", "target", "candidates", "negatives", "margin", "temperature"),
    *("transform", "normalizer", "optimizer", "schedule", "second_encoder", "second_augment"),
)
PLACES = {f"{axis}.name": {axis: {"name": "theirs:warm"}} for axis in AXES} | {
    "augment.preset": {"augment": {"preset": "theirs:warm", "size": 8}},
    "loss.theirs:warm": {"loss": {"theirs:warm": {"weight": 1.0}}},
    "loss": {"loss": "theirs:warm"},
    "evaluators.knn.name": {"evaluators": {"knn": {"name": "theirs:warm"}}},
}


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Put somebody's module where Python finds modules; return a function that saves a workdir."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(approval, "_allowed", set())
    lookup.UNKNOWN.clear()
    (tmp_path / "theirs.py").write_text(SOURCE)

    def save(sections, name="run"):
        config = configs.plain(configs.complete(configs.base())) | sections
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        return tmp_path / name

    yield save
    sys.modules.pop("theirs", None)
    lookup.UNKNOWN.clear()


def has_run(folder):
    return "theirs" in sys.modules or (folder / "ran").exists() or (folder / "called").exists()


def refused(read, option="temperature.name"):
    with pytest.raises(ValueError, match=rf"{option} is 'theirs:warm' .*theirs\.py.*--allow=theirs:warm"):
        read()


@pytest.mark.parametrize("option", PLACES)
def test_a_saved_config_imports_nothing_and_its_error_names_function_file_and_flag(option, save, tmp_path):
    run = save(PLACES[option])
    refused(lambda: configs.load(run / "config.json"), option)
    refused(lambda: configs.resolve(str(run)), option)
    refused(lambda: workdirs.read_results(run), option)
    refused(lambda: loop.train(str(run), str(tmp_path / "new")), option)
    for mode in main.MODES:
        refused(functools.partial(main.resolved, [], str(run), mode), option)
    refused(lambda: main.resolved([f"--config={run}/config.json"], None, "train"), option)
    assert not has_run(tmp_path) and not (tmp_path / "new").exists()


def test_every_axis_of_the_base_config_is_looked_at():
    """A new section that names a function is in PLACES, or this fails."""
    base = configs.plain(configs.complete(configs.base()))
    naming = {
        f"{s}.{k}" for s, v in base.items() if isinstance(v, dict) for k in ("name", "preset") if k in v
    }
    assert naming == {place for place in PLACES if place.endswith(("name", "preset"))} - {
        "evaluators.knn.name"
    }


@pytest.mark.parametrize(
    "override",
    [
        ("temperature", "theirs:warm"),
        ("temperature.name", "theirs:warm"),
        ("temperature", "{'name': 'theirs:warm'}"),
    ],
)
def test_naming_a_function_allows_it(override, save):
    assert (
        configs.resolve(str(save(PLACES["temperature.name"])), [override]).temperature.options["tau"] == 0.1
    )


def test_a_run_that_was_allowed_once_asks_for_nothing_and_no_other_does(save, tmp_path, monkeypatch):
    run, other = save(PLACES["temperature.name"]), save(PLACES["temperature.name"], "other")
    approval.keep({"temperature": {"name": "theirs:warm"}}, run)  # as training does
    monkeypatch.setattr(approval, "_allowed", set())  # another process
    assert configs.load(run).temperature.tau == 0.1 and configs.load(f"{run}/").name == "base"
    refused(lambda: configs.load(other))
    kept = list((tmp_path / "state").rglob("*.json"))
    assert [json.loads(file.read_text())["workdir"] for file in kept] == [str(run)]
    assert not list(run.glob("*allow*"))


def test_what_was_allowed_is_that_function_of_that_file(save, tmp_path, monkeypatch):
    run = save(PLACES["temperature.name"])
    approval.keep({"temperature": {"name": "theirs:warm"}}, run)
    monkeypatch.setattr(approval, "_allowed", set())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/theirs.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    refused(lambda: configs.load(run))


def test_a_function_in_the_workdir_is_allowed_by_its_content(save, monkeypatch, tmp_path):
    run = save(PLACES["temperature.name"])
    (run / "theirs.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(run)
    configs.allow("theirs:warm")
    configs.load(run)
    monkeypatch.setattr(approval, "_allowed", set())
    assert configs.load(run).temperature.tau == 0.1
    (run / "theirs.py").write_text(SOURCE + "\npathlib.Path('worse').touch()\n")
    refused(lambda: configs.load(run))


def test_a_notebooks_function_is_allowed_where_the_working_folder_lies_beside_the_workdir(
    save, tmp_path, monkeypatch
):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    config = {"loss": {"__main__:mine": {"weight": 1.0}}}
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path / "notes")
    approval.keep(config, tmp_path / "run")
    monkeypatch.setattr(approval, "_allowed", set())
    approval.check(config, tmp_path / "run")
    with pytest.raises(ValueError, match="loss.__main__:mine is '__main__:mine' in the config"):
        approval.check(config, tmp_path / "notes" / "another")


def test_approvals_that_others_can_write_count_for_nothing(save, tmp_path, monkeypatch):
    run = save(PLACES["temperature.name"])
    approval.keep({"temperature": {"name": "theirs:warm"}}, run)
    monkeypatch.setattr(approval, "_allowed", set())
    (tmp_path / "state/contrastive_jax/allowed").chmod(0o777)
    refused(lambda: configs.load(run))


def test_where_approvals_cannot_be_kept_a_line_names_the_flag(save, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    configs.allow("theirs:warm")
    configs.load(save(PLACES["temperature.name"]))
    assert "--allow=theirs:warm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("theirs:anything", r"takes arbitrary options \(\*\*\)"),
        ("theirs:taken", "taken is defined in subprocess, not in theirs"),
        ("os:system", "os is part of Python's standard library"),
    ],
)
def test_an_axis_is_a_function_that_its_module_defines_and_whose_options_can_be_listed(name, message, save):
    with pytest.raises(ValueError, match=message):
        own(name, "temperature.name")


def test_the_file_of_a_module_is_found_without_importing_it(save, tmp_path):
    (tmp_path / "package/inner").mkdir(parents=True)
    (tmp_path / "package/__init__.py").write_text("raise RuntimeError")
    (tmp_path / "package/inner/part.py").write_text("raise RuntimeError")
    assert file_of("package.inner.part") == str(tmp_path / "package/inner/part.py")
    assert file_of("theirs") == str(tmp_path / "theirs.py")
    assert file_of("nowhere") is file_of("package.nothing") is file_of("theirs.part") is None
    assert not has_run(tmp_path)


def test_a_module_that_was_not_there_when_a_config_was_read_does_not_run_later(save, tmp_path, monkeypatch):
    run = save(PLACES["temperature.name"])
    (tmp_path / "theirs.py").rename(tmp_path / "away.py")
    configs.load(run)  # a run can be read without its functions
    (tmp_path / "away.py").rename(tmp_path / "theirs.py")
    with pytest.raises(ValueError, match="Python finds no module 'theirs'"):
        own("theirs:warm", "temperature.name")
    assert not has_run(tmp_path)
    configs.allow("theirs:warm")
    assert own("theirs:warm", "temperature.name").__name__ == "warm"


def test_modules_without_a_file_are_asked_for_too(save, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "alias", sys.modules["subprocess"])
    with pytest.raises(ValueError, match="--allow=alias:check_output"):
        configs.load(save({"temperature": {"name": "alias:check_output"}}))
    with pytest.raises(ValueError, match="check_output is defined in subprocess"):
        own("alias:check_output", "temperature.name")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("packed.py", SOURCE)
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    with pytest.raises(ValueError, match="packed.zip.*--allow=packed:warm"):
        configs.load(save({"temperature": {"name": "packed:warm"}}))
