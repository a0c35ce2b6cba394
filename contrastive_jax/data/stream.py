"""Data sets too large for memory: worker processes read, decode and crop; the device does the rest.

The order is that of :mod:`order`, so there is no iterator state: a stream can start at any step, and the rows
of a step are the same for any number of processes and workers. The unit of work is a part of a batch, whose
records are read together and whose crop boxes are drawn together.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import socket
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from contrastive_jax import sharding
from contrastive_jax.data import order, pixels
from contrastive_jax.data.composites import Made
from contrastive_jax.data.records import Record, Records, Unreadable
from contrastive_jax.data.split import Indices
from contrastive_jax.kinds import Ge, check_values
from contrastive_jax.native import resize
from contrastive_jax.system import limits, signals
from contrastive_jax.types import Array, Batch, Example

NumWorkers = Annotated[int, Ge(-1)]
Corrupt = Literal["raise", "replace"]
Resize = Literal["exact", "opencv"]
PART = 32  # examples per part, the unit of work
BUFFERED = 2  # parts loaded ahead by a worker
AHEAD = 2  # batches loaded ahead on the device
CLOSING = 5.0  # seconds to wait for a reading thread on close; an unresponsive file system can block it
PATIENCE = 2.0  # seconds to wait for a batch after a signal
FEW = 2048  # up to this many images, threads are used instead of worker processes
MOST_WORKERS = 32


@dataclasses.dataclass(frozen=True)
class Endless:
    """Order of training: the permutations of :mod:`order`, epoch after epoch."""

    seed: int
    n: int

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and epochs at some positions, int32."""
        return order.at(self.seed, self.n, positions)

    def after(self, position: int) -> int:
        """Return the next position in the same epoch; the last is followed by the first."""
        return position // self.n * self.n + (position + 1) % self.n


@dataclasses.dataclass(frozen=True)
class Listed:
    """Order of evaluation: the given rows, once."""

    rows: np.ndarray
    epoch: int = 0

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows at some positions and their epochs (all equal)."""
        return self.rows[positions].astype(np.int32), np.full(len(positions), self.epoch, np.int32)

    def after(self, position: int) -> int:
        """Return the next position; the last is followed by the first."""
        return (position + 1) % len(self.rows)


@dataclasses.dataclass(frozen=True)
class Loader:
    """Function of a worker process: reads, decodes and crops examples. Picklable."""

    records: Records
    order: Endless | Listed
    cut: Any  # augment.crops.Cut
    seed: int
    size: int
    replace: bool
    made: Made = Made()

    def load(self, positions: np.ndarray) -> dict:
        """Load the examples at some positions.

        Returns:
            image [b, W, s, s, c] uint8, label [b] or [b, C], group, id and epoch [b] int32, and ``replaced``,
            one message per replaced corrupt record.
        """
        rows, epochs = self.order.at(positions)
        messages: list[str] = []
        try:
            records = self.records.read(rows)
            pictures = [pixels.opened(record.image, self._channels, self.size) for record in records]
            boxes = self._boxes(rows, epochs, [picture.size for picture in pictures])
            image = pixels.views(pictures, self.cut, boxes, self._channels)
        except (Unreadable, pixels.Damaged):  # a record is corrupt: read them one by one
            examples = [self._one(int(position), messages) for position in positions]
            rows = np.array([row for row, _, _ in examples], np.int32)
            records, image = (
                [record for _, record, _ in examples],
                np.stack([view for _, _, view in examples]),
            )
        several = bool(self.records.label_shape)
        return {
            "image": self.made.images(image, rows),
            "label": np.array([record.label for record in records], np.uint8 if several else np.int32),
            "group": np.array([record.group for record in records], np.int32),
            "id": rows,
            "epoch": epochs,
            "replaced": messages,
        }

    @property
    def _channels(self) -> int:
        return self.records.shape[2]

    def _boxes(self, rows: np.ndarray, epochs: np.ndarray, sizes: list) -> np.ndarray:
        """Draw boxes [b, W, 4]; padded to PART examples, so that one program is compiled."""
        missing = -len(rows) % PART
        rows, epochs = (np.pad(a, (0, missing), mode="edge") for a in (rows, epochs))
        return self.cut.boxes(self.seed, epochs, rows, sizes + sizes[-1:] * missing)[: len(sizes)]

    def _one(self, position: int, messages: list[str]) -> tuple[int, Record, np.ndarray]:
        """Load row, record and views at a position, or those of the next readable record if it is corrupt."""
        wanted, failure = position, None
        while failure is None or position != wanted:
            (row,), (epoch,) = self.order.at(np.array([position]))
            try:
                (record,) = self.records.read([row])
                picture = pixels.opened(record.image, self._channels, self.size)
                boxes = self._boxes(np.array([row]), np.array([epoch]), [picture.size])
                (views,) = pixels.views([picture], self.cut, boxes, self._channels)
            except (Unreadable, pixels.Damaged) as error:
                corrupt = Unreadable.of(self.records, row, error)
                if not self.replace:
                    raise corrupt from error
                failure = failure or str(corrupt)
                position = self.order.after(position)
                continue
            if failure:
                messages.append(f"{failure}; the next image of the order replaces it")
            return int(row), record, views
        raise Unreadable(f"no record can be read: {failure}")


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of all batches in order, with random access, for workers or Grain's threads.

    Attributes:
        loader: loads the examples of a part.
        batch_size: B, the global batch size.
        own: rows of a batch that this process reads.
        end: number of positions.
    """

    loader: Loader
    batch_size: int
    own: np.ndarray
    end: int

    @property
    def per_batch(self) -> int:
        """Number of parts per batch."""
        return -(-len(self.own) // PART)

    def __len__(self) -> int:
        return -(-self.end // self.batch_size) * self.per_batch

    def __getitem__(self, number: int) -> dict:
        batch, part = divmod(int(number), self.per_batch)
        positions = batch * self.batch_size + self.own[part * PART : (part + 1) * PART].astype(np.int64)
        positions = positions[positions < self.end]
        return self.loader.load(positions) if len(positions) else {}


class WorkerDied(ChildProcessError):
    """Unexpected end of a worker process; the message names the cause and the remedy."""


class Reader:
    """Batches of :class:`Parts` on the host from ``first`` on, read by ``workers`` processes (0: threads)."""

    def __init__(self, parts: Parts, first: int, workers: int):
        self._parts, self._batch = parts, first
        start = first * parts.per_batch
        self._source = Workers(parts, start, workers) if workers else Threads(parts, start)

    def next(self) -> dict:
        """Return the next batch, or this process's share of it.

        Raises:
            Unreadable: a corrupt record, by name.
            WorkerDied: a worker process died.
            StopIteration: no batch is left.
        """
        first = self._batch * self._parts.batch_size
        if first >= self._parts.end:
            raise StopIteration
        rows, batch, done, replaced = int(np.sum(first + self._parts.own < self._parts.end)), {}, 0, []

        def place(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            """Return the slice of the batch's array that the part's array fills."""
            if name not in batch:
                batch[name] = np.empty((rows, *shape[1:]), dtype)
            return batch[name][done : done + shape[0]]

        for _ in range(self._parts.per_batch):
            count, messages = self._source.read(place)
            done += count
            replaced += messages
        self._batch += 1
        return batch | {"replaced": replaced}

    def close(self) -> None:
        """End the workers."""
        self._source.close()


class Threads:
    """Parts in order, loaded by threads of this process."""

    def __init__(self, parts: Parts, start: int):
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():  # Grain reads absl flags, which notebooks and tests do not parse
            flags.FLAGS.mark_as_parsed()
        threads = limits.cores()
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
        self._iterator = iter(grain.MapDataset.source(parts)[start:].to_iter_dataset(options))

    def read(self, place: Callable) -> tuple[int, list[str]]:
        """Write the arrays of the next part to their places; return its number of examples and its messages."""
        part = next(self._iterator)
        messages = part.pop("replaced", [])  # the last part of an evaluation may be empty
        for name, array in part.items():
            place(name, array.shape, array.dtype)[...] = array
        return len(part.get("id", ())), messages

    def close(self) -> None:
        """End the threads."""
        self._iterator.close()


class Workers:
    """Parts in order, loaded by processes that take turns.

    Workers share no lock, semaphore, queue or named memory, which a killed worker could leave locked, half
    written or undeleted (as with Grain and :mod:`concurrent.futures`). Each worker has one end of a socket and
    its parent the other. The kernel closes the worker's end however the worker dies, so a waiting parent
    notices at once. Arrays pass through the socket directly into the batch, without ``/dev/shm``, which is
    limited to 64 MB in a container.
    """

    def __init__(self, parts: Parts, start: int, count: int):
        import cloudpickle

        self._turn, self._count, self._closed = 0, count, False
        self._sockets: list[socket.socket] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        context, parts_pickled = multiprocessing.get_context("spawn"), cloudpickle.dumps(parts)
        try:
            for number in range(count):
                here, there = socket.socketpair()
                self._sockets.append(here)
                with there:  # closed here: only the worker keeps it open
                    process = context.Process(target=_work, args=(there, start + number, count), daemon=True)
                    with signals.held():
                        process.start()
                    self._processes.append(process)
            for number in range(count):
                self._brief(number, parts_pickled)
        except BaseException:
            self.close()
            raise

    def _brief(self, number: int, parts_pickled: bytes) -> None:
        """Send the parts to a worker through its socket.

        Process arguments would pass through a pipe of multiprocessing, where a write beyond the pipe's capacity
        blocks forever if the process has died.
        """
        try:
            self._sockets[number].sendall(len(parts_pickled).to_bytes(8, "little") + parts_pickled)
        except ConnectionError:
            raise self._death(number) from None

    def read(self, place: Callable) -> tuple[int, list[str]]:
        """Write the arrays of the next part to their places; return its number of examples and its messages.

        Raises:
            WorkerDied: a worker died.
            Exception: an exception raised in the worker.
        """
        turn = self._turn % self._count
        self._turn += 1
        stream = self._sockets[turn]
        sentinels = {process.sentinel: number for number, process in enumerate(self._processes)}
        ready = multiprocessing.connection.wait([stream, *sentinels])
        if dead := [number for sentinel, number in sentinels.items() if sentinel in ready]:
            raise self._death(dead[0])  # even if it is another's turn, which may take long
        try:
            header = pickle.loads(_received(stream, int.from_bytes(_received(stream, 8), "little")))
            if isinstance(header, BaseException):
                raise header
            for name, shape, dtype in header["arrays"]:
                array = place(name, shape, dtype)
                if array.nbytes:
                    _fill(stream, memoryview(array).cast("B"))
            return header["count"], header["replaced"]
        except (EOFError, ConnectionError):
            raise self._death(turn) from None

    def _death(self, turn: int) -> Exception:
        """Return the error for a worker that ended: its exit code or signal, and the remedy."""
        process = self._processes[turn]
        process.join(5)
        if self._closed:
            return RuntimeError("the workers are closed.")
        code = process.exitcode
        return WorkerDied(
            f"worker process {process.pid} of data.workers={self._count}, which reads images, {_ended_by(code)}."
        )

    def close(self) -> None:
        """Kill the workers; they hold no resources that need a clean exit."""
        self._closed = True
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(5)
        for stream in self._sockets:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)  # wakes threads that wait for it
            stream.close()


def _ended_by(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}; see its output above"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    told = f"was ended by signal {-code} ({name})"
    if -code == signal.SIGKILL:
        return (
            f"{told}: most likely the system ran out of memory and killed it (see `dmesg`). Give the"
            " job more memory, or lower data.workers or train.batch_size"
        )
    if -code == getattr(signal, "SIGBUS", None):
        return (
            f"{told}: memory or a mapped file could not be read or written; shared memory (/dev/shm) or"
            " a disk may be full, or the file truncated. Make room, or lower data.workers"
        )
    return (
        f"{told}: a library that decodes images crashed, or the process was killed. data.workers=0 starts"
        " no processes"
    )


def _received(stream: socket.socket, size: int) -> bytearray:
    """Receive ``size`` bytes."""
    data = bytearray(size)
    _fill(stream, memoryview(data))
    return data


def _fill(stream: socket.socket, view: memoryview) -> None:
    """Fill the view with received bytes; raise EOFError if the other end closes first."""
    while view:
        count = stream.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]


def _work(stream: socket.socket, first: int, step: int) -> None:
    """Run a worker process: load every ``step``-th part from ``first`` on and send it.

    The worker ignores signals and uses the CPU only; its parent handles signals and accelerators.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # a scheduler sends them to the whole job
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    loaded: queue.Queue = queue.Queue(BUFFERED)
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker runs in a process of its own"
    try:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        threading.Thread(target=_send_all, args=(stream, loaded), daemon=True).start()
    except RuntimeError as error:  # no thread can be started
        _send(stream, error)
        return
    try:
        jax.config.update("jax_platforms", "cpu")
        parts = pickle.loads(_received(stream, int.from_bytes(_received(stream, 8), "little")))
        for number in range(first, len(parts), step):
            loaded.put(parts[number])
    except Exception as error:
        loaded.put(error)
    loaded.put(None)
    parent.join()  # the parent receives the rest and ends this process


def _send_all(stream: socket.socket, loaded: queue.Queue) -> None:
    """Send loaded parts in order, while the next is being loaded."""
    try:
        while (part := loaded.get()) is not None:
            _send(stream, part)
    except OSError:  # the parent closed the socket or has ended
        os._exit(1)
    except BaseException:  # a dead thread alone would leave the parent waiting
        traceback.print_exc()
        os._exit(1)


def _send(stream: socket.socket, part: dict | Exception) -> None:
    """Send the header, then the arrays of a part, or an error as the header."""
    if isinstance(part, Exception):
        arrays, header = [], _portable(part)
    else:
        replaced = part.pop("replaced", [])
        arrays = [np.ascontiguousarray(array) for array in part.values()]
        described = [(name, array.shape, array.dtype) for name, array in zip(part, arrays, strict=True)]
        header = pickle.dumps({"arrays": described, "count": len(part.get("id", ())), "replaced": replaced})
    stream.sendall(len(header).to_bytes(8, "little") + header)
    for array in arrays:
        if array.nbytes:
            stream.sendall(array.data.cast("B"))


def _portable(error: Exception) -> bytes:
    """Pickle an error with its stack trace as a note; as a RuntimeError if it cannot be unpickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickled


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)  # a killed parent cannot end its workers


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A split whose images stay encoded in storage, with the interface of :class:`split.Split`.

    Attributes:
        records: encoded images of the split.
        size: resize the short side to this many pixels and crop the centre, before any view; 0: unchanged.
        workers: number of processes that decode; 0: threads of this process; -1: one per core, at most 32.
        corrupt: "raise" ends the run at an unreadable record; "replace" uses the next record in order, with its
            own label (in evaluation too), and warns with the name of the unreadable one.
        resize: resizing of training views: "exact" equals the device's; "opencv" is faster and differs
            (:meth:`augment.crops.Cut.resize`). Evaluation is always exact. In both cases, if views are
            antialiased, large JPEGs are first decoded at a lower resolution (:mod:`pixels`), which smooths a
            second time.
        made: composition of the views, applied after they are cropped.
    """

    records: Records
    size: int = 0
    workers: NumWorkers = -1
    corrupt: Corrupt = "raise"
    resize: Resize = "exact"
    made: Made = Made()

    def __post_init__(self):
        check_values({"workers": NumWorkers, "corrupt": Corrupt, "resize": Resize}, vars(self), "data")
        if self.resize == "opencv" and not importlib.util.find_spec("cv2"):
            raise ValueError("data.resize is opencv; it needs OpenCV: pip install 'contrastive_jax[opencv]'")

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, rows) -> "Streamed":
        """Return the rows that an index array, mask or slice selects; their ids start at 0 again."""
        chosen = np.arange(len(self))[rows]
        return dataclasses.replace(self, records=Chosen(self.records, chosen), made=self.made[chosen])

    @property
    def shape(self) -> tuple[int | None, int | None, int]:
        """(h, w, c) of an image; h and w are None if images differ in size."""
        height, width, channels = self.records.shape
        return self.made.composition.shape((self.size or height, self.size or width, channels))

    @property
    def example(self) -> Example:
        """Shape and type of an example."""
        return Example(self.shape, "uint8")

    @property
    def label_shape(self) -> tuple[int, ...]:
        """() or, for a multi-label set, (C,)."""
        return self.records.label_shape

    @property
    def paths(self) -> np.ndarray | None:
        """[n] str, file paths of the images as in :class:`split.Split`, or None."""
        return getattr(self.records, "paths", None)

    @functools.cached_property
    def label(self) -> np.ndarray:
        """[n] int32 or [n, C] uint8.

        If labels are stored only in the records, this reads every record: prefer :attr:`labelled_rows` or the
        labels of :meth:`batches`.
        """
        known = getattr(self.records, "label", None)
        if known is not None:
            return known
        label = np.empty((len(self), *self.label_shape), np.uint8 if self.label_shape else np.int32)

        def read(first: int):
            rows = range(first, min(first + PART, len(self)))
            try:
                label[rows.start : rows.stop] = [record.label for record in self.records.read(rows)]
            except Unreadable:
                if self.corrupt == "raise":
                    raise
                label[rows.start : rows.stop] = [self._stand_in(row).label for row in rows]

        with concurrent.futures.ThreadPoolExecutor(limits.cores()) as pool:
            for _ in pool.map(read, range(0, len(self), PART)):
                pass
        return label

    def _stand_in(self, row: int) -> Record:
        """Read a record, or the next readable one if it is corrupt, as :meth:`batches` does."""
        for other in range(row, row + len(self)):
            try:
                (record,) = self.records.read([other % len(self)])
                return record
            except Unreadable as error:
                last = error
        raise last

    @functools.cached_property
    def labelled(self) -> bool:
        """Return whether any example has a label."""
        return self.records.labelled

    @functools.cached_property
    def labelled_rows(self) -> np.ndarray | None:
        """Rows of the examples that have a label; None: all."""
        if not self.labelled:
            return np.empty(0, np.int64)
        known = getattr(self.records, "label", None)
        if known is None:
            return getattr(self.records, "labelled_rows", None)
        return None if known.ndim == 2 or (known >= 0).all() else np.flatnonzero(known >= 0)

    def finish(self, view) -> Callable:
        """Return the part of ``view`` that the device applies to an image of :meth:`batches`: all but crops."""
        return view.finish

    def batches(
        self, batch_size: int, view, rows: Indices | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield images [b, s, s, c] uint8, cropped by ``view``, and labels.

        They are those of ``rows`` (default: all), in that order. ``view`` comes from :func:`augment.make_eval`.
        The last batch may be smaller.
        """
        listed = Listed(np.arange(len(self)) if rows is None else np.asarray(rows))
        count = len(listed.rows)
        workers = workers_of(self.workers) if count > FEW else 0
        parts = Parts(self.loader(listed, view.cut, 0), batch_size, np.arange(batch_size), count)
        reader = Reader(parts, 0, workers)
        try:
            for _ in range(-(-count // batch_size)):
                batch = reader.next()
                for message in batch["replaced"]:
                    warnings.warn(message, RuntimeWarning, stacklevel=2)
                yield batch["image"][:, 0], batch["label"]
        finally:
            reader.close()

    def drawn(self, view, rows: np.ndarray, *, seed: int, epoch: int) -> dict[str, np.ndarray]:
        """Return image, label and group of some rows as a training step receives them in an epoch.

        Images are [b, W, s, s, c] uint8, cropped by ``view`` (from :func:`augment.make_views`).
        """
        examples = self.loader(Listed(rows, epoch), self.training_cut(view), seed).load(np.arange(len(rows)))
        return {name: examples[name] for name in ("image", "label", "group")}

    def training_cut(self, view):
        """Return the crops of a training view, resized as ``resize`` has it."""
        return dataclasses.replace(view.cut, opencv=self.resize == "opencv")

    def loader(self, order: Endless | Listed, cut, seed: int) -> Loader:
        """Return the loader that reads this split in the given order."""
        resize.resizer()  # compiled here, once, before workers look for it
        return Loader(self.records, order, cut, seed, self.size, self.corrupt == "replace", self.made)


class Chosen:
    """A subset of records."""

    def __init__(self, records: Records, rows: np.ndarray):
        self.records, self.rows = records, rows
        self.shape, self.label_shape = records.shape, records.label_shape
        self.labelled, self.chunk = records.labelled, records.chunk
        known = getattr(records, "labelled_rows", None)
        self.label, self.group, self.paths = (
            None if (of_all := getattr(records, name, None)) is None else of_all[rows]
            for name in ("label", "group", "paths")
        )
        self.labelled_rows = None if known is None else np.flatnonzero(np.isin(rows, known))

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Indices) -> list[Record]:
        """Read the records of some rows, in that order."""
        return self.records.read(self.rows[np.asarray(rows)])

    @property
    def files(self) -> Any:
        """Return the image files of the subset (:class:`image_files.Files`); None if records are not files."""
        files = getattr(self.records, "files", None)
        return None if files is None else files[self.rows]

    def name(self, row: int) -> str:
        """Return a record's name for messages."""
        return self.records.name(int(self.rows[row]))


def workers_of(workers: int) -> int:
    """Return the number of worker processes; -1 means one per core, at most 32."""
    return min(limits.cores(), MOST_WORKERS) if workers < 0 else workers


def own_rows(batch_size: int, mesh: Mesh | None) -> np.ndarray:
    """Return the rows of a global batch on devices of this process, in ascending order."""
    if mesh is None:
        return np.arange(batch_size)
    rows = sharding.named(mesh, sharding.ROWS)
    slices = rows.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in slices]))


def take(batch: Batch, step: Array | int) -> Batch:
    """Return the batch of a step: the one that was fed."""
    return batch


class Stream:
    """The feed of a :class:`Streamed` split, with views already cropped.

    :class:`resident.Resident` is the feed of a resident split.
    ``batch_size`` is global; each process reads its own rows. A thread loads batches ahead and puts them on the
    devices.

    Attributes:
        replaced: number of rows fed so far that replaced corrupt records, plus the initial ``replaced``.
    """

    take = staticmethod(take)

    def __init__(
        self,
        split: Streamed,
        *,
        view,
        seed: int,
        batch_size: int,
        steps: int,
        mesh: Mesh | None = None,
        own: np.ndarray | None = None,
        replaced: int = 0,
        report: Callable[[str], None] = print,
    ):
        devices = mesh.size if mesh else 1
        if batch_size < 1 or batch_size % devices:
            raise ValueError(
                f"batch_size is {batch_size}; it must be a positive multiple of the {devices} devices"
            )
        own = own_rows(batch_size, mesh) if own is None else own
        loader = split.loader(Endless(seed, len(split)), split.training_cut(view), seed)
        self._parts = Parts(loader, batch_size, own, steps * batch_size)
        self._workers, self._mesh, self._steps, self._report = workers_of(split.workers), mesh, steps, report
        self.replaced, self._before = replaced, replaced
        self._known: set[str] = set()
        self._facts = dict(split.made.facts)
        self._reader: Any = None  # reads the batches ahead
        self._last: tuple[int, Any] = (-1, None)  # step and its batch
        self._ahead: collections.deque[concurrent.futures.Future] = collections.deque()
        self._next = -1
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "stream")

    def feed(self, step: int) -> Batch:
        """Return the batch of a step; consecutive steps use the batches loaded ahead.

        Raises:
            Unreadable: a corrupt record, by name, unless it is replaced.
            WorkerDied: a worker process died.
            KeyboardInterrupt: a signal arrived while waiting for the batch.
        """
        step = int(step)
        if step == self._last[0]:
            return self._last[1]
        if step != self._next:
            self._seek(step)
        while len(self._ahead) <= AHEAD and step + len(self._ahead) < self._steps:
            self._ahead.append(self._pool.submit(self._make))
        batch, replaced = self._wait(self._ahead.popleft())
        for message in replaced:
            if message not in self._known:
                self._report(message)
        self._known.update(replaced)
        self.replaced += len(replaced)
        self._next, self._last = step + 1, (step, batch)
        return batch

    @staticmethod
    def _wait(future: concurrent.futures.Future) -> tuple[Batch, list[str]]:
        """Return the result; raise KeyboardInterrupt if a signal arrived and the result is not ready soon."""
        while True:
            try:
                return future.result(timeout=0.5)
            except TimeoutError:
                if future.done():  # raised by the reading itself
                    raise
            if threading.current_thread() is threading.main_thread():
                signals.check(PATIENCE)

    @staticmethod
    def shapes(split: Streamed, view, batch_size: int, mesh: Mesh) -> Batch:
        """Return the shapes of the batches of :meth:`feed`, to compile a program for other devices."""
        rows, several = sharding.named(mesh, sharding.ROWS), split.label_shape

        def shape(*lengths, dtype=np.int32):
            return jax.ShapeDtypeStruct((batch_size, *lengths), dtype, sharding=rows)

        views, size = len(view.cut.crops), view.cut.size
        return Batch(
            image=shape(views, size, size, split.shape[-1], dtype=np.uint8),
            label=shape(*several, dtype=np.uint8 if several else np.int32),
            id=shape(),
            group=shape(),
            epoch=shape(),
        )

    def metrics(self) -> dict[str, float]:
        """Return the stream's metrics; with several processes, all must call this."""
        if jax.process_count() == 1:
            return self._facts | {"replaced": self.replaced}
        from jax.experimental import multihost_utils

        here = np.int32(self.replaced - self._before)
        return self._facts | {"replaced": self._before + int(multihost_utils.process_allgather(here).sum())}

    def close(self) -> None:
        """End the thread and the workers."""
        self._stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _seek(self, step: int) -> None:
        self._stop()
        self._reader = Reader(self._parts, step, self._workers)

    def _stop(self) -> None:
        for future in self._ahead:
            future.cancel()
        if self._workers and self._reader:
            self._reader.close()  # ends a pending read
        concurrent.futures.wait(self._ahead, timeout=CLOSING)
        self._ahead.clear()
        if self._reader:
            if not self._workers:
                self._reader.close()
            self._reader = None

    def _make(self) -> tuple[Batch, list[str]]:
        batch = self._reader.next()
        replaced = batch.pop("replaced")
        return Batch(**{name: self._put(array) for name, array in batch.items()}), replaced

    def _put(self, array: np.ndarray) -> Array:
        if self._mesh is None:
            return jnp.asarray(array)
        rows = sharding.named(self._mesh, sharding.ROWS)
        shape = (self._parts.batch_size, *array.shape[1:])
        return jax.make_array_from_process_local_data(rows, array, shape)
