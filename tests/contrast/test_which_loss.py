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
from contrastive_jax.contrast.guide import Guide

ROOT = pathlib.Path(__file__).parents[2]
FILE, FAMILY = "losses_of_other_libraries", "family_sentence_transformers"
GOLDEN, OF_FAMILY = (np.load(golden_cases.GOLDEN / f"{file}.npz") for file in (FILE, FAMILY))
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
FAMILY_LINES = {
    "gist_n6_absolute_m0.0_other_anchors": "sentence-transformers `GISTEmbedLoss",
    "matryoshka_n6_8_4": "sentence-transformers `MatryoshkaLoss",
}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def evaluated(line, arrays):
    """The value of a line's expression of ours."""
    (expression,) = (ours for theirs, ours in EXPRESSIONS if theirs.startswith(line))
    names = ("contrastive_loss", "matryoshka_loss", "ntxent", "sigmoid_loss")
    known = {name: getattr(contrastive_jax, name) for name in names}
    known |= {name: jnp.asarray(x) for name, x in arrays.items()}
    known |= {"both": jnp.concatenate([known["a"], known["b"]]), "jnp": jnp, "Guide": Guide}
    return eval(expression, known)


@pytest.mark.parametrize("case", golden_cases.marked(FILE, LINES))
def test_the_pages_line_is_the_librarys_value(x64, case):
    arrays = {name: GOLDEN[name] for name in ("a", "b", "ids", "queue")}
    arrays |= {"tau": float(GOLDEN["tau"]), "bias": -2.0}
    np.testing.assert_allclose(evaluated(LINES[case], arrays), GOLDEN[case], rtol=1e-12)


@pytest.mark.parametrize("case", golden_cases.marked(FAMILY, FAMILY_LINES))
def test_the_pages_line_of_a_model_is_the_librarys_value(x64, case):
    (about,) = (one for one in json.loads(str(OF_FAMILY["index"])) if one["case"] == case)
    fields = {"z1": "a", "z2": "b", "guide1": "guide_a", "guide2": "guide_b"}
    arrays = {
        ours: OF_FAMILY[f"{case}/{theirs}"] for theirs, ours in fields.items() if theirs in about["fields"]
    }
    found = evaluated(FAMILY_LINES[case], arrays | {"tau": about["temperature"]})
    np.testing.assert_allclose(found, OF_FAMILY[f"{case}/loss"], rtol=1e-12)


def test_every_line_and_every_case_is_met():
    assert len(EXPRESSIONS) == len({*LINES.values(), *FAMILY_LINES.values()})
    assert {case["case"] for case in json.loads(str(GOLDEN["index"]))} == set(LINES)
