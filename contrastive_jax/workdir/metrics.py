"""The file ``metrics.jsonl``, a run's source of truth, with one JSON object per line."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from contrastive_jax.workdir import replicas
from contrastive_jax.workdir.files import Broken, free_name, numbers, plain, replacing, write_text
from contrastive_jax.workdir.progress import log

METRICS = "metrics.jsonl"
WANDB = "wandb_id.txt"  # id of this workdir's run in Weights & Biases


class Logbook:
    """Writer of ``metrics.jsonl``, TensorBoard files (with the extra ``tf``) and, optionally, Weights & Biases.

    A line is ``{"step": …, "epoch": …, every metric, "timing": {…}}``. ``timing`` holds the values that depend
    on the clock (images_per_second, seconds); the rest is a function of the config, bit for bit. NaN and the
    infinities, which JSON lacks, are the strings "NaN", "Infinity" and "-Infinity"; :func:`read_metrics`
    converts them back.

    A step may have several records with different metrics (training, evaluation). Opening the file at
    ``start_step`` repairs it: records of later steps, duplicates and an unfinished last line are removed. Write
    a step's records *before* its checkpoint; the file of a resumed run then equals that of an uninterrupted
    one. An existing record is not written again. A file with lines that are not records is copied to
    ``metrics.jsonl.broken``, and the lines are removed. Lost metrics before ``start_step`` are reported.

    Args:
        workdir: folder of the file, created if it is missing.
        start_step: step of the checkpoint from which the run continues; 0 for a new run.
        tensorboard: whether to write TensorBoard files too, through ``clu.metric_writers``.
        wandb: project of Weights & Biases to log to; "": none. The run's id is stored in ``wandb_id.txt``.
        config: the run's config in Weights & Biases.
        verbose: whether to log that TensorBoard files are not written, and which packages to install.
        active: False writes nothing, for all processes but the first.
        report: called with a message about a repaired or lost file.
        on_record: called with the step and the single numbers of every new record, ``timing`` included.

    Raises:
        OSError: the workdir cannot be written.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        start_step: int = 0,
        tensorboard: bool = True,
        wandb: str = "",
        config: Mapping[str, Any] | None = None,
        verbose: bool = False,
        active: bool = True,
        report: Callable[[str], None] = log,
        on_record: Callable[[int, dict[str, float]], None] | None = None,
    ):
        self._file, self._writers, self._on_record = None, [], on_record
        self._written: set[tuple] = set()
        if not active:
            return
        path = pathlib.Path(workdir, METRICS)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._written = _repair(path, start_step, report)
        self._file = path.open("ab", buffering=0)
        missing = [name for name in ("tensorflow", "tensorboard") if importlib.util.find_spec(name) is None]
        if tensorboard and not missing:
            from clu import metric_writers  # imports both; TensorFlow 2.21 no longer installs TensorBoard

            self._writers.append(metric_writers.SummaryWriter(str(workdir)))
        elif tensorboard and verbose:
            what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
            log(f"No TensorBoard files: {what} not installed (pip install 'contrastive_jax[tf]').")
        if wandb:
            self._writers.append(
                _WeightsAndBiases(wandb, pathlib.Path(workdir), config or {}, resumed=start_step > 0)
            )

    def holds(self, step: int, prefix: str) -> bool:
        """Return whether a record of a step has a metric whose name begins with ``prefix``; False if inactive."""
        return any(
            there == step and any(name.startswith(prefix) for name in names) for there, names in self._written
        )

    def write(
        self, step: int, epoch: float, metrics: Mapping[str, Any], timing: Mapping[str, Any] | None = None
    ) -> None:
        """Append one record; the operating system has it when this returns.

        Args:
            step: steps done.
            epoch: epochs done.
            metrics: name -> scalar (array, NumPy or Python number), or a 1-D array, which only the file gets;
                all are fetched from the device at once.
            timing: values that depend on the clock.

        Raises:
            ValueError: a value that is neither a number nor a list of numbers, or a metric named step, epoch or
                timing.
            OSError: the record could not be written; no part of it is in the file.
        """
        if self._file is None:
            return
        reserved = {"step", "epoch", "timing"} & set(metrics)
        if reserved:
            raise ValueError(
                f"A metric cannot be called {sorted(reserved)[0]!r}: every record has a field of that name."
            )
        metrics, timing = jax.device_get((dict(metrics), dict(timing or {})))
        numbers = {name: _numbers_of(name, value) for name, value in metrics.items()}
        record: dict[str, Any] = {"step": int(step), "epoch": float(epoch), **numbers}
        self.check()
        if _identity(record) in self._written:
            return
        if timing:
            record["timing"] = {name: _numbers_of(name, value) for name, value in timing.items()}
        _append(self._file, _line(record))
        self._written.add(_identity(record))
        scalars = {name: value for name, value in numbers.items() if not isinstance(value, list)}
        for writer in self._writers:
            writer.write_scalars(int(step), {**scalars, **timing})
            writer.flush()
        if self._on_record is not None:
            single = {"epoch": epoch, **scalars, **timing}
            self._on_record(int(step), {name: float(value) for name, value in single.items()})

    def check(self) -> None:
        """Raise OSError if the file, or its workdir, was removed or replaced during the run."""
        if self._file is None:
            return
        path, own = pathlib.Path(self._file.name), os.fstat(self._file.fileno())
        try:
            there = path.stat()
            same = (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)
        except FileNotFoundError:
            same = False
        if not same:
            raise OSError(
                f"{path} was removed or replaced while the run wrote to it: later results are not saved"
                f" in {path.parent}. Keep a workdir in place during training, and repeat the command."
            )

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
        while self._writers:
            self._writers.pop().close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class _WeightsAndBiases:
    """A run of Weights & Biases with the interface of a ``clu`` writer.

    A resumed run continues the one whose id is in its workdir. A run that starts at step 0 is always a new one.
    """

    def __init__(self, project: str, workdir: pathlib.Path, config: Mapping[str, Any], *, resumed: bool):
        import wandb

        file = workdir / WANDB
        known = file.read_text(errors="replace").strip() if resumed and file.is_file() else ""
        known = known if re.fullmatch(r"[\w-]{1,128}", known) else ""
        self._run = wandb.init(
            project=project,
            name=workdir.absolute().name,
            id=known or secrets.token_hex(8),
            resume="allow" if known else "never",
            reinit="create_new",  # replicas are parallel runs in one process
            dir=str(workdir),
            config=dict(config),
        )
        if not known:
            write_text(file, f"{self._run.id}\n")

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        self._run.log(dict(scalars), step=step)

    def flush(self) -> None:
        pass  # the library's own process sends

    def close(self) -> None:
        self._run.finish()


def read_metrics(
    workdir: str | os.PathLike, report: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Read the records of ``metrics.jsonl`` in order, without an unfinished last line and with NaN as a number.

    Args:
        workdir: workdir of a single run.
        report: called with a message about lines that are not records, which are skipped; None raises an error.

    Raises:
        FileNotFoundError: there is no such file, or the workdir holds replicas.
        ValueError: a complete line is not a record.
    """
    if several := replicas.folders(workdir):
        raise FileNotFoundError(
            f"{workdir} holds {len(several)} replicas; give the folder of one replica, such as {several[0]}."
        )
    path = pathlib.Path(workdir, METRICS)
    records, wrong = _records(path)
    if wrong and report is None:
        raise Broken(f"{path}, line {wrong[0]}: not a record of metrics. Move the file away.")
    if wrong and report is not None:
        report(f"{_lines(path, wrong)}; left out.")
    return [numbers(record) for record in records]


def _lines(path: pathlib.Path, wrong: list[int]) -> str:
    more = f" and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    return f"{path}, line {wrong[0]}{more}: not a record of metrics"


def _records(path: pathlib.Path) -> tuple[list[dict], list[int]]:
    """Return the records, and the numbers of complete lines that are not records."""
    lines = path.read_bytes().split(b"\n")  # not splitlines: a record may contain U+0085
    records, wrong = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            step, epoch = record["step"], numbers(record.get("epoch", 0.0))
            if (
                type(step) is not int
                or step < 0
                or isinstance(epoch, bool)
                or not isinstance(epoch, int | float)
            ):
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if number < len(lines):  # otherwise the process died during the write
                wrong.append(number)
        else:
            records.append(record)
    return records, wrong


def _repair(path: pathlib.Path, start_step: int, report: Callable[[str], None]) -> set[tuple]:
    """Remove records after ``start_step`` from the file; return step and names of each record that stays."""
    if not path.exists():
        if start_step:
            report(f"{path} is missing: the metrics of the first {start_step:,} steps are lost.")
        return set()
    whole: dict[tuple, Mapping[str, Any]] = {}
    records, wrong = _records(path)
    if wrong:
        aside = free_name(path, "broken")
        aside.write_bytes(path.read_bytes())
        report(f"{_lines(path, wrong)}. The file was copied to {aside.name}, and its other records are kept.")
    for record in records:
        if record["step"] <= start_step:
            whole.setdefault(_identity(record), record)
    steps = [step for step, _ in whole]
    if start_step and not steps:
        report(f"{path} has no record of the first {start_step:,} steps: their metrics are lost.")
    elif start_step and start_step - max(steps) > _usual_gap(steps):
        report(f"{path} ends at step {max(steps):,}: the metrics from there to step {start_step:,} are lost.")
    text = b"".join(map(_line, whole.values()))
    if text != path.read_bytes():
        with replacing(path) as temporary:
            temporary.write_bytes(text)
    return set(whole)


def _usual_gap(steps: list[int]) -> int:
    """Return the largest number of steps between consecutive records."""
    known = sorted({0, *steps})
    return max(after - before for before, after in zip(known, known[1:], strict=False))


def _identity(record: Mapping[str, Any]) -> tuple:
    return record["step"], _one(frozenset(record) - {"timing"})


@functools.cache
def _one(names: frozenset) -> frozenset:
    """Return the first equal set, so that memory does not grow with each record of a long run."""
    return names


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain(record), allow_nan=False, ensure_ascii=False) + "\n").encode()


def _append(file: Any, line: bytes) -> None:
    """Append a line by one system call; if the disk fills up, remove the part that was written."""
    length = os.fstat(file.fileno()).st_size
    try:
        while line:
            line = line[file.write(line) :]
    except OSError as error:
        file.truncate(length)
        error.filename = file.name  # the error of a failed write does not name its file
        raise


def _numbers_of(name: str, value: Any) -> bool | int | float | list:
    array = np.asarray(value)
    if array.ndim == 1 and array.size > 1:
        return [_numbers_of(name, item) for item in array]
    if array.size != 1 or array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ValueError(f"The metric {name!r} is {value!r}; it must be one number, or a list of numbers.")
    return float(array.reshape(())) if array.dtype.kind not in "biu" else array.reshape(()).item()
