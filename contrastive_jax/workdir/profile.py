"""A profile of a few steps, for TensorBoard, XProf or Perfetto."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax


def check_steps(steps: Sequence[int]) -> None:
    """Refuse what are not two whole numbers in order.

    Raises:
      ValueError: one sentence.
    """
    whole = len(steps) == 2 and all(isinstance(step, int) for step in steps)
    if not whole or not 0 <= steps[0] <= steps[1]:
        raise ValueError(f"profile.steps is {steps!r}; it must be the first step and the one to end before.")


class Profile:
    """The trace of the steps from ``steps[0]`` up to ``steps[1]``, not included, into ``<workdir>/profile``.

    Args:
      workdir: of the run.
      steps: (first, last); equal ones trace nothing.

    Raises:
      ValueError: not two whole numbers in order.
    """

    def __init__(self, workdir: str | os.PathLike, steps: Sequence[int]):
        check_steps(steps)
        self._folder, (self._first, self._last), self._running = (
            pathlib.Path(workdir, "profile"),
            steps,
            False,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._running:
            self._stop()

    def before(self, step: int, state: Any) -> None:
        """Start or stop the trace, before every step, with the state that it starts from."""
        if step == self._first < self._last:
            jax.block_until_ready(state)  # what is under way is not of these steps
            jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
            self._running = True
        elif step == self._last and self._running:
            jax.block_until_ready(state)
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._running = False
