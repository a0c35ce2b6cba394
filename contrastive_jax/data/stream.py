"""Data sets that do not fit: Grain reads, decodes and crops in worker processes, the device does the rest.

The order is :mod:`order`'s, so there is no iterator state: a stream starts at any step, and the rows of a step
are the same on any number of processes and workers. Work is dealt out in parts of a batch: a part is
read at once, its boxes are drawn at once.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import importlib.util
import multiprocessing
import os
import pathlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from contrastive_jax import sharding
from contrastive_jax.data import decode, order
from contrastive_jax.data.composites import Made
from contrastive_jax.data.records import Record, Records, Unreadable
from contrastive_jax.types import Array, Batch

PART = 32  # examples that a worker handles at once
AHEAD = 2  # batches that lie ready on the device
FEW = 2048  # images for which no worker process is worth starting
MOST_WORKERS = 32


@dataclasses.dataclass(frozen=True)
class Endless:
    """The order of training, :mod:`order`'s."""

    seed: int
    n: int

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and epochs of some positions, int32."""
        return order.at(self.seed, self.n, positions)

    def after(self, position: int) -> int:
        """Return the next position of the same permutation."""
        return position // self.n * self.n + (position + 1) % self.n


@dataclasses.dataclass(frozen=True)
class Listed:
    """The order of evaluation: some rows, once."""

    rows: np.ndarray
    epoch: int = 0

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and epochs (all the same) of some positions."""
        return self.rows[positions].astype(np.int32), np.full(len(positions), self.epoch, np.int32)

    def after(self, position: int) -> int:
        """Return the next position, the first after the last."""
        return (position + 1) % len(self.rows)


@dataclasses.dataclass(frozen=True)
class Loader:
    """The part of a worker process: it reads, draws boxes, decodes and crops. Picklable."""

    records: Records
    order: Endless | Listed
    cut: Any  # augment.crops.Cut
    seed: int
    size: int
    replace: bool
    made: Made = Made()

    def load(self, positions: np.ndarray) -> dict:
        """Load the examples at some positions: image [b, W, s, s, c] uint8, label [b] or [b, C], group, id and
        epoch [b] int32, and for every corrupt record that was replaced a message."""
        rows, epochs = self.order.at(positions)
        messages = []
        try:
            records = self.records.read(rows)
            pictures = [decode.opened(record.image, self._channels, self.size) for record in records]
            boxes = self._boxes(rows, epochs, [picture.size for picture in pictures])
            image = decode.views(pictures, self.cut, boxes)
        except (Unreadable, decode.Damaged):  # some record is corrupt; any other error is none of a record's
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
        """Draw [b, W, 4], drawn for PART examples always, so that one program is compiled."""
        missing = -len(rows) % PART
        rows, epochs = (np.pad(a, (0, missing), mode="edge") for a in (rows, epochs))
        return self.cut.boxes(self.seed, epochs, rows, sizes + sizes[-1:] * missing)[: len(sizes)]

    def _one(self, position: int, messages: list[str]) -> tuple[int, Record, np.ndarray]:
        """Load row, record and views at a position; where the record is corrupt, those of the next that is not."""
        wanted, failure = position, None
        while failure is None or position != wanted:
            (row,), (epoch,) = self.order.at(np.array([position]))
            try:
                (record,) = self.records.read([row])
                picture = decode.opened(record.image, self._channels, self.size)
                boxes = self._boxes(np.array([row]), np.array([epoch]), [picture.size])
                views = picture.cut(self.cut, boxes[0])
            except (Unreadable, decode.Damaged) as error:
                corrupt = Unreadable.of(self.records, row, error)
                if not self.replace:
                    raise corrupt from error
                failure = failure or str(corrupt)
                position = self.order.after(position)
                continue
            if failure:
                messages.append(f"{failure}; the next of the order stands in")
            return int(row), record, views
        raise Unreadable(f"no record can be read: {failure}")


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of every batch, one after another, with random access: what Grain reads.

    Attributes:
        loader: what makes a part of positions.
        batch_size: B, of the global batch.
        own: the rows of a batch that this process reads.
        end: number of the positions there are.
    """

    loader: Loader
    batch_size: int
    own: np.ndarray
    end: int

    @property
    def per_batch(self) -> int:
        """Parts of a batch."""
        return -(-len(self.own) // PART)

    def __len__(self) -> int:
        return -(-self.end // self.batch_size) * self.per_batch

    def __getitem__(self, number: int) -> dict:
        batch, part = divmod(int(number), self.per_batch)
        positions = batch * self.batch_size + self.own[part * PART : (part + 1) * PART].astype(np.int64)
        positions = positions[positions < self.end]
        return self.loader.load(positions) if len(positions) else {}


class Reader:
    """Batches of :class:`Parts` on the host, from one on: by ``workers`` processes, or threads of this one."""

    def __init__(self, parts: Parts, first: int, workers: int):
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():  # Grain reads flags of its own, in notebooks and tests too
            flags.FLAGS.mark_as_parsed()
        self._per_batch, self._workers = parts.per_batch, workers
        threads = 1 if workers else max(1, cores())
        data = grain.MapDataset.source(parts)[first * parts.per_batch :].to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
        )
        if workers:
            options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
            data = data.mp_prefetch(options, worker_init_fn=_in_worker)
        self._iterator = iter(data)

    def next(self) -> dict:
        """Return the next batch, or this process's share of it.

        Raises:
            Unreadable: a corrupt record, by name.
            RuntimeError: a worker process died.
            StopIteration: there is none.
        """
        parts = []
        for _ in range(self._per_batch):
            try:
                parts.append(next(self._iterator))
            except RuntimeError as error:
                if "exit code" not in str(error):
                    raise
                raise RuntimeError(
                    f"a worker process of data.workers={self._workers} died: {error}"
                ) from error
        parts = [part for part in parts if part]  # the last batch of an evaluation may lack some
        batch = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "replaced"
        }
        return batch | {"replaced": [message for part in parts for message in part["replaced"]]}

    def close(self) -> None:
        """End the workers."""
        self._iterator.close()


def _in_worker(number: int, count: int) -> None:
    """Prepare a worker: signals are its parent's affair, and so are the accelerators; it ends with it."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a scheduler sends them to the whole job
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    jax.config.update("jax_platforms", "cpu")


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)  # a parent that was killed cannot say so


def cores() -> int:
    """Count CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A split that stays encoded where it is stored; offers what :class:`split.Split` offers.

    Attributes:
        records: of the split.
        size: short side resized to it, centre cropped, before anything else; 0 leaves images as they are.
        workers: processes that decode; 0: threads of this process; -1: as many as cores, up to 32.
        corrupt: "raise" ends the run at a record that cannot be read; "replace" takes the next of the order, and a
            warning names it. In evaluation the stand-in is judged by its own label.
        resize: "exact" resizes training's views as the device would; "opencv" is faster, and differs
            (:meth:`augment.crops.Cut.resize`). Evaluation is exact. But where views are antialiased large JPEGs are
            decoded at less resolution first (:mod:`decode`), in both: smoothed by two kernels, not one.
        made: what is made of the views, once they are cut out.
    """

    records: Records
    size: int = 0
    workers: int = -1
    corrupt: str = "raise"
    resize: str = "exact"
    made: Made = Made()

    def __post_init__(self):
        if self.resize not in ("exact", "opencv"):
            raise ValueError(f"data.resize={self.resize!r} is neither exact nor opencv")
        if self.resize == "opencv" and not importlib.util.find_spec("cv2"):
            raise ValueError("data.resize=opencv needs OpenCV: pip install 'contrastive_jax[opencv]'")
        if self.corrupt not in ("raise", "replace"):
            raise ValueError(f"data.corrupt={self.corrupt!r} is neither raise nor replace")
        if self.workers < -1:
            raise ValueError(f"data.workers={self.workers}: processes, 0 for threads, -1 for one a core")

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, rows) -> "Streamed":
        """Return the rows that an index array, mask or slice selects; their ids start at 0 again."""
        chosen = np.arange(len(self))[rows]
        return dataclasses.replace(self, records=Chosen(self.records, chosen), made=self.made[chosen])

    @property
    def shape(self) -> tuple[int | None, int | None, int]:
        """(h, w, c) of an image; h and w are None where they differ."""
        height, width, channels = self.records.shape
        return self.made.composition.shape((self.size or height, self.size or width, channels))

    @property
    def label_shape(self) -> tuple[int, ...]:
        """() or, of a multi-label set, (C,)."""
        return self.records.label_shape

    @property
    def paths(self) -> np.ndarray | None:
        """[n] str, of images that are files, as in :class:`split.Split`."""
        return getattr(self.records, "paths", None)

    @functools.cached_property
    def label(self) -> np.ndarray:
        """[n] int32 or [n, C] uint8. Where they are only in the records, every record is read: ask for it only
        where :attr:`labelled_rows` and the labels of :meth:`batches` do not do."""
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

        with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
            for _ in pool.map(read, range(0, len(self), PART)):
                pass
        return label

    def _stand_in(self, row: int) -> Record:
        """Read a record, or the next that can be read in the place of one that cannot, as :meth:`batches` does."""
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
        """The examples that have a label; None: all."""
        if not self.labelled:
            return np.empty(0, np.int64)
        known = getattr(self.records, "label", None)
        if known is None:
            return getattr(self.records, "labelled_rows", None)
        return None if known.ndim == 2 or (known >= 0).all() else np.flatnonzero(known >= 0)

    def finish(self, view) -> Callable:
        """Return what the device has to do with an image of :meth:`batches` to get ``view`` of it: all but the crop."""
        return view.finish

    def batches(
        self, batch_size: int, view, rows: Sequence[int] | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield images [b, s, s, c] uint8, cut out as ``view`` (of :func:`augment.make_eval`) has it, and labels
        of ``rows`` (default: all), in that order. The last batch may be smaller."""
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
        """Return image, label and group of some rows as a step of the run would be fed with them in an epoch: images
        [b, W, s, s, c] uint8, cut out as ``view`` (of :func:`augment.make_views`) has it."""
        examples = self.loader(Listed(rows, epoch), view.cut, seed).load(np.arange(len(rows)))
        return {name: examples[name] for name in ("image", "label", "group")}

    def loader(self, order: Endless | Listed, cut, seed: int) -> Loader:
        """Return what reads this split in an order."""
        return Loader(self.records, order, cut, seed, self.size, self.corrupt == "replace", self.made)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Some of the records."""

    records: Records
    rows: np.ndarray

    def __post_init__(self):
        for name in ("shape", "label_shape", "labelled", "chunk"):
            object.__setattr__(self, name, getattr(self.records, name))
        for name in ("label", "paths"):
            known = getattr(self.records, name, None)
            object.__setattr__(self, name, None if known is None else known[self.rows])
        known = getattr(self.records, "labelled_rows", None)
        positions = None if known is None else np.flatnonzero(np.isin(self.rows, known))
        object.__setattr__(self, "labelled_rows", positions)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> list[Record]:
        """Read the records of some rows, in that order."""
        return self.records.read(self.rows[np.asarray(rows)])

    def locate(self, row: int) -> pathlib.Path | None:
        """Return the file of a record; None: it is none."""
        locate = getattr(self.records, "locate", None)
        return locate and locate(int(self.rows[row]))

    def name(self, row: int) -> str:
        """Return what to call a record in a message."""
        return self.records.name(int(self.rows[row]))


def workers_of(workers: int) -> int:
    """Return how many processes -1 means."""
    return min(cores(), MOST_WORKERS) if workers < 0 else workers


def own_rows(batch_size: int, mesh: Mesh | None) -> np.ndarray:
    """Return the rows of a global batch that lie on devices of this process, ascending."""
    if mesh is None:
        return np.arange(batch_size)
    rows = sharding.named(mesh, sharding.ROWS)
    slices = rows.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in slices]))


def take(batch: Batch, step: Array | int) -> Batch:
    """Return the batch of a step: what was fed."""
    return batch


class Stream:
    """The feed of a :class:`Streamed` split, views already cut out, as :class:`resident.Resident` is of a resident one.

    ``batch_size`` is global; every process reads its own rows. Batches are made ahead by a thread, which puts
    them on the devices.

    Attributes:
        replaced: rows fed so far whose records were corrupt and replaced, on top of those it started with.
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
            raise ValueError(f"batch_size={batch_size} is not a positive multiple of the {devices} devices")
        own = own_rows(batch_size, mesh) if own is None else own
        cut = dataclasses.replace(view.cut, opencv=split.resize == "opencv")
        loader = split.loader(Endless(seed, len(split)), cut, seed)
        self._parts = Parts(loader, batch_size, own, steps * batch_size)
        self._workers, self._mesh, self._steps, self._report = workers_of(split.workers), mesh, steps, report
        self.replaced, self._before, self._known = replaced, replaced, set()
        self._facts = dict(split.made.facts)
        self._reader: Any = None  # of what comes next
        self._last: tuple[int, Any] = (-1, None)  # step and its batch
        self._ahead, self._next = collections.deque(), -1
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "stream")

    def feed(self, step: int) -> Batch:
        """Return the batch of a step; steps in order come from what was made ahead.

        Raises:
            Unreadable: a corrupt record, by name, unless it is replaced.
            RuntimeError: a worker process died.
        """
        step = int(step)
        if step == self._last[0]:
            return self._last[1]
        if step != self._next:
            self._seek(step)
        while len(self._ahead) <= AHEAD and step + len(self._ahead) < self._steps:
            self._ahead.append(self._pool.submit(self._make))
        batch, replaced = self._ahead.popleft().result()
        for message in replaced:
            if message not in self._known:
                self._report(message)
        self._known.update(replaced)
        self.replaced += len(replaced)
        self._next, self._last = step + 1, (step, batch)
        return batch

    @staticmethod
    def shapes(split: Streamed, view, batch_size: int, mesh: Mesh) -> Batch:
        """Return what :meth:`feed` gives, as shapes: for a program that is compiled for other devices than these."""
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
        """Return what a stream has to say; all processes have to ask."""
        if jax.process_count() == 1:
            return self._facts | {"replaced": self.replaced}
        from jax.experimental import multihost_utils

        here = np.int32(self.replaced - self._before)
        return self._facts | {"replaced": self._before + int(multihost_utils.process_allgather(here).sum())}

    def close(self) -> None:
        """End the thread and the workers."""
        self._stop()
        self._pool.shutdown(cancel_futures=True)

    def _seek(self, step: int) -> None:
        self._stop()
        self._reader = Reader(self._parts, step, self._workers)

    def _stop(self) -> None:
        for future in self._ahead:
            future.cancel()
        concurrent.futures.wait(self._ahead)
        self._ahead.clear()
        if self._reader:
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
