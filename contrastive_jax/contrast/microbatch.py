"""Encoding of large batches in parts, to save memory in a custom training step."""

import numbers
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import sharding
from contrastive_jax.contrast.arguments import whole_number
from contrastive_jax.types import PyTree


def in_microbatches(
    encode: Callable[[PyTree, PyTree], PyTree], parts: int
) -> Callable[[PyTree, PyTree], PyTree]:
    """Return ``encode`` wrapped to hold the activations of only one part of the batch at a time.

    Gradient accumulation over small batches minimises another loss: each query's negatives come from its own
    part. Here all parts are embedded first, keeping only the embeddings; the loss uses all of them; the
    backward pass encodes each part again. Value and gradient equal those of the whole batch, at the cost of one
    more forward pass. Example i is in part ``i mod parts``, so on a mesh examples stay on their device.

    Parts must be independent: batch norm uses the statistics of one part (as with ``parts`` groups in the whole
    batch), and random keys belong in the batch, one per example. Changes of a module's state (running
    statistics, counts of random keys) are lost; ``encode`` is refused if it changes ``params``.
    Source: Scaling deep contrastive learning batch size under memory limited setup (Gao et al., 2021).

    Args:
      encode: ``(params, batch) -> embeddings``; batch and embeddings are pytrees of arrays [B, ...], params a
        pytree of arrays.
      parts: number of parts, a divisor of B; on a mesh B / parts must be a multiple of the number of devices.

    Returns:
      A function with the arguments and result of ``encode``.

    Raises:
      ValueError: ``parts`` does not divide the batch as above, or ``encode`` or ``params`` is not as above.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from contrastive_jax import contrastive_loss, in_microbatches
      >>> encode = lambda weight, image: jnp.tanh(image @ weight)
      >>> image, weight = jax.random.normal(jax.random.key(0), (2, 6, 5)), jnp.eye(5)
      >>> def loss(weight, encode):
      ...     return contrastive_loss(encode(weight, image[0]), encode(weight, image[1]), "info_nce").mean()
      >>> whole, in_parts = (jax.grad(loss)(weight, e) for e in (encode, in_microbatches(encode, 3)))
      >>> bool(jnp.allclose(whole, in_parts, atol=1e-5))
      True
    """
    parts = whole_number("in_microbatches.parts", parts)

    def encode_in_parts(params: PyTree, batch: PyTree) -> PyTree:
        sizes = {jnp.shape(x)[:1] for x in jax.tree.leaves(batch)}
        if len(sizes) != 1 or not min(sizes) or min(sizes)[0] % parts:
            raise ValueError(
                f"in_microbatches.parts is {parts}; it must divide the number of rows, which must be"
                f" equal in all arrays of the batch: {sorted(sizes)}."
            )
        rows = min(sizes)[0] // parts
        if rows % (devices := sharding.devices()):
            raise ValueError(
                f"in_microbatches.parts is {parts}; the rows of a part, {rows}, must be a multiple of"
                f" the {devices} devices."
            )
        static = [
            leaf
            for leaf in jax.tree.leaves(params)
            if isinstance(leaf, bool) or not isinstance(leaf, jax.Array | np.ndarray | numbers.Number)
        ]
        if static:
            raise ValueError(
                f"in_microbatches: the parameters contain {static[0]!r}, which is not an array; close"
                " over static values (in Equinox, split with eqx.partition and merge with eqx.combine"
                " inside encode)."
            )

        def stateless(params: PyTree, batch: PyTree) -> PyTree:
            before = jax.tree.leaves(params)
            embeddings = encode(params, batch)
            after = jax.tree.leaves(params)
            if len(after) != len(before) or any(
                now is not leaf for now, leaf in zip(after, before, strict=True)
            ):
                raise ValueError(
                    "in_microbatches: encode changes its parameters (running statistics, counts of"
                    " random keys), and these changes would be lost; freeze its state, or compute the"
                    " new state in a separate call."
                )
            if wrong := [jnp.shape(x) for x in jax.tree.leaves(embeddings) if jnp.shape(x)[:1] != (rows,)]:
                raise ValueError(
                    f"in_microbatches: encode returns an array of shape {wrong[0]} for {rows} rows; its"
                    f" first axis must have {rows} entries."
                )
            return embeddings

        part = jax.checkpoint(stateless)  # only a part's input is kept for the backward pass
        _, embeddings = jax.lax.scan(
            lambda _, batch: ((), part(params, batch)), (), sharding.in_parts(batch, parts)
        )
        return sharding.joined(embeddings)

    return encode_in_parts
