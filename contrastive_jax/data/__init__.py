"""Images, labels and their order.

``load`` says where images are (:mod:`sources`), ``synthetic`` makes some that show nothing; ``feed`` gets them to a
step, from the device's memory (:mod:`resident`) or from files (:mod:`stream`), in the order of :mod:`order`.
"""

from contrastive_jax.data.noise import synthetic
from contrastive_jax.data.order import permutation, rows
from contrastive_jax.data.resident import Resident
from contrastive_jax.data.same import contents, differing
from contrastive_jax.data.sources import accepts, from_arrays, load, stand_in
from contrastive_jax.data.split import Source, Split, files_digest
from contrastive_jax.data.storage import feed, feed_shapes
from contrastive_jax.data.stream import Stream, Streamed, WorkerDied

__all__ = [
    "Resident",
    "Source",
    "Split",
    "Stream",
    "Streamed",
    "WorkerDied",
    "accepts",
    "contents",
    "differing",
    "feed",
    "feed_shapes",
    "files_digest",
    "from_arrays",
    "load",
    "permutation",
    "rows",
    "stand_in",
    "synthetic",
]
