"""Choice between data in memory and streamed data, for the splits of a set and for the feed of a step."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from jax.sharding import Mesh

from contrastive_jax.data import pixels
from contrastive_jax.data.records import Records, decoded
from contrastive_jax.data.resident import Resident, Take
from contrastive_jax.data.split import Split, stratified
from contrastive_jax.data.stream import Corrupt, NumWorkers, Resize, Stream, Streamed
from contrastive_jax.kinds import CountOrZero, Decay, Positive

Streaming = Literal["auto", "on", "off"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Options of data sets in files: images in memory or streamed, and what is held out.

    Args:
        validation: stratified share of the training images that is held out and replaces the test images, for
            choosing options; the test images are not used. Images in memory only.
        size: size in pixels to which the short side is resized (bicubic, antialiased) before the centre is
            cropped; 0: the stored size.
        memory_limit: maximum memory of the decoded images of both splits, in GiB.
        stream: whether images stay encoded and are decoded when needed: "auto" if they differ in size (without
            ``size``) or exceed ``memory_limit``; "on" always; "off" never.
        workers: number of worker processes that decode a stream; 0: threads of the training process; -1: one
            per core, at most 32.
        corrupt: handling of unreadable images: "raise" ends the run with the image's name; "replace" uses the
            next image and its label; --mode=embed allows "raise" only.
        resize: resizing of training views in a stream: "exact" equals the device's; "opencv" is faster and has
            a sharper cubic kernel.
    """

    validation: Decay = 0.0
    size: CountOrZero = 0
    memory_limit: Positive = 8.0
    stream: Streaming = "auto"
    workers: NumWorkers = -1
    corrupt: Corrupt = "raise"
    resize: Resize = "exact"


Splits = tuple[Split | Streamed, Split | Streamed | None]  # training and test


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set: training split, test split (or None) and class names.

    Splits are resident (:class:`split.Split`) or streamed (:class:`stream.Streamed`).

    Attributes:
        probes: name -> (train, test), further images or labels to evaluate an encoder on; the entry "", if
            present, replaces train and test in evaluation.
    """

    name: str
    train: Split | Streamed
    test: Split | Streamed | None
    classes: tuple[str, ...]
    probes: Mapping[str, Splits] = dataclasses.field(default_factory=dict)

    @property
    def judged(self) -> dict[str, Splits]:
        """All (train, test) pairs to evaluate an encoder on; the first is "", for columns without a suffix."""
        return {"": (self.train, self.test)} | dict(self.probes)

    @property
    def paired(self) -> bool:
        """Return whether an example is a pair of arrays."""
        return isinstance(self.train, Split) and self.train.paired

    def of_pair(self, number: int) -> "Source":
        """Return the data set of the first (0) or second (1) arrays of pairs; 0 of others is the set itself."""
        if not self.paired and number == 0:
            return self
        train, test = (
            part.of_pair(number) if isinstance(part, Split) else None for part in (self.train, self.test)
        )
        assert train is not None
        return Source(self.name, train, test, self.classes)


def stored(name: str, train: Records, test: Records | None, options: StorageOptions) -> Splits:
    """Return the training and test split of a data set, both in memory or both streamed.

    Args:
        name: name of the data set, for messages.
        train: records of the training split.
        test: records of the test split; None: no test split.
        options: of the set; in memory, ``corrupt="replace"`` takes the next image of the set
            (:func:`records.decoded`).

    Raises:
        ValueError: ``stream="off"`` with images that differ in size or exceed the limit.
    """
    size, replace = options.size, options.corrupt == "replace"
    streamed = Streamed(train, size, options.workers, options.corrupt, options.resize)
    count, shape = len(train) + len(test or ()), one_shape(streamed.shape)
    if streams(options.stream, count, shape, options.memory_limit):
        return streamed, dataclasses.replace(streamed, records=test) if test else None
    if shape is None:
        raise ValueError(
            f"images of {name} differ in size: set data.size (the short side is resized to it and the"
            " centre cropped), or data.stream=auto"
        )
    pixels.check_memory(name, count, shape, options.memory_limit)
    return decoded(train, size, replace), decoded(test, size, replace) if test else None


def one_shape(shape: tuple[int | None, ...]) -> tuple[int, ...] | None:
    """Return the shape of the images of a set; None if they differ in size."""
    known = tuple(length for length in shape if length is not None)
    return known if len(known) == len(shape) else None


def streams(stream: str, count: int, shape: tuple[int, ...] | None, memory_limit: float) -> bool:
    """Return whether images are streamed; "auto" streams those that differ in size or exceed the limit."""
    return (
        stream == "on"
        or stream == "auto"
        and (shape is None or pixels.gibibytes(count, shape) > memory_limit)
    )


def feed(
    split: Split | Streamed,
    *,
    view: Callable,
    seed: int,
    batch_size: int,
    steps: int,
    mesh: Mesh | None = None,
    replaced: int = 0,
    report: Callable[[str], None] = print,
) -> Resident | Stream:
    """Return the feed of a step: ``feed(step)`` on the host and ``take(arrays, step)`` inside the step.

    Args:
        split: resident or streamed split.
        view: views of training (:func:`augment.make_views`); a stream crops them on the host, and the step
            applies only ``split.finish(view)``.
        seed: random seed of the run.
        batch_size: global batch size.
        steps: number of steps of the run; nothing is read beyond them.
        mesh: mesh of devices; None: the default device.
        replaced: number of corrupt records that the run has replaced before.
        report: called once for every corrupt record.
    """
    if isinstance(split, Streamed):
        return Stream(
            split, view=view, seed=seed, batch_size=batch_size, steps=steps, mesh=mesh, replaced=replaced,
            report=report,
        )  # fmt: skip
    return Resident(split, seed=seed, batch_size=batch_size, mesh=mesh)


def feed_shapes(
    split: Split | Streamed, *, view: Callable, batch_size: int, mesh: Mesh
) -> tuple[Callable, Any]:
    """Return ``(take, shapes)`` of :func:`feed` on ``mesh``, whose devices need not be present."""
    if isinstance(split, Streamed):
        return Stream.take, Stream.shapes(split, view, batch_size, mesh)
    return Take(split.made.composition), Resident.shapes(split, batch_size, mesh)


def held_out(source: Source, fraction: float) -> Source:
    """Replace the test split by a stratified fraction of the training examples; 0 changes nothing."""
    if not fraction:
        return source
    if not isinstance(source.train, Split):
        raise ValueError(
            f"data.validation is {fraction}; it needs images in memory, and {source.name} is streamed"
        )
    aside = stratified(source.train.label, fraction, source.train.group)
    if not 0 < aside.sum() < len(aside):
        raise ValueError(
            f"data.validation is {fraction}; with {len(aside)} examples it leaves {aside.sum()} for"
            f" evaluation and {(~aside).sum()} for training"
        )
    return dataclasses.replace(source, train=source.train[~aside], test=source.train[aside])
