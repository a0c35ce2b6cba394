"""The harness of the papers' tables, on made-up runs: what is left to do, what is kept, what a page and a claim say."""

import json
import math
import re
import signal
import sys
import types

import pytest

from experiments import harness
from experiments.harness import claims, jobs, measured, pages, results, running
from experiments.harness import table as tables
from experiments.harness.claims import Claim

NAME = "experiments.paper.table_1"
ARGUMENTS = "configs/x.py:scale=cpu --config.method={}"


def config_of(arguments):
    """A config that is nothing but its arguments."""
    return {"name": "x", "arguments": arguments}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of two rows and one column in a folder of its own, with nothing run."""
    for module in (tables, results, pages, jobs, running, claims, measured):
        if hasattr(module, "ROOT"):
            monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(jobs, "config_of", config_of)
    module = types.ModuleType(NAME, "A table of a paper.\n\nWhat it says.\n")
    module.__file__ = str(tmp_path / "experiments" / "paper" / "table_1.py")
    module.RUNS = {"cpu": {("A", "x"): ARGUMENTS.format("a"), ("B", "x"): ARGUMENTS.format("b")}}
    module.RUNS["paper"] = dict(module.RUNS["cpu"])
    module.METRIC = {"top-1, %": "trained.linear.top1 %", "ESS": "metrics.ess", "top-5, %": None}
    module.CURVES = ("ess",)
    monkeypatch.setitem(sys.modules, NAME, module)
    return tables.table_of(NAME)


def finish(job, seed, top1, ess=0.5):
    """What a run leaves behind that has ended."""
    folder = job.folder(seed)
    folder.mkdir(parents=True)
    result = {
        "evaluations": {
            "trained": {"linear": {"top1": top1, "protocol": "a protocol", "settings": {"C": 1}}}
        },
        "metrics": {"ess": ess},
        "seconds": 1.0,
        "device": {"kind": "cpu"},
        "versions": {"jax": "0"},
        "git_commit": None,
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.json").write_text(json.dumps(config_of(job.arguments()) | {"seed": seed}))
    rows = [{"epoch": float(e), "ess": ess * e} for e in (1, 2)] + [{"epoch": 2.0, "eval/knn_top1": 0.5}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


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


def test_a_run_is_done_once(table):
    assert len(jobs.jobs(table, "cpu")) == 2
    for seed in range(3):
        finish(jobs.Job(NAME, "cpu", ("A", "x")), seed, 0.5)
    assert [job.done() for job in jobs.jobs(table, "cpu")] == [True, False]
    jobs.collect(table, "cpu")
    assert [job.cell for job in jobs.jobs(table, "cpu")] == [("B", "x")]  # committed: nothing left of A
    other = types.ModuleType("experiments.paper.figure_1")
    other.__file__, other.RUNS, other.METRIC = table.__file__, table.RUNS, table.METRIC
    sys.modules[other.__name__] = other
    try:
        assert jobs.Job(other.__name__, "cpu", ("A", "x")).done()  # the same arguments: the same run
    finally:
        del sys.modules[other.__name__]


def test_results_from_elsewhere_stay_while_the_arguments_are_the_same(table, tmp_path):
    all_done(table)
    for folder in (tmp_path / "runs" / "experiments").iterdir():
        folder.rename(folder.with_name(f"gone-{folder.name}"))
    assert set(jobs.collect(table, "cpu")["cells"]) == {"A | x", "B | x"}
    table.RUNS["cpu"]["A", "x"] = ARGUMENTS.format("another")
    assert set(jobs.collect(table, "cpu")["cells"]) == {"B | x"}


def test_a_run_of_another_config_is_not_taken(table):
    job = jobs.Job(NAME, "cpu", ("A", "x"))
    finish(job, 0, 0.5)
    file = job.folder(0) / "config.json"
    saved = json.loads(file.read_text())
    assert job.result(0) is not None
    file.write_text(
        json.dumps({k: v for k, v in saved.items() if k != "name"})
    )  # an option that is new since
    assert job.result(0) is not None
    file.write_text(json.dumps(saved | {"arguments": "changed"}))
    assert job.result(0) is None


def test_a_sweep_chooses_on_the_validation_part_and_reads_no_other(table, monkeypatch):
    table.SWEEP = {"cpu": {"lr": (0.1, 0.3)}}
    cell = ("A", "x")
    choosing = [job for job in jobs.jobs(table, "cpu") if job.cell == cell]
    assert [job.point for job in choosing] == [(("lr", 0.1),), (("lr", 0.3),)]
    assert all("--config.data.validation=0.2" in job.arguments() for job in choosing)
    assert all(job.seeds() == (0,) for job in choosing)
    finish(choosing[0], 0, 0.9)
    assert jobs.choose(table, "cpu", cell) is None  # one point is missing
    finish(choosing[1], 0, 0.8)
    for lr, top1 in ((0.1, 0.2), (0.3, 0.99)):  # on the test images it would be the other
        finish(jobs.Job(NAME, "cpu", cell, (("lr", lr),)), 0, top1)
    read, result = [], jobs.Job.result
    monkeypatch.setattr(jobs.Job, "result", lambda job, seed: read.append(job) or result(job, seed))
    assert jobs.choose(table, "cpu", cell) == (("lr", 0.1),)
    assert read and not any(job.chosen for job in read)
    (job,) = [job for job in jobs.jobs(table, "cpu") if job.cell == cell]
    assert job.chosen and job.seeds() == (0, 1, 2)
    assert job.arguments().endswith("--config.lr=0.1")


def test_one_failing_cell_does_not_stop_the_rest(table, monkeypatch):
    seen = []

    def worker(job, *_):
        seen.append(job.cell)
        if job.cell == ("A", "x"):
            return "exit status 1: a reason"
        for seed in job.seeds():
            finish(job, seed, 0.5)

    monkeypatch.setattr(running, "_worker", worker)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        failures = running.run(lambda: jobs.jobs(table, "cpu"), 1, "here", {})
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert failures == ["paper.table_1 A | x: exit status 1: a reason"]
    assert seen == [("A", "x"), ("B", "x")]  # each once, the failed one not again
    assert set(jobs.collect(table, "cpu")["cells"]) == {"B | x"}


def test_a_lost_number_stays_empty_and_a_doubtful_one_is_marked(table):
    table.REPORTED = {"top-1, %": {("A", "x"): None, ("B", "x"): harness.doubtful(54.62), ("C", "y"): 3.0}}
    table.REPORTED["top-5, %"] = {("A", "x"): 80.0}
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
        "python -m contrastive_jax.main --config=configs/x.py:scale=cpu --config.method=a --config.seed=0"
        in page
    )


def test_a_page_says_what_was_not_run(table):
    assert "Not run at this scale." in pages.text(table)
    del table.RUNS["cpu"]
    assert "`cpu`" not in pages.text(table)


def test_interval_is_students():
    mean, low, high = claims.interval([1.0, 2.0, 3.0])
    assert (mean, high) == pytest.approx((2.0, 2.0 + 4.3027 / 3**0.5), rel=1e-4) and low == pytest.approx(
        4 - high
    )
    assert claims.interval([1.0]) == (1.0, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("claim", "values", "word"),
    [
        (Claim("above"), [1.0, 1.1, 0.9], "holds"),
        (Claim("above"), [-1.0, -1.1, -0.9], "does not hold"),
        (Claim("above"), [1.0, -1.0, 0.1], "undecided"),
        (Claim("above"), [1.0], "undecided"),
        (Claim("above"), [], "not tested"),
        (Claim("below", expects="below"), [-1.0, -1.1, -0.9], "holds"),
        (Claim("within", expects="within", margin=1.0), [0.1, 0.0, -0.1], "holds"),
        (Claim("within", expects="within", margin=1.0), [5.0, 5.1, 4.9], "does not hold"),
        (Claim("within", expects="within", margin=1.0), [0.0, 2.0, -2.0], "undecided"),
        (Claim("every", every=True), [0.1, 5.0, 90.0], "holds"),
        (Claim("every", every=True), [-0.1, 5.0, 90.0], "does not hold"),
        (Claim("every", every=True), [0.1], "holds"),
    ],
)
def test_verdict(claim, values, word):
    assert claims.verdict(claim, values) == word


def test_claims_are_judged_at_the_largest_scale_with_results(table):
    table.CLAIMS = (
        Claim("A beats B", "A - B, points", lambda r: r.differences(("A", "x"), ("B", "x"))),
        Claim("nobody looked"),
    )
    assert claims.ledger_rows(table)[0] == ("A beats B", "A - B, points", "not tested")
    all_done(table, of_a=(0.5, 0.51, 0.52))
    text, about, word = claims.ledger_rows(table)[0]
    assert (text, word) == ("A beats B", "holds") and about.startswith("A - B, points: +11 [")
    assert about.endswith("(n = 3, cpu)")
    assert claims.ledger_rows(table)[1] == ("nobody looked", "—", "not tested")


def test_a_table_without_runs_is_measured_once(table):
    calls = []
    table.RUNS = {}
    table.measure = lambda: calls.append(1) or {"numbers": [1.0, 2.0]}
    table.page = lambda found: harness.markdown(["n"], [[n] for n in found["numbers"]])
    table.CLAIMS = (Claim("positive", "numbers", lambda found: found["numbers"], every=True),)
    assert "Not measured yet." in pages.text(table)
    assert claims.ledger_rows(table)[0][2] == "not tested"
    assert measured.measure(table).endswith("measured") and "done" in measured.measure(table)
    assert calls == [1]
    assert "| 2.0 |" in pages.text(table)
    assert claims.ledger_rows(table)[0][1:] == ("numbers: +1.5 [1, 2] (range of 2, measured)", "holds")


def test_grid_refuses_what_was_copied_short():
    assert harness.grid("ab", (1, 2), [(1.0, None), (3.0, 4.0)])["a", "2"] is None
    with pytest.raises(ValueError, match="zip"):
        harness.grid("ab", (1, 2), [(1.0,), (3.0, 4.0)])
    with pytest.raises(ValueError, match="zip"):
        harness.grid("ab", (1, 2), [(1.0, 2.0)])
