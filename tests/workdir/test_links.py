"""No write lands outside of a workdir, whatever links lie in it."""

import os

import pytest

from contrastive_jax import workdir as workdirs
from contrastive_jax.system import private
from contrastive_jax.workdir.links import check_links

LINKS = (
    ".lock",
    "lock.json",
    "metrics.jsonl",
    "result.json",
    "checkpoints",
    "checkpoints/.writable-0",
    "replica_0",
)


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("there", [True, False])
def test_a_link_that_leads_out_is_refused_before_anything_is_written(name, there, tmp_path):
    run, target = tmp_path / "run", tmp_path / "mine"
    (run / name).parent.mkdir(parents=True)
    if there:
        target.write_text("mine")
    (run / name).symlink_to(f"{'../' * len((run / name).relative_to(tmp_path).parent.parts)}mine")
    for write in (lambda: workdirs.check_writable(run), workdirs.lock(run).__enter__):
        with pytest.raises(OSError, match=f"{name} is a link to {target}"):
            write()
    assert target.exists() == there and (not there or target.read_text() == "mine")


def test_links_inside_of_the_workdir_and_a_workdir_that_is_one_are_as_good_as_any(tmp_path):
    (tmp_path / "disk/checkpoints").mkdir(parents=True)
    (tmp_path / "disk/latest").symlink_to("checkpoints")
    (tmp_path / "run").symlink_to("disk")
    with workdirs.lock(tmp_path / "run"):
        assert (tmp_path / "disk/lock.json").exists()


def test_a_second_name_of_a_file_outside_keeps_what_it_has(tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".lock", "lock.json", "metrics.jsonl"):
        (tmp_path / name).write_text("mine")
        os.link(tmp_path / name, tmp_path / "run" / name)
    with workdirs.lock(tmp_path / "run"), (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write("a line")
    assert {(tmp_path / name).read_text() for name in (".lock", "lock.json", "metrics.jsonl")} == {"mine"}
    assert (tmp_path / "run/metrics.jsonl").read_text() == "minea line"


def test_folders_as_deep_as_a_path_can_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):
        os.mkdir("a")
        os.chdir("a")
    try:
        check_links(tmp_path)
    finally:
        for _ in range(1200):  # pytest's own removal would recurse
            os.chdir("..")
            os.rmdir("a")


@pytest.mark.parametrize(("text", "shared"), [
    ("/home/me/My Photos/x", "x"),
    ("no file '/home/me/a.png' (/x/y/z.py, line 3)", "no file 'a.png' (z.py, line 3)"),
    ("data.dir=~/photos, images/s 1/2", "data.dir=photos, images/s 1/2"),
    ("https://host/a/b gs://bucket/run runs/a", "https://host/a/b gs://bucket/run runs/a"),
])  # fmt: skip
def test_what_is_shared_has_no_absolute_path(text, shared):
    assert workdirs.shareable({"a": [text]}) == {"a": [shared]}


def test_a_folder_is_the_users_own_by_owner_and_mode(tmp_path, monkeypatch):
    mine = private.folder(tmp_path / "new/mine")
    assert mine.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(mine)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        with pytest.raises(PermissionError, match=name):
            private.folder(tmp_path / name)
    (tmp_path / "open/mine").mkdir(mode=0o700)
    with pytest.raises(PermissionError, match="open, which contains mine, is writable by all users"):
        private.folder(tmp_path / "open/mine")
    (tmp_path / "open").chmod(0o1777)  # as /tmp: others cannot rename what is there
    assert private.folder(tmp_path / "open/mine")
    monkeypatch.setattr(os, "geteuid", lambda: mine.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user"):
        private.check(mine)


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_an_empty_or_relative_cache_folder_is_unset(value, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert private.cache_home() == tmp_path / ".cache"


def test_files_that_a_run_removes_while_they_are_looked_at(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    scan = os.scandir

    def vanishing(path):
        entries = scan(path)
        if str(path) == str(tmp_path):
            (tmp_path / "a").rmdir()
        return entries

    monkeypatch.setattr(os, "scandir", vanishing)
    check_links(tmp_path)
