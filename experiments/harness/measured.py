"""Tables and figures without training runs: formulas, and measurements of seconds made in this process."""

import json
import pathlib
from types import ModuleType
from typing import Any

from experiments.harness.table import ROOT, where


def is_measured(table: ModuleType) -> bool:
    """Return whether the table has ``measure()``, or ``read()``, in the place of runs."""
    return hasattr(table, "measure") or hasattr(table, "read")


def file_of(table: ModuleType) -> pathlib.Path:
    """Return where its numbers are kept."""
    path = ROOT / where(table)
    return path.parent / "results" / path.name / "measured.json"


def found(table: ModuleType) -> dict[str, Any] | None:
    """Return what ``measure()`` returned when it was run, or ``read()`` finds; None before."""
    if hasattr(table, "read"):
        return table.read()
    file = file_of(table)
    return json.loads(file.read_text())["found"] if file.exists() else None


def measure(table: ModuleType) -> str:
    """Measure what is not yet measured, and keep it; return a sentence about that."""
    from contrastive_jax import workdir as workdirs

    if hasattr(table, "read"):
        return f"{where(table)}: reads what another file has measured"
    file = file_of(table)
    if file.exists():
        return f"{where(table)}: done ({file} can be deleted to measure again)"
    result = {"found": table.measure()} | workdirs.environment()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")
    return f"{where(table)}: measured"
