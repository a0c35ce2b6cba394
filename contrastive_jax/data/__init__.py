"""Images, labels and their order.

``digits``, ``folder``, ``webdataset``, ``huggingface``, ``arrays``, ``tfds`` and ``synthetic`` are the values of
``data.name``; ``find`` returns one by name (:mod:`sources`). ``feed`` passes examples to a step, from device memory
(:mod:`resident`) or from files (:mod:`stream`), in the order of :mod:`order`.
"""

from contrastive_jax.data.array_files import arrays
from contrastive_jax.data.arrow_tables import huggingface
from contrastive_jax.data.image_files import FILES
from contrastive_jax.data.image_folder import folder
from contrastive_jax.data.noise import synthetic
from contrastive_jax.data.order import permutation, rows
from contrastive_jax.data.resident import Resident
from contrastive_jax.data.same import contents, differing
from contrastive_jax.data.scikit_digits import digits
from contrastive_jax.data.shards import webdataset
from contrastive_jax.data.sources import find, from_arrays, known, load, stand_in
from contrastive_jax.data.split import Split, files_digest
from contrastive_jax.data.storage import Source, feed, feed_shapes
from contrastive_jax.data.stream import Stream, Streamed, WorkerDied
from contrastive_jax.data.tfds_images import tfds

__all__ = [
    "FILES",
    "Resident",
    "Source",
    "Split",
    "Stream",
    "Streamed",
    "WorkerDied",
    "arrays",
    "contents",
    "differing",
    "digits",
    "feed",
    "feed_shapes",
    "files_digest",
    "find",
    "folder",
    "from_arrays",
    "huggingface",
    "known",
    "load",
    "permutation",
    "rows",
    "stand_in",
    "synthetic",
    "tfds",
    "webdataset",
]
