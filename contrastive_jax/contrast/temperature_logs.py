"""Temperatures from the metrics file of an earlier run."""

import hashlib
import json
import math

from etils import epath


def digits_of(steps: list[int], taus: list[float]) -> str:
    """Return a hash of a log's steps and temperatures, 12 hexadecimal digits."""
    return hashlib.sha256(json.dumps([steps, taus]).encode()).hexdigest()[:12]


def logged(file: str) -> tuple[list[int], list[float]]:
    """Return the steps of a log's temperatures, in order, and the temperatures.

    Args:
      file: a workdir, or a file with a line {"step": 10, "tau": 0.1} per log point.

    Raises:
      ValueError: the file cannot be read, has no temperatures, or has one that is not positive.
    """
    try:
        path = epath.Path(file)
        path = path / "metrics.jsonl" if path.is_dir() else path
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"temperature.file is {file!r}, which cannot be read ({error}).") from None
    temperatures = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if "tau" in record:
                temperatures[int(record["step"])] = tau = float(record["tau"])
                if not 0.0 < tau < math.inf:
                    raise ValueError
        except (ValueError, KeyError, TypeError):
            if number == len(lines) and temperatures and not line.endswith("}"):
                break  # the run was killed while it wrote
            raise ValueError(
                f"temperature.file is {file!r}; its line {number} must be a record with a step and a"
                " positive tau."
            ) from None
    if not temperatures:
        raise ValueError(f'temperature.file is {file!r}; it must have a line with a "step" and a "tau".')
    steps = sorted(temperatures)
    return steps, [temperatures[step] for step in steps]
