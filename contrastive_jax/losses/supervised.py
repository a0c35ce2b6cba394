"""Losses on labels: the supervised baseline and the online probe."""

import jax
import jax.numpy as jnp

from contrastive_jax.losses.contrastive import at_least_float32
from contrastive_jax.types import Array


def cross_entropy(logits: Array, label: Array) -> Array:
    """Softmax cross-entropy of every view, logits [B, W, C] and label [B] -> [B, W].

    A negative label is no label and contributes 0; one beyond C - 1 gives NaN.
    """
    log_probability = jax.nn.log_softmax(at_least_float32(logits), axis=-1)
    chosen = jnp.take_along_axis(log_probability, label[:, None, None], axis=-1, mode="fill")[..., 0]
    return jnp.where(label[:, None] < 0, 0.0, -chosen)


def sigmoid_cross_entropy(logits: Array, label: Array) -> Array:
    """Sum over classes of the binary cross-entropy, logits [B, W, C] and label [B, C] in {0, 1} -> [B, W].

    For images with several classes. An entry of -1 is unknown and contributes 0.
    """
    logits = at_least_float32(logits)
    label = label[:, None].astype(logits.dtype)
    loss = jax.nn.softplus(logits) - label * logits
    return jnp.sum(jnp.where(label < 0, 0.0, loss), axis=-1)
