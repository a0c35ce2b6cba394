"""Checkpoints of a run, written during training and verified bit for bit when they are read.

Orbax writes a step atomically and asynchronously, but does not detect a changed byte in array data. So every
checkpoint stores a fingerprint of each array. A damaged checkpoint is never restored: it is renamed for
inspection, and the previous intact one is restored. A state with a NaN is never written.
"""

import contextlib
import dataclasses
import difflib
import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import distributed, native
from contrastive_jax.types import Array, PyTree

# Orbax's timeout of a write, in seconds of the wall clock. The clock jumps when a machine sleeps, which must
# not end a run. In milliseconds it fits into 31 bits.
PATIENCE = 20 * 24 * 3600
EMPTY = "empty"  # stands for a subtree without arrays: (), {} or None
WIDE = ("float64", "complex128", "int64", "uint64")  # JAX narrows these unless JAX_ENABLE_X64 is set
SLASH = "\u2215"  # replaces a / inside a name of a path, as in Haiku's names


class NonFiniteState(ValueError):
    """Error for a state with a NaN or an infinity, which was not written."""


class NotWritten(OSError):
    """Error for a checkpoint that could not be written; the message names the last good one."""


class DamagedCheckpoints(RuntimeError):
    """Error for a directory without an intact checkpoint; all files stay in place."""


class _Damaged(Exception):
    """Error for one damaged checkpoint; the message is the reason, as a clause of a longer message."""


# --------------------------------------------------------------------------------------------- fingerprints


def fingerprint(state: PyTree) -> str:
    """Return a digest of a state's bits, 16 hexadecimal digits that do not depend on its devices.

    Covers paths, shapes, dtypes and values of all arrays. Raises TypeError for a leaf that is not a jax array,
    or is a typed PRNG key.
    """
    return _digest_of(_describe(state), _inspect(state)[0])


def _digest_of(leaves: dict[str, str], fingerprints: dict[str, int]) -> str:
    text = json.dumps([leaves, fingerprints], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _inspect(state: PyTree) -> tuple[dict[str, int], list[str]]:
    """Return path -> fingerprint of every array, and the paths of the arrays with non-finite values."""
    paths = [path for path, kind in _describe(state).items() if kind != EMPTY]
    # Without a mesh in context, which would refuse arrays on other devices.
    with jax.set_mesh(None):
        facts = jax.device_get([_in_memory(array) or _on_devices(array) for array in jax.tree.leaves(state)])
    not_finite = [path for path, (_, finite) in zip(paths, facts, strict=True) if not finite]
    return {path: int(weighted_sum) for path, (weighted_sum, _) in zip(paths, facts, strict=True)}, not_finite


def _in_memory(array: Array) -> tuple[np.uint32, bool] | None:
    """Inspect like :func:`_on_devices`, but in NumPy without compiling; None if not fully replicated."""
    if not array.is_fully_replicated:
        return None
    values = np.ascontiguousarray(array.addressable_data(0)).reshape(-1)
    words = values.view(f"uint{8 * min(4, values.real.itemsize)}").astype(np.uint32)
    finite = jnp.issubdtype(values.dtype, jnp.integer) or values.dtype == bool or np.isfinite(values).all()
    return np.sum(words * (2 * np.arange(words.size, dtype=np.uint32) + 1), dtype=np.uint32), bool(finite)


@native.jit
def _on_devices(array: Array) -> tuple[Array, Array]:
    """Return the fingerprint of one array, and whether it is finite.

    Parameters, moments and target share shapes, and so compiled programs.
    """
    finite = jnp.isfinite(array).all() if jnp.issubdtype(array.dtype, jnp.inexact) else jnp.array(True)
    return _weighted_sum(array), finite


def _weighted_sum(array: Array) -> Array:
    """Return sum(bits * (2 * index + 1)) mod 2**32; odd weights, so that a single flipped bit changes it."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag], -1)
    if array.dtype == bool:
        array = array.astype(jnp.uint8)
    words = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{min(32, 8 * array.dtype.itemsize)}"))
    # The index is built dimension by dimension: flattening would move data between devices.
    index, stride = jnp.uint32(0), 1
    for axis in reversed(range(words.ndim)):
        index += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= words.shape[axis]
    return jnp.sum(words.astype(jnp.uint32) * (2 * index + 1), dtype=jnp.uint32)


def _describe(state: PyTree) -> dict[str, str]:
    """Return path -> "float32[3,4]" of every array of the state, or "empty" of a subtree without arrays."""
    described: dict[str, str] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(state, is_leaf=_is_empty):
        path = "/".join(jax.tree_util.keystr((key,), simple=True).replace("/", SLASH) for key in keys)
        if _is_empty(leaf):
            described[path] = EMPTY
        elif not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            raise TypeError(
                f"{path} of the state is a {type(leaf).__name__}; a checkpoint can hold jax arrays only"
            )
        elif jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise TypeError(f"{path} of the state is {leaf.dtype}; store jax.random.key_data of it instead")
        else:
            described[path] = f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    return described


def _is_empty(node: Any) -> bool:
    return not jax.tree.leaves(node)


# ---------------------------------------------------------------------------------------------- checkpoints


class Checkpoints:
    """Checkpoints in one directory, local or in an object store (``gs://...``).

    Keeps the last ``keep_last`` checkpoints and, if ``keep_every`` is not 0, those whose step is a multiple of
    it. ``read_only`` is for another run's directory: it creates, cleans and renames nothing. All processes of a
    run must make the same calls. Raises NotADirectoryError, PermissionError or (``read_only``)
    FileNotFoundError for an unusable directory, ValueError for an invalid option.

        with Checkpoints(workdir / "checkpoints") as checkpoints:
            checkpoints.save(step, state, {"config": config})
            restored = checkpoints.restore(state)   # (state, step, meta), or None
    """

    def __init__(self, directory: Any, *, keep_last: int = 3, keep_every: int = 0, read_only: bool = False):
        if keep_last < 1:
            raise ValueError(f"checkpoint.keep_last is {keep_last}; it must be at least 1 (3 are safer)")
        if keep_every < 0:
            raise ValueError(
                f"checkpoint.keep_every is {keep_every}; it must be 0 (none) or a number of steps"
            )
        self.directory = _open_directory(directory, read_only)
        self._read_only = read_only
        with _without_notices_of_reading():
            self._manager = _make_manager(self.directory, keep_last, keep_every, read_only)
        self._writing: int | None = None  # step of the write in flight

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, oldest first, including the one being written."""
        return sorted(self._manager.all_steps())

    def wait(self) -> None:
        """Wait until everything is on disk. Raise NotWritten if a write failed."""
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._not_written(self._writing, error) from error
        finally:
            self._writing = None

    def close(self) -> None:
        """Wait for the write in flight, and end the background threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def save(self, step: int, state: PyTree, meta: dict[str, Any]) -> bool:
        """Write the state in the background; it may be donated as soon as this returns.

        ``meta`` is a JSON object (config, metrics). Returns False if the step exists already. Raises
        NonFiniteState, before anything is written, for a state with a NaN or an infinity; ValueError for a step
        older than the latest; NotWritten if this or the previous checkpoint could not be written;
        PermissionError if read-only.
        """
        import orbax.checkpoint as ocp

        if self._read_only:
            raise PermissionError(
                f"{self.directory} was opened read-only; no checkpoint can be written there"
            )
        step, steps = int(step), self.steps()
        if step in steps:
            return False
        if steps and step < steps[-1]:
            raise ValueError(
                f"step {step} is older than the latest checkpoint, {steps[-1]}, of {self.directory}"
            )
        fingerprints, not_finite = _inspect(state)
        if not_finite:
            raise NonFiniteState(
                f"the state of step {step} is not finite in {_list(not_finite)}; no checkpoint was written"
            )
        record = _seal(meta, _describe(state), fingerprints)
        arguments = ocp.args.Composite(state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave(record))
        self.wait()
        self._writing = step
        try:
            written = self._manager.save(step, args=arguments, force=True)
        except Exception as error:
            raise self._not_written(step, error) from error
        return bool(written)

    def _not_written(self, step: int | None, error: Exception) -> NotWritten:
        self._remove_unfinished(step)
        good = max((other for other in self.steps() if other != step), default=None)
        return NotWritten(
            f"the checkpoint of step {step} could not be written to {self.directory} ({_brief(error)})."
            f" Last good checkpoint: {'none' if good is None else f'step {good}'}; once the cause is"
            " removed, repeat the command to resume from it."
        )

    def _remove_unfinished(self, step: int | None) -> None:
        """Remove the files of a failed write, since the disk may be full; retry while arrays are written."""
        for _ in range(50):
            left = list(self.directory.glob(f"{step}.*tmp*")) if jax.process_index() == 0 else []
            if not left:
                return
            for path in left:
                with contextlib.suppress(OSError):
                    path.rmtree()
            time.sleep(0.1)

    def restore(
        self, like: PyTree, report: Callable[[str], None] = print
    ) -> tuple[PyTree, int, dict[str, Any]] | None:
        """Restore the newest intact state, its step and its meta; None if there is no checkpoint.

        ``like`` gives structure, shapes, dtypes and shardings of the result, as arrays or
        ``jax.ShapeDtypeStruct``. The restored state equals the saved one bit for bit, whatever devices it was
        saved from. A damaged checkpoint is renamed to ``damaged-<step>`` (unless read-only), and ``report`` is
        called with a message. Raises ValueError if the checkpoint has another structure (a changed config), and
        DamagedCheckpoints, without renaming anything, if no checkpoint is intact.
        """
        expected = _describe(like)

        def read(step: int) -> tuple[PyTree, int, dict[str, Any]]:
            record = self._read_record(step)
            younger = _younger(record["leaves"], expected)
            _check_structure(record["leaves"], {p: k for p, k in expected.items() if p not in younger}, step)
            if not younger:
                return self._read_arrays(step, like, record, partial=False), step, record["meta"]
            fields = [f.name for f in dataclasses.fields(like) if f.name not in younger]
            part = {name: getattr(like, name) for name in fields}
            part = self._read_arrays(step, part, record, partial=False)
            return dataclasses.replace(like, **part), step, record["meta"]

        return self._newest_intact(read, report) if self.steps() else None

    def restore_part(
        self,
        names: Iterable[str],
        *,
        step: int | None = None,
        sharding: jax.sharding.Sharding | None = None,
        report: Callable[[str], None] = print,
    ) -> tuple[dict[str, Any], int, dict[str, Any]]:
        """Restore parts of the newest intact state, or of that of ``step``, and return them with step and meta.

        ``names`` are paths such as "params" or "stats/encoder"; the structure of the rest need not be known.
        The parts are verified and returned as nested dicts from the root, ``{"stats": {"encoder": ...}}``, on
        ``sharding`` (default: the first device), with ``{}`` for an empty subtree. Raises FileNotFoundError
        without a checkpoint (of that step), ValueError for a name that the state lacks, and DamagedCheckpoints
        like :meth:`restore`.
        """
        if not self.steps():
            raise FileNotFoundError(f"{self.directory} has no checkpoint")
        if step is not None and step not in self.steps():
            raise FileNotFoundError(
                f"{self.directory} has no checkpoint of step {step}; it has"
                f" {', '.join(map(str, self.steps()))}"
            )
        names = tuple(names)
        sharding = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def read(step: int) -> tuple[dict[str, Any], int, dict[str, Any]]:
            record = self._read_record(step)
            like = _part_like(record["leaves"], names, sharding, step)
            if jax.tree.leaves(like):
                like = self._read_arrays(step, like, record, partial=True)
            return like, step, record["meta"]

        return self._newest_intact(read, report, None if step is None else [step])

    def read_meta(self) -> tuple[int, dict[str, Any]] | None:
        """Return step and meta of the newest checkpoint with readable meta, or None; its state is not read."""
        self.wait()
        steps = self.steps()
        for step in reversed(steps):
            try:
                return step, self._read_record(step)["meta"]
            except _Damaged:
                continue
        return self.read_meta() if self._moved_on(steps) else None

    # _read_record and _read_arrays raise _Damaged for a damaged checkpoint.

    def _newest_intact(
        self, read: Callable[[int], Any], report: Callable[[str], None], among: list[int] | None = None
    ) -> Any:
        self.wait()
        damaged: dict[int, str] = {}
        steps = among or self.steps()
        for step in reversed(steps):
            try:
                record, trouble = read(step), ""
            except _Damaged as error:
                record, trouble = None, str(error)
            if distributed.on_all(not trouble):
                for worse, reason in damaged.items():
                    place = self._move_aside(worse)
                    report(
                        f"The checkpoint of step {worse} is damaged ({reason}){place}; restored step {step}."
                    )
                return record
            damaged[step] = trouble or "another process cannot read it"
        if self._read_only and not among and distributed.on_all(self._moved_on(steps)):
            return self._newest_intact(read, report)
        reasons = "; ".join(f"step {step}: {reason}" for step, reason in damaged.items())
        which = "the checkpoint" if among else "every checkpoint"
        raise DamagedCheckpoints(
            f"{which} in {self.directory} is damaged ({reasons}), and the files are unchanged; restore"
            " them from a copy, or move them away to start again"
        )

    def _moved_on(self, steps: list[int]) -> bool:
        """Return whether another process has written newer checkpoints, and may have removed these."""
        if not self._read_only or not self.directory.exists():
            return False
        self._manager.reload()
        return max(self.steps(), default=-1) > max(steps, default=-1)

    def _move_aside(self, step: int) -> str:
        if self._read_only:
            return ""
        aside, number = self.directory / f"damaged-{step}", 1
        while aside.exists():
            number += 1
            aside = self.directory / f"damaged-{step}-{number}"
        distributed.on_all(True)  # all processes choose the name before one uses it
        if jax.process_index() == 0:
            (self.directory / str(step)).rename(aside)
        distributed.on_all(True)
        self._manager.reload()
        return f" and was moved to {aside.name}"

    def _read_record(self, step: int) -> dict[str, Any]:
        try:
            record = json.loads((self.directory / str(step) / "meta" / "metadata").read_text())
            intact = record.pop("checksum") == _checksum(record)
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise _Damaged(f"its metadata cannot be read: {_brief(error)}") from error
        if not intact:
            raise _Damaged("its metadata was changed")
        if not (isinstance(record.get("meta"), dict) and isinstance(record.get("leaves"), dict)):
            raise _Damaged("its metadata is not that of a checkpoint")
        return record

    def _read_arrays(self, step: int, like: PyTree, record: dict[str, Any], *, partial: bool) -> PyTree:
        import orbax.checkpoint as ocp

        wide = [path for path, kind in _describe(like).items() if kind.partition("[")[0] in WIDE]
        if wide and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                f"the checkpoint of step {step} in {self.directory} has 64-bit arrays,"
                f" {record['leaves'][wide[0]]} ({_list(wide)}): set JAX_ENABLE_X64=1 to read it."
            )
        first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or first), like
        )
        arguments = ocp.args.PyTreeRestore(
            target,
            restore_args=ocp.checkpoint_utils.construct_restore_args(target),
            partial_restore=partial,
        )
        try:
            state = self._manager.restore(step, args=ocp.args.Composite(state=arguments)).state
        except (MemoryError, PermissionError, jax.errors.JaxRuntimeError):
            raise  # a problem of this machine, not of the checkpoint
        except Exception as error:  # orbax raises a bare Exception for missing or truncated array data
            raise _Damaged(f"its arrays cannot be read: {_brief(error)}") from error
        expected = record["fingerprints"]
        differ = [path for path, value in _inspect(state)[0].items() if value != expected[path]]
        if differ:
            raise _Damaged(f"{_list(differ)} differ from the saved arrays")
        return state


def quiet() -> None:
    """Hide the log messages and unraisable errors of orbax and TensorStore about a failed write.

    The write raises NotWritten; without this, every array in flight prints a stack trace too.
    """

    def foreign(record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname and "orbax" not in record.getMessage()

    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(foreign)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not (unraisable.object is None and str(unraisable.exc_value) == "Event loop is closed"):
            before(unraisable)

    sys.unraisablehook = hook


@contextlib.contextmanager
def _without_notices_of_reading() -> Iterator[None]:
    """Hide orbax's warnings that a directory is opened read-only."""

    def other(record: logging.LogRecord) -> bool:
        return not re.search("read_only=True|directory is read only", record.getMessage())

    logger = logging.getLogger("absl")
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


def steps_in(directory: Any) -> list[int]:
    """Return the steps saved in a directory, intact or not; unlike :class:`Checkpoints`, do not create it."""
    import etils.epath

    path = etils.epath.Path(directory)
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _open_directory(directory: Any, read_only: bool) -> Any:
    import etils.epath

    path = etils.epath.Path(directory)
    if "://" not in str(directory):
        path = path.absolute()  # orbax requires it
    try:
        str(path).encode()
    except UnicodeEncodeError:  # Python's stand-ins for bytes that it cannot read, which orbax cannot take
        utf8 = os.fsencode(path).decode(errors="ignore").encode() == os.fsencode(path)
        advice = "set PYTHONUTF8=1 or LC_ALL=C.UTF-8" if utf8 else "its name is not UTF-8, so choose another"
        raise ValueError(f"{str(path)!a} cannot be read in this locale: {advice}.") from None
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file; it must be a directory of checkpoints")
    if read_only:
        if not path.exists():
            raise FileNotFoundError(
                f"there is no checkpoint directory {path}; give the workdir of a run that has saved a"
                " checkpoint"
            )
        return path
    trial = path / f".writable-{jax.process_index()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        trial.write_text("")
        trial.unlink()
    except OSError as error:
        raise PermissionError(f"{path} cannot be written: {_brief(error)}") from error
    return path


def _make_manager(directory: Any, keep_last: int, keep_every: int, read_only: bool) -> Any:
    import orbax.checkpoint as ocp
    from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, EveryNSteps, LatestN

    keep = [LatestN(keep_last)] + ([EveryNSteps(keep_every)] if keep_every else [])
    # By default orbax cuts replicated arrays into one slice per device to write them in parallel, and compiles
    # each cut, which takes seconds at the first save on eight devices; one process writes fast enough.
    arrays = ocp.type_handlers.create_type_handler_registry(
        (jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False))
    )
    return ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy(keep),
            # For directories that it creates asynchronously, orbax uses a timeout of its own.
            async_options=ocp.options.AsyncOptions(
                timeout_secs=PATIENCE, create_directories_asynchronously=False
            ),
            cleanup_tmp_directories=not read_only,
            create=False,
            read_only=read_only,
        ),
        item_handlers={
            "state": ocp.PyTreeCheckpointHandler(type_handler_registry=arrays),
            "meta": ocp.JsonCheckpointHandler(),
        },
    )


def _seal(meta: dict[str, Any], leaves: dict[str, str], fingerprints: dict[str, int]) -> dict[str, Any]:
    """Return the JSON record of a checkpoint, with its checksum."""
    import orbax.checkpoint

    import contrastive_jax

    record = {
        "meta": meta,
        "fingerprint": _digest_of(leaves, fingerprints),
        "fingerprints": fingerprints,
        "leaves": leaves,
        "versions": {
            "contrastive_jax": contrastive_jax.__version__,
            "jax": jax.__version__,
            "orbax": orbax.checkpoint.__version__,
            "numpy": np.__version__,
        },
    }
    try:
        record = json.loads(json.dumps(record))
    except TypeError as error:
        raise TypeError(f"the metadata of a checkpoint must be JSON: {error}") from error
    return record | {"checksum": _checksum(record)}


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _younger(saved: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Return fields of the state that are empty here and absent from the checkpoint of an older program."""
    return [
        path for path, kind in expected.items() if kind == EMPTY and path not in saved and "/" not in path
    ]


def _check_structure(saved: dict[str, str], expected: dict[str, str], step: int) -> None:
    paths = [path for path in expected | saved if expected.get(path) != saved.get(path)]
    if paths:
        first = paths[0]
        raise ValueError(
            f"the checkpoint of step {step} does not match the state of this run: {first} is"
            f" {saved.get(first, 'absent')} in the checkpoint and {expected.get(first, 'absent')} in the"
            " run" + (f" ({len(paths)} leaves differ)" if len(paths) > 1 else "")
        )


def _part_like(leaves: dict[str, str], names: tuple[str, ...], sharding: Any, step: int) -> dict[str, Any]:
    """Return the named parts as nested dicts of the arrays' ``jax.ShapeDtypeStruct``."""
    like: dict[str, Any] = {}
    for name in names:
        chosen = {path: kind for path, kind in leaves.items() if f"{path}/".startswith(f"{name}/")}
        if any(kind == EMPTY and name.startswith(f"{path}/") for path, kind in leaves.items()):
            chosen = {name: EMPTY}  # a state in which no module has statistics has one empty subtree for all
        if not chosen:
            known = sorted({"/".join(p.split("/")[:depth]) for p in leaves for depth in (1, 2, 3)})
            near = difflib.get_close_matches(name, known, n=1)
            raise ValueError(
                f"the checkpoint of step {step} has no {name!r}"
                + (f" (did you mean {near[0]!r}?)" if near else f"; it has {_list(known)}")
            )
        for path, kind in chosen.items():
            *rooms, last = (room.replace(SLASH, "/") for room in path.split("/"))
            place = like
            for room in rooms:
                place = place.setdefault(room, {})
            if kind == EMPTY:
                place[last] = {}
            else:
                dtype, lengths = kind.removesuffix("]").split("[")
                shape = tuple(map(int, lengths.split(","))) if lengths else ()
                place[last] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)
    return like


def _list(names: list[str], shown: int = 3) -> str:
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def _brief(error: BaseException) -> str:
    """Return an error's type and first line; TensorStore's messages fill a page."""
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {line[:200]}" if line else type(error).__name__
