"""Which golden cases tests meet. A test names the case that it meets: ``pytest.mark.golden(file, case)``.

``conftest.py`` counts the cases whose tests all passed, and prints them at the end of a session.
"""

import json
import pathlib

import numpy as np
import pytest

GOLDEN = pathlib.Path(__file__).parent / "golden"
COLLECTED = set()  # paths of the test files of this session
NAMED, PASSED, FAILED = set(), set(), set()  # cases (file, case): with a test; a test passed; a test failed


def marked(file, cases, *more):
    """Parameters for ``parametrize``: every case (its settings, or its name) with its mark.

    ``more``: keys of a case's settings that name other cases which it reads, such as its input.
    """
    parameters = []
    for case in cases:
        names = [case] if isinstance(case, str) else [case["case"], *(case[key] for key in more)]
        marks = [pytest.mark.golden(file, name) for name in names]
        parameters.append(pytest.param(case, id=names[0], marks=marks))
    return parameters


def every():
    """All cases there are: (file, case)."""
    found = set()
    for path in GOLDEN.glob("*.npz"):
        with np.load(path) as file:
            found |= {(path.stem, case["case"]) for case in json.loads(str(file["index"]))}
    return found


def of(item):
    """The cases that a test meets."""
    return {tuple(mark.args) for mark in item.iter_markers("golden")}


def count(report):
    """Count the cases of a test that ended, here or in a process of pytest-xdist: ``conftest.py`` wrote them down."""
    cases = {tuple(case) for name, case in report.user_properties if name == "golden"}
    if report.failed:
        FAILED.update(cases)
    elif report.passed and report.when == "call":
        PASSED.update(cases)
