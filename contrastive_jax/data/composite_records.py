"""Records of composed images, for images that have to be composed before views are cropped."""

import dataclasses
import io

import numpy as np

from contrastive_jax.data import pixels
from contrastive_jax.data.composites import Made
from contrastive_jax.data.records import Record, Records, Unreadable
from contrastive_jax.data.split import Indices


@dataclasses.dataclass(frozen=True)
class Overlaid:
    """Images that are decoded, resized and composed when they are read (:class:`records.Records`).

    Attributes:
        records: records of the stored images.
        size: size in pixels to which the short side is resized before the centre is cropped.
        made: composition of the images.
        label: labels [n] int32 that replace those of the records; None: keep these.
    """

    records: Records
    size: int
    made: Made
    label: np.ndarray | None = None
    _replacement: np.ndarray | None = dataclasses.field(default=None, init=False)  # None: labels are kept

    def __post_init__(self):
        known = getattr(self.records, "label", None)
        label = known if self.label is None else self.label
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "_replacement", None if label is known else label)

    @property
    def chunk(self) -> int:
        """Number of records that are efficiently read at once."""
        return self.records.chunk

    @property
    def shape(self) -> tuple[int, int, int]:
        """(size, size, c)."""
        return self.made.composition.shape((self.size, self.size, self.records.shape[2]))

    @property
    def label_shape(self) -> tuple[int, ...]:
        """() or, for a multi-label set, (C,)."""
        return self.records.label_shape if self._replacement is None else ()

    @property
    def group(self) -> np.ndarray | None:
        """Groups [n] of the images; None if they are in records not yet read."""
        return getattr(self.records, "group", None)

    @property
    def labelled(self) -> bool:
        """Return whether any image has a label."""
        return self._replacement is not None or self.records.labelled

    @property
    def labelled_rows(self) -> np.ndarray | None:
        """Indices of the images with a label, if :attr:`label` does not show them; None: all."""
        return getattr(self.records, "labelled_rows", None)

    @property
    def paths(self) -> np.ndarray | None:
        """Paths [n] str of images that are files; otherwise None."""
        return getattr(self.records, "paths", None)

    def __len__(self) -> int:
        return len(self.records)

    def read(self, rows: Indices) -> list[Record]:
        """Read the records of some rows, in that order, with images as .npy files.

        Raises:
            Unreadable: an image cannot be read; the message names the first.
        """
        records = []
        for row, record in zip(rows, self.records.read(rows), strict=True):
            try:
                image = pixels.whole(record.image, self.records.shape[2], self.size)
            except pixels.Damaged as error:
                raise Unreadable(f"cannot read {self.name(row)}: {error}") from error
            file = io.BytesIO()
            np.save(file, self.made.images(image[None], np.array([row]))[0], allow_pickle=False)
            label = record.label if self._replacement is None else int(self._replacement[row])
            records.append(Record(file.getvalue(), label, record.group))
        return records

    def name(self, row: int) -> str:
        """Return a record's name for messages."""
        return self.records.name(row)
