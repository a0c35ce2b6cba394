"""The records that flow between the modules. All are pytrees of arrays, all are immutable.

Shapes: B examples of a batch, W views of an example, V directions in which a batch is compared
(V = 2: each view queries the other; V = 1: view 0 queries view 1), D embedding, F feature and C
class width, M candidates, S scales. Views are batch-major, ``[B, W, h, w, c]`` of images and ``[B, W, ...]`` of any
other examples: rows of the batch are what is sharded.
"""

import dataclasses
from typing import Any, NamedTuple, dataclass_transform

import jax
import numpy as np

Array = jax.Array
PyTree = Any


@dataclass_transform(frozen_default=True)
def record(cls):
    """Make a frozen dataclass that is a pytree; every field is a child."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def fit_32_bits(ids: np.ndarray) -> bool:
    """Return whether an int32 holds each of the ids."""
    limits = np.iinfo(np.int32)
    whole = ids.dtype.kind in "iub"
    return whole and (not ids.size or bool(limits.min <= ids.min() and ids.max() <= limits.max))


def narrow_ids(*ids: np.ndarray) -> list[np.ndarray]:
    """Return ids that 32 bits hold and that are equal where those given are, also of one array to another's.

    Ids that fit are kept; others, hashes for instance, are numbered anew, together.
    """
    if all(map(fit_32_bits, ids)):
        return [of.astype(np.int32) for of in ids]
    _, places = np.unique(np.concatenate([of.reshape(-1) for of in ids]), return_inverse=True)
    parts = np.split(places.reshape(-1).astype(np.int32), np.cumsum([of.size for of in ids])[:-1])
    return [part.reshape(of.shape) for part, of in zip(parts, ids, strict=True)]


class Example(NamedTuple):
    """Shape and type of an example of a data set; an image is [h, w, c] uint8, h and w None where they differ."""

    shape: tuple[int | None, ...]
    dtype: str

    @property
    def is_image(self) -> bool:
        """Return whether the example is an image."""
        return len(self.shape) == 3 and self.dtype == "uint8"

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@record
class Batch:
    """Examples that a data source hands to the step."""

    image: Array  # [B, ...]: images are [B, h, w, c] uint8, or [B, W, h, w, c] where the host already cropped the views
    label: Array  # [B] int32, -1 where there is none; of a multi-label set [B, C] uint8
    id: Array  # [B] int32, the example's number in its data set: augmentation keys derive from it
    group: Array  # [B] int32, examples of one group are never each other's negatives
    epoch: Array  # [B] int32, the epoch in which each row lies


@record
class Outputs:
    """Outputs of the network for every view."""

    features: Array  # [B, W, F] pooled encoder output
    projection: Array  # [B, W, D] projector output, not normalised
    prediction: Array  # [B, W, D] predictor output; the projection where there is no predictor
    logits: Array  # [B, W, C] online probe (its input is gradient-stopped); C = 0 without a probe


@record
class Pool:
    """Candidates for negatives, replicated on every device."""

    key: Array  # [M, D]
    group: Array  # [M] int32; a candidate of the query's own group is not a negative
    row: Array | None = None  # [M] int32, the example it shows; read where a query has several positives


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
    """All that a run carries from step to step, and all of it is checkpointed."""

    step: Array  # [] int32, steps done
    seed: Array  # [] uint32, with the step the root of all randomness
    params: PyTree  # {"encoder", "projector", "predictor", "probe"}, and "critic" where there is one
    stats: PyTree  # batch-norm statistics, same modules as params
    optimizer: PyTree  # optax state
    target: PyTree  # where the keys come from: EMA weights and statistics, or ()
    candidates: PyTree  # queue, or ()
    temperature: PyTree  # controller state, of the run or of each example, or ()
    gradient_snr: PyTree = ()  # moments of the gradient, or ()
    normalizer: PyTree = ()  # moving averages u of each example, or ()
