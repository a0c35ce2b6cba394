"""The wheel: built, installed apart from the repository, and used as a user does."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
DOOR = """
import jax, contrastive_jax, pathlib, sys
from contrastive_jax import losses
assert pathlib.Path(contrastive_jax.__file__).is_relative_to(sys.argv[1]), contrastive_jax.__file__
query, key = jax.random.normal(jax.random.key(0), (2, 8, 4))
value = contrastive_jax.contrastive_loss(query, key, loss="info_nce")
assert value.shape == (16,) and value.min() > 0
assert float(losses.info_nce(jax.numpy.zeros(()))) > 0
assert contrastive_jax.native.library.SOURCE.is_file()
"""
CONFIG = """
from contrastive_jax import config as configs


def get_config(arg=""):
    config = configs.on_digits(configs.base(), smoke=True)
    config.name, config.train.duration, config.projector.out, config.log.every = "mine", "20 steps", 16, 5
    config.augment = {"preset": "none", "size": 8}
    config.evaluate.final = False
    return configs.complete(config)
"""


def run(*command, cwd, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder, tree = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "contrastive_jax", tree / "contrastive_jax", ignore=ignored)
    shutil.copytree(ROOT / "configs", tree / "configs", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run("-m", "pip", "wheel", tree, "--no-deps", "--quiet", "--wheel-dir", folder, cwd=folder)
    (built,) = folder.glob("contrastive_jax-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    run("-m", "pip", "install", wheel, "--no-deps", "--quiet", "--target", target, cwd=target)
    return target


@pytest.mark.slow
def test_it_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    sources = [
        path for kind in ("*.py", "*.cc", "*.h", "*.html") for path in (ROOT / "contrastive_jax").rglob(kind)
    ]
    here = {str(path.relative_to(ROOT)) for path in sources}
    here |= {f"contrastive_jax/configs/{path.name}" for path in (ROOT / "configs").glob("*.py")}
    assert {name for name in names if ".dist-info/" not in name} == here
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_library_door(installed, tmp_path):
    run("-c", DOOR, installed, cwd=tmp_path, PYTHONPATH=str(installed))


@pytest.mark.slow
def test_a_run_of_20_steps_outside_the_repository(installed, tmp_path):
    (tmp_path / "mine.py").write_text(CONFIG)
    command = ("-m", "contrastive_jax.main", "--config=mine.py", "--workdir=out")
    said = run(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    by_name = ("-m", "contrastive_jax.config", "show", "flatclr_digits:scale=smoke")
    assert "temperature.tau = 0.1" in run(*by_name, cwd=tmp_path, PYTHONPATH=str(installed))
    assert (installed / "bin/contrastive-jax").is_file()
    assert "results: out (result.json" in said and (tmp_path / "out" / "result.json").exists()
