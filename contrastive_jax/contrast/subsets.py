"""Random subsets of the negatives: K of them a query, whatever the size of the batch.

Few negatives (Mitrovic et al., 2020) draws K for every query independently; SiMo (Zhu et al., 2020) uses
one choice for all queries. Both are indices [Q, K], drawn without an [Q, M] mask or a sort of [Q, M].
"""

import jax
import jax.numpy as jnp

from contrastive_jax import sharding
from contrastive_jax.contrast.similarity import SAME_GROUP
from contrastive_jax.types import Array, Pool


def random_subset(
    key: Array,
    query_group: Array,
    pool: Pool,
    k: int,
    *,
    shared: bool = False,
    same_group: str = "exclude",
) -> tuple[Array, Array]:
    """Draw K of each query's permitted candidates, uniform over all K-subsets, without replacement.

    Time O(M log M + Q * K log K), memory O(M + Q * K). The columns are in random order, so the first
    columns are a uniform subset too. The draw of a query derives from ``fold_in(key, its row)``: it does
    not depend on the number of devices. Exactly uniform but for ``jax.random.randint``, whose chances are
    off by less than M / 2**32 of themselves.

    Args:
      key: a jax random key.
      query_group: [Q] int; on a mesh its rows are sharded, and so are those of the result.
      pool: M candidates, replicated; only ``pool.group`` is read.
      k: negatives a query, 1 to M.
      shared: SiMo's code: one choice of places, made in every query's own list of permitted candidates
        (in the order of their groups). Queries with equally many candidates share it.
      same_group: "exclude" own-group candidates, or "keep" them.

    Returns:
      index [Q, K] int32 into the pool, and permitted [Q, K] bool. Where a query has m < K candidates, all
      m are there and the surplus is not permitted.

    Raises:
      ValueError: k out of range, or an unknown same_group.
    """
    candidates = pool.group.shape[0]
    if not 1 <= k <= candidates:
        raise ValueError(
            f"k={k} negatives cannot be drawn from {candidates} candidates: choose 1 to {candidates}."
        )
    if same_group not in SAME_GROUP:
        raise ValueError(f"same_group={same_group!r} is unknown: choose one of {', '.join(SAME_GROUP)}.")
    query_group = sharding.shard_batch(query_group)
    number = jnp.arange(query_group.shape[0], dtype=jnp.int32, out_sharding=sharding.rows_sharding())
    # In the order of their groups the candidates that a query may not use are one run, [low, high).
    order = jnp.argsort(pool.group, stable=True).astype(jnp.int32)

    def draw(key, number, query_group, order, ordered):
        low, high = (jnp.searchsorted(ordered, query_group, side=side) for side in ("left", "right"))
        low, high = (low, high) if same_group == "exclude" else (jnp.zeros_like(low), jnp.zeros_like(low))
        m = (candidates - (high - low)).astype(jnp.int32)
        keys = jax.vmap(lambda row: key if shared else jax.random.fold_in(key, row))(number)
        rank = jax.vmap(lambda key, m: uniform_ranks(key, m, k))(keys, m)  # [Q, K]
        permitted = jnp.arange(k) < m[:, None]
        place = jnp.where(permitted, place_of_rank(rank, low[:, None], high[:, None]), 0)
        return order[place], permitted

    arguments = (key, number, query_group, order, pool.group[order])
    if not sharding.on_mesh():
        return draw(*arguments)
    rows, whole = sharding.ROWS, sharding.REPLICATED  # shard_map: searchsorted knows no explicit axes
    return jax.shard_map(draw, in_specs=(whole, rows, rows, whole, whole), out_specs=rows)(*arguments)


def place_of_rank(rank: Array, low: Array, high: Array) -> Array:
    """Return where the ``rank``-th element lies in a list from which the run [low, high) was deleted."""
    return rank + jnp.where(rank >= low, high - low, 0)


def uniform_ranks(key: Array, m: Array, k: int) -> Array:
    """Draw the first k places of a uniformly random permutation of range(m), m traced, in O(k log k): [k] int32.

    Where m < k the first m are a permutation of range(m) and the rest are no ranks (m or more).
    """
    step = jnp.arange(k, dtype=jnp.int32)
    end = jnp.maximum(m, step + 1)  # a place beyond the range stays put
    return shuffle(jax.random.randint(key, (k,), step, end, dtype=jnp.int32))


def shuffle(swap: Array) -> Array:
    """Return the first k places after Fisher and Yates' k swaps of places i and ``swap[i]`` >= i: [k] int32.

    Nothing of the size of the range is kept: place p holds p until some step swaps it, after which it
    holds what the latest such step found in its own place. So the i-th result is swap[i] if no earlier
    step went there, and otherwise what the latest of them found in place. What step i found is i,
    unless an earlier step went to place i, and so on: a chain, followed by pointer jumping.
    """
    k = swap.shape[0]
    step = jnp.arange(k, dtype=jnp.int32)

    # The latest earlier step that swapped with the same place: its neighbour in a stable sort.
    order = jnp.argsort(swap, stable=True).astype(jnp.int32)
    same = (swap[order] == jnp.roll(swap[order], 1)) & (step > 0)
    earlier = jnp.zeros_like(step).at[order].set(jnp.where(same, jnp.roll(order, 1), -1), unique_indices=True)

    # The latest step before step i that swapped with place i; step i itself where there is none.
    elsewhere = jnp.where(swap > step, swap, k)
    place = jnp.full_like(step, -1).at[elsewhere].max(step, mode="drop")
    place = jnp.where(place < 0, step, place)
    for _ in range((k - 1).bit_length()):
        place = place[place]
    return jnp.where(earlier < 0, swap, place[earlier])
