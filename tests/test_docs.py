"""Every command on the site exists, every link leads somewhere, code blocks run; ``mkdocs build --strict`` is CI's."""

import argparse
import importlib
import importlib.util
import pathlib
import re
import runpy
import shlex
import sys
import tomllib

import pytest
import yaml
from suite import over

from contrastive_jax import config as configs
from contrastive_jax import lookup, main
from contrastive_jax.commands import config
from contrastive_jax.conformance import command as conformance_command
from contrastive_jax.conformance import specs
from contrastive_jax.data import tfds_images
from experiments import harness
from experiments.harness import cli

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FLAGS = {flag.name for flag in main.flags.FLAGS.flags_by_module_dict()["contrastive_jax.main"]}


def module_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = module_of(ROOT / "docs" / "hooks" / "pages.py")
PAGES = [page for page in hooks.pages() if page.startswith("docs/")]
TEXT = {page: (ROOT / page).read_text() for page in [*PAGES, "README.md"]}
BLOCKS = [(page, language, code) for page, text in TEXT.items() for language, code in BLOCK.findall(text)]
ELSEWHERE = {  # the tests that run their Python
    "docs/export.md": "tests/commands/test_export.py",
    "docs/how_to/arrays.md": "tests/test_own_arrays.py",
    "docs/how_to/two_towers.md": "tests/training/test_two_towers.py",
    "docs/how_to/your_tools.md": "tests/training/test_on_log.py",
    "README.md": "tests/test_readme.py",
}
PYTHON = [(page, code) for page, language, code in BLOCKS if language == "python" and page not in ELSEWHERE]


def commands(text):
    """Of blocks for a shell, and of sentences; one command each, without comment or redirection."""
    lines = []
    for language, code in BLOCK.findall(text):
        if language in ("bash", "sh"):
            lines += code.replace("\\\n", " ").splitlines()
    lines += re.findall(r"`((?:python|pip) [^`]+)`", BLOCK.sub("", text))
    for line in lines:
        for command in re.sub(r"\s+> \S+$", "", " ".join(line.split())).split(" && "):
            if argv := shlex.split(command, comments=True):
                yield argv


COMMANDS = [(page, argv) for page, text in TEXT.items() for argv in commands(text)]


def check_training(arguments):
    """The command's flags and leaves, up to the config that it would train."""
    assert all(argument.startswith("--") for argument in arguments), arguments
    leaves = [a for a in arguments if a.startswith("--config.")]
    flags = dict(a[2:].partition("=")[::2] for a in arguments if a not in leaves)
    assert set(flags) <= FLAGS and flags.get("mode", "train") in main.MODES, flags
    if "config" in flags:
        spec, overrides, _ = main.split([f"--config={flags['config']}", *leaves])
        assert configs.expand(spec, overrides)
    else:  # the workdir's own
        assert flags["workdir"].startswith("runs/"), arguments


def check_looking(arguments):
    """``contrastive-jax config``; of workdirs, that they are in the folder of runs."""
    verb, *rest = arguments
    count, _ = config.COMMANDS[verb]
    assert count == (1 if verb == "search" else len(rest))
    if verb in ("diff", "show"):
        for spec in rest:
            assert spec.startswith("runs/") or configs.load(f"{ROOT}/{spec}")


class Parsed(BaseException):
    """Arguments were understood; nothing else is run."""


def stop(parse):
    """``parse_args`` that ends the program where it has understood its arguments."""

    def parsed(self, *arguments):
        parse(self, *arguments)
        raise Parsed

    return parsed


def check_experiment(file, arguments):
    """By the file's own parser, or the harness's: the file is run until its arguments are read."""
    text = file.read_text()
    if file == ROOT / "experiments" / "harness" / "__main__.py" and (
        arguments in (["pages"], ["csv"], ["stale"])
        or arguments[:1] == ["compare"]
        and len(arguments) in (2, 3)
    ):
        return
    if file.parent.name == "harness" or "sys.exit(harness.main())" in text:
        cli.parser(None).parse_args(arguments)
    elif "over_seeds.main(" in text:
        assert arguments in (["run"], ["render"]), arguments
    else:
        assert ".parse_args(" in text, f"{file} takes no arguments"
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Parsed):
            patch.setattr(argparse.ArgumentParser, "parse_args", stop(argparse.ArgumentParser.parse_args))
            patch.setattr(sys, "argv", [str(file), *arguments])
            patch.syspath_prepend(file.parent)
            runpy.run_path(str(file), run_name="__main__")


def check(argv):
    """One command of a page."""
    if argv[0] == "srun":
        argv = argv[1:]
    if argv[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"\[([\w,]+)\]", " ".join(argv))
        assert {extra for names in named for extra in names.split(",")} <= set(extras), argv
    elif argv[0] == "mkdocs":
        assert argv[1:] == ["build", "--strict"]
    elif argv[0] == "tfds":
        assert shlex.join(argv) in str(tfds_images.not_prepared(argv[2], "DIR"))
    elif argv[0] == "pytest":
        assert all(a.startswith("-") or (ROOT / a).exists() for a in argv[1:]), argv
    elif argv[0] in ("jupyter", "jupytext"):
        assert (ROOT / argv[-1]).exists()
    elif argv == ["python", "-m", "contrastive_jax.main"]:
        pass  # the same command, said once
    elif argv[:2] == ["contrastive-jax", "config"]:
        check_looking(argv[2:])
    elif argv[0] == "contrastive-jax" and argv[1:2] != ["check"]:
        check_training(argv[1:])
    elif argv[:2] == ["python", "-m"] and argv[2].startswith("experiments."):
        path = ROOT / argv[2].replace(".", "/")
        check_experiment(path / "__main__.py" if path.is_dir() else path.with_suffix(".py"), argv[3:])
    elif argv[:2] == ["contrastive-jax", "check"]:
        name, options = conformance_command.parse(argv[2:])
        assert specs.find(options["as_"]) and lookup.check_name(name, "function")
    elif argv[0] == "python" and len(argv) == 2 and pathlib.Path(argv[1]).is_file():
        pass  # a script of the page's, without arguments
    elif argv[0] == "python":
        check_experiment(ROOT / argv[1], argv[2:])
    else:
        raise AssertionError(f"a new kind of command: {shlex.join(argv)}")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Files that the pages tell to write, and the tree, where a command would find them."""
    for name in ("configs", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    for _, _, code in BLOCKS:
        if found := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / found[1]).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_exists(written):
    assert len(COMMANDS) > 70 and {"docs/how_to/reproduce.md", "README.md"} <= {page for page, _ in COMMANDS}
    wrong = []
    for page, argv in COMMANDS:
        try:
            check(argv)
        except (Exception, SystemExit) as error:
            wrong.append(f"{page}: {shlex.join(argv)}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "command",
    [
        "contrastive-jax --config=configs/digits.py --config.temperature.tua=0.1",
        "contrastive-jax --config=configs/digits.py --mode=trian",
        "contrastive-jax --config=configs/digit.py",
        "contrastive-jax --config=configs/digits.py:method=simcrl",
        "contrastive-jax --config=configs/digits.py --work=runs/a",
        "contrastive-jax config look temperature",
        "contrastive-jax config show configs/digit.py",
        "python -m experiments.flatnce.figure_2 play",
        "python -m experiments.flatnce.figure_2 gpu",
        "python -m experiments.flatnce.figure_2 run --scale=huge",
        "python -m experiments.flatnce.figure_2 run --scale",
        "python -m experiments.flatnce.figure_2 plan run",
        "python -m experiments.flatnce.figure_99 run",
        "python -m experiments.harness job",
        "python -m experiments.harness pages --scale=cpu",
        "python -m experiments.harness compare",
        "python experiments/digits/table_flatclr.py play",
        "pytest tests/loses -q",
        "python experiments/flatnce/figure_identities.py --outt=a",
        "pip install -e '.[gpu]'",
        "contrastive-jax check my_losses:clip_loss --as=info_nec",
        "make docs",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command):
    with pytest.raises((AssertionError, ValueError, OSError, KeyError, SystemExit)):
        check(shlex.split(command))


@pytest.mark.parametrize(
    ("page", "code"),
    [pytest.param(p, c, marks=pytest.mark.slow if "train(" in c else pytest.mark.run) for p, c in PYTHON],
    ids=lambda value: value.splitlines()[0],
)
def test_python_blocks_run(page, code, written):
    exec(compile(code, page, "exec"), {})


@over(hooks.pages())
def test_links_lead_somewhere(page):
    for link, target in hooks.targets(page, (ROOT / page).read_text()).items():
        there = (ROOT / target).is_file() or hooks.site_uri(target) in hooks.GENERATED
        assert there, f"{page}: {link}"


def test_the_navigation_names_pages():
    def leaves(item):
        if isinstance(item, str):
            yield item
        for child in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
            yield from leaves(child)

    named = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    for uri in named:
        assert uri in hooks.GENERATED or (ROOT / hooks.in_tree(uri)).exists(), uri
    assert set(map(hooks.site_uri, PAGES)) <= set(named), "a page of docs/ that the navigation does not reach"


@over([page for page in PAGES if "/reference/" in page])
def test_the_reference_names_what_there_is(page):
    for name in re.findall(r"^::: (\S+)", TEXT[page], re.MULTILINE):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name


def test_the_ledger_of_assumptions_has_every_replication():
    ours = {"arrays", "digits", "flatclr_digits", "folder", "pairs"}  # of no paper
    found = hooks.assumed_by_configs()
    assert {path.stem for path in (ROOT / "configs").glob("*.py")} - ours == set(found)
    page = hooks.assumptions()
    for name, (title, text) in found.items():
        assert f"### `{name}`" in page and title in page and text in page
    for table in map(harness.table_of, harness.all_tables()):
        for what in table.assumed:
            assert what.replace("|", "\\|") in page, (table.name, what)


def test_the_site_brings_its_scripts_and_styles():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert "offline" in site["plugins"], "search works on a server alone"
    for uri in [*site["extra_css"], *site["extra"]["polyfills"]]:
        assert (ROOT / "docs" / uri).is_file(), uri


def test_what_another_host_would_be_asked_for_is_noticed():
    for tag in (
        '<script src="https://cdn.example/katex.js">',
        "<img src=//host.example/a.png>",
        '<link href="https://fonts.example/css" rel="stylesheet">',
        '<link rel="stylesheet" href="https://fonts.example/css">',
    ):
        assert hooks.REMOTE.search(tag), tag
    for tag in ('<a href="https://host.example">', '<script src="assets/a.js">', '<img src="../a.svg">'):
        assert not hooks.REMOTE.search(tag), tag


def test_docstrings_become_markdown():
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    markdown = module_of(ROOT / "docs" / "hooks" / "docstrings.py").markdown
    assert markdown("see :func:`~a.b` and ``c = 1``") == "see `a.b` and `c = 1`"


def test_code_breaks_between_words():
    def marked(html):
        return hooks.CODE.sub(hooks.breakable, html)

    short = "<code>dual_temperature</code>"
    assert marked(short) == short
    assert marked("<code>contrastive_loss(a, b)</code>") == "<code>contrastive_<wbr>loss(<wbr>a, b)</code>"
    option = '<span class="whole">--config</span>'
    assert marked("<code>x --config.augment.local_size=3</code>") == (
        f"<code>x {option}.<wbr>augment.<wbr>local_<wbr>size=<wbr>3</code>"
    )
    block = '<pre><code>a <span class="o">=</span> --config.seed=long_enough_to_break</code></pre>'
    assert marked(block) == block.replace("--config", option)
