"""A workdir in an object store: a run there is the run that a folder would hold."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from etils import epath

from contrastive_jax import workdir as workdirs
from contrastive_jax.workdir.remote import Remote, checkpoints, mirrored, place

ROOT = pathlib.Path(__file__).parents[2]
CLOCK = ("timing", "seconds", "began", "environment")

# The emulator does not say an object's generation when it is read, which tensorstore wants to know.
SERVER = """
import sys, time
from gcp_storage_emulator.handlers import objects

plain = objects.download

def download(request, response, storage, *arguments, **options):
    plain(request, response, storage, *arguments, **options)
    where = request.params["bucket_name"], request.params["object_id"]
    if response.status in (200, 206):
        response["x-goog-generation"] = str(storage.get_file_obj(*where)["generation"])

objects.download = download
from gcp_storage_emulator.server import create_server

with create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket") as server:
    print(server._api._httpd.socket.getsockname()[1], flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """An address whose store is a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = Remote("gs://bucket/run")
    found.store = epath.Path(tmp_path / "store")
    return found


def test_files_go_up_when_they_changed_and_checkpoints_do_not_come_down(remote):
    for name, text in (("metrics.jsonl", "1\n"), ("profile/a/trace", "t"), ("checkpoints/4/state", "s")):
        path = remote.store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    remote.pull()
    there = sorted(str(p.relative_to(remote.local)) for p in remote.local.rglob("*") if p.is_file())
    assert there == ["metrics.jsonl", "profile/a/trace"]
    with open(os.path.join(remote, "metrics.jsonl"), "a") as file:
        file.write("2\n")
    (remote.store / "profile/a/trace").write_text("untouched")
    remote.push()
    assert (remote.store / "metrics.jsonl").read_text() == "1\n2\n"
    assert (remote.store / "profile/a/trace").read_text() == "untouched"
    (remote.local / "metrics.jsonl").rename(remote.local / "metrics.jsonl.broken")
    remote.push()
    there = sorted(path.name for path in remote.store.iterdir())
    assert there == ["checkpoints", "metrics.jsonl.broken", "profile"]


@pytest.mark.parametrize("gone", [".", "config.json"])
def test_a_lost_copy_removes_nothing_from_the_store(remote, gone):
    """A cache that was cleared, or a temporary folder that is tidied by age."""
    remote.store.mkdir()
    (remote.store / "config.json").write_text("{}")
    (remote.store / "metrics.jsonl").write_text("1\n")
    remote.pull()
    shutil.rmtree(remote.local) if gone == "." else (remote.local / gone).unlink()
    with pytest.raises(FileNotFoundError, match="the local copy of gs://bucket/run, was removed"):
        remote.push()
    assert sorted(path.name for path in remote.store.iterdir()) == ["config.json", "metrics.jsonl"]


def test_two_processes_on_one_address_have_copies_of_their_own(remote):
    """As an evaluation beside the training whose metrics it would clear."""
    remote.pull()
    (remote.local / "metrics.jsonl").write_text("1\n")
    other = Remote("gs://bucket/run")
    other.store = remote.store
    other.pull()
    assert other.local != remote.local and (remote.local / "metrics.jsonl").exists()


def test_what_another_process_left_here_is_not_taken_for_the_store(remote):
    remote.pull()
    (remote.local / "result.json").write_text("{}")
    remote.pull()
    assert not (remote.local / "result.json").exists()


def test_an_address_is_shown_and_its_local_path_is_opened(remote):
    assert str(remote) == f"{remote}" == "gs://bucket/run"
    assert pathlib.Path(remote, "a") == remote.local / "a"
    assert str(checkpoints(remote)) == "gs://bucket/run/checkpoints"
    assert checkpoints("runs/x") == epath.Path("runs/x/checkpoints")


def test_a_folder_is_left_alone(tmp_path):
    with mirrored(tmp_path / "run") as here:
        assert here == tmp_path / "run"
    assert not (tmp_path / "run").exists()


def test_a_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with mirrored("~/run") as here:
        assert here == str(tmp_path / "run")


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """A folder that gs:// stands for."""
    real = epath.Path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(epath, "Path", lambda path: real(str(path).replace("gs:/", str(tmp_path / "gs"))))
    return tmp_path / "gs"


@pytest.mark.parametrize("fails", [False, True])
def test_the_local_copy_goes_once_the_store_has_it(stores, fails):
    with contextlib.suppress(ArithmeticError), mirrored("gs://bucket/run") as here:
        pathlib.Path(here, "metrics.jsonl").write_text("1\n")
        assert place(here, "metrics.jsonl") == stores / "bucket/run/metrics.jsonl"
        if fails:
            raise ArithmeticError
    assert (stores / "bucket/run/metrics.jsonl").read_text() == "1\n" and not here.local.exists()
    assert place("runs/x", "a") == pathlib.Path("runs/x/a")


def test_what_could_not_be_copied_up_stays(stores):
    stores.write_text("no folder")
    with pytest.raises(OSError), mirrored("gs://bucket/run") as here:
        pathlib.Path(here, "result.json").write_text("{}")
    assert (here.local / "result.json").read_text() == "{}"


def test_an_address_that_nothing_reads_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refuse(address):
        raise ImportError("no gcsfs")

    monkeypatch.setattr("contrastive_jax.workdir.remote.epath.Path", refuse)
    with pytest.raises(ValueError, match=r"gs:// cannot be read \(no gcsfs\).*contrastive_jax\[gcs\]"):
        with mirrored("gs://bucket/run"):
            pass


def test_a_kind_of_store_that_there_is_not_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="nowhere:// cannot be read"), mirrored("nowhere://run"):
        pass


@pytest.fixture(scope="module")
def bucket():
    """``environment`` for commands that find gs://bucket in a server of this machine."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        address = f"http://127.0.0.1:{int(server.stdout.readline())}"
        yield {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address}
    finally:
        server.kill()
        server.wait()


def command(environment, workdir, *options):
    done = subprocess.run(
        [sys.executable, "-m", "contrastive_jax.main", "--config=configs/digits.py:method=moco_v2,scale=smoke",
         f"--workdir={workdir}", "--config.log.tensorboard=False", "--config.log.every=1", "--quiet", *options],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def brought(environment, address, here):
    """A copy of what lies at an address, but for its checkpoints."""
    down = "import sys; from contrastive_jax.workdir import remote; here = remote.Remote(sys.argv[1]); here.pull();"
    down += "here.local.rename(sys.argv[2])"
    environment = os.environ | environment | {"XDG_CACHE_HOME": str(here.parent)}
    subprocess.run([sys.executable, "-c", down, address, here], cwd=ROOT, env=environment, check=True)
    return here


def without_clock(rows):
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in rows]


@pytest.mark.slow
def test_a_run_in_a_bucket_goes_on_elsewhere_and_is_the_run_of_a_folder(bucket, tmp_path):
    """Trained to step 4 on one machine (a cache of its own), to step 8 on another, embedded on a third."""
    longer = ("--config.train.duration=8 steps", "--config.schedule.warmup=1 step")
    command({}, tmp_path / "folder", "--config.schedule.warmup=1 step", "--config.evaluate.final=False")
    command({}, tmp_path / "folder", *longer)
    address = "gs://bucket/run"
    for machine, options in (
        ("a", ("--config.schedule.warmup=1 step", "--config.evaluate.final=False")),
        ("b", longer),
        ("c", ("--mode=embed",)),
    ):
        command(bucket | {"XDG_CACHE_HOME": str(tmp_path / machine)}, address, *options)
        assert not list((tmp_path / machine / "contrastive_jax/workdirs").iterdir())
    here = brought(bucket, address, tmp_path / "down")
    rows, others = (workdirs.read_metrics(path) for path in (here, tmp_path / "folder"))
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert without_clock(rows) == without_clock(others)
    assert {path.name for path in here.iterdir()} >= {"result.json", "config.json", "embeddings_test.npz"}


@pytest.mark.slow
def test_replicas_in_a_bucket_are_those_of_a_folder(bucket, tmp_path):
    """Stopped at step 4 on one machine, trained to step 8 on another; one of them embedded on a third."""
    short = ("--config.seed=0,1", "--config.schedule.warmup=1 step", "--config.evaluate.final=False")
    longer = (*short, "--config.train.duration=8 steps")
    for lengths in (short, longer):
        command({}, tmp_path / "folder", *lengths)
    for machine, lengths in (("a", short), ("b", longer)):
        command(bucket | {"XDG_CACHE_HOME": str(tmp_path / machine)}, "gs://bucket/replicas", *lengths)
    there = bucket | {"XDG_CACHE_HOME": str(tmp_path / "c")}
    command(there, "gs://bucket/replicas/replica_1", "--mode=embed")
    command({}, tmp_path / "folder" / "replica_1", "--mode=embed")
    here = brought(bucket, "gs://bucket/replicas", tmp_path / "down")
    for number in (0, 1):
        one, other = (path / f"replica_{number}" for path in (here, tmp_path / "folder"))
        assert without_clock(workdirs.read_metrics(one)) == without_clock(workdirs.read_metrics(other))
    embedded = [np.load(path / "replica_1" / "embeddings_test.npz") for path in (here, tmp_path / "folder")]
    np.testing.assert_array_equal(*(file["pooled"] for file in embedded))
