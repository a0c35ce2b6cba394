"""A broken or foreign file of a workdir is named, and set aside where it can be made again; temporary files go."""

import json
import os

import pytest

from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.workdir import broken, checkpoint, files, locks, replicas, result

CONTENTS = {
    "empty": b"", "a list": b"[]", "null": b"null", "a number": b"3", "a text": b'"x"', "cut": b'{"step": 1,',
    "binary": bytes(range(256)), "UTF-16": '{"a": 1}x'.encode("utf-16"), "nested": b"[" * 100_000, "NaN": b"NaN",
    "two": b"{}{}", "huge": b"1" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_what_is_no_object_is_named_and_set_aside(content, tmp_path):
    path, told = tmp_path / "result.json", []
    path.write_bytes(content)
    with pytest.raises(files.Broken, match="result.json is broken"):
        files.read_json(path, dict)
    assert workdirs.read_result(path, told.append) == {} and path.exists()
    assert result.measured_before(tmp_path, 3, told.append) == {}
    for name in ("diverged.json", "evaluation.json", "replica_0/result.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    broken.tidy(tmp_path, told.append)
    assert path.with_name("result.json.broken").read_bytes() == content and not path.exists()
    assert len(told) == 6 and all(
        str(tmp_path) in line and "\n" not in line and len(line) < 400 for line in told
    )
    path.write_bytes(content)
    broken.tidy(tmp_path, told.append)
    assert path.with_name("result.json.broken-2").exists()  # the first is kept


def test_files_of_another_shape_are_read_as_far_as_they_go(tmp_path):
    path = tmp_path / "result.json"
    for content in (
        {},
        {"step": 3},
        {"step": 3, "evaluations": []},
        {"step": 3, "evaluations": {"trained": 1}},
        {"step": 3, "evaluations": {"trained": {"knn": None}}, "metrics": 3, "images_per_second": 1},
    ):
        path.write_text(json.dumps(content))
        found = result.measured_before(tmp_path, 3)
        assert all(not columns for columns in found.get("evaluations", {}).values())
    path.write_text(json.dumps({"step": 3, "evaluations": {"trained": {"knn": {"top1": 0.5}, "x": 1}}}))
    assert result.measured_before(tmp_path, 3)["evaluations"] == {"trained": {"knn": {"top1": 0.5}}}


def test_scores_are_read_with_the_evaluators_that_made_them(tmp_path):
    """A config of today may have others: they were changed, and the evaluation was interrupted or left out."""
    for name, now, then in (("old", 1, 10), ("new", 10, 10), ("other", 10, 3)):
        settings = configs.resolve("digits:scale=smoke", {"evaluators.knn.k": then, "evaluate.size": then})
        found = {"step": 3, "evaluations": {"trained": {"knn": {"top1": 0.5}}}}
        found["evaluated_by"] = workdirs.evaluated_by(settings)
        config = configs.resolve("digits:scale=smoke", {"evaluators.knn.k": now}).to_dict()
        (tmp_path / name).mkdir()
        files.write_json(tmp_path / name / "config.json", config)
        files.write_json(tmp_path / name / "result.json", found)
    assert [row["evaluators.knn.k"] for row in workdirs.read_results(*sorted(tmp_path.iterdir()))] == [
        10,
        10,
        3,
    ]


@pytest.mark.parametrize("content", [*CONTENTS.values(), b"[1]", b"[{}]", b"{}"])
def test_a_broken_table_of_replicas_is_named(content, tmp_path):
    (tmp_path / "replicas.json").write_bytes(content)
    if content == b"[]":
        assert replicas.folders(tmp_path) == []
        return
    with pytest.raises(ValueError, match="replicas.json is broken"):
        replicas.folders(tmp_path)


def test_what_killed_writes_leave_goes_at_the_next_start(tmp_path):
    left = (
        ".result.json.ab12_cd9",
        ".metrics.jsonl.abcdefgh",
        ".config_diff.txt.12345678",
        "replica_1/.config.json.abcdefgh",
    )
    kept = (
        ".result.json.old",
        ".env",
        ".report.html.abcdefgh",
        "result.json.broken",
        "notes.txt",
        ".result.json.abcdefghi",
    )
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with pytest.raises(RuntimeError), files.replacing(tmp_path / "curves.png") as temporary:
        os.link(temporary, tmp_path / "stays")
        raise RuntimeError
    os.rename(tmp_path / "stays", tmp_path / temporary.name)  # as SIGKILL leaves it
    with locks.lock(tmp_path, print):
        pass
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} - {
        ".lock"
    }
    assert there == set(kept)


def test_folders_in_the_place_of_files_are_renamed(tmp_path):
    told = []
    for name in ("result.json", "curves.png", "metrics.jsonl"):
        (tmp_path / name / "inside").mkdir(parents=True)
    broken.tidy(tmp_path, told.append)
    assert len(told) == 3 and (tmp_path / "curves.png.broken" / "inside").is_dir()
    files.write_json(tmp_path / "result.json", {})


def test_a_broken_config_is_written_anew_from_the_checkpoint(tmp_path):
    import jax.numpy as jnp

    config, told = {"name": "digits", "seed": 3}, []
    path = tmp_path / "config.json"
    for content in CONTENTS.values():
        path.write_bytes(content)
        broken.restore_config(tmp_path, told.append)
        assert path.read_bytes() == content and not told  # nothing to make it from
    with checkpoint.Checkpoints(tmp_path / "checkpoints") as saved:
        saved.save(1, {"a": jnp.ones(2)}, {"config": config})
    broken.restore_config(tmp_path, told.append)
    assert files.read_json(path) == config and "config.json.broken" in told[0]
    broken.restore_config(tmp_path, told.append)
    assert len(told) == 1


@pytest.mark.parametrize("holder", [b"", b"[]", b"null", b'{"pid": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_foreign_holder_of_a_lock_is_nobody_in_particular(holder, tmp_path):
    (tmp_path / "lock.json").write_bytes(holder)
    told = []
    with locks.lock(tmp_path, told.append):
        pass
    assert "another process" in told[0]


def test_a_lock_of_another_host_is_not_declared_gone(tmp_path):
    told = []
    (tmp_path / "lock.json").write_text(json.dumps({"pid": 7, "host": "elsewhere", "since": "today"}))
    with locks.lock(tmp_path, told.append):
        pass
    assert (
        "process 7 on elsewhere" in told[0]
        and "has ended" not in told[0]
        and "may still run on its host" in told[0]
    )
