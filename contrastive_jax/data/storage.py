"""Choice between data in memory and streamed data, for the splits of a set and for the feed of a step."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from jax.sharding import Mesh

from contrastive_jax.data import pixels
from contrastive_jax.data.records import Records, decoded
from contrastive_jax.data.resident import Resident, Take
from contrastive_jax.data.split import Split
from contrastive_jax.data.stream import Stream, Streamed
from contrastive_jax.kinds import Ge, Le, check_values

Streaming = Literal["auto", "on", "off"]
NumWorkers = Annotated[int, Ge(-1)]
Corrupt = Literal["raise", "replace"]
Resize = Literal["exact", "opencv"]
White = Annotated[int, Ge(1), Le(pixels.WHITE)]


def stored(
    name: str,
    records: Sequence[Records | None],
    *,
    size: int,
    memory_limit: float,
    stream: str,
    workers: int,
    corrupt: str,
    resize: str,
) -> list[Split | Streamed | None]:
    """Return the splits of a data set, all in memory or all streamed; None stays None.

    Args:
        name: name of the data set, for messages.
        records: records of each split.
        size: size in pixels to which the short side is resized before the centre is cropped; 0: the stored
            size.
        memory_limit: maximum memory of the decoded images, in GiB.
        stream: "auto" streams images that differ in size or exceed the memory limit; "on" always, "off" never.
        corrupt: treatment of unreadable records, see :class:`stream.Streamed`; in memory, "replace" takes the
            next image of the set (:func:`records.decoded`).
        workers, resize: see :class:`stream.Streamed`.

    Raises:
        ValueError: ``stream="off"`` with images that differ in size or exceed the limit; an invalid option.
    """
    check_values({"stream": Streaming}, {"stream": stream}, "data")
    splits: list[Any] = [part and Streamed(part, size, workers, corrupt, resize) for part in records]
    shape, count = splits[0].shape, sum(len(part) for part in records if part)
    if streams(stream, count, shape, memory_limit):
        return splits
    if None in shape:
        raise ValueError(
            f"images of {name} differ in size: set data.size (the short side is resized to it and the"
            " centre cropped), or data.stream=auto"
        )
    pixels.check_memory(name, count, shape, memory_limit)
    return [decoded(part, size, corrupt == "replace") if part else None for part in records]


def streams(stream: str, count: int, shape: tuple[int | None, int | None, int], memory_limit: float) -> bool:
    """Return whether images are streamed; "auto" streams those that differ in size or exceed the limit."""
    return (
        stream == "on"
        or stream == "auto"
        and (None in shape or pixels.gibibytes(count, shape) > memory_limit)
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
