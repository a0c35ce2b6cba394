"""Other libraries' losses, by the page that says which of ours is the same."""

import json
import pathlib
import re

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import contrastive_jax

ROOT = pathlib.Path(__file__).parents[2]
FILE = "losses_of_other_libraries"
GOLDEN = np.load(golden_cases.GOLDEN / f"{FILE}.npz")
EXPRESSIONS = re.findall(
    r"^\| (.+) \| .+ \| `(.+)` \|$", (ROOT / "docs/how_to/which_loss.md").read_text(), re.MULTILINE
)
LINES = {  # a case, and what its line of the page begins with
    "lightly_ntxent": "lightly `NTXentLoss",
    "pml_ntxent": "lightly `NTXentLoss",
    "pml_ntxent_ids": "pytorch-metric-learning `NTXentLoss",
    "pml_supcon_ids": "pytorch-metric-learning `SupConLoss",
    "lightly_dcl": "lightly `DCLLoss",
    "info_nce": "info-nce-pytorch `InfoNCE(tau)(",
    "info_nce_unpaired": "info-nce-pytorch `InfoNCE(tau, negative_mode",
    "clip": "open_clip `ClipLoss",
    "siglip": "open_clip `SigLipLoss",
}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("case", golden_cases.marked(FILE, LINES))
def test_the_pages_line_is_the_librarys_value(x64, case):
    (expression,) = (ours for theirs, ours in EXPRESSIONS if theirs.startswith(LINES[case]))
    a, b, ids, queue = (jnp.asarray(GOLDEN[name]) for name in ("a", "b", "ids", "queue"))
    known = {name: getattr(contrastive_jax, name) for name in ("contrastive_loss", "ntxent", "sigmoid_loss")}
    known |= {
        "a": a,
        "b": b,
        "ids": ids,
        "queue": queue,
        "tau": float(GOLDEN["tau"]),
        "bias": -2.0,
        "jnp": jnp,
    }
    known["both"] = jnp.concatenate([a, b])
    np.testing.assert_allclose(eval(expression, known), GOLDEN[case], rtol=1e-12)


def test_every_line_and_every_case_is_met():
    assert len(EXPRESSIONS) == len(set(LINES.values()))
    assert {case["case"] for case in json.loads(str(GOLDEN["index"]))} == set(LINES)
