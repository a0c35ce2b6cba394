"""Records whose images are made of others' once they are decoded: what has to be done before a view is cut out."""

import dataclasses
import io
from collections.abc import Sequence

import numpy as np

from contrastive_jax.data import decode
from contrastive_jax.data.composites import Made
from contrastive_jax.data.records import Record, Records, Unreadable


@dataclasses.dataclass(frozen=True)
class Overlaid:
    """Encoded images, resized and made into others as they are read (:class:`records.Records`).

    Attributes:
        records: of the images.
        size: short side resized to it, centre cropped.
        made: what is made of them.
        label: [n] int32 in the place of their own; None leaves these.
    """

    records: Records
    size: int
    made: Made
    label: np.ndarray | None = None
    _replaced: bool = dataclasses.field(default=False, init=False)  # whether the labels are not the records'

    def __post_init__(self):
        own = getattr(self.records, "label", None) if self.label is None else self.label
        object.__setattr__(self, "label", own)
        object.__setattr__(self, "_replaced", self.label is not getattr(self.records, "label", None))

    @property
    def chunk(self) -> int:
        """Return how many records are well read at once."""
        return self.records.chunk

    @property
    def shape(self) -> tuple[int, int, int]:
        """(size, size, c)."""
        return self.made.composition.shape((self.size, self.size, self.records.shape[2]))

    @property
    def label_shape(self) -> tuple[int, ...]:
        """() or, of a multi-label set, (C,)."""
        return () if self._replaced else self.records.label_shape

    @property
    def labelled(self) -> bool:
        """Return whether any image has a label."""
        return self._replaced or self.records.labelled

    @property
    def labelled_rows(self) -> np.ndarray | None:
        """The images that have a label, where :attr:`label` does not say; None: all."""
        return getattr(self.records, "labelled_rows", None)

    @property
    def paths(self) -> np.ndarray | None:
        """[n] str, of images that are files."""
        return getattr(self.records, "paths", None)

    def __len__(self) -> int:
        return len(self.records)

    def read(self, rows: Sequence[int]) -> list[Record]:
        """Read the records of some rows, in that order: images as .npy files.

        Raises:
            Unreadable: the first image that cannot be read, by name.
        """
        records = []
        for row, record in zip(rows, self.records.read(rows), strict=True):
            try:
                image = decode.whole(record.image, self.records.shape[2], self.size)
            except decode.Damaged as error:
                raise Unreadable(f"cannot read {self.name(row)}: {error}") from error
            file = io.BytesIO()
            np.save(file, self.made.images(image[None], np.array([row]))[0], allow_pickle=False)
            label = int(self.label[row]) if self._replaced else record.label
            records.append(Record(file.getvalue(), label, record.group))
        return records

    def name(self, row: int) -> str:
        """Return what to call a record in a message."""
        return self.records.name(row)
