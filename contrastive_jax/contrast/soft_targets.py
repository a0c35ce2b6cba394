"""InfoNCE with soft targets: a mixture of positives in the place of one."""

import jax.numpy as jnp
from jax import lax

from contrastive_jax import sharding
from contrastive_jax.contrast.arguments import check_arrays, check_scalar, ids_of, one_of, row_numbers
from contrastive_jax.contrast.contrastive_loss import DIRECTIONS, SCORES, contrastive_loss
from contrastive_jax.types import Array

HIGHEST = lax.Precision.HIGHEST


def soft_target_loss(
    a: Array,
    b: Array,
    targets: Array | tuple[Array, Array],
    temperature: float | Array = 0.1,
    *,
    candidates: str = "other_view",
    directions: str = "one_way",
    score: str = "cosine",
    queue: Array | None = None,
    differentiate_temperature: bool = False,
    engine: str = "auto",
) -> Array:
    """Return the cross-entropy of InfoNCE's softmax with a share ``t_ij`` of the target on each example j.

    With x_ij the score over tau of query i and the positive view of example j, and L_i the logsumexp of all its
    candidates, the loss is ``sum_j t_ij (L_i - x_ij)``. For rows that sum to 1 this is InfoNCE plus a linear
    term,

        softplus(c_i) + q_i . (k_i - sum_j t_ij k_j) / tau,

    so that mixing the keys takes the place of a pass over the scores, and the engines are InfoNCE's. A share of
    1 on the query's own example is InfoNCE; mixup's and CutMix's lambda is a share of lambda on it and 1 -
    lambda on a partner (i-Mix); a matrix can come from a teacher or from captions (distillation of CLIP).
    Source: i-Mix (Lee et al., 2021, arXiv 2010.08887), N-pair and, with a queue, MoCo.

    Args:
      a: [N, D] queries, not normalised; for mixup, embeddings of mixed inputs.
      b: [N, D] embeddings of the other view of the same examples.
      targets: [N, N], ``t_ij`` of query i and example j, at least 0, for all queries of i; or a pair of arrays
        [N, P], the numbers j of P examples (rows of the batch; NaN outside of it) and their shares. Shares
        carry a gradient.
      temperature: tau > 0, a number, or a scalar array.
      candidates: ``other_view`` or ``both_views``, as in ``contrastive_loss``.
      directions: ``one_way``, ``a`` queries ``b``, or ``both``.
      score: ``cosine`` or ``dot``.
      queue: [M, D] further candidates, none of them a target.
      differentiate_temperature: whether gradients flow into ``temperature``.
      engine: as in ``contrastive_loss``; ``ring`` too gathers the keys to mix them.

    Returns:
      [N] values, or [2N] for the queries ``a`` and then ``b``.

    Raises:
      ValueError: the message lists the argument, its value and the allowed values.

    Examples:
      >>> import jax.numpy as jnp
      >>> from contrastive_jax import soft_target_loss
      >>> a = jnp.array([[1.0, 0.2], [-0.3, 1.0], [-1.0, -0.8]])
      >>> b = jnp.array([[0.9, -0.1], [0.2, 1.1], [-0.6, -1.0]])
      >>> def show(targets):
      ...     print(" ".join(f"{value:.3f}" for value in soft_target_loss(a, b, targets, 0.5)))

      No mixture is InfoNCE; a third of the target on the next example:

      >>> show(jnp.eye(3))
      0.300 0.114 0.069
      >>> partner, share = jnp.array([1, 2, 0]), jnp.array([0.67, 0.67, 0.67])
      >>> show((jnp.stack([jnp.arange(3), partner], 1), jnp.stack([share, 1 - share], 1)))
      0.685 1.147 1.154
    """
    one_of("soft_target_loss.candidates", candidates, ("other_view", "both_views"))
    one_of("soft_target_loss.directions", directions, DIRECTIONS)
    check_arrays("soft_target_loss", a=a, b=b, queue=queue)
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(f"soft_target_loss: a {a.shape} and b {b.shape} must both be [N, D].")
    temperature = check_scalar("soft_target_loss.temperature", temperature)
    places, shares = _checked(targets, a.shape[0])
    values = contrastive_loss(
        *(a, b, "info_nce", temperature),
        candidates=candidates,
        directions=directions,
        score=score,
        queue=queue,
        differentiate_temperature=differentiate_temperature,
        engine=engine,
    )
    views = [sharding.shard_batch(jnp.asarray(view)) for view in (a, b)]
    exact = jnp.promote_types(jnp.result_type(*views), jnp.float32)
    views = [SCORES[score](view).astype(exact) for view in views]
    pairs = [views, views[::-1]][: 1 if directions == "one_way" else 2]
    shares = sharding.shard_batch(shares.astype(exact))
    total = jnp.sum(shares, axis=1)
    tau = temperature if differentiate_temperature else lax.stop_gradient(temperature)

    def above(query: Array, key: Array) -> Array:
        """Return the sum of t (x+ - x) of each query."""
        mixed = total[:, None] * key - _mixed(sharding.replicate(key), places, shares)
        return jnp.sum(query * mixed, axis=1) / tau

    linear = jnp.stack([above(*pair) for pair in pairs], axis=1)  # [N, V]
    linear, total = (sharding.replicate(x) for x in (linear, total))
    return sharding.shard_batch(jnp.tile(total, len(pairs))) * values + sharding.shard_batch(
        linear.T.reshape(-1)
    )


def _mixed(key: Array, places: Array | None, shares: Array) -> Array:
    """Return each query's sum of keys [N, D] by its shares [N, N], or [N, P] of the keys at ``places``."""
    if places is None:
        return sharding.each_device(lambda t, k: jnp.matmul(t, k, precision=HIGHEST), (shares,), (key,))

    def of(places, shares, key):
        rows = key.at[places].get(mode="fill", fill_value=jnp.nan)
        return jnp.sum(shares[..., None] * rows, axis=1)

    return sharding.each_device(of, (places, shares), (key,))


def _checked(targets: Array | tuple[Array, Array], rows: int) -> tuple[Array | None, Array]:
    """Return the numbers [N, P] of the targets, None for a matrix, and their shares; raise ValueError if wrong."""
    if not isinstance(targets, tuple | list):
        check_arrays("soft_target_loss", targets=targets)
        if targets is None or targets.shape != (rows, rows):
            shape = None if targets is None else targets.shape
            raise ValueError(
                f"soft_target_loss.targets has shape {shape}; it must be ({rows}, {rows}), a share for each"
                " query and example, or a pair of arrays."
            )
        return None, jnp.asarray(targets)
    if len(targets) != 2:
        raise ValueError(
            f"soft_target_loss.targets has {len(targets)} arrays; a pair must be numbers and shares, [N, P]."
        )
    check_arrays("soft_target_loss", targets=targets[1])
    ids_of("soft_target_loss", targets=targets[0])  # refuses other types
    places = row_numbers(targets[0], rows)
    shares = jnp.asarray(targets[1])
    if places.shape != shares.shape or shares.ndim != 2 or shares.shape[0] != rows:
        raise ValueError(
            f"soft_target_loss.targets has shapes {jnp.shape(places)} and {shares.shape}; numbers and shares must"
            f" both be ({rows}, P)."
        )
    return sharding.shard_batch(places), shares
