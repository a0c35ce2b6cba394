"""Nothing runs that was not asked for: no file that is read can bring code along, but the user's own ``--config``.

And nothing is written but the workdir, whatever paths a config holds.
"""

import ast
import io
import json
import os
import pathlib

import jax
import numpy as np
import pytest
from PIL import UnidentifiedImageError
from suite import over
from test_own_folder import photographs

from contrastive_jax import config as configs
from contrastive_jax.commands import embed, evaluate, export, preview
from contrastive_jax.config import schema
from contrastive_jax.data import pixels
from contrastive_jax.training import loop

PACKAGE = pathlib.Path(__file__).parent.parent / "contrastive_jax"
EXECUTES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__"}


@over(sorted(PACKAGE.rglob("*.py")))
def test_no_reader_executes_what_it_reads(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            allowed = (
                {"pickle", "cloudpickle"} if path.name == "stream.py" else set()
            )  # a run and its own workers
            assert not (EXECUTES - allowed) & {module.split(".")[0] for module in modules}, ast.unparse(node)
        if isinstance(node, ast.Call):
            said = ast.unparse(node)
            assert not (isinstance(node.func, ast.Name) and node.func.id in CALLS), said
            assert "allow_pickle=True" not in said and "weights_only=False" not in said, said
            if ast.unparse(node.func).endswith("exec_module"):  # --config=FILE.py is the user's own Python
                assert path.name == "files.py", said


def test_a_saved_config_is_read_as_data(tmp_path):
    ran = tmp_path / "ran"
    config = configs.plain(configs.base()) | {"name": f"__import__('pathlib').Path({str(ran)!r}).touch()"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert configs.load(str(tmp_path)).name == config["name"] and not ran.exists()


def test_no_program_is_called_for_an_image(tmp_path, monkeypatch):
    """Pillow goes by content: it gave PostScript in a .png to Ghostscript."""
    (tmp_path / "bin").mkdir()
    ghostscript = tmp_path / "bin/gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=os.pathsep)
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    for read in (
        lambda: pixels.header(io.BytesIO(postscript)),
        lambda: pixels.plain(postscript, 3),
        lambda: pixels.decode(postscript, 3, 8),
    ):
        with pytest.raises(UnidentifiedImageError):
            read()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ("data", {"name": "subprocess:run", "args": ["touch"]}),
        ("optimizer", {"name": "os:system", "command": "touch"}),
        ("augment", {"preset": "shutil:rmtree", "size": 8}),
        ("temperature", {"name": "builtins:exec"}),
    ],
)
def test_a_saved_config_calls_none_of_pythons_functions(section, options, tmp_path):
    config = configs.plain(configs.base()) | {section: options}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="part of Python's standard library"):
        configs.load(str(tmp_path))


def test_numpy_refuses_pickled_arrays_by_default(tmp_path):
    np.save(tmp_path / "bad.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(tmp_path / "bad.npy")


def config_of(folder, **leaves):
    config = configs.load("digits:method=simclr,scale=smoke")
    config.data = {"name": "folder", "dir": str(folder)}
    config.augment = {"preset": "crop_only", "size": 8}
    config.evaluators = {"linear": {"name": "lbfgs"}, "knn": {"name": "knn", "k": 3}}
    with config.unlocked():
        config.update_from_flattened_dict({"train.batch_size": 8, "train.duration": "2 steps"} | leaves)
    return configs.plain(configs.complete(config))


def contents(folder):
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.mark.slow
def test_paths_in_a_config_are_read_and_only_the_workdir_is_written(tmp_path, monkeypatch):
    """Every option that is a path: data.dir, data.labels, init.checkpoint, evaluate.checkpoint."""
    photographs(tmp_path / "images", labelled=True)
    rows = [
        f"{p.relative_to(tmp_path / 'images')},{p.parent.name}" for p in (tmp_path / "images").rglob("*.png")
    ]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    data = {"data.size": 10, "data.test_fraction": 0.25, "data.labels": str(tmp_path / "labels.csv")}
    one, first = jax.devices()[:1], str(tmp_path / "first")
    loop.train(
        config_of(tmp_path / "images", **data, **{"evaluate.final": False}), first, quiet=True, devices=one
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = contents(tmp_path)
    paths = {"init.checkpoint": first, "evaluate.checkpoint": first}
    config = config_of(tmp_path / "images", **data, **paths, **{"evaluate.final": False})
    second = str(tmp_path / "second")
    preview.preview(config, second, quiet=True)
    loop.train(config, second, quiet=True, devices=one)
    for mode in (evaluate.evaluate, embed.embed, export.export):
        mode(config, second, quiet=True)
    after = contents(tmp_path)
    assert {path: after.get(path) for path in before} == before
    assert {path for path in after if path not in before and not path.startswith(f"{second}/")} == {second}
    assert {path.name for path in (tmp_path / "second").iterdir()} >= {
        *("preview.png", "config.json", "metrics.jsonl", "evaluation.json", "embeddings_train.npz"),
        *("encoder.safetensors", "checkpoints"),
    }


@pytest.mark.parametrize("name", ["../out", "/etc/x", "..", "a/b", "a\\..\\b", ".x", "a\0b", "", "a\n"])
def test_a_name_which_is_part_of_the_default_workdir_leads_nowhere_else(name):
    config = configs.plain(configs.complete(configs.base())) | {"name": name}
    with pytest.raises(ValueError, match="name is .*; it must be a folder name"):
        schema.check(config)
