"""The harness of the papers' tables, on made-up runs: what is left to do, what is kept, what a page and a claim say."""

import contextlib
import dataclasses
import functools
import json
import math
import re
import signal
import sys
import types

import pytest

from contrastive_jax.training.run import source_of
from experiments import harness
from experiments.harness import cli, flat, gates, jobs, ledger, pages, records, results, running
from experiments.harness import table as tables
from experiments.harness.cli import command_line
from experiments.harness.table import Claim, Table

NAME = "experiments.paper.table_1"
ARGUMENTS = "configs/x.py:scale=cpu --config.method={}"
DEFAULTS = {"name": "x", "method": "c", "lr": "0.5", "data.validation": "0"}
METRIC = {"top-1, %": "trained.linear.top1 %", "ESS": "metrics.ess", "top-5, %": None}


def config_of(arguments):
    """A config of a few leaves; the file's own argument ``m=a`` is another word for ``--config.method=a``."""
    file, *overrides = arguments.split()
    leaves = DEFAULTS | {"method": file.partition("m=")[2] or DEFAULTS["method"]}
    return leaves | dict(text.removeprefix("--config.").split("=") for text in overrides)


def made(name, monkeypatch, runs, **fields):
    """A table, made up."""
    about = "A table of a paper.\n\nWhat it says.\n"
    module = types.SimpleNamespace(TABLE=Table(name, about, runs=runs, metric=dict(METRIC), **fields))
    monkeypatch.setitem(sys.modules, name, module)
    return module.TABLE


def changed(table, **fields):
    """The table with other fields, under its name."""
    sys.modules[table.name].TABLE = dataclasses.replace(table, **fields)
    return tables.table_of(table.name)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of two rows and one column in a folder of its own, with nothing run."""
    for module in (tables, results, records, pages, jobs, running, ledger):
        if hasattr(module, "ROOT"):
            monkeypatch.setattr(module, "ROOT", tmp_path)
        if hasattr(module, "config_of") and module is not tables:
            monkeypatch.setattr(module, "config_of", config_of)
    runs = {"cpu": {("A", "x"): ARGUMENTS.format("a"), ("B", "x"): ARGUMENTS.format("b")}}
    runs["paper"] = {cell: f"{text} --config.lr=9" for cell, text in runs["cpu"].items()}
    monkeypatch.setattr(jobs, "all_tables", lambda: [NAME])
    records.key_of.cache_clear()
    yield made(NAME, monkeypatch, runs, curves=("ess",))
    records.key_of.cache_clear()


def finish(job, seed, top1, ess=0.5, **others):
    """What a run leaves behind that has ended."""
    folder = job.folder(seed)
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "evaluations": {
            "trained": {"linear": {"top1": top1, "protocol": "a protocol", "settings": {"C": 1}}} | others
        },
        "metrics": {"ess": ess},
        "seconds": 1.0,
        "device": {"kind": "cpu"},
        "versions": {"jax": "0"},
        "git_commit": None,
    }
    (folder / "result.json").write_text(json.dumps(result))
    rows = [{"epoch": float(e), "ess": ess * e} for e in (1, 2)] + [{"epoch": 2.0, "eval/knn_top1": 0.5}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def gone(root):
    """The runs themselves are no longer here: a fresh clone."""
    (root / "runs" / "experiments").rename(root / "runs" / "gone")


def all_done(table, scale="cpu", of_a=(0.5, 0.6, 0.7), of_b=(0.4, 0.4, 0.4)):
    for row, values in (("A", of_a), ("B", of_b)):
        for seed, value in enumerate(values):
            finish(jobs.Job(NAME, scale, (row, "x")), seed, value)
    return jobs.collect(table, scale)


def test_collected_runs_are_read_by_seed_and_paired(table):
    all_done(table)
    found = harness.Results(table, "cpu")
    assert found.values("A", "x") == pytest.approx({"0": 50, "1": 60, "2": 70})
    assert found.mean("A", "x") == pytest.approx(60)
    assert found.differences(("A", "x"), ("B", "x")) == pytest.approx([10, 20, 30])
    assert found.values("A", "x", "ESS") == {"0": 0.5, "1": 0.5, "2": 0.5}
    assert found.values("A", "x", "top-5, %") == {} and found.values("C", "x") == {}
    assert math.isnan(found.mean("C", "x"))
    assert found.curve("A", "x", "ess")["1"] == ([1.0, 2.0], [0.5, 1.0])
    with pytest.raises(KeyError, match=r"trained\.knn: no 'knn' among linear"):
        found.values("A", "x", "trained.knn")


def test_a_curve_is_of_finite_numbers(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"epoch": 1, "ess": "NaN"}\n{"epoch": 2, "ess": 0.5}\n{"epoch": 3}\n'
    )
    assert records.curves(tmp_path / "metrics.jsonl", ["ess"]) == {"ess": [[2.0], [0.5]]}
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"epoch": {e}, "ess": 1}}\n' for e in range(1, 101)))
    epochs, _ = records.curves(tmp_path / "metrics.jsonl", ["ess"])["ess"]
    assert len(epochs) <= 61 and epochs[0] == 1 and epochs[-1] == 100


def test_a_number_that_is_not_finite_is_kept_and_a_fit_that_did_not_converge_judges_nothing(table):
    claim = Claim("A beats B", "A - B", lambda r: r.differences(("A", "x"), ("B", "x")))
    table = changed(table, claims=(claim,))
    job = jobs.Job(NAME, "cpu", ("A", "x"))
    scores = {0: {"top1": "NaN"}, 1: {"top1": 0.6, "converged": True}, 2: {"top1": 0.7, "converged": False}}
    for seed, score in scores.items():
        finish(job, seed, 0.5, linear=score)
        finish(jobs.Job(NAME, "cpu", ("B", "x")), seed, 0.4)
    jobs.collect(table, "cpu")
    found = harness.Results(table, "cpu")
    assert found.values("A", "x") == pytest.approx({"0": math.nan, "1": 60, "2": 70}, nan_ok=True)
    assert math.isnan(next(row for row in flat.rows() if row["record"] == job.key)["trained.linear.top1"])
    assert ledger.ledger_rows(table)[0].verdict().endswith("a number of the evidence is not finite")
    for kept in (0, 1):
        record = records.read(job.key)
        del record["seeds"][str(kept)]
        records.write(job.key, record)
        finish(job, kept, 0.5 + 0.01 * kept)
    jobs.collect(table, "cpu")
    assert ledger.ledger_rows(table)[0].verdict() == "**cannot be judged here**: not converged: A, x"


def test_what_is_compared_is_of_the_seeds_that_all_have(table, tmp_path):
    for cell, seeds in (("A", (0, 1)), ("B", (1, 2))):
        for seed in seeds:
            finish(jobs.Job(NAME, "cpu", (cell, "x")), seed, 0.1 * (seed + 1) + 0.5 * (cell == "B"))
    jobs.collect(table, "cpu")
    found = harness.Results(table, "cpu")
    assert set(found.values("A", "x")) == {"0", "1"} and set(found.values("B", "x")) == {"1", "2"}
    paired = found.paired({("A", "x"), ("B", "x")})
    assert paired.values("A", "x") == pytest.approx({"1": 20}) and paired.values("B", "x") == pytest.approx(
        {"1": 70}
    )
    paired = found.paired({("A", "x")})
    assert set(paired.values("A", "x")) == {"0", "1"} and set(paired.values("B", "x")) == {"1", "2"}


def test_a_run_is_done_once(table):
    assert len(jobs.jobs(table, "cpu")) == 2
    for seed in range(3):
        finish(jobs.Job(NAME, "cpu", ("A", "x")), seed, 0.5)
    assert [job.cell for job in jobs.jobs(table, "cpu")] == [("B", "x")]


def test_kept_runs_serve_every_table_that_asks_for_them_in_any_words(table, tmp_path, monkeypatch):
    all_done(table)
    gone(tmp_path)
    assert jobs.jobs(table, "cpu") == []
    runs = {"cpu": {("other words", "x"): "configs/x.py:scale=cpu,m=a", ("C", "x"): ARGUMENTS.format("c")}}
    other = made("experiments.paper.figure_1", monkeypatch, runs)
    assert harness.Results(other, "cpu").values("other words", "x") == pytest.approx(
        {"0": 50, "1": 60, "2": 70}
    )
    assert [job.cell for job in jobs.jobs(other, "cpu")] == [("C", "x")]
    assert "--config=configs/x.py:scale=cpu,m=a --config.seed=0" in pages.text(other)  # its own words
    other = changed(other, seeds={"cpu": (0, 1, 2, 3)})
    assert {job.cell for job in jobs.jobs(other, "cpu")} == {
        ("other words", "x"),
        ("C", "x"),
    }  # a seed is left
    other = changed(other, seeds={"cpu": (2, 1)})
    assert "--config=configs/x.py:scale=cpu,m=a --config.seed=2" in pages.text(other)  # one that it has


def test_seeds_that_ran_elsewhere_stay_and_what_has_other_numbers_here_is_told(table, tmp_path, capsys):
    table = changed(table, seeds={"cpu": (0, 1, 2, 3)})
    all_done(table)
    gone(tmp_path)
    job = jobs.Job(NAME, "cpu", ("A", "x"))
    finish(job, 1, 0.9)
    finish(job, 3, 0.8)
    file = job.folder(3) / "result.json"
    elsewhere = {"device": {"kind": "H100"}, "git_commit": "b" * 40}
    file.write_text(json.dumps(json.loads(file.read_text()) | elsewhere))
    jobs.collect(table, "cpu")
    commits = {row["seed"]: row.get("git_commit") for row in flat.rows() if row["record"] == job.key}
    assert commits == {0: None, 1: None, 2: None, 3: "b" * 40}
    assert "A | x, seed 1: the record has other numbers than" in capsys.readouterr().out
    known = harness.Results(table, "cpu").values("A", "x")
    assert known == pytest.approx({"0": 50, "1": 60, "2": 70, "3": 80})
    assert "cpu, jax 0; H100, jax 0." in pages.text(table)
    finish(job, 3, 0.8, knn={"top1": 0.7})  # judged again by a new column: what both have is the same
    jobs.collect(table, "cpu")
    assert records.read(job.key)["seeds"]["3"]["evaluations"]["trained"]["knn"] == {"top1": 0.7}


def test_a_record_that_is_cut_off_is_named(table):
    all_done(table)
    file = records.folder() / f"{jobs.Job(NAME, 'cpu', ('A', 'x')).key}.json"
    for text in (file.read_text()[:99], '{"seeds": {}}'):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"{file.name} is no record"):
            harness.Results(table, "cpu")


def test_collect_takes_the_cells_that_are_asked_for(table):
    for row in "AB":
        finish(jobs.Job(NAME, "cpu", (row, "x")), 0, 0.5)
    harness.cli.command_line(["collect", "--cells=A"], [table], "")
    assert set(harness.Results(table, "cpu").cells) == {("A", "x")}


@pytest.mark.parametrize("change", ["an override is dropped", "another value", "a default", "a new leaf"])
def test_kept_numbers_are_of_the_config_that_they_were_measured_with(table, tmp_path, monkeypatch, change):
    text = ARGUMENTS.format("a") + " --config.lr=0.1"
    table.runs["cpu"]["A", "x"] = text
    all_done(table)
    gone(tmp_path)
    assert jobs.stale() == [] and set(harness.Results(table, "cpu").cells) == {("A", "x"), ("B", "x")}
    if change == "a default":
        monkeypatch.setitem(DEFAULTS, "method", "d")  # of which neither is made
        monkeypatch.setitem(DEFAULTS, "data.validation", "0.5")
        left, words = set(), "data.validation was '0', is '0.5'"
    elif change == "a new leaf":
        monkeypatch.setitem(DEFAULTS, "clip", "1")
        left, words = set(), "clip was 'not there', is '1'"
    elif change == "another value":
        table.runs["cpu"]["A", "x"] = text.replace("0.1", "0.2")
        left, words = {("B", "x")}, "no table asks for it"
    else:
        table.runs["cpu"]["A", "x"] = ARGUMENTS.format("a")
        left, words = {("B", "x")}, "no table asks for it"
    records.key_of.cache_clear()
    assert set(harness.Results(table, "cpu").cells) == left
    stale = jobs.stale()
    assert len(stale) == 2 - len(left) and all(words in sentence for sentence in stale)
    if change == "a new leaf":
        monkeypatch.setitem(records.SINCE, "clip", "1")  # as it was before there was the leaf
        records.key_of.cache_clear()
        assert set(harness.Results(table, "cpu").cells) == {("A", "x"), ("B", "x")} and jobs.stale() == []


def test_a_record_that_was_edited_is_noticed(table):
    all_done(table)
    file = sorted(records.folder().glob("*.json"))[0]
    file.write_text(file.read_text().replace('"lr": "0.5"', '"lr": "0.6"'))
    assert jobs.stale() == [f"{file.name}: its config is not that of its name"]


def test_a_result_whose_column_failed_is_none(table, tmp_path, monkeypatch):
    job = jobs.Job(NAME, "cpu", ("A", "x"))
    for seed in range(3):
        finish(job, seed, 0.5, knn={"failed": "no room"})
    assert job.done()  # nobody reads that column
    jobs.collect(table, "cpu")
    table.metric["kNN, %"] = "trained.knn.top1 %"
    assert not job.done() and not harness.Results(table, "cpu")
    assert "kNN" not in pages.text(table)
    called = []
    monkeypatch.setattr("contrastive_jax.native.keep_pages", lambda: called.append("pages"))

    def train(config, workdir, **options):
        called.append(workdir)
        return json.loads((job.folder(0) / "result.json").read_text())

    monkeypatch.setattr("contrastive_jax.training.loop.train", train)
    with pytest.raises(
        RuntimeError, match=r"seed 0 is trained, and not judged: trained.knn.top1 %: no room.*seed 2"
    ):
        running.run_jobs([job])  # one that fails does not stop the others
    assert called == [
        "pages",
        *map(str, map(job.folder, range(3))),
    ]  # steps keep their memory, as the command's do


def test_one_run_for_all_tables_that_ask_for_it(table, tmp_path, monkeypatch):
    """Two workers in one workdir would meet."""
    other = made(
        "experiments.paper.figure_1",
        monkeypatch,
        {"cpu": {("a", "y"): "configs/x.py:scale=cpu,m=a"}},
    )
    other = changed(other, seeds={"cpu": (0, 1, 2, 3)})
    both = [*jobs.jobs(table, "cpu"), *jobs.jobs(other, "cpu")]
    once = jobs.distinct(both)
    assert len(both) == 3 and len(once) == 2 == len({job.folder(0) for job in once})
    assert once[0].seeds() == (0, 1, 2, 3)  # the one of more seeds
    seen = []
    monkeypatch.setattr(
        running,
        "_here",
        lambda new, *_: seen.append([j.key for together in new for j in together]) or ["a reason"],
    )
    running.run(lambda: both, 8, "here", {}, replicas=1)
    assert [len(keys) for keys in seen] == [2]  # what failed is not tried again for the other table


def test_a_sweep_chooses_on_the_validation_part_and_reads_no_other(table, monkeypatch):
    table = changed(table, sweep={"cpu": {"lr": (0.1, 0.3)}})
    cell = ("A", "x")
    choosing = [job for job in jobs.jobs(table, "cpu") if job.cell == cell]
    assert [job.point for job in choosing] == [(("lr", 0.1),), (("lr", 0.3),)]
    assert all("--config.data.validation=0.2" in job.arguments() for job in choosing)
    assert all(job.seeds() == (jobs.CHOOSING,) for job in choosing)
    finish(choosing[0], jobs.CHOOSING, 0.9)
    assert jobs.choose(table, "cpu", cell) is None  # one point is missing
    finish(choosing[1], jobs.CHOOSING, 0.8)
    for lr, top1 in ((0.1, 0.2), (0.3, 0.99)):  # on the test images it would be the other
        finish(jobs.Job(NAME, "cpu", cell, (("lr", lr),)), 0, top1)
    read, result = [], jobs.Job.result
    monkeypatch.setattr(jobs.Job, "result", lambda job, seed: read.append(job) or result(job, seed))
    assert jobs.choose(table, "cpu", cell) == (("lr", 0.1),)
    assert read and not any(job.chosen for job in read)
    (job,) = [job for job in jobs.jobs(table, "cpu") if job.cell == cell]
    assert job.chosen and job.seeds() == (0, 1, 2)
    assert job.arguments().endswith("--config.lr=0.1")


def test_a_sweep_may_choose_by_what_judges_at_its_scale(table):
    table = changed(table, sweep={"cpu": {"lr": (0.1, 0.3)}}, chooses={"cpu": "trained.few_labels.top1 %"})
    cell = ("A", "x")
    first, second = jobs.choosing(table, "cpu", cell)
    finish(first, jobs.CHOOSING, 0.9, few_labels={"top1": 0.5})
    finish(second, jobs.CHOOSING, 0.8, few_labels={"top1": 0.6})
    assert jobs.choose(table, "cpu", cell) == second.point
    assert results.Results(table, "cpu").swept(*cell) == [[50.0], [60.0]]
    table = changed(table, chooses={"small": "trained.few_labels.top1 %"})
    assert jobs.choose(table, "cpu", cell) == first.point


def test_a_small_sweep_goes_on_beyond_its_edge_twice_at_most(table):
    table.runs["small"] = dict(table.runs["cpu"])
    table = changed(table, sweep={"small": {jobs.RATE: (0.1, 0.2, 0.4)}})

    def tried(row):
        found = jobs.choosing(table, "small", (row, "x"))
        return [dict(job.point)[jobs.RATE] for job in found], found

    for row, tops in (("A", (0.6, 0.5, 0.5)), ("B", (0.5, 0.6, 0.5))):
        assert tried(row)[0] == [0.1, 0.2, 0.4]
        for job, top1 in zip(tried(row)[1], tops, strict=True):
            finish(job, jobs.CHOOSING, top1)
    assert tried("B")[0] == [0.1, 0.2, 0.4] and jobs.choose(table, "small", ("B", "x")) == ((jobs.RATE, 0.2),)
    assert tried("A")[0] == [0.1, 0.2, 0.4, 0.05] and jobs.choose(table, "small", ("A", "x")) is None
    finish(tried("A")[1][-1], jobs.CHOOSING, 0.7)
    assert tried("A")[0][-1] == 0.025
    finish(tried("A")[1][-1], jobs.CHOOSING, 0.8)
    assert len(tried("A")[0]) == 5 and jobs.choose(table, "small", ("A", "x")) == ((jobs.RATE, 0.025),)
    assert jobs.collect(table, "small") == 8 and jobs.stale() == []
    table = changed(table, further=1)
    assert tried("A")[0] == [0.1, 0.2, 0.4, 0.05]


def test_several_seeds_may_choose_and_all_have_to_have_run(table):
    table = changed(table, sweep={"cpu": {"lr": (0.1, 0.3)}}, choosing_seeds={"cpu": 2})
    cell, seeds = ("A", "x"), (jobs.CHOOSING, jobs.CHOOSING + 1)
    first, second = jobs.choosing(table, "cpu", cell)
    assert first.seeds() == seeds
    for job, tops in ((first, (0.9, 0.1)), (second, (0.6, 0.5))):
        assert jobs.choose(table, "cpu", cell) is None and results.Results(table, "cpu").swept(*cell) == []
        for seed, top1 in zip(seeds, tops, strict=True):
            finish(job, seed, top1)
    assert jobs.choose(table, "cpu", cell) == second.point  # in the mean over both
    assert results.Results(table, "cpu").swept(*cell) == [pytest.approx([90, 10]), pytest.approx([60, 50])]


def test_a_point_that_diverged_is_the_worst(table, monkeypatch):
    from contrastive_jax.training import recorder

    table = changed(table, sweep={"cpu": {"lr": (0.1, 0.3)}})
    cell = ("A", "x")
    first, second = jobs.choosing(table, "cpu", cell)

    def train(config, workdir, **options):
        raise recorder.Diverged("step 3: not finite")

    monkeypatch.setattr("contrastive_jax.training.loop.train", train)
    second.folder(jobs.CHOOSING).mkdir(parents=True)
    running.run_jobs([second])
    assert second.done() and jobs.choose(table, "cpu", cell) is None
    finish(first, jobs.CHOOSING, 0.01)
    assert jobs.choose(table, "cpu", cell) == first.point
    jobs.collect(table, "cpu")
    assert "| A | x | lr | **0.1: 1**; 0.3: diverged |" in pages.text(table)
    assert records.read(second.key)["seeds"] == {str(jobs.CHOOSING): {"diverged": "step 3: not finite"}}
    final = jobs.Job(NAME, "cpu", cell, first.point)
    final.folder(0).mkdir(parents=True)
    with pytest.raises(RuntimeError, match="seed 0: step 3.*seed 1: step 3"):  # there is no number to show
        running.run_jobs([final])


def test_a_sweep_of_which_all_diverged_says_so(table):
    table = changed(table, sweep={"cpu": {"lr": (0.1, 0.3)}})
    cell = ("A", "x")
    assert jobs.without_choice(table, "cpu") == []
    for job in jobs.choosing(table, "cpu", cell):
        job.folder(jobs.CHOOSING).mkdir(parents=True)
        job.diverged(jobs.CHOOSING, "step 3")
    assert [job.cell for job in jobs.jobs(table, "cpu")] == [("B", "x")] * 2
    assert jobs.without_choice(table, "cpu") == [
        "paper.table_1 A | x: every point of its sweep diverged; widen it."
    ]


def test_one_failing_cell_does_not_stop_the_rest(table, monkeypatch):
    seen = []

    def worker(together, *_):
        (job,) = together
        seen.append(job.cell)
        if job.cell == ("A", "x"):
            return "exit status 1: a reason"
        for seed in job.seeds():
            finish(job, seed, 0.5)

    monkeypatch.setattr(running, "_worker", worker)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        failures = running.run(lambda: jobs.jobs(table, "cpu"), 1, "here", {}, replicas=1)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert failures == ["paper.table_1 A | x: exit status 1: a reason"]
    assert seen == [("A", "x"), ("B", "x")]  # each once, the failed one not again
    assert jobs.collect(table, "cpu") == 1 and set(harness.Results(table, "cpu").cells) == {("B", "x")}


def test_the_plan_of_a_measured_table_names_no_runs(capsys):
    table = harness.table_of("experiments.macl.figure_3")
    assert cli.command_line(["plan", "--scale=paper"], [table], None) == 0
    assert capsys.readouterr().out == f"{table.path}: no runs; `run` measures in this process\n"


def test_a_table_without_runs_names_what_it_needs(capsys):
    """And a verb leaves the process's handling of signals as it was."""
    table, before = harness.table_of("experiments.flatnce.figure_3"), signal.getsignal(signal.SIGPIPE)
    with pytest.raises(SystemExit):
        cli.command_line(["plan", "--scale=paper"], [table], None)
    assert signal.getsignal(signal.SIGPIPE) == before == signal.SIG_IGN
    assert (
        "the table has no runs here; it needs one host with 1, 2 and 4 equal GPUs" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run --scale=gpu", "no cell at --scale=gpu; there are cells at paper, cpu"),
        ("run --cells=C", "--cells=C finds no cell at --scale=cpu"),
        ("plan --cells=(", "'(' is no regular expression"),
        ("run --workers=0", "'0' is not a number of at least 1"),
        ("run --replicas=many", "'many' is not a number"),
        ("run --set workers", "'workers' is not NAME=VALUE"),
    ],
)
def test_a_command_that_would_do_nothing_is_refused(table, arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        command_line(arguments.split(), [table], "")
    assert said in capsys.readouterr().err


def test_a_job_of_a_cluster_has_a_gpu_and_a_day(table, monkeypatch, capsys):
    asked = []

    class Executor(contextlib.nullcontext):
        cluster = "slurm"

        def __init__(self, **_):
            super().__init__()
            self.batch = lambda: self

        def update_parameters(self, **options):
            asked.append(options)

        def submit(self, function, jobs, replicas):
            asked[-1]["replicas"] = replicas
            return types.SimpleNamespace(exception=lambda: None)

    table.runs["gpu"] = dict(table.runs["cpu"])
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        command_line(["run", "--cluster=slurm"], [table], "")
    assert "pip install submitit" in capsys.readouterr().err
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "submitit", types.SimpleNamespace(AutoExecutor=Executor))
    for arguments in (
        "--scale=gpu",
        "--scale=cpu --workers=3 --set=timeout_min=5 --set=slurm_partition=long",
    ):
        command_line(["run", "--cluster=slurm", *arguments.split()], [table], "")
    assert asked[0] == {"timeout_min": 1440, "gpus_per_node": 1, "replicas": 32}
    few = {"timeout_min": 5, "slurm_partition": "long", "slurm_array_parallelism": 3}
    assert asked[1].items() >= few.items() and "gpus_per_node" not in asked[1]


def test_a_lost_number_stays_empty_and_a_doubtful_one_is_marked(table):
    top1 = {("A", "x"): None, ("B", "x"): harness.doubtful(54.62), ("C", "y"): 3.0}
    table = changed(table, reported={"top-1, %": top1, "top-5, %": {("A", "x"): 80.0}})
    page = pages.render(table)
    assert "| A | — / — |" in page and "| B | — / 54.62 ? |" in page
    assert re.search(r"\| C \|.*— / 3.00 \|", page)
    assert "| A | — / 80 |" in page
    all_done(table, "paper")
    page = pages.render(table)
    assert "| A | 60.0 ± 10.0 (3) / — |" in page  # ours, and no number beside it
    assert "| B | 40.0 ± 0.0 (3) / 54.62 ? |" in page
    assert pages.page_of(table).read_text() == page == pages.text(table)
    assert (
        "python -m contrastive_jax.main --config=configs/x.py:scale=cpu --config.method=a --config.lr=9 --config.seed=0"
        in page
    )


def test_predictions_stand_before_what_was_read_of_them_round_by_round(table):
    table = changed(table, predicted=("\nAll fall.\n", "None falls."), read_after="They rise.")
    assert "What it says.\n\nAll fall.\n\nThey rise.\n\nNone falls.\n\n## Scale" in pages.text(table)


def test_a_page_says_what_was_not_run(table):
    assert "Not run at this scale." in pages.text(table)
    del table.runs["cpu"]
    assert "`cpu`" not in pages.text(table)


def test_a_path_meets_one_name_or_says_so():
    result = {"evaluations": {"trained": {"linear": {"top1": 0.1}, "linear@11": {"top1": 0.2}}}}
    assert records.pick(result, "trained.linear@*|linear.top1 %") == pytest.approx(20)
    assert records.pick(result, "trained.knn|linear.top1") == 0.1
    result["evaluations"]["trained"]["linear@23"] = {"top1": 0.3}
    with pytest.raises(KeyError, match=r"'linear@\*\|linear' is any of linear@11, linear@23"):
        records.pick(result, "trained.linear@*|linear.top1 %")
    with pytest.raises(KeyError, match=r"no 'knn' among linear, linear@11, linear@23"):
        records.pick(result, "trained.knn.top1")


@pytest.mark.parametrize(
    "arguments",
    [
        "configs/saturation.py:bits=5,scale=smoke",
        "configs/randbit_mnist.py:bits=3,scale=smoke",
        "configs/multidigits.py:scale=smoke",
        "configs/flatclr_cifar10.py:scale=smoke",
        "configs/flatclr_cifar10.py:scale=smoke --config.data.validation=0.2",
    ],
)
def test_a_plan_counts_the_images_that_are_trained_on(arguments):
    config = tables.config_of(arguments)
    images = source_of(config).train
    examples, channels = cli.images_of(config)
    assert channels == images.shape[2]
    assert examples == pytest.approx(len(images), rel=0.002)  # a validation part is stratified


def test_a_plan_has_every_run_once_and_a_sweeps_final_ones(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "cost", lambda *_: 1.0)
    table = changed(table, sweep={"cpu": {"A": {"lr": (0.1, 0.3)}}})
    runs = {"cpu": {("b", "y"): "configs/x.py:scale=cpu,m=b"}}
    other = made("experiments.paper.figure_1", monkeypatch, runs)
    both = {one.name: list(one.runs["cpu"]) for one in (table, other)}
    cli.plan([table, other], both, "cpu", "a100", 0.35, 2.0)
    said, *lines = capsys.readouterr().out.splitlines()
    assert said == "scale cpu (others: paper)"
    assert lines[2].endswith(": 3 of 3 runs left, 1.00 hours each")
    assert [line.partition(":")[0] for line in lines] == [
        "paper.table_1 A | x | lr=0.1 | choosing",
        "paper.table_1 A | x | lr=0.3 | choosing",
        "paper.table_1 B | x",
        "paper.table_1 A | x | lr=0.1",
        "4 cells, 8.0 device-hours, 16 at 2 an hour (FLOPs of training at 35% of one a100's published"
        " peak, which is assumed; judging not counted)",
    ]
    cli.plan([table, other], {table.name: [("B", "x")], other.name: []}, "cpu", "a100", 0.35, 0.0)
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()[1:-1]] == [
        "paper.table_1 B | x"
    ]


def test_claims_are_judged_at_the_largest_scale_that_can(table):
    claims = (
        Claim("A beats B", "A - B, points", lambda r: r.differences(("A", "x"), ("B", "x"))),
        Claim("nobody looked", needs="a telescope"),
    )
    table = changed(table, claims=claims)
    assert [(row.text, row.evidence, row.verdict()) for row in ledger.ledger_rows(table)] == [
        ("A beats B", "A - B, points", "not tested"),
        ("nobody looked", "—", "not tested: a telescope"),
    ]
    all_done(table, of_a=(0.5, 0.51, 0.52))
    before = ledger.ledger_rows(table)[0]
    assert before.verdict() == "**holds**" and before.evidence.startswith("A - B, points: +11 [")
    assert before.evidence.endswith("(n = 3, cpu)")
    finish(jobs.Job(NAME, "paper", ("A", "x")), 0, 0.5)
    jobs.collect(table, "paper")  # one cell, and nothing to compare it with
    assert ledger.ledger_rows(table)[0] == before
    finish(jobs.Job(NAME, "paper", ("B", "x")), 0, 0.4)
    jobs.collect(table, "paper")
    assert ledger.ledger_rows(table)[0] == before  # one seed of each, which judges nothing
    table.runs["cpu"] = {}
    row = ledger.ledger_rows(table)[0]
    assert row.evidence == "A - B, points: +10 (n = 1, paper)"
    assert row.verdict() == "**cannot be judged here**: one seed is no sample; 1 of 3 seeds"


def test_where_all_labels_leave_no_room_ten_a_class_judge_and_the_neighbours_do_not(table, monkeypatch):
    rooms = {False: 90.5, True: 99.0}  # supervised training, by all labels and by ten a class
    monkeypatch.setattr(gates, "levels", lambda _, few: {"supervised": rooms[few], "baseline": 10.0})
    table.runs["small_mnist"] = table.runs.pop("cpu")
    metric = {"linear": "trained.linear.top1 %", "knn": "trained.knn.top1 %"}
    claims = tuple(  # of equality, as room is not asked of an effect that is decided
        Claim("A is B", name, functools.partial(differing, name), "within", 9.0, gates=(gates.headroom,))
        for name in metric
    )
    table = changed(table, seeds={"small_mnist": (0, 1, 2)}, metric=metric, claims=claims)
    for row, few in (("A", (0.85, 0.86, 0.87)), ("B", (0.80, 0.80, 0.81))):
        for seed, top1 in enumerate(few):
            others = {"few_labels": {"top1": top1}, "knn": {"top1": 0.9 + 0.002 * seed * (row == "A")}}
            finish(
                jobs.Job(NAME, "small_mnist", (row, "x")), seed, 0.9 + 0.002 * seed * (row == "A"), **others
            )
    jobs.collect(table, "small_mnist")
    linear, knn = ledger.ledger_rows(table)
    assert linear.said.word == "holds" and linear.said.mean == pytest.approx(5.667, abs=0.01)
    assert "small_mnist by 10 labels a class" in linear.evidence
    assert knn.said.word == "cannot be judged here" and "0.3 points" in knn.said.why
    rooms[True] = 87.0  # neither can: the reason is that of ten labels
    row = ledger.ledger_rows(table)[0]
    assert row.said.word == "cannot be judged here" and "small_mnist by 10 labels a class" in row.evidence
    rooms[False] = 99.0  # all labels come first where they can judge
    assert ledger.ledger_rows(table)[0].said.mean == pytest.approx(0.2)


def differing(heading, read):
    return read.differences(("A", "x"), ("B", "x"), heading)


def test_an_undecided_claim_says_how_wide_its_interval_is(table):
    table = changed(
        table, claims=(Claim("A beats B", "A - B", lambda r: r.differences(("A", "x"), ("B", "x"))),)
    )
    all_done(table, of_a=(0.4, 0.5, 0.3))
    assert ledger.ledger_rows(table)[0].verdict() == "**undecided**, ± 25"


def test_benjamini_and_hochberg_take_back_within_a_family(monkeypatch):
    def row(word, p):
        return ledger.Row("", "", ledger.Judgement(word, p=p))

    alone, formula = row("holds", 0.04), row("does not hold", None)
    assert ledger.together([alone, formula]) == [alone, formula]
    fallen, *others = ledger.together([alone, row("undecided", 0.9), formula])
    assert (fallen.said.word, others) == ("undecided", [row("undecided", 0.9), formula])
    assert fallen.verdict() == "**undecided**: holds alone, not among all of the paper's"
    made_up = types.SimpleNamespace(path="table")
    rows = [alone, row("undecided", 0.9)._replace(ours=True), formula]  # a reading takes nothing back
    monkeypatch.setattr(ledger, "all_tables", lambda: ["experiments.some.table"])
    monkeypatch.setattr(ledger, "table_of", lambda name: made_up)
    monkeypatch.setattr(ledger, "ledger_rows", lambda table: rows)
    assert ledger.of_paper("some") == [("table", each) for each in rows]


def test_a_table_without_runs_is_measured_once(table):
    calls = []
    table = changed(
        table,
        runs={},
        measure=lambda: calls.append(1) or {"numbers": [1.0, 2.0]},
        page=lambda found: harness.markdown(["n"], [[n] for n in found["numbers"]]),
        claims=(Claim("positive", "numbers", lambda found: found["numbers"], by="formula"),),
    )
    assert "Not measured yet." in pages.text(table)
    assert ledger.ledger_rows(table)[0].verdict() == "not tested"
    assert results.measure(table).endswith("measured") and "done" in results.measure(table)
    assert calls == [1]
    assert "| 2.0 |" in pages.text(table)
    (row,) = ledger.ledger_rows(table)
    assert (row.evidence, row.said.word) == ("numbers: +1.5 [1, 2] (range of 2, measured)", "holds")


def test_what_another_file_measured_is_read_from_there(table, tmp_path):
    source = []
    table = changed(
        table,
        runs={},
        read=lambda: {"numbers": source} if source else None,
        page=lambda found: harness.markdown(["n"], [[n] for n in found["numbers"]]),
    )
    assert "Not measured yet." in pages.text(table)
    for number in (1.0, 2.0):
        source[:] = [number]
        assert "reads what another file" in results.measure(table)
        assert f"| {number} |" in pages.text(table)
    assert not results.file_of(table).exists()


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"metrics": {}}, TypeError, "metrics"),
        ({"SEEDS": {}}, TypeError, "SEEDS"),
        ({"seeds": {"tiny": (0,)}}, ValueError, "seeds has scale 'tiny'; scales are paper, gpu"),
        ({"published_rates": "gpu"}, ValueError, "published_rates has scale 'g'"),
        ({"reported": {"a": {}}}, ValueError, "reported has heading a; metric is empty"),
        ({"runs": {"cpu": {}}}, ValueError, "runs need metric"),
        (
            {"runs": {"cpu": {}}, "metric": METRIC, "read": dict, "page": list},
            ValueError,
            "one of runs, measure",
        ),
        ({"read_after": "as predicted"}, ValueError, "read_after has more rounds than predicted"),
        ({"measure": dict}, ValueError, "page goes with measure"),
        ({"page": list}, ValueError, "page goes with measure"),
    ],
)
def test_a_wrong_field_of_a_table_raises_where_it_is_declared(fields, error, words):
    with pytest.raises(error, match=words):
        Table(NAME, "A table.", **fields)
    with pytest.raises(TypeError, match="about"):
        Table(NAME)


def test_grid_refuses_what_was_copied_short():
    assert harness.grid("ab", (1, 2), [(1.0, None), (3.0, 4.0)])["a", "2"] is None
    with pytest.raises(ValueError, match="zip"):
        harness.grid("ab", (1, 2), [(1.0,), (3.0, 4.0)])
    with pytest.raises(ValueError, match="zip"):
        harness.grid("ab", (1, 2), [(1.0, 2.0)])
