"""Notebooks are pairs of one content, begin alike, run, and are kept with what they put out."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import jupytext
import nbformat
import pytest
from suite import over

ROOT = pathlib.Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("execute_notebooks", ROOT / "notebooks" / "_execute.py")
execute = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(execute)
SCRIPTS = execute.scripts()
PICTURE = nbformat.v4.new_output("display_data", data={"image/png": "", "text/plain": "<Figure>"})


def cells(path):
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def code(path):
    return [source for kind, source in cells(path) if kind == "code"]


def test_each_has_its_pair():
    assert {path.stem for path in SCRIPTS} == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    page = (ROOT / "docs" / "how_to" / "notebooks.md").read_text()
    assert len(SCRIPTS) == 5 and all(f"notebooks/{path.stem}.ipynb" in page for path in SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_pairs_agree(script):
    notebook = script.with_suffix(".ipynb")
    assert cells(script) == cells(notebook), f"python notebooks/_execute.py {script.stem}"


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


@over(SCRIPTS)
def test_outputs_are_kept_of_this_code(script):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    assert notebook.metadata.get("executed", {}).get("code") == execute.digest(jupytext.read(script)), (
        f"python notebooks/_execute.py {script.stem}"
    )
    run = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in run] == list(range(1, len(run) + 1))
    outputs = [output for cell in run for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data"}, (
        "a value that nobody shows"
    )
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures and max(map(len, pictures)) * 3 / 4 <= execute.LARGEST


def test_the_badge_and_the_repository_are_made_of_one_line():
    text = '# [![Open in Colab](x)](x)\nREPOSITORY = ""\n'
    for address in ("https://github.com/one/two", "https://github.com/one/two.git"):
        there = execute.addressed("quickstart", text, address)
        assert "colab.research.google.com/github/one/two/blob/main/notebooks/quickstart.ipynb)" in there
        assert f'REPOSITORY = "{address}"' in there and execute.addressed("quickstart", there, "") != there
    for script in SCRIPTS:
        assert execute.badge(script.stem, execute.repository()) in script.read_text()
        assert script.read_text() == execute.addressed(script.stem, script.read_text(), execute.repository())


def test_stale_outputs_differ_whatever_the_numbers():
    def shape(*outputs):
        cell = nbformat.v4.new_code_cell("a", outputs=list(outputs))
        return execute.shape(nbformat.v4.new_notebook(cells=[cell]))

    def said(text):
        return nbformat.v4.new_output("stream", text=text)

    first = shape(said("top-1 97.5 %, 0:01:02\n"), said("in /tmp/tmpa1 3e-07"))
    assert first == shape(said("top-1 98 %, 0:00:59\nin /tmp/tmpb -1.5"))
    assert first != shape(said("top-5 of 97.5 %, 0:01:02\nin /tmp/tmpa1 3e-07"))
    assert first != shape(said("top-1 97.5 %, 0:01:02\nin /tmp/tmpa1 3e-07"), PICTURE)
    printed = {"text/html": "<pre>top-1 1 %</pre>", "text/plain": "\x1b[1mtop-1\x1b[0m 1 %\n"}
    assert shape(nbformat.v4.new_output("display_data", data=printed)) == shape(said("top-1 2 %"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_they_put_out_what_is_kept(script):
    kept = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    assert execute.shape(execute.execute(script)) == execute.shape(kept), (
        f"python notebooks/_execute.py {script.stem}"
    )
