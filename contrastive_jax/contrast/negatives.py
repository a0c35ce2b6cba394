"""Negatives of a query among the permitted candidates: all of them, or K drawn at random.

A rule is ``(rng, group [Q], pools, same_group) -> selections``, one per direction, like the pools. A selection
computes the statistics of its negatives (``statistics``) and any query's scores against them (``scores``).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from contrastive_jax.contrast.dense import permitted_candidates
from contrastive_jax.contrast.scores import Transformed
from contrastive_jax.contrast.similarity import (
    further_positives,
    negative_statistics,
    selected_scores,
    selected_statistics,
    several_statistics,
)
from contrastive_jax.contrast.subsets import random_subset
from contrastive_jax.kinds import Count, checked
from contrastive_jax.types import Array, Negatives, Pool, Positives, QueryGuide, record

HIGHEST = jax.lax.Precision.HIGHEST


@record
class AllNegatives:
    """All permitted candidates as negatives."""

    group: Array  # [Q]
    pool: Pool
    same_group: str = dataclasses.field(metadata={"static": True})
    engine: str = dataclasses.field(metadata={"static": True})
    guide: QueryGuide | None = None  # needs the pool's guide

    def guided(self, guide: QueryGuide) -> "AllNegatives":
        """Return the selection without the candidates that the guide masks."""
        return dataclasses.replace(self, guide=guide)

    def statistics(
        self, query: Array, positive: Array, scale: Array, transformed: Transformed | None = None
    ) -> Negatives:
        """Return statistics of ``query`` [Q, D] at each ``scale`` [S], relative to ``positive`` scores [Q]."""
        return negative_statistics(
            query, self.group, self.pool, scale, positive,
            engine=self.engine, same_group=self.same_group, transformed=transformed, guide=self.guide,
        )  # fmt: skip

    def several(
        self,
        query: Array,
        group: Array,
        row: Array,
        positive: Array,
        scale: Array,
        transformed: Transformed | None = None,
    ) -> tuple[Negatives, Positives]:
        """Return :meth:`statistics` and the statistics of further positives.

        Further positives are candidates of the query's ``group`` [Q] from another example than its ``row`` [Q].
        """
        return several_statistics(
            query, group, row, self.pool, scale, positive,
            engine=self.engine, same_group=self.same_group, transformed=transformed, guide=self.guide,
        )  # fmt: skip

    def scores(self, query: Array) -> Array:
        """Return scores [Q, M], -inf for candidates that are not permitted."""
        permitted = permitted_candidates(
            self.group, self.pool.group, self.same_group, self.guide, self.pool.guide
        )
        return jnp.where(permitted, jnp.matmul(query, self.pool.key.T, precision=HIGHEST), -jnp.inf)


@record
class SampledNegatives:
    """K candidates per query as negatives."""

    pool: Pool
    index: Array  # [Q, K]
    permitted: Array  # [Q, K]; False where a query has fewer than K

    def guided(self, guide: QueryGuide) -> "SampledNegatives":
        """Return the selection without the drawn candidates that the guide masks; others are not drawn for them."""
        assert self.pool.guide is not None
        scores = selected_scores(guide.embedding, self.pool.guide, self.index, self.permitted)
        return dataclasses.replace(self, permitted=self.permitted & ~(scores > guide.limit[:, None]))

    def statistics(
        self, query: Array, positive: Array, scale: Array, transformed: Transformed | None = None
    ) -> Negatives:
        """Return statistics of ``query`` [Q, D] at each ``scale`` [S], relative to ``positive`` scores [Q]."""
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
        """Return :meth:`statistics` and the statistics of all further positives of the pool."""
        further = further_positives(query, group, row, self.pool, scale, positive, transformed=transformed)
        return self.statistics(query, positive, scale, transformed), further

    def scores(self, query: Array) -> Array:
        """Return scores [Q, K], -inf for candidates that are not permitted."""
        score = selected_scores(query, self.pool.key, self.index, self.permitted)
        return jnp.where(self.permitted, score, -jnp.inf)


Rule = Callable[[Array, Array, list[Pool], str], Sequence[AllNegatives | SampledNegatives]]


@checked("negatives")
def all(*, engine: Literal["auto", "dense", "tiled"] = "auto") -> Rule:
    """Every permitted candidate is a negative.

    Args:
      engine: dense holds the score matrix, tiled does not, auto chooses by its size.
    """
    return lambda rng, group, pools, same_group: [AllNegatives(group, p, same_group, engine) for p in pools]


@checked("negatives")
def random(*, k: Count, shared: bool = False, per_example: bool = False) -> Rule:
    """K negatives per query, drawn without replacement at every step (Less can be more; EqCo, SiMo).

    Args:
      k: number of negatives per query.
      shared: whether all queries of a direction share one draw of places in their lists of candidates (SiMo's code).
        A list lacks the query's own example, so the sets of two queries can differ by a few neighbours.
      per_example: whether both views of an example share one set of negatives.
    """

    def select(rng, group, pools, same_group):
        def draw(v, pool):
            key = jax.random.fold_in(rng, 0 if per_example else v)
            return random_subset(key, group, pool, k, shared=shared, same_group=same_group)

        return [SampledNegatives(pool, *draw(v, pool)) for v, pool in enumerate(pools)]

    return select
