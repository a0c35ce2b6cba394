"""In memory or streamed: decided once for the splits of a set, and once for what feeds the step."""

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
    """Store the splits of a set, all in memory or all streamed; None stays None.

    Args:
        name: of the set, for messages.
        records: of each split.
        size: short side resized to it, centre cropped; 0 leaves images as they are.
        memory_limit: GiB that the decoded images may take.
        stream: "auto" streams what differs in size or takes more memory; "on" and "off" decide.
        corrupt: what a record does that cannot be read: see :class:`stream.Streamed`; of images in memory, the next
            of the set stands in (:func:`records.decoded`).
        workers, resize: see :class:`stream.Streamed`.

    Raises:
        ValueError: ``stream="off"`` and images that differ in size or do not fit; a wrong option.
    """
    check_values({"stream": Streaming}, {"stream": stream}, "data")
    splits: list[Any] = [part and Streamed(part, size, workers, corrupt, resize) for part in records]
    shape, count = splits[0].shape, sum(len(part) for part in records if part)
    if streams(stream, count, shape, memory_limit):
        return splits
    if None in shape:
        raise ValueError(
            f"images of {name} differ in size: set data.size, to which the short side is resized before the "
            "centre is cropped, or data.stream=auto"
        )
    pixels.check_memory(name, count, shape, memory_limit)
    return [decoded(part, size, corrupt == "replace") if part else None for part in records]


def streams(stream: str, count: int, shape: tuple[int | None, int | None, int], memory_limit: float) -> bool:
    """Return whether images are streamed: "auto" those that differ in size or take more memory."""
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
    """Return what feeds a step with a split: on the host ``feed(step)``, inside the step ``take(arrays, step)``.

    Args:
        split: resident or streamed.
        view: training's views (:func:`augment.make_views`); a stream cuts them out on the host, and the step has
            only ``split.finish(view)`` to do.
        seed: of the run.
        batch_size: global.
        steps: of the run; nothing is read beyond them.
        mesh: None is the default device.
        replaced: corrupt records that the run met before.
        report: told of every corrupt record, once.
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
    """Return ``(take, shapes)`` of what :func:`feed` would feed on ``mesh``, whose devices need not be there."""
    if isinstance(split, Streamed):
        return Stream.take, Stream.shapes(split, view, batch_size, mesh)
    return Take(split.made.composition), Resident.shapes(split, batch_size, mesh)
