"""Files in a run's workdir, and the progress display during training.

``metrics.jsonl`` is the source of truth, with one JSON object per line. All other files (TensorBoard files,
``curves.png``, ``result.json``) are derived or describe the run.
"""

from contrastive_jax.workdir.broken import read_result, restore_config, set_result_aside
from contrastive_jax.workdir.curves import plot_curves
from contrastive_jax.workdir.exhausted import Exhausted, Full, translate_errors
from contrastive_jax.workdir.files import (
    read_json,
    replacing,
    shareable,
    write_config,
    write_json,
    write_text,
)
from contrastive_jax.workdir.locks import InUse, check_room, check_writable, lock
from contrastive_jax.workdir.metrics import METRICS, Logbook, read_metrics
from contrastive_jax.workdir.profile import Profile, check_steps
from contrastive_jax.workdir.progress import EvaluationProgress, Progress, log
from contrastive_jax.workdir.result import (
    environment,
    evaluated_by,
    measured_before,
    read_results,
    tables,
    write_result,
)

__all__ = [
    "METRICS",
    "EvaluationProgress",
    "Exhausted",
    "Full",
    "InUse",
    "Logbook",
    "Profile",
    "Progress",
    "translate_errors",
    "check_room",
    "check_steps",
    "check_writable",
    "environment",
    "evaluated_by",
    "lock",
    "plot_curves",
    "read_json",
    "read_metrics",
    "read_result",
    "read_results",
    "replacing",
    "shareable",
    "restore_config",
    "set_result_aside",
    "tables",
    "log",
    "measured_before",
    "write_config",
    "write_json",
    "write_result",
    "write_text",
]
