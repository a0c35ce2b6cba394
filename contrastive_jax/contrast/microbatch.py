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
                f"in_microbatches.parts is {parts}; the batch's arrays have {sorted(sizes)} rows: it must be one number"
                " that parts divides."
            )
        rows = min(sizes)[0] // parts
        if rows % (devices := sharding.devices()):
            raise ValueError(
                f"in_microbatches.parts is {parts}; {devices} devices cannot share the {rows} rows of a part equally."
            )
        static = [
            leaf
            for leaf in jax.tree.leaves(params)
            if isinstance(leaf, bool) or not isinstance(leaf, jax.Array | np.ndarray | numbers.Number)
        ]
        if static:
            raise ValueError(
                f"in_microbatches: the parameters hold {static[0]!r}, which is no array: close over what is static"
                " (in Equinox, split by eqx.partition and put together by eqx.combine inside of encode)."
            )

        def stateless(params: PyTree, batch: PyTree) -> PyTree:
            before = jax.tree.leaves(params)
            embeddings = encode(params, batch)
            after = jax.tree.leaves(params)
            if len(after) != len(before) or any(
                now is not leaf for now, leaf in zip(after, before, strict=True)
            ):
                raise ValueError(
                    "in_microbatches: encode changes its parameters (running statistics, counts of random keys), which"
                    " would be lost: run it with its state held, or return the new state of a call of your own."
                )
            if wrong := [jnp.shape(x) for x in jax.tree.leaves(embeddings) if jnp.shape(x)[:1] != (rows,)]:
                raise ValueError(
                    f"in_microbatches: encode returns an array of shape {wrong[0]} for {rows} rows; its first axis must"
                    " be theirs."
                )
            return embeddings

        part = jax.checkpoint(stateless)  # only a part's input is kept for the backward pass
        _, embeddings = jax.lax.scan(
            lambda _, batch: ((), part(params, batch)), (), sharding.in_parts(batch, parts)
        )
        return sharding.joined(embeddings)

    return encode_in_parts
