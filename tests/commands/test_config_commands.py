"""Every option and every metric has a meaning, where it is defined; the pages in docs/ are what the code says."""

import inspect
import json
import pathlib
import re
import sys
import types
import typing
from typing import Any

import jax
import pytest

from contrastive_jax import augment, kinds
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import config as config_commands
from contrastive_jax.config import methods, schema
from contrastive_jax.training import loop
from contrastive_jax.workdir import metric_table

ROOT = pathlib.Path(__file__).parents[2]


def test_every_option_has_a_meaning_of_one_line():
    found = schema.every()
    assert len(found) > 300
    for option in found:
        where = option.function.__name__ if option.function else "options.LEAVES"
        assert option.meaning, f"{option.name}: say what it is in one line, under Args of {where}"
        assert "\n" not in option.meaning and len(option.meaning) < 400, option.name


def test_every_leaf_of_every_config_has_a_meaning():
    specs = [str(path) for path in sorted((ROOT / "configs").glob("*.py"))]
    specs += [f"{ROOT}/configs/digits.py:method={method}" for method in methods.METHODS]
    for spec in specs:
        config = configs.plain(configs.load(spec))
        for name in configs.leaves(config):
            assert schema.option_of(config, name).meaning, (
                f"{spec}, {name}: name its section in options.SECTIONS and its meaning in its function's Args, or"
                " the leaf in options.LEAVES"
            )


def test_no_meaning_is_left_of_a_leaf_that_is_gone():
    leaves = set(configs.leaves(configs.base()))
    assert {name for name in schema.LEAVES if "*" not in name} <= leaves


def test_every_listed_option_can_be_set():
    """At its default, where the function that takes it is named; ``config.resolve`` refuses what there is not."""
    for option in schema.every():
        section = option.name.partition(".")[0]
        if "*" in option.name or option.default in (None, inspect.Parameter.empty):
            continue
        named = option.function.__name__ if option.function else ""
        chosen = section in configs.CHOICES or section == "data" or named in augment.names()
        value = option.default if isinstance(option.default, str) else repr(option.default)
        overrides = [(section, named)] * chosen + [(option.name, value)]
        found = configs.leaves(configs.plain(configs.resolve("digits", overrides)))
        assert option.name in found, option.name


@pytest.mark.parametrize("page", ["methods", "options", "metrics"])
def test_the_page_is_current(page):
    said = f"contrastive-jax config {page} > docs/{page}.md"
    assert (ROOT / f"docs/{page}.md").read_text() == getattr(config_commands, f"{page}_page")(), f"run {said}"


def test_entries_of_a_docstring():
    def example(*, a, b, c):
        """Text.

        Args:
          a: one
            and more, see :func:`x.y.z`.
          b, c: ``two``: three.

        Raises:
          ValueError: never.
        """

    assert schema.entries(example.__doc__) == {
        "a": "one and more, see z.",
        "b": "two: three.",
        "c": "two: three.",
    }
    assert schema.entries("No section.") == schema.entries(None) == {}


def test_diff_says_that_nothing_differs(capsys):
    digits = str(ROOT / "configs" / "digits.py")
    same = f"{digits}:scale=cpu"
    assert config_commands.main(["diff", digits, same]) == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err == f"{digits} and {same} have the same leaves.\n"


def test_diff_says_what_differs_and_what_that_is(capsys):
    digits = f"{ROOT}/configs/digits.py"
    assert config_commands.main(["diff", f"{digits}:method=simclr", f"{digits}:method=macl"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "temperature.alpha: absent -> 2.0" in said
    meaning = said[said.index("temperature.alpha: absent -> 2.0") + 1]
    assert (
        meaning.strip()
        == schema.meanings(schema.named({"temperature": {"name": "macl_a"}}, "temperature")[0])["alpha"]
    )
    assert not [line for line in said if line.startswith("train.")]


def test_a_terminal_has_colours(monkeypatch, capsys):
    import rich
    from rich.console import Console

    monkeypatch.setattr(rich, "get_console", lambda: Console(force_terminal=True, color_system="standard"))
    assert config_commands.main(["show", f"{ROOT}/configs/digits.py"]) == 0
    assert "\x1b[1mtemperature.tau\x1b[0m = \x1b[32m" in capsys.readouterr().out


def test_show_reads_a_workdir(tmp_path, capsys):
    config = configs.plain(configs.load(f"{ROOT}/configs/digits.py"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert config_commands.main(["show", str(tmp_path)]) == 0
    shown = [line.partition(" = ")[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert shown == list(configs.leaves(config))
    config["evaluators"]["\x1b]0;title\x07"] = config["evaluators"]["knn"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    config_commands.main(["show", str(tmp_path)])
    written = "".join(capsys.readouterr())
    assert "title" in written and "\x1b" not in written


@pytest.mark.parametrize("changed", [{"evaluators": [1]}, {"encoder": "resnet"}, {"augment": []}])
def test_what_is_no_section_is_named(tmp_path, capsys, changed):
    config = configs.plain(configs.load(f"{ROOT}/configs/digits.py")) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert config_commands.main(["diff", f"{ROOT}/configs/digits.py", str(tmp_path)])
    (name,) = changed
    assert f"{name} is {changed[name]!r}; it must be a section" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("temperature", "temperature.name"),
        ("warmup", "schedule.warmup"),
        ("learning rate", "schedule.learning_rate"),
        ("lr", "schedule.learning_rate"),
    ],
)
def test_search_finds_by_name(text, first):
    assert config_commands.matches(text)[0][0].startswith(first)


def test_search_finds_by_meaning_and_what_is_misspelt(capsys):
    assert "augment.flip" in [name for name, *_ in config_commands.matches("mirror image")]
    assert "train.batch_size" in [name for name, *_ in config_commands.matches("batchsize")]
    assert [name for name, *_ in config_commands.matches("temprature")] and not config_commands.matches(
        "zzzz"
    )
    assert config_commands.main(["search", "tau"]) == 0
    assert "temperature.tau  (temperature=fixed: 0.1" in capsys.readouterr().out
    assert config_commands.main(["search", "zzzz"]) == 2
    assert capsys.readouterr().err == "error: no option has 'zzzz' in its name or meaning.\n"


@pytest.mark.parametrize("argv", [[], ["diff", "a"], ["shout", "a"], ["search"]])
def test_usage(argv, capsys):
    assert config_commands.main(argv) == 2 and capsys.readouterr().err == config_commands.USAGE + "\n"


# Of streams; of accelerators; of temperature=siglip.
UNMEASURED = ("replaced", "timing.utilisation", "bias")


@pytest.mark.run
def test_every_metric_that_a_run_writes_is_listed(tmp_path):
    config = configs.load(f"{ROOT}/configs/digits.py:method=flatclr_ess,scale=smoke")
    config.evaluate.every, config.evaluate.final, config.log.every = "3 steps", False, 1
    config.projector.out, config.augment, config.train.duration = 16, {"preset": "none", "size": 8}, "6 steps"
    config.compose = {"name": "rand_bit", "bits": 2}  # which has a metric of its own
    config.diagnostics, config.gradient_snr.decay = {"quantiles": 4, "rankme": True}, 0.9
    loop.train(configs.plain(configs.complete(config)), tmp_path, quiet=True, devices=jax.devices()[:1])
    written = set()
    for row in workdirs.read_metrics(tmp_path):
        written |= {f"timing.{name}" for name in row.pop("timing", {})} | set(row)
    always = {name for name in metric_table.METRICS if "<" not in name and name not in UNMEASURED}
    assert always | {"loss/flat_nce", "eval/knn_top1"} <= written
    for name in written:
        assert metric_table.find(name), f"{name} is not in contrastive_jax.workdir.metric_table"


def test_an_option_without_annotation_takes_what_it_is_given():
    """The loss of a user's own module, as the README writes it."""
    config = configs.plain(configs.load(str(ROOT / "configs/digits.py:scale=smoke")))
    config["loss"] = {"unannotated:focal_nce": {"weight": 1.0, "gamma": 0.5}}
    module = types.ModuleType("unannotated")
    exec("def focal_nce(c, *, gamma=1.0):\n    return c ** gamma", module.__dict__)
    sys.modules["unannotated"] = module
    try:
        schema.check(config)
    finally:
        del sys.modules["unannotated"]


def test_annotations_that_only_a_type_checker_reads_say_nothing():
    """``from __future__ import annotations`` with imports under TYPE_CHECKING, and Any: a user's own loss may."""
    namespace = {}
    source = "from __future__ import annotations\ndef loss(c: Array, *, scale: Any = 1.0, power: float = 2.0): return c"
    exec(compile(source, "own", "exec"), namespace)  # noqa: S102
    found = kinds.parameters(namespace["loss"])
    assert [(p.name, p.default) for p in found.values()] == [("scale", 1.0), ("power", 2.0)]
    assert kinds.fits(True, Any) and kinds.fits([1], Any) and kinds.fits(None, Any)
    assert kinds.fits([1], tuple) and kinds.fits((1,), list[int]) and not kinds.fits(1, tuple)
    for bare in (typing.Tuple, typing.List):  # noqa: UP006
        assert kinds.fits([1, "a"], bare) and not kinds.fits(1, bare) and kinds.words(bare) == "a tuple"


@pytest.mark.parametrize(
    ("section", "given", "sentence"),
    [
        ("compose", {"name": "rand_bit", "bits": 2.0}, "compose.bits is 2.0; it must be a whole number"),
        (
            "diagnostics",
            {"quantiles": 2.5, "rankme": False},
            "diagnostics.quantiles is 2.5; it must be a whole number",
        ),
        ("diagnostics", {"quantiles": 0, "rankme": 1}, "diagnostics.rankme is 1; it must be True or False"),
        (
            "evaluators",
            {"x": {"name": "rankme", "images": 2.5}},
            "evaluators.x.images is 2.5; it must be a whole",
        ),
        (
            "evaluators",
            {"x": {"name": "geometry", "seed": True}},
            "evaluators.x.seed is True; it must be a whole",
        ),
    ],
)
def test_types_are_checked_here_so_that_functions_need_not(section, given, sentence):
    config = configs.plain(configs.load(str(ROOT / "configs/digits.py:scale=smoke")))
    schema.check(config)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        schema.check(config | {section: given})


def test_a_value_that_is_a_section_is_refused_inside_of_columns_and_losses_too():
    for section, name in (("evaluators", "knn"), ("loss", "info_nce")):
        config = configs.plain(configs.load(str(ROOT / "configs/digits.py:scale=smoke")))
        config["loss"] = {"info_nce": {"weight": 1.0}}
        config[section][name]["name" if section == "evaluators" else "weight"] = {"a": 1}
        with pytest.raises(ValueError, match=rf"{section}.{name}.\w+ is {{'a': 1}}; it must be one value"):
            schema.check(config)


def test_a_config_that_raises_is_a_sentence(tmp_path, capsys):
    file = tmp_path / "bad.py"
    file.write_text("def get_config(arg=''):\n    return None.tau\n")
    assert config_commands.main(["show", str(file)]) == 2
    said = f"AttributeError: 'NoneType' object has no attribute 'tau' ({file}, line 2)"
    assert capsys.readouterr().err == f"error: {file} raised {said}\n"
