"""Statistics of each query's negatives on the whole [Q, M] score matrix: the definition.

The largest score is subtracted *before* the multiplication by the scale, so that the largest terms of a softmax are
exact at any temperature.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from contrastive_jax.contrast.scores import ScoreMap, transform_scores
from contrastive_jax.types import Array, QueryGuide

# A rule beside "exclude" and "keep": candidates of the query's group from other examples.
FURTHER = "further positives"


class Rule(NamedTuple):
    """Which candidates a pass counts ("exclude", "keep" or FURTHER), and the transform of their scores."""

    who: str
    transform: ScoreMap | None = None
    weights: bool = False  # a sum of weights: without reference and gradient


class QueryMarks(NamedTuple):
    """Group, row and guide of queries, which decide with a candidate's whether it counts; no gradient."""

    group: Array  # [Q] int
    row: Array | None  # [Q] int, read by FURTHER
    guide: QueryGuide | None  # read by the negatives' rules


class CandidateMarks(NamedTuple):
    """Group, row and guide of candidates; see :class:`QueryMarks`."""

    group: Array  # [M] int
    row: Array | None  # [M] int
    guide: Array | None  # [M, G]


def dense(rules, query, asks, reference, positive, tau, key, shown, scale):
    """Compute the statistics of each rule on the [Q, M] score matrix.

    Args:
      rules: the rules.
      query: [Q, D].
      asks: marks of the queries.
      reference: [Q], subtracted from the scores.
      positive: [Q], scores of the positives, read by transforms; None without a transform.
      tau: [Q], temperatures, read by transforms; None without a transform.
      key: [M, D], the candidates.
      shown: marks of the candidates.
      scale: [S], inverse temperatures.

    Returns:
      For each rule the fields of :class:`Negatives`; for FURTHER also the sum of scores minus the reference.
    """
    scores = jnp.matmul(query, key.T, precision=lax.Precision.HIGHEST)  # [Q, M]

    def by(rule):
        permitted = permitted_by(rule, asks, shown)
        score, permitted = read(rule, scores, permitted, positive, tau)
        found = statistics(score, permitted, scale, reference_of(rule, reference))
        if rule.who != FURTHER:
            return found
        return (*found, jnp.sum(jnp.where(permitted, score - reference[:, None], 0), axis=-1))

    return tuple(by(rule) for rule in rules)


def permitted_by(rule: Rule, asks: QueryMarks, shown: CandidateMarks) -> Array:
    """Return the mask [Q, M] of candidates that the rule counts."""
    if rule.who != FURTHER:
        return permitted_candidates(asks.group, shown.group, rule.who, asks.guide, shown.guide)
    assert asks.row is not None and shown.row is not None
    return (asks.group[:, None] == shown.group[None, :]) & (asks.row[:, None] != shown.row[None, :])


def permitted_candidates(
    query_group: Array,
    group: Array,
    same_group: str,
    guide: QueryGuide | None = None,
    candidate_guide: Array | None = None,
) -> Array:
    """Return the mask [Q, M] of each query's negatives among the candidates."""
    different = query_group[:, None] != group[None, :]
    permitted = different if same_group == "exclude" else jnp.ones_like(different)
    if guide is None or candidate_guide is None:
        return permitted
    scores = jnp.matmul(guide.embedding, candidate_guide.T, precision=lax.Precision.HIGHEST)
    return permitted & ~(scores > guide.limit[:, None])  # NaN masks nothing


def read(rule: Rule, score, permitted, positive, tau) -> tuple[Array, Array]:
    """Return scores [q, c] transformed by the rule (0 where not permitted), and the mask of permitted ones."""
    if rule.transform is None:
        return score, permitted
    score = transform_scores(rule.transform, permitted, score, positive, tau)
    permitted = score != -jnp.inf  # NaN stays
    return jnp.where(permitted, score, 0), permitted


def reference_of(rule: Rule, reference: Array) -> Array:
    """Return the reference of a rule: 0 for sums of weights."""
    return jnp.zeros_like(reference) if rule.weights else reference


def statistics(score: Array, permitted: Array, scale: Array, reference: Array) -> tuple[Array, ...]:
    """Compute the fields of Negatives for each row of ``score`` [Q, M], over its ``permitted`` entries."""
    count = jnp.sum(permitted, axis=-1, dtype=jnp.int32)
    hardest = lax.stop_gradient(jnp.max(jnp.where(permitted, score, -jnp.inf), axis=-1))
    peak = jnp.where(hardest > -jnp.inf, hardest, 0)
    reference = jnp.where(hardest > -jnp.inf, reference, 0)  # no gradient where there are no negatives

    def at(scale):  # one scale at a time: no [S, Q, M] array
        logit = jnp.where(permitted, scale * (score - peak[:, None]), -jnp.inf)
        weight = jnp.where(permitted, jnp.exp(logit), 0)
        mean = jnp.sum(weight * score, axis=-1) / jnp.maximum(jnp.sum(weight, axis=-1), 1)
        logsumexp = relative(scale, peak, reference, jax.nn.logsumexp(logit, axis=-1))
        return logsumexp, lax.stop_gradient(mean)

    logsumexp, mean = zip(*(at(scale[s]) for s in range(scale.shape[0])), strict=True)
    return count, jnp.stack(logsumexp), jnp.stack(mean), hardest


@jax.custom_jvp
def relative(scale, peak, reference, logsumexp):
    """Return ``scale * (peak - reference) + logsumexp``, rounded once.

    For large negative c InfoNCE's gradient is e^c, so an absolute error of c is a relative error of the
    gradient. The product is computed in halves, of which the leading one is exact; the rounding error of the
    subtraction is recovered by Knuth's two-sum.
    """
    above = peak - reference
    moved = above - peak
    lost = (peak - (above - moved)) - (reference + moved)
    (scale_high, scale_low), (high, low) = _halves(scale), _halves(above)
    small = scale_high * low + scale_low * high + scale_low * low + scale * lost
    return scale_high * high + (small + logsumexp)


@relative.defjvp
def _relative_jvp(primals, tangents):
    scale, peak, reference, _ = primals
    dscale, dpeak, dreference, dlogsumexp = tangents
    return relative(*primals), scale * (dpeak - dreference) + dscale * (peak - reference) + dlogsumexp


def _halves(x):
    """Split x into a sum of two numbers with half its digits, so that products of leading halves are exact."""
    kind = jnp.finfo(x.dtype)
    high = lax.reduce_precision(x, kind.nexp, (kind.nmant - 1) // 2)
    return high, x - high
