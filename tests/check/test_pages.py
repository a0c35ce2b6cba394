"""The pages of checks and of other libraries hold what the code and the kept results hold."""

import json
import pathlib

from contrastive_jax.conformance import formula, numerics, results
from experiments.check import libraries

ROOT = pathlib.Path(__file__).parents[2]
BEGIN, END = "<!-- checks: begin -->", "<!-- checks: end -->"


def test_the_page_lists_every_check():
    assert formula and numerics  # imported: they register the checks
    text = (ROOT / "docs" / "check.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == results.table()


def test_the_table_of_libraries_is_that_of_the_kept_results():
    kept = json.loads(libraries.KEPT.read_text())
    text = libraries.PAGE.read_text()
    assert libraries.rendered(text, kept) == text
    assert all(set(found) >= {"library", "version", "checks"} for found in kept.values())
    assert {check["name"] for found in kept.values() for check in found["checks"]} <= set(results.CHECKS)
