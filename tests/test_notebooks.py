"""Notebooks are pairs of one content, begin alike and run."""

import os
import pathlib
import subprocess
import sys

import jupytext
import pytest

ROOT = pathlib.Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "notebooks").glob("[!_]*.py"))


def cells(path):
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def code(path):
    return [source for kind, source in cells(path) if kind == "code"]


def test_each_has_its_pair():
    assert {path.stem for path in SCRIPTS} == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {"quickstart", "one_family", "feature_suppression", "your_own_images"} <= {p.stem for p in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_pairs_agree(script):
    notebook = script.with_suffix(".ipynb")
    assert cells(script) == cells(notebook), f"jupytext --sync notebooks/{script.name}"
    for cell in jupytext.read(notebook).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None, (
            "outputs make no readable diff"
        )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_first_cell_is_the_same_in_all(script):
    assert code(script)[0] == code(SCRIPTS[0])[0]


def first_cell(where, environment=None):
    return subprocess.run(
        [sys.executable, "-c", code(SCRIPTS[0])[0]],
        cwd=where,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
    )


@pytest.mark.run
def test_the_first_cell_outside_of_a_clone_asks_for_the_repository(tmp_path):
    done = first_cell(tmp_path)
    assert done.returncode and done.stderr.splitlines() == [
        "Set REPOSITORY, the first line of this cell, to the address of the repository."
    ]


@pytest.mark.run
def test_the_first_cell_ends_in_a_jax_and_says_which():
    done = first_cell(ROOT / "notebooks", {"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("jax ") and " on cpu: " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_they_run(script, tmp_path):
    environment = {"MPLBACKEND": "Agg", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore:FigureCanvasAgg", script],
        cwd=ROOT / "notebooks",
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
