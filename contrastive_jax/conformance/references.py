"""Reference losses in float64 NumPy, written from their definitions, with complex-step gradients.

The code is independent of the package's losses: scores are dense, terms follow the papers, and a gradient
is ``imag(f(x + i h)) / h`` with h = 1e-100, free of the cancellation of finite differences. Arrays may have
leading axes.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
STEP = 1e-100


@dataclasses.dataclass(frozen=True)
class Variant:
    """Form of a loss: the choices in which published implementations differ, or are wrong.

    Attributes:
      candidates: rows that a query is compared with: of ``both`` views, the ``other`` or the ``same`` view.
      positive: whether the positive is ``in`` or ``out`` of the sum over candidates.
      own: whether the query itself is ``in`` or ``out`` of that sum.
      directions: queries are the rows of ``both`` arrays, of ``a`` or of ``b``.
      sums: the logarithm of ``one`` sum, or the added logarithms of ``two`` sums, one per view.
      score: ``cosine`` normalises rows, ``dot`` does not.
      held: whether the parts that the definition holds constant carry no gradient.
      value: ``defined``; for FlatNCE, whose value carries no information, also ``zero`` or ``info_nce``.
      reading: several positives are averaged ``out`` of or ``in`` the logarithm, summed in it (``in_sum``), or
        compared with negatives one by one, averaged per row (``sincere``) or over all pairs (``pairs``).
      lone: rows without a positive are ``left_out`` of the mean or count as ``zero``.
      keys: whether the batch's own keys are ``in`` or ``out`` of the queue's sum.
    """

    candidates: str = "both"
    positive: str = "in"
    own: str = "out"
    directions: str = "both"
    sums: str = "one"
    score: str = "cosine"
    held: bool = True
    value: str = "defined"
    reading: str = "out"
    lone: str = "left_out"
    keys: str = "out"


@dataclasses.dataclass(frozen=True)
class Queries:
    """Queries of one direction: scores of their positives [.., Q] and of their candidates [.., Q, M]."""

    positive: Array
    scores: Array
    negative: Array  # [Q, M] bool: which candidates are negatives
    parts: tuple[Array, ...]  # [Q, M] bool each: the candidates of one view
    tau: Array

    def contrast(self, scale: float = 1.0, mask: Array | None = None) -> Array:
        """Return logsumexp over negatives of (score - the positive's score) * scale / tau: [.., Q]."""
        above = (self.scores - self.positive[..., None]) * (scale / self.tau)
        return logsumexp(above, self.negative if mask is None else mask)

    @property
    def count(self) -> Array:
        """Number of negatives [Q]."""
        return self.negative.sum(-1)


def held(x: Array) -> Array:
    """Return an array without its derivative, the imaginary part."""
    return np.real(x) + 0 * 1j if np.iscomplexobj(x) else x


def log1p(x: Array) -> Array:
    """Return log(1 + x), accurate for small x, to first order in the imaginary part."""
    if not np.iscomplexobj(x):
        return np.log1p(x)
    return np.log1p(x.real) + 1j * (x.imag / (1.0 + x.real))


def softplus(x: Array) -> Array:
    """Return log(1 + e^x) without overflow."""
    above = np.real(x) > 0
    return np.where(above, x, 0) + log1p(np.exp(np.where(above, -x, x)))


def logsumexp(x: Array, mask: Array) -> Array:
    """Return the logarithm of the sum of e^x over the last axis within ``mask``; -inf for an empty sum."""
    top = np.max(np.where(mask, np.real(x), -np.inf), axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    parts = np.where(mask, np.exp(np.where(mask, x - top, 0)), 0)
    with np.errstate(divide="ignore"):
        return top[..., 0] + np.log(parts.sum(-1))


def normalise(x: Array) -> Array:
    """Scale rows to unit length; a zero row stays zero."""
    largest = np.max(np.abs(np.real(x)), axis=-1, keepdims=True)  # else squares overflow or underflow
    x = x / np.where(largest == 0, 1.0, largest)
    squares = (x * x).sum(-1, keepdims=True)
    return x / np.sqrt(np.where(squares == 0, 1.0, squares))


def matmul_rows(a: Array, b: Array) -> Array:
    """Return the scores of all rows of ``a`` with all rows of ``b``."""
    return a @ np.swapaxes(b, -1, -2)


# ------------------------------------------------------------------------------------------ two arrays


def directions(a: Array, b: Array, tau: Any, variant: Variant) -> list[Queries]:
    """Return the queries of each direction of two arrays [.., N, D]."""
    if variant.score == "cosine":
        a, b = normalise(a), normalise(b)
    rows = a.shape[-2]
    others, diagonal = ~np.eye(rows, dtype=bool), np.eye(rows, dtype=bool)
    nothing, everything = np.zeros((rows, rows), bool), np.ones((rows, rows), bool)
    found = []
    for name, query, key in (("a", a, b), ("b", b, a)):
        if variant.directions not in ("both", name):
            continue
        cross, same = matmul_rows(query, key), matmul_rows(query, query)
        positive = np.einsum("...nd,...nd->...n", query, key)
        of_other = nothing if variant.candidates == "same" else others
        of_same = nothing if variant.candidates == "other" else everything if variant.own == "in" else others
        if variant.sums == "two" and variant.positive == "in":
            of_other = of_other | diagonal
        scores = np.concatenate(np.broadcast_arrays(cross, same), -1)
        parts = (np.concatenate([of_other, nothing], -1), np.concatenate([nothing, of_same], -1))
        found.append(Queries(positive, scores, parts[0] | parts[1], parts, tau))
    return found


def base(queries: Queries, variant: Variant) -> Array:
    """Return -log of the positive's share: softplus(c) with the positive in the sum, c without; c: contrast."""
    if variant.sums == "two":
        first, second = (queries.contrast(mask=part) for part in queries.parts)
        return first + second + queries.positive / queries.tau
    c = queries.contrast()
    return softplus(c) if variant.positive == "in" else c


def plain(queries: Queries, variant: Variant) -> Array:
    """Return InfoNCE, NT-Xent or DCL."""
    return base(queries, variant)


def dclw(queries: Queries, variant: Variant, *, sigma: float = 0.5) -> Array:
    """Return DCL with von Mises-Fisher weights on the positives."""
    s = queries.positive
    shares = np.exp((s - np.max(np.real(s), -1, keepdims=True)) / sigma)
    weight = 2.0 - s.shape[-1] * shares / shares.sum(-1, keepdims=True)
    weight = held(weight) if variant.held else weight
    return base(queries, variant) + (1.0 - weight) * s / queries.tau


def flat_nce(queries: Queries, variant: Variant) -> Array:
    """Return FlatNCE; its value is a constant or, in straight-through implementations, InfoNCE's."""
    c = base(queries, variant)
    flat = np.exp(c - held(c))
    if variant.value == "zero":
        return flat - 1.0
    return flat - 1.0 + held(softplus(queries.contrast())) if variant.value == "info_nce" else flat


def eqco(queries: Queries, variant: Variant, *, alpha: float = 65536.0) -> Array:
    """Return EqCo: InfoNCE with ``alpha`` effective negatives."""
    return softplus(queries.contrast() + np.log(alpha / queries.count))


def macl(queries: Queries, variant: Variant) -> Array:
    """Return MACL's reweighted InfoNCE at the given temperature."""
    c = queries.contrast()
    small = np.real(c) < -30.0  # here both softplus and sigmoid are e^c
    inner = np.where(small, 0, c)
    ratio = np.where(small, 1.0 + np.exp(np.where(small, c, 0)) / 2, softplus(inner) * (1.0 + np.exp(-inner)))
    return held(ratio) + c - held(c) if variant.held else ratio


def debiased(queries: Queries, variant: Variant, *, tau_plus: float = 0.1) -> Array:
    """Return debiased InfoNCE."""
    c, count = queries.contrast(), queries.count
    large = np.real(c) > 30.0  # here e^c is factored out of the logarithm
    g = (np.exp(np.where(large, 0, c)) - tau_plus * count) / (1.0 - tau_plus)
    least = count * np.exp(-(1.0 + queries.positive) / queries.tau)
    rest = (1.0 - tau_plus - tau_plus * count) * np.exp(-np.where(large, c, 30.0))
    outside = c - np.log(1.0 - tau_plus) + log1p(rest)
    return np.where(large, outside, log1p(np.where(np.real(g) > np.real(least), g, least)))


def hard_nce(queries: Queries, variant: Variant, *, beta: float = 1.0) -> Array:
    """Return InfoNCE with negatives weighted by e^(beta s / tau)."""
    weighted = queries.contrast(1.0 + beta) - queries.contrast(beta)
    return softplus(np.log(queries.count) + weighted)


def pair_loss(term: Callable, a: Array, b: Array, tau: Any, variant: Variant, **options: Any) -> Array:
    """Return the mean over all queries of both directions: [..]."""
    values = [term(queries, variant, **options) for queries in directions(a, b, tau, variant)]
    return np.concatenate(np.broadcast_arrays(*values), -1).mean(-1)


def sigmoid_loss(a: Array, b: Array, tau: Any, variant: Variant, *, bias: float = -10.0) -> Array:
    """Return SigLIP's loss, the mean over rows of the sum over their pairs."""
    if variant.score == "cosine":
        a, b = normalise(a), normalise(b)
    logits = matmul_rows(a, b) / tau + bias
    sign = 2.0 * np.eye(a.shape[-2]) - 1.0
    return softplus(-sign * logits).sum(-1).mean(-1)


def queue_loss(a: Array, b: Array, queue: Array, tau: Any, variant: Variant) -> Array:
    """Return MoCo's loss: queries ``a``, positives ``b``, negatives the queue [M, D]."""
    if variant.score == "cosine":
        a, b, queue = normalise(a), normalise(b), normalise(queue)
    positive = np.einsum("...nd,...nd->...n", a, b)
    scores = matmul_rows(a, queue)
    if variant.keys == "in":
        keys = matmul_rows(a, b)
        shape = np.broadcast_shapes(scores.shape[:-1], keys.shape[:-1])
        scores = np.concatenate([np.broadcast_to(x, (*shape, x.shape[-1])) for x in (scores, keys)], -1)
    mask = np.ones(scores.shape[-2:], bool)
    return base(Queries(positive, scores, mask, (mask,), tau), variant).mean(-1)


# ------------------------------------------------------------------------------------------ labels


def label_loss(x: Array, labels: Array, tau: Any, variant: Variant) -> Array:
    """Return the supervised contrastive loss of rows [.., N, D] and labels [N] in the variant's ``reading``."""
    x = normalise(x) if variant.score == "cosine" else x
    logits, rows = matmul_rows(x, x) / tau, len(labels)
    oneself = np.eye(rows, dtype=bool)
    alike = (labels[:, None] == labels[None, :]) & ~oneself
    negative = labels[:, None] != labels[None, :]
    if variant.own == "in":
        negative = negative | oneself
    number = alike.sum(-1)
    some, divisor = number > 0, np.maximum(number, 1)
    if variant.reading in ("sincere", "pairs"):
        each = softplus(logsumexp(logits, negative)[..., None] - logits)
        total = np.where(alike, each, 0).sum(-1)
        if variant.reading == "pairs":
            return total.sum(-1) / max(number.sum(), 1)
        value = total / divisor
    else:
        whole = logsumexp(logits, negative | alike)
        if variant.reading == "out":
            value = whole - np.where(alike, logits, 0).sum(-1) / divisor
        else:
            value = whole - logsumexp(logits, np.where(some[:, None], alike, True))
            value = value + (np.log(divisor) if variant.reading == "in" else 0.0)
    value = np.where(some, value, 0)
    return value.sum(-1) / (max(some.sum(), 1) if variant.lone == "left_out" else rows)


# ------------------------------------------------------------------------------------------ gradients


def gradient(function: Callable[..., Array], arrays: Sequence[Array], argument: int) -> Array:
    """Return the exact gradient of a real function of arrays with respect to one of them.

    Args:
      function: takes the arrays, one of them with an extra leading axis, and returns one value per entry of it.
      arrays: float64 arrays; others (labels) are passed unchanged.
      argument: position of the array to differentiate.

    Returns:
      An array of the argument's shape.
    """
    x = np.asarray(arrays[argument], float)
    steps = x + 1j * STEP * np.eye(x.size).reshape(x.size, *x.shape)
    given = [*arrays[:argument], steps, *arrays[argument + 1 :]]
    return (np.imag(function(*given)) / STEP).reshape(x.shape)


# Options that are more than finite numbers -> (what holds, in words).
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "sigma": (lambda x: x > 0, "above 0"),
    "alpha": (lambda x: x > 0, "above 0"),
    "tau_plus": (lambda x: 0 <= x < 1, "at least 0 and below 1"),
    "beta": (lambda x: x >= 0, "at least 0"),
}


def options_of(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a loss's options, with defaults filled in; raise ValueError for an unknown one."""
    if unknown := set(options) - set(known):
        allowed = f"its options: {', '.join(known)}" if known else "it has no options"
        raise ValueError(f"{sorted(unknown)[0]} is not an option of the loss; {allowed}.")
    for name, value in options.items():
        holds, words = RANGES.get(name, (math.isfinite, "a finite number"))
        if not (math.isfinite(value) and holds(value)):
            raise ValueError(f"{name} is {value}; it must be {words}.")
    return {**known, **options}
