"""Results of checks, and the registry of checks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from contrastive_jax.conformance import inputs

PASSED, FAILED, SKIPPED = "passed", "failed", "not applicable"


class NotApplicable(Exception):
    """Exception of a check that does not apply; the message is the reason."""


class Failed(Exception):
    """Exception of a failed check.

    Args:
      cause: cause of the failure, one sentence.
      number: measured number.
      given: input arrays of the failing call.
      tau: temperature of the failing call.
    """

    def __init__(
        self,
        cause: str,
        number: float | None = None,
        given: Sequence[np.ndarray] | None = None,
        tau: float | None = None,
    ):
        super().__init__(cause)
        self.cause, self.number, self.tau = cause, number, tau
        self.given = None if given is None else inputs.shown(given)


@dataclasses.dataclass(frozen=True)
class Result:
    """Outcome of one check: status, measured number, explanation, and the input and temperature that failed."""

    name: str
    status: str
    number: float | None = None
    words: str = ""
    given: list | None = None
    tau: float | None = None


@dataclasses.dataclass(frozen=True)
class Check:
    """One check: name, meaning, public defects that it would have caught, and function."""

    name: str
    meaning: str
    public: str
    function: Callable[[Any], tuple[float | None, str]]
    needs_form: bool

    def run(self, session: Any) -> Result:
        """Run the check on a session."""
        from contrastive_jax.conformance.bridge import Refused

        if self.needs_form and session.convention is None:
            return Result(
                self.name, SKIPPED, words="no known form of the loss has these values: see the check value"
            )
        try:
            number, words = self.function(session)
        except NotApplicable as reason:
            return Result(self.name, SKIPPED, words=str(reason))
        except Failed as failed:
            return Result(self.name, FAILED, failed.number, failed.cause, failed.given, failed.tau)
        except Refused as refused:
            return Result(self.name, FAILED, None, f"the function {refused}")
        return Result(self.name, PASSED, number, words)


CHECKS: dict[str, Check] = {}


def check(meaning: str, public: str = "", needs_form: bool = True) -> Callable:
    """Register a check under its function's name."""

    def register(function: Callable) -> Callable:
        CHECKS[function.__name__] = Check(function.__name__, meaning, public, function, needs_form)
        return function

    return register


def table() -> str:
    """Return the registered checks as a Markdown table; import their modules first."""
    lines = ["| check | meaning | public defects of this kind |", "| --- | --- | --- |"]
    lines += [f"| `{one.name}` | {one.meaning} | {one.public or 'none known'} |" for one in CHECKS.values()]
    return "\n".join(lines)
