"""Losses on labels: the supervised baseline and the online probe."""

import jax
import jax.numpy as jnp

from contrastive_jax.kinds import Count
from contrastive_jax.losses.contrastive import at_least_float32
from contrastive_jax.losses.declaration import loss
from contrastive_jax.types import Array


@loss(labels="one")
def cross_entropy(logits: Array, label: Array) -> Array:
    """Softmax cross-entropy of every view, logits [B, W, C] and label [B] -> [B, W].

    A negative label marks an unlabelled example and gives 0; the loss of a run is the mean over labelled ones. A
    label above C - 1 gives NaN.
    """
    log_probability = jax.nn.log_softmax(at_least_float32(logits), axis=-1)
    label = jnp.asarray(label)
    if label.dtype.itemsize < 4:  # too narrow for the number of classes
        label = label.astype(jnp.int32)
    # Not indexing: its gradient is a scatter, which a GPU in deterministic mode adds serially.
    its = jnp.arange(logits.shape[-1]) == label[:, None, None]
    loss = -jnp.sum(jnp.where(its, log_probability, 0.0), axis=-1)
    loss = jnp.where(label[:, None] < logits.shape[-1], loss, jnp.nan)
    return jnp.where(label[:, None] < 0, 0.0, loss)


def mean_of_labelled(value: Array, label: Array) -> Array:
    """Return the mean over labelled examples of values [B, W], which are 0 for those without a label; 0 for none."""
    return jnp.sum(value) / jnp.maximum(jnp.sum(label >= 0) * value.shape[1], 1)


@loss(labels="several")
def cross_entropy_of_parts(logits: Array, label: Array, *, parts: Count = 2) -> Array:
    """Mean over parts of the softmax cross-entropy in each, logits [B, W, C] and label [B, C] -> [B, W].

    The C classes are ``parts`` consecutive groups with one label of 1 each: one softmax for each digit size of
    MultiDigits. A part without a 1 contributes 0.
    Source: Intriguing Properties (Chen et al., 2021), section 4.3.

    Args:
      parts: number of parts; all have the same number of classes.
    """
    if parts < 1 or logits.shape[-1] % parts:
        raise ValueError(f"parts is {parts}; it must divide the {logits.shape[-1]} classes.")
    logits = at_least_float32(logits).reshape(*logits.shape[:-1], parts, -1)
    log_probability = jax.nn.log_softmax(logits, axis=-1)
    label = label.reshape(label.shape[0], 1, parts, -1).astype(logits.dtype)
    return -jnp.mean(jnp.sum(label * log_probability, axis=-1), axis=-1)


@loss(labels="several")
def sigmoid_cross_entropy(logits: Array, label: Array) -> Array:
    """Sum over classes of the binary cross-entropy, logits [B, W, C] and label [B, C] in {0, 1} -> [B, W].

    For images with several classes. In direct calls an entry of -1 is unknown and contributes 0; runs have 0
    and 1.
    """
    logits = at_least_float32(logits)
    label = label[:, None].astype(logits.dtype)
    loss = jax.nn.softplus(logits) - label * logits
    return jnp.sum(jnp.where(label < 0, 0.0, loss), axis=-1)
