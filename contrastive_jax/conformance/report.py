"""Report on a function: a table of 80 columns, or JSON."""

import dataclasses
import json
import math
import textwrap
from typing import Any

from contrastive_jax.conformance.results import FAILED, PASSED, SKIPPED, Result

WIDTH = 80
COLUMNS = (22, 16, 9)  # name, status, number


@dataclasses.dataclass(frozen=True)
class Report:
    """Results of all checks of one function."""

    function: str
    loss: str
    framework: str
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """True if no check failed and at least one passed."""
        statuses = {result.status for result in self.results}
        return FAILED not in statuses and PASSED in statuses

    @property
    def failures(self) -> tuple[Result, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.status == FAILED)

    @property
    def convention(self) -> str:
        """The convention in words; empty if none was found."""
        return next((r.words for r in self.results if r.name == "convention" and r.status == PASSED), "")

    def __getitem__(self, name: str) -> Result:
        return next(result for result in self.results if result.name == name)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values; non-finite numbers are strings."""
        return {
            "function": self.function,
            "as": self.loss,
            "framework": self.framework,
            "passed": self.passed,
            "convention": self.convention,
            "checks": [
                {
                    "name": r.name,
                    "status": r.status,
                    "number": r.number if r.number is None or math.isfinite(r.number) else str(r.number),
                    "words": r.words,
                    **({"input": r.given, "tau": r.tau} if r.given is not None else {}),
                }
                for r in self.results
            ],
        }

    def __str__(self) -> str:
        lines = [f"{self.function} as {self.loss} ({self.framework})"]
        lines += textwrap.wrap(self.convention, WIDTH)
        lines.append("")
        for result in self.results:
            lines += _rows(result)
        counts = {
            status: sum(r.status == status for r in self.results) for status in (PASSED, FAILED, SKIPPED)
        }
        lines += ["", ", ".join(f"{number} {status}" for status, number in counts.items())]
        return "\n".join(lines)


def _rows(result: Result) -> list[str]:
    number = "" if result.number is None else f"{result.number:.3g}"
    status = result.status.upper() if result.status == FAILED else result.status
    cells = (result.name, status, number)
    head = "".join(f"{cell:<{width}}" for cell, width in zip(cells, COLUMNS, strict=True))
    words = "" if result.name == "convention" and result.status == PASSED else result.words
    rest = textwrap.wrap(words, WIDTH - sum(COLUMNS)) or [""]
    rows = [(head + rest[0]).rstrip(), *(" " * sum(COLUMNS) + line for line in rest[1:])]
    if result.given is not None:
        shown = f"input {json.dumps(result.given)}" + (
            "" if result.tau is None else f", tau {result.tau:.4g}"
        )
        if len(shown) > 4 * WIDTH:
            shown = f"input with {len(result.given[0])} rows: see --json"
        rows += textwrap.wrap(shown, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return rows
