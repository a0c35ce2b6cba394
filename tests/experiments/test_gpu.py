"""Work for a lent GPU: data in packs without loss, tasks that go on, and what is kept of them comes home."""

import json

import numpy as np
import pytest

from contrastive_jax import data
from experiments.gpu import tasks
from experiments.harness import cli, packs
from experiments.harness.table import table_of


@pytest.fixture(scope="module")
def source():
    """Colour images of which neither split fills its last sheet."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (1100, 6, 6, 3), np.uint8)
    label = random.integers(0, 3, 1100).astype(np.int32)
    return data.Source(
        "made",
        data.Split(images[:1030], label[:1030]),
        data.Split(images[1030:], label[1030:]),
        ("a", "b", "c"),
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_a_packed_set_is_the_set(channels, source, tmp_path):
    splits = [data.Split(part.image[..., :channels], part.label) for part in (source.train, source.test)]
    files = packs.pack("made", data.Source("made", *splits, source.classes), tmp_path)
    assert [file.name for file in files] == ["made-0.zip"]
    read = packs.read("made", tmp_path)
    assert (read.name, read.classes) == ("made", ("a", "b", "c"))
    for found, expected in zip((read.train, read.test), splits, strict=True):
        for part in ("image", "label", "group"):
            np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))


def test_parts_are_small_and_all_of_them_are_needed(source, tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "LIMIT", 2**20 + 120_000)
    files = packs.pack("made", source, tmp_path)
    assert len(files) > 1 and all(file.stat().st_size < packs.LIMIT for file in files)
    assert len(packs.read("made", tmp_path).train) == 1030
    files[1].unlink()
    assert packs.read("made", tmp_path) is None
    monkeypatch.setenv(packs.FOLDER, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="only some of the parts of made"):
        packs.source_of({"data": {"name": "made"}})


def test_a_config_takes_its_images_from_packs_where_there_are_some(source, tmp_path, monkeypatch):
    config = {"data": {"name": "made", "validation": 0.2}, "compose": {"name": "none"}}
    assert packs.source_of(config) is None
    monkeypatch.setenv(packs.FOLDER, str(tmp_path))
    assert packs.source_of(config) is None
    packs.pack("made", source, tmp_path)
    found = packs.source_of(config)
    assert len(found.train) + len(found.test) == 1030 and 200 <= len(found.test) <= 212


WRITE = "import sys, pathlib; pathlib.Path(sys.argv[1].partition('=')[2]).write_text('{\"device\": \"cpu\"}')"


def test_a_call_runs_what_is_left_until_its_minutes_are_over(tmp_path, monkeypatch):
    quick = tasks.Command(("-c", WRITE), "quick")
    slow = tasks.Command(("-c", "import time; time.sleep(60)"), "slow")
    wrong = tasks.Command(("-c", "import sys; sys.exit(3)"), "wrong")
    monkeypatch.setitem(tasks.TASKS, "made", tasks.Task("", "", (quick, wrong, slow), ()))
    monkeypatch.setitem(tasks.TASKS, "needy", tasks.Task("", "mnist", (quick,), ()))
    options = {"smoke": False, "folder": tmp_path, "out": tmp_path / "kept", "packs": tmp_path / "packs"}
    found = tasks.run("made", **options, minutes=0.05)
    assert not found["done"] and found["results"] == {"quick": {"device": "cpu"}}
    assert found["problems"] == ["-c import sys; sys.exit(3): exit status 3"] and found["kept"] >= 1
    written = (tmp_path / "results" / "quick.json").stat().st_mtime_ns
    tasks.run("made", **options, minutes=0.05)
    assert (tmp_path / "results" / "quick.json").stat().st_mtime_ns == written  # not run again
    assert tasks.run("needy", **options, minutes=1)["problems"] == ["it needs --data: the packs of mnist"]


def test_what_was_kept_comes_home(tmp_path, monkeypatch):
    folder = tmp_path / "there"
    (folder / "results").mkdir(parents=True)
    (folder / "results" / "replicas_0.25.json").write_text(json.dumps({"device": "NVIDIA H200"}))
    monkeypatch.setattr(tasks.records, "folder", lambda: tmp_path / "records")
    (tmp_path / "records").mkdir()
    for name in ("old", "grows"):
        (tmp_path / "records" / f"{name}.json").write_text("{}")
    tasks.there_before(folder)
    (tmp_path / "records" / "grows.json").write_text('{"seeds": {}}')
    (tmp_path / "records" / "run.json").write_text("{}")
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    assert tasks.keep(folder, tmp_path / "out") == 3  # not the old one
    (tmp_path / "records" / "run.json").unlink()
    (tmp_path / tasks.PERFORMANCE / "results").mkdir(parents=True)
    assert tasks.collect(tmp_path / "out" / "records.zip") == {"results": 1, "records": 2}
    assert (tmp_path / tasks.PERFORMANCE / "results" / "replicas_0.25_nvidia_h200.json").exists()
    assert (tmp_path / "records" / "run.json").exists()


OWN = [name for name, task in tasks.TASKS.items() if any(command.out for command in task.smoke)]


def test_every_task_of_a_table_has_cells():
    for name, task in tasks.TASKS.items():
        for command in filter(lambda one: one.table, task.commands + task.smoke):
            options = cli.parser(None).parse_args(command.arguments[2:])
            assert (options.verb, options.scale) == ("run", command.scale), name
            cells = table_of(command.table).runs[command.scale]
            assert any(options.cells.search(" | ".join(cell)) for cell in cells), (name, command)


@pytest.mark.slow
@pytest.mark.parametrize("task", [*OWN, "sensitivity"])  # the other tables' tasks are commands like its
def test_every_task_is_rehearsed(task, tmp_path):
    found = tasks.run(
        task, smoke=True, folder=tmp_path, out=tmp_path / "kept", packs=tmp_path / "packs", minutes=8
    )
    assert found["done"] and not found["problems"], (tmp_path / "log.txt").read_text()[-2000:]
    assert found["results"] and json.dumps(found)
