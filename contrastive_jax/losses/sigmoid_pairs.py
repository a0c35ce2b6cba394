"""Loss that classifies each pair of a query and a candidate by itself, without a softmax: SigLIP's."""

import jax
import jax.numpy as jnp

from contrastive_jax.losses.contrastive import at_least_float32
from contrastive_jax.types import Array


def sigmoid(pair_logits: Array, *, bias: float = -10.0) -> Array:
    """SigLIP's loss, ``softplus(-(s_+ / tau + bias)) + sum_j softplus(s_j / tau + bias)``: [..., 1 + K] -> [...].

    ``pair_logits`` are rows of scores over tau, the positive first; -inf marks candidates that are not permitted. With
    ``candidates=other_view`` the mean over queries is the published loss. It has the value of
    :func:`contrastive_jax.sigmoid_loss`, which holds no [N, N] matrix. SigLIP learns tau and the bias:
    ``temperature=siglip`` in a run.
    Source: Sigmoid loss for language image pre-training (Zhai et al., 2023), algorithm 1.

    Args:
      bias: added to every score over tau; SigLIP starts at -10 with tau = 0.1, since most pairs are negatives.
    """
    logits = at_least_float32(pair_logits)
    positive, others = logits[..., 0], logits[..., 1:]
    permitted = others > -jnp.inf
    negatives = jnp.where(permitted, jax.nn.softplus(jnp.where(permitted, others, 0.0) + bias), 0.0)
    return jax.nn.softplus(-(positive + bias)) + jnp.sum(negatives, axis=-1)
