"""Immutable records that the modules exchange; all but :class:`Example` are pytrees of arrays.

Shapes: B examples of a batch, W views of an example, V directions of comparison, pairs of views (of two views
V = 2: each queries the other; V = 1: view 0 queries view 1), Q queries, D embedding width, F feature width, C
classes, M candidates, S scales. Views are batch-major, ``[B, W, h, w, c]`` for images and ``[B, W, ...]`` for
other examples, because the batch is sharded.
"""

import dataclasses
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax
import numpy as np

Array = jax.Array
AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)  # of functions that compute either by its own library
PyTree = Any


@dataclass_transform(frozen_default=True)
def record(cls):
    """Make a frozen dataclass that is a pytree; every field is a child."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def fit_32_bits(ids: np.ndarray) -> bool:
    """Return whether the ids are integers that fit in int32."""
    limits = np.iinfo(np.int32)
    whole = ids.dtype.kind in "iub"
    return whole and (not ids.size or bool(limits.min <= ids.min() and ids.max() <= limits.max))


def narrow_ids(*ids: np.ndarray) -> list[np.ndarray]:
    """Return the ids as int32, with the same equalities within and between arrays.

    Ids that fit are kept; others, such as hashes, are renumbered together.
    """
    if all(map(fit_32_bits, ids)):
        return [of.astype(np.int32) for of in ids]
    _, places = np.unique(np.concatenate([of.reshape(-1) for of in ids]), return_inverse=True)
    parts = np.split(places.reshape(-1).astype(np.int32), np.cumsum([of.size for of in ids])[:-1])
    return [part.reshape(of.shape) for part, of in zip(parts, ids, strict=True)]


class Example(NamedTuple):
    """Shape and dtype of an example of a data set; an image is [h, w, c] uint8, h and w None if sizes vary."""

    shape: tuple[int | None, ...]
    dtype: str

    @property
    def channels(self) -> int:
        """Length of the last axis; only the height and width of images vary."""
        assert self.shape[-1] is not None
        return self.shape[-1]

    @property
    def is_image(self) -> bool:
        """Return whether the example is an image."""
        return len(self.shape) == 3 and self.dtype == "uint8"

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def without(tree: PyTree, *fields: str) -> PyTree:
    """Return a record whose tree lacks the arrays of some fields, for functions of the others."""
    return dataclasses.replace(tree, **dict.fromkeys(fields, ()))


@record
class Batch:
    """Batch of examples for one step."""

    image: PyTree  # [B, ...]: images are [B, h, w, c] uint8, or [B, W, h, w, c] if the host crops the views; pairs
    # are a tuple of two arrays
    label: Array  # [B] int32, -1 if unlabelled; [B, C] uint8 for multi-label data
    id: Array  # [B] int32, number of the example in its data set; augmentation keys derive from it
    group: Array  # [B] int32; examples of one group are never each other's negatives
    epoch: Array  # [B] int32, epoch of each row


@record
class Outputs:
    """Outputs of the network for every view."""

    features: Array  # [B, W, F] pooled encoder output
    projection: Array  # [B, W, D] projector output, not normalised
    prediction: Array  # [B, W, D] predictor output; the projection if there is no predictor
    logits: (
        Array  # [B, W, C] online probe, with stopped gradient unless probe.gradient; C = 0: no probe. Local
    )
    # views have none


@record
class Pool:
    """Candidates for negatives, replicated on every device."""

    key: Array  # [M, D]
    group: Array  # [M] int32; a candidate of the query's own group is not a negative
    row: Array | None = None  # [M] int32, the example shown; read if a query has several positives
    guide: Array | None = None  # [M, G] the guide's embeddings, read with a :class:`QueryGuide`


@record
class QueryGuide:
    """A guide's embeddings of queries; a candidate that it scores above ``limit`` is not a negative."""

    embedding: Array  # [Q, G]
    limit: Array  # [Q]


@record
class Negatives:
    """Statistics of a query's permitted negatives, from one pass over the candidates."""

    count: Array  # [Q] int32, K_i
    logsumexp: Array  # [S, Q] log sum_j exp(scale_s * score_j); -inf where K_i = 0
    mean: Array  # [S, Q] softmax mean of the raw scores at each scale; 0 where K_i = 0; no gradient
    hardest: Array  # [Q] largest raw score; -inf where K_i = 0; no gradient


@record
class Positives:
    """Statistics of a query's further positives: candidates of its own group that show another example."""

    count: Array  # [Q] int32
    logsumexp: Array  # [S, Q] log sum_p exp(scale_s * (score_p - reference)); -inf where the count is 0
    total: Array  # [Q] sum_p (score_p - reference)


@record
class TrainState:
    """State that a run carries from step to step; all of it is checkpointed."""

    step: Array  # [] int32, number of completed steps
    seed: Array  # [] uint32; with the step, the source of all randomness
    params: PyTree  # {"encoder", "projector", "predictor", "probe"}, and "critic" if there is one
    stats: PyTree  # batch-norm statistics, same modules as params
    optimizer: PyTree  # optax state
    target: PyTree  # EMA weights and statistics that compute the keys, or ()
    candidates: PyTree  # queue, or ()
    temperature: PyTree  # controller state, of the run or of each example, or ()
    gradient_snr: PyTree = ()  # moments of the gradient, or ()
    normalizer: PyTree = ()  # moving averages u of each example, or ()
