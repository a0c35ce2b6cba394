"""Every table and figure of the papers, as it is declared: configs that exist, numbers of the right kind, pages."""

import itertools
import json
import math
import re

import pytest
from suite import over

from contrastive_jax import config as configs
from contrastive_jax.config import identity
from experiments import harness
from experiments.harness import cli, gates, jobs, ledger, pages, records
from experiments.harness.judging import judge
from experiments.harness.records import pick
from experiments.harness.results import Results, measured
from experiments.harness.running import run_jobs
from experiments.harness.table import TEN_LABELS, Doubtful

TABLES = harness.all_tables()
SMOKE = {}  # command -> (table, cell): several tables ask for one run
for name in TABLES:
    for cell, text in harness.table_of(name).runs.get("smoke", {}).items():
        SMOKE.setdefault(text, []).append((name, cell))
# Of each paper the first, by default.
FIRST = {name.split(".")[1]: text for text, of in reversed(SMOKE.items()) for name, _ in reversed(of)}
MOST_STEPS = 7
# Leaves that a compiled step does not depend on.
AFTERWARDS = ("name", "evaluat", "log.", "checkpoint.", "embed.", "export.", "preview.", "seed")


def all_runs(table):
    return [(scale, cell, text) for scale, cells in table.runs.items() for cell, text in cells.items()]


@pytest.mark.run
@over(TABLES)
def test_every_cell_is_a_config(name):
    table = harness.table_of(name)
    assert set(table.runs) <= set(harness.SCALES)
    for scale, cell, text in all_runs(table):
        assert len(cell) == 2 and all(isinstance(part, str) and " | " not in part for part in cell)
        digits = harness.config_of(text)["data"]["name"]
        assert scale in ("paper", "gpu") or "imagenet" not in digits, f"{cell} at {scale} reads {digits}"


@over(TABLES)
def test_reported_numbers_have_a_heading_and_a_kind(name):
    table = harness.table_of(name)
    assert set(table.reported) <= set(table.metric)
    for cells in table.reported.values():
        for cell, value in cells.items():
            assert len(cell) == 2 and all(isinstance(part, str) for part in cell)
            assert value is None or isinstance(value, float | int | Doubtful) and math.isfinite(value)


@over(TABLES)
def test_nothing_is_assumed_in_silence(name):
    table = harness.table_of(name)
    assert table.assumed or not table.runs.get("paper")
    assert all(isinstance(why, str) and why for why in {**table.assumed, **table.needs}.values())


@over(TABLES)
def test_sweeps_choose_by_accuracy(name):
    """One choice a run, whatever the table that reads it asks about; on MNIST by what judges there.

    FlatNCE's Figure 2 had chosen by all labels before that was so, and Figure 5 reads its runs.
    """
    table = harness.table_of(name)
    for scale in table.sweep:
        path = jobs.chosen_by(table, scale)
        assert path.endswith(".top1 %")
        if scale == "small_mnist" and not name.endswith(("flatnce.figure_2", "flatnce.figure_5")):
            assert path == TEN_LABELS


@over(TABLES)
def test_accuracy_is_judged_at_rates_inside_of_what_was_tried(name):
    """Where a table sweeps rates for every cell of a small scale."""
    table = harness.table_of(name)
    swept = [
        points if "schedule.learning_rate" in points else {}
        for scale, points in table.sweep.items()
        if scale in harness.SMALL
    ]
    for claim in table.claims if any(swept) else ():
        assert gates.headroom not in claim.gates or gates.tuned in claim.gates, claim.text


def printed(page):
    """Of a page: heading -> (row, column) -> what stands behind the slash, where the paper's numbers stand."""
    found, heading, columns = {}, None, []
    for line in page.splitlines():
        if ": ours, mean" in line:
            heading = line.partition(": ours, mean")[0] if line.endswith(" / the paper's") else None
        elif heading and line.startswith("| | "):
            columns = line.strip("| ").split(" | ")
        elif heading and line.startswith("| ") and not line.startswith("| ---"):
            row, *cells = (cell.strip() for cell in line[1:-1].split("|"))
            for column, cell in zip(columns, cells, strict=True):
                if " / " in cell:
                    found.setdefault(heading, {})[row, column] = cell.rpartition(" / ")[2]
        elif line.startswith("#"):
            heading = None
    return found


@over(TABLES)
def test_the_page_has_the_papers_numbers_and_dashes_for_lost_ones(name):
    table = harness.table_of(name)
    there = printed(pages.page_of(table).read_text())
    for heading, cells in table.reported.items():
        for cell, value in cells.items():
            shown = there[heading][cell]
            assert (shown == "—") == (value is None), f"{heading}, {cell}: {shown}"
            assert shown.endswith("?") == isinstance(value, Doubtful), f"{heading}, {cell}: {shown}"
            assert value is None or float(shown.removesuffix(" ?")) == value, f"{heading}, {cell}: {shown}"
    for heading, cells in there.items():
        known = table.reported[heading]
        assert all(shown == "—" or known.get(cell) is not None for cell, shown in cells.items()), heading


@pytest.mark.run
@over(TABLES)
def test_pages_are_what_their_numbers_say(name):
    table = harness.table_of(name)
    page = pages.page_of(table)
    assert page.exists(), f"python -m {name} render"
    assert page.read_text() == pages.text(table), f"python -m {name} render"
    for scale in table.runs:
        for cell, entry in Results(table, scale).cells.items():
            assert cell in table.runs[scale] and set(entry["seeds"]) <= set(map(str, table.seeds_at(scale)))


@pytest.mark.run
def test_the_paper_and_the_findings_are_what_the_records_say():
    from experiments.paper import __main__ as paper
    from experiments.paper import figures

    for page, prose in paper.PAGES.items():
        assert page.read_text() == paper.text(prose), "python -m experiments.harness pages"
    assert all((figures.FOLDER / f"{draw.__name__}.svg").exists() for draw in figures.FIGURES)


@pytest.mark.run
def test_committed_runs_are_what_a_table_asks_for():
    """By their whole config: what changed since is named, and ``records.SINCE`` is for leaves that are new."""
    assert not (wrong := jobs.stale()), "\n".join(wrong)


def keys(name, scale):
    return {jobs.Job(name, scale, cell).key for cell in harness.table_of(name).runs[scale]}


def test_cells_that_mean_the_same_are_one_run():
    """Figure B.3 varies losses, batches and tau around one setting; EqCo's Table 7 has Table 5's network at width 1."""
    from experiments.intriguing import figure_b3

    figure = figure_b3.TABLE
    assert len(keys(figure.name, "paper")) == len(figure.runs["paper"]) - 2 * len(figure_b3.BITS)
    assert len(keys("experiments.eqco.table_7", "paper") & keys("experiments.eqco.table_5", "paper")) == 2


def test_no_leaf_is_declared_new_in_vain():
    kept = [records.read(file.stem)["config"] for file in records.folder().glob("*.json")]
    assert all(any(name not in config for config in kept) for name in records.SINCE.keys() - identity.YOUNG)


def test_no_numbers_are_kept_twice():
    """A copy goes stale: what another file has measured is read from there."""
    seen = {}
    for file in sorted((harness.ROOT / "experiments").glob("**/results/**/*.json")):
        found = json.loads(file.read_text())
        told = json.dumps(next((found[name] for name in ("found", "seeds", "cells") if name in found), found))
        assert told not in seen, f"{file} and {seen[told]}"
        seen[told] = file


def fabricated(table, scale, cells):
    """Results of some cells of a scale, of numbers that no two have in common."""
    results = Results.__new__(Results)
    results.table, results.scale, results.cells = table, scale, {}
    number = itertools.count(1)
    results.swept = lambda *cell: [[50 + next(number) ** 0.5] * 3] if cell in results.cells else []
    for cell in cells:
        seeds = {}
        for seed in map(str, table.seeds_at(scale)):
            found = {"evaluations": {}, "metrics": {"w_p50": 0.4}}
            for path in filter(None, table.metric_at(scale).values()):
                *place, name = path.partition(" ")[0].replace("*", "11").split(".")
                at = found if place[0] == "metrics" else found["evaluations"]
                for part in place:
                    at = at.setdefault(part.partition("|")[0], {})
                at[name] = 0.5 + 0.001 * next(number) ** 0.5
            found["curves"] = {
                name: [list(range(20)), [0.5 + 0.001 * next(number) for _ in range(20)]]
                for name in table.curves
            }
            seeds[seed] = found
        results.cells[cell] = {"seeds": seeds, "arguments": table.runs[scale][cell]}
    return results


TESTED = [(name, claim) for name in TABLES for claim in harness.table_of(name).claims]


@pytest.mark.run
@over(TESTED)
def test_a_claim_has_evidence_where_its_table_has_runs(name, claim):
    """Of made-up results, at the paper's own scale too; and it never fails on a part of them."""
    table = harness.table_of(name)
    assert claim.by in ("seeds", "each", "fisher", "formula") and claim.expects in (
        "above",
        "below",
        "within",
    )
    assert (claim.margin > 0) == (claim.expects == "within")
    if claim.evidence is None:
        assert claim.effect and claim.needs, "what would test it, and why does nothing?"
        return
    if table.is_measured:
        found = measured(table)
        assert found is None or list(claim.evidence(found))
        return
    scales = [scale for scale in harness.SCALES if scale != "smoke" and table.runs.get(scale)]
    said = {s: judge(claim, fabricated(table, s, table.runs[s])).word for s in scales}  # its gates too
    there = {s for s, word in said.items() if word != "not tested"}
    assert there, f"no evidence at {', '.join(scales)}"
    assert bool(claim.needs) != bool(there & set(harness.SMALL)), (
        "a cell at a small scale, or why there is none"
    )
    assert "paper" in there or "paper" not in scales, f"no evidence at paper, only at {', '.join(there)}"
    for scale in scales:
        cells = list(table.runs[scale])
        half = len(cells) // 2
        for part in (
            *([cell] for cell in cells),
            cells[:-1],
            cells[1:],
            cells[:half],
            cells[half:],
            cells[::2],
        ):
            judge(claim, fabricated(table, scale, part))


@pytest.mark.run  # resolves two thousand configs
def test_the_ledger_is_current():
    for file, text in ledger.pages().items():
        assert file.read_text() == text, "python -m experiments.harness pages"


def test_the_front_page_counts_as_the_ledger_does():
    text = (harness.ROOT / "README.md").read_text()
    for paper in ("flatnce", "intriguing", "eqco", "less_can_be_more", "macl"):
        page = (harness.ROOT / "experiments" / paper / "README.md").read_text()
        counts = [
            next(iter(re.findall(rf"^## {v.capitalize()}: (\d+) of", page, re.M)), "0")
            for v in ledger.VERDICTS
        ]
        (row,) = re.findall(rf"^\| \[.*\]\(experiments/{paper}/README.md\) \|.*$", text, re.M)
        assert row.endswith(f" | {' | '.join(counts)} |"), row


def test_our_readings_of_claims_are_marked_and_not_counted_as_the_papers():
    marked = 0
    for paper in ("flatnce", "intriguing", "eqco", "less_can_be_more", "macl"):
        page = (harness.ROOT / "experiments" / paper / "README.md").read_text()
        claims = page.partition("## Tables and figures")[0]
        rows = re.findall(r"^\| (?!claim|---).*$", claims, re.M)
        heads = re.findall(r"^## [A-Z].*: (\d+) of (\d+)$", claims, re.M)
        ours = [row for row in rows if " (our reading) | " in row]
        assert {int(total) for _, total in heads} == {len(rows) - len(ours)}
        assert sum(int(count) for count, _ in heads) == len(rows) - len(ours)
        marked += len(ours)
    overview = (harness.ROOT / "experiments" / "README.md").read_text()
    (row,) = re.findall(r"^\| our readings of them.*$", overview, re.M)
    assert sum(map(int, re.findall(r"\d+", row))) == marked > 0


def test_the_front_page_has_the_leads_of_the_records():
    from experiments.family import tau_by_batch
    from experiments.paper.numbers import FEW, KNN, difference, lead

    text, findings = ((harness.ROOT / page).read_text() for page in ("README.md", "docs/findings.md"))
    for batch in ("16", "256"):
        again = difference("family.lead", "small_mnist", ("FlatNCE", batch), ("InfoNCE", batch), FEW)
        for found in (lead(batch), again):
            assert found.removeprefix("+") in text, f"batch {batch}: {found}"
    results = Results(tau_by_batch.TABLE, "small_mnist")
    for low, high, said in (("0.1", "0.5", (3, 6)), ("0.5", "1.0", (1, 1))):
        gained = [
            results.mean(f"{loss}, tau {high}", f"batch {b}")
            - results.mean(f"{loss}, tau {low}", f"batch {b}")
            for loss in tau_by_batch.LOSSES
            for b in tau_by_batch.BATCHES
        ]
        assert (round(min(gained)), round(max(gained))) == said
    assert "both gain three to six points on MNIST" in text and "and one more to tau 1" in findings
    photographs = "family.second_set", "small"
    warmer = difference(*photographs, ("InfoNCE", "tau 0.1"), ("InfoNCE", "tau 0.5"))
    assert f"On CIFAR-10 at batch 16 InfoNCE loses {warmer.removeprefix('+')} " in text
    led = difference(*photographs, ("FlatNCE", "tau 0.1"), ("InfoNCE", "tau 0.1"))
    assert f"On CIFAR-10 at batch 16, all labels, it is {led.removeprefix('+')}, undecided" in text
    by_knn = difference("family.lead", "small_mnist", ("FlatNCE", "16"), ("InfoNCE", "16"), KNN)
    assert f"by kNN at batch 16 the difference is {lead(16, KNN)} and {by_knn.removeprefix('+')} " in text


def test_every_paper_has_tables_and_a_smoke_cell():
    assert {name.split(".")[1] for name in TABLES} == set(
        ("flatnce", "intriguing", "eqco", "less_can_be_more", "macl", "family")
    )
    assert set(FIRST) == {name.split(".")[1] for name in TABLES}


@over(TABLES)
def test_every_cell_has_a_cost(name):
    for scale, cell, text in all_runs(harness.table_of(name)):
        examples, channels = cli.images_of(harness.config_of(text))
        assert examples > 0 and channels > 0, f"{cell} at {scale}"


def test_smoke_cells_share_compiled_steps():
    steps = set()
    for text in SMOKE:
        config = harness.config_of(text)
        leaves = {k: v for k, v in configs.leaves(config).items() if not k.startswith(AFTERWARDS)}
        steps.add(json.dumps(leaves, sort_keys=True))
    assert len(steps) <= MOST_STEPS


def smoke(text, tmp_path, monkeypatch):
    """One run at the scale of seconds, by the harness's own worker; every heading's path must be there, of every table
    that asks for the run."""
    monkeypatch.setattr(jobs, "ROOT", tmp_path)
    asked = [jobs.Job(name, "smoke", cell) for name, cell in SMOKE[text]]
    assert not asked[0].done()
    for job in asked:
        run_jobs([job])  # nothing where it is done
        assert job.done()
        for path in filter(None, harness.table_of(job.table).metric_at("smoke").values()):
            assert math.isfinite(pick(job.result(0), path)), (job.name, path)
    assert len(list(asked[0].folder(0).parent.parent.iterdir())) == 1, "one run for all tables"


@pytest.mark.run
@pytest.mark.parametrize("text", dict.fromkeys(FIRST.values()))
def test_a_cell_of_each_paper_runs(text, tmp_path, monkeypatch):
    smoke(text, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text in SMOKE if text not in FIRST.values()])
def test_every_smoke_cell_runs(text, tmp_path, monkeypatch):
    smoke(text, tmp_path, monkeypatch)
