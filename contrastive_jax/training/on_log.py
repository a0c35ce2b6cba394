"""User's function that is called with every record of metrics, and may end training."""

import inspect
import os
from collections.abc import Callable, Collection

from contrastive_jax import distributed
from contrastive_jax.config import Settings
from contrastive_jax.lookup import own, placed

STOP = "stop"  # value with which the function ends training


class OnLog:
    """User's function that is called with every new record of metrics: ``f(step, metrics)``.

    ``metrics`` has the single numbers of a record of ``metrics.jsonl``, those of ``timing`` included, as floats.
    A parameter ``replica`` gets the replica's number. The function returns None, or "stop" to end training; with
    replicas, training ends once it has returned "stop" for every replica that did not diverge. An exception ends the
    run after its step was saved (:meth:`raise_failure`). Only the first process calls the function; all processes
    end at the same step.

    Args:
      function: the function; None: that of the option ``log.on_log``, if any.
      settings: settings of the run.

    Raises:
      ValueError: the function does not exist, or cannot be called with these arguments.
    """

    def __init__(self, function: Callable[..., str | None] | None, settings: Settings):
        name = settings.log.on_log
        self._option = "on_log" if function is not None else f"log.on_log={name}"
        self._given = function is not None
        self._function = own(name, "log.on_log") if function is None and name else function
        self._wants_replica = self._function is not None and _wants_replica(self._function, self._option)
        self._asked: set[int] = set()  # replicas whose training shall end
        self._failure: tuple[int, Exception] | None = None
        self.stopped = False  # the same on all processes

    def __call__(self, replica: int, step: int, metrics: dict[str, float]) -> None:
        """Call the function with a record of a replica (0 for a single run); after a failure do nothing."""
        if self._function is None or self._failure:
            return
        try:
            answer = self._function(step, metrics, **({"replica": replica} if self._wants_replica else {}))
            if answer == STOP:
                self._asked.add(replica)
            elif answer is not None:
                raise ValueError(f"{self._option} returned {answer!r}; it must return None, or 'stop'.")
        except Exception as error:
            self._failure = step, error

    def agree(self, replicas: Collection[int]) -> None:
        """Set ``stopped`` on all processes, after the calls for a step; ``replicas`` did not diverge."""
        if self._function is not None:
            self.stopped = distributed.agreed(self._failure is not None or self._asked.issuperset(replicas))

    def raise_failure(self, workdir: str | os.PathLike) -> None:
        """Raise what the function raised, if it did; the step must be saved.

        Raises:
          Exception: the exception of a function that a program passed, unchanged; for the option ``log.on_log``
            a ValueError of one line.
        """
        if self._function is None or not self.stopped or not distributed.agreed(self._failure is not None):
            return
        if self._failure is None:
            raise RuntimeError(f"{self._option} failed on the first process; its output has the error.")
        step, error = self._failure
        saved = f"step {step} is saved in {workdir}. Repeat the command to resume."
        if self._given:
            error.add_note(f"on_log raised this; {saved}")
            raise error
        text = placed(error, self._function)
        kind = "" if text.startswith(type(error).__name__) else f"{type(error).__name__}: "
        raise ValueError(f"{self._option} failed: {kind}{text}; {saved}") from error

    def notes(self, step: int, total: int) -> list[str]:
        """Return a note for the results if the function ended training."""
        return [f"{self._option} ended training at step {step} of {total}."] if self.stopped else []


def _wants_replica(function: Callable, option: str) -> bool:
    """Return whether a function has a parameter ``replica``.

    Raises:
      ValueError: it is not a function, or needs other arguments.
    """
    if not callable(function):
        raise ValueError(f"{option} is {function!r}; it must be a function of step and metrics.")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a C function without a signature
        return False
    named = {"replica": 0} if "replica" in signature.parameters else {}
    try:
        signature.bind(0, {}, **named)
    except TypeError:
        raise ValueError(
            f"{option} takes {signature}; it is called with (step, metrics), and with replica if it is a parameter."
        ) from None
    return bool(named)
