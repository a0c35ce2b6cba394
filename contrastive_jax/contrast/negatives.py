"""Negatives of a query among the permitted candidates: all of them, or K drawn at random.

A rule is ``(rng, group [Q], pools, same_group) -> selections``, one a direction as the pools are; a selection
answers what its negatives amount to (``statistics``) and what any row of embeddings scores against them (``scores``).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from contrastive_jax.contrast.scores import Transformed
from contrastive_jax.contrast.similarity import (
    further_positives,
    negative_statistics,
    permitted_candidates,
    selected_scores,
    selected_statistics,
    several_statistics,
)
from contrastive_jax.contrast.subsets import random_subset
from contrastive_jax.kinds import Count, checked
from contrastive_jax.types import Array, Negatives, Pool, Positives, record

HIGHEST = jax.lax.Precision.HIGHEST


@record
class AllNegatives:
    """Every permitted candidate."""

    group: Array  # [Q]
    pool: Pool
    same_group: str = dataclasses.field(metadata={"static": True})
    engine: str = dataclasses.field(metadata={"static": True})

    def statistics(
        self, query: Array, positive: Array, scale: Array, transformed: Transformed | None = None
    ) -> Negatives:
        """Return those of ``query`` [Q, D] at each of ``scale`` [S], relative to its ``positive`` score [Q]."""
        return negative_statistics(
            *(query, self.group, self.pool, scale, positive),
            **{"engine": self.engine, "same_group": self.same_group, "transformed": transformed},
        )

    def several(
        self,
        query: Array,
        group: Array,
        row: Array,
        positive: Array,
        scale: Array,
        transformed: Transformed | None = None,
    ) -> tuple[Negatives, Positives]:
        """Return :meth:`statistics` and those of the further positives, candidates of the query's ``group`` [Q]
        that show another example than its ``row`` [Q]."""
        return several_statistics(
            *(query, group, row, self.pool, scale, positive),
            **{"engine": self.engine, "same_group": self.same_group, "transformed": transformed},
        )

    def scores(self, query: Array) -> Array:
        """Return [Q, M], -inf where not permitted."""
        permitted = permitted_candidates(self.group, self.pool.group, self.same_group)
        return jnp.where(permitted, jnp.matmul(query, self.pool.key.T, precision=HIGHEST), -jnp.inf)


@record
class SampledNegatives:
    """K candidates of each query."""

    pool: Pool
    index: Array  # [Q, K]
    permitted: Array  # [Q, K]; False where a query has fewer than K

    def statistics(
        self, query: Array, positive: Array, scale: Array, transformed: Transformed | None = None
    ) -> Negatives:
        """Return those of ``query`` [Q, D] at each of ``scale`` [S], relative to its ``positive`` score [Q]."""
        return selected_statistics(
            query, self.pool, self.index, self.permitted, scale, positive, transformed=transformed
        )

    def several(
        self,
        query: Array,
        group: Array,
        row: Array,
        positive: Array,
        scale: Array,
        transformed: Transformed | None = None,
    ) -> tuple[Negatives, Positives]:
        """Return :meth:`statistics`, and those of all further positives of the pool."""
        further = further_positives(query, group, row, self.pool, scale, positive, transformed=transformed)
        return self.statistics(query, positive, scale, transformed), further

    def scores(self, query: Array) -> Array:
        """Return [Q, K], -inf where not permitted."""
        score = selected_scores(query, self.pool.key, self.index, self.permitted)
        return jnp.where(self.permitted, score, -jnp.inf)


Rule = Callable[[Array, Array, list[Pool], str], Sequence[AllNegatives | SampledNegatives]]


@checked("negatives")
def all(*, engine: Literal["auto", "dense", "tiled"] = "auto") -> Rule:
    """Every permitted candidate is a negative.

    Args:
      engine: ``dense`` holds the score matrix, ``tiled`` never does, ``auto`` chooses by its size.
    """
    return lambda rng, group, pools, same_group: [AllNegatives(group, p, same_group, engine) for p in pools]


@checked("negatives")
def random(*, k: Count, shared: bool = False, per_example: bool = False) -> Rule:
    """K negatives a query, drawn without replacement at every step (Less can be more; EqCo, SiMo).

    Args:
      k: number of negatives.
      shared: one choice for all queries (SiMo's code) instead of one for each.
      per_example: both views of an example have one choice, instead of each its own.
    """

    def select(rng, group, pools, same_group):
        def draw(v, pool):
            key = jax.random.fold_in(rng, 0 if per_example else v)
            return random_subset(key, group, pool, k, shared=shared, same_group=same_group)

        return [SampledNegatives(pool, *draw(v, pool)) for v, pool in enumerate(pools)]

    return select
