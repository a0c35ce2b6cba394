"""Losses that a function can be compared with: references, conventions and known mistakes."""

import dataclasses
import difflib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from contrastive_jax.conformance import references
from contrastive_jax.conformance.references import Array, Variant

PAIRS, LABELS, VIEWS, QUEUE = "pairs", "labels", "views", "queue"


@dataclasses.dataclass(frozen=True)
class Spec:
    """Specification of one loss.

    Attributes:
      kind: arrays of the function: ``pairs`` (a, b), ``labels`` (embeddings, labels), ``views``
        (a, b, labels) or ``queue`` (a, b, queue).
      loss: ``(*arrays, tau, variant, **options)`` -> the mean over queries.
      formula: formula of one query's loss.
      allowed: correct values of each field of :class:`Variant`, the usual one first.
      mistakes: wrong values of each field that occur in published code.
      options: options of the loss, with defaults.
      parts: description of the parts that the definition holds constant; empty: none.
      needs_cosine: whether the loss is defined for cosine scores only.
    """

    kind: str
    loss: Callable[..., Array]
    formula: str
    allowed: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    mistakes: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parts: str = ""
    needs_cosine: bool = False

    def variants(self) -> Iterator[tuple[Variant, list[str]]]:
        """Yield every variant with its wrong fields, fewest mistakes first."""
        fields = {name: (*values, *self.mistakes.get(name, ())) for name, values in self.allowed.items()}
        usual = Variant()
        for name, values in self.mistakes.items():
            fields.setdefault(name, (getattr(usual, name), *values))
        fields.setdefault("score", ("cosine",) if self.needs_cosine else ("cosine", "dot"))
        found = []
        for values in itertools.product(*fields.values()):
            chosen = dict(zip(fields, values, strict=True))
            wrong = [name for name, value in chosen.items() if value in self.mistakes.get(name, ())]
            variant = Variant(**chosen)
            if variant.own == "in" and variant.candidates == "other":
                continue  # the query is not in the other view
            if variant.sums == "two" and (variant.candidates != "both" or variant.own == "in"):
                continue
            found.append((len(wrong), variant, wrong))
        for _, variant, wrong in sorted(found, key=lambda entry: entry[0]):
            yield variant, wrong

    def usual(self) -> Variant:
        """Return the variant of the definition."""
        return Variant(**{name: values[0] for name, values in self.allowed.items()})


def _pairs(term: Callable, formula: str, **about: Any) -> Spec:
    def loss(a, b, tau, variant, **options):
        return references.pair_loss(term, a, b, tau, variant, **options)

    return Spec(PAIRS, loss, formula, **about)


EITHER = ("both", "other")
WAYS = ("both", "a", "b")
SHARED_MISTAKES = {"candidates": ("same",), "own": ("in",)}
PAIR_TERM = {"candidates": EITHER, "directions": WAYS}


def _macl(a, b, tau, variant, *, alpha=0.5, offset=0.0):
    normal = [references.normalise(x) if variant.score == "cosine" else x for x in (a, b)]
    alignment = np.einsum("...nd,...nd->...n", *normal).mean(-1)
    adapted = tau * (1.0 + alpha * (alignment - offset))
    adapted = references.held(adapted) if variant.held else adapted
    return references.pair_loss(references.macl, a, b, np.asarray(adapted)[..., None, None], variant)


SPECS: dict[str, Spec] = {
    "info_nce": _pairs(
        references.plain,
        "log(1 + sum_neg e^((s_j - s+) / tau)), negatives of the other view (CLIP) or of both",
        allowed={"candidates": ("other", "both"), "directions": WAYS},
        mistakes={"positive": ("out",), **SHARED_MISTAKES},
    ),
    "nt_xent": _pairs(
        references.plain,
        "log(1 + sum_neg e^((s_j - s+) / tau)), 2N - 2 negatives of both views (SimCLR)",
        allowed={"candidates": ("both",), "directions": ("both",)},
        mistakes={
            "positive": ("out",),
            "candidates": ("other", "same"),
            "own": ("in",),
            "directions": ("a", "b"),
        },
    ),
    "dcl": _pairs(
        references.plain,
        "log sum_neg e^((s_j - s+) / tau)",
        allowed={"positive": ("out",), **PAIR_TERM},
        mistakes={"positive": ("in",), "sums": ("two",), **SHARED_MISTAKES},
    ),
    "dclw": _pairs(
        references.dclw,
        "log sum_neg e^(s_j / tau) - w s+ / tau, w = 2 - N softmax(s+ / sigma) held",
        allowed={"positive": ("out",), **PAIR_TERM},
        mistakes={"positive": ("in",), "held": (False,), **SHARED_MISTAKES},
        options={"sigma": 0.5},
        parts="the weights of the positives",
    ),
    "flatnce": _pairs(
        references.flat_nce,
        "e^(c - held c), c = log sum_neg e^((s_j - s+) / tau)",
        allowed={"positive": ("out",), "value": ("defined", "zero", "info_nce"), **PAIR_TERM},
        mistakes={"positive": ("in",), **SHARED_MISTAKES},
        parts="the contrast in the denominator",
    ),
    "eqco": _pairs(
        references.eqco,
        "log(1 + alpha / K sum_neg e^((s_j - s+) / tau)), K negatives",
        allowed=PAIR_TERM,
        mistakes=SHARED_MISTAKES,
        options={"alpha": 65536.0},
    ),
    "macl": Spec(
        PAIRS,
        _macl,
        "held(1 / P) InfoNCE, P its share of negatives, at tau (1 + alpha (A - offset)), A = mean s+ held",
        allowed={"candidates": ("other", "both"), "directions": WAYS},
        mistakes={"held": (False,), **SHARED_MISTAKES},
        options={"alpha": 0.5, "offset": 0.0},
        parts="the weight 1 / P and the temperature",
    ),
    "debiased": _pairs(
        references.debiased,
        "log(1 + max((sum_neg e^((s_j - s+) / tau) - t K) / (1 - t), K e^(-(1 + s+) / tau))), t = tau_plus",
        allowed=PAIR_TERM,
        mistakes=SHARED_MISTAKES,
        options={"tau_plus": 0.1},
        needs_cosine=True,
    ),
    "hard_nce": _pairs(
        references.hard_nce,
        "log(1 + K sum_neg e^((1 + beta) s_j / tau) / sum_neg e^(beta s_j / tau) e^(-s+ / tau))",
        allowed=PAIR_TERM,
        mistakes=SHARED_MISTAKES,
        options={"beta": 1.0},
    ),
    "sigmoid": Spec(
        PAIRS,
        references.sigmoid_loss,
        "sum_j log(1 + e^(-z (s_j / tau + bias))), z = 1 for the positive, else -1 (SigLIP)",
        options={"bias": -10.0},
    ),
    "moco": Spec(
        QUEUE,
        references.queue_loss,
        "log(1 + sum_queue e^((s_j - s+) / tau))",
        mistakes={"keys": ("in",), "positive": ("out",)},
    ),
    "supcon": Spec(
        LABELS,
        references.label_loss,
        "mean_p -log(e^(s_p / tau) / sum_all e^(s_j / tau)) (Khosla et al., eq. 2)",
        allowed={"reading": ("out",), "lone": ("left_out", "zero")},
        mistakes={"reading": ("in", "in_sum", "sincere", "pairs"), "own": ("in",)},
    ),
    "supcon_in": Spec(
        LABELS,
        references.label_loss,
        "-log(mean_p e^(s_p / tau) / sum_all e^(s_j / tau)) (Khosla et al., eq. 3)",
        allowed={"reading": ("in", "in_sum"), "lone": ("left_out", "zero")},
        mistakes={"reading": ("out", "sincere", "pairs"), "own": ("in",)},
    ),
    "sincere": Spec(
        LABELS,
        references.label_loss,
        "mean_p -log(e^(s_p / tau) / (e^(s_p / tau) + sum_neg e^(s_j / tau)))",
        allowed={"reading": ("sincere",), "lone": ("left_out", "zero")},
        mistakes={"reading": ("out", "in", "in_sum", "pairs"), "own": ("in",)},
    ),
    "ntxent_pairs": Spec(
        LABELS,
        references.label_loss,
        "SINCERE's term, its mean over all ordered pairs (optax, pytorch-metric-learning)",
        allowed={"reading": ("pairs",)},
        mistakes={"reading": ("out", "in", "in_sum", "sincere"), "own": ("in",)},
    ),
}
ALIASES = {
    "infonce": "info_nce",
    "clip": "info_nce",
    "ntxent": "nt_xent",
    "simclr": "nt_xent",
    "flat_nce": "flatnce",
    "siglip": "sigmoid",
    "supcon_out": "supcon",
}


def find(name: str) -> tuple[str, Spec]:
    """Return a loss's canonical name and specification; raise ValueError for an unknown name."""
    name = ALIASES.get(str(name).lower().replace("-", "_"), str(name).lower().replace("-", "_"))
    if name not in SPECS:
        close = difflib.get_close_matches(name, SPECS, 1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Allowed: {', '.join(SPECS)}."
        raise ValueError(f"as is {name!r}. {hint}")
    return name, SPECS[name]


def of_two_views(spec: Spec) -> Spec:
    """Return a labelled loss as a loss of (a, b, labels), computed on the rows of both views together."""

    def loss(a, b, labels, tau, variant, **options):
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        rows = np.concatenate([np.broadcast_to(x, (*shape, *x.shape[-2:])) for x in (a, b)], -2)
        return spec.loss(rows, np.concatenate([labels, labels]), tau, variant, **options)

    return dataclasses.replace(spec, kind=VIEWS, loss=loss)


# ------------------------------------------------------------------------------------------ factors


@dataclasses.dataclass(frozen=True)
class Factor:
    """Known factor between a loss and the mean over its queries."""

    words: str
    of: Callable[[int, int, float], float]  # (rows N, queries Q, tau)


FACTORS = (
    Factor("the mean over queries", lambda n, q, tau: 1.0),
    Factor(
        "2 x the mean over queries: SimCLR's convention, the sum of both directions' means",
        lambda n, q, tau: 2.0,
    ),
    Factor("the sum over queries", lambda n, q, tau: float(q)),
    Factor("the sum over queries, divided by 2", lambda n, q, tau: q / 2.0),
    Factor("tau x the mean over queries", lambda n, q, tau: tau),
    Factor("2 tau x the mean over queries: MoCo v3's convention", lambda n, q, tau: 2.0 * tau),
    Factor(
        "tau / 0.07 x the mean over queries: SupContrast's base temperature", lambda n, q, tau: tau / 0.07
    ),
    Factor("the mean over all pairs: the mean over rows, divided by N", lambda n, q, tau: 1.0 / n),
    Factor("half of the mean over queries", lambda n, q, tau: 0.5),
    Factor("(N - 1) tau x the mean over queries (LibAUC's GCLoss_v2)", lambda n, q, tau: (n - 1) * tau),
    Factor("the mean over 2 N rows of a sum over N", lambda n, q, tau: 1.0 / q),
    Factor("4 x the mean over queries", lambda n, q, tau: 4.0),
)


@dataclasses.dataclass(frozen=True)
class Temperature:
    """Meaning of a function's temperature argument."""

    words: str
    of_argument: Callable[[Any], Any]
    to_argument: Callable[[Any], Any]


TEMPERATURES = (
    Temperature("tau", lambda t: t, lambda t: t),
    Temperature("1 / tau (it multiplies the scores)", lambda t: 1.0 / t, lambda t: 1.0 / t),
    Temperature("log(1 / tau) (CLIP's logit scale)", lambda t: math.exp(-t), lambda t: -math.log(t)),
    Temperature("log(tau)", lambda t: math.exp(t), math.log),
)
USUAL_TAUS = (0.05, 0.07, 0.1, 0.2, 0.5, 1.0)
