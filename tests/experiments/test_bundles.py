"""Runs of a table as one program: what they leave is what each leaves by itself."""

import json
import os
import pathlib
import shutil
import sys
import types

import pytest

from contrastive_jax.workdir import locks
from experiments.harness import jobs, records, results, running
from experiments.harness.table import Table

NAME = "experiments.flatnce.made_up"
LEAN = (
    """ --config.evaluators='{"knn": {"name": "knn"}}' --config.evaluate.rows="('trained',)\""""
    " --config.encoder.width=0.125"
    " --config.log.tensorboard=False --config.log.every=2 --config.train.duration='4 steps'"
)


def run_of(method):
    return f"configs/digits.py:method={method},scale=smoke{LEAN}"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Two temperatures and another method, two seeds each, in a folder of its own."""
    taus = {(f"tau {tau}", "x"): f"{run_of('flatclr')} --config.temperature.tau={tau}" for tau in (0.1, 0.3)}
    runs = {"smoke": taus | {("SimCLR", "x"): f"{run_of('flatclr')} --config.loss=info_nce"}}
    metric = {"kNN top-1, %": "trained.knn.top1 %"}
    made = Table(NAME, "A table.\n", runs=runs, metric=metric, seeds={"smoke": (0, 1)})
    monkeypatch.setitem(sys.modules, NAME, types.SimpleNamespace(TABLE=made))
    for other in (jobs, running):
        monkeypatch.setattr(other, "ROOT", tmp_path)
    monkeypatch.setattr(records, "folder", lambda: tmp_path / "records")
    monkeypatch.setattr(jobs, "all_tables", lambda: [NAME])
    return made


def test_what_differs_in_numbers_only_is_bundled(table):
    found = running.bundles(jobs.jobs(table, "smoke"))
    assert [[job.cell[0] for job in together] for together in found] == [["tau 0.1", "tau 0.3"], ["SimCLR"]]


def test_workers_share_the_gpus_there_are(table, monkeypatch):
    seen = []

    class Popen:
        def __init__(self, arguments, env, **_):
            seen.append((env.get("CUDA_VISIBLE_DEVICES"), env.get("XLA_PYTHON_CLIENT_PREALLOCATE")))

        def wait(self):
            return 0

    monkeypatch.setattr(running.subprocess, "Popen", Popen)
    for name in ("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.delenv(name, raising=False)
    (job, *_) = jobs.jobs(table, "smoke")
    for devices, slot, workers in ((0, 1, 2), (1, 1, 2), (2, 1, 2), (1, 0, 1)):
        monkeypatch.setattr(running, "accelerators", lambda count=devices: count)
        running._worker([job], 1, slot, workers, set())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    monkeypatch.setattr(running, "accelerators", lambda: 2)
    running._worker([job], 1, 1, 2, set())
    assert seen == [(None, None), ("0", "false"), ("1", None), (None, None), ("5", None)]


@pytest.mark.parametrize(("devices", "most"), [(0, 1), (2, running.AT_ONCE)])
def test_a_host_has_a_worker_for_each_accelerator_or_else_each_core(devices, most, table, monkeypatch):
    taken = []
    monkeypatch.setattr(running, "accelerators", lambda: devices)
    monkeypatch.setattr(
        running, "_here", lambda todo, replicas, workers, options: taken.append((workers, replicas)) or []
    )
    running.run(lambda: jobs.jobs(table, "smoke"), None, "here", {})
    assert taken == [(devices or len(os.sched_getaffinity(0)), most)]


@pytest.fixture
def fake(monkeypatch):
    """Replicas that end at once, each with its temperature for a result; how many were trained at a time."""
    trained = []

    def train(configs, workdir, *, source):
        trained.append(len(configs))
        for number, config in enumerate(configs):
            here = pathlib.Path(workdir, f"replica_{number}")
            here.mkdir(parents=True)
            top1 = {"evaluations": {"trained": {"knn": {"top1": config["temperature"]["tau"]}}}}
            (here / "config.json").write_text("{}")
            (here / "result.json").write_text(json.dumps(top1))
        return [top1] * len(configs)

    monkeypatch.setattr("contrastive_jax.training.loop.train", train)
    monkeypatch.setattr(running.packs, "source_of", lambda config: None)
    return trained


def test_what_ended_together_and_was_interrupted_on_its_way_is_put_into_its_places(
    table, tmp_path, fake, monkeypatch
):
    together = running.bundles(jobs.jobs(table, "smoke"))[0]
    moved, move = [], shutil.move

    def interrupted(here, place):
        if len(moved) == 1:
            raise KeyboardInterrupt
        moved.append(move(here, place))

    together[0].folder(0).mkdir(parents=True)
    for name in (locks.LOCK, locks.HOLDER):  # of a run that was killed before it began
        (together[0].folder(0) / name).touch()
    monkeypatch.setattr(shutil, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.run_jobs(together, replicas=4)
    monkeypatch.setattr(shutil, "move", move)
    running.put_ended(running.left(jobs.jobs(table, "smoke")[2:]))  # another worker's runs
    assert not together[0].done()
    running.run_jobs(together, replicas=1)
    assert fake == [4] and all(job.done() for job in together)
    assert [job.result(1)["evaluations"]["trained"]["knn"]["top1"] for job in together] == [0.1, 0.3]
    assert not list((tmp_path / "runs" / "experiments" / "together").iterdir())


def test_those_that_were_interrupted_together_go_on_together(table, fake):
    runs = running.left(running.bundles(jobs.jobs(table, "smoke"))[0])
    file = running._folder() / f"begun{running.BEGUN}"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps([[run.job.key, run.seed] for run in (runs[3], runs[1])]))
    assert running.parts(runs, 4) == [[runs[3], runs[1]], [runs[0], runs[2]]]
    assert running.parts(runs[:3], 4) == [runs[:3]]  # one of them is not asked for
    assert running.parts(runs, 1) == [[run] for run in runs]  # so many do not fit


@pytest.mark.run
def test_a_bundle_leaves_what_the_runs_leave_by_themselves(table, tmp_path, capsys):
    together = running.bundles(jobs.jobs(table, "smoke"))[0]
    running.run_jobs(together, replicas=3)  # three of four together, the last by itself
    assert "3 replicas of batches" in capsys.readouterr().out
    assert all(job.done() for job in together)
    assert jobs.collect(table, "smoke") == 2
    assert not list((tmp_path / "runs" / "experiments" / "together").iterdir())
    cells = results.Results(table, "smoke").cells
    assert {seed for run in cells.values() for seed in run["seeds"]} == {"0", "1"}
    kept = [records.read(job.key)["seeds"]["0"] for job in together]
    assert kept[0].keys() == kept[1].keys() and kept[0] != kept[1]
    assert json.loads((together[1].folder(0) / "config.json").read_text())["temperature"]["tau"] == 0.3
    assert running.left(together) == []


@pytest.mark.run
def test_a_run_that_diverges_has_no_result_and_the_others_have(table, tmp_path):
    wild = f"{run_of('flatclr')} --config.schedule.learning_rate=1e30"
    table.runs["smoke"] = {("wild", "x"): wild, ("tame", "x"): run_of("flatclr")}
    (together,) = running.bundles(jobs.jobs(table, "smoke"))
    with pytest.raises(RuntimeError, match=r"wild.*seed 0: .*not finite.*; .*wild.*seed 1"):
        running.run_jobs(together, replicas=4)
    assert [job.done() for job in together] == [False, True]
    jobs.collect(table, "smoke")
    assert list(results.Results(table, "smoke").cells) == [("tame", "x")]
    assert not list((tmp_path / "runs" / "experiments" / "together").iterdir())


@pytest.mark.run
def test_what_are_no_replicas_runs_one_by_one(table, capsys):
    runs = running.left(jobs.jobs(table, "smoke"))
    other = [runs[0], next(run for run in runs if run.job.cell[0] == "SimCLR")]
    assert running.run_together(other) == (other, [])
    assert "one by one: loss." in capsys.readouterr().out
