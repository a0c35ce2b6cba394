import errno
import importlib.util
import io
import itertools
import json
import math
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tracemalloc
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from contrastive_jax import config as configs
from contrastive_jax import native
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import run as runs
from contrastive_jax.workdir import Logbook, Progress, curves, metric_table, read_metrics, result

ROOT = pathlib.Path(__file__).parents[2]


def lines(workdir):
    return (workdir / "metrics.jsonl").read_text().splitlines()


def run(workdir, start, end, seconds=1.0):
    """A fake run: a training record every 5 steps, an evaluation every 10."""
    with Logbook(workdir, start_step=start) as book:
        for step in range(start + 1, end + 1):
            if step % 5 == 0:
                timing = {"seconds": seconds * step, "images_per_second": 3 / seconds}
                book.write(
                    step,
                    step / 7,
                    {"loss": np.float32(1) / np.float32(step), "ess": jnp.float32(0.1)},
                    timing,
                )
            if step % 10 == 0:
                book.write(step, step / 7, {"knn/top1": 0.9})


def without_timing(workdir):
    return [{k: v for k, v in json.loads(line).items() if k != "timing"} for line in lines(workdir)]


# ---------------------------------------------------------------- metrics.jsonl


def test_a_record_is_one_line_and_reads_back_bit_for_bit(tmp_path):
    with Logbook(tmp_path / "new" / "run") as book:
        third = np.float32(1) / np.float32(3)
        metrics = {
            "loss": jnp.float32(third),
            "k": np.int64(3),
            "half": jnp.bfloat16(0.5),
            "ok": True,
            "one": [2.0],
            "several": np.float32([0.5, np.inf]),
        }
        book.write(jnp.int32(5), np.float64(0.5), metrics, {"images_per_second": np.float32(2)})
        assert len(lines(tmp_path / "new" / "run")) == 1  # flushed while the book is open
    [record] = read_metrics(tmp_path / "new" / "run")
    assert record == {
        "step": 5, "epoch": 0.5, "loss": float(third), "k": 3, "half": 0.5, "ok": True, "one": 2.0,
        "several": [0.5, math.inf],
        "timing": {"images_per_second": 2.0},
    }  # fmt: skip
    assert list(record)[:2] == ["step", "epoch"] and isinstance(record["step"], int)


def test_non_finite_numbers_are_valid_json_and_come_back(tmp_path):
    with Logbook(tmp_path) as book:
        book.write(1, 0.1, {"a": math.nan, "b": jnp.inf, "c": -np.float32(np.inf)}, {"seconds": math.inf})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads(lines(tmp_path)[0], parse_constant=refuse)
    assert (record["a"], record["b"], record["c"]) == ("NaN", "Infinity", "-Infinity")
    [record] = read_metrics(tmp_path)
    assert math.isnan(record["a"]) and record["b"] == math.inf and record["c"] == -math.inf
    assert record["timing"]["seconds"] == math.inf


@pytest.mark.parametrize(
    "metrics, sentence",
    [
        ({"w": np.zeros((2, 2))}, "'w' is (.|\n)*; it must be one number, or a list of numbers"),
        ({"w": "high"}, "'w' is 'high'"),
        ({"step": 1}, "cannot be called 'step'"),
        ({"timing": 1}, "cannot be called 'timing'"),
    ],
)
def test_what_is_no_metric_is_refused_and_nothing_written(tmp_path, metrics, sentence):
    with Logbook(tmp_path) as book:
        with pytest.raises(ValueError, match=sentence):
            book.write(1, 0.0, metrics)
    assert lines(tmp_path) == []


@pytest.mark.parametrize("checkpoint, killed", [(0, 3), (0, 12), (10, 10), (12, 25), (15, 29), (20, 20)])
def test_killed_and_resumed_is_uninterrupted(tmp_path, checkpoint, killed):
    run(tmp_path / "whole", 0, 40)
    run(tmp_path / "parts", 0, killed)
    run(tmp_path / "parts", checkpoint, 40, seconds=7.0)
    assert without_timing(tmp_path / "parts") == without_timing(tmp_path / "whole")
    assert lines(tmp_path / "parts") != lines(tmp_path / "whole")  # the clock was another


def test_every_way_to_cut_the_last_line(tmp_path):
    run(tmp_path / "whole", 0, 20)
    whole = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    path = tmp_path / "metrics.jsonl"
    for cut in range(last, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert len(read_metrics(tmp_path)) == len(lines(tmp_path / "whole")) - (cut < len(whole) - 1)
        run(tmp_path, 15, 20)
        assert path.read_bytes() == whole
    path.write_bytes(whole[:-1])  # all but the newline
    Logbook(tmp_path, start_step=20).close()
    assert path.read_bytes() == whole


def test_repetitions_go_and_a_record_is_not_written_twice(tmp_path):
    run(tmp_path, 0, 20)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    first, *rest = whole.splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_bytes(first + first + b"".join(rest) + first)
    with Logbook(tmp_path, start_step=20) as book:
        assert (tmp_path / "metrics.jsonl").read_bytes() == whole
        book.write(20, 20 / 7, {"knn/top1": 0.9})
        assert (tmp_path / "metrics.jsonl").read_bytes() == whole
        book.write(20, 20 / 7, {"linear/top1": 0.9})
    assert len(lines(tmp_path)) == len(whole.splitlines()) + 1


def test_a_good_file_is_left_alone_and_no_scratch_file_stays(tmp_path):
    run(tmp_path, 0, 20)
    inode = (tmp_path / "metrics.jsonl").stat().st_ino
    Logbook(tmp_path, start_step=20).close()
    assert (tmp_path / "metrics.jsonl").stat().st_ino == inode
    Logbook(tmp_path, start_step=10).close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_damage_in_the_middle_is_not_repaired_in_silence(tmp_path):
    run(tmp_path, 0, 20)
    path = tmp_path / "metrics.jsonl"
    damaged = path.read_bytes().replace(b'"step": 10', b'"st', 1)
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="line 2: not a record"):
        read_metrics(tmp_path)
    told = []
    kept = read_metrics(tmp_path, told.append)
    assert len(told) == 1 and "line 2" in told[0] and path.read_bytes() == damaged
    Logbook(tmp_path, start_step=20, report=told.append, tensorboard=False).close()
    assert len(told) == 2 and "line 2" in told[1] and "metrics.jsonl.broken" in told[1]
    assert (tmp_path / "metrics.jsonl.broken").read_bytes() == damaged and read_metrics(tmp_path) == kept
    path.write_bytes(again := path.read_bytes() + b"[]\n")
    Logbook(tmp_path, start_step=20, report=told.append, tensorboard=False).close()
    assert (tmp_path / "metrics.jsonl.broken").read_bytes() == damaged
    assert (tmp_path / "metrics.jsonl.broken-2").read_bytes() == again


@pytest.mark.parametrize(
    "line", ["[]", "null", "{}", "3", '{"step": "1"}', '{"step": true}', '{"step": -1}', '{"step": 2, "epoch": []}',
             '{"step": 2, "epoch": "x"}', "[" * 100_000, "\udcff", '{"step": 1e400}'],
)  # fmt: skip
def test_foreign_lines_are_left_out(line, tmp_path):
    run(tmp_path, 0, 20)
    path, kept, told = tmp_path / "metrics.jsonl", read_metrics(tmp_path), []
    path.write_bytes(line.encode(errors="surrogateescape") + b"\n" + path.read_bytes())
    assert read_metrics(tmp_path, told.append) == kept and "line 1" in told[0]


def test_metrics_that_are_lost_before_a_resume_are_a_word(tmp_path):
    def told(start):
        said = []
        Logbook(tmp_path, start_step=start, report=said.append, tensorboard=False).close()
        return said

    run(tmp_path, 0, 20)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    assert told(20) == [] and path.read_bytes() == whole
    path.write_bytes(whole.splitlines(keepends=True)[0])
    first = read_metrics(tmp_path)[-1]["step"]
    assert f"ends at step {first}" in told(20)[0]
    path.write_bytes(b"")
    assert "no record" in told(20)[0]
    path.unlink()
    assert "metrics.jsonl is missing" in told(20)[0]
    path.unlink()
    assert told(0) == []


@pytest.mark.parametrize("how", ["file removed", "workdir removed", "workdir renamed", "file replaced"])
def test_a_workdir_that_goes_under_a_run_is_an_error(how, tmp_path):
    workdir = tmp_path / "run"
    book = Logbook(workdir, tensorboard=False)
    book.write(1, 0.1, {"loss": 1.0})
    if how == "file removed":
        (workdir / "metrics.jsonl").unlink()
    elif how == "workdir renamed":
        workdir.rename(tmp_path / "other")
    else:
        shutil.rmtree(workdir)
        if how == "file replaced":
            workdir.mkdir()
            (workdir / "metrics.jsonl").write_text("")
    with pytest.raises(OSError, match="run/metrics.jsonl was removed or replaced"):
        book.check()
    with pytest.raises(OSError, match="run/metrics.jsonl was removed or replaced"):
        book.write(2, 0.2, {"loss": 1.0})
    book.close()


def test_an_inactive_book_touches_nothing(tmp_path):
    with Logbook(tmp_path / "run", active=False) as book:
        book.write(1, 0.0, {"loss": 1.0})
    assert not (tmp_path / "run").exists()


def test_records_survive_a_process_that_is_killed(tmp_path):
    program = (
        "import os, signal, sys; from contrastive_jax.workdir import Logbook\n"
        "Logbook(sys.argv[1], tensorboard=False).write(1, 0.5, {'loss': 2.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -9
    assert read_metrics(tmp_path) == [{"step": 1, "epoch": 0.5, "loss": 2.0}]


# ---------------------------------------------------------------- TensorBoard


def find(*there):
    """``find_spec`` where of TensorFlow and TensorBoard those given are installed."""
    find_spec = importlib.util.find_spec
    known = dict.fromkeys(("tensorflow", "tensorboard")) | dict.fromkeys(there, object())
    return lambda name, *rest: known[name] if name in known else find_spec(name, *rest)


@pytest.mark.parametrize(
    ("there", "missing"),
    [((), "tensorflow and tensorboard are"), (("tensorflow",), ": tensorboard is")],  # of 2.21: comes alone
)
def test_without_the_extra_it_is_said_once_and_only_if_asked(there, missing, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", find(*there))
    with Logbook(tmp_path) as book:
        book.write(1, 0.1, {"loss": 1.0})
    assert capsys.readouterr().out == ""
    with Logbook(tmp_path, verbose=True) as book:
        book.write(2, 0.2, {"loss": 1.0})
        book.write(3, 0.3, {"loss": 1.0})
    printed = capsys.readouterr().out
    assert printed.count("contrastive_jax[tf]") == 1 and missing in printed
    Logbook(tmp_path, tensorboard=False, verbose=True).close()
    assert capsys.readouterr().out == ""


def test_with_tensorflow_the_same_numbers_go_through_clu(tmp_path, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, logdir):
            calls.append(logdir)

        def write_scalars(self, step, scalars):
            calls.append((step, scalars))

        def flush(self):
            calls.append("flush")

        def close(self):
            calls.append("close")

    writers = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setattr(importlib.util, "find_spec", find("tensorflow", "tensorboard"))
    monkeypatch.setitem(sys.modules, "clu", types.SimpleNamespace(metric_writers=writers))
    monkeypatch.setitem(sys.modules, "clu.metric_writers", writers)
    with Logbook(tmp_path) as book:
        book.write(4, 0.1, {"loss": jnp.float32(0.5)}, {"seconds": 2.0})
    assert calls == [str(tmp_path), (4, {"loss": 0.5, "seconds": 2.0}), "flush", "close"]


# ---------------------------------------------------------------- files


def test_config_and_diff(tmp_path):
    workdirs.write_config(
        tmp_path / "run", {"train": {"size": (8, 8), "tau": math.inf}, "init": None}, "tau: 1 -> 2"
    )
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {
        "train": {"size": [8, 8], "tau": "Infinity"},
        "init": None,
    }
    assert (tmp_path / "run" / "config_diff.txt").read_text() == "tau: 1 -> 2\n"
    assert sorted(os.listdir(tmp_path / "run")) == ["config.json", "config_diff.txt"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    workdirs.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        workdirs.write_json(path, {"a": object()})

    def fail(*arguments):
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk"):
        workdirs.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1} and os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize("room", [0, 1, 20, 60])
def test_a_record_for_which_the_disk_has_no_room_leaves_nothing_of_itself(room, tmp_path):
    path, (soft, hard) = tmp_path / "metrics.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    with workdirs.Logbook(tmp_path, tensorboard=False) as book:
        book.write(1, 0.1, {"loss": 1.0})
        before = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                book.write(2, 0.2, {"loss": 2.0, "accuracy": 0.123456789012345, "temperature": 0.1})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        book.write(2, 0.2, {"loss": 2.0})  # there is room again
    assert [row["loss"] for row in workdirs.read_metrics(tmp_path)] == [1.0, 2.0]


def test_written_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    workdirs.write_text(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_result_holds_what_is_needed_to_trust_it(tmp_path):
    evaluation = {
        "trained": {"linear": {"top1": np.float64(0.5), "protocol": "kNN, k=10", "settings": {"k": 10}}},
        "raw pixels": {"knn": {"top1": 0.25}},
    }
    found = workdirs.write_result(
        tmp_path,
        step=jnp.int32(9),
        epoch=1.5,
        metrics={"loss": jnp.float32(2), "ess": math.nan},
        evaluations=evaluation,
        seconds=12.5,
        images_per_second=None,
    )
    read = json.loads((tmp_path / "result.json").read_text())
    assert set(read) == set(found)
    assert read["step"] == 9 and read["epoch"] == 1.5 and read["metrics"] == {"loss": 2.0, "ess": "NaN"}
    assert list(read["evaluations"]) == ["trained", "raw pixels"]  # the order of the terminal's table
    assert read["evaluations"] == evaluation and read["seconds"] == 12.5 and read["images_per_second"] is None
    names = {
        "python",
        "jax",
        "jaxlib",
        "flax",
        "optax",
        "orbax-checkpoint",
        "numpy",
        "scikit-learn",
        "contrastive_jax",
    }
    assert set(read["versions"]) == names
    assert read["versions"]["jax"] == jax.__version__ and read["versions"]["numpy"] == np.__version__
    assert read["device"] == {
        "platform": "cpu",
        "kind": jax.devices()[0].device_kind,
        "count": 8,
        "processes": 1,
        "cpu_kernels": native.kernels(),
    }


def test_git_commit_is_that_of_the_repository_that_tracks_the_source(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    source = tmp_path / "logbook.py"
    source.write_text("one")
    monkeypatch.setattr(result, "__file__", str(source))
    assert result._git_commit() == (None, None)  # no repository
    git("init")
    assert result._git_commit() == (None, None)  # one around it that does not track it
    git("add", "logbook.py")
    git("commit", "-m", "x")
    (tmp_path / "untracked").touch()
    assert result._git_commit() == (git("rev-parse", "HEAD"), False)
    source.write_text("two")
    assert result._git_commit() == (git("rev-parse", "HEAD"), True)
    monkeypatch.setenv("PATH", "")
    assert result._git_commit() == (None, None)  # no git


# ---------------------------------------------------------------- curves


def test_curves_that_move_come_first():
    records = [{"epoch": e, "loss": 1.0, "info_nce": 5.0 - e, "tau": 0.1} for e in (1.0, 2.0)]
    figure = curves.draw([records], "curves")
    assert [place.get_title(loc="left") for place in figure.axes if place.get_title(loc="left")] == [
        "InfoNCE, nats", "loss", "temperature",
    ]  # fmt: skip


def test_any_name_and_number_is_drawn(tmp_path):
    text = '{"step": %d, "epoch": %d, "loss": 1%s, "eval/cost_$5_and_$9^{_top1": 0.5, "timing": {}}\n'
    (tmp_path / "metrics.jsonl").write_text(text % (1, 1, "") + text % (2, 2, "0" * 400))
    assert workdirs.plot_curves(tmp_path).stat().st_size > 0


def test_curves_draw_what_was_logged(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, plot, title = [], Axes.plot, Axes.set_title
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **k: drawn.append((*x, *y)) or plot(self, x, y, **k))
    monkeypatch.setattr(
        Axes, "set_title", lambda self, text, **k: drawn.append(text) or title(self, text, **k)
    )
    with Logbook(tmp_path) as book:
        assert workdirs.plot_curves(tmp_path) is None and not (tmp_path / "curves.png").exists()
        book.write(1, 0.5, {"loss": 2.0, "info_nce": math.nan, "tau": 0.1, "w_p50": 3.0})
        book.write(2, 1.0, {"loss": 1.0, "info_nce": 3.0, "tau": 0.1})
        book.write(2, 1.0, {"eval/knn_top1": 0.75})
    assert workdirs.plot_curves(tmp_path) == tmp_path / "curves.png"
    assert drawn == [
        (0.5, 1.0, 2.0, 1.0), "loss", (1.0, 3.0), "InfoNCE, nats", (0.5, 1.0, 0.1, 0.1), "temperature",
        (1.0, 0.75), "knn: Top-1",
    ]  # fmt: skip
    from PIL import Image

    with Image.open(tmp_path / "curves.png") as image:
        assert image.format == "PNG" and np.asarray(image.convert("L")).std() > 1
    assert sorted(os.listdir(tmp_path)) == ["curves.png", "metrics.jsonl"]


def test_a_row_of_the_table_of_metrics():
    assert set(itertools.chain(*(metric.band for metric in metric_table.METRICS.values()))) <= set(
        metric_table.METRICS
    )
    assert {metric.panel for metric in metric_table.METRICS.values()} == {"", *metric_table.PANELS}
    for name in ("loss/flat_nce", "eval/knn_top1", "alarm/collapse", "timing.seconds", "step"):
        assert metric_table.find(name), name
    assert metric_table.find("los") is metric_table.find("eval/") is None


# ---------------------------------------------------------------- the screen

NOTHING_LOST = {"lost_to_data": 0.0, "lost_to_evaluation": 0.0, "lost_to_checkpoint": 0.0}
METRICS = {
    "loss": 1.0,
    "info_nce": jnp.float32(3.25),
    "contrast_accuracy": 0.5,
    "tau": 0.1,
    "ess": 0.2,
    "other": 7,
}


class Clock:
    time = 100.0

    def __call__(self):
        return self.time


def piped():
    return Console(file=io.StringIO(), width=40)


def test_piped_lines_are_aligned_below_their_headings_in_80_columns():
    clock, console = Clock(), piped()
    with Progress(1000, 50, 32, console=console, clock=clock) as progress:
        clock.time += 12.34  # compiling
        progress.first_step(1)
        clock.time += 9
        first = progress.update(10, METRICS)
        clock.time += 200
        second = progress.update(110, {**METRICS, "loss": 12.5, "tau": 123456.0})
    assert console.file.getvalue().splitlines() == [
        "step  epoch    loss  InfoNCE  pair acc     tau     ESS  images/s      left",
        "  10   0.20  1.0000   3.2500    0.5000  0.1000  0.2000      32.0   0:16:30",
        " 110   2.20  12.500   3.2500    0.5000  123456  0.2000      16.7   0:28:27",
    ]
    rates = {"seconds": pytest.approx(21.34), "images_per_second": pytest.approx(9 * 32 / 9)}
    assert first == rates | NOTHING_LOST
    assert second["images_per_second"] == pytest.approx(109 * 32 / 209)
    assert progress.images_per_second == pytest.approx(109 * 32 / 209)


def test_a_long_run_fits_80_columns_too():
    clock, console = Clock(), piped()
    with Progress(9_999_999, 9999, 4096, console=console, clock=clock) as progress:
        progress.first_step(1)
        clock.time += 1e5
        progress.update(9_000_000, METRICS | {"loss": -1e9, "info_nce": math.nan})
    (width,) = {len(line) for line in console.file.getvalue().splitlines()}
    assert width <= 80


def test_rates_start_after_the_first_step_or_log_point_and_skip_pauses():
    clock = Clock()
    progress = Progress(100, 10, 8, start_step=40, quiet=True, clock=clock)
    assert progress.images_per_second is None
    clock.time += 30
    assert "images_per_second" not in progress.update(50, METRICS)  # holds the compiling step: no rate yet
    with progress.pause("evaluation"):
        clock.time += 1000
    clock.time += 5
    timing = progress.update(60, METRICS)
    assert timing["seconds"] == pytest.approx(1035) and timing["images_per_second"] == pytest.approx(16)
    assert progress.images_per_second == pytest.approx(16)


def test_the_shares_of_lost_time_are_those_since_the_last_log_point():
    clock = Clock()
    progress = Progress(100, 10, 8, quiet=True, clock=clock, utilisation=0.01)
    progress.first_step(1)
    with progress.pause("evaluation"):
        clock.time += 6
    with progress.pause("checkpoint"):
        clock.time += 2
    clock.time += 12
    progress.lose("data", 5)
    timing = progress.update(11, METRICS)
    assert timing == {
        "seconds": pytest.approx(20), "images_per_second": pytest.approx(10 * 8 / 12),
        "utilisation": pytest.approx(0.01 * 10 * 8 / 12), "lost_to_data": pytest.approx(0.25),
        "lost_to_evaluation": pytest.approx(0.3), "lost_to_checkpoint": pytest.approx(0.1),
    }  # fmt: skip
    clock.time += 20
    timing = progress.update(21, METRICS)
    assert {name: timing[name] for name in NOTHING_LOST} == NOTHING_LOST
    assert progress.lost == {
        "lost_to_data": pytest.approx(0.125), "lost_to_evaluation": pytest.approx(0.15),
        "lost_to_checkpoint": pytest.approx(0.05),
    }  # fmt: skip
    assert progress.utilisation == pytest.approx(0.01 * progress.images_per_second)


def test_what_comes_after_training_is_no_time_that_it_lost():
    """The table at the end may take hours; the shares are those that the lines gave, by the time of each."""
    clock = Clock()
    progress = Progress(100, 10, 8, quiet=True, clock=clock)
    lines, seconds = [], (20, 60)
    for step, duration in enumerate(seconds, start=1):
        with progress.pause("evaluation"):
            clock.time += 5
        clock.time += duration - 5
        lines.append(progress.update(10 * step, METRICS)["lost_to_evaluation"])
    progress.end()
    wanted = sum(share * duration for share, duration in zip(lines, seconds, strict=True)) / sum(seconds)
    for _ in range(2):
        assert progress.lost["lost_to_evaluation"] == pytest.approx(wanted) == pytest.approx(10 / 80)
        with progress.pause("evaluation"):
            clock.time += 3600
        clock.time += 3600
        progress.end()


def test_time_left_follows_the_recent_rate():
    clock, console = Clock(), piped()
    progress = Progress(10_000, 10, 1, console=console, clock=clock)
    for step in range(1, 100):
        clock.time += 100
        progress.update(step, {})
    for step in range(100, 120):
        clock.time += 1
        recent = progress.update(step, {})["images_per_second"]
    assert recent == pytest.approx(1.0) and progress.images_per_second < 0.02
    assert console.file.getvalue().splitlines()[-1].endswith("2:44:41")


def test_a_metric_still_on_the_device_is_waited_for_before_the_clock_is_read():
    clock = Clock()

    class Pending:
        def __float__(self):
            clock.time += 50
            return 1.0

    progress = Progress(100, 10, 1, quiet=True, clock=clock)
    progress.first_step(0)
    assert progress.update(50, {"loss": Pending()})["images_per_second"] == pytest.approx(1.0)


def test_quiet_measures_and_says_nothing(capsys):
    with Progress(10, 5, 8, quiet=True) as progress:
        progress.first_step(1)
        assert progress.update(5, METRICS)["images_per_second"] > 0
    assert capsys.readouterr() == ("", "")


def test_by_default_it_prints_where_print_does(capsys):
    with Progress(10, 5, 8) as progress:
        progress.update(5, METRICS)
        workdirs.log("A sentence with [brackets] that is " + "long " * 40)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 3 and out[1].split()[:2] == ["5", "1.00"]
    assert out[2].startswith("A sentence with [brackets] that")


@pytest.mark.parametrize("width", [30, 80, 200])
def test_in_a_terminal_a_bar_with_every_field_and_sentences_above_it(width):
    console = Console(
        file=io.StringIO(), force_terminal=True, force_interactive=True, width=width, color_system=None
    )
    clock = Clock()
    with Progress(1000, 50, 32, console=console, clock=clock) as progress:
        assert "step 0/1000" in console.file.getvalue()  # while the first step compiles
        progress.first_step(1)
        clock.time += 9
        progress.update(10, METRICS)
        clock.time += 790
        progress.update(800, METRICS)
        before = len(console.file.getvalue())
        console.print("A sentence.")
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()[before:])
    assert shown.index("A sentence.") < shown.index("step 800/1000")
    fields = ["step 800/1000", "epoch 16.00/20", "loss 1.0000", "InfoNCE 3.2500", "pair acc 0.5000"]
    fields += ["tau 0.1000", "ESS 0.2000", "images/s 32.0", "left 0:03:20"]
    for field in fields:
        assert field in shown
    assert f"{'━' * (8 * width // 10)}" in shown and all(
        len(line) <= width for line in re.split(r"[\r\n]+", shown)
    )
    assert console._live_stack == []  # the terminal is given back


@pytest.fixture
def wandb(monkeypatch):
    """What was asked of a stand-in for the library: its ``init`` in full, then lines."""
    calls, active = [], []

    class Run:
        def __init__(self, given):
            self.id, self.logged = given["id"], []

        def log(self, scalars, step):
            calls.append((step, scalars))
            self.logged.append(scalars)

        def finish(self):
            calls.append("finish")
            active.remove(self)

    def init(*, reinit="return_previous", **given):
        """Gives the run that a process has already, but where it is asked for another."""
        calls.append(given)
        if active and reinit == "return_previous":
            return active[-1]
        active.append(Run(given))
        return active[-1]

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    return calls


def test_weights_and_biases_by_option_goes_on_in_the_workdirs_run(tmp_path, wandb):
    for step in (1, 2):
        with Logbook(tmp_path, start_step=step - 1, wandb="zoo", config={"seed": 7}) as book:
            book.write(step, 0.1, {"loss": jnp.float32(0.5), "c_histogram": [1, 2]}, {"seconds": 2.0})
    first, one, _, second, two, _ = wandb
    assert (first.pop("resume"), second.pop("resume")) == ("never", "allow")
    assert first == second and first["project"] == "zoo" and len(first["id"]) == 16
    assert first["config"] == {"seed": 7} and first["name"] == tmp_path.name
    assert (one, two) == ((1, {"loss": 0.5, "seconds": 2.0}), (2, {"loss": 0.5, "seconds": 2.0}))


def test_runs_of_one_process_are_runs_of_their_own_of_weights_and_biases(tmp_path, wandb):
    """Replicas log side by side."""
    books = [Logbook(tmp_path / name, wandb="zoo") for name in ("replica_0", "replica_1")]
    for number, book in enumerate(books):
        book.write(1, 0.1, {"loss": float(number)})
    logged = [book._writers[-1]._run.logged for book in books]
    assert logged == [[{"loss": 0.0}], [{"loss": 1.0}]]
    names = [(tmp_path / name / "wandb_id.txt").read_text() for name in ("replica_0", "replica_1")]
    assert names[0] != names[1]
    for book in books:
        book.close()


def test_a_new_run_at_an_old_path_is_a_new_run_of_weights_and_biases(tmp_path, wandb):
    """Two machines with one path, or a workdir that was deleted, share no run: a curve would be lost."""
    workdir = tmp_path / "run"

    def opened(start_step):
        Logbook(workdir, start_step=start_step, wandb="zoo").close()
        return wandb[-2]["id"]

    first = opened(0)
    assert opened(10) == opened(20) == first
    (workdir / "wandb_id.txt").unlink()
    another = opened(30)  # another machine's part of the run, or one that did not log there
    assert another != first and opened(40) == another
    assert opened(0) not in (first, another)  # begun again where it lay


def test_weights_and_biases_missing_is_said_before_anything_is_written(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "wandb" else real(name, *a)
    )
    config = configs.plain(configs.load(str(ROOT / "configs/digits.py:scale=smoke")))
    config["log"]["wandb"] = "zoo"
    with pytest.raises(ValueError, match=r"log.wandb is 'zoo'.*contrastive_jax\[wandb\]"):
        runs.prepare(config)


def test_a_long_run_holds_little_of_what_it_has_written(tmp_path):
    """What is there of a record, its step and its names, is 4 kB where every record has a set of names of its own."""
    names, records = [f"metric/{i}" for i in range(60)], 500
    with Logbook(tmp_path) as book:
        book.write(1, 0.0, dict.fromkeys(names, 1.0))
        tracemalloc.start()
        for step in range(2, 2 + records):
            book.write(step, 0.0, dict.fromkeys(names, 1.0))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 1000 * records
