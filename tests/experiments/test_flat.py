"""The table of all runs and the page that draws it have the numbers of the records."""

import csv
import io
import json
import re

import pytest

from experiments.harness import flat, records


@pytest.fixture(scope="module")
def rows():
    return flat.rows()


@pytest.fixture(scope="module")
def read():
    with flat.CSV.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_table_and_page_match_the_records():
    for file, text in flat.files().items():
        same = file.read_text() == text  # a difference of megabytes is not shown
        assert same, f"{file.name}: python -m experiments.harness csv"


def test_the_table_is_plain(read):
    raw = flat.CSV.read_bytes()
    assert b"\r" not in raw and raw.endswith(b"\n") and len(raw) < 4e6
    assert len(read) == sum(len(records.read(file.stem)["seeds"]) for file in records.folder().glob("*.json"))
    assert len({(row["record"], row["seed"]) for row in read}) == len(read)
    assert all(None not in row and None not in row.values() for row in read)  # as many cells as columns


def test_every_number_is_read_back_as_it_was(rows, read):
    for row, cells in zip(rows, read, strict=True):
        assert {name: flat.read(text) for name, text in cells.items() if text} == {
            name: value for name, value in row.items() if name in cells
        }


def test_a_row_is_its_record(read):
    cells = next(row for row in read if row["trained.knn.top1"] and row["temperature.tau"])
    record = records.read(cells["record"])
    result = record["seeds"][cells["seed"]]
    assert float(cells["trained.knn.top1"]) == result["evaluations"]["trained"]["knn"]["top1"]
    assert float(cells["metrics.ess"]) == result["metrics"]["ess"]
    assert float(cells["temperature.tau"]) == record["config"]["temperature.tau"]
    assert cells["loss"] and cells["device"] and cells["jax"]


def test_every_seed_has_the_commit_that_it_ran_at(read):
    key = "eqco_simclr_imagenet-02c1dfc6a050"
    found = {row["seed"]: row["git_commit"][:8] for row in read if row["record"] == key}
    assert found == {"100": "79ca9c37", "101": "864060b6"}


@pytest.mark.parametrize("value", ["a", "", "1", "null", "a,b\n", '"', 0.1, -3, True, None, [1, "a"], 1e-300])
def test_a_cell_is_unambiguous(value):
    text = flat.table([{"a": value}], ["a", "b"])
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["a"] and row["b"] == "" and flat.read(row["a"]) == value


def test_the_page_embeds_its_data_and_loads_nothing(rows):
    page = flat.PAGE.read_text()
    assert len(page) < 2e6 and not re.search(r"(src|href)=[\"']?(https?:)?//|@import|fetch\(|import\(", page)
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(text)
    assert all(len(column["at"].split(",")) == len(rows) for column in data.values())
    knn = data["trained.knn.top1"]["at"].split(",")
    for row, shown in zip(rows, knn, strict=True):
        assert (shown == "") == ("trained.knn.top1" not in row)
        assert not shown or float(shown) == pytest.approx(row["trained.knn.top1"], rel=1e-4)
    records_ = data["record"]
    assert [records_["of"][int(i)] for i in records_["at"].split(",")] == [row["record"] for row in rows]
    assert {"temperature.tau", "train.batch_size", "loss", "scale", "config", "data.validation"} <= set(data)
