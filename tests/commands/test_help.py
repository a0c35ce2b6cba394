"""``--help`` fits a screen, names every mode and flag, and ends well."""

import subprocess
import sys

import pytest
from absl import flags

import contrastive_jax
from contrastive_jax import lookup, main


def output(*words):
    done = subprocess.run(
        [sys.executable, "-m", "contrastive_jax", *words], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_is_one_screen_with_every_mode_and_flag(word):
    lines = output("--config=digits", word).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    described = {line.split()[0] for line in lines if line.startswith("  ")}
    assert described >= set(main.MODES)
    own = {flag.name for flag in flags.FLAGS.get_flags_for_module(main)}
    assert all(any(f"--{name}" in line for line in lines) for name in own)


def test_the_version():
    assert output("--version") == f"{contrastive_jax.__version__}\n"


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (2, 2), (143, 143), ("a message", 1)])
def test_the_exit_status_is_that_of_the_mode(code, status, monkeypatch):
    def run(*arguments, **options):
        raise SystemExit(code)

    left = []
    for place, name, value in (
        (main.app, "run", run),
        (main.signals, "leave", left.append),
        (main.signals, "guard", lambda: None),
        (main.console, "protect", lambda: None),
        (lookup, "FOLDERS", []),
        (sys, "argv", ["contrastive-jax"]),
        (sys, "path", [*sys.path]),
    ):
        monkeypatch.setattr(place, name, value)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with pytest.raises(SystemExit):
        main.run()
    assert left == [status]
