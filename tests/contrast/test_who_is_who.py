"""The page of who is who: it is its table's, its expressions and configs run, its derivations have tests."""

import fnmatch
import importlib.util
import json
import math
import pathlib
import re

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_identities_family

import contrastive_jax
from contrastive_jax import config, losses, main
from contrastive_jax.config.methods import METHODS
from contrastive_jax.contrast import transform

ROOT = pathlib.Path(__file__).parents[2]
HOOK = ROOT / "docs" / "hooks" / "who_is_who.py"
SPEC = importlib.util.spec_from_file_location("who_is_who", HOOK)
WHO = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(WHO)
ROWS = [row for rows in WHO.TABLE.values() for row in rows]
N, D = 6, 5


def known():
    """What an expression of the page may name."""
    a, b, queue = jnp.asarray(np.random.default_rng(3).normal(size=(3, N, D)))
    names = {"a": a, "b": b, "queue": queue, "tau": 0.3, "both": jnp.concatenate([a, b]), "K": 2 * N - 2}
    names |= {"classes": jnp.arange(N) // 2, "log_u": jnp.zeros((N, 2)), "tau_i": jnp.linspace(0.2, 0.5, N)}
    names |= {"exp": math.exp, "guide_a": a + 0.1 * queue, "guide_b": b + 0.1 * queue}
    names |= {
        "targets": jnp.full((N, N), 1 / N),
        "places": jnp.ones((N, 2), int),
        "shares": jnp.full((N, 2), 0.5),
    }
    names |= {"losses": losses, "transform": transform}
    for name in (
        "contrastive_loss",
        "macl_temperature",
        "matryoshka_loss",
        "sigmoid_loss",
        "sincere",
        "soft_target_loss",
    ):
        names[name] = getattr(contrastive_jax, name)
    exec(WHO.OWN, names)
    return names


def test_the_page_is_the_tables():
    page = (ROOT / "docs" / "who_is_who.md").read_text()
    assert page == WHO.page(), "write it again: run docs/hooks/who_is_who.py, output to docs/who_is_who.md"


@pytest.mark.parametrize("row", [row for row in ROWS if row.ours], ids=lambda row: row.name)
def test_an_expression_runs(row):
    with jax.enable_x64(True):
        names = known()
        if row.ours.startswith("sincere"):
            names["classes"] = jnp.tile(names["classes"], 2)
        value = eval(row.ours, names)
        assert value.dtype == jnp.float64 and np.isfinite(value).all() and np.abs(value).max() > 0


@pytest.mark.parametrize("row", [row for row in ROWS if row.config], ids=lambda row: row.name)
def test_a_config_is_one_of_a_run(row):
    spec, overrides, _ = main.split([f"--config={row.config.split()[0]}", *row.config.split()[1:]])
    assert config.expand(spec, overrides)


@pytest.mark.parametrize("row", [row for row in ROWS if row.golden], ids=lambda row: row.name)
def test_the_golden_file_is_of_that_code(row):
    with np.load(golden_cases.GOLDEN / f"{row.golden}.npz") as arrays:
        notes = {case.get("note", "") for case in json.loads(str(arrays["index"]))}
    if "@" in row.code:
        assert all(note.startswith(row.code.replace("@", " @")) for note in notes), (row.code, notes)
    if row.golden.startswith("family"):
        assert row.code and all(notes)


def test_every_golden_file_of_the_family_is_in_the_table():
    files = {path.stem for path in golden_cases.GOLDEN.glob("family_*.npz")}
    assert files <= {row.golden for row in ROWS}
    readme = (golden_cases.GOLDEN / "README.md").read_text()
    for name in files:
        assert f"| `{name}` |" in readme, name


def test_every_derivation_has_a_test_and_a_row():
    assert set(WHO.DERIVATIONS) == set(test_identities_family.IDENTITIES) and len(WHO.DERIVATIONS) >= 12
    assert {proof for row in ROWS for proof in row.proofs} == set(WHO.DERIVATIONS)
    for name, text in WHO.DERIVATIONS.items():
        assert len(text.splitlines()) == 4, f"{name}: a title and three lines"


def test_names_are_there_once():
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) and len(names) >= 24


def test_every_method_is_on_the_page_of_citations():
    page = (ROOT / "docs" / "citation.md").read_text()
    named = [
        name.strip() for line in re.findall(r"^@.*% (.*)$", page, re.MULTILINE) for name in line.split(",")
    ]
    missing = [method for method in METHODS if not any(fnmatch.fnmatch(method, name) for name in named)]
    assert missing == ["supervised"]  # cross-entropy
    keys = re.findall(r"^@\w+\{(\w+),", page, re.MULTILINE)
    assert len(keys) == len(set(keys)) == page.count("\n  title={")
