"""Profile of a few steps, for TensorBoard, XProf or Perfetto."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax


def check_steps(steps: Sequence[int]) -> None:
    """Refuse steps other than two non-negative integers in ascending order; they may be equal.

    Raises:
      ValueError: ``steps`` is not such a pair.
    """
    whole = len(steps) == 2 and all(isinstance(step, int) for step in steps)
    if not whole or not 0 <= steps[0] <= steps[1]:
        raise ValueError(
            f"profile.steps is {steps!r}; it must be two whole numbers, the first step and the step after"
            " the last."
        )


class Profile:
    """Profiler trace of the steps ``steps[0]`` to ``steps[1]`` (excluded), written to ``<workdir>/profile``.

    Args:
      workdir: workdir of the run.
      steps: first step, and the one to end before; equal values trace nothing.

    Raises:
      ValueError: ``steps`` is not a pair of integers in ascending order.
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
        """Start or stop the trace; call this before every step, with the step's input state."""
        if step == self._first < self._last:
            jax.block_until_ready(state)  # exclude work of earlier steps
            jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
            self._running = True
        elif step == self._last and self._running:
            jax.block_until_ready(state)
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._running = False
