"""From embeddings to one number: compare queries with their candidates, then weigh the loss terms.

``compare`` asks every query about its positive and its negatives; what comes back is all that the
family of losses reads. ``objective`` turns a config's ``term -> options`` into a function of a
comparison and of the embeddings, by handing each loss the quantities that its parameters name.
"""

import dataclasses
import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax import losses
from contrastive_jax.contrast.candidates import Candidates
from contrastive_jax.contrast.margin import Margin
from contrastive_jax.contrast.selection import Everyone, Subset
from contrastive_jax.contrast.similarity import normalize
from contrastive_jax.contrast.temperature import Temperature
from contrastive_jax.sharding import gather, spread
from contrastive_jax.types import Array, Negatives, Positives, PyTree, record


@record
class Comparison:
    """What a step's queries found. B examples, V directions, S multiples of 1 / tau, M candidates."""

    query: Array  # [B, V, D]
    key: Array  # [B, V, D] the positives
    positive: Array  # [B, V] score of the positive
    negatives: Negatives  # count [B, V], logsumexp of (score - positive) / tau [S, B, V], ...
    temperature: Array  # [] tau, without a gradient unless differentiate_temperature
    margin: Array  # [B, V] added to the contrast
    selections: list[Everyone | Subset]  # one a direction: who the negatives are
    multiples: tuple[float, ...] = dataclasses.field(metadata={"static": True})
    further: Positives | None = None  # positives beside the one in ``key``: count [B, V], ...
    summation: str = dataclasses.field(default="", metadata={"static": True})  # "out" or "in", if several
    differentiate_temperature: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def count(self) -> Array:
        """K_i [B, V]."""
        return self.negatives.count

    def contrast(self, multiple: float = 1.0, margin: bool = True) -> Array:
        """c [B, V] = logsumexp over the negatives of multiple * (score - positive) / tau, plus the margin.

        0, without a gradient, where a query has no negatives; :func:`objective` leaves those out.
        """
        c = self.negatives.logsumexp[self.multiples.index(multiple)]
        if self.further is not None:
            c = c - self.above(multiple)
        return jnp.where(self.count > 0, c + (self.margin if margin else 0.0), 0.0)

    def above(self, multiple: float = 1.0) -> Array:
        """Return logsumexp over all positives of multiple * (score - positive) / tau, [B, V]: 0 where there is one."""
        found = self.further.logsumexp[self.multiples.index(multiple)]
        some = self.further.count > 0
        return jnp.where(some, jax.nn.softplus(jnp.where(some, found, 0.0)), 0.0)

    def surplus(self, multiple: float = 1.0) -> Array | None:
        """Return what several positives P add to a loss's function of the contrast, [B, V]; None with one.

        log |P| if they are summed inside the logarithm, logsumexp_p(x_p) - mean_p(x_p) outside of it.
        """
        if self.further is None:
            return None
        number = 1.0 + self.further.count.astype(self.positive.dtype)
        if self.summation == "in":
            return jnp.log(number)
        return self.above(multiple) - multiple / self.temperature * self.further.total / number

    def soft_positive(self) -> Array:
        """Return tau logsumexp_p(s_p / tau) over a query's positives, [B, V]: the positive's score if it is one."""
        if self.further is None:
            return self.positive
        return self.positive + self.temperature * self.above()

    def scores(self, of: Array) -> Array:
        """Scores [B, V, M] of ``of`` [B, V, D] with the negatives of each query; -inf for those not permitted."""
        return jnp.stack([s.scores(of[:, v]) for v, s in enumerate(self.selections)], axis=1)


class Compare(NamedTuple):
    """The axes that a comparison is made of; see the modules of :mod:`contrastive_jax.contrast`."""

    embed: Callable[[Array], Array]
    candidates: Candidates
    negatives: Callable[..., Everyone | Subset]
    temperature: Temperature
    margin: Margin
    multiples: tuple[float, ...]
    summation: str = ""  # of several positives: "out" or "in"; needs the pools' rows
    differentiate_temperature: bool = False

    def __call__(
        self,
        prediction: Array,
        keys: Array,
        group: Array,
        state: tuple[PyTree, PyTree],
        step: Array,
        rng: Array,
        nudge: Array | float = 0.0,
    ) -> tuple[Comparison, PyTree]:
        """Compares queries ``prediction`` [B, V, D] with ``keys`` [B, W, D]; returns the next candidates too.

        View v's positive is the key of the other view; ``state`` is that of (candidates, temperature). ``nudge``
        [B, V, D] is added to the embedded queries, not to the keys: zeros, whose gradient is that of each query.
        """
        directions = prediction.shape[1]
        query, keys = self.embed(prediction) + nudge, self.embed(keys)
        key = keys[:, ::-1][:, :directions]
        positive = jnp.sum(query * key, axis=-1)
        alignment = jax.lax.stop_gradient(jnp.mean(positive))
        tau = jnp.asarray(self.temperature.value(state[1], step, alignment)).astype(positive.dtype)
        tau = tau if self.differentiate_temperature else jax.lax.stop_gradient(tau)
        pool_rng, subset_rng = jax.random.split(rng)
        pools, candidates = self.candidates.apply(state[0], keys, key, group, pool_rng)
        selections = [
            self.negatives(jax.random.fold_in(subset_rng, v), group, pool, self.candidates.same_group)
            for v, pool in enumerate(pools)
        ]
        scale = jnp.asarray(self.multiples, tau.dtype) / tau
        row = spread(jnp.arange(group.shape[0], dtype=jnp.int32)) if self.summation else None

        def ask(v: int, selection: Everyone | Subset) -> tuple[Negatives, Positives | None]:
            if row is None:
                return selection.statistics(query[:, v], positive[:, v], scale), None
            return selection.several(query[:, v], group, row, positive[:, v], scale)

        found = [ask(v, selection) for v, selection in enumerate(selections)]
        negatives, further = jax.tree.map(lambda *directions: jnp.stack(directions, axis=-1), *found)
        margin = self.margin(negatives.count).astype(positive.dtype)
        comparison = Comparison(
            *(query, key, positive, negatives, tau, margin, selections, self.multiples),
            *(further, self.summation, self.differentiate_temperature),
        )
        return comparison, candidates


def cosine(x: Array) -> Array:
    """Score by cosine: embeddings [..., D] are brought to length 1 (a zero row stays zero)."""
    return normalize(x)


def dot(x: Array) -> Array:
    """Score by dot product: embeddings [..., D] are taken as they are, in at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _row(comparison: Comparison, of: Array) -> Array:
    """[B, V, 1 + M] scores over tau of ``of`` with the positive (first) and with the negatives."""
    own = jnp.sum(of * comparison.key, axis=-1, keepdims=True)
    score = jnp.concatenate([own, comparison.scores(of)], axis=-1)
    if not comparison.differentiate_temperature:
        return score / comparison.temperature
    permitted = score > -jnp.inf  # the derivative of -inf / tau is infinite, and NaN times 0
    return jnp.where(permitted, jnp.where(permitted, score, 0.0) / comparison.temperature, -jnp.inf)


# What a loss may name among its parameters, besides the contrasts.
QUANTITIES: dict[str, Callable[[Comparison, Mapping[str, Array]], Array | None]] = {
    "positive": lambda comparison, given: comparison.soft_positive(),
    "count": lambda comparison, given: comparison.count,
    "temperature": lambda comparison, given: comparison.temperature,
    "cross": lambda comparison, given: _row(comparison, comparison.query),
    "same": lambda comparison, given: _row(comparison, comparison.key),
    "population": lambda comparison, given: gather(given["projection"]),
    "projection": lambda comparison, given: given["projection"],
    "prediction": lambda comparison, given: given["prediction"],
    "target": lambda comparison, given: given["target"],
    "logits": lambda comparison, given: given["logits"],
    "label": lambda comparison, given: given["label"],
    "key": lambda comparison, given: given["rng"],
    "surplus": lambda comparison, given: comparison.surplus(),
}


class Term(NamedTuple):
    """One summand of the loss: a function of :mod:`contrastive_jax.losses`, its options and its weight."""

    name: str
    weight: float
    function: Callable[..., Array]
    options: dict[str, Any]
    multiples: tuple[float, ...]  # of 1 / tau: the contrasts that are its first parameters
    quantities: tuple[str, ...]

    @property
    def labels(self) -> str:
        """How many labels an image has that the loss reads, "one" or "several"; empty where it does not say."""
        return getattr(self.function, "labels", "")

    def values(self, comparison: Comparison, given: Mapping[str, Array]) -> Array:
        """The loss, unreduced: [B, V] where it reads contrasts, 0 for a query without negatives."""
        contrasts = [comparison.contrast(multiple) for multiple in self.multiples]
        quantities = [
            comparison.surplus(self.multiples[0])
            if name == "surplus" and contrasts
            else QUANTITIES[name](comparison, given)
            for name in self.quantities
        ]
        value = self.function(*contrasts, *quantities, **self.options)
        return jnp.where(comparison.count > 0, value, 0.0) if contrasts else value

    def __call__(self, comparison: Comparison, given: Mapping[str, Array]) -> Array:
        """The mean of :meth:`values` over queries (or examples)."""
        return jnp.mean(self.values(comparison, given))


def find(name: str) -> Callable[..., Array]:
    """A loss by its name in :mod:`contrastive_jax.losses`, or by ``module:function``."""
    if ":" in name:
        module, function = name.split(":")
        return getattr(importlib.import_module(module), function)
    known = [n for n in losses.__all__ if inspect.isfunction(getattr(losses, n))]
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."
        raise ValueError(f"loss: there is no loss {name!r}.{hint} (Your own: 'module:function'.)")
    return getattr(losses, name)


def term(name: str, settings: Mapping[str, Any] | float) -> Term:
    """One term from its entry in the config's ``loss`` section: a weight, or ``weight`` and options.

    Raises:
      ValueError: unknown loss or option; the message shows the loss's signature.
    """
    settings = dict(settings) if isinstance(settings, Mapping) else {"weight": settings}
    weight = settings.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(f"loss.{name}.weight is {weight!r}; it must be a number.")
    function = find(name)
    signature = inspect.signature(function)
    options = {p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    required = {n for n in options if signature.parameters[n].default is inspect.Parameter.empty}
    if set(settings) - options or required - set(settings):
        wrong = sorted(set(settings) - options)
        what = f"no option {wrong[0]!r}" if wrong else f"needs {sorted(required - set(settings))[0]!r}"
        raise ValueError(f"loss.{name}: {what}; it is {name}{signature}.")
    inputs = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    if hasattr(function, "scales"):
        multiples = tuple(float(m) for m in function.scales(**settings))
    else:
        multiples = (1.0,) if inputs[:1] == ["c"] else ()
    quantities = tuple(inputs[len(multiples) :])
    if unknown := [q for q in quantities if q not in QUANTITIES]:
        raise ValueError(
            f"loss.{name} reads {unknown[0]!r}, which a step does not have;"
            f" it has c, {', '.join(QUANTITIES)}. The loss is {name}{signature}."
        )
    return Term(name, float(weight), function, settings, multiples, quantities)


def terms(section: Mapping[str, Any]) -> tuple[Term, ...]:
    """The terms of a config's ``loss`` section."""
    if not section:
        raise ValueError("loss is empty; name at least one term, for example loss.info_nce.weight=1.0.")
    return tuple(term(name, settings) for name, settings in section.items())


def total(parts: tuple[Term, ...], comparison: Comparison, given: Mapping[str, Array]) -> tuple[Array, dict]:
    """The weighted sum of the terms, and each term's own value."""
    values = {part.name: part(comparison, given) for part in parts}
    return jnp.asarray(sum(part.weight * values[part.name] for part in parts)), values
