"""Views of examples that are not images: tables, time series, sequences of tokens.

Each preset takes the training examples and its options, and returns ``(key, example) -> views [2, ...]``, which
runs on the device. Evaluation uses the examples without augmentation. Floats are float32, integers int32.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax.kinds import (
    Count,
    CountOrZero,
    Decay,
    Fraction,
    Ge,
    NonNegative,
    PositiveFraction,
    checked,
)

Function = Callable[[jax.Array, jax.Array], jax.Array]
VIEWS = 2
OF_PAIRS = {"scarf": 1}  # the view that pairs train on, if not the first (SCARF's is the row itself)


def _both(view: Function) -> Function:
    """Return a function that makes two views by ``view``, each with its own key."""
    return lambda key, example: jax.vmap(view, (0, None))(jax.random.split(key, VIEWS), example)


def _check(name: str, examples: np.ndarray | None, axes: tuple[int, ...], floats: bool, kind: str) -> None:
    """Refuse examples of another rank or type; None (no examples yet) is accepted."""
    if examples is None:
        return
    if examples.ndim - 1 not in axes or np.issubdtype(examples.dtype, np.floating) != floats:
        raise ValueError(
            f"augment.preset is {name!r}, for {kind}; these examples are {examples.dtype}"
            f" {list(examples.shape[1:])}."
        )


def unchanged(examples: np.ndarray | None) -> Function:
    """The example itself, without augmentation: for pairs, whose views are two arrays."""
    return lambda key, example: jnp.stack([example] * VIEWS)


@checked("augment")
def scarf(examples: np.ndarray | None, *, corruption: Fraction = 0.6, bank: Count = 10_000) -> Function:
    """SCARF (Bahri et al., 2022, algorithm 1): views of a table's row are the row and a corrupted copy.

    The corrupted copy replaces a fixed number of random features, each by its value in a random training row,
    that is, by a draw from its marginal distribution.

    Args:
      examples: the training examples, ``[n, F]`` float32.
      corruption: share of the features that are replaced, rounded down to a whole number of features.
      bank: training rows that values are drawn from, evenly spaced over the set; all where there are no more.
    """
    _check("scarf", examples, (1,), True, "tables, float32 [F]")
    if examples is None:
        raise ValueError(
            "augment.preset is 'scarf'; it needs training examples to draw from, and there are none."
        )
    width = examples.shape[1]
    count = int(corruption * width + 1e-9)
    if corruption and not count:
        raise ValueError(
            f"augment.corruption is {corruption}, which replaces none of {width} features, so that both"
            f" views are equal; it must be at least 1 / {width}."
        )
    rows = np.unique(np.linspace(0, len(examples) - 1, min(bank, len(examples))).round().astype(int))
    columns = np.ascontiguousarray(np.asarray(examples[rows], np.float32).T)  # [F, rows]

    def views(key, example):
        which, donor = jax.random.split(key)
        replaced = jax.random.permutation(which, np.arange(width) < count)
        index = jax.random.randint(donor, (width,), 0, len(rows))
        drawn = jnp.asarray(columns)[np.arange(width), index]
        return jnp.stack([example, jnp.where(replaced, drawn, example)])

    return views


@checked("augment")
def time_series(
    examples: np.ndarray | None,
    *,
    jitter: NonNegative = 0.03,
    scaling: NonNegative = 0.1,
    crop_min: PositiveFraction = 0.5,
    mask: Decay = 0.1,
) -> Function:
    """Views of a time series: a window, stretched to the full length, scaled, with noise and masked steps.

    Window slicing follows Le Guennec et al. (2016). Scaling and jitter follow Um et al. (2017), whose standard
    deviations are the defaults, for series of unit variance. Masking of time steps follows TS2Vec (Yue et al.,
    2022), but on the input.

    Args:
      examples: the training examples, ``[n, T]`` or ``[n, T, C]`` float32.
      jitter: standard deviation of Gaussian noise, in units of the values; 0: none.
      scaling: standard deviation of the factor, around 1, that multiplies a channel; 0: none.
      crop_min: shortest window, as a share of the length; 1: the whole series.
      mask: probability that a time step is set to 0; 0: none.
    """
    _check("time_series", examples, (1, 2), True, "time series, float32 [T] or [T, C]")

    def view(key, series):
        keys = jax.random.split(key, 5)
        length, channels = series.shape[0], series.shape[1:]
        if crop_min < 1:
            share = jax.random.uniform(keys[0], minval=crop_min)
            start = jax.random.uniform(keys[1]) * (1 - share) * (length - 1)
            place = start + share * jnp.arange(length)
            below = jnp.floor(place).astype(int)
            share = (place - below).reshape(-1, *[1] * len(channels))
            series = (1 - share) * series[below] + share * series[jnp.minimum(below + 1, length - 1)]
        series = series * (1 + scaling * jax.random.normal(keys[2], channels))
        series = series + jitter * jax.random.normal(keys[3], series.shape)
        kept = jax.random.bernoulli(keys[4], 1 - mask, (length,) + (1,) * len(channels))
        return jnp.where(kept, series, 0.0)

    return _both(view)


@checked("augment")
def tokens(
    examples: np.ndarray | None,
    *,
    mask: Decay = 0.15,
    mask_id: CountOrZero = 0,
    delete: Decay = 0.1,
    padding_id: Annotated[int, Ge(-1)] = 0,
) -> Function:
    """Views of a sequence of token ids: masking (BERT, Devlin et al., 2019), deletion (CLEAR, Wu et al., 2020).

    Args:
      examples: the training examples, ``[n, T]`` whole numbers.
      mask: probability that a token is replaced.
      mask_id: the token that stands in for it, an id that stands for nothing else in the data.
      delete: probability that a token is deleted; those behind it move up.
      padding_id: the token that fills the end; it is neither masked nor deleted. -1: none of the ids is
        padding; the end is filled with 0.
    """
    _check("tokens", examples, (1,), False, "token ids, int32 [T]")

    def view(key, ids):
        masked, deleted = (
            jax.random.bernoulli(k, p, ids.shape) & (ids != padding_id)
            for k, p in zip(jax.random.split(key), (mask, delete), strict=True)
        )
        ids = jnp.where(masked, mask_id, ids)
        ids = jnp.where(deleted, max(padding_id, 0), ids)
        return ids[jnp.argsort(deleted, stable=True)]  # kept tokens in their order, then padding

    return _both(view)
