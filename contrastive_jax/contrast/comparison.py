"""Comparison of queries with their candidates, the input of the contrastive losses."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax.contrast.arguments import real_array
from contrastive_jax.contrast.candidates import Candidates
from contrastive_jax.contrast.margin import Margin
from contrastive_jax.contrast.negatives import AllNegatives, Rule, SampledNegatives
from contrastive_jax.contrast.scores import Transform, in_logits, mirrored, of_positive, transformed
from contrastive_jax.contrast.similarity import normalize
from contrastive_jax.contrast.temperature import SLOPES, Slopes, Temperature
from contrastive_jax.sharding import shard_batch
from contrastive_jax.types import Array, Negatives, Positives, PyTree, record

Pairs = tuple[tuple[int, int], ...]  # views (query, positive) that are compared
BOTH: Pairs = ((0, 1), (1, 0))


def ordered_pairs(queries: int, keys: int) -> Pairs:
    """Return all ordered pairs of two views, (query, key): of queries 0, 1, ... and keys 0, 1, ...

    Equal numbers are one view, which is never its own positive. More queries than keys are views without keys.
    """
    return tuple((q, k) for q in range(queries) for k in range(keys) if q != k)


@record
class Comparison:
    """Embeddings, scores and statistics of a step's queries.

    B examples, V directions (pairs of views), S multiples of 1 / tau, M candidates.
    """

    query: Array  # [B, V, D]
    key: Array  # [B, V, D] the positives
    positive: Array  # [B, V] transformed score of the positive
    raw_positive: Array  # [B, V] score of the positive before the transform
    negatives: Negatives  # count [B, V], logsumexp of (score - positive) / tau [S, B, V], ...
    temperature: Array  # [] or [B, V] per query, tau; a gradient if differentiate_temperature
    margin: Array  # [B, V] added to the contrast
    selections: list[AllNegatives | SampledNegatives]  # one per direction: the choice of negatives
    multiples: tuple[float, ...] = dataclasses.field(metadata={"static": True})
    further: Positives | None = None  # positives other than ``key``: count [B, V], ...
    summation: str = dataclasses.field(default="", metadata={"static": True})  # "out" or "in", if several
    differentiate_temperature: bool = dataclasses.field(default=False, metadata={"static": True})
    bias: Array | None = None  # [] of the temperature rule, added to pair_logits

    @property
    def count(self) -> Array:
        """Number of negatives K_i, [B, V]."""
        return self.negatives.count

    def contrast(self, multiple: float = 1.0, margin: bool = True) -> Array:
        """Return c [B, V], logsumexp over the negatives of multiple * (score - positive) / tau, plus margin.

        With several positives it is relative to their logsumexp. For a query without negatives it is 0 without
        a gradient, and so is :meth:`terms.Term.values`.
        """
        c = self.negatives.logsumexp[self.multiples.index(multiple)]
        if self.further is not None:
            c = c - self.above(multiple)
        return jnp.where(self.count > 0, c + (self.margin if margin else 0.0), 0.0)

    def above(self, multiple: float = 1.0) -> Array:
        """Return logsumexp over all positives of multiple * (score - positive) / tau, [B, V]; 0 for one."""
        if self.further is None:
            return jnp.zeros_like(self.positive)
        logsumexp = self.further.logsumexp[self.multiples.index(multiple)]
        some = self.further.count > 0
        return jnp.where(some, jax.nn.softplus(jnp.where(some, logsumexp, 0.0)), 0.0)

    def surplus(self, multiple: float = 1.0) -> Array | None:
        """Return the summand that several positives P add to a loss's function of the contrast, [B, V].

        log |P| if they are summed inside the logarithm, logsumexp_p(x_p) - mean_p(x_p) if outside; None for a
        single positive.
        """
        if self.further is None:
            return None
        number = 1.0 + self.further.count.astype(self.positive.dtype)
        if self.summation == "in":
            return jnp.log(number)
        return self.above(multiple) - multiple / self.temperature * self.further.total / number

    def mean(self, multiple: float = 1.0) -> Array:
        """Return the softmax mean of the negatives' scores at multiple / tau, [B, V], without a gradient."""
        return self.negatives.mean[self.multiples.index(multiple)]

    def soft_positive(self) -> Array:
        """Return tau logsumexp_p(s_p / tau) over a query's positives, [B, V]; for one positive its score."""
        if self.further is None:
            return self.positive
        return self.positive + self.temperature * self.above()

    def scores(self, of: Array) -> Array:
        """Compute scores [B, V, M] of ``of`` [B, V, D] with each query's candidates; -inf if not a negative."""
        return jnp.stack([s.scores(of[:, v]) for v, s in enumerate(self.selections)], axis=1)


class Compare(NamedTuple):
    """The choices that define a comparison; see the modules of :mod:`contrastive_jax.contrast`."""

    embed: Callable[[Array], Array]
    candidates: Candidates
    negatives: Rule
    temperature: Temperature
    margin: Margin
    multiples: tuple[float, ...]
    summation: str = ""  # several positives, "out" or "in"; needs the pools' rows
    differentiate_temperature: bool = False
    transform: Transform = Transform()
    pairs: Pairs = BOTH  # views of the predictions, and of the keys

    def __call__(
        self,
        prediction: Array,
        keys: Array,
        group: Array,
        state: tuple[PyTree, PyTree],
        step: Array,
        rng: Array,
        query_offset: Array | float = 0.0,
        slopes: Slopes | None = None,
    ) -> tuple[Comparison, PyTree]:
        """Compare the views of ``prediction`` [B, Q, D] with their positives among ``keys`` [B, W, D].

        Each of the V ``pairs`` is one query with one positive; negatives come from other examples.

        Args:
          prediction: [B, Q, D] queries before ``embed``.
          keys: [B, W, D] keys before ``embed``.
          group: [B] group of each example.
          state: states of (candidates, temperature); a temperature state per example has the rows of the batch,
            so that tau is [B, 1] or [B, V] instead of [].
          step: number of the step.
          rng: random key.
          query_offset: [B, V, D], added to the embedded queries only; zeros, whose gradient is that of each
            query.
          slopes: zeros added to log(1 / tau) and to the bias of a temperature rule that reads the loss's
            derivatives, which are the gradients in them.

        Returns:
          The comparison, and the next state of the candidates.
        """
        sought = tuple(dict.fromkeys(k for _, k in self.pairs))  # views that are positives
        queries = _views(prediction, [q for q, _ in self.pairs])
        query, keys = self.embed(queries) + query_offset, self.embed(keys)
        positive_keys = _views(keys, sought)
        key = _views(positive_keys, [sought.index(k) for _, k in self.pairs])
        raw_positive = jnp.sum(query * key, axis=-1)
        alignment = jax.lax.stop_gradient(jnp.mean(raw_positive))
        tau = jnp.asarray(self.temperature.value(state[1], step, alignment)).astype(raw_positive.dtype)
        tau = jnp.broadcast_to(tau, raw_positive.shape) if tau.ndim else tau
        tau = tau if self.differentiate_temperature else jax.lax.stop_gradient(tau)
        bias = (
            None if self.temperature.bias is None else jax.lax.stop_gradient(self.temperature.bias(state[1]))
        )
        learnt = slopes is not None and self.temperature.reads == SLOPES
        if slopes is not None and learnt:
            tau = tau * jnp.exp(-slopes.log_scale).astype(tau.dtype)
            bias = None if bias is None else bias + slopes.bias
        positive = of_positive(self.transform, raw_positive, tau)
        scored, transform, divisor = (query, positive, raw_positive), self.transform, tau
        if tau.ndim:
            # Engines scale all scores by one number: queries are divided by tau first, scores are logits.
            scored = query / tau[..., None], positive / tau, raw_positive / tau
            transform, divisor = in_logits(transform), jnp.ones((), tau.dtype)
        pool_rng, subset_rng = jax.random.split(rng)
        pools, candidates = self.candidates.apply(state[0], keys, positive_keys, group, pool_rng)
        by = self.candidates.by
        pools = [
            pools[n if by == "pair" else q if by == "query" else sought.index(k)]
            for n, (q, k) in enumerate(self.pairs)
        ]
        selections = list(self.negatives(subset_rng, group, pools, self.candidates.same_group))
        row = shard_batch(jnp.arange(group.shape[0], dtype=jnp.int32)) if self.summation else None

        def statistics(sign: int, transform: Transform, multiples: list[float]):
            scale = jnp.asarray(multiples, tau.dtype) / divisor
            queries, positives, raw = map((lambda x: x) if sign > 0 else jnp.negative, scored)
            unit = multiples.index(1.0) if 1.0 in multiples else 0

            def ask(v: int, selection: AllNegatives | SampledNegatives) -> tuple[Negatives, Positives | None]:
                read = transformed(transform, raw[:, v], tau[:, v] if tau.ndim else tau, unit, tau.ndim > 0)
                if row is None:
                    return selection.statistics(queries[:, v], positives[:, v], scale, read), None
                return selection.several(queries[:, v], group, row, positives[:, v], scale, read)

            answers = [ask(v, selection) for v, selection in enumerate(selections)]
            return jax.tree.map(lambda *directions: jnp.stack(directions, axis=-1), *answers)

        above = [m for m in self.multiples if m >= 0] or [1.0]
        if self.transform.log_weight is not None and 1.0 not in above:
            above.append(1.0)  # the weights have mean 1 at this multiple
        below = [m for m in self.multiples if m < 0]
        negatives, further = statistics(1, transform, above)
        if below:
            others = statistics(-1, mirrored(transform), [-m for m in below])
            negatives, further = _joined(negatives, further, *others)
        if tau.ndim:
            negatives, further = _in_scores(negatives, further, tau)
        margin = real_array("margin", self.margin(negatives.count)).astype(positive.dtype)
        comparison = Comparison(
            *(query, key, positive, raw_positive, negatives, tau, margin, selections, (*above, *below)),
            *(further, self.summation, self.differentiate_temperature or learnt, bias),
        )
        return comparison, candidates


def _views(x: Array, places: Sequence[int]) -> Array:
    """Return the views of [B, W, D] at these places, [B, V, D]."""
    number, all_views = len(places), list(range(x.shape[1]))
    if list(places) == all_views[:number]:
        return x[:, :number]
    if list(places) == all_views[::-1][:number]:
        return x[:, ::-1][:, :number]  # of two views the other
    return jnp.stack([x[:, place] for place in places], axis=1)


def _joined(
    negatives: Negatives, further: Positives | None, mirrored: Negatives, others: Positives | None
) -> tuple[Negatives, Positives | None]:
    """Append statistics of negated scores, which are those at negative multiples of 1 / tau.

    The engines subtract the largest score, which is stable at positive multiples only.
    """

    def join(x: Array, y: Array) -> Array:
        return jnp.concatenate([x, y])  # along the multiples

    negatives = dataclasses.replace(
        negatives,
        logsumexp=join(negatives.logsumexp, mirrored.logsumexp),
        mean=join(negatives.mean, -mirrored.mean),
    )
    if further is None or others is None:
        return negatives, None
    return negatives, dataclasses.replace(further, logsumexp=join(further.logsumexp, others.logsumexp))


def _in_scores(
    negatives: Negatives, further: Positives | None, tau: Array
) -> tuple[Negatives, Positives | None]:
    """Return the statistics with means and sums converted from logits to scores; tau is [B, V]."""
    held = jax.lax.stop_gradient(tau)
    negatives = dataclasses.replace(negatives, mean=negatives.mean * held, hardest=negatives.hardest * held)
    return negatives, None if further is None else dataclasses.replace(further, total=further.total * tau)


def cosine(x: Array) -> Array:
    """Score by cosine: normalise embeddings [..., D] to length 1 (a zero row stays zero)."""
    return normalize(x)


def dot(x: Array) -> Array:
    """Score by dot product: embeddings [..., D] unchanged, in at least float32."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
