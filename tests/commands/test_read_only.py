"""Runs in workdirs that cannot be written: every mode writes to --output and leaves the workdir as it is."""

import errno
import os
import pathlib
import tempfile

import numpy as np
import pytest
from absl.testing import flagsaver
from saved_runs import config_of, workdir_of

from contrastive_jax import main
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import embed, evaluate, export, preview, report

MODES = {
    mode.__name__: mode
    for mode in (embed.embed, evaluate.evaluate, export.export, preview.preview, report.report)
}
KNN = {"knn": {"name": "knn", "k": 3}}


def config(run=""):
    small = {"images": 20, "queries": 2, "neighbours": 3, "map": "pca"}
    made = config_of(**{"preview.images": 2, "preview.draws": 1, "evaluate.rows": ("trained",)})
    return made | {"evaluators": KNN, "report": made["report"] | small}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run; nothing in it may be written, and folders keep the time of the last change."""
    path = tmp_path_factory.mktemp("run") / "simclr"
    workdir_of(path, config())
    workdirs.write_config(path, config(), "")
    everything = [path, *path.rglob("*")]
    for one in everything:
        one.chmod(0o555 if one.is_dir() else 0o444)
    yield path
    for one in everything:
        one.chmod(0o755 if one.is_dir() else 0o644)


def state(folder):
    return {str(path): path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


@pytest.mark.run
def test_every_mode_writes_to_output_alone(run, tmp_path):
    before, out = state(run), tmp_path / "new" / "out"
    for mode in MODES.values():
        mode(config(), str(run), quiet=True, output=str(out))
    assert state(run) == before
    assert sorted(path.name for path in out.iterdir()) == [
        *(
            "embeddings_test.npz",
            "embeddings_train.npz",
            "encoder.safetensors",
            "evaluation.json",
            "preview.png",
        ),
        "report_simclr_images-20_map-pca_queries-2_neighbours-3.html",
    ]
    with np.load(out / "embeddings_test.npz") as written:
        assert str(written["checkpoint"]) == str(run) and written["step"] == 7


@pytest.mark.parametrize("mode", MODES)
def test_a_workdir_that_cannot_be_written_names_the_flag_before_anything_is_computed(
    mode, run, tmp_path, monkeypatch
):
    def refuse(dir):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def computed(*arguments, **options):
        raise AssertionError("something was computed")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    for module, name in ((embed, "source_of"), (evaluate, "source_of"), (preview, "shown"), (report, "read")):
        monkeypatch.setattr(module, name, computed)
    monkeypatch.setattr(export.encoder, "read", computed)
    sentence = (
        f"the workdir {run} cannot be written: Read-only file system. Name a folder to write to, --output."
    )
    with pytest.raises(OSError, match=sentence):
        MODES[mode](config(), str(run))
    with pytest.raises(
        OSError, match=f"--output={tmp_path} cannot be written: Read-only file system. Name another"
    ):
        MODES[mode](config(), str(run), output=str(tmp_path))


def test_replicas_write_to_their_own_folders_of_output(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(
        evaluate, "_judged", lambda s, place, quiet, output: found.append((place, output)) or (None, {})
    )
    monkeypatch.setattr(evaluate.replicas, "differences", lambda workdir: [{"seed": 0}, {"seed": 1}])
    for output in (tmp_path / "out", None):
        evaluate.evaluate([config(), config()], str(tmp_path / "run"), output=output and str(output))
    places = [str(tmp_path / "run" / f"replica_{number}") for number in (0, 1)]
    outputs = [str(tmp_path / "out" / f"replica_{number}") for number in (0, 1)]
    assert found == [*zip(places, outputs, strict=True), *((place, None) for place in places)]


@pytest.mark.parametrize("flags", [{"mode": "train"}, {"mode": "describe"}, {"mode": "embed", "output": " "}])
def test_the_flag_is_refused_where_it_means_nothing(flags, capsys):
    with flagsaver.flagsaver(**{"output": "out", "workdir": "runs/a"} | flags), pytest.raises(SystemExit):
        main._parse(["contrastive-jax"])
    assert "error: --output" in capsys.readouterr().err


def test_the_flag_reaches_its_mode(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(embed, "embed", lambda settings, workdir, **options: given.update(options))
    for output in (None, "~/out"):
        main.perform("embed", [config()], "run", True, output)
    assert given == {"quiet": True, "output": str(pathlib.Path.home() / "out")}
