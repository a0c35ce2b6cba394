"""The files of examples/ run and learn."""

import pathlib
import runpy

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


@pytest.mark.run
@pytest.mark.parametrize("loss", ["info_nce", "sigmoid"])
def test_two_encoders_retrieve_each_others_rows(loss):
    """Chance is 10 %; seen: 98.1 and 97.5 % of the images' names, all names' images."""
    names, images = runpy.run_path(str(EXAMPLES / "two_encoders.py"))["main"](loss)
    assert names > 0.93 and images > 0.93
