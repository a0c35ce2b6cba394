"""Random subsets of the negatives: K per query at any batch size.

Few negatives (Mitrovic et al., 2020) draws K for every query independently; SiMo (Zhu et al., 2020) uses
one draw for all queries. Both are indices [Q, K], drawn without a [Q, M] mask or a sort of [Q, M].
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
    columns are a uniform subset too. A query's draw uses ``fold_in(key, row)`` (``key`` if ``shared``), so
    it does not depend on the number of devices. Probabilities are exact up to the bias of
    ``jax.random.randint``, a relative error below M / 2**32.

    Args:
      key: a jax random key.
      query_group: [Q] int; on a mesh sharded by rows, like the result.
      pool: M candidates, replicated; only ``pool.group`` is read.
      k: number of negatives per query, 1 to M.
      shared: SiMo's code: one draw of positions in every query's list of permitted candidates (ordered by
        group), shared by all queries with equally many candidates.
      same_group: "exclude" own-group candidates, or "keep" them.

    Returns:
      index [Q, K] int32 into the pool, and permitted [Q, K] bool. A query with m < K candidates gets all m;
      its other columns are not permitted.

    Raises:
      ValueError: k out of range, or an unknown same_group.
    """
    candidates = pool.group.shape[0]
    if not 1 <= k <= candidates:
        raise ValueError(f"k is {k}; it must be from 1 to {candidates}, the number of candidates.")
    if same_group not in SAME_GROUP:
        raise ValueError(f"same_group is {same_group!r}; it must be one of {', '.join(SAME_GROUP)}.")
    query_group = sharding.shard_batch(query_group)
    number = jnp.arange(query_group.shape[0], dtype=jnp.int32, out_sharding=sharding.rows_sharding())
    # Sorted by group, the candidates that a query may not use are one contiguous run, [low, high).
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
    rows, whole = sharding.ROWS, sharding.REPLICATED  # shard_map: searchsorted has no explicit axes
    return jax.shard_map(draw, in_specs=(whole, rows, rows, whole, whole), out_specs=rows)(*arguments)


def place_of_rank(rank: Array, low: Array, high: Array) -> Array:
    """Return the original index of the ``rank``-th element of a list without its run [low, high)."""
    return rank + jnp.where(rank >= low, high - low, 0)


def uniform_ranks(key: Array, m: Array, k: int) -> Array:
    """Draw the first k entries of a random permutation of range(m), m traced, in O(k log k): [k] int32.

    If m < k, the first m entries are a permutation of range(m) and the others are m or more.
    """
    step = jnp.arange(k, dtype=jnp.int32)
    end = jnp.maximum(m, step + 1)  # a place beyond the range is not swapped
    return shuffle(jax.random.randint(key, (k,), step, end, dtype=jnp.int32))


def shuffle(swap: Array) -> Array:
    """Return the first k entries after the k Fisher-Yates swaps of places i and ``swap[i]`` >= i: [k] int32.

    No array has the size of the range: place p holds p until a step i swaps it, and then the previous entry
    of place i. So the i-th result is swap[i] if no earlier step swapped that place; otherwise it is the entry
    of place j before step j, for the latest such step j. That entry is j, unless an earlier step swapped
    place j, and so on: a chain, followed by pointer jumping.
    """
    k = swap.shape[0]
    step = jnp.arange(k, dtype=jnp.int32)

    # The latest earlier step that swapped with the same place is the neighbour in a stable sort.
    order = jnp.argsort(swap, stable=True).astype(jnp.int32)
    same = (swap[order] == jnp.roll(swap[order], 1)) & (step > 0)
    earlier = jnp.zeros_like(step).at[order].set(jnp.where(same, jnp.roll(order, 1), -1), unique_indices=True)

    # The latest step before step i that swapped with place i; step i itself without one.
    elsewhere = jnp.where(swap > step, swap, k)
    place = jnp.full_like(step, -1).at[elsewhere].max(step, mode="drop")
    place = jnp.where(place < 0, step, place)
    for _ in range((k - 1).bit_length()):
        place = place[place]
    return jnp.where(earlier < 0, swap, place[earlier])
