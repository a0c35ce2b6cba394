"""``metrics.jsonl``: one JSON object a line, and the source of truth."""

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
from contrastive_jax.workdir.files import Broken, numbers, plain, replacing, write_text
from contrastive_jax.workdir.progress import log

METRICS = "metrics.jsonl"
WANDB = "wandb_id.txt"  # which run of Weights & Biases is this workdir's


class Logbook:
    """The writer of ``metrics.jsonl`` and, with the extra ``tf``, of TensorBoard files; Weights & Biases by option.

    A line is ``{"step": …, "epoch": …, every metric, "timing": {…}}``. ``timing`` holds what the wall clock
    says (images_per_second, seconds); the rest is a function of the config, bit for bit. JSON has no NaN
    and no infinity: they are the strings "NaN", "Infinity" and "-Infinity", which :func:`read_metrics` turns
    back into numbers.

    A step may have several records, of different metrics (training, evaluation). Opening the book at
    ``start_step`` repairs the file: records of later steps, repetitions and an unfinished last line go. Write
    a step's records *before* its checkpoint is saved, and the file of a resumed run is that of an
    uninterrupted one. A record that is already there is not written again. Lines that are no records are left out, of
    a copy beside it; that metrics before ``start_step`` are lost is reported.

    Args:
        workdir: is made if it is not there.
        start_step: the step of the checkpoint from which the run goes on; 0 for a new run.
        tensorboard: also write TensorBoard files, through ``clu.metric_writers``.
        wandb: also log to this project of Weights & Biases; "" does not. The id of its run is in ``wandb_id.txt``.
        config: what W&B shows as the run's config.
        verbose: say, once, that TensorBoard files are not written and what to install.
        active: False writes nothing: for every process but the first.
        report: called with a sentence about a file that was mended, or lost.

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
    ):
        self._file, self._writers = None, []
        self._written: set[tuple] = set()
        if not active:
            return
        path = pathlib.Path(workdir, METRICS)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._written = _repair(path, start_step, report)
        self._file = path.open("ab", buffering=0)
        missing = [name for name in ("tensorflow", "tensorboard") if importlib.util.find_spec(name) is None]
        if tensorboard and not missing:
            from clu import metric_writers  # imports both; since 2.21 the one no longer brings the other

            self._writers.append(metric_writers.SummaryWriter(str(workdir)))
        elif tensorboard and verbose:
            what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
            log(f"No TensorBoard files: {what} not installed (pip install 'contrastive_jax[tf]').")
        if wandb:
            self._writers.append(
                _WeightsAndBiases(wandb, pathlib.Path(workdir), config or {}, resumed=start_step > 0)
            )

    def write(
        self, step: int, epoch: float, metrics: Mapping[str, Any], timing: Mapping[str, Any] | None = None
    ) -> None:
        """Add one record; it is out of the process's hands when this returns.

        Args:
            step: steps done.
            epoch: epochs done.
            metrics: name -> scalar (array, NumPy or Python number), or a 1-D array of them, which TensorBoard does
                not show; fetched from the device in one go.
            timing: what depends on the clock.

        Raises:
            ValueError: a value that is no number nor a list of them, or a metric called step, epoch or timing.
            OSError: it could not be written; nothing of it is in the file.
        """
        if self._file is None:
            return
        reserved = {"step", "epoch", "timing"} & set(metrics)
        if reserved:
            raise ValueError(
                f"A metric cannot be called {sorted(reserved)[0]!r}: the record has such a field."
            )
        metrics, timing = jax.device_get((dict(metrics), dict(timing or {})))
        numbers = {name: _numbers_of(name, value) for name, value in metrics.items()}
        record = {"step": int(step), "epoch": float(epoch), **numbers}
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

    def check(self) -> None:
        """Raise OSError where the file, or its workdir, was removed or replaced under the run."""
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
                f"{path} was removed or replaced while the run wrote to it: nothing since is saved in {path.parent}."
                " Keep workdirs in place while they train, and give the same command again."
            )

    def close(self) -> None:
        """Close the files; a second time does nothing."""
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
    """A run of Weights & Biases behind the methods of a ``clu`` writer.

    A resumed run goes on in the one that its workdir names; what begins at step 0 is a run of its own, whatever lay
    at this path, here or on another machine.
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
            reinit="create_new",  # replicas are runs side by side in one process
            dir=str(workdir),
            config=dict(config),
        )
        if not known:
            write_text(file, f"{self._run.id}\n")

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        self._run.log(dict(scalars), step=step)

    def flush(self) -> None:
        pass  # its own process sends

    def close(self) -> None:
        self._run.finish()


def read_metrics(
    workdir: str | os.PathLike, report: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Read the records of ``metrics.jsonl`` in order, every number a number; an unfinished last line is left out.

    Args:
        workdir: of a single run.
        report: called with a sentence about lines that are no records, which are left out; None raises.

    Raises:
        FileNotFoundError: there is no such file, or the workdir is that of replicas.
        ValueError: a line, not the last, is no record.
    """
    if several := replicas.folders(workdir):
        raise FileNotFoundError(
            f"{workdir} holds {len(several)} replicas; name the folder of one, {several[0]}."
        )
    path = pathlib.Path(workdir, METRICS)
    records, wrong = _records(path)
    if wrong and report is None:
        raise Broken(f"{path}, line {wrong[0]}, is not a record of metrics: move the file away.")
    if wrong and report is not None:
        report(f"{_lines(path, wrong)}, and left out.")
    return [numbers(record) for record in records]


def _lines(path: pathlib.Path, wrong: list[int]) -> str:
    more = f" and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    return f"{path}, line {wrong[0]}{more}: no record of metrics"


def _records(path: pathlib.Path) -> tuple[list[dict], list[int]]:
    """Return the records, and the numbers of the lines that are none, but for an unfinished last one."""
    lines = path.read_bytes().split(b"\n")  # no other end of a line: a record may hold U+0085
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
            if number < len(lines):  # else the process died while it wrote
                wrong.append(number)
        else:
            records.append(record)
    return records, wrong


def _repair(path: pathlib.Path, start_step: int, report: Callable[[str], None]) -> set[tuple]:
    """Cut the file back to ``start_step``; return what is in it, by step and names."""
    if not path.exists():
        if start_step:
            report(f"{path} is gone: the metrics of the {start_step:,} steps before are lost.")
        return set()
    whole = {}
    records, wrong = _records(path)
    if wrong:
        aside = path.with_name(f"{path.name}.broken")
        aside.write_bytes(path.read_bytes())
        report(f"{_lines(path, wrong)}. The file was copied to {aside.name}, and its other records are kept.")
    for record in records:
        if record["step"] <= start_step:
            whole.setdefault(_identity(record), record)
    steps = [step for step, _ in whole]
    if start_step and not steps:
        report(f"{path} holds no record of the {start_step:,} steps before: their metrics are lost.")
    elif start_step and start_step - max(steps) > _usual_gap(steps):
        report(f"{path} ends at step {max(steps):,}: the metrics of the steps up to {start_step:,} are lost.")
    text = b"".join(map(_line, whole.values()))
    if text != path.read_bytes():
        with replacing(path) as temporary:
            temporary.write_bytes(text)
    return set(whole)


def _usual_gap(steps: list[int]) -> int:
    """Return the most steps between records that follow each other."""
    known = sorted({0, *steps})
    return max(after - before for before, after in zip(known, known[1:], strict=False))


def _identity(record: Mapping[str, Any]) -> tuple:
    return record["step"], _one(frozenset(record) - {"timing"})


@functools.cache
def _one(names: frozenset) -> frozenset:
    """Return the first set that was equal: a set for each of many records is what a long run would grow by."""
    return names


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain(record), allow_nan=False, ensure_ascii=False) + "\n").encode()


def _append(file: Any, line: bytes) -> None:
    """Append by one system call, unless the disk fills up: it then takes a part, and that is taken back."""
    length = os.fstat(file.fileno()).st_size
    try:
        while line:
            line = line[file.write(line) :]
    except OSError as error:
        file.truncate(length)
        error.filename = file.name  # a write that fails does not name its file
        raise


def _numbers_of(name: str, value: Any) -> bool | int | float | list:
    array = np.asarray(value)
    if array.ndim == 1 and array.size > 1:
        return [_numbers_of(name, item) for item in array]
    if array.size != 1 or array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ValueError(f"The metric {name!r} is {value!r}: a metric is one number, or a list of them.")
    return float(array.reshape(())) if array.dtype.kind not in "biu" else array.reshape(()).item()
