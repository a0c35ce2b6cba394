"""Guides: embeddings of another model, whose scores decide which candidates are probable false negatives."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from contrastive_jax import sharding
from contrastive_jax.contrast.arguments import check_arrays, check_scalar
from contrastive_jax.contrast.candidates import Candidates
from contrastive_jax.contrast.negatives import Rule
from contrastive_jax.contrast.similarity import normalize
from contrastive_jax.types import Array, QueryGuide, record


@record
class Guide:
    """Embeddings of another model, which mask a query's candidates j with ``g_j > g+ + margin``.

    g are cosines of the guide's embeddings, which have the order of the rows that ``contrastive_loss`` compares,
    any width and no gradient. Masked candidates are left out of the sums and of K_i. A guide that scores like
    the model itself is ``transform.margin_mask``. A candidate with the positive's own score, such as a copy of
    it, is masked for certain only if the margin is below 0.
    Source: GISTEmbed (Solatorio, 2024, arXiv 2402.16829), margin 0; NV-Retriever (Moreira et al., 2024) for
    ``relative``, with -0.05.

    Args:
      a: guide's embeddings of the rows ``a``, [N, G] or [N, Q, G].
      b: guide's embeddings of the rows ``b``, [N, G] or [N, W, G].
      queue: guide's embeddings of the queue, [M, G].
      margin: largest allowed difference between a negative's and the positive's score.
      relative: whether the margin is a share of the size of the positive's score.
    """

    a: Array
    b: Array
    queue: Array | None = None
    margin: float | Array = 0.0
    relative: bool = dataclasses.field(default=False, metadata={"static": True})

    def limits(self, positive: Array) -> Array:
        """Return the largest score of a negative, from scores of positives."""
        return positive + self.margin * (jnp.abs(positive) if self.relative else 1.0)


def check_guide(guide: Guide, a: Array, b: Array, queue: Array | None) -> None:
    """Refuse a guide whose rows are not those of ``a``, ``b`` and ``queue``.

    Raises:
      ValueError: the message names the argument and its shape.
    """
    if not isinstance(guide, Guide):
        raise ValueError(
            f"contrastive_loss.guide is a {type(guide).__name__}; it must be a contrast.guide.Guide of"
            " another model's embeddings of a and b."
        )
    check_arrays("contrastive_loss.guide", a=guide.a, b=guide.b, queue=guide.queue)
    check_scalar("contrastive_loss.guide.margin", guide.margin)
    if not isinstance(guide.relative, bool):
        raise ValueError(f"contrastive_loss.guide.relative is {guide.relative!r}; it must be True or False.")
    if (guide.queue is None) != (queue is None):
        missing, given = ("guide.queue", "queue") if guide.queue is None else ("queue", "guide.queue")
        raise ValueError(
            f"contrastive_loss.{missing} is None, but {given} is given; a guide needs its own embedding"
            " of every candidate."
        )
    width = guide.a.shape[-1:]
    for name, own, rows in (("a", guide.a, a), ("b", guide.b, b), ("queue", guide.queue, queue)):
        if own is not None and rows is not None and own.shape != (*rows.shape[:-1], *width):
            shape = ", ".join(map(str, rows.shape[:-1]))
            raise ValueError(
                f"contrastive_loss.guide.{name} has shape {own.shape}; it must be [{shape}, G], like {name},"
                " with one G for all."
            )


def unit_views(guide: Guide) -> tuple[Array, Array]:
    """Return the guide's queries [N, Q, G] and keys [N, W, G], normalised, without a gradient."""
    views = [sharding.shard_batch(normalize(jax.lax.stop_gradient(x))) for x in (guide.a, guide.b)]
    if guide.a.ndim == 3:
        return views[0], views[1]
    both = jnp.stack(views, axis=1)
    return both, both


def unit_queue(guide: Guide) -> Array | None:
    """Return the guide's embeddings of the queue [M, G], normalised, on all devices."""
    return None if guide.queue is None else sharding.replicate(normalize(guide.queue))


def with_guide(source: Candidates, guides: Candidates, keys: Array, positives: Sequence[int]) -> Candidates:
    """Return the source with the guide's embedding of each candidate in its pools.

    ``guides`` is the same source for the guide's embeddings ``keys`` [N, W, G]; ``positives`` are the views that
    are positives.
    """

    def apply(state, model_keys, positive_keys, group, rng):
        pools, after = source.apply(state, model_keys, positive_keys, group, rng)
        own, _ = guides.apply((), keys, jnp.stack([keys[:, k] for k in positives], axis=1), group, rng)
        return [dataclasses.replace(p, guide=g.key) for p, g in zip(pools, own, strict=True)], after

    return source._replace(apply=apply)


def guided(rule: Rule, guide: Guide, pairs: Sequence[tuple[int, int]]) -> Rule:
    """Return the rule of negatives without the candidates that the guide masks, for the ``pairs`` of views."""
    queries, keys = unit_views(guide)

    def of_pair(q: int, k: int) -> QueryGuide:
        return QueryGuide(queries[:, q], guide.limits(jnp.sum(queries[:, q] * keys[:, k], axis=-1)))

    def select(rng, group, pools, same_group):
        selections = rule(rng, group, pools, same_group)
        return [s.guided(of_pair(*pair)) for s, pair in zip(selections, pairs, strict=True)]

    return select
