"""Tab completes modes, configs and options in bash."""

import shutil
import subprocess

import pytest

from contrastive_jax import main
from contrastive_jax.commands import completion


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("contrastive-jax --mode=des", "describe"),
        ("contrastive-jax --config=flatclr_di", "flatclr_digits"),
        ("contrastive-jax --config.temperature.ta", "--config.temperature.tau= --config.temperature.target="),
        ("contrastive-jax --wor", "--workdir="),
        ("contrastive-jax --nothing", ""),
    ],
)  # fmt: skip
def test_tab(line, expected):
    asked = (
        f"{completion.script(main.MODES, ('workdir=',))}\nCOMP_LINE={line!r} COMP_POINT={len(line)}; _contrastive_jax;"
        ' printf "%s " "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert set(expected.split()) <= set(found) and (expected or not found), found


def test_a_file_in_the_current_folder_adds_no_shell_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    for name in ("x';touch RAN;'", "$(touch RAN)", "mine"):
        (tmp_path / "configs" / f"{name}.py").touch()
    script = completion.script(main.MODES, ("workdir=",))
    assert "--config=mine\n" in script and "RAN" not in script


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lr", "--config.schedule.learning_rate=VALUE"),
        ("epochs", "--config.train.duration=VALUE"),
        ("batch_size", "--config.train.batch_size=VALUE"),
        ("tau", "--config.temperature.tau=VALUE"),
        ("workdri", "--workdir"),
        ("nothing_like_it", "--help"),
    ],
)
def test_a_flag_of_other_programs_is_pointed_to_the_option(name, words):
    assert words in main._meant(name)
